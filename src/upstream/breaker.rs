//! A circuit breaker: whether a base URL that does not answer gets requests. Pure: `now` is
//! an argument.
//!
//! Connects that fail count, connections that are closed before a byte, and each ten seconds
//! in which a request of a tip's status gets nothing. Ten in a row open it; any answer,
//! whatever it says, closes it. What a target answers, or that it is slow, does not count:
//! clients choose the target.
//!
//! While it is open, the tip's requests pass, one at once and then at their usual interval: they
//! are its trials.
//! Where there is no tip, one request in five seconds passes.

use std::time::Duration;

use crate::clock::Moment;

/// So many in a row open it.
const FAILURES: u32 = 10;
/// So long a silence of the tip's status counts as a failure.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a request passes where there is no tip.
const TRIAL: Duration = Duration::from_secs(5);
/// How long requests wait when it has opened: the tip is asked for at once.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// Failures since the last answer.
    failures: u32,
    /// The silence that has not been counted.
    silence: Duration,
    opened: Option<Moment>,
    /// When the next trial passes where there is no tip.
    next_trial: Moment,
}

impl Breaker {
    /// Whether no request of a client passes.
    pub(crate) fn is_open(&self) -> bool {
        self.opened.is_some()
    }

    /// How long a request has to wait; `None` where it passes.
    pub(crate) fn wait(&self, is_tip: bool, has_tip: bool, now: Moment) -> Option<Duration> {
        let opened = self.opened.filter(|_| !is_tip)?;
        let grace = GRACE.saturating_sub(now.since(opened));
        match has_tip {
            true if grace.is_zero() => Some(TRIAL),
            true => Some(grace),
            false => Some(self.next_trial.since(now)).filter(|wait| !wait.is_zero()),
        }
    }

    /// A request has passed.
    pub(crate) fn passed(&mut self, now: Moment) {
        self.next_trial = now + TRIAL;
    }

    /// The server has answered something. Returns whether this has closed the breaker.
    pub(crate) fn answered(&mut self) -> bool {
        (self.failures, self.silence) = (0, Duration::ZERO);
        self.opened.take().is_some()
    }

    /// A connect has failed, or a connection was closed before a byte. Returns whether this
    /// has opened the breaker.
    pub(crate) fn failed(&mut self, now: Moment) -> bool {
        self.failures = self.failures.saturating_add(1);
        let opens = self.failures >= FAILURES && self.opened.is_none();
        if opens {
            self.opened = Some(now);
            self.next_trial = now + TRIAL;
        }
        opens
    }

    /// A request of a tip's status has got nothing for this time. Returns whether this has
    /// opened the breaker.
    pub(crate) fn silent(&mut self, time: Duration, now: Moment) -> bool {
        self.silence += time;
        if self.silence < SILENCE {
            return false;
        }
        self.silence -= SILENCE;
        self.failed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    fn open(at: Moment) -> Breaker {
        let mut breaker = Breaker::default();
        let opened: Vec<_> = (0..12).map(|_| breaker.failed(at)).collect();
        let expected: Vec<_> = (0..12).map(|nth| nth == 9).collect();
        assert_eq!(opened, expected, "the tenth opens it");
        breaker
    }

    #[test]
    fn any_answer_ends_the_count() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            for _ in 0..9 {
                assert!(!breaker.failed(at(0)));
            }
            assert!(!breaker.answered());
        }
        assert!(!breaker.is_open());
        let mut breaker = open(at(0));
        assert!(breaker.answered() && !breaker.is_open());
        assert_eq!(breaker.wait(false, true, at(0)), None);
    }

    #[test]
    fn the_tip_always_passes_and_others_wait_a_second_for_it() {
        let breaker = open(at(0));
        for (now, is_tip, expected) in [
            (0, true, None),
            (100_000, true, None),
            (0, false, Some(1000)),
            (999, false, Some(1)),
            (1000, false, Some(5000)),
            (100_000, false, Some(5000)),
        ] {
            let wait = breaker.wait(is_tip, true, at(now));
            assert_eq!(wait, expected.map(Duration::from_millis), "{now} {is_tip}");
        }
    }

    #[test]
    fn without_a_tip_one_request_passes_in_five_seconds() {
        let mut breaker = open(at(0));
        assert_eq!(
            breaker.wait(false, false, at(4000)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(breaker.wait(false, false, at(5000)), None);
        breaker.passed(at(5000));
        assert_eq!(
            breaker.wait(false, false, at(5001)),
            Some(Duration::from_millis(4999))
        );
        assert_eq!(breaker.wait(false, false, at(10_000)), None);
    }

    #[test]
    fn a_silence_counts_every_ten_seconds() {
        let mut breaker = Breaker::default();
        let opened = (1..=60).position(|_| breaker.silent(Duration::from_secs(2), at(0)));
        assert_eq!(opened, Some(49), "fifty times two seconds");
    }
}
