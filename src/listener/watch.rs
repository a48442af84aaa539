//! When a connection has had its time. Pure: `now` is an argument.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::wire::pulse::Pulse;

/// The times that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Times {
    /// From a head's first byte to its last.
    #[serde(serialize_with = "crate::units::serialize")]
    pub header_timeout: Duration,
    /// Without a request.
    #[serde(serialize_with = "crate::units::serialize")]
    pub idle_timeout: Duration,
    /// Of an answer, once the client has closed its side of the connection.
    #[serde(serialize_with = "crate::units::serialize")]
    pub half_closed_timeout: Duration,
    /// Without the client's taking a byte of what is written.
    #[serde(serialize_with = "crate::units::serialize")]
    pub write_timeout: Duration,
}

impl Times {
    /// The shortest of them: nothing can be due sooner than this from now.
    pub(super) fn shortest(&self) -> Duration {
        let either = self.header_timeout.min(self.idle_timeout);
        either.min(self.write_timeout)
    }
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Look again after this time.
    Keep(Duration),
    /// Its head is too slow: say so, then close.
    TooSlow,
    /// Close without a word.
    Close,
}

/// Judges a connection by its signs of life.
pub(super) fn judge(pulse: &Pulse, times: &Times, now: Moment) -> Verdict {
    let left = |since: Moment, allowed: Duration| allowed.saturating_sub(now.since(since));
    if let Some(since) = pulse.stuck_since() {
        return match left(since, times.write_timeout) {
            Duration::ZERO => Verdict::Close,
            left => Verdict::Keep(left),
        };
    }
    if pulse.fault().is_some() && !pulse.is_busy() {
        // It has been refused and had a while to read that.
        return Verdict::Close;
    }
    if let Some(since) = pulse.head_since() {
        return match left(since, times.header_timeout) {
            Duration::ZERO => Verdict::TooSlow,
            left => Verdict::Keep(left),
        };
    }
    // A head may begin at any moment, and then has its own time.
    let soon = times.shortest();
    if pulse.is_busy() {
        return Verdict::Keep(soon);
    }
    match left(pulse.heard(), times.idle_timeout) {
        Duration::ZERO => Verdict::Close,
        left => Verdict::Keep(left.min(soon)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::HeadFault;

    const TIMES: Times = Times {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        half_closed_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
    };

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn keep(seconds: u64) -> Verdict {
        Verdict::Keep(Duration::from_secs(seconds))
    }

    #[test]
    fn verdicts() {
        let pulse = Pulse::new(at(0));
        assert_eq!(judge(&pulse, &TIMES, at(0)), keep(10));
        assert_eq!(judge(&pulse, &TIMES, at(55)), keep(5));
        assert_eq!(judge(&pulse, &TIMES, at(60)), Verdict::Close, "idle");

        let working = pulse.work();
        assert_eq!(
            judge(&pulse, &TIMES, at(100)),
            keep(10),
            "an answer is awaited"
        );
        drop(working);

        pulse.set_head_since(Some(at(95)));
        pulse.hear(at(104));
        assert_eq!(
            judge(&pulse, &TIMES, at(104)),
            keep(1),
            "bytes do not buy time"
        );
        assert_eq!(judge(&pulse, &TIMES, at(105)), Verdict::TooSlow);
        pulse.set_fault(HeadFault::HeadTooSlow);
        assert_eq!(judge(&pulse, &TIMES, at(106)), Verdict::Close);

        let pulse = Pulse::new(at(0));
        let _working = pulse.work();
        pulse.set_stuck_since(Some(at(10)));
        assert_eq!(judge(&pulse, &TIMES, at(39)), keep(1));
        assert_eq!(
            judge(&pulse, &TIMES, at(40)),
            Verdict::Close,
            "takes nothing"
        );
    }
}
