//! Whether the engine is asked at all. Pure: `now` is an argument.
//!
//! When calls have had no answer for [`LOST_FOR`] or longer, the engine counts as absent, and
//! no call waits for it but one each [`PAUSE`].

use std::time::Duration;

use crate::clock::Moment;

/// The time from the first of the calls in a row without an answer to the last. Many calls are
/// made at once, and all of them are lost in one slow moment of the engine.
const LOST_FOR: Duration = Duration::from_secs(1);
/// An engine that is back is used again so soon.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct EngineBreaker {
    /// When the first call was lost since the last answer.
    lost: Option<Moment>,
    /// While it is open: when the next call is tried.
    next: Option<Moment>,
}

impl EngineBreaker {
    /// Whether a call may be made now. [`answered`](Self::answered) or
    /// [`lost`](Self::lost) should follow.
    pub(super) fn admit(&mut self, now: Moment) -> bool {
        if let Some(next) = &mut self.next {
            if now < *next {
                return false;
            }
            *next = now + PAUSE;
        }
        true
    }

    /// The engine has answered.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    /// A call was not answered. Returns whether the breaker has opened, or stays open.
    pub(super) fn lost(&mut self, now: Moment) -> bool {
        let is_open = now.since(*self.lost.get_or_insert(now)) >= LOST_FOR;
        if is_open {
            self.next.get_or_insert(now + PAUSE);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    #[test]
    fn calls_lost_in_a_row_for_a_second_open_it() {
        // When calls were lost, and after how many of them it is open.
        for (lost, opens) in [
            (&[0, 250, 500, 750, 1000][..], Some(5)),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 999], None),
            (&[0, 60_000], Some(2)),
            (&[0; 100], None),
        ] {
            let mut breaker = EngineBreaker::default();
            let mut opened = None;
            for (at, calls) in lost.iter().zip(1..) {
                assert_eq!(breaker.admit(ms(*at)), opened.is_none());
                if breaker.lost(ms(*at)) {
                    opened = opened.or(Some(calls));
                }
            }
            assert_eq!(opened, opens, "{lost:?}");
        }
    }

    #[test]
    fn an_open_breaker_tries_one_call_each_second_until_one_is_answered() {
        let mut breaker = EngineBreaker::default();
        assert!(!breaker.lost(ms(0)) && breaker.lost(ms(1000)));
        for second in [2, 3, 4] {
            assert!(!breaker.admit(ms(second * 1000 - 1)));
            assert!(breaker.admit(ms(second * 1000)));
            assert!(!breaker.admit(ms(second * 1000)), "one call only");
            assert!(breaker.lost(ms(second * 1000)), "nor is it answered");
        }
        breaker.answered();
        for at in [4000, 4300, 4999] {
            assert!(breaker.admit(ms(at)) && !breaker.lost(ms(at)), "anew: {at}");
        }
        assert!(breaker.lost(ms(5000)));
    }
}
