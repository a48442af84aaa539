//! Activity pages: what an upstream body says, and pages made from stored windows. Pure:
//! no state and no clock.
//!
//! The upstream divides a list into pages by limit and offset. ordgate stores the
//! list's windows, all of one size, and cuts every page that clients request
//! from them, so that it needs no upstream request of its own.
//!
//! A cut page equals the upstream's: the same envelope as JSON, the items byte for byte,
//! and a total of 0 past the list's end. Where that cannot be known, no page is made.
//!
//! Deliberately absent: the meaning of items, where windows are stored, and
//! whether they are fresh. The order of items is the upstream's.

mod body;
mod windows;

pub use body::BodyIndex;
pub(crate) use body::Page;
pub(crate) use windows::{Run, are_consistent, cut_page, cut_run, find_run, of_one_block, windows};

/// The hash of a block, or the ID of a transaction: its bytes in the order in
/// which the API writes them (the reverse of Bitcoin's internal order).
pub type Hash = [u8; 32];

/// A block that a body names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Block {
    /// Its height; the genesis block's is 0.
    pub(crate) height: u32,
    /// Its hash.
    pub(crate) hash: Hash,
}

/// Parses 64 hex digits, of either case.
pub fn hash(text: &str) -> Option<Hash> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut hash = Hash::default();
    if pairs.len() != hash.len() || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(hash)
}

/// A hash's 64 hex digits, in lower case.
pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
