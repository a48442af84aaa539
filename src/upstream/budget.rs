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
//! A minute is paced, so that a burst cannot empty it. Three fifths of it may go
//! at once. From then on requests are spread evenly over what is left and what
//! comes back as earlier requests leave the window; so there is always a next one
//! soon, for whoever's turn it is. Probes of the tip are not
//! paced. What is paced apart, and from more of the minute, is what clients ask
//! that have had little of late.
//!
//! A window that is not limited keeps nothing but the last `REMEMBERED` ends,
//! whatever passes through it: a limit may come by a reload, and holds for what
//! was sent before it as well.
//!
//! Deliberately absent: waiting, and which key; those are `upstream::keys`'. Which
//! upstreams spend the budget: that is `upstream::budgets`'.

use std::collections::VecDeque;
use std::time::Duration;

use super::rates::{Rate, Rates};
use super::reported::Word;
use super::told::{Hearing, Told};
use crate::clock::Moment;

/// Added to each window, for clocks that tick coarsely or run slow.
const SLACK: Duration = Duration::from_millis(50);

/// How long a request that has ended counts in the second.
pub const SECOND: Duration = Duration::from_secs(1).saturating_add(SLACK);

/// For so long a request that was given up may still be on its way.
pub const LATE: Duration = Duration::from_secs(1);

/// So many ends are kept of a window that is not limited.
const REMEMBERED: usize = 1024;

/// So many moments of a window are looked at for its pace.
const STEPS: u32 = 60;

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
    /// When the next request goes that keeps a share for probes, and that keeps
    /// one for others beside.
    next: [Moment; 2],
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
    /// For them, and a tenth for others that come first: clients that have had
    /// little of the budget of late, or misses.
    ForMisses(u32),
    /// Half.
    Half,
}

