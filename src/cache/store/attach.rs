//! Encoded bodies of stored responses. What is attached counts against the store's
//! bound, so moka is made to weigh the entry anew.

use std::sync::Arc;

use bytes::Bytes;
use moka::ops::compute::Op;

use super::{Entry, Store};
use crate::cache::coding::Coding;
use crate::cache::encodings::{Encoded, EncodingSlots};
use crate::cache::key::Key;
use crate::cache::stored::Attachment;

impl<A: Attachment> Entry<A> {
    /// The body whose encoded forms these are.
    fn body_of(&self, slots: &Arc<EncodingSlots>) -> Option<Bytes> {
        match self {
            Self::One(stored) => {
                let found = stored.encodings.are(slots);
                found.then(|| stored.body.clone())
            }
            Self::Variants(variants, _) => {
                let found = variants.iter().find(|v| v.encodings.are(slots));
                found.map(|variant| variant.body.clone())
            }
        }
    }

    /// Whether another entry may have taken over encoded bodies of this one.
    fn has_encodings(&self) -> bool {
        match self {
            Self::One(stored) => stored.encodings.slots().is_some(),
            Self::Variants(variants, _) => variants.iter().any(|v| v.encodings.slots().is_some()),
        }
    }
}

impl<A: Attachment> Store<A> {
    /// The body under a key whose encoded forms these are, unless it was replaced,
    /// purged or evicted.
    pub(crate) fn body_of(&self, key: &Key, slots: &Arc<EncodingSlots>) -> Option<Bytes> {
        self.entry(key)?.body_of(slots)
    }

    /// Attaches the encoded form of a body to the stored response that has it, unless
    /// that was replaced, purged or evicted meanwhile: `None` then. One that does not
    /// fit beside the body is not worthwhile. Returns what was attached.
    pub(crate) fn attach(
        &self,
        key: &Key,
        slots: &Arc<EncodingSlots>,
        coding: Coding,
        encoded: Encoded,
    ) -> Option<Encoded> {
        let bytes = key.as_bytes();
        let mut attached = None;
        self.cache.entry(bytes.into()).and_compute_with(|entry| {
            let Some(entry) = entry.map(moka::Entry::into_value) else {
                return Op::Nop;
            };
            // A purge before the last check, or after it, applies to the response, and
            // with it to all that is attached.
            if entry.body_of(slots).is_none() || self.entry_was_purged(bytes, &entry) {
                return Op::Nop;
            }
            let fits = match &encoded {
                Encoded::Body(body) => {
                    u64::from(entry.weight(bytes)) + body.len() as u64 <= self.max_body()
                }
                Encoded::NotWorthwhile => true,
            };
            let encoded = match fits {
                true => encoded,
                false => Encoded::NotWorthwhile,
            };
            slots.set(coding, encoded.clone());
            attached = Some(encoded);
            Op::Put(entry)
        });
        if let Some(Encoded::Body(body)) = &attached {
            let weight = u32::try_from(body.len()).unwrap_or(u32::MAX);
            self.keep_bound(weight);
            // A store of another size may have taken the entry over before.
            if let Some(next) = self.next.get() {
                next.weigh_again(key, slots);
                next.keep_bound(weight);
            }
        }
        attached
    }

    /// Makes moka weigh an entry to which a body was attached elsewhere.
    fn weigh_again(&self, key: &Key, slots: &Arc<EncodingSlots>) {
        let _put = self
            .cache
            .entry(key.as_bytes().into())
            .and_compute_with(|entry| {
                let entry = entry.map(moka::Entry::into_value);
                let entry = entry.filter(|entry| entry.body_of(slots).is_some());
                entry.map_or(Op::Nop, Op::Put)
            });
    }

    /// Puts an entry under a key. Where it has taken over encoded bodies, others may
    /// be attached to them at the same time: moka then weighs it while no other entry
    /// of the key is changed.
    pub(super) fn put(&self, key: Box<[u8]>, entry: Entry<A>) {
        match entry.has_encodings() {
            false => self.cache.insert(key, entry),
            true => {
                let _put = self.cache.entry(key).and_compute_with(|_| Op::Put(entry));
            }
        }
    }
}

#[cfg(test)]
mod tests;
