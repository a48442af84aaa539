//! Whether the engine is asked at all. Pure: `now` is an argument.
//!
//! After [`LOST`] calls in a row without an answer, over [`LOST_FOR`] or longer, the
//! engine counts as absent, and no call waits for it but one each [`PAUSE`].

use std::time::Duration;

use crate::clock::Moment;

/// This many calls in a row without an answer open the breaker.
const LOST: u32 = 5;
/// The time from the first of them to the last. Many calls are made at once, and all of
/// them are lost in one slow moment of the engine.
const LOST_FOR: Duration = Duration::from_secs(1);
/// An engine that is back is used again so soon.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct EngineBreaker {
    lost: u32,
    /// When the first of them was lost.
    since: Option<Moment>,
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
        self.lost = self.lost.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        if self.lost < LOST || now.since(since) < LOST_FOR {
            return false;
        }
        self.next.get_or_insert(now + PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
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
        for at in [0, 250, 500, 750, 1000] {
            breaker.lost(ms(at));
        }
        for second in [2, 3, 4] {
            assert!(!breaker.admit(ms(second * 1000 - 1)));
            assert!(breaker.admit(ms(second * 1000)));
            assert!(!breaker.admit(ms(second * 1000)), "one call only");
            assert!(breaker.lost(ms(second * 1000)), "nor is it answered");
        }
        breaker.answered();
        for at in [4000, 4300, 4600, 4900, 4999] {
            assert!(breaker.admit(ms(at)) && !breaker.lost(ms(at)), "anew: {at}");
        }
        assert!(breaker.lost(ms(5000)));
    }
}
