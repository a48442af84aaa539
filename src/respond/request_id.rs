//! Request ids.

use http::HeaderValue;

use crate::wire::unindexed;

/// A request's id: 16 hexadecimal digits, unique in this process, and with high
/// probability among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId([u8; 16]);

impl RequestId {
    /// The id for a number that no other request has.
    pub(crate) fn new(number: u64) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        // Stafford's 13th variant of the 64-bit finaliser. It is one to one, so
        // different numbers give different ids.
        let mut bits = number;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        Self(std::array::from_fn(|at| {
            HEX[(bits >> (60 - 4 * at) & 15) as usize]
        }))
    }

    /// Selects one request in `many` at random; `many` is at most 256.
    pub(crate) const fn is_one_in(&self, many: u64) -> bool {
        let [.., high, low] = self.0;
        (digit(high) << 4 | digit(low)).is_multiple_of(many)
    }

    /// Its digits.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }

    pub(super) fn field(self) -> HeaderValue {
        unindexed(HeaderValue::from_bytes(&self.0).unwrap_or(HeaderValue::from_static("")))
    }
}

/// The value of a lower-case hexadecimal digit.
const fn digit(digit: u8) -> u64 {
    (if digit > b'9' {
        digit - b'a' + 10
    } else {
        digit - b'0'
    }) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_numbers_give_different_ids() {
        let ids: std::collections::HashSet<_> = (0..1000)
            .map(|n| RequestId::new(n).as_str().to_owned())
            .collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 16));
    }

    #[test]
    fn sampling_selects_about_its_share() {
        let selected = (0..10_000).filter(|n| RequestId::new(*n).is_one_in(8));
        assert!((1_000..1_500).contains(&selected.count()));
    }
}
