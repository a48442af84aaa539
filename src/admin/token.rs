//! The admin listener's token.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};

/// The operator's token. Only its digest is kept, so that it cannot be printed,
/// and so that the time of a comparison reveals nothing of it.
#[derive(Clone, Copy)]
pub struct Token([u8; 32]);

impl PartialEq for Token {
    /// Takes the same time wherever the digests differ.
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Token {}

impl Token {
    /// The token with this text. Blanks around it are ignored.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, text.trim().as_bytes()).as_ref());
        Self(bytes)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_compared_by_its_digest_and_never_printed() {
        let token = Token::new("s3cret\n");
        assert_eq!(token, Token::new("s3cret"));
        assert_ne!(token, Token::new("S3cret"));
        for place in 0..32 {
            let mut other = token;
            other.0[place] ^= 1;
            assert_ne!(token, other, "byte {place} differs");
        }
        assert_eq!(format!("{token:?}"), "[redacted]");
    }
}
