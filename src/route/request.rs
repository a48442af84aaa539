//! Makes the canonical form of a request to a route.

use std::iter;

use matchit::Params;

use super::template::{PathPart, TAIL};
use super::{Parameter, Route};
use crate::cache::key::Key;
use crate::validate::{Invalid, decode};

impl Route {
    /// Validates a request and makes its cache key, which contains its canonical
    /// form.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn canonical(
        &self,
        captures: &Params<'_, '_>,
        query: Option<&str>,
    ) -> Result<Key, Invalid> {
        let mut key = Key::begin(self.number);
        self.write_path(captures, &mut key)?;
        if self.request.any_query {
            if let Some(query) = query {
                key.buffer().push(b'?');
                key.buffer().extend_from_slice(query.as_bytes());
            }
        } else {
            self.write_query(query.unwrap_or(""), key.buffer())?;
        }
        Ok(key)
    }

    #[inline]
    fn write_path(&self, captures: &Params<'_, '_>, key: &mut Key) -> Result<(), Invalid> {
        for part in &self.upstream.path.0 {
            let out = key.buffer();
            match part {
                PathPart::Literal(text) => out.extend_from_slice(text.as_bytes()),
                PathPart::Tail => {
                    out.extend_from_slice(captures.get(TAIL).unwrap_or("").as_bytes());
                }
                PathPart::Param(at) => {
                    let Parameter { name, kind, .. } = &self.request.params[*at];
                    kind.write_canonical(name, captures.get(&**name).unwrap_or(""), false, out)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the declared parameters that a query has or that have a default.
    #[inline]
    fn write_query(&self, query: &str, out: &mut Vec<u8>) -> Result<(), Invalid> {
        let mut separator = b'?';
        for parameter in &self.request.query {
            let Parameter {
                name,
                kind,
                default,
                ..
            } = parameter;
            let mut given = pairs(query).filter(|(sent, _)| is_name(sent, name));
            let value = given.next().map(|(_, value)| value);
            if let (Some(first), Some((sent, second))) = (value, given.next()) {
                let received = format!("{first}&{sent}={second}");
                return Err(Invalid::new(name, &received, "given once"));
            }
            if value.is_none() && default.is_none() {
                continue;
            }
            out.push(separator);
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            match value {
                Some(raw) => kind.write_canonical(name, raw, true, out)?,
                None => out.extend_from_slice(default.as_deref().unwrap_or_default().as_bytes()),
            }
            separator = b'&';
        }
        Ok(())
    }

    /// The key of a page of the list of the block at a height; `None` where this
    /// route does not have whole blocks' lists.
    pub(crate) fn key_of_block(&self, height: u32, limit: u64, offset: u64) -> Option<Key> {
        self.chain.segments.block?;
        let mut target = self.upstream.path.with(&height.to_string())?;
        let mut separator = '?';
        for parameter in &self.request.query {
            let value = match &*parameter.name {
                "limit" => limit,
                "offset" => offset,
                _ if parameter.default.is_none() => continue,
                _ => return None,
            };
            target.push_str(&format!("{separator}{}={value}", parameter.name));
            separator = '&';
        }
        Some(Key::of(self.number, &target))
    }
}

/// The parameters of a query.
fn pairs(mut query: &str) -> impl Iterator<Item = (&str, &str)> {
    iter::from_fn(move || {
        let (pair, rest) = split_at_first(query, b'&');
        let is_end = query.is_empty();
        query = rest;
        (!is_end).then(|| split_at_first(pair, b'='))
    })
}

/// What is before the first delimiter, and what is after it. Names and values are short, for
/// which this is faster than a search by the standard library.
fn split_at_first(text: &str, delimiter: u8) -> (&str, &str) {
    match text.bytes().position(|byte| byte == delimiter) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    }
}

/// Whether the name of a parameter came, perhaps percent-encoded, which makes it longer.
fn is_name(sent: &str, name: &str) -> bool {
    sent == name || sent.len() > name.len() && decode(sent, true).is_some_and(|sent| sent == name)
}
