//! Which of several endpoints requests go to (failover). Pure: `now` is an argument.
//!
//! Endpoints are in the order of preference. The selected one stays selected as long
//! as it is healthy, since each change of endpoint may look like a change of the chain.
//! A preferred one is selected again only after it has been healthy for a while
//! (probation), which doubles each time that it fails soon after its return.
//!
//! Invariants: no endpoint is selected while another is in a better condition; before
//! a return to an endpoint it has been healthy for its whole probation.
//!
//! Deliberately absent: how the condition of an endpoint is determined
//! ([`Endpoint::condition`](super::endpoint::Endpoint::condition)).

use std::time::Duration;

use crate::clock::Moment;

/// The condition of an endpoint, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// It is healthy.
    Sound,
    /// It lags behind another endpoint by too many blocks.
    Lagging,
    /// It reports a height that the chain cannot have, far above the others.
    Implausible,
    /// What it answers on its status path is no status: it fails, or is the wrong server.
    Wrong,
    /// It accepts none of the keys for longer than a request waits.
    Refusing,
    /// Its breaker is open.
    Broken,
    /// It has answered 410 Gone.
    Retired,
}

impl Condition {
    /// All conditions.
    pub const ALL: [Self; 7] = [
        Self::Sound,
        Self::Lagging,
        Self::Implausible,
        Self::Wrong,
        Self::Refusing,
        Self::Broken,
        Self::Retired,
    ];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Lagging => "lagging",
            Self::Implausible => "implausible",
            Self::Wrong => "wrong",
            Self::Refusing => "refusing",
            Self::Broken => "broken",
            Self::Retired => "retired",
        }
    }
}

/// The selection among the endpoints of an upstream, which are given by their
/// indexes.
#[derive(Clone, Debug)]
pub(crate) struct EndpointSelection {
    selected: usize,
    /// The first probation of a preferred endpoint.
    return_after: Duration,
    records: Vec<Record>,
}

/// The history of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Since when it has been sound.
    sound_since: Option<Moment>,
    /// When it was last selected.
    selected: Option<Moment>,
    /// How often it was left soon after a return to it.
    flaps: u32,
}

/// A change of the selected endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// A probation is doubled at most this often.
const MOST_FLAPS: u32 = 5;
/// An endpoint that was selected for this many probations has stopped flapping.
const STEADY: u32 = 4;

impl EndpointSelection {
    /// Selects the first of this many endpoints.
    pub(crate) fn new(endpoints: usize, return_after: Duration) -> Self {
        Self {
            selected: 0,
            return_after,
            records: vec![Record::default(); endpoints],
        }
    }

    /// The selection among the endpoints after a reload; `old_indexes` has for each its
    /// index here, if it had one. Their history is kept, and so is the selected one,
    /// unless an endpoint is preferred to it now that was not before.
    #[must_use]
    pub(crate) fn next(&self, old_indexes: &[Option<usize>], return_after: Duration) -> Self {
        let record = |old: &Option<usize>| {
            let record = old.and_then(|old| self.records.get(old));
            record.copied().unwrap_or_default()
        };
        let mut all = old_indexes.iter();
        let selected = all.position(|old| *old == Some(self.selected));
        let was_preferred = |old: &Option<usize>| old.is_some_and(|at| at < self.selected);
        let selected = selected.filter(|at| old_indexes[..*at].iter().all(was_preferred));
        Self {
            selected: selected.unwrap_or(0),
            return_after,
            records: old_indexes.iter().map(record).collect(),
        }
    }

    pub(crate) fn selected(&self) -> usize {
        self.selected
    }

    /// Selects anew by these conditions, one for each endpoint. Returns whether another
    /// endpoint is selected.
    pub(crate) fn update(&mut self, conditions: &[Condition], now: Moment) -> Option<Switch> {
        for (record, condition) in self.records.iter_mut().zip(conditions) {
            record.sound_since = match condition {
                Condition::Sound => Some(record.sound_since.unwrap_or(now)),
                Condition::Lagging
                | Condition::Implausible
                | Condition::Wrong
                | Condition::Refusing
                | Condition::Broken
                | Condition::Retired => None,
            };
        }
        let own = conditions.get(self.selected).copied();
        let own = own.unwrap_or(Condition::Retired);
        let best = (0..conditions.len()).min_by_key(|at| (conditions[*at], *at));
        let to = match best {
            Some(best) if conditions[best] < own => best,
            Some(_) | None if own == Condition::Sound => (0..self.selected)
                .find(|at| self.has_passed_probation(*at, now))
                .unwrap_or(self.selected),
            Some(_) | None => self.selected,
        };
        (to != self.selected).then(|| self.switch(to, now))
    }

    /// The best usable endpoint besides those that a request has been tried at.
    pub(crate) fn other(&self, conditions: &[Condition], tried: &[usize]) -> Option<usize> {
        let others = (0..conditions.len()).filter(|at| !tried.contains(at));
        let usable = others.filter(|at| conditions[*at] < Condition::Refusing);
        usable.min_by_key(|at| (conditions[*at], *at != self.selected, *at))
    }

    fn switch(&mut self, to: usize, now: Moment) -> Switch {
        let from = self.selected;
        let probation = self.probation(from);
        if let Some(record) = self.records.get_mut(from)
            && let Some(selected) = record.selected
        {
            let stood = now.since(selected);
            if stood < probation {
                record.flaps = (record.flaps + 1).min(MOST_FLAPS);
            } else if stood > probation * STEADY {
                record.flaps = 0;
            }
        }
        if let Some(record) = self.records.get_mut(to) {
            record.selected = Some(now);
        }
        self.selected = to;
        Switch { from, to }
    }

