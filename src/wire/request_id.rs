//! Request ids.

use http::HeaderValue;

use super::unindexed;

/// A request's id: 16 hexadecimal digits, unique in this process, and with high
/// probability among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId([u8; 16]);

impl RequestId {
    /// The id for a number that no other request has.
    pub(crate) fn new(number: u64) -> Self {
        // Stafford's 13th variant of the 64-bit finaliser. It is one to one, so
        // different numbers give different ids.
        let mut bits = number;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let (high, low) = (digits((bits >> 32) as u32), digits(bits as u32));
        let mut id = [0; 16];
        id[..8].copy_from_slice(&high);
        id[8..].copy_from_slice(&low);
        Self(id)
    }

    /// Its digits.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }

    pub(crate) fn field(self) -> HeaderValue {
        unindexed(HeaderValue::from_bytes(&self.0).unwrap_or(HeaderValue::from_static("")))
    }
}

/// The lower-case hexadecimal digits of a number, all eight at once.
const fn digits(number: u32) -> [u8; 8] {
    const ONES: u64 = u64::MAX / 255;
    // Each of the eight halves of a byte becomes a byte.
    let mut bits = number as u64;
    bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 where it is above 9, since 6 more then reach 16.
    let letters = (bits + 6 * ONES) >> 4 & ONES;
    let digits = bits + ONES * b'0' as u64 + letters * (b'a' - b'9' - 1) as u64;
    digits.to_be_bytes()
}
