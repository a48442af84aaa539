//! What an endpoint's failures have been: the last one, how many there were of
//! each kind, and which of them were logged. Pure: `now` is an
//! argument.
//!
//! Invariant: a failure of one reason and kind is logged at most once a minute.

use std::time::Duration;

use crate::clock::Moment;
use crate::upstream::client::cause::Cause;

/// What an endpoint's failures have been.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Option<LastFailure>,
    /// By reason and kind, of which there is a fixed set.
    counts: Vec<Count>,
    /// How many there were since it was logged that requests fail; 0 once it is
    /// logged that they succeed.
    since_logged: u64,
}

#[derive(Debug)]
struct Count {
    reason: &'static str,
    kind: &'static str,
    failures: u64,
    logged: Moment,
    /// How many have not been logged since.
    left_out: u64,
}

/// An endpoint's last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The proxy error type of RFC 9209.
    pub reason: &'static str,
    /// What failed, in finer words.
    pub kind: &'static str,
    /// The texts of the error and of its causes, from the outermost on: no more
    /// than 8, of 256 characters each.
    pub causes: Vec<String>,
    /// When.
    pub at: Moment,
    /// How many requests have failed one after another until now: none where
    /// one has succeeded since.
    pub in_a_row: u32,
}

/// Failures of one reason and kind are logged once in this time.
const SELDOM: Duration = Duration::from_mins(1);

impl Failures {
    /// A request has failed. Answers how many of this reason and kind were not
    /// logged since the last, where this one is to be logged.
    pub(crate) fn failed(
        &mut self,
        reason: &'static str,
        cause: Cause,
        now: Moment,
    ) -> Option<u64> {
        let before = self.last.as_ref().map_or(0, |last| last.in_a_row);
        let Cause { kind, texts } = cause;
        self.last = Some(LastFailure {
            reason,
            kind,
            causes: texts,
            at: now,
            in_a_row: before.saturating_add(1),
        });
        let mut counts = self.counts.iter_mut();
        let known = counts.find(|count| count.reason == reason && count.kind == kind);
        let left_out = match known {
            None => {
                self.counts.push(Count {
                    reason,
                    kind,
                    failures: 1,
                    logged: now,
                    left_out: 0,
                });
                Some(0)
            }
            Some(count) => {
                count.failures += 1;
                let is_due = now.since(count.logged) >= SELDOM;
                if is_due {
                    count.logged = now;
                    Some(std::mem::take(&mut count.left_out))
                } else {
                    count.left_out += 1;
                    None
                }
            }
        };
        if left_out.is_some() || self.since_logged > 0 {
            self.since_logged += 1;
        }
        left_out
    }

    /// A request has succeeded. Answers how many have failed since it was logged
    /// that they fail, where it is to be logged that they succeed.
    pub(crate) fn answered(&mut self) -> Option<u64> {
        if let Some(last) = &mut self.last {
            last.in_a_row = 0;
        }
        let failures = std::mem::take(&mut self.since_logged);
        (failures > 0).then_some(failures)
    }

    /// The last one.
    pub(crate) fn last(&self) -> Option<&LastFailure> {
        self.last.as_ref()
    }

    /// How many there were, by reason and kind.
    pub(crate) fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        let counts = self.counts.iter();
        let count = |count: &Count| (count.reason, count.kind, count.failures);
        counts.map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn cause(kind: &'static str) -> Cause {
        Cause {
            kind,
            texts: vec![format!("it is {kind}")],
        }
    }

    #[test]
    fn another_reason_is_logged_at_once_and_the_same_once_a_minute() {
        let mut failures = Failures::default();
        let rows = [
            (0, "expired", Some(0)),
            (1, "expired", None),
            (2, "refused", Some(0)),
            (3, "expired", None),
            (59, "expired", None),
            (60, "expired", Some(3)),
            (61, "refused", None),
            (200, "refused", Some(1)),
            (200, "expired", Some(0)),
        ];
        for (second, kind, logged) in rows {
            let failed = failures.failed("a_reason", cause(kind), at(second));
            assert_eq!(failed, logged, "{second} {kind}");
        }
        let expected = [("a_reason", "expired", 6), ("a_reason", "refused", 3)];
        assert_eq!(failures.counts(), expected);
        let last = failures.last().unwrap();
        assert_eq!((last.kind, last.in_a_row, last.at), ("expired", 9, at(200)));
        assert_eq!(last.causes, ["it is expired"]);
    }

    #[test]
    fn that_it_answers_again_is_logged_once_after_each_failure_that_was() {
        let mut failures = Failures::default();
        assert_eq!(failures.answered(), None, "nothing has failed");
        failures.failed("a_reason", cause("reset"), at(0));
        failures.failed("a_reason", cause("reset"), at(1));
        assert_eq!(failures.answered(), Some(2));
        assert_eq!(failures.last().unwrap().in_a_row, 0);
        assert_eq!(failures.answered(), None);
        // What was not logged to begin is not logged to end.
        failures.failed("a_reason", cause("reset"), at(2));
        assert_eq!(failures.last().unwrap().in_a_row, 1);
        assert_eq!(failures.answered(), None);
        failures.failed("a_reason", cause("reset"), at(60));
        assert_eq!(failures.answered(), Some(1));
    }
}
