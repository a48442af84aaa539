//! How often a key may be used: never more than so many requests in any
//! minute, nor in any second. Pure: `now` is an argument.
//!
//! A limiter with a burst admits up to twice its rate in the first window; a
//! provider that counts would refuse us. So this one keeps the moment of each
//! request for as long as it counts. A request reaches the upstream at some
//! moment between its being granted and its being answered, and we cannot know
//! which: until it has ended it counts, and from then on for a whole window. So
//! whatever the delays on the way, no window of the upstream's own clock holds
//! too many. One that is given up unanswered may reach it yet, and counts as
//! under way for a while longer. What the upstream itself says is left (`upstream::told`) holds
//! beside that, and can only be stricter.
//!
//! Deliberately absent: waiting, and which key; those are `upstream::keys`'.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use super::reported::Word;
use super::told::{Hearing, Told};
use crate::clock::Moment;

/// Added to each window, for clocks that tick coarsely or run slow.
const SLACK: Duration = Duration::from_millis(50);

/// For so long a request that was given up may still be on its way.
pub const LATE: Duration = Duration::from_secs(1);

/// The budget of one key.
#[derive(Debug)]
pub struct Budget {
    minute: Window,
    second: Window,
    told: Told,
    /// Requests taken so far, and how many of them have ended.
    sent: u64,
    ended: u64,
    /// When those have ended for certain that were given up, the first first.
    given_up: VecDeque<Moment>,
}

/// Where in the order of things a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    sent: u64,
    ended: u64,
}

impl Place {
    /// Its number among all that were sent.
    pub const fn number(self) -> u64 {
        self.sent
    }
}

/// The share of a window that a request has to leave for those that are more
/// urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// None.
    Nothing,
    /// For so many probes of the tip a minute.
    ForProbes(u32),
    /// For them, and for what nothing stored can answer.
    ForMisses(u32),
    /// Half.
    Half,
}

impl Keep {
    /// What is to be left of a minute, or of longer, that takes so many. Probes
    /// get what they need, a twentieth at the least and a quarter at the most;
    /// misses a tenth beside.
    pub fn of_minute(self, most: u64) -> u64 {
        match self {
            Self::Nothing | Self::ForProbes(0) => 0,
            Self::ForProbes(probes) => u64::from(probes).min(most / 4).max(most / 20),
            Self::ForMisses(probes) => Self::ForProbes(probes).of_minute(most) + most / 10,
            Self::Half => most / 2,
        }
    }

    /// What is to be left of a second: probes come one at a time.
    pub fn of_second(self, most: u64) -> u64 {
        match self {
            Self::Nothing | Self::ForProbes(0) => 0,
            Self::ForProbes(_) => most / 20,
            Self::ForMisses(probes) => Self::ForProbes(probes).of_second(most) + most / 10,
            Self::Half => most / 2,
        }
    }
}

impl Budget {
    /// A budget of which nothing is spent.
    pub fn new(per_minute: NonZeroU32, per_second: NonZeroU32) -> Self {
        Self {
            minute: Window::new(per_minute, Duration::from_secs(60)),
            second: Window::new(per_second, Duration::from_secs(1)),
            told: Told::default(),
            sent: 0,
            ended: 0,
            given_up: VecDeque::new(),
        }
    }

    /// Holds to these from now on; what is spent stays spent.
    pub fn bound(&mut self, per_minute: NonZeroU32, per_second: NonZeroU32) {
        self.minute.most = per_minute.get() as usize;
        self.second.most = per_second.get() as usize;
    }

    /// Takes a request out of the budget, as long as the share that is kept for
    /// others is left; [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Where none is left: how long that lasts at the least, and no longer
    /// where nothing is under way.
    pub fn take(&mut self, now: Moment, keep: Keep) -> Result<(), Duration> {
        if let Some(wait) = self.wait(now, keep) {
            return Err(wait);
        }
        self.minute.under_way += 1;
        self.second.under_way += 1;
        self.told.take();
        self.sent += 1;
        Ok(())
    }

