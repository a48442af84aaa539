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
/// The zeros that a block hash begins with at least: proof of work gives the hashes of a
/// chain's blocks leading zeros, and the reference upstream demands them.
pub(crate) const HASH_ZEROS: usize = 8;
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

/// The type of a parameter.
#[derive(Clone, Debug)]
pub(crate) enum ParameterType {
    /// 64 hexadecimal digits; canonical in lower case.
    Hex64,
    /// A block: a height (at most 10 digits, within u32; canonical without leading
    /// zeros) or a hash (64 hexadecimal digits, at least [`HASH_ZEROS`] of them leading zeros;
    /// canonical in lower case).
    Block,
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
        // Most values need neither decoding nor encoding.
        let is_plain = raw.bytes().all(is_unreserved);
        let decoded: Option<Cow<'_, str>> = match is_plain {
            true => Some(raw.into()),
            false => decode(raw, from_query).map(Cow::from),
        };
        let Some(valid) = decoded.as_deref().and_then(|text| self.valid(text)) else {
            let received = decoded.as_deref().unwrap_or(raw);
            return Err(Invalid::new(name, received, self.to_string()));
        };
        let begin = out.len();
        match is_plain {
            true => out.extend_from_slice(valid.as_bytes()),
            false => out.extend(percent_encode(valid.as_bytes(), ENCODED).flat_map(str::bytes)),
        }
        if matches!(self, Self::Hex64 | Self::Block | Self::Ticker) {
            lower_case(&mut out[begin..]);
        }
        Ok(())
    }

    /// What counts of a decoded value: all but the leading zeros of a height. `None` where
    /// the value is invalid.
    fn valid<'t>(&self, text: &'t str) -> Option<&'t str> {
        let is_text = || !text.chars().any(char::is_control);
        let is_valid = match self {
            Self::Block if text.len() == HASH_DIGITS => {
                is_hash(text) && text.bytes().take(HASH_ZEROS).all(|digit| digit == b'0')
            }
            Self::Hex64 => is_hash(text),
            Self::Block => {
                let is_height = is_number(text) && text.len() <= HEIGHT_DIGITS;
                let digits = text.trim_start_matches('0');
                let digits = if digits.is_empty() { "0" } else { digits };
                return (is_height && digits.parse::<u32>().is_ok()).then_some(digits);
            }
            Self::Integer { min, max } => {
                let is_plain = is_number(text) && (text == "0" || !text.starts_with('0'));
                let is_within = |value| (*min..=*max).contains(&value);
                is_plain && text.parse().is_ok_and(is_within)
            }
            Self::Ticker => {
                // In UTF-8 it has no fewer bytes.
                let is_short = text.len() <= TICKER_CHARACTERS
                    || text.encode_utf16().count() <= TICKER_CHARACTERS;
                !text.is_empty() && is_short && is_text()
            }
            Self::Enumeration(values) => values.iter().any(|value| **value == *text),
            Self::Text { min, max, pattern } => {
                let is_match = |(_, regex): &(_, Regex)| regex.is_match(text);
                (*min..=*max).contains(&text.chars().count())
                    && is_text()
                    && pattern.as_ref().is_none_or(is_match)
            }
        };
        is_valid.then_some(text)
    }
}

/// The allowed values, for the client.
impl fmt::Display for ParameterType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hex64 => f.write_str("64 hexadecimal digits"),
            Self::Block => write!(
                f,
                "a block height (at most {HEIGHT_DIGITS} digits, 0 to {}) or a block hash (64 hexadecimal digits with at least {HASH_ZEROS} leading zeros)",
                u32::MAX
            ),
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
                let pattern = pattern.as_ref();
                let pattern =
                    pattern.map_or_else(String::new, |(source, _)| format!(" that match {source}"));
                write!(
                    f,
                    "{min} to {max} characters of UTF-8 without control characters{pattern}"
                )
            }
        }
    }
}

/// Percent-decodes once; `None` for a bad escape, for text that is not ASCII before
/// or not UTF-8 after. A `+` is a space only in a query, as for the reference
/// upstream.
pub(crate) fn decode(raw: &str, from_query: bool) -> Option<String> {
    let is_whole = |after: &str| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // RFC 3986 §2: a target is ASCII; other characters must be percent-encoded.
    if !raw.is_ascii() || !raw.split('%').skip(1).all(is_whole) {
        return None;
    }
    let space = if from_query { " " } else { "+" };
    let raw = raw.replace('+', space);
    Some(percent_decode_str(&raw).decode_utf8().ok()?.into_owned())
}

fn is_hash(text: &str) -> bool {
    // Without an early exit, so that the compiler can check sixteen bytes at a time.
    let are_digits = |all, byte: &u8| all & byte.is_ascii_hexdigit();
    text.len() == HASH_DIGITS && text.as_bytes().iter().fold(true, are_digits)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a byte is the same with and without percent-encoding (RFC 3986 §2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Lower-cases the letters of a percent-encoded text, but not the digits of its escapes.
fn lower_case(encoded: &mut [u8]) {
    let literals = encoded.split_mut(|byte| *byte == b'%').enumerate();
    for (at, text) in literals {
        let digits = if at == 0 { 0 } else { 2 };
        text[digits..].make_ascii_lowercase();
    }
}

#[cfg(test)]
mod tests;
