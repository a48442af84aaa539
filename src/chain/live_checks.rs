//! Live checks: the period in which a tip's live answers are known to be unchanged.
//! Pure.
//!
//! Live answers, such as tokens, may change while the tip does not. A check fetches
//! one of them again. Its earlier answer must be of a time when the indexer had
//! finished writing its tip. If the two answers are equal, no other live answer is
//! taken to have changed between the two fetches either: an indexer writes all of a
//! block at about the same time.

use std::time::Duration;

use crate::clock::Moment;

/// How many times `live_ttl` a live answer is fresh at most, however many checks
/// found no change: a check proves one key to be unchanged, and suggests it of the
/// others. With the defaults this is ten minutes, the mean time between blocks.
pub(crate) const MOST_LIVE_TTLS: u32 = 20;

/// A period in which live answers are known to be unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnchangedSpan {
    /// Its beginning.
    pub(crate) from: Moment,
    /// Its end.
    pub(crate) until: Moment,
}

impl UnchangedSpan {
    /// Until when a live answer received at a moment is known to be unchanged.
    pub(crate) fn known_until(self, received: Moment) -> Moment {
        match received >= self.from {
            true => received.max(self.until),
            false => received,
        }
    }

    /// Until when such an answer is fresh.
    pub(crate) fn fresh_until(self, received: Moment, lifetime: Duration) -> Moment {
        (self.known_until(received) + lifetime).min(received + lifetime * MOST_LIVE_TTLS)
    }
}

/// The live checks of a tip within an epoch. Checks that meet or overlap extend one
/// period; a check that leaves a gap begins another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveChecks {
    /// Answers received earlier may be half written.
    settled: Moment,
    /// Ends when the request of the last check that found no change was sent.
    span: UnchangedSpan,
}

impl LiveChecks {
    /// Begins anew, after a new tip or a live answer that changed without one:
    /// answers received within `write_time` may be half written.
    pub(crate) fn restart(&mut self, now: Moment, write_time: Duration) {
        let settled = now + write_time;
        *self = Self {
            settled,
            span: UnchangedSpan {
                from: settled,
                until: settled,
            },
        };
    }

    /// Whether an answer received at a moment is certainly not half written.
    pub(crate) fn is_settled(&self, received: Moment) -> bool {
        received >= self.settled
    }

    /// Notes that an answer, unchanged since `since`, was found unchanged by a
    /// request sent at `sent`.
    pub(crate) fn unchanged(&mut self, since: Moment, sent: Moment) {
        if !self.is_settled(since) {
            return;
        }
        let span = &mut self.span;
        span.from = match since <= span.until {
            true => span.from.min(since),
            false => since,
        };
        span.until = span.until.max(sent);
    }

    /// The last period in which live answers are known to be unchanged.
    pub(crate) const fn span(&self) -> UnchangedSpan {
        self.span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// Until when answers are known to be unchanged, by when they were received.
    fn known(checks: &LiveChecks, received: &[u64]) -> Vec<u64> {
        let known = |second: &u64| checks.span().known_until(at(*second));
        let known = received.iter().map(known);
        known.map(|moment| moment.millis() / 1000).collect()
    }

    #[test]
    fn a_check_holds_for_all_answers_received_since_the_checked_one() {
        let pause = Duration::from_secs(30);
        let mut checks = LiveChecks::default();
        checks.restart(at(100), pause);
        assert!(!checks.is_settled(at(129)) && checks.is_settled(at(130)));
        checks.unchanged(at(110), at(140));
        assert_eq!(known(&checks, &[110, 135]), [110, 135], "half written");
        checks.unchanged(at(135), at(165));
        assert_eq!(known(&checks, &[131, 135, 150, 170]), [131, 165, 165, 170]);
        // A check that overlaps extends the span at either end.
        checks.unchanged(at(131), at(161));
        assert_eq!(known(&checks, &[130, 131, 135]), [130, 165, 165]);
        checks.unchanged(at(165), at(195));
        assert_eq!(known(&checks, &[131, 150]), [195, 195]);
        // No check covers 195 to 300.
        checks.unchanged(at(300), at(330));
        assert_eq!(known(&checks, &[131, 299, 300]), [131, 299, 330]);
        checks.restart(at(400), pause);
        assert_eq!(known(&checks, &[310, 420, 440]), [310, 420, 440]);
        checks.unchanged(at(420), at(450));
        assert_eq!(known(&checks, &[420, 440]), [420, 440]);
    }
}
