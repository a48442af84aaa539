//! Whether the engine is asked at all. Pure: `now` is an argument.
//!
//! After [`LOST`] calls in a row without an answer, the engine counts as absent, and no
//! call waits for it. After a pause one call is tried; while those fail, the pauses
//! become longer.

use std::time::Duration;

use crate::clock::Moment;

/// This many calls in a row without an answer open the breaker.
const LOST: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct EngineBreaker {
    lost: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    until: Moment,
    pause: Duration,
}

/// A call that may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Call,
    /// Its fate decides whether others are made.
    Trial,
}

impl EngineBreaker {
    /// Whether a call may be made now. [`answered`](Self::answered) or
    /// [`lost`](Self::lost) should follow; after a trial of which nothing is heard, there
    /// is another one.
    pub(super) fn admit(&mut self, now: Moment) -> Option<Admitted> {
        match &mut self.open {
            None => Some(Admitted::Call),
            Some(open) if now < open.until => None,
            Some(open) => {
                open.until = now + open.pause;
                Some(Admitted::Trial)
            }
        }
    }

    /// The engine has answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// A call was not answered. Returns whether the breaker has opened, or stays open.
    pub(super) fn lost(&mut self, call: Admitted, now: Moment) -> bool {
        match (&mut self.open, call) {
            (Some(open), Admitted::Trial) => {
                open.pause = (open.pause * 2).min(LONGEST_PAUSE);
                open.until = now + open.pause;
                true
            }
            // It was sent before the breaker opened.
            (Some(_), Admitted::Call) => false,
            (None, _) => {
                self.lost += 1;
                if self.lost < LOST {
                    return false;
                }
                self.open = Some(Open {
                    until: now + FIRST_PAUSE,
                    pause: FIRST_PAUSE,
                });
                true
            }
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    fn opened() -> EngineBreaker {
        let mut breaker = EngineBreaker::default();
        for call in 1..=LOST {
            assert_eq!(breaker.admit(ms(0)), Some(Admitted::Call));
            assert_eq!(breaker.lost(Admitted::Call, ms(0)), call == LOST);
        }
        breaker
    }

    #[test]
    fn five_lost_calls_in_a_row_open_it() {
        let mut breaker = EngineBreaker::default();
        for _ in 0..3 {
            for _ in 1..LOST {
                breaker.lost(Admitted::Call, ms(0));
            }
            breaker.answered();
        }
        assert!(!breaker.is_open());
        let mut breaker = opened();
        assert!(breaker.is_open());
        assert_eq!(breaker.admit(ms(249)), None);
    }

    #[test]
    fn one_trial_is_made_after_each_pause_and_the_pauses_double() {
        let mut breaker = opened();
        let mut at = 0;
        for pause in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            assert_eq!(breaker.admit(ms(at + pause - 1)), None, "{pause}");
            at += pause;
            assert_eq!(breaker.admit(ms(at)), Some(Admitted::Trial), "{pause}");
            assert_eq!(breaker.admit(ms(at)), None, "one trial only");
            assert!(breaker.lost(Admitted::Trial, ms(at)));
        }
    }

    #[test]
    fn a_call_from_before_does_not_lengthen_the_pause() {
        let mut breaker = opened();
        assert!(!breaker.lost(Admitted::Call, ms(200)));
        assert_eq!(breaker.admit(ms(250)), Some(Admitted::Trial));
    }

    #[test]
    fn a_trial_that_is_answered_closes_it_and_one_without_a_result_is_repeated() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(ms(250)), Some(Admitted::Trial));
        assert_eq!(breaker.admit(ms(499)), None);
        assert_eq!(breaker.admit(ms(500)), Some(Admitted::Trial));
        breaker.answered();
        assert_eq!(breaker.admit(ms(500)), Some(Admitted::Call));
    }
}
