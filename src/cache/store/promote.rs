//! Responses that come back from disk.

use std::sync::Arc;

use moka::ops::compute::Op;

use super::{Entry, Store, Variants};
use crate::cache::key::Key;
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::stored::{Attachment, Stored};

/// What was read for a key. It was checked against all purges and removals up to a
/// position, which was taken before.
pub(crate) enum Promoted<A> {
    /// A response.
    One(Arc<Stored<A>>),
    /// The variants of a target, newest last.
    Variants(Variants),
}

impl<A> From<Entry<A>> for Promoted<A> {
    fn from(entry: Entry<A>) -> Self {
        match entry {
            Entry::One(stored) => Self::One(stored),
            Entry::Variants(variants, _) => Self::Variants(variants),
        }
    }
}

impl<A: Attachment> Store<A> {
    /// Stores what was read for a key, unless something is stored there already, which is
    /// newer. Returns the one that may be used; none if the key was removed, or what was
    /// read was purged, since it was checked.
    pub(crate) fn promote(
        &self,
        key: &Key,
        promoted: Promoted<A>,
        checked: PurgeSequence,
    ) -> Option<Promoted<A>> {
        let bytes = key.as_bytes();
        let (mut weight, mut usable) = (0, None);
        self.cache.entry(bytes.into()).and_compute_with(|entry| {
            let present = entry.map(moka::Entry::into_value);
            if let Some(present) = present.filter(|entry| !self.entry_was_purged(bytes, entry)) {
                usable = Some(present.into());
                return Op::Nop;
            }
            let entry = match promoted {
                Promoted::One(stored) => Entry::One(stored),
                Promoted::Variants(variants) => {
                    let number = CheckedSequence::at(checked.purge);
                    Entry::Variants(variants, Arc::new(number))
                }
            };
            if self.is_removed(key, checked) || self.entry_was_purged(bytes, &entry) {
                return Op::Nop;
            }
            usable = Some(entry.clone().into());
            if !self.has_room(bytes, &entry) {
                return Op::Nop;
            }
            weight = entry.weight(bytes);
            Op::Put(entry)
        });
        if weight > 0 {
            self.keep_bound(weight);
        }
        usable
    }

    /// Whether a response that was read for a key, and checked up to a position, was
    /// neither purged nor removed since. To be called before it is used, since a request
    /// may have joined a read that began earlier.
    pub(crate) fn still_holds(
        &self,
        key: &Key,
        stored: &Stored<A>,
        checked: PurgeSequence,
    ) -> bool {
        !self.response_was_purged(key, stored) && !self.is_removed(key, checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::purge::Purge;

    fn key(target: &str) -> Key {
        Key::of(3, target)
    }

    fn stored(body: &'static str) -> Arc<Stored<()>> {
        Arc::new(Stored::of_tests(body, ()))
    }

    #[test]
    fn what_was_read_is_stored_where_nothing_newer_is() {
        let store = Store::new(1 << 20);
        let (old, new) = (stored("old"), stored("new"));
        let before = store.sequence();
        let promote = |stored: &Arc<Stored<()>>| match store.promote(
            &key("/a"),
            Promoted::One(stored.clone()),
            before,
        ) {
            Some(Promoted::One(usable)) => usable.body.clone(),
            Some(Promoted::Variants(_)) | None => panic!("it may be used"),
        };
        assert_eq!(promote(&old), "old");
        assert_eq!(store.get(&key("/a")).unwrap().body, "old");
        store.insert(key("/a"), new);
        assert_eq!(promote(&old), "new");
        assert_eq!(store.get(&key("/a")).unwrap().body, "new");
    }

    #[test]
    fn what_was_removed_or_purged_while_it_was_read_is_not_stored() {
        let store = Store::new(1 << 20);
        let before = store.sequence();
        let read = stored("old");
        assert!(store.still_holds(&key("/a"), &read, before));
        store.remove(&key("/a"));
        assert!(!store.still_holds(&key("/a"), &read, before));
        let promote = |before| store.promote(&key("/a"), Promoted::One(stored("old")), before);
        assert!(promote(before).is_none());
        assert!(store.get(&key("/a")).is_none());
        let before = store.sequence();
        assert!(store.still_holds(&key("/a"), &read, before));
        store.purge(Purge::Route(key("/a").route()));
        assert!(!store.still_holds(&key("/a"), &read, before));
        assert!(promote(before).is_none());
        assert!(store.get(&key("/a")).is_none());
    }
}
