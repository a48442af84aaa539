//! The encoded forms of a stored body: what `compress` has made of it so far.
//!
//! They belong to the stored response: they are found through it, count against the
//! store's bound with it, and are purged and evicted with it. A response that
//! replaces it and has the same body takes them over ([`Encodings::adopt`]).

use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use super::coding::{CODINGS, Coding};

/// The body of a stored response in a content coding.
#[derive(Debug)]
pub(crate) struct EncodedBody {
    bytes: Box<[u8]>,
    /// The bytes of all encoded bodies, of which these are a part.
    total: Arc<AtomicU64>,
}

impl EncodedBody {
    /// A body that counts in `total` for as long as it is in memory.
    pub(crate) fn new(bytes: Box<[u8]>, total: &Arc<AtomicU64>) -> Self {
        total.fetch_add(bytes.len() as u64, Relaxed);
        let total = total.clone();
        Self { bytes, total }
    }

    /// Its length.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl Drop for EncodedBody {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

/// `wire::Body` sends it from here without a copy.
impl AsRef<[u8]> for EncodedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What came of encoding a body.
#[derive(Clone, Debug)]
pub(crate) enum Encoded {
    /// It is smaller.
    Body(Arc<EncodedBody>),
    /// It would not be smaller, or take too much room: the body is sent as it is.
    NotWorthwhile,
}

/// The encoded forms of a body, by coding. Responses with the same body share them.
#[derive(Debug, Default)]
pub(crate) struct EncodingSlots {
    encoded: [OnceLock<Encoded>; CODINGS],
    /// The codings that are being made, as bits.
    pending: AtomicU8,
}

impl EncodingSlots {
    /// What came of a coding; `None` if it has not been made.
    pub(crate) fn get(&self, coding: Coding) -> Option<&Encoded> {
        self.encoded[coding.index()].get()
    }

    /// Sets what came of a coding. Only the store calls this, because it weighs the
    /// entry anew.
    pub(super) fn set(&self, coding: Coding, encoded: Encoded) {
        // A coding that is already there stays: it is the same.
        let _is_new = self.encoded[coding.index()].set(encoded).is_ok();
    }

    /// Marks a coding as being made. `false` if it is already, or has been.
    pub(crate) fn begin(&self, coding: Coding) -> bool {
        let bit = bit(coding);
        self.pending.fetch_or(bit, Relaxed) & bit == 0 && self.get(coding).is_none()
    }

    /// Marks a coding as not being made any more.
    pub(crate) fn end(&self, coding: Coding) {
        self.pending.fetch_and(!bit(coding), Relaxed);
    }

    /// Whether a coding is being made.
    pub(crate) fn is_pending(&self, coding: Coding) -> bool {
        self.pending.load(Relaxed) & bit(coding) != 0
    }

    fn weight(&self) -> usize {
        // An encoded body takes an allocation beside that of its bytes.
        const EACH: usize = size_of::<EncodedBody>() + 64;
        let made = self.encoded.iter().filter_map(OnceLock::get);
        let bytes = made.map(|encoded| match encoded {
            Encoded::Body(body) => body.len() + EACH,
            Encoded::NotWorthwhile => 0,
        });
        size_of::<Self>() + bytes.sum::<usize>()
    }
}

/// The encoded forms of a stored body, and which were requested.
#[derive(Debug, Default)]
pub struct Encodings {
    slots: OnceLock<Arc<EncodingSlots>>,
    /// The codings that were requested once, as bits; [`FORBIDDEN`] beside them.
    requested: AtomicU8,
}

/// The bit of a body that must not be encoded.
const FORBIDDEN: u8 = 0x80;

const fn bit(coding: Coding) -> u8 {
    1 << coding.index()
}

impl Encodings {
    /// Of a body that may be encoded, or that must not be.
    pub fn allowed(is_allowed: bool) -> Self {
        let requested = if is_allowed { 0 } else { FORBIDDEN };
        Self {
            slots: OnceLock::new(),
            requested: AtomicU8::new(requested),
        }
    }

    /// Whether the body may be encoded.
    pub(crate) fn are_allowed(&self) -> bool {
        self.requested.load(Relaxed) & FORBIDDEN == 0
    }

