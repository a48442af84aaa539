//! What is remembered of the purges and removals.
//!
//! Removals, and purges of one key, are carried out: what is on disk under the key is
//! removed there. Once that is done, they can be forgotten without consequences for what
//! is on disk. Only what is still to be written and was checked before them is refused.

use std::collections::{HashMap, VecDeque};

use super::record::Record;
use super::{Checked, NO_KEY};
use crate::portable::digest::MeaningDigest;
use crate::portable::purge::LoggedPurge;

/// The most purges that are remembered.
pub(super) const MOST_PURGES: usize = 4096;
/// The most bytes of the remembered purges.
const MOST_PURGE_BYTES: usize = 1 << 20;
/// The most removed keys that are remembered.
pub(super) const MOST_REMOVALS: usize = 16_384;

/// What is remembered.
#[derive(Clone, Debug, Default)]
pub(super) struct PurgeRecords {
    /// Ascending.
    pub(super) purges: VecDeque<(u64, LoggedPurge)>,
    /// What is on disk and was last checked before this purge is absent.
    pub(super) purges_from: u64,
    pub(super) last_purge: u64,
    purge_bytes: usize,
    /// The last removal of each key.
    pub(super) removals: HashMap<[u8; 16], u64>,
    /// The same, ascending; with removals that a later one of the same key replaced.
    removed: VecDeque<(u64, [u8; 16])>,
    /// The same as for purges.
    pub(super) removals_from: u64,
    pub(super) next_removal: u64,
    /// Which are carried out.
    pub(super) carried_out: CarriedOut,
    /// Up to which any are forgotten.
    forgotten: CarriedOut,
    /// The routes that there were last.
    pub(super) routes: Vec<MeaningDigest>,
}

/// Up to where purges and removals are carried out, or forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::disk) struct CarriedOut {
    /// Purges of one key up to this number.
    pub(super) purge: u64,
    /// Removals below this number.
    pub(super) removal: u64,
}

/// A purge or removal of a key that is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) enum Due {
    Purge(u64),
    Removal(u64),
}

impl Due {
    /// Whether it applies to what was checked up to there.
    pub(in crate::disk) const fn applies_to(self, checked: Checked) -> bool {
        match self {
            Self::Purge(number) => checked.purge < number,
            Self::Removal(number) => checked.removal <= number,
        }
    }
}

impl PurgeRecords {
    /// None that are remembered: all before is absent.
    pub(super) fn begin(
        (last_purge, next_removal): (u64, u64),
        routes: Vec<MeaningDigest>,
    ) -> Self {
        let done = CarriedOut {
            purge: last_purge,
            removal: next_removal,
        };
        Self {
            last_purge,
            purges_from: last_purge,
            next_removal,
            removals_from: next_removal,
            carried_out: done,
            forgotten: done,
            routes,
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Purge(number, purge) => {
                self.last_purge = number;
                self.purge_bytes += purge.weight();
                self.purges.push_back((number, purge));
                while (self.purges.len() > MOST_PURGES || self.purge_bytes > MOST_PURGE_BYTES)
                    && let Some((forgotten, purge)) = self.purges.pop_front()
                {
                    self.purge_bytes -= purge.weight();
                    self.forgotten.purge = forgotten;
                    if purge.key().is_none() || self.carried_out.purge < forgotten {
                        self.purges_from = forgotten;
                    }
                }
            }
            Record::Routes(routes) => self.routes = routes,
            Record::Removal(number, key) => {
                self.next_removal = number.saturating_add(1);
                if key == NO_KEY {
                    return;
                }
                self.removals.insert(key, number);
                self.removed.push_back((number, key));
                if self.removed.len() > MOST_REMOVALS
                    && let Some((forgotten, key)) = self.removed.pop_front()
                    && self.removals.get(&key) == Some(&forgotten)
                {
                    self.removals.remove(&key);
                    self.forgotten.removal = forgotten.saturating_add(1);
                    if self.carried_out.removal <= forgotten {
                        self.removals_from = self.forgotten.removal;
                    }
                }
            }
            Record::CarriedOut(done) => {
                let own = &mut self.carried_out;
                own.purge = own.purge.max(done.purge);
                own.removal = own.removal.max(done.removal);
            }
        }
    }

    /// All records, in no order that matters.
    pub(super) fn iter(&self) -> impl Iterator<Item = Record> {
        let first = [
            Record::Routes(self.routes.clone()),
            Record::CarriedOut(self.carried_out),
        ];
        let purges = self.purges.iter();
        let purges = purges.map(|(number, purge)| Record::Purge(*number, purge.clone()));
        let removals = self.removed.iter().filter(|one| self.is_last(one));
        let removals = removals.map(|(number, key)| Record::Removal(*number, *key));
        first.into_iter().chain(purges).chain(removals)
    }

    fn is_last(&self, (number, key): &(u64, [u8; 16])) -> bool {
        self.removals.get(key) == Some(number)
    }

    /// Whether what was kept under a key was not removed since, and no purge since is
    /// forgotten.
    pub(super) fn may_hold(&self, checked: Checked, key: &[u8; 16]) -> bool {
        let removed = self.removals.get(key);
        self.purges_from <= checked.purge
            && checked.purge <= self.last_purge
            && self.removals_from <= checked.removal
            && checked.removal <= self.next_removal
            && removed.is_none_or(|number| *number < checked.removal)
    }

    /// Whether the same holds for what is to be kept from now on.
    pub(super) fn may_keep(&self, checked: Checked, key: &[u8; 16]) -> bool {
        self.forgotten.purge <= checked.purge
            && self.forgotten.removal <= checked.removal
            && self.may_hold(checked, key)
    }

    /// The lowest height of a tip that was purged after a purge: 0 if that is forgotten.
    pub(super) fn reorg_since(&self, purge: u64, tip: MeaningDigest) -> Option<u32> {
        if purge < self.purges_from || self.last_purge < purge {
            return Some(0);
        }
        let later = self.purges.iter().filter(|(number, _)| purge < *number);
        later.filter_map(|(_, later)| later.lowest_of(tip)).min()
    }

    /// The purges and removals of keys that are to be carried out, and up to where they
    /// are.
    pub(super) fn due(&self) -> (Vec<([u8; 16], Due)>, CarriedOut) {
        let removals = self.removed.iter().rev();
        let removals = removals.take_while(|(number, _)| self.carried_out.removal <= *number);
        let removals = removals.filter(|one| self.is_last(one));
        let removals = removals.map(|(number, key)| (*key, Due::Removal(*number)));
        let purges = self.purges.iter().rev();
        let purges = purges.take_while(|(number, _)| self.carried_out.purge < *number);
        let purges = purges.filter_map(|(number, purge)| Some((purge.key()?, Due::Purge(*number))));
        let to = CarriedOut {
            purge: self.last_purge,
            removal: self.next_removal,
        };
        (removals.chain(purges).collect(), to)
    }
}
