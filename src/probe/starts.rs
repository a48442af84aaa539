//! The states of the ledger before each of the last calls to the engine. Pure: `now` is an
//! argument.
//!
//! A status must be applied with the state from before its request was sent
//! ([`RequestStart`]). Where another replica has sent the request, any earlier state will
//! do: one that is too old believes less.

use std::collections::VecDeque;

use crate::chain::ledger::RequestStart;
use crate::clock::Moment;

/// The most states that are remembered: those of a minute, at two calls a second. An
/// observation that is older is not followed.
const MOST: usize = 120;

/// The last states, the oldest first.
#[derive(Debug, Default)]
pub(super) struct LastStarts(VecDeque<(Moment, RequestStart)>);

impl LastStarts {
    /// Notes the state at this moment.
    pub(super) fn note(&mut self, now: Moment, start: RequestStart) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((now, start));
    }

    /// The newest state that is as old as this moment, or older.
    pub(super) fn before(&self, sent: Moment) -> Option<RequestStart> {
        let mut newest_first = self.0.iter().rev();
        let found = newest_first.find(|(at, _)| *at <= sent);
        found.map(|(_, start)| *start)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::chain::ledger::{Ledger, LedgerBounds};

    /// The states of a ledger that learns a new tip each second.
    fn states(number: u32) -> Vec<RequestStart> {
        let bounds = LedgerBounds {
            blocks: 10,
            margin: 4,
            write_time: Duration::ZERO,
        };
        let mut ledger = Ledger::new(bounds);
        let next = |height| {
            let start = ledger.start();
            ledger.status(start, Some(height), None, at(u64::from(height)));
            start
        };
        (0..number).map(next).collect()
    }

    fn at(second: u64) -> Moment {
        Moment::default() + Duration::from_secs(second)
    }

    #[test]
    fn the_newest_state_from_before_the_request_is_used() {
        let states = states(200);
        let mut last = LastStarts::default();
        assert_eq!(last.before(at(100)), None);
        for second in [10, 20, 30] {
            last.note(at(second), states[second as usize]);
        }
        for (sent, expected) in [
            (9, None),
            (10, Some(10)),
            (19, Some(10)),
            (20, Some(20)),
            (29, Some(20)),
            (99, Some(30)),
        ] {
            let expected = expected.map(|second: usize| states[second]);
            assert_eq!(last.before(at(sent)), expected, "{sent}");
        }
        for second in 40..200 {
            last.note(at(second), states[second as usize]);
        }
        assert_eq!(last.0.len(), MOST);
        assert_eq!(last.before(at(200 - MOST as u64 - 1)), None, "forgotten");
    }
}
