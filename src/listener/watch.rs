//! Decides when a connection ends for lack of progress. Pure: `now` is an argument.

use std::time::Duration;

use crate::clock::Moment;
use crate::wire::activity::Activity;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionTimeouts {
    /// From a request head's first byte to its last.
    pub header_timeout: Duration,
    /// Between requests.
    pub idle_timeout: Duration,
    /// For the answer, once the client has closed its side of the connection.
    pub half_closed_timeout: Duration,
    /// While the client reads no byte of its answer.
    pub write_timeout: Duration,
    /// Bytes per second that a client must read of an answer; 0: no minimum.
    pub min_send_rate: u64,
}

impl ConnectionTimeouts {
    /// Those of the tests of this layer.
    #[cfg(test)]
    pub(super) const OF_TESTS: Self = Self {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        half_closed_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
        min_send_rate: 1000,
    };

    /// The shortest timeout: no deadline that is set later can be nearer than this.
    pub(super) fn shortest(&self) -> Duration {
        let either = self.header_timeout.min(self.idle_timeout);
        either.min(self.write_timeout)
    }

    /// The deadline for the client of a stalled connection, from the previous
    /// deadline and the bytes that it has read since. Each byte extends the
    /// deadline by the time that it takes at `min_send_rate`, up to `write_timeout`
    /// from now: a slow client may stall, but a byte now and then is not enough.
    pub(super) fn write_deadline(&self, before: Option<(Moment, u64)>, now: Moment) -> Moment {
        let latest = now + self.write_timeout;
        match before {
            Some((deadline, 0)) => deadline,
            Some((deadline, read)) if self.min_send_rate > 0 => {
                let earned = u128::from(read) * 1_000_000_000 / u128::from(self.min_send_rate);
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                latest.min(deadline + Duration::from_nanos(earned))
            }
            Some(_) | None => latest,
        }
    }
}

/// What the timer of a connection does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchAction {
    /// Check again after this time.
    Keep(Duration),
    /// Refuse the head, which is too slow, then close.
    RefuseHead,
    /// Close without an answer.
    Close,
    /// Reset: the client reads its answer too slowly.
    Reset,
}

/// Decides by the activity of a connection.
pub(super) fn next_action(
    activity: &Activity,
    times: &ConnectionTimeouts,
    now: Moment,
) -> WatchAction {
    let left = |since: Moment, timeout: Duration| timeout.saturating_sub(now.since(since));
    if activity.stalled_since().is_some() {
        return match activity.write_deadline().since(now) {
            Duration::ZERO => WatchAction::Reset,
            left => WatchAction::Keep(left),
        };
    }
    if activity.fault().is_some() && !activity.is_busy() {
        // It was refused, and the client had time to read the answer.
        return WatchAction::Close;
    }
    if let Some(since) = activity.head_since() {
        return match left(since, times.header_timeout) {
            Duration::ZERO => WatchAction::RefuseHead,
            left => WatchAction::Keep(left),
        };
    }
    // A head may begin at any moment, and then has its own timeout.
    let soon = times.shortest();
    if activity.is_busy() {
        return WatchAction::Keep(soon);
    }
    match left(activity.last(), times.idle_timeout) {
        Duration::ZERO => WatchAction::Close,
        left => WatchAction::Keep(left.min(soon)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::HeadFault;

    const TIMES: ConnectionTimeouts = ConnectionTimeouts::OF_TESTS;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn keep(seconds: u64) -> WatchAction {
        WatchAction::Keep(Duration::from_secs(seconds))
    }

    #[test]
    fn the_next_action() {
        let activity = Activity::new(at(0));
        assert_eq!(next_action(&activity, &TIMES, at(0)), keep(10));
        assert_eq!(next_action(&activity, &TIMES, at(55)), keep(5));
        assert_eq!(
            next_action(&activity, &TIMES, at(60)),
            WatchAction::Close,
            "idle"
        );

        let request = activity.begin_request();
        assert_eq!(
            next_action(&activity, &TIMES, at(100)),
            keep(10),
            "an answer is in progress"
        );
        drop(request);

        activity.set_head_since(Some(at(95)));
        activity.record(at(104));
        assert_eq!(
            next_action(&activity, &TIMES, at(104)),
            keep(1),
            "bytes do not extend the timeout"
        );
        assert_eq!(
            next_action(&activity, &TIMES, at(105)),
            WatchAction::RefuseHead
        );
        activity.set_fault(HeadFault::HeadTooSlow);
        assert_eq!(next_action(&activity, &TIMES, at(106)), WatchAction::Close);

        let activity = Activity::new(at(0));
        let _request = activity.begin_request();
        activity.set_stalled(at(10), at(40));
        assert_eq!(next_action(&activity, &TIMES, at(39)), keep(1));
        assert_eq!(
            next_action(&activity, &TIMES, at(40)),
            WatchAction::Reset,
            "the client reads nothing"
        );
    }

    /// The second at which a client is reset that reads `taken` bytes every
    /// `every` seconds.
    fn reset_at(times: &ConnectionTimeouts, taken: u64, every: u64) -> Option<u64> {
        let activity = Activity::new(at(0));
        let mut due = times.write_deadline(None, at(0));
        activity.set_stalled(at(0), due);
        for second in 1..10_000 {
            if next_action(&activity, times, at(second)) == WatchAction::Reset {
                return Some(second);
            }
            if second % every == 0 {
                due = times.write_deadline(Some((due, taken)), at(second));
                activity.set_stalled(at(second), due);
            }
        }
        None
    }

    #[test]
    fn a_client_must_read_at_a_minimum_rate() {
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
    fn reading_fast_extends_the_deadline_by_at_most_the_timeout() {
        let due = TIMES.write_deadline(Some((at(30), 1 << 30)), at(20));
        assert_eq!(due, at(50));
        assert_eq!(
            TIMES.write_deadline(Some((due, 0)), at(40)),
            due,
            "nothing taken"
        );
    }
}
