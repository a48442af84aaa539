//! How long a request can be in flight, also after a reload that shortens time-outs. Pure:
//! `now` is an argument.

use std::time::Duration;

use crate::clock::Moment;

/// The longest time that a request may take which has begun and may not have ended.
#[derive(Debug, Default)]
pub(super) struct LongestRequest {
    /// Of those that begin now.
    current: Duration,
    /// Of those that began before, and until when they may take.
    earlier: Option<(Duration, Moment)>,
}

impl LongestRequest {
    /// Requests that begin from now on take at most this time.
    pub(super) fn set(&mut self, longest: Duration, now: Moment) {
        let before = self.at(now);
        self.current = longest;
        if longest < before {
            let until = self.earlier.map_or(now, |(_, until)| until);
            self.earlier = Some((before, until.max(now + before)));
        }
    }

    /// The longest time of all that may be in flight at this moment.
    pub(super) fn at(&self, now: Moment) -> Duration {
        let earlier = self.earlier.filter(|(_, until)| now < *until);
        earlier.map_or(self.current, |(longest, _)| longest.max(self.current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_began_before_a_reload_keep_their_time() {
        let seconds = Duration::from_secs;
        let at = |second| Moment::default() + seconds(second);
        let mut longest = LongestRequest::default();
        longest.set(seconds(60), at(0));
        assert_eq!(longest.at(at(0)), seconds(60));
        longest.set(seconds(5), at(100));
        for (second, expected) in [(100, 60), (159, 60), (160, 5), (500, 5)] {
            assert_eq!(longest.at(at(second)), seconds(expected), "{second}");
        }
        // Two reloads: those of the first one are still in flight at the second.
        let mut longest = LongestRequest::default();
        longest.set(seconds(60), at(0));
        longest.set(seconds(20), at(100));
        longest.set(seconds(5), at(150));
        for (second, expected) in [(150, 60), (209, 60), (210, 5)] {
            assert_eq!(longest.at(at(second)), seconds(expected), "{second}");
        }
        // A longer time counts at once.
        longest.set(seconds(90), at(155));
        assert_eq!(longest.at(at(155)), seconds(90));
        assert_eq!(longest.at(at(1000)), seconds(90));
    }
}