    /// How long there will be nothing for a request that leaves this share;
    /// `None` where there is.
    pub fn wait(&mut self, now: Moment, keep: Keep) -> Option<Duration> {
        self.settle(now);
        let minute = keep.of_minute(self.minute.most as u64) as usize;
        let second = keep.of_second(self.second.most as u64) as usize;
        let waits = [
            self.minute.wait(now, minute),
            self.second.wait(now, second),
            self.told.wait(now, keep),
        ];
        waits.into_iter().flatten().max()
    }

    /// The place of the request that was taken last.
    pub fn place(&self) -> Place {
        Place {
            sent: self.sent,
            ended: self.ended,
        }
    }

    /// Takes in what the upstream has said in its answer to a request, which
    /// has not ended yet.
    pub fn hear(&mut self, words: &[Word], place: Place, now: Moment) {
        self.settle(now);
        let others = self.minute.under_way.saturating_sub(1) as u64;
        let hearing = Hearing {
            asked: place.sent,
            sent: self.sent,
            uncounted: self.ended - place.ended + others,
        };
        for word in words {
            self.told.hear(word, hearing, now);
        }
    }

    /// Says that a request which was taken has been answered, or never sent.
    pub fn end(&mut self, now: Moment) {
        self.settle(now);
        self.end_at(now);
    }

    /// Says that a request which was sent has been given up unanswered.
    pub fn give_up(&mut self, now: Moment) {
        self.settle(now);
        self.given_up.push_back(now + LATE);
    }

    /// Those that were given up long enough ago have ended.
    fn settle(&mut self, now: Moment) {
        while let Some(end) = self.given_up.pop_front_if(|end| *end <= now) {
            self.end_at(end);
        }
    }

    fn end_at(&mut self, end: Moment) {
        self.minute.end(end);
        self.second.end(end);
        self.ended += 1;
    }

    /// How many requests a minute takes.
    pub fn per_minute(&self) -> usize {
        self.minute.most
    }

    /// Whether a request that was taken has not ended yet.
    pub fn is_under_way(&self) -> bool {
        self.minute.under_way > 0
    }

    /// How many requests this minute's window still holds, and the upstream
    /// still takes.
    pub fn left(&mut self, now: Moment) -> usize {
        self.settle(now);
        let told = self.told.left(now).map(usize::try_from);
        let told = told.and_then(Result::ok).unwrap_or(usize::MAX);
        self.minute.left(now).min(told)
    }
}

#[derive(Debug)]
struct Window {
    most: usize,
    span: Duration,
    under_way: usize,
    /// When the requests of the last span ended, oldest first.
    ended: VecDeque<Moment>,
}

impl Window {
    fn new(most: NonZeroU32, span: Duration) -> Self {
        Self {
            most: most.get() as usize,
            span: span + SLACK,
            under_way: 0,
            ended: VecDeque::new(),
        }
    }

    fn left(&mut self, now: Moment) -> usize {
        while self
            .ended
            .front()
            .is_some_and(|end| *end + self.span <= now)
        {
            self.ended.pop_front();
        }
        self.most.saturating_sub(self.under_way + self.ended.len())
    }

    /// How long there will be nothing for a request that leaves so many.
    fn wait(&mut self, now: Moment, keep: usize) -> Option<Duration> {
        let left = self.left(now);
        // After a change for the less, more may be spent than there is.
        let over = (self.under_way + self.ended.len()).saturating_sub(self.most);
        let short = keep.checked_sub(left)? + over;
        // So many more than one have to leave the window.
        Some(match self.ended.get(short) {
            Some(last) => (*last + self.span).since(now),
            // One that is under way has to end first, and counts for a whole
            // window then.
            None => self.span,
        })
    }

