//! Delta-seconds (RFC 9111 §1.2.2): the numbers of directives and of `Age`.
//!
//! They saturate instead of overflowing, and are never negative.

use std::time::Duration;

/// A number of seconds (RFC 9111 §1.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delta(u32);

impl Delta {
    /// Zero.
    pub(crate) const ZERO: Self = Self(0);
    /// The greatest value, 2^31, for all greater numbers (§1.2.2).
    pub(crate) const MAX: Self = Self(1 << 31);

    /// Reads decimal digits. A number that is too great becomes [`Delta::MAX`].
    #[must_use]
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let seconds = text.iter().fold(0u32, |sum, digit| {
            sum.saturating_mul(10)
                .saturating_add(u32::from(digit - b'0'))
        });
        Some(Self(seconds.min(Self::MAX.0)))
    }

    /// The seconds.
    #[must_use]
    pub fn as_secs(self) -> u32 {
        self.0
    }

    /// As a duration.
    #[must_use]
    pub(crate) fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.0))
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn only_digits_are_a_number() {
        for text in ["", "-1", "+1", "1.0", " 1", "1 ", "a", "0x1", "\u{661}"] {
            assert_eq!(
                Delta::parse(text.as_bytes()),
                None,
                "{text:?}: RFC 9111 §1.2.2"
            );
        }
        assert_eq!(
            Delta::parse(b"0060").map(Delta::as_secs),
            Some(60),
            "RFC 9111 §1.2.2"
        );
        assert_eq!(
            Delta::parse(&[b'9'; 99]),
            Some(Delta::MAX),
            "RFC 9111 §1.2.2"
        );
    }
}
