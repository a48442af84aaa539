//! Purges and removals from before the purge log could be opened.

use super::tier::Tier;
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::portable::purge::LoggedPurge;

/// The most that are remembered, and the most bytes of their texts.
const MOST: usize = 16_384;
const MOST_BYTES: usize = 4 << 20;

/// What is to be recorded, in the order in which it came.
#[derive(Debug, Default)]
pub(super) struct PurgeBacklog {
    records: Vec<Waiting>,
    bytes: usize,
    /// Whether there were more than are remembered.
    is_incomplete: bool,
    /// The number of the last purge, and that of the next removal.
    position: (u64, u64),
    /// How many configurations there were.
    configurations: usize,
}

#[derive(Debug)]
enum Waiting {
    Purge(u64, Purge),
    Removal(u64, Box<[u8]>),
}

impl PurgeBacklog {
    pub(super) fn is_empty(&self) -> bool {
        self.position == (0, 0)
    }

    /// Notes that there is another configuration, in which numbers of tips may mean others.
    pub(super) fn note_configuration(&mut self) {
        self.configurations += 1;
    }

    pub(super) fn purge(&mut self, number: u64, purge: &Purge) {
        self.position.0 = number;
        let weight = LoggedPurge::new(purge, None, None).weight();
        self.add(weight, || Waiting::Purge(number, purge.clone()));
    }

    pub(super) fn remove(&mut self, number: u64, key: &[u8]) {
        self.position.1 = number.saturating_add(1);
        self.add(key.len(), || Waiting::Removal(number, key.into()));
    }

    fn add(&mut self, bytes: usize, record: impl FnOnce() -> Waiting) {
        self.bytes += bytes;
        self.is_incomplete |= self.records.len() >= MOST || self.bytes > MOST_BYTES;
        match self.is_incomplete {
            true => self.records = Vec::new(),
            false => self.records.push(record()),
        }
    }

    /// Records all in the tier's log. What cannot be made all that was stored absent.
    pub(super) fn hand_over(self, tier: &Tier) {
        let is_lost = self.is_incomplete || self.records.iter().any(|one| one.is_unknown_to(tier));
        if is_lost {
            return tier.discard_before(self.position);
        }
        for record in self.records {
            match record {
                Waiting::Purge(number, Purge::Heights { from, to, .. })
                    if self.configurations > 1 =>
                {
                    tier.purge(
                        number,
                        &Purge::Heights {
                            tip: None,
                            from,
                            to,
                        },
                    );
                }
                Waiting::Purge(number, purge) => tier.purge(number, &purge),
                Waiting::Removal(number, key) => tier.remove(number, &key),
            }
        }
    }
}

impl Waiting {
    /// Whether it is the removal of a key whose route there is no longer.
    fn is_unknown_to(&self, tier: &Tier) -> bool {
        match self {
            Self::Purge(..) => false,
            Self::Removal(_, key) => !tier.knows_route_of(key),
        }
    }
}
