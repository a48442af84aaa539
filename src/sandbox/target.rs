//! The request target as the reference reads it: percent-decoding, query strings, and conversion of text to integers.
//!
//! Used by `api`, and by `control` for its own parameters. Invariant: it accepts the recorded lenient forms of integers
//! (`1e1`, `0x10`, `010`, `+5`, spaces, `Infinity`) and no others. ordgate's stricter rules are not used here, since the
//! sandbox must not share code with what it tests.

use std::borrow::Cow;

/// True if the reference's HTTP parser rejects the target before routing: non-ASCII, or longer than 16 KiB.
pub(super) fn is_unparsable(target: &str) -> bool {
    const MAX_LENGTH: usize = 16 * 1024;
    !target.is_ascii() || target.len() > MAX_LENGTH
}

/// Splits a target into path and query. A semicolon ends the path too, which is the default of the reference's framework
/// (not recorded).
pub(super) fn split(target: &str) -> (&str, &str) {
    target.split_once(['?', ';']).unwrap_or((target, ""))
}

/// Decodes a path once except for encoded delimiters, so that `%2F` does not split segments; [`decode_segment`] decodes
/// those. None if the path is malformed or not UTF-8.
pub(super) fn decode_path(path: &str) -> Option<String> {
    decode(path, b"#$&+,/:;=?@%")
}

/// Decodes the delimiters that [`decode_path`] kept.
pub(super) fn decode_segment(segment: &str) -> Cow<'_, str> {
    decode(segment, b"").map_or(Cow::Borrowed(segment), Cow::Owned)
}

/// The values of a query parameter, in order. Names and values are decoded; malformed ones stay raw.
pub(super) fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form_decoded(key) == name).then(|| form_decoded(value))
    })
}

/// The names of all query parameters, decoded, in order.
pub(super) fn names(query: &str) -> impl Iterator<Item = String> + '_ {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| form_decoded(pair.split_once('=').map_or(pair, |(name, _)| name)))
}

fn form_decoded(text: &str) -> String {
    let spaced = text.replace('+', " ");
    decode(&spaced, b"").unwrap_or(spaced)
}

/// Decodes all but some characters. None if the text is malformed or not UTF-8.
fn decode(text: &str, kept: &[u8]) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
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
            byte if kept.contains(&byte) => decoded.extend([b'%', *high, *low]),
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}

fn hex_pair(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Converts text to an integer like the reference's validator: a double without a fraction, or an infinity.
pub(super) fn integer(text: &str) -> Option<f64> {
    if text.is_empty() {
        return None;
    }
    let number = js_number(text)?;
    // Adding zero turns minus zero into zero.
    (number.is_infinite() || number.fract() == 0.0).then_some(number + 0.0)
}

/// The result of JavaScript's `Number(text)`; white space alone is zero.
fn js_number(text: &str) -> Option<f64> {
    let text = text.trim_matches(|letter: char| {
        // U+0085 is white space in Unicode but not in JavaScript; the byte order mark is the reverse.
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
    // Rust's parser accepts JavaScript's decimal forms, and also words such as `inf` and a second sign; exclude those.
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

/// Formats a number like JavaScript: digits below 1e21, then the exponent form.
pub(super) fn js_text(number: f64) -> String {
    match number.abs() {
        f64::INFINITY if number > 0.0 => "Infinity".to_owned(),
        f64::INFINITY => "-Infinity".to_owned(),
        ..1e21 => format!("{number}"),
        _ => format!("{number:e}").replace('e', "e+"),
    }
}

#[cfg(test)]
mod tests {
    use super::integer;

    /// The recorded forms, and similar ones.
    #[test]
    fn integers_are_converted_as_recorded() {
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
}
