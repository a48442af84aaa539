//! The types of parameters: which values are valid, and their canonical form. Pure.
//!
//! `route` calls this for each parameter of a request. The canonical form goes
//! into the cache key and to the upstream, so that equivalent requests share one
//! stored response. An invalid request is refused without an upstream request.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use regex_lite::Regex;
use serde::Serialize;

/// The number of digits of a hash.
pub(crate) const HASH_DIGITS: usize = 64;
/// The most digits of a block height as sent, leading zeros included.
const HEIGHT_DIGITS: usize = 10;
/// The most UTF-16 code units of a ticker. The reference upstream answers a longer
/// one as an unknown route.
pub(crate) const TICKER_CHARACTERS: usize = 100;

/// Everything but the unreserved characters (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The unreserved characters, as a table with one lookup per byte.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let character = byte as u8;
        plain[byte] =
            character.is_ascii_alphanumeric() || matches!(character, b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    plain
};

/// The type of a parameter.
#[derive(Clone, Debug)]
pub(crate) enum ParameterType {
    /// 64 hexadecimal digits; canonical in lower case.
    Hex64,
    /// A block: a height (at most 10 digits, within u32; canonical without leading
    /// zeros) or a hash (64 hexadecimal digits; canonical in lower case).
    Block {
        /// The number of zeros that a hash begins with at least, 0 to 64: proof of
        /// work gives the hashes of a chain's blocks leading zeros.
        zeros: u8,
    },
    /// A BRC-20 ticker: 1 to 100 characters of UTF-8 (those beyond U+FFFF count
    /// twice) without control characters; canonical with ASCII in lower case.
    Ticker,
    /// Decimal digits without sign, whitespace or leading zeros.
    Integer {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// One of these values, case-sensitive.
    Enumeration(Box<[Box<str>]>),
    /// Any text without control characters, with a length in characters and
    /// optionally a pattern that matches all of it.
    Text {
        /// The least number of characters.
        min: usize,
        /// The most characters.
        max: usize,
        /// The pattern as configured, and compiled with anchors.
        pattern: Option<(Box<str>, Regex)>,
    },
}

/// Why a parameter is invalid, for the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Invalid {
    /// The parameter's name.
    pub(crate) parameter: Box<str>,
    /// Its value, shortened.
    pub received: Box<str>,
    /// The allowed values.
    pub allowed: Box<str>,
}

impl Invalid {
    /// A parameter with the value `received`, where only `allowed` is valid.
    pub(crate) fn new(parameter: &str, received: &str, allowed: impl Into<Box<str>>) -> Self {
        const MAX_CHARACTERS: usize = 80;
        let received = match received.char_indices().nth(MAX_CHARACTERS) {
            Some((end, _)) => format!("{}…", &received[..end]).into(),
            None => received.into(),
        };
        Self {
            parameter: parameter.into(),
            received,
            allowed: allowed.into(),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} must be {}, but \"{}\" came",
            self.parameter, self.allowed, self.received
        )
    }
}

impl ParameterType {
    /// Appends the canonical, percent-encoded form of a value to `out`. `raw` is
    /// the value in the path or query of the request.
    ///
    /// # Errors
    /// Where the value is invalid; nothing is appended then.
    pub(crate) fn write_canonical(
        &self,
        name: &str,
        raw: &str,
        from_query: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Invalid> {
        if self.write_plain(raw.as_bytes(), out) {
            return Ok(());
        }
        // Most values that are not in canonical form have nothing to decode either.
        let plain = !raw.bytes().any(|b| b == b'%' || b == b'+' && from_query);
        let invalid = |received: &str| Invalid::new(name, received, self.to_string());
        // RFC 3986 §2: a target is ASCII; other characters must be percent-encoded.
        let text = match plain && raw.is_ascii() {
            true => Cow::Borrowed(raw),
            false => decode(raw, from_query).ok_or_else(|| invalid(raw))?,
        };
        let begin = out.len();
        if self.write(&text, out) {
            Ok(())
        } else {
            out.truncate(begin);
            Err(invalid(&text))
        }
    }

    /// The fast path for values with nothing to decode or encode, as nearly all
    /// are. Writes nothing for other values and for invalid ones.
    fn write_plain(&self, raw: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Self::Hex64 => write_hash(raw, out),
            Self::Block { zeros } => match raw.len() {
                HASH_DIGITS => begins_with_zeros(raw, *zeros) && write_hash(raw, out),
                _ => write_height(raw, out),
            },
            Self::Ticker => {
                let plain = raw.iter().all(|b| PLAIN[usize::from(*b)]);
                if !plain || raw.is_empty() || raw.len() > TICKER_CHARACTERS || raw[0] == b'.' {
                    return false;
                }
                let begin = out.len();
                out.extend_from_slice(raw);
                out[begin..].make_ascii_lowercase();
                true
            }
            Self::Integer { min, max } => match integer(raw) {
                Some(value) if (*min..=*max).contains(&value) => {
                    out.extend_from_slice(raw);
                    true
                }
                _ => false,
            },
            Self::Enumeration(_) | Self::Text { .. } => false,
        }
    }

