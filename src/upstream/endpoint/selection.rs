//! Which of several endpoints is asked. Pure: `now` is an argument.
//!
//! They stand in the order of preference. The one that is asked stays the one
//! for as long as it is sound, since each change of endpoint may look like a
//! change of the chain: a preferred one is returned to only after it has been
//! sound for a while, which is twice as long each time it was left soon again.
//!
//! Invariants: an endpoint is not asked while a sounder one is there; between
//! two returns to an endpoint it has been sound for the whole of its probation.
//!
//! Deliberately absent: how it is known in what condition an endpoint is
//! (`upstream::endpoint`).

use std::time::Duration;

use crate::clock::Moment;

/// In what condition an endpoint is; the better comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// Nothing speaks against it.
    Sound,
    /// It lags behind another by too many blocks.
    Lagging,
    /// It says a height that the chain cannot have, far above the others.
    Implausible,
    /// It has failed, and a few requests see whether it is well again.
    Doubtful,
    /// It takes none of the keys for longer than a request waits.
    Refusing,
    /// It goes on failing, and is left alone.
    Broken,
    /// It has said that it serves no longer.
    Retired,
}

impl Condition {
    /// The words for it.
    pub const ALL: [Self; 7] = [
        Self::Sound,
        Self::Lagging,
        Self::Implausible,
        Self::Doubtful,
        Self::Refusing,
        Self::Broken,
        Self::Retired,
    ];

    /// Its word in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Lagging => "lagging",
            Self::Implausible => "implausible",
            Self::Doubtful => "doubtful",
            Self::Refusing => "refusing",
            Self::Broken => "broken",
            Self::Retired => "retired",
        }
    }
}

/// Which endpoint is asked.
#[derive(Clone, Debug)]
pub struct EndpointSelection {
    present: usize,
    /// How long a preferred endpoint has to be sound before it is returned to.
    return_after: Duration,
    records: Vec<Record>,
}

/// What is remembered of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Since when it has been sound.
    sound_since: Option<Moment>,
    /// When it was chosen the last time.
    chosen: Option<Moment>,
    /// How often it was left soon after it had been returned to.
    flaps: u32,
}

/// That another endpoint is asked from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Which was asked before.
    pub from: usize,
    /// Which is asked now.
    pub to: usize,
}

/// A probation is doubled so often at the most.
const MOST_FLAPS: u32 = 5;
/// An endpoint that has stood for so many probations has flapped no more.
const STEADY: u32 = 4;

impl EndpointSelection {
    /// The first of so many.
    pub fn new(endpoints: usize, return_after: Duration) -> Self {
        Self {
            present: 0,
            return_after,
            records: vec![Record::default(); endpoints],
        }
    }

    /// The choice among others, of which each says at which place it stood here,
    /// if it did: what is known of them stays known, and the one that is asked
    /// stays so, unless one is preferred to it now that was not before.
    #[must_use]
    pub fn next(&self, places: &[Option<usize>], return_after: Duration) -> Self {
        let known = |place: &Option<usize>| {
            let record = place.and_then(|place| self.records.get(place));
            record.copied().unwrap_or_default()
        };
        let present = places.iter().position(|place| *place == Some(self.present));
        let is_as_before = |place: &Option<usize>| place.is_some_and(|at| at < self.present);
        let present = present.filter(|present| places[..*present].iter().all(is_as_before));
        Self {
            present: present.unwrap_or(0),
            return_after,
            records: places.iter().map(known).collect(),
        }
    }

    /// The one that is asked.
    pub fn present(&self) -> usize {
        self.present
    }

    /// Looks at the conditions anew, one for each endpoint, and says whether
    /// another is asked from now on.
    pub fn look(&mut self, conditions: &[Condition], now: Moment) -> Option<Switch> {
        for (record, condition) in self.records.iter_mut().zip(conditions) {
            record.sound_since = match condition {
                Condition::Sound => Some(record.sound_since.unwrap_or(now)),
                Condition::Lagging
                | Condition::Implausible
                | Condition::Doubtful
                | Condition::Refusing
                | Condition::Broken
                | Condition::Retired => None,
            };
        }
        let own = conditions.get(self.present).copied();
        let own = own.unwrap_or(Condition::Retired);
        let best = (0..conditions.len()).min_by_key(|at| (conditions[*at], *at));
        let to = match best {
            Some(best) if conditions[best] < own => best,
            Some(_) | None if own == Condition::Sound => (0..self.present)
                .find(|at| self.has_proved_itself(*at, now))
                .unwrap_or(self.present),
            Some(_) | None => self.present,
        };
        (to != self.present).then(|| self.switch(to, now))
    }

    /// The best endpoint beside those that a request has been to, if it may be
    /// asked at all.
    pub fn another(&self, conditions: &[Condition], been: &[usize]) -> Option<usize> {
        let others = (0..conditions.len()).filter(|at| !been.contains(at));
        let usable = others.filter(|at| conditions[*at] < Condition::Refusing);
        usable.min_by_key(|at| (conditions[*at], *at != self.present, *at))
    }

    fn switch(&mut self, to: usize, now: Moment) -> Switch {
        let from = self.present;
        let probation = self.probation(from);
        if let Some(record) = self.records.get_mut(from)
            && let Some(chosen) = record.chosen
        {
            // It was returned to too soon, or has been steady for long.
            let stood = now.since(chosen);
            if stood < probation {
                record.flaps = (record.flaps + 1).min(MOST_FLAPS);
            } else if stood > probation * STEADY {
                record.flaps = 0;
            }
        }
        if let Some(record) = self.records.get_mut(to) {
            record.chosen = Some(now);
        }
        self.present = to;
        Switch { from, to }
    }

