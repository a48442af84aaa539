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
            let value = value_of(name, query)?;
            let Some(text) = value.or(default.as_deref()) else {
                continue;
            };
            out.push(separator);
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            match value.is_some() {
                true => kind.write_canonical(name, text, true, out)?,
                false => out.extend_from_slice(text.as_bytes()),
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

/// The value of a parameter in a query, as it was sent.
///
/// # Errors
/// Where it comes twice.
#[inline]
pub(crate) fn value_of<'q>(name: &str, query: &'q str) -> Result<Option<&'q str>, Invalid> {
    let mut given = parts(query).filter_map(|pair| Some((pair, value_in(pair, name)?)));
    let value = given.next().map(|(_, value)| value);
    match (value, given.next()) {
        (Some(first), Some((second, _))) => {
            let received = format!("{first}&{second}");
            Err(Invalid::new(name, &received, "given once"))
        }
        _ => Ok(value),
    }
}

/// The parts of a query. They are short, for which this is faster than a search by the standard
/// library.
fn parts(mut query: &str) -> impl Iterator<Item = &str> {
    iter::from_fn(move || {
        let end = query.bytes().position(|byte| byte == b'&');
        let part = &query[..end.unwrap_or(query.len())];
        let is_end = query.is_empty();
        query = end.map_or("", |end| &query[end + 1..]);
        (!is_end).then_some(part)
    })
}

/// The value in a part of a query that has this name, perhaps percent-encoded.
fn value_in<'q>(part: &'q str, name: &str) -> Option<&'q str> {
    match part.strip_prefix(name) {
        Some("") => return Some(""),
        Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
        // A declared name needs no encoding.
        _ if !part.as_bytes().contains(&b'%') => return None,
        _ => {}
    }
    let (sent, value) = part.split_once('=').unwrap_or((part, ""));
    decode(sent, true)
        .is_some_and(|sent| sent == name)
        .then_some(value)
}