    fn has_passed_probation(&self, at: usize, now: Moment) -> bool {
        let since = self.records[at].sound_since;
        since.is_some_and(|since| now.since(since) >= self.probation(at))
    }

    fn probation(&self, at: usize) -> Duration {
        let flaps = self.records.get(at).map_or(0, |record| record.flaps);
        self.return_after * 2_u32.pow(flaps)
    }
}

#[cfg(test)]
mod tests {
    use Condition::{Broken, Lagging, Retired, Sound, Wrong};
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn the_best_endpoint_is_selected_and_stays() {
        let mut selection = EndpointSelection::new(3, AFTER);
        let rows = [
            (0, [Sound, Sound, Sound], 0),
            (1, [Lagging, Sound, Sound], 1),
            (2, [Sound, Sound, Sound], 1),
            (3, [Sound, Broken, Sound], 0),
            (4, [Broken, Broken, Wrong], 2),
            (5, [Retired, Broken, Broken], 2),
            (6, [Broken, Wrong, Broken], 1),
            (7, [Retired, Retired, Retired], 1),
            (8, [Broken, Broken, Retired], 1),
        ];
        for (second, conditions, expected) in rows {
            selection.update(&conditions, at(second));
            assert_eq!(selection.selected(), expected, "{second}: {conditions:?}");
        }
    }

    #[test]
    fn a_preferred_endpoint_returns_after_its_probation() {
        let mut selection = EndpointSelection::new(2, AFTER);
        let mut now = 0;
        // Each time it fails soon after its return, its probation doubles.
        for probation in [30, 60, 120] {
            let left = selection.update(&[Broken, Sound], at(now));
            assert_eq!(left, Some(Switch { from: 0, to: 1 }));
            now += 5;
            assert_eq!(selection.update(&[Sound, Sound], at(now)), None);
            now += probation - 1;
            assert_eq!(
                selection.update(&[Sound, Sound], at(now)),
                None,
                "{probation}"
            );
            now += 1;
            let back = selection.update(&[Sound, Sound], at(now));
            assert_eq!(back, Some(Switch { from: 1, to: 0 }));
            now += 1;
        }
        // After a long time its probation is as at first.
        now += 10_000;
        selection.update(&[Broken, Sound], at(now));
        selection.update(&[Sound, Sound], at(now + 1));
        assert!(selection.update(&[Sound, Sound], at(now + 31)).is_some());
        // A failure during probation starts it anew.
        selection.update(&[Broken, Sound], at(now + 1000));
        selection.update(&[Sound, Sound], at(now + 1001));
        selection.update(&[Wrong, Sound], at(now + 1030));
        selection.update(&[Sound, Sound], at(now + 1031));
        assert_eq!(selection.update(&[Sound, Sound], at(now + 1060)), None);
    }

    #[test]
    fn history_outlives_a_change_of_the_list() {
        let mut selection = EndpointSelection::new(2, AFTER);
        selection.update(&[Broken, Sound], at(0));
        selection.update(&[Sound, Sound], at(1));
        let mut more = selection.next(&[Some(0), Some(1), None], AFTER);
        assert_eq!(more.selected(), 1);
        assert_eq!(more.update(&[Sound; 3], at(30)), None);
        let back = more.update(&[Sound; 3], at(31));
        assert_eq!(back, Some(Switch { from: 1, to: 0 }));
        let selected = |old: &[_]| selection.next(old, AFTER).selected();
        assert_eq!(selected(&[Some(1), Some(0)]), 0);
        assert_eq!(selected(&[Some(0)]), 0, "the selected one is gone");
        assert_eq!(
            selected(&[None, Some(0), Some(1)]),
            0,
            "another is preferred"
        );
        let preferred = EndpointSelection::new(2, AFTER);
        assert_eq!(
            preferred.next(&[Some(1), Some(0)], AFTER).selected(),
            0,
            "too"
        );
    }

    #[test]
    fn a_retry_goes_to_an_untried_endpoint() {
        let selection = EndpointSelection::new(3, AFTER);
        let other =
            |conditions: [Condition; 3], tried: &[usize]| selection.other(&conditions, tried);
        assert_eq!(other([Sound, Lagging, Sound], &[0]), Some(2));
        assert_eq!(other([Sound, Lagging, Broken], &[0]), Some(1));
        assert_eq!(other([Sound, Retired, Broken], &[0]), None);
        assert_eq!(other([Sound, Sound, Sound], &[0, 1, 2]), None);
        assert_eq!(other([Sound, Sound, Sound], &[]), Some(0));
    }

    proptest! {
        /// The selected endpoint is never in a worse condition than another, and none
        /// returns that was not healthy for its whole probation.
        #[test]
        fn no_endpoint_is_selected_while_a_better_one_exists(
            steps in proptest::collection::vec((proptest::collection::vec(0..Condition::ALL.len(), 3), 0_u64..20), 1..100),
        ) {
            let mut selection = EndpointSelection::new(3, AFTER);
            let mut now = 0;
            let mut sound = [None; 3];
            for (conditions, pause) in steps {
                now += pause;
                let conditions: Vec<_> = conditions.iter().map(|at| Condition::ALL[*at]).collect();
                for (sound, condition) in sound.iter_mut().zip(&conditions) {
                    *sound = (*condition == Sound).then(|| sound.unwrap_or(now));
                }
                let before = selection.selected();
                let switch = selection.update(&conditions, at(now));
                let best = conditions.iter().min().unwrap();
                prop_assert!(conditions[selection.selected()] == *best);
                if let Some(Switch { from, to }) = switch {
                    prop_assert!(from == before && to == selection.selected());
                    let forced = conditions[from] > conditions[to];
                    let proved = sound[to].is_some_and(|since| now - since >= 30);
                    prop_assert!(forced || proved);
                }
            }
        }
    }
}