impl Keep {
    /// The same, where the tips are probed so many times a minute.
    #[must_use]
    pub const fn with_probes(self, probes: u32) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::ForProbes(_) => Self::ForProbes(probes),
            Self::ForMisses(_) => Self::ForMisses(probes),
            Self::Half => Self::Half,
        }
    }

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

    /// Which of the two paces holds for it, if one does.
    const fn class(self) -> Option<usize> {
        match self {
            Self::ForProbes(_) => Some(0),
            Self::ForMisses(_) => Some(1),
            Self::Nothing | Self::Half => None,
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
    pub fn new(rates: Rates) -> Self {
        Self {
            minute: Window::new(rates.per_minute, Duration::from_secs(60)),
            second: Window::new(rates.per_second, Duration::from_secs(1)),
            told: Told::default(),
            sent: 0,
            ended: 0,
            given_up: VecDeque::new(),
            next: Default::default(),
        }
    }

    /// Holds to these from now on; what is spent stays spent.
    pub fn bound(&mut self, rates: Rates) {
        self.minute.bound(rates.per_minute);
        self.second.bound(rates.per_second);
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
        if let Some(class) = keep.class() {
            let kept = self.minute.kept(|most| keep.of_minute(most));
            let interval = self.minute.interval(now, kept);
            // A request that goes a little late delays none of those after it.
            self.next[class] = self.next[class].max(now.before(interval)) + interval;
        }
        Ok(())
    }

    /// How long there will be nothing for a request that leaves this share;
    /// `None` where there is.
    pub fn wait(&mut self, now: Moment, keep: Keep) -> Option<Duration> {
        self.settle(now);
        let minute = self.minute.kept(|most| keep.of_minute(most));
        let second = self.second.kept(|most| keep.of_second(most));
        let waits = [
            self.minute.wait(now, minute),
            self.second.wait(now, second),
            self.told.wait(now, keep),
            self.pause(now, keep),
        ];
        waits.into_iter().flatten().max()
    }

    /// How long the pace holds a request back; not while two fifths of the minute
    /// are left.
    fn pause(&mut self, now: Moment, keep: Keep) -> Option<Duration> {
        let pause = self.next[keep.class()?].since(now);
        if pause.is_zero() {
            return None;
        }
        let paced = self.minute.paced()?.saturating_sub(1);
        Some(pause.min(self.minute.wait(now, paced)?))
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

    /// How many requests a minute takes; `None` where it is not limited.
    pub fn per_minute(&self) -> Option<usize> {
        self.minute.most
    }

    /// How many requests a second takes; `None` where it is not limited.
    pub fn per_second(&self) -> Option<usize> {
        self.second.most
    }

    /// Whether a request that was taken has not ended yet.
    pub fn is_under_way(&self) -> bool {
        self.minute.under_way > 0
    }

    /// Whether a request is under way, or counts in the minute still.
    pub fn is_spent_from(&mut self, now: Moment) -> bool {
        self.settle(now);
        let last = self.minute.ended.back();
        self.is_under_way() || last.is_some_and(|end| *end + self.minute.span > now)
    }

    /// How many requests this minute's window still holds, and the upstream
    /// still takes; `None` where nothing limits them.
    pub fn left(&mut self, now: Moment) -> Option<usize> {
        self.settle(now);
        let told = self.told.left(now);
        let told = told.map(|left| usize::try_from(left).unwrap_or(usize::MAX));
        let own = self.minute.left(now);
        own.into_iter().chain(told).min()
    }
}

#[derive(Debug)]
struct Window {
    /// `None` for any number.
    most: Option<usize>,
    span: Duration,
    under_way: usize,
    /// When the requests of the last span ended, oldest first; the last
    /// [`REMEMBERED`] of all where the window is not limited.
    ended: VecDeque<Moment>,
}

impl Window {
    fn new(rate: Rate, span: Duration) -> Self {
        Self {
            most: most(rate),
            span: span + SLACK,
            under_way: 0,
            ended: VecDeque::new(),
        }
    }

    /// Holds to this from now on.
    fn bound(&mut self, rate: Rate) {
        let before = std::mem::replace(&mut self.most, most(rate));
        match (before, self.most) {
            // What was forgotten ended no later than what was not.
            (None, Some(most)) if self.ended.len() >= REMEMBERED => {
                let first = self.ended.front().copied().unwrap_or_default();
                while self.ended.len() < most {
                    self.ended.push_front(first);
                }
            }
            (_, None) => {
                self.forget();
                self.ended.shrink_to(REMEMBERED);
            }
            (_, Some(_)) => {}
        }
    }

    /// Forgets what a window that is not limited need not keep.
    fn forget(&mut self) {
        let further = self.ended.len().saturating_sub(REMEMBERED);
        self.ended.drain(..further);
    }

    /// What is kept of so many requests as it takes; nothing is of any number.
    fn kept(&self, of: impl Fn(u64) -> u64) -> usize {
        let kept = self.most.map_or(0, |most| of(most as u64));
        usize::try_from(kept).unwrap_or(usize::MAX)
    }

    fn left(&mut self, now: Moment) -> Option<usize> {
        let most = self.most?;
        while self
            .ended
            .front()
            .is_some_and(|end| *end + self.span <= now)
        {
            self.ended.pop_front();
        }
        Some(most.saturating_sub(self.under_way + self.ended.len()))
    }

    /// How long there will be nothing for a request that leaves so many.
    fn wait(&mut self, now: Moment, keep: usize) -> Option<Duration> {
        let (left, most) = (self.left(now)?, self.most?);
        // After a change for the less, more may be spent than there is.
        let over = (self.under_way + self.ended.len()).saturating_sub(most);
        let short = keep.checked_sub(left)? + over;
        // So many more than one have to leave the window.
        Some(match self.ended.get(short) {
            Some(last) => (*last + self.span).since(now),
            // One that is under way has to end first, and counts for a whole
            // window then.
            None => self.span,
        })
    }

    /// With fewer left than this, requests are paced.
    fn paced(&self) -> Option<usize> {
        Some(self.most? * 2 / 5)
    }

    /// The interval at which requests can go from now on, such that the window
    /// is never short of one: at each of so many moments up to the end of the
    /// window, no more will have gone than were left beside the share that is
    /// kept, and had come back until just before.
    fn interval(&mut self, now: Moment, kept: usize) -> Duration {
        let (Some(left), Some(paced)) = (self.left(now), self.paced()) else {
            return Duration::ZERO;
        };
        if left >= paced {
            return Duration::ZERO;
        }
        let spare = left.saturating_sub(kept);
        let step = self.span / STEPS;
        let mut longest = Duration::ZERO;
        for nth in 1..=STEPS {
            let until = now + step * (nth - 1);
            let back = self.ended.partition_point(|end| *end + self.span <= until);
            let requests = u32::try_from(spare + back + 1).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    fn end(&mut self, now: Moment) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ended.push_back(now);
        if self.most.is_none() {
            self.forget();
        }
    }
}

fn most(rate: Rate) -> Option<usize> {
    rate.limit().map(|most| most as usize)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// 0 for any number.
    fn rates(per_minute: u32, per_second: u32) -> Rates {
        let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
        Rates {
            per_minute: rate(per_minute),
            per_second: rate(per_second),
        }
    }

    fn budget(per_minute: u32, per_second: u32) -> Budget {
        Budget::new(rates(per_minute, per_second))
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
        assert_eq!(budget.left(at(1150)), Some(0));
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
        assert_eq!(budget.left(at(61_149)), Some(0));
        assert_eq!(budget.left(at(61_150)), Some(1));
    }

    #[test]
    fn what_is_spent_stays_spent_when_the_bounds_change() {
        let mut budget = budget(4, 10);
        for millis in [0, 10, 20, 30] {
            assert_eq!(budget.take(at(millis), Keep::Nothing), Ok(()));
            budget.end(at(millis));
        }
        budget.bound(rates(2, 10));
        let wait = Duration::from_millis(60_050 + 20 - 40);
        assert_eq!(budget.take(at(40), Keep::Nothing), Err(wait));
        budget.bound(rates(5, 10));
        assert_eq!(budget.take(at(40), Keep::Nothing), Ok(()));
        assert_eq!(budget.left(at(40)), Some(0));
    }

    #[test]
    fn a_limit_that_comes_late_counts_what_was_sent_before() {
        for (sent, limit, left_at_once, left_later) in [
            (100, 300, 200, 280),
            (100, 50, 0, 30),
            // Of more than are remembered, the others count as the first of these.
            (2_000, 3_000, 0, 2_980),
            (2_000, 1_000, 0, 980),
        ] {
            let mut budget = budget(0, 0);
            for nth in 0..sent {
                let millis = if nth < sent - 20 { 0 } else { 10_000 };
                assert_eq!(budget.take(at(millis), Keep::Half), Ok(()));
                budget.end(at(millis));
                assert_eq!(budget.left(at(millis)), None);
            }
            let kept = budget.minute.ended.len().max(budget.second.ended.len());
            assert!(kept <= REMEMBERED, "{kept}");
            budget.bound(rates(limit, 0));
            assert_eq!(
                budget.left(at(10_000)),
                Some(left_at_once),
                "{sent} {limit}"
            );
            assert_eq!(budget.left(at(60_050)), Some(left_later), "{sent} {limit}");
            assert_eq!(budget.left(at(70_050)), Some(limit as usize));
            budget.bound(rates(0, 0));
            assert_eq!(budget.wait(at(70_050), Keep::Half), None);
        }
    }

    /// How many go in each of so many spans of ten seconds, where one is wished
    /// for every 20 ms that leaves this share.
    fn taken(budget: &mut Budget, keep: Keep, from: u64, spans: usize) -> Vec<usize> {
        let tries = |span: u64| {
            let times = (0..500).map(move |nth| from + span * 10_000 + nth * 20);
            let takes = times.filter(|now| {
                let is_taken = budget.take(at(*now), keep).is_ok();
                if is_taken {
                    budget.end(at(*now));
                }
                is_taken
            });
            takes.count()
        };
        (0..spans as u64).map(tries).collect()
    }

    #[test]
    fn three_fifths_of_a_minute_go_at_once_and_the_rest_is_spread() {
        let mut budget = budget(500, 1000);
        let first = taken(&mut budget, Keep::Nothing, 0, 6);
        assert_eq!(first, [500, 0, 0, 0, 0, 0], "probes are not paced");
        for (keep, all) in [(Keep::ForProbes(24), 475), (Keep::ForMisses(24), 425)] {
            let mut budget = self::budget(500, 1000);
            let spans = taken(&mut budget, keep, 0, 30);
            let first: usize = spans[..6].iter().sum();
            assert!((all - 5..=all).contains(&first), "{spans:?}");
            // The first has the burst with it, of 301.
            let even = (all - 301) / 6;
            assert!((301..301 + even).contains(&spans[0]), "{spans:?}");
            assert!(
                spans[1..].iter().all(|taken| *taken >= even - 2),
                "{spans:?}"
            );
            // As the burst leaves the window a part of it comes back, which is
            // smaller each time.
            let most = 200;
            assert!(spans[1..].iter().all(|taken| *taken <= most), "{spans:?}");
            let last: usize = spans[24..].iter().sum();
            assert!(last >= all * 97 / 100, "{spans:?}");
        }
    }

    #[test]
    fn the_reserve_is_there_whatever_others_take() {
        let mut budget = budget(500, 1000);
        let mut light = 0;
        for span in 0..180 {
            for nth in 0..50 {
                if budget
                    .take(at(span * 1000 + nth * 20), Keep::ForMisses(24))
                    .is_ok()
                {
                    budget.end(at(span * 1000 + nth * 20));
                }
            }
            let now = at(span * 1000 + 999);
            if budget.take(now, Keep::ForProbes(24)).is_ok() {
                budget.end(now);
                light += 1;
            }
        }
        assert_eq!(light, 180);
    }

    proptest! {
        /// However requests come, the wait that is told is exact: one is let
        /// through after that time, and none before it.
        #[test]
        fn a_paced_wait_is_exact(
            gaps in proptest::collection::vec((0_u64..2_000, proptest::bool::ANY), 1..200),
            most in 1_u32..60,
        ) {
            let mut budget = budget(most, 1000);
            let mut now = at(0);
            for (gap, is_light) in gaps {
                now = now + Duration::from_millis(gap);
                let keep = match is_light {
                    true => Keep::ForProbes(0),
                    false => Keep::ForMisses(0),
                };
                let Err(wait) = budget.take(now, keep) else {
                    budget.end(now);
                    continue;
                };
                prop_assert!(!wait.is_zero() && wait <= Duration::from_millis(60_050), "{wait:?}");
                let then = now + wait;
                prop_assert!(budget.wait(then.before(Duration::from_nanos(1)), keep).is_some());
                prop_assert_eq!(budget.wait(then, keep), None);
                now = then;
            }
        }

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
