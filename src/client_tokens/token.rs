//! The text of a token: `og_`, 256 random bits as 43 digits of base 62, and the
//! CRC-32 of all that as 6 such digits.
//!
//! The prefix and the checksum let scanners for leaked secrets recognise a token
//! (`og_[0-9A-Za-z]{49}`), and tell a mistyped token from an unknown one. The checksum
//! is no secret and proves nothing.

use std::fmt::Write;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

/// How each token begins.
pub const PREFIX: &[u8] = b"og_";
/// The length of a token.
pub const LENGTH: usize = 52;
const CHECKSUM_DIGITS: usize = 6;
const RANDOM_DIGITS: usize = LENGTH - PREFIX.len() - CHECKSUM_DIGITS;

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The SHA-256 of a token.
pub type Digest = [u8; 32];

/// A token and its digest in hex. The text is zeroed when it is dropped.
pub struct NewToken {
    /// The token.
    pub text: Zeroizing<String>,
    /// Its SHA-256, in hex.
    pub digest: String,
}

/// The SHA-256 of a text.
pub fn digest(text: &[u8]) -> Digest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text).as_ref());
    bytes
}

/// Makes a token. `None` where the system has no randomness.
pub fn generate() -> Option<NewToken> {
    let mut random = Zeroizing::new([0; 32]);
    SystemRandom::new().fill(&mut *random).ok()?;
    let text = text_of(&random);
    let mut hex = String::with_capacity(64);
    for byte in digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    Some(NewToken { text, digest: hex })
}

/// The token of these bits.
fn text_of(random: &[u8; 32]) -> Zeroizing<String> {
    // Long division by 62, from the most significant byte.
    let mut number = Zeroizing::new(*random);
    let mut digits = Zeroizing::new([b'0'; RANDOM_DIGITS]);
    for digit in digits.iter_mut().rev() {
        let mut remainder = 0;
        for byte in number.iter_mut() {
            let dividend = remainder << 8 | u16::from(*byte);
            *byte = (dividend / 62) as u8;
            remainder = dividend % 62;
        }
        *digit = DIGITS[usize::from(remainder)];
    }
    let mut text = Zeroizing::new(String::with_capacity(LENGTH));
    text.extend(PREFIX.iter().chain(&*digits).map(|byte| char::from(*byte)));
    let sum = checksum(text.as_bytes());
    text.extend(sum.map(char::from));
    text
}

/// Whether a text has the form of a token, with the right checksum.
pub fn is_well_formed(text: &[u8]) -> bool {
    let Some((content, sum)) = text.split_last_chunk::<CHECKSUM_DIGITS>() else {
        return false;
    };
    text.len() == LENGTH
        && text.starts_with(PREFIX)
        && content[PREFIX.len()..]
            .iter()
            .all(u8::is_ascii_alphanumeric)
        && *sum == checksum(content)
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_DIGITS] {
    let mut rest = crc32(content);
    let mut digits = [b'0'; CHECKSUM_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    digits
}

/// The CRC-32 of gzip and PNG (ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _bit| match crc & 1 {
        1 => crc >> 1 ^ 0xEDB8_8320,
        _ => crc >> 1,
    };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_are_well_formed() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_ne!(*one.text, *other.text);
        for token in [one, other] {
            assert_eq!(token.text.len(), LENGTH);
            assert!(is_well_formed(token.text.as_bytes()), "{}", *token.text);
            assert_eq!(token.digest.len(), 64);
        }
    }

    #[test]
    fn a_changed_token_is_not_well_formed() {
        let token = text_of(&[7; 32]);
        assert!(is_well_formed(token.as_bytes()));
        for at in 0..LENGTH {
            let mut changed = token.as_bytes().to_vec();
            changed[at] = if changed[at] == b'x' { b'y' } else { b'x' };
            assert!(!is_well_formed(&changed), "byte {at}");
        }
        for other in [&token[..51], &format!("{}0", *token), "", "og_", "og_x"] {
            assert!(!is_well_formed(other.as_bytes()), "{other}");
        }
        let spaced = format!("og_ {}", &token[4..]);
        assert!(!is_well_formed(spaced.as_bytes()));
    }

    #[test]
    fn the_digest_is_that_of_sha256sum() {
        let hex: String = digest(b"abc").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
