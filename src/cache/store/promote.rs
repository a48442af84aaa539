//! Responses that come back from disk.

use std::sync::Arc;

use moka::ops::compute::Op;

use super::{Entry, Store};
use crate::cache::key::Key;
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::stored::{Attachment, Stored};
use crate::cache::variant::Variant;

/// What was read for a key. It was checked against all purges and removals up to a
/// position, which was taken before.
pub(crate) enum Promoted<A> {
    /// A response.
    One(Arc<Stored<A>>),
    /// The variants of a target, newest last.
    Variants(Vec<Arc<Variant>>),
}

impl<A: Attachment> Store<A> {
    /// Stores what was read for a key, unless something is stored there already, which is
    /// newer. Returns whether either may be used; not if the key was removed, or what was
    /// read was purged, since it was checked.
    pub(crate) fn promote(&self, key: &Key, promoted: Promoted<A>, checked: PurgeSequence) -> bool {
        let bytes = key.as_bytes();
        let (mut weight, mut is_usable) = (0, false);
        self.cache.entry(bytes.into()).and_compute_with(|entry| {
            let present = entry.map(moka::Entry::into_value);
            if present.is_some_and(|entry| !self.entry_was_purged(bytes, &entry)) {
                is_usable = true;
                return Op::Nop;
            }
            let entry = match promoted {
                Promoted::One(stored) => Entry::One(stored),
                Promoted::Variants(variants) => {
                    let number = CheckedSequence::at(checked.purge);
                    Entry::Variants(variants.into(), Arc::new(number))
                }
            };
            if self.is_removed(key, checked) || self.entry_was_purged(bytes, &entry) {
                return Op::Nop;
            }
            is_usable = true;
            if !self.has_room(bytes, &entry) {
                return Op::Nop;
            }
            weight = entry.weight(bytes);
            Op::Put(entry)
        });
        if weight > 0 {
            self.keep_bound(weight);
        }
        is_usable
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderValue, StatusCode};

    use super::*;
    use crate::cache::encodings::Encodings;
    use crate::cache::metadata::{ClientFreshness, Metadata};
    use crate::cache::purge::Purge;
    use crate::clock::Moment;

    fn key(target: &str) -> Key {
        let mut key = Key::begin(3);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    fn stored(body: &'static str) -> Arc<Stored<()>> {
        let content_type = HeaderValue::from_static("application/json");
        Arc::new(Stored {
            status: StatusCode::OK,
            body: body.into(),
            etag: HeaderValue::from_static("\"e\""),
            metadata: Metadata::of(content_type, ClientFreshness::Nothing),
            received: Moment::default(),
            lifetime: Duration::from_secs(9),
            took: Duration::ZERO,
            checked: CheckedSequence::default(),
            encodings: Encodings::default(),
            attached: (),
        })
    }

    #[test]
    fn what_was_read_is_stored_where_nothing_newer_is() {
        let store = Store::new(1 << 20);
        let (old, new) = (stored("old"), stored("new"));
        let before = store.sequence();
        let promote = |stored: &Arc<Stored<()>>| {
            store.promote(&key("/a"), Promoted::One(stored.clone()), before)
        };
        assert!(promote(&old));
        assert_eq!(store.get(&key("/a")).unwrap().body, "old");
        store.insert(key("/a"), new);
        assert!(promote(&old), "the newer one may be used");
        assert_eq!(store.get(&key("/a")).unwrap().body, "new");
    }

    #[test]
    fn what_was_removed_or_purged_while_it_was_read_is_not_stored() {
        let store = Store::new(1 << 20);
        let before = store.sequence();
        store.remove(&key("/a"));
        let promote = |before| store.promote(&key("/a"), Promoted::One(stored("old")), before);
        assert!(!promote(before));
        assert!(store.get(&key("/a")).is_none());
        let before = store.sequence();
        store.purge(Purge::Route(key("/a").route()));
        assert!(!promote(before));
        assert!(store.get(&key("/a")).is_none());
    }
}
