//! Activity pages: what a page consists of, and how pages are made from stored
//! windows. Pure and sync: no state and no clock.
//!
//! The upstream cuts a list into pages by limit and offset. What is stored is
//! the list's windows, all of one size; whatever a client asks is cut from them
//! again, so that it costs the upstream nothing. Called where such a route is
//! served, and where one looks for the blocks that a body names.
//!
//! What is answered equals what the upstream would have answered, its oddities
//! included: the envelope as it wrote it, the items byte for byte, and past a
//! list's end a total of 0. Where that cannot be known, there is no answer.
//!
//! Deliberately absent: what an item means, where windows are stored, and
//! whether they are still fresh. The order of items is the upstream's.

mod assemble;
mod location;
mod page;
mod transaction;
mod window;

pub use assemble::assemble;
pub use page::{Page, Run};
pub use transaction::{Edges, touches, transaction};
pub use window::{MOST_OFFSET, Unsliceable, Window, agree, check_window, ends_before, windows};

/// The hash of a block, or the ID of a transaction: its bytes in the order in
/// which the API spells them.
pub type Hash = [u8; 32];

/// A block that a body names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// Blocks below it, back to the first one, which is at 0.
    pub height: u32,
    /// Which of those that were ever at this height.
    pub hash: Hash,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A hash from its 64 hex digits, of either case; `None` from any other text.
pub fn hash(text: &str) -> Option<Hash> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut hash = Hash::default();
    if pairs.len() != hash.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(hash)
}

/// A hash's 64 hex digits, in lower case.
pub fn hex(hash: &Hash) -> String {
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    let pairs = hash
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    pairs.collect()
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
