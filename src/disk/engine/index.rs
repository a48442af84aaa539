//! Where the records of one segment are: by a fingerprint of the key, which are its
//! first eight bytes. Keys are digests, so two of them hardly ever share one; if they
//! do, the later put displaces the earlier one, and reading verifies the whole key.

use std::collections::HashMap;

/// Marks a place whose record was removed or replaced. Segments are too short for
/// offsets to have this bit.
const GONE: u32 = 1 << 31;

/// The index of one segment: 12 bytes an entry once the segment is full.
pub(super) struct Index {
    places: Places,
    /// How many records are not gone.
    live: usize,
}

enum Places {
    /// Of the segment that is written to.
    Growing(HashMap<u64, u32>),
    /// Fingerprints in order, and the offset for each.
    Sorted(Box<[u64]>, Box<[u32]>),
}

impl Default for Index {
    fn default() -> Self {
        Self {
            places: Places::Growing(HashMap::new()),
            live: 0,
        }
    }
}

impl Index {
    /// An index as it is stored. `None` if it is not in order.
    pub(super) fn sorted(fingerprints: Vec<u64>, offsets: Vec<u32>) -> Option<Self> {
        let in_order = fingerprints.is_sorted_by(|one, next| one < next);
        let plain = offsets.iter().all(|offset| offset & GONE == 0);
        (in_order && plain && fingerprints.len() == offsets.len()).then(|| Self {
            live: offsets.len(),
            places: Places::Sorted(fingerprints.into(), offsets.into()),
        })
    }

    /// The offset of a record. `Some(None)`: it is gone, and so are all older ones.
    pub(super) fn find(&self, fingerprint: u64) -> Option<Option<u32>> {
        let offset = match &self.places {
            Places::Growing(places) => *places.get(&fingerprint)?,
            Places::Sorted(fingerprints, offsets) => {
                offsets[fingerprints.binary_search(&fingerprint).ok()?]
            }
        };
        Some((offset & GONE == 0).then_some(offset))
    }

    /// Adds a record; returns the offset of the one that it replaces.
    pub(super) fn insert(&mut self, fingerprint: u64, offset: u32) -> Option<u32> {
        let Places::Growing(places) = &mut self.places else {
            return None;
        };
        let replaced = places.insert(fingerprint, offset);
        let replaced = replaced.filter(|offset| offset & GONE == 0);
        if replaced.is_none() {
            self.live += 1;
        }
        replaced
    }

    /// Marks a record as gone; returns its offset if it was not.
    pub(super) fn remove(&mut self, fingerprint: u64) -> Option<u32> {
        let place = match &mut self.places {
            Places::Growing(places) => places.get_mut(&fingerprint)?,
            Places::Sorted(fingerprints, offsets) => {
                &mut offsets[fingerprints.binary_search(&fingerprint).ok()?]
            }
        };
        let offset = *place;
        if offset & GONE != 0 {
            return None;
        }
        *place |= GONE;
        self.live -= 1;
        Some(offset)
    }

    /// Notes that a record which was found on disk is gone: it hides all older ones.
    pub(super) fn insert_gone(&mut self, fingerprint: u64, offset: u32) {
        self.insert(fingerprint, offset);
        self.remove(fingerprint);
    }

    /// The fingerprints and offsets of what is not gone, in order.
    pub(super) fn in_order(&self) -> Vec<(u64, u32)> {
        let mut entries: Vec<(u64, u32)> = match &self.places {
            Places::Growing(places) => places.iter().map(|(at, offset)| (*at, *offset)).collect(),
            Places::Sorted(fingerprints, offsets) => {
                let fingerprints = fingerprints.iter().copied();
                fingerprints.zip(offsets.iter().copied()).collect()
            }
        };
        entries.retain(|(_, offset)| offset & GONE == 0);
        entries.sort_unstable();
        entries
    }

    /// How many records are not gone.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// How many records there are, gone ones included.
    pub(super) fn len(&self) -> usize {
        match &self.places {
            Places::Growing(places) => places.len(),
            Places::Sorted(fingerprints, _) => fingerprints.len(),
        }
    }
}