    /// Writes a decoded value; nothing where it is invalid.
    fn write(&self, text: &str, out: &mut Vec<u8>) -> bool {
        let bytes = text.as_bytes();
        match self {
            Self::Hex64 | Self::Block { .. } | Self::Integer { .. } => self.write_plain(bytes, out),
            Self::Ticker => {
                let is_short = text.encode_utf16().count() <= TICKER_CHARACTERS;
                if !is_short || !is_text(text, 1, TICKER_CHARACTERS) || is_dots(text) {
                    return false;
                }
                write_encoded(&text.to_ascii_lowercase(), out);
                true
            }
            Self::Enumeration(values) => {
                let known = values.iter().any(|value| **value == *text);
                if known {
                    write_encoded(text, out);
                }
                known
            }
            Self::Text { min, max, pattern } => {
                if !is_text(text, *min, *max) || is_dots(text) {
                    return false;
                }
                if pattern
                    .as_ref()
                    .is_some_and(|(_, regex)| !regex.is_match(text))
                {
                    return false;
                }
                write_encoded(text, out);
                true
            }
        }
    }
}

/// The allowed values, for the client.
impl fmt::Display for ParameterType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hex64 => f.write_str("64 hexadecimal digits"),
            Self::Block { zeros } => {
                write!(
                    f,
                    "a block height (at most {HEIGHT_DIGITS} digits, 0 to {}) or a block hash (64 hexadecimal digits",
                    u32::MAX
                )?;
                match zeros {
                    0 => f.write_str(")"),
                    zeros => write!(f, " with at least {zeros} leading zeros)"),
                }
            }
            Self::Ticker => write!(
                f,
                "a ticker: 1 to {TICKER_CHARACTERS} characters of UTF-8 (those beyond U+FFFF count twice), percent-encoded once, without control characters"
            ),
            Self::Integer { min, max } => write!(
                f,
                "an integer from {min} to {max}, in decimal digits without sign, blanks or leading zeros"
            ),
            Self::Enumeration(values) => write!(f, "one of {}", values.join(", ")),
            Self::Text { min, max, pattern } => {
                write!(
                    f,
                    "{min} to {max} characters of UTF-8 without control characters"
                )?;
                match pattern {
                    Some((source, _)) => write!(f, " that match {source}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Percent-decodes once; `None` for a bad escape, for text that is not ASCII before
/// or not UTF-8 after. A `+` is a space only in a query, as for the reference
/// upstream.
pub(crate) fn decode(raw: &str, from_query: bool) -> Option<Cow<'_, str>> {
    let bytes = raw.as_bytes();
    let escapes_are_whole = bytes
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'%')
        .all(|(at, _)| {
            bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        });
    if !escapes_are_whole || !raw.is_ascii() {
        return None;
    }
    if from_query && raw.contains('+') {
        let spaces = raw.replace('+', " ");
        return percent_decode_str(&spaces)
            .decode_utf8()
            .ok()
            .map(|text| Cow::Owned(text.into_owned()));
    }
    percent_decode_str(raw).decode_utf8().ok()
}

fn write_hash(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    // Without an early exit, so that the compiler can check sixteen bytes at a time.
    let digits = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(true, |all, byte| all & byte.is_ascii_hexdigit())
    };
    if bytes.len() != HASH_DIGITS || !digits(bytes) {
        return false;
    }
    let begin = out.len();
    out.extend_from_slice(bytes);
    out[begin..].make_ascii_lowercase();
    true
}

fn begins_with_zeros(bytes: &[u8], zeros: u8) -> bool {
    let zeros = bytes.get(..usize::from(zeros));
    zeros.is_some_and(|zeros| zeros.iter().all(|digit| *digit == b'0'))
}

fn write_height(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    if bytes.is_empty() || bytes.len() > HEIGHT_DIGITS || !bytes.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let zeros = bytes.iter().take_while(|b| **b == b'0').count();
    let digits = &bytes[zeros.min(bytes.len() - 1)..];
    if integer(digits).is_none_or(|height| u32::try_from(height).is_err()) {
        return false;
    }
    out.extend_from_slice(digits);
    true
}

/// Digits without sign, whitespace or leading zeros, within u64.
fn integer(bytes: &[u8]) -> Option<u64> {
    match bytes {
        [] | [b'0', _, ..] => None,
        _ => bytes.iter().try_fold(0_u64, |value, digit| {
            let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
            value.checked_mul(10)?.checked_add(digit)
        }),
    }
}

fn is_text(text: &str, min: usize, max: usize) -> bool {
    (min..=max).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// `.` and `..` are dot segments also percent-encoded (RFC 3986 §6.2.2.2): sent
/// upstream they would name another resource.
fn is_dots(text: &str) -> bool {
    matches!(text, "." | "..")
}

fn write_encoded(text: &str, out: &mut Vec<u8>) {
    for piece in percent_encode(text.as_bytes(), ENCODED) {
        out.extend_from_slice(piece.as_bytes());
    }
}

#[cfg(test)]
mod tests;
