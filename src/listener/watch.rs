//! When a connection has had its time. Pure: `now` is an argument.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::wire::activity::Activity;

/// The times that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionTimeouts {
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
    /// Bytes a second that a client must take of an answer; 0 without a minimum.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub min_send_rate: u64,
}

impl ConnectionTimeouts {
    /// The shortest of them: nothing can be due sooner than this from now.
    pub(super) fn shortest(&self) -> Duration {
        let either = self.header_timeout.min(self.idle_timeout);
        either.min(self.write_timeout)
    }

    /// By when a client that is stuck must have taken more, given by when it
    /// had to before and what it has taken since. Each byte extends the time by
    /// what it may take at `min_send_rate`, and never beyond `write_timeout`
    /// from now: a slow client may stall, but a byte now and then is not
    /// enough.
    pub(super) fn due(&self, before: Option<(Moment, u64)>, now: Moment) -> Moment {
        let most = now + self.write_timeout;
        match before {
            Some((due, 0)) => due,
            Some((due, taken)) if self.min_send_rate > 0 => {
                let earned = u128::from(taken) * 1_000_000_000 / u128::from(self.min_send_rate);
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                most.min(due + Duration::from_nanos(earned))
            }
            Some(_) | None => most,
        }
    }
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchAction {
    /// Look again after this time.
    Keep(Duration),
    /// Its head is too slow: say so, then close.
    TooSlow,
    /// Close without a word.
    Close,
    /// Reset: the client takes nothing of its answer, or too little.
    Reset,
}

/// Judges a connection by its signs of life.
pub(super) fn judge(pulse: &Activity, times: &ConnectionTimeouts, now: Moment) -> WatchAction {
    let left = |since: Moment, allowed: Duration| allowed.saturating_sub(now.since(since));
    if pulse.stuck_since().is_some() {
        return match pulse.due().since(now) {
            Duration::ZERO => WatchAction::Reset,
            left => WatchAction::Keep(left),
        };
    }
    if pulse.fault().is_some() && !pulse.is_busy() {
        // It has been refused and had a while to read that.
        return WatchAction::Close;
    }
    if let Some(since) = pulse.head_since() {
        return match left(since, times.header_timeout) {
            Duration::ZERO => WatchAction::TooSlow,
            left => WatchAction::Keep(left),
        };
    }
    // A head may begin at any moment, and then has its own time.
    let soon = times.shortest();
    if pulse.is_busy() {
        return WatchAction::Keep(soon);
    }
    match left(pulse.last(), times.idle_timeout) {
        Duration::ZERO => WatchAction::Close,
        left => WatchAction::Keep(left.min(soon)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::HeadFault;

    const TIMES: ConnectionTimeouts = ConnectionTimeouts {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        half_closed_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
        min_send_rate: 1000,
    };

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn keep(seconds: u64) -> WatchAction {
        WatchAction::Keep(Duration::from_secs(seconds))
    }

    #[test]
    fn verdicts() {
        let pulse = Activity::new(at(0));
        assert_eq!(judge(&pulse, &TIMES, at(0)), keep(10));
        assert_eq!(judge(&pulse, &TIMES, at(55)), keep(5));
        assert_eq!(judge(&pulse, &TIMES, at(60)), WatchAction::Close, "idle");

        let working = pulse.work();
        assert_eq!(
            judge(&pulse, &TIMES, at(100)),
            keep(10),
            "an answer is awaited"
        );
        drop(working);

        pulse.set_head_since(Some(at(95)));
        pulse.record(at(104));
        assert_eq!(
            judge(&pulse, &TIMES, at(104)),
            keep(1),
            "bytes do not buy time"
        );
        assert_eq!(judge(&pulse, &TIMES, at(105)), WatchAction::TooSlow);
        pulse.set_fault(HeadFault::HeadTooSlow);
        assert_eq!(judge(&pulse, &TIMES, at(106)), WatchAction::Close);

        let pulse = Activity::new(at(0));
        let _working = pulse.work();
        pulse.set_stuck(at(10), at(40));
        assert_eq!(judge(&pulse, &TIMES, at(39)), keep(1));
        assert_eq!(
            judge(&pulse, &TIMES, at(40)),
            WatchAction::Reset,
            "takes nothing"
        );
    }

    /// Plays a client that takes so many bytes each time, so many seconds apart,
    /// and answers the second at which its connection is reset.
    fn reset_at(times: &ConnectionTimeouts, taken: u64, every: u64) -> Option<u64> {
        let pulse = Activity::new(at(0));
        let mut due = times.due(None, at(0));
        pulse.set_stuck(at(0), due);
        for second in 1..10_000 {
            if judge(&pulse, times, at(second)) == WatchAction::Reset {
                return Some(second);
            }
            if second % every == 0 {
                due = times.due(Some((due, taken)), at(second));
                pulse.set_stuck(at(second), due);
            }
        }
        None
    }

    #[test]
    fn a_client_must_take_a_minimum_in_the_long_run() {
        let none = ConnectionTimeouts {
            min_send_rate: 0,
            ..TIMES
        };
        let rows = [
            (&TIMES, 1, 29, Some(31), "a byte now and then"),
            (&TIMES, 10_000, 29, Some(40), "a third of the minimum"),
            (&TIMES, 900, 1, Some(291), "a little below the minimum"),
            (&TIMES, 1000, 1, None, "the minimum"),
            (&TIMES, 29_000, 29, None, "the minimum, with stalls"),
            (&TIMES, 64_000, 10, None, "a slow phone"),
            (&TIMES, 1_000_000, 31, Some(30), "a longer stall"),
            (&none, 1, 29, None, "without a minimum"),
        ];
        for (times, taken, every, expected, name) in rows {
            assert_eq!(reset_at(times, taken, every), expected, "{name}");
        }
    }

    #[test]
    fn what_was_taken_fast_buys_no_more_than_the_timeout() {
        let due = TIMES.due(Some((at(30), 1 << 30)), at(20));
        assert_eq!(due, at(50));
        assert_eq!(TIMES.due(Some((due, 0)), at(40)), due, "nothing taken");
    }
}
