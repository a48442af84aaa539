//! What the upstream has said of its windows, and how many requests that still
//! allows. Pure: `now` is an argument.
//!
//! An answer speaks of the moment at which its request was counted. What was
//! sent since, and what was under way then, may be in its number or not; it
//! counts as if it were not.
//!
//! Invariant: while a word holds, no more requests are let through than it has
//! left; another word takes its place only where it is stricter, for as long. An
//! end that the upstream has not named is proved by a number that rises.
//!
//! Deliberately absent: our own count, which is `upstream::budget`'s, and holds
//! beside this one.

use std::time::Duration;

use super::budget::Reserve;
use super::limit_report::{LimitWindow, ReportedLimit};
use crate::clock::Moment;

/// So many words are held; of more, the one that is farthest from mattering
/// goes.
const MAX_LIMITS: usize = 8;

/// The upstream's words, of which none holds longer than another that is
/// stricter.
#[derive(Debug, Default)]
pub struct ReportedLimits {
    limits: Vec<HeldLimit>,
}

#[derive(Debug)]
struct HeldLimit {
    window: LimitWindow,
    remaining: u64,
    /// What was left at first, of which shares are kept.
    initial: u64,
    until: Moment,
    end_is_known: bool,
    /// How many requests had been sent when it was heard.
    sent_when_reported: u64,
}

impl HeldLimit {
    /// Whether it holds for as long as another, and is as strict. One whose end
    /// is not known may be over before: it stands for its like alone, which is
    /// over then as well.
    fn covers(&self, other: &Self) -> bool {
        let alike = self.window == other.window && !other.end_is_known;
        self.remaining <= other.remaining
            && self.until >= other.until
            && (self.end_is_known || alike)
    }
}

/// A word on its way in.
#[derive(Clone, Copy, Debug)]
pub struct ReportContext {
    /// How many requests had been sent when the one was that brought it.
    pub request: u64,
    /// How many have been sent now.
    pub sent: u64,
    /// How many it may not have counted.
    pub uncounted: u64,
}

impl ReportedLimits {
    /// Takes a word in.
    pub fn take_report(&mut self, word: &ReportedLimit, hearing: ReportContext, now: Moment) {
        self.remove_ended(now);
        // A window as short as a second is over before what is under way
        // could be counted twice; to doubt it would stop us for good.
        let doubt = match word.valid_for > Duration::from_secs(1) {
            true => hearing.uncounted,
            false => 0,
        };
        let left = word.remaining.saturating_sub(doubt);
        let until = now + word.valid_for;
        self.limits.retain(|held| {
            let of_it = held.window == word.window && !held.end_is_known && !word.end_is_known;
            !(of_it && left > held.remaining && hearing.request > held.sent_when_reported)
        });
        let heard = HeldLimit {
            window: word.window,
            remaining: left,
            initial: left,
            until,
            end_is_known: word.end_is_known,
            sent_when_reported: hearing.sent,
        };
        if self.limits.iter().any(|held| held.covers(&heard)) {
            return;
        }
        let mut most = left;
        self.limits.retain(|held| {
            let replaced = heard.covers(held);
            if replaced && held.window == word.window {
                most = most.max(held.initial);
            }
            !replaced
        });
        self.limits.push(HeldLimit {
            initial: most,
            ..heard
        });
        if self.limits.len() > MAX_LIMITS {
            let loosest = (0..self.limits.len()).max_by_key(|at| self.limits[*at].remaining);
            self.limits.swap_remove(loosest.unwrap_or(0));
        }
    }

    /// How long there will be nothing for a request that leaves this share.
    pub fn wait(&mut self, now: Moment, keep: Reserve) -> Option<Duration> {
        self.remove_ended(now);
        let short = self.limits.iter().filter(|held| {
            let kept = match held.window {
                LimitWindow::Second => keep.of_second(held.initial),
                LimitWindow::Unnamed
                | LimitWindow::Minute
                | LimitWindow::Hour
                | LimitWindow::Day
                | LimitWindow::Month => keep.of_minute(held.initial),
            };
            held.remaining <= kept
        });
        short.map(|held| held.until.since(now)).max()
    }

    /// Counts a request.
    pub fn take(&mut self) {
        for held in &mut self.limits {
            held.remaining = held.remaining.saturating_sub(1);
        }
    }

    /// How many requests are left; `None` where nothing was said.
    pub fn remaining(&mut self, now: Moment) -> Option<u64> {
        self.remove_ended(now);
        self.limits.iter().map(|held| held.remaining).min()
    }

