//! Whether the engine is asked at all. Pure: `now` is an argument.
//!
//! After [`LOST`] calls in a row without an answer, over [`LOST_FOR`] or longer, the
//! engine counts as absent, and no call waits for it. After a pause one call is tried;
//! while those fail, the pauses become longer.

use std::time::Duration;

use crate::clock::Moment;

/// This many calls in a row without an answer open the breaker.
const LOST: u32 = 5;
/// The time from the first of them to the last. Many calls are made at once, and all of
/// them are lost in one slow moment of the engine.
const LOST_FOR: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// An engine that is back is used again so soon. A call each second costs nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct EngineBreaker {
    lost: u32,
    /// When the first of them was lost.
    since: Option<Moment>,
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
    /// [`lost`](Self::lost) should follow; after a trial without a result, there
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
                self.lost = self.lost.saturating_add(1);
                let since = *self.since.get_or_insert(now);
                if self.lost < LOST || now.since(since) < LOST_FOR {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    /// A breaker that has opened at 1,000 ms.
    fn opened() -> EngineBreaker {
        let mut breaker = EngineBreaker::default();
        for at in [0, 250, 500, 750, 1000] {
            assert_eq!(breaker.admit(ms(at)), Some(Admitted::Call));
            assert_eq!(breaker.lost(Admitted::Call, ms(at)), at == 1000);
        }
        breaker
    }

    #[test]
    fn five_lost_calls_in_a_row_over_a_second_open_it() {
        // When calls were lost, and after how many of them it is open.
        for (lost, opens) in [
            (&[0, 250, 500, 750, 1000][..], Some(5)),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 999], None),
            (&[0, 0, 0, 0, 0, 0, 0, 1000], Some(8)),
            (&[0, 500, 1000, 1500, 2000], Some(5)),
            (&[0, 500, 1000, 60_000], None),
            (&[0; 100], None),
        ] {
            let mut breaker = EngineBreaker::default();
            let mut opened = None;
            for (at, calls) in lost.iter().zip(1..) {
                if breaker.lost(Admitted::Call, ms(*at)) {
                    opened = opened.or(Some(calls));
                }
            }
            assert_eq!(opened, opens, "{lost:?}");
            assert_eq!(breaker.open.is_some(), opens.is_some(), "{lost:?}");
        }
    }

    #[test]
    fn an_answer_in_between_begins_the_count_anew() {
        let mut breaker = EngineBreaker::default();
        for at in [0, 300, 600, 900] {
            breaker.lost(Admitted::Call, ms(at));
        }
        breaker.answered();
        for at in [1000, 1300, 1600, 1900, 1999] {
            assert!(!breaker.lost(Admitted::Call, ms(at)), "{at}");
        }
        assert!(breaker.lost(Admitted::Call, ms(2000)));
        assert_eq!(breaker.admit(ms(2249)), None);
    }

    #[test]
    fn one_trial_is_made_after_each_pause_and_the_pauses_double() {
        let mut breaker = opened();
        let mut at = 1000;
        for pause in [250, 500, 1000, 1000, 1000] {
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
        assert!(!breaker.lost(Admitted::Call, ms(1200)));
        assert_eq!(breaker.admit(ms(1250)), Some(Admitted::Trial));
    }

    #[test]
    fn a_trial_that_is_answered_closes_it_and_one_without_a_result_is_repeated() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(ms(1250)), Some(Admitted::Trial));
        assert_eq!(breaker.admit(ms(1499)), None);
        assert_eq!(breaker.admit(ms(1500)), Some(Admitted::Trial));
        breaker.answered();
        assert_eq!(breaker.admit(ms(1500)), Some(Admitted::Call));
    }
}
