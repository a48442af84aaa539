//! What a parameter may be, and how it is spelt canonically. Pure.
//!
//! `route` calls this for each parameter that it has captured. The canonical
//! spelling goes into the cache key and to the upstream, so two spellings of
//! one question are one stored response; what does not validate is refused and
//! costs the upstream nothing.
//!
//! Deliberately absent: where parameters stand in a request; that is `route`'s.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use regex_lite::Regex;

/// The digits of a hash.
pub const HASH_DIGITS: usize = 64;
/// The most digits of a block height as sent, leading zeros included.
const HEIGHT_DIGITS: usize = 10;
/// The most characters of a ticker that the reference upstream looks up, counted
/// in UTF-16 as it does; to a longer one it answers that there is no such route.
const TICKER_CHARACTERS: usize = 100;

/// RFC 3986 §2.3: what need not be percent-encoded anywhere.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same characters, for one look a byte.
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

/// The type of a route's parameter.
#[derive(Clone, Debug)]
pub enum ParameterType {
    /// 64 hexadecimal digits; canonically in lower case.
    Hex64,
    /// A block: a height (at most 10 digits, within u32; canonically without
    /// leading zeros) or a hash (64 hexadecimal digits, in lower case).
    Block {
        /// How many zeros a hash begins with at the least; 0 to 64. More means
        /// more work, so the hashes of a chain's blocks have them.
        zeros: u8,
    },
    /// A BRC-20 ticker: UTF-8, 1 to 100 characters (those beyond U+FFFF count
    /// twice), none of them a control character; canonically folded to lower case
    /// over ASCII.
    Ticker,
    /// Decimal digits without sign, blanks or leading zeros.
    Integer {
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// One of a list, spelt exactly.
    Enumeration(Box<[Box<str>]>),
    /// Any text of a length (in characters) and, where one is given, of a
    /// pattern that matches it whole.
    Text {
        /// The least number of characters.
        min: usize,
        /// The most characters.
        max: usize,
        /// As configured, and compiled with anchors.
        pattern: Option<(Box<str>, Regex)>,
    },
}

/// Why a request does not validate. The text is for the client: it names the
/// parameter, what came and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The parameter's name.
    pub parameter: Box<str>,
    /// What came, shortened.
    pub received: Box<str>,
    /// What is allowed.
    pub allowed: Box<str>,
}