    fn remove_ended(&mut self, now: Moment) {
        self.limits.retain(|held| held.until > now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    fn word(left: u64, seconds: u64, told: bool) -> ReportedLimit {
        ReportedLimit {
            window: LimitWindow::Minute,
            remaining: left,
            valid_for: Duration::from_secs(seconds),
            end_is_known: told,
        }
    }

    fn hearing(asked: u64, sent: u64, uncounted: u64) -> ReportContext {
        ReportContext {
            request: asked,
            sent,
            uncounted,
        }
    }

    #[test]
    fn a_word_holds_until_its_end() {
        let mut told = ReportedLimits::default();
        assert_eq!(told.wait(at(0), Reserve::Half), None);
        told.take_report(&word(2, 30, true), hearing(1, 1, 0), at(0));
        assert_eq!(told.remaining(at(0)), Some(2));
        told.take();
        told.take();
        assert_eq!(
            told.wait(at(10_000), Reserve::Nothing),
            Some(Duration::from_secs(20))
        );
        // More of the same window does not loosen it, nor does another.
        told.take_report(&word(400, 19, true), hearing(3, 3, 0), at(11_000));
        told.take_report(&word(400, 60, true), hearing(3, 3, 0), at(11_000));
        assert_eq!(told.remaining(at(11_000)), Some(0));
        assert_eq!(told.remaining(at(30_000)), Some(400));
        assert_eq!(told.remaining(at(71_000)), None);
    }

    #[test]
    fn what_it_may_not_have_counted_counts() {
        let mut told = ReportedLimits::default();
        told.take_report(&word(10, 30, true), hearing(1, 5, 4), at(0));
        assert_eq!(told.remaining(at(0)), Some(6));
        told.take_report(&word(3, 60, true), hearing(1, 5, 4), at(0));
        assert_eq!(told.remaining(at(0)), Some(0));
        let mut told = ReportedLimits::default();
        told.take_report(&word(3, 1, true), hearing(1, 5, 4), at(0));
        assert_eq!(told.remaining(at(0)), Some(3), "a second is short");
    }

    #[test]
    fn an_end_without_a_name_is_where_the_number_rises() {
        let mut told = ReportedLimits::default();
        told.take_report(&word(3, 60, false), hearing(1, 1, 0), at(0));
        // That one was sent before the word came, so that it proves nothing.
        told.take_report(&word(9, 60, false), hearing(1, 2, 0), at(100));
        assert_eq!(told.remaining(at(100)), Some(3));
        told.take_report(&word(499, 60, false), hearing(3, 3, 0), at(200));
        assert_eq!(told.remaining(at(200)), Some(499));
        assert_eq!(told.remaining(at(60_200)), None);
    }

    #[test]
    fn a_word_whose_end_is_not_known_does_not_stand_for_one_whose_end_is() {
        let hour = ReportedLimit {
            window: LimitWindow::Hour,
            ..word(5, 3000, true)
        };
        let minute = |left| word(left, 3600, false);
        // Before it or after it, and then the number rises.
        for words in [[minute(3), hour], [hour, minute(3)]] {
            let mut told = ReportedLimits::default();
            for word in words {
                told.take_report(&word, hearing(1, 1, 0), at(0));
            }
            assert_eq!(told.remaining(at(0)), Some(3));
            told.take_report(&minute(499), hearing(2, 2, 0), at(100));
            assert_eq!(told.remaining(at(100)), Some(5), "{told:?}");
        }
    }

    #[test]
    fn shares_are_kept() {
        let mut told = ReportedLimits::default();
        told.take_report(&word(40, 30, true), hearing(1, 1, 0), at(0));
        for _ in 0..20 {
            assert_eq!(told.wait(at(0), Reserve::Half), None);
            told.take();
        }
        assert!(told.wait(at(0), Reserve::Half).is_some());
        for _ in 0..18 {
            assert_eq!(told.wait(at(0), Reserve::Probes(1)), None);
            told.take();
        }
        assert!(told.wait(at(0), Reserve::Probes(1)).is_some());
        assert_eq!(told.wait(at(0), Reserve::Nothing), None);
    }

    proptest! {
        /// However the words fall, none whose end was told is exceeded while
        /// it holds, and what is remembered is bounded.
        #[test]
        fn no_word_is_exceeded(
            steps in proptest::collection::vec(
                (0_u64..3000, proptest::option::of((0_u64..20, 1_u64..40)), any::<bool>()),
                1..200,
            ),
        ) {
            let mut told = ReportedLimits::default();
            let (mut now, mut sent) = (0, 0);
            // What is left, and until when.
            let mut said: Vec<(u64, u64)> = Vec::new();
            for (pause, heard, asks) in steps {
                now += pause;
                said.retain(|(_, until)| *until > now);
                if let Some((left, seconds)) = heard {
                    told.take_report(&word(left, seconds, true), hearing(sent, sent, 0), at(now));
                    said.push((left, now + seconds * 1000));
                }
                let least = said.iter().map(|(left, _)| *left).min();
                if said.len() <= MAX_LIMITS {
                    prop_assert!(told.remaining(at(now)) == least, "{told:?} {said:?}");
                }
                if asks && told.wait(at(now), Reserve::Nothing).is_none() {
                    told.take();
                    sent += 1;
                    for (left, _) in &mut said {
                        prop_assert!(*left > 0);
                        *left -= 1;
                    }
                }
                prop_assert!(told.limits.len() <= MAX_LIMITS);
            }
        }
    }
}
