//! The timeouts of a connection, and how fast a client must read. Pure: `now` is an argument.

use std::time::Duration;

use crate::clock::Moment;

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionTimeouts {
    /// From a request head's first byte to its last.
    pub header_timeout: Duration,
    /// Between requests.
    pub idle_timeout: Duration,
    /// While the client reads no byte of its answer.
    pub write_timeout: Duration,
    /// Bytes per second that a client must read of an answer; 0: no minimum.
    pub min_send_rate: u64,
}

impl ConnectionTimeouts {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ConnectionTimeouts = ConnectionTimeouts {
        header_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(60),
        write_timeout: Duration::from_secs(30),
        min_send_rate: 1000,
    };

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    /// The second at which a client is reset that reads `taken` bytes every
    /// `every` seconds.
    fn reset_at(times: &ConnectionTimeouts, taken: u64, every: u64) -> Option<u64> {
        let mut due = times.write_deadline(None, at(0));
        for second in 1..10_000 {
            let read = if second % every == 0 { taken } else { 0 };
            if due <= at(second) {
                return Some(second);
            }
            due = times.write_deadline(Some((due, read)), at(second));
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
