//! The failures of an endpoint: the last one, counts by kind, and which ones to log.
//! Pure: `now` is an argument.
//!
//! Invariant: failures of one reason and kind are logged at most once in ten seconds.

use std::time::Duration;

use super::MadeFor;
use crate::clock::Moment;
use crate::upstream::failure::Cause;

#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Option<LastFailure>,
    /// By reason and kind, which are fixed sets.
    counts: Vec<Count>,
    /// Failures since the first that was logged; 0 once a success is logged.
    since_logged: u64,
    /// The same of failures that are not the endpoint's.
    others: Vec<Count>,
}

#[derive(Debug)]
struct Count {
    reason: &'static str,
    kind: &'static str,
    failures: u64,
    logged: Moment,
    /// Failures since then that were not logged.
    left_out: u64,
}

/// An endpoint's last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The proxy error type of RFC 9209.
    pub reason: &'static str,
    /// The kind, in more detail.
    pub kind: &'static str,
    /// The texts of the error and of its causes, the outermost first: at most 8, of up
    /// to 256 characters each.
    pub causes: Vec<String>,
    /// When.
    pub at: Moment,
    /// How many requests have failed in a row until now; 0 after a success.
    pub in_a_row: u32,
    /// What the request was made for.
    pub(crate) made_for: MadeFor,
}

/// The least time between two logged failures of one reason and kind.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Failures {
    /// Records a failure. If it is to be logged, returns how many of its reason and kind
    /// were not logged since the last one.
    pub(crate) fn failed(
        &mut self,
        reason: &'static str,
        cause: Cause,
        made_for: &MadeFor,
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
            made_for: made_for.clone(),
        });
        let left_out = count(&mut self.counts, reason, kind, now);
        if left_out.is_some() || self.since_logged > 0 {
            self.since_logged += 1;
        }
        left_out
    }

    /// Records a failure that is not the endpoint's. If it is to be logged, returns how
    /// many of its reason and kind were not logged since the last one.
    pub(crate) fn other(
        &mut self,
        reason: &'static str,
        kind: &'static str,
        now: Moment,
    ) -> Option<u64> {
        count(&mut self.others, reason, kind, now)
    }

    /// Records a success. If it is to be logged, returns how many requests have failed
    /// before it.
    pub(crate) fn answered(&mut self) -> Option<u64> {
        if let Some(last) = &mut self.last {
            last.in_a_row = 0;
        }
        let failures = std::mem::take(&mut self.since_logged);
        (failures > 0).then_some(failures)
    }

    pub(crate) fn last(&self) -> Option<&LastFailure> {
        self.last.as_ref()
    }

    /// Counts by reason and kind.
    pub(crate) fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        let counts = self.counts.iter();
        let count = |count: &Count| (count.reason, count.kind, count.failures);
        counts.map(count).collect()
    }
}

/// Counts a failure. If it is to be logged, returns how many of its reason and kind were
/// not logged since the last one.
fn count(
    counts: &mut Vec<Count>,
    reason: &'static str,
    kind: &'static str,
    now: Moment,
) -> Option<u64> {
    let known = counts
        .iter_mut()
        .find(|count| count.reason == reason && count.kind == kind);
    let Some(count) = known else {
        counts.push(Count {
            reason,
            kind,
            failures: 1,
            logged: now,
            left_out: 0,
        });
        return Some(0);
    };
    count.failures += 1;
    if now.since(count.logged) >= LOG_INTERVAL {
        count.logged = now;
        Some(std::mem::take(&mut count.left_out))
    } else {
        count.left_out += 1;
        None
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
    fn another_reason_is_logged_at_once_and_the_same_once_in_ten_seconds() {
        let mut failures = Failures::default();
        let made_for = MadeFor {
            route: Some("tx".into()),
            request_id: None,
        };
        let rows = [
            (0, "expired", Some(0)),
            (1, "expired", None),
            (2, "refused", Some(0)),
            (3, "expired", None),
            (9, "expired", None),
            (10, "expired", Some(3)),
            (11, "refused", None),
            (200, "refused", Some(1)),
            (200, "expired", Some(0)),
        ];
        for (second, kind, logged) in rows {
            let failed = failures.failed("a_reason", cause(kind), &made_for, at(second));
            let other = failures.other("a_reason", kind, at(second));
            assert_eq!(other, logged, "{second} {kind}");
            assert_eq!(failed, logged, "{second} {kind}");
        }
        let expected = [("a_reason", "expired", 6), ("a_reason", "refused", 3)];
        assert_eq!(failures.counts(), expected);
        let last = failures.last().unwrap();
        assert_eq!((last.kind, last.in_a_row, last.at), ("expired", 9, at(200)));
        assert_eq!(last.causes, ["it is expired"]);
        assert_eq!(last.made_for, made_for);
    }

    #[test]
    fn a_success_is_logged_once_after_logged_failures() {
        let mut failures = Failures::default();
        assert_eq!(failures.answered(), None, "nothing has failed");
        failures.failed("a_reason", cause("reset"), &MadeFor::default(), at(0));
        failures.failed("a_reason", cause("reset"), &MadeFor::default(), at(1));
        assert_eq!(failures.answered(), Some(2));
        assert_eq!(failures.last().unwrap().in_a_row, 0);
        assert_eq!(failures.answered(), None);
        // The end of failures that were not logged is not logged either.
        failures.failed("a_reason", cause("reset"), &MadeFor::default(), at(2));
        assert_eq!(failures.last().unwrap().in_a_row, 1);
        assert_eq!(failures.answered(), None);
        failures.failed("a_reason", cause("reset"), &MadeFor::default(), at(60));
        assert_eq!(failures.answered(), Some(1));
    }
}
