//! The request target, read as the reference reads it: percent-decoding, query strings, and its coercion of texts to
//! integers.
//!
//! Called by `api`, and by `control` for its own parameters. Invariant: what is recorded of the reference's generosity
//! (`1e1`, `0x10`, `010`, `+5`, blanks, `Infinity`) is accepted here and nothing else is. Deliberately absent: ordgate's own,
//! stricter rules; the sandbox must not share code with what it tests.

use std::borrow::Cow;

/// A target that the reference's HTTP parser refuses before any routing: bytes beyond ASCII, or more than its buffer.
pub(super) fn is_refused_outright(target: &str) -> bool {
    const LONGEST: usize = 16 * 1024;
    !target.is_ascii() || target.len() > LONGEST
}

/// Splits a target into path and query. A semicolon ends the path as well: so does the router of the reference's
/// framework generation by default (this one is not recorded).
pub(super) fn split(target: &str) -> (&str, &str) {
    target.split_once(['?', ';']).unwrap_or((target, ""))
}

/// Decodes a path once but for the delimiters (an encoded slash parts no segments), or nothing where it is malformed
/// or not UTF-8. [`decode_segment`] does the rest.
pub(super) fn decode_path(path: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else {
            return None;
        };
        rest = tail;
        match hex_pair(*high, *low)? {
            b'#' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'?' | b'@' | b'%' => {
                decoded.extend([b'%', *high, *low]);
            }
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}

/// Decodes what [`decode_path`] left alone.
pub(super) fn decode_segment(segment: &str) -> Cow<'_, str> {
    decode(segment).unwrap_or(Cow::Borrowed(segment))
}

/// Every value that the query gives a name, in order; names and values are decoded, and what cannot be is left raw.
pub(super) fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form_decoded(key) == name).then(|| form_decoded(value))
    })
}

fn form_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    decode(&spaced).map_or_else(|| spaced.clone(), Cow::into_owned)
}

fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let [high, low, tail @ ..] = rest else {
                return None;
            };
            decoded.push(hex_pair(*high, *low)?);
            rest = tail;
        } else {
            decoded.push(*first);
        }
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Coerces a text to an integer as the reference's validator does: a double without a fraction, infinities included.
pub(super) fn integer(text: &str) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let number = script_number(text)?;
    // Minus zero is echoed as zero.
    (number.is_infinite() || number.fract() == 0.0).then_some(number + 0.0)
}

/// The number that a script's numeric conversion makes of a text; blanks alone are zero.
fn script_number(text: &str) -> Option<f64> {
    let text = text.trim_matches(|letter: char| {
        // U+0085 is white space to Unicode but not to scripts; the byte order mark is the other way round.
        letter == '\u{feff}' || (letter.is_whitespace() && letter != '\u{85}')
    });
    if text.is_empty() {
        return Some(0.0);
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        let head = text
            .get(..2)
            .filter(|head| head.eq_ignore_ascii_case(prefix));
        if head.is_some() {
            return radix_number(&text[2..], radix);
        }
    }
    let (sign, unsigned) = match text.as_bytes()[0] {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if unsigned == "Infinity" {
        return Some(sign * f64::INFINITY);
    }
    // Rust reads the decimal forms of scripts and, beyond them, only words, underscore-free; so letters other than the
    // exponent's are what must be kept out, and a second sign.
    let decimal = unsigned
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let starts_well = matches!(unsigned.bytes().next(), Some(b'0'..=b'9' | b'.'));
    if !decimal || !starts_well {
        return None;
    }
    unsigned.parse::<f64>().ok().map(|number| sign * number)
}

fn radix_number(digits: &str, radix: u32) -> Option<f64> {
    if digits.is_empty() {
        return None;
    }
    digits.chars().try_fold(0.0, |number: f64, digit| {
        Some(number.mul_add(f64::from(radix), f64::from(digit.to_digit(radix)?)))
    })
}

/// Writes a number as a script would: digits up to 1e21, then the exponent form.
pub(super) fn script_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity".to_owned()
        } else {
            "-Infinity".to_owned()
        };
    }
    if number.abs() < 1e21 {
        format!("{number}")
    } else {
        format!("{number:e}").replace('e', "e+")
    }
}

#[cfg(test)]
mod tests {
    use super::{
        decode_path, decode_segment, integer, is_refused_outright, script_text, split, values,
    };

    /// The forms that were recorded, and their neighbours.
    #[test]
    fn integers_are_coerced_as_recorded() {
        for (text, number) in [
            ("1e1", Some(10.0)),
            ("0x10", Some(16.0)),
            ("0b11", Some(3.0)),
            ("0O17", Some(15.0)),
            ("010", Some(10.0)),
            ("1.0", Some(1.0)),
            ("+5", Some(5.0)),
            (" 5", Some(5.0)),
            (" 10", Some(10.0)),
            ("5\u{a0}", Some(5.0)),
            ("\u{feff}5", Some(5.0)),
            ("-1", Some(-1.0)),
            ("-0", Some(0.0)),
            (" ", Some(0.0)),
            ("5.", Some(5.0)),
            (".5e1", Some(5.0)),
            ("Infinity", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("9007199254740993", Some(9_007_199_254_740_992.0)),
            ("", None),
            ("1.5", None),
            ("abc", None),
            ("null", None),
            ("true", None),
            ("NaN", None),
            ("inf", None),
            ("infinity", None),
            ("+-5", None),
            ("1_0", None),
            ("0x", None),
            ("-0x10", None),
            ("1;offset=3", None),
            (".", None),
            ("e1", None),
        ] {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_scripts_write_them() {
        for (number, text) in [
            (9_223_372_036_854_775_808.0, "9223372036854776000"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5e30, "1.5e+30"),
            (f64::INFINITY, "Infinity"),
            (0.0, "0"),
        ] {
            assert_eq!(script_text(number), text);
        }
    }

    #[test]
    fn paths_are_decoded_once_and_slashes_stay() {
        for (path, decoded, last) in [
            ("/a/%6Frdi", "/a/ordi", "ordi"),
            ("/a/%256Frdi", "/a/%256Frdi", "%6Frdi"),
            ("/a/a%2Fb%3F", "/a/a%2Fb%3F", "a/b?"),
            ("/a/%f0%9f%90%b8", "/a/🐸", "🐸"),
            ("/a/%00", "/a/\0", "\0"),
        ] {
            let path = decode_path(path).expect("a good path");
            assert_eq!(path, decoded);
            assert_eq!(
                decode_segment(path.rsplit('/').next().expect("a segment")),
                last
            );
        }
        for bad in ["/%zz", "/%FF%FE", "/%", "/%4"] {
            assert_eq!(decode_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn query_names_and_values_are_decoded() {
        let read = |query: &str| values(query, "limit").collect::<Vec<_>>();
        assert_eq!(read("%6Cimit=1&x=2"), ["1"]);
        assert_eq!(read("limit=1&limit=2"), ["1", "2"]);
        assert_eq!(read("limit=+5"), [" 5"]);
        assert_eq!(read("limit=%2B5"), ["+5"]);
        assert_eq!(read("limit=%zz"), ["%zz"]);
        assert_eq!(read("limit"), [""]);
        assert!(read("Limit=1&limit[]=1&").is_empty());
    }

    #[test]
    fn targets_beyond_the_parser_are_refused() {
        assert!(is_refused_outright("/🐸"));
        assert!(is_refused_outright(&format!("/{}", "a".repeat(20_000))));
        assert!(!is_refused_outright("/%F0%9F%90%B8"));
        assert_eq!(split("/a?b;c"), ("/a", "b;c"));
    }
}