impl Invalid {
    /// A parameter that came as `received`, where only `allowed` is.
    pub fn new(parameter: &str, received: &str, allowed: impl Into<Box<str>>) -> Self {
        const MOST: usize = 80;
        let received = match received.char_indices().nth(MOST) {
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
    /// Appends the canonical, percent-encoded form of a parameter as it came
    /// in a path segment or a query.
    ///
    /// # Errors
    /// What came and what is allowed, where it does not validate.
    pub fn write_canonical(
        &self,
        name: &str,
        raw: &str,
        from_query: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), Invalid> {
        if self.write_plain(raw.as_bytes(), out) {
            return Ok(());
        }
        // Other forms may have nothing to decode either.
        let plain = !raw.bytes().any(|b| b == b'%' || b == b'+' && from_query);
        let invalid = |received: &str| Invalid::new(name, received, self.to_string());
        // RFC 3986 §2: a target is ASCII; other characters come percent-encoded.
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

    /// Writes what means itself, as nearly everything that comes does: there is
    /// nothing to decode and nothing to encode. Writes nothing where it is not
    /// so, or does not validate.
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

    fn write(&self, text: &str, out: &mut Vec<u8>) -> bool {
        let bytes = text.as_bytes();
        match self {
            Self::Hex64 | Self::Block { .. } | Self::Integer { .. } => self.write_plain(bytes, out),
            Self::Ticker => {
                let fits = text.encode_utf16().count() <= TICKER_CHARACTERS;
                if !fits || !is_text(text, 1, TICKER_CHARACTERS) || is_dots(text) {
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

/// What is allowed, for a client to read.
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

/// Percent-decoded once; `None` for a bad escape, for what is not ASCII before
/// or not UTF-8 after. A `+` is a blank in a query alone, as the reference upstream has it.
pub fn decode(raw: &str, from_query: bool) -> Option<Cow<'_, str>> {
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
        let blanks = raw.replace('+', " ");
        return percent_decode_str(&blanks)
            .decode_utf8()
            .ok()
            .map(|text| Cow::Owned(text.into_owned()));
    }
    percent_decode_str(raw).decode_utf8().ok()
}

fn write_hash(bytes: &[u8], out: &mut Vec<u8>) -> bool {
    // Without an early end, so that it is done sixteen bytes at a time.
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

/// Digits without sign, blanks, or leading zeros; within u64.
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

/// `.` and `..` are dot segments however they are spelt (RFC 3986 §6.2.2.2):
/// sent upstream they would ask for another resource.
fn is_dots(text: &str) -> bool {
    matches!(text, "." | "..")
}

fn write_encoded(text: &str, out: &mut Vec<u8>) {
    for piece in percent_encode(text.as_bytes(), ENCODED) {
        out.extend_from_slice(piece.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(kind: &ParameterType, raw: &str) -> Option<String> {
        let mut out = b"kept".to_vec();
        let done = kind.write_canonical("p", raw, false, &mut out);
        let text = String::from_utf8(out).unwrap();
        let written = text.strip_prefix("kept").unwrap().to_owned();
        assert!(done.is_ok() || written.is_empty());
        done.is_ok().then_some(written)
    }

    fn query(kind: &ParameterType, raw: &str) -> Option<String> {
        let mut out = Vec::new();
        kind.write_canonical("p", raw, true, &mut out).ok()?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn hashes_are_lower_cased() {
        let upper = "AB".repeat(32);
        assert_eq!(path(&ParameterType::Hex64, &upper), Some("ab".repeat(32)));
        // A percent-encoded letter means the letter.
        let encoded = format!("%41b{}", "AB".repeat(31));
        assert_eq!(path(&ParameterType::Hex64, &encoded), Some("ab".repeat(32)));
        for bad in [
            "",
            "xyz",
            &"a".repeat(63),
            &"a".repeat(65),
            &format!("0x{}", "a".repeat(62)),
        ] {
            assert_eq!(path(&ParameterType::Hex64, bad), None, "{bad}");
        }
    }

    #[test]
    fn blocks() {
        let rows: &[(&str, Option<&str>)] = &[
            ("840000", Some("840000")),
            ("00840000", Some("840000")),
            ("0", Some("0")),
            ("0000000000", Some("0")),
            ("4294967295", Some("4294967295")),
            ("4294967296", None),
            ("00000840000", None),
            ("-1", None),
            ("+1", None),
            ("latest", None),
            ("", None),
            ("%zz", None),
            ("%00", None),
        ];
        for (raw, canonical) in rows {
            for zeros in [0, 8, 64] {
                let kind = ParameterType::Block { zeros };
                assert_eq!(path(&kind, raw).as_deref(), *canonical, "{raw}");
            }
        }
    }

    #[test]
    fn hashes_of_blocks_begin_with_zeros() {
        let hash = |zeros: usize, digit: &str| "0".repeat(zeros) + &digit.repeat(64 - zeros);
        for zeros in [0, 1, 8, 63, 64] {
            let kind = ParameterType::Block { zeros };
            let zeros = usize::from(zeros);
            // Digits alone are a hash as well, where they are 64.
            for digit in ["1", "a", "F"] {
                for more in zeros..=64 {
                    let hash = hash(more, digit);
                    let canonical = hash.to_ascii_lowercase();
                    assert_eq!(path(&kind, &hash), Some(canonical), "{zeros}");
                }
                for fewer in 0..zeros {
                    assert_eq!(path(&kind, &hash(fewer, digit)), None, "{zeros}");
                }
            }
            for bad in [&hash(64, "")[..63], &hash(64, "0").replace('0', "00")] {
                assert_eq!(path(&kind, bad), None, "{bad}");
            }
        }
        let kind = ParameterType::Block { zeros: 8 };
        // A zero that is percent-encoded is a zero.
        let encoded = format!("%30{}{}", "0".repeat(7), "ab".repeat(28));
        let canonical = format!("{}{}", "0".repeat(8), "ab".repeat(28));
        assert_eq!(path(&kind, &encoded), Some(canonical));
        for bad in ["g".repeat(56), "1".repeat(55) + "-"] {
            assert_eq!(path(&kind, &format!("00000000{bad}")), None, "{bad}");
        }
        let said = kind.to_string();
        assert!(
            said.ends_with("(64 hexadecimal digits with at least 8 leading zeros)"),
            "{said}"
        );
        let any = ParameterType::Block { zeros: 0 }.to_string();
        assert!(any.ends_with("(64 hexadecimal digits)"), "{any}");
    }

    #[test]
    fn tickers() {
        let hundred = "a".repeat(100);
        let longer = "a".repeat(101);
        let (astral, more_astral) = ("%F0%9F%90%B8".repeat(50), "%F0%9F%90%B8".repeat(51));
        let rows: &[(&str, Option<&str>)] = &[
            ("ordi", Some("ordi")),
            ("ORDI", Some("ordi")),
            ("%6Frdi", Some("ordi")),
            ("%256Frdi", Some("%256frdi")),
            ("a%2Fb%3F", Some("a%2Fb%3F")),
            ("a+b", Some("a%2Bb")),
            // Where it is plain, the reference upstream cuts the path.
            ("a;b", Some("a%3Bb")),
            ("A%3bB", Some("a%3Bb")),
            (";", Some("%3B")),
            ("a%20b", Some("a%20b")),
            ("$x", Some("%24x")),
            ("%f0%9f%90%b8", Some("%F0%9F%90%B8")),
            // Only ASCII is folded: the database's locale decides the rest.
            ("%C3%80", Some("%C3%80")),
            ("%00", None),
            ("%0A", None),
            ("%C2%85", None),
            ("%FF%FE", None),
            ("%zz", None),
            ("%4", None),
            ("", None),
            ("🐸", None),
            (".", None),
            ("%2E%2e", None),
            ("..a", Some("..a")),
            (&hundred, Some(&hundred)),
            (&longer, None),
            (&astral, Some(&astral)),
            (&more_astral, None),
        ];
        for (raw, canonical) in rows {
            // `%256F` decodes to `%6F`, which is text, and is folded as such.
            assert_eq!(
                path(&ParameterType::Ticker, raw).as_deref(),
                *canonical,
                "{raw}"
            );
        }
    }

    #[test]
    fn integers() {
        let limit = ParameterType::Integer { min: 1, max: 60 };
        for good in ["1", "20", "60", "%36%30"] {
            assert!(query(&limit, good).is_some(), "{good}");
        }
        for bad in [
            "0",
            "61",
            "",
            "-1",
            "+5",
            "%2B5",
            "1e1",
            "0x10",
            "010",
            "1.0",
            " 10",
            "%2010",
            "10 ",
            "abc",
            "1;offset=3",
            "5%C2%A0",
            "99999999999999999999999",
            "٣",
        ] {
            assert_eq!(query(&limit, bad), None, "{bad}");
        }
        let offset = ParameterType::Integer {
            min: 0,
            max: (1 << 53) - 1,
        };
        assert_eq!(query(&offset, "0").as_deref(), Some("0"));
        assert_eq!(
            query(&offset, "9007199254740991").as_deref(),
            Some("9007199254740991")
        );
        assert_eq!(query(&offset, "9007199254740992"), None);
        assert_eq!(query(&offset, "00"), None);
    }

    #[test]
    fn enumerations_and_texts() {
        let operation = ParameterType::Enumeration(["mint".into(), "burn".into()].into());
        assert_eq!(query(&operation, "mint").as_deref(), Some("mint"));
        assert_eq!(query(&operation, "Mint"), None);
        let word = ParameterType::Text {
            min: 1,
            max: 5,
            pattern: Some(("[a-z ]+".into(), Regex::new("^(?:[a-z ]+)$").unwrap())),
        };
        assert_eq!(query(&word, "a+b").as_deref(), Some("a%20b"));
        assert_eq!(path(&word, "a+b"), None);
        assert_eq!(query(&word, "abcdef"), None);
        assert_eq!(query(&word, "A"), None);
    }

    #[test]
    fn refusals_name_parameter_value_and_bounds() {
        let limit = ParameterType::Integer { min: 1, max: 60 };
        let why = limit
            .write_canonical("limit", "99", true, &mut Vec::new())
            .unwrap_err();
        assert_eq!(
            why.to_string(),
            "limit must be an integer from 1 to 60, in decimal digits without sign, blanks or leading zeros, but \"99\" came"
        );
        let long =
            ParameterType::Hex64.write_canonical("tx_id", &"x".repeat(500), false, &mut Vec::new());
        assert_eq!(long.unwrap_err().received.chars().count(), 81);
    }

    proptest::proptest! {
        /// What is canonical stays as it is: the cache key of a forwarded
        /// target is that target.
        #[test]
        fn canonical_forms_are_fixed_points(raw in "[a-zA-Z0-9%.+~; /é🐸-]{0,20}") {
            for kind in [
                ParameterType::Ticker,
                ParameterType::Block { zeros: 8 },
                ParameterType::Integer { min: 0, max: 1000 },
                ParameterType::Text { min: 0, max: 30, pattern: None },
            ] {
                if let Some(once) = query(&kind, &raw) {
                    proptest::prop_assert_eq!(query(&kind, &once), Some(once.clone()));
                    proptest::prop_assert!(once.is_ascii() && !once.contains([' ', '/', '?', '#', ';']));
                }
            }
        }
    }
}