    fn end(&mut self, now: Moment) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ended.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn budget(per_minute: u32, per_second: u32) -> Budget {
        let number = |n| NonZeroU32::new(n).unwrap();
        Budget::new(number(per_minute), number(per_second))
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    #[test]
    fn a_minute_and_a_second() {
        let mut budget = budget(3, 2);
        assert_eq!(budget.take(at(0), Keep::Nothing), Ok(()));
        assert_eq!(budget.take(at(0), Keep::Nothing), Ok(()));
        assert_eq!(
            budget.take(at(0), Keep::Nothing),
            Err(Duration::from_millis(1050)),
            "however soon one of them ends"
        );
        budget.end(at(100));
        budget.end(at(200));
        assert_eq!(
            budget.take(at(300), Keep::Nothing),
            Err(Duration::from_millis(850))
        );
        assert_eq!(budget.take(at(1150), Keep::Nothing), Ok(()));
        assert_eq!(budget.left(at(1150)), 0);
        assert_eq!(
            budget.take(at(1200), Keep::Nothing),
            Err(Duration::from_millis(58_950))
        );
        budget.end(at(1300));
        assert_eq!(budget.take(at(60_150), Keep::Nothing), Ok(()));
    }

    #[test]
    fn what_is_given_up_counts_for_longer() {
        let mut budget = budget(2, 1);
        assert_eq!(budget.take(at(0), Keep::Nothing), Ok(()));
        budget.give_up(at(100));
        assert!(budget.take(at(2149), Keep::Nothing).is_err());
        assert!(!budget.is_under_way());
        assert_eq!(budget.take(at(2150), Keep::Nothing), Ok(()));
        budget.end(at(2150));
        assert_eq!(budget.left(at(61_149)), 0);
        assert_eq!(budget.left(at(61_150)), 1);
    }

    #[test]
    fn what_is_spent_stays_spent_when_the_bounds_change() {
        let number = |n| NonZeroU32::new(n).unwrap();
        let mut budget = budget(4, 10);
        for millis in [0, 10, 20, 30] {
            assert_eq!(budget.take(at(millis), Keep::Nothing), Ok(()));
            budget.end(at(millis));
        }
        budget.bound(number(2), number(10));
        let wait = Duration::from_millis(60_050 + 20 - 40);
        assert_eq!(budget.take(at(40), Keep::Nothing), Err(wait));
        budget.bound(number(5), number(10));
        assert_eq!(budget.take(at(40), Keep::Nothing), Ok(()));
        assert_eq!(budget.left(at(40)), 0);
    }

    proptest! {
        /// Requests arrive at random, take random times, and reach the upstream
        /// at a random moment of that time: no window there holds too many.
        #[test]
        fn no_window_of_the_upstream_is_exceeded(
            steps in proptest::collection::vec((0_u64..400, 0_u64..3000, 0_u64..=100), 1..400),
        ) {
            let (per_minute, per_second) = (20, 4);
            let mut budget = budget(per_minute, per_second);
            let mut now = 0;
            let mut under_way: Vec<u64> = Vec::new();
            let mut reached = Vec::new();
            for (pause, takes, share) in steps {
                now += pause;
                under_way.sort_unstable();
                while under_way.first().is_some_and(|end| *end <= now) {
                    budget.end(at(under_way.remove(0)));
                }
                if budget.take(at(now), Keep::Nothing).is_ok() {
                    under_way.push(now + takes);
                    reached.push(now + takes * share / 100);
                }
            }
            reached.sort_unstable();
            for (most, span) in [(per_minute as usize, 60_000), (per_second as usize, 1_000)] {
                for window in reached.windows(most + 1) {
                    prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
                }
            }
        }

        /// The wait that is told is enough where nothing else happens.
        #[test]
        fn waits_are_true(sent in 1_u32..30, gap in 0_u64..500) {
            let mut budget = budget(10, 3);
            let mut now = 0;
            for _ in 0..sent {
                match budget.take(at(now), Keep::Nothing) {
                    Ok(()) => budget.end(at(now)),
                    Err(wait) => {
                        now += u64::try_from(wait.as_millis()).unwrap();
                        prop_assert!(budget.take(at(now), Keep::Nothing).is_ok());
                        budget.end(at(now));
                    }
                }
                now += gap;
            }
        }
    }
}
