//! A circuit breaker: whether a base URL that does not answer gets requests. Pure: `now` is
//! an argument.
//!
//! Connects that fail count, connections that end before an answer, and each ten seconds in
//! which a request of a tip's status gets nothing. Any answer, whatever it says, ends the
//! count and closes the breaker. What a target answers, or that it is slow, does not count:
//! clients choose the target.
//!
//! Ten in a row have the tip asked for at once; if that fails as well, the breaker opens. So no
//! client opens it with targets whose connections are closed. While it is open, only the tip is
//! asked for, at its usual interval. Where there is no tip, ten open it, and one request in five
//! seconds passes.

use std::time::Duration;

use crate::clock::Moment;

/// So many in a row open it.
const FAILURES: u32 = 10;
/// So long a silence of the tip's status counts as a failure.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a request passes where there is no tip.
const TRIAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures since the last answer.
    failures: u32,
    /// The silence that has not been counted.
    silence: Duration,
    /// Whether no request of a client passes.
    pub(super) is_open: bool,
    /// When the next trial passes where there is no tip.
    next_trial: Moment,
}

impl Breaker {
    /// How long a request has to wait; `None` where it passes.
    pub(crate) fn wait(&self, is_tip: bool, has_tip: bool, now: Moment) -> Option<Duration> {
        let trial = match has_tip {
            true => TRIAL,
            false => self.next_trial.since(now),
        };
        (self.is_open && !is_tip && !trial.is_zero()).then_some(trial)
    }

    /// A request has passed.
    pub(crate) fn passed(&mut self, now: Moment) {
        self.next_trial = now + TRIAL;
    }

    /// The server has answered something. Returns whether this has closed the breaker.
    pub(crate) fn answered(&mut self) -> bool {
        (self.failures, self.silence) = (0, Duration::ZERO);
        std::mem::take(&mut self.is_open)
    }

    /// A connect has failed, or a connection has ended before an answer. `is_decisive` is
    /// whether it was that of a tip's request, or there is no tip. Returns whether the tip is to
    /// be asked for: ten more have failed, or this has opened the breaker.
    pub(crate) fn failed(&mut self, is_decisive: bool, now: Moment) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES || self.is_open {
            return false;
        }
        if is_decisive {
            self.is_open = true;
            self.next_trial = now + TRIAL;
        }
        is_decisive || self.failures.is_multiple_of(FAILURES)
    }

    /// A request of a tip's status has got nothing for this time. Returns the same.
    pub(crate) fn silent(&mut self, time: Duration, now: Moment) -> bool {
        self.silence += time;
        let mut is_doubted = false;
        while self.silence >= SILENCE {
            self.silence -= SILENCE;
            is_doubted |= self.failed(true, now);
        }
        is_doubted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    /// Ten failures of clients' requests, and one of the tip's.
    #[test]
    fn ten_failures_and_the_tips_open_it_and_any_answer_closes_it() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            for nth in 1..=35 {
                assert_eq!(breaker.failed(false, at(0)), nth % 10 == 0, "{nth}");
                assert!(!breaker.is_open);
            }
            assert!(!breaker.answered());
        }
        for nth in 1..=10 {
            assert_eq!(breaker.failed(true, at(0)), nth == 10, "{nth}");
            assert_eq!(breaker.is_open, nth == 10, "{nth}");
        }
        assert_eq!(breaker.wait(true, true, at(0)), None, "the tip passes");
        for after in [0, 100_000] {
            assert_eq!(breaker.wait(false, true, at(after)), Some(TRIAL));
        }
        assert!(breaker.answered() && !breaker.is_open);
        assert_eq!(breaker.wait(false, true, at(0)), None);
    }

    #[test]
    fn without_a_tip_one_request_passes_in_five_seconds() {
        let mut breaker = Breaker::default();
        assert_eq!(
            (0..10).map(|_| breaker.failed(true, at(0))).last(),
            Some(true)
        );
        let second = Some(Duration::from_secs(1));
        assert_eq!(breaker.wait(false, false, at(4000)), second);
        assert_eq!(breaker.wait(false, false, at(5000)), None);
        breaker.passed(at(5000));
        assert_eq!(breaker.wait(false, false, at(9000)), second);
        assert_eq!(breaker.wait(false, false, at(10_000)), None);
    }

    #[test]
    fn a_silence_counts_every_ten_seconds() {
        let mut breaker = Breaker::default();
        let silent = |_| breaker.silent(Duration::from_secs(2), at(0));
        let opened = (1..=60).map(silent).position(|opened| opened);
        assert_eq!(opened, Some(49), "fifty times two seconds");
        assert!(Breaker::default().silent(Duration::from_secs(100), at(0)));
    }
}