    fn has_proved_itself(&self, at: usize, now: Moment) -> bool {
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
    use Condition::{Broken, Doubtful, Lagging, Retired, Sound};
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn the_sounder_is_asked_and_stays() {
        let mut choice = EndpointSelection::new(3, AFTER);
        let rows = [
            (0, [Sound, Sound, Sound], 0),
            (1, [Lagging, Sound, Sound], 1),
            (2, [Sound, Sound, Sound], 1),
            (3, [Sound, Broken, Sound], 0),
            (4, [Broken, Broken, Doubtful], 2),
            (5, [Retired, Broken, Broken], 2),
            (6, [Broken, Doubtful, Broken], 1),
            (7, [Retired, Retired, Retired], 1),
            (8, [Broken, Broken, Retired], 1),
        ];
        for (second, conditions, expected) in rows {
            choice.look(&conditions, at(second));
            assert_eq!(choice.present(), expected, "{second}: {conditions:?}");
        }
    }

    #[test]
    fn a_preferred_one_is_returned_to_when_it_has_proved_itself() {
        let mut choice = EndpointSelection::new(2, AFTER);
        let mut now = 0;
        // Each time it is left soon again its probation is twice as long.
        for probation in [30, 60, 120] {
            let left = choice.look(&[Broken, Sound], at(now));
            assert_eq!(left, Some(Switch { from: 0, to: 1 }));
            now += 5;
            assert_eq!(choice.look(&[Sound, Sound], at(now)), None);
            now += probation - 1;
            assert_eq!(choice.look(&[Sound, Sound], at(now)), None, "{probation}");
            now += 1;
            let back = choice.look(&[Sound, Sound], at(now));
            assert_eq!(back, Some(Switch { from: 1, to: 0 }));
            now += 1;
        }
        // One that has stood for long is trusted as at first.
        now += 10_000;
        choice.look(&[Broken, Sound], at(now));
        choice.look(&[Sound, Sound], at(now + 1));
        assert!(choice.look(&[Sound, Sound], at(now + 31)).is_some());
        // What breaks in its probation begins it anew.
        choice.look(&[Broken, Sound], at(now + 1000));
        choice.look(&[Sound, Sound], at(now + 1001));
        choice.look(&[Doubtful, Sound], at(now + 1030));
        choice.look(&[Sound, Sound], at(now + 1031));
        assert_eq!(choice.look(&[Sound, Sound], at(now + 1060)), None);
    }

    #[test]
    fn what_is_known_outlives_a_change_of_the_list() {
        let mut choice = EndpointSelection::new(2, AFTER);
        choice.look(&[Broken, Sound], at(0));
        choice.look(&[Sound, Sound], at(1));
        let mut more = choice.next(&[Some(0), Some(1), None], AFTER);
        assert_eq!(more.present(), 1);
        assert_eq!(more.look(&[Sound; 3], at(30)), None);
        let back = more.look(&[Sound; 3], at(31));
        assert_eq!(back, Some(Switch { from: 1, to: 0 }));
        let present = |places: &[_]| choice.next(places, AFTER).present();
        assert_eq!(present(&[Some(1), Some(0)]), 0);
        assert_eq!(present(&[Some(0)]), 0, "the one that was asked is gone");
        assert_eq!(
            present(&[None, Some(0), Some(1)]),
            0,
            "another is preferred"
        );
        let other = EndpointSelection::new(2, AFTER);
        assert_eq!(other.next(&[Some(1), Some(0)], AFTER).present(), 0, "too");
    }

    #[test]
    fn a_request_goes_on_where_it_has_not_been() {
        let choice = EndpointSelection::new(3, AFTER);
        let another =
            |conditions: [Condition; 3], been: &[usize]| choice.another(&conditions, been);
        assert_eq!(another([Sound, Lagging, Sound], &[0]), Some(2));
        assert_eq!(another([Sound, Lagging, Broken], &[0]), Some(1));
        assert_eq!(another([Sound, Retired, Broken], &[0]), None);
        assert_eq!(another([Sound, Sound, Sound], &[0, 1, 2]), None);
        assert_eq!(another([Sound, Sound, Sound], &[]), Some(0));
    }

    proptest! {
        /// The one that is asked is never worse than another, and none is
        /// returned to that was not sound for the whole of its probation.
        #[test]
        fn none_is_asked_while_a_sounder_one_is_there(
            steps in proptest::collection::vec((proptest::collection::vec(0..Condition::ALL.len(), 3), 0_u64..20), 1..100),
        ) {
            let mut choice = EndpointSelection::new(3, AFTER);
            let mut now = 0;
            let mut sound = [None; 3];
            for (conditions, pause) in steps {
                now += pause;
                let conditions: Vec<_> = conditions.iter().map(|at| Condition::ALL[*at]).collect();
                for (sound, condition) in sound.iter_mut().zip(&conditions) {
                    *sound = (*condition == Sound).then(|| sound.unwrap_or(now));
                }
                let before = choice.present();
                let switch = choice.look(&conditions, at(now));
                let best = conditions.iter().min().unwrap();
                prop_assert!(conditions[choice.present()] == *best);
                if let Some(Switch { from, to }) = switch {
                    prop_assert!(from == before && to == choice.present());
                    let forced = conditions[from] > conditions[to];
                    let proved = sound[to].is_some_and(|since| now - since >= 30);
                    prop_assert!(forced || proved);
                }
            }
        }
    }
}
