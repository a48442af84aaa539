//! What clients request: groups of keys with their share of the load, and the keys
//! of each group that are simulated.
//!
//! The most popular keys of a group are simulated one by one. Of the others, which
//! come by the million, some of each octave of popularity are simulated, and each
//! stands for its part of the octave. Shares add up to the whole load exactly.

use crate::timeline::{FIRST_TIP, Timeline};

/// The share of requests, the number of keys and the exponent of Zipf's law.
struct Group {
    kind: Kind,
    share: f64,
    keys: usize,
    exponent: f64,
    bytes: f64,
}

/// Classes of answers, in the order of [`Kind::class`].
pub(crate) const CLASSES: [&str; 4] = ["live", "recent", "final", "absent"];

/// A number for each of them.
pub(crate) type ByClass = [f64; CLASSES.len()];

/// What a key stands for, as far as its freshness depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A token's details: class live.
    Token,
    /// A window of a block among the newest: class recent, then final.
    Window { height: u32 },
    /// A window of an old block, or a transaction: class final.
    Final,
    /// What there is not: class absent.
    Absent,
}

impl Kind {
    /// The place of its class in [`CLASSES`].
    pub(crate) fn class(self) -> usize {
        match self {
            Self::Token => 0,
            Self::Window { .. } => 1,
            Self::Final => 2,
            Self::Absent => 3,
        }
    }
}

/// Popularity of recent blocks falls with their age by this exponent of Zipf's law.
const RECENT_EXPONENT: f64 = 1.1;
/// Older blocks count as old.
pub(crate) const RECENT: usize = 200;
/// The share of requests for the newest block's first window (front pages), and for
/// recent blocks, by window.
const FRONT: f64 = 0.12;
const RECENT_SHARE: f64 = 0.23;
const WINDOWS: [f64; 4] = [0.6, 0.2, 0.12, 0.08];
/// Bytes of a stored window of 60 items.
const WINDOW_BYTES: f64 = 40_000.0;

const GROUPS: [Group; 4] = [
    Group {
        kind: Kind::Token,
        share: 0.25,
        keys: 20_000,
        exponent: 1.0,
        bytes: 1_300.0,
    },
    Group {
        kind: Kind::Final,
        share: 0.15,
        keys: 320_000,
        exponent: 1.0,
        bytes: WINDOW_BYTES,
    },
    Group {
        kind: Kind::Final,
        share: 0.20,
        keys: 5_000_000,
        exponent: 1.0,
        bytes: 3_000.0,
    },
    Group {
        kind: Kind::Absent,
        share: 0.05,
        keys: 200,
        exponent: 1.0,
        bytes: 500.0,
    },
];

/// So many of a group's most popular keys are simulated one by one. Of each octave after
/// them it is so many at least, and one of so many.
const FIRST: usize = 64;
const EACH_OCTAVE: usize = 12;
const ONE_OF: usize = 1_000;

/// A simulated key.
pub(crate) struct Key {
    pub(crate) kind: Kind,
    /// How many keys it stands for.
    pub(crate) weight: f64,
    pub(crate) bytes: f64,
    /// Its share of the load between the bounds of the timeline; one alone if it is
    /// the same in all.
    pub(crate) shares: Vec<f64>,
}

impl Key {
    /// Its share of the load after so many blocks.
    pub(crate) fn share(&self, blocks: usize) -> f64 {
        match self.shares.as_slice() {
            [same] => *same,
            shares => shares[blocks],
        }
    }

    /// Its mean share while it is requested.
    pub(crate) fn usual_share(&self) -> f64 {
        let asked = self.shares.iter().filter(|share| **share > 0.0);
        let count = asked.clone().count().max(1);
        asked.sum::<f64>() / count as f64
    }
}

/// All simulated keys.
pub(crate) fn keys(timeline: &Timeline) -> Vec<Key> {
    let mut keys = Vec::new();
    for group in &GROUPS {
        group.add(&mut keys);
    }
    add_windows(timeline, &mut keys);
    keys
}

/// How many tokens there are; they are popular by Zipf's law with exponent 1.
pub(crate) fn tokens() -> usize {
    let is_token = |group: &&Group| group.kind == Kind::Token;
    GROUPS.iter().filter(is_token).map(|group| group.keys).sum()
}

/// The share of requests for one of the kinds that have groups.
pub(crate) fn share_of(kind: Kind) -> f64 {
    let of_kind = |group: &&Group| group.kind == kind;
    GROUPS.iter().filter(of_kind).map(|group| group.share).sum()
}

impl Group {
    fn add(&self, keys: &mut Vec<Key>) {
        let weight = |rank: usize| ((rank + 1) as f64).powf(-self.exponent);
        let sum: f64 = (0..self.keys).map(weight).sum();
        let mut add = |count: f64, share: f64| {
            keys.push(Key {
                kind: self.kind,
                weight: count,
                bytes: self.bytes,
                shares: vec![self.share * share / sum],
            });
        };
        for rank in 0..FIRST.min(self.keys) {
            add(1.0, weight(rank));
        }
        let mut from = FIRST;
        while from < self.keys {
            let to = (from * 2).min(self.keys);
            let parts = ((to - from) / ONE_OF).max(EACH_OCTAVE);
            let step = (to - from) as f64 / parts as f64;
            for part in 0..parts {
                // Each stands for the keys of its part, with their mean popularity.
                let first = from + (part as f64 * step) as usize;
                let last = from + ((part + 1) as f64 * step) as usize;
                let count = (last - first) as f64;
                let whole: f64 = (first..last).map(weight).sum();
                add(count, whole / count);
            }
            from = to;
        }
    }
}

fn add_windows(timeline: &Timeline, keys: &mut Vec<Key>) {
    let by_age: Vec<_> = (1..=RECENT)
        .map(|age| (age as f64).powf(-RECENT_EXPONENT))
        .collect();
    let sum: f64 = by_age.iter().sum();
    let periods = timeline.blocks.len() + 1;
    let last = timeline.tip(timeline.blocks.len());
    for height in FIRST_TIP + 1 - RECENT as u32..=last {
        for (window, part) in WINDOWS.into_iter().enumerate() {
            let share = |blocks: usize| {
                let age = timeline.tip(blocks).checked_sub(height);
                let Some(age) = age.map(|age| age as usize) else {
                    return 0.0;
                };
                let front = if age == 0 && window == 0 { FRONT } else { 0.0 };
                let recent = by_age.get(age).copied().unwrap_or_default();
                front + RECENT_SHARE * part * recent / sum
            };
            keys.push(Key {
                kind: Kind::Window { height },
                weight: 1.0,
                bytes: WINDOW_BYTES,
                shares: (0..periods).map(share).collect(),
            });
        }
    }
}