    /// What came of a coding; `None` if it has not been made.
    #[inline]
    pub(crate) fn get(&self, coding: Coding) -> Option<&Encoded> {
        self.slots.get()?.get(coding)
    }

    /// The encoded forms, if any was begun.
    pub(crate) fn slots(&self) -> Option<&Arc<EncodingSlots>> {
        self.slots.get()
    }

    /// Notes that a coding was requested, and returns where it is to be put if that
    /// was not the first time: most bodies are requested in a coding once.
    pub(crate) fn request(&self, coding: Coding) -> Option<&Arc<EncodingSlots>> {
        let bit = bit(coding);
        let requested = self.requested.load(Relaxed);
        if requested & FORBIDDEN != 0 {
            return None;
        }
        if requested & bit == 0 && self.requested.fetch_or(bit, Relaxed) & bit == 0 {
            return None;
        }
        Some(self.slots.get_or_init(Arc::default))
    }

    /// Takes over the encoded forms of a response whose body is the same.
    pub(crate) fn adopt(&self, from: &Self) {
        if !self.are_allowed() || !from.are_allowed() {
            return;
        }
        self.requested
            .fetch_or(from.requested.load(Relaxed), Relaxed);
        if let Some(slots) = from.slots.get() {
            // Its own, if it has any already, are as good.
            let _are_new = self.slots.set(slots.clone()).is_ok();
        }
    }

    /// The bytes that they take.
    pub(super) fn weight(&self) -> usize {
        self.slots.get().map_or(0, |slots| slots.weight())
    }

    /// Whether they are these.
    pub(super) fn are(&self, slots: &Arc<EncodingSlots>) -> bool {
        let own = self.slots.get();
        own.is_some_and(|own| Arc::ptr_eq(own, slots))
    }
}

/// A copy of a response has the same body.
impl Clone for Encodings {
    fn clone(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            requested: AtomicU8::new(self.requested.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_request_for_a_coding_begins_it_and_no_other_does() {
        let encodings = Encodings::default();
        assert!(encodings.request(Coding::Gzip).is_none(), "the first");
        assert!(
            encodings.request(Coding::Brotli).is_none(),
            "each on its own"
        );
        let slots = encodings.request(Coding::Gzip).unwrap().clone();
        assert!(slots.begin(Coding::Gzip));
        for _more in 0..9 {
            assert!(!encodings.request(Coding::Gzip).unwrap().begin(Coding::Gzip));
        }
        // What could not be made is begun again.
        slots.end(Coding::Gzip);
        assert!(slots.begin(Coding::Gzip));
        slots.set(Coding::Gzip, Encoded::NotWorthwhile);
        slots.end(Coding::Gzip);
        assert!(!slots.begin(Coding::Gzip), "it is made");
    }

    #[test]
    fn a_body_that_must_not_be_encoded_never_is() {
        let forbidden = Encodings::allowed(false);
        for _request in 0..3 {
            assert!(forbidden.request(Coding::Zstd).is_none());
        }
        let other = Encodings::default();
        other.request(Coding::Zstd);
        other.request(Coding::Zstd);
        forbidden.adopt(&other);
        assert!(forbidden.slots().is_none());
        assert!(!forbidden.clone().are_allowed());
    }

    #[test]
    fn encoded_bodies_weigh_what_they_take_and_count_while_they_are_there() {
        let total = Arc::new(AtomicU64::new(0));
        let encodings = Encodings::default();
        assert_eq!(encodings.weight(), 0);
        encodings.request(Coding::Zstd);
        let slots = encodings.request(Coding::Zstd).unwrap();
        let body = EncodedBody::new(vec![0; 1000].into(), &total);
        slots.set(Coding::Zstd, Encoded::Body(Arc::new(body)));
        slots.set(Coding::Gzip, Encoded::NotWorthwhile);
        assert!((1000..1400).contains(&encodings.weight()));
        assert_eq!(total.load(Relaxed), 1000);
        let copy = encodings.clone();
        drop(encodings);
        assert!(matches!(copy.get(Coding::Zstd), Some(Encoded::Body(_))));
        drop(copy);
        assert_eq!(total.load(Relaxed), 0);
    }
}
