//! Reads the addresses in `Forwarded` and `X-Forwarded-For`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};

use crate::wire;

/// A field in which proxies report their clients.
pub(super) struct ForwardingField {
    pub(super) name: HeaderName,
    /// Reads a line from the right. `None` stands for an element that is not an
    /// address.
    read: fn(&str) -> Vec<Option<IpAddr>>,
}

/// `X-Forwarded-For`, a list of addresses.
pub(super) static X_FORWARDED_FOR: ForwardingField = ForwardingField {
    name: wire::X_FORWARDED_FOR,
    read: addresses,
};

/// `Forwarded` (RFC 7239).
pub(super) static FORWARDED: ForwardingField = ForwardingField {
    name: http::header::FORWARDED,
    read: forwarded,
};

impl ForwardingField {
    /// The addresses of all lines, from the right.
    ///
    /// Each line is read on its own, so that a quote which a client leaves open in
    /// its line does not hide what a proxy adds in the next.
    pub(super) fn addresses(&self, fields: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let read = self.read;
        let lines = fields.get_all(&self.name).iter().rev();
        lines.flat_map(move |line| match line.to_str() {
            Ok(line) => read(line),
            Err(_not_ascii) => vec![None],
        })
    }
}

/// The addresses of a line of `X-Forwarded-For`, from the right.
fn addresses(line: &str) -> Vec<Option<IpAddr>> {
    let elements = line.rsplit(',').map(str::trim);
    elements.filter(|e| !e.is_empty()).map(address).collect()
}

/// The clients' addresses of a line of `Forwarded`, from the right.
fn forwarded(line: &str) -> Vec<Option<IpAddr>> {
    // With an open quote it is unknown where elements begin.
    let Some(elements) = split(line, ',') else {
        return vec![None];
    };
    let elements = elements.into_iter().rev().map(str::trim);
    elements
        .filter(|e| !e.is_empty())
        .map(forwarded_for)
        .collect()
}

/// Splits at a delimiter outside quoted strings (RFC 9110 §5.6.4), in which a
/// backslash escapes the next character. `None` where a quoted string has no end.
fn split(text: &str, delimiter: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut from, mut quoted, mut escaped) = (0, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if character == delimiter && !quoted => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    (!quoted).then_some(parts)
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
        .or_else(|_| text.trim_start_matches('[').trim_end_matches(']').parse())
        .ok()
}

/// The `for` parameter of a forwarded-element (RFC 7239 §4). `None` where it is
/// `unknown` or an obfuscated identifier, or where the element is malformed or has
/// two of them.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in split(element, ';')?.into_iter().map(str::trim) {
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_once('=')?;
        let value = unquoted(value.trim())?;
        if name.trim().eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    address(&found?)
}

/// A parameter's value without its quotes and escapes; `None` where it is neither
/// a token nor a quoted string.
fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let Some(rest) = value.strip_prefix('"') else {
        let is_plain = !value.contains(['"', '\\']);
        return is_plain.then_some(Cow::Borrowed(value));
    };
    let mut text = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '\\' => text.push(characters.next()?),
            '"' => break,
            other => text.push(other),
        }
    }
    characters.next().is_none().then_some(Cow::Owned(text))
}
