//! Makes the canonical form of a request to a route.

use super::Route;
use super::dots::has_dot_segment;
use super::template::PathPart;
use crate::cache::key::Key;
use crate::validate::{Invalid, ParameterType, decode};

/// The most parameters that a query may declare. Their values are kept on the
/// stack.
pub(crate) const MAX_QUERY_PARAMETERS: usize = 16;

/// What a tail or a parameter must not contain: the upstream, or a proxy before
/// it, could resolve it to a path outside the route's.
const NO_DOTS: &str = "without . and .. as segments, percent-encoded ones and those before \\, %2F, %5C or ; among them";

/// The values of the path parameters in a request, in the path's order.
#[derive(Debug, Default)]
pub struct Captures<'p> {
    /// The first of them, and nearly always all.
    first: [&'p str; 3],
    more: Vec<&'p str>,
    /// The rest of the path, where the route has a tail.
    pub(super) tail: &'p str,
}

impl<'p> Captures<'p> {
    pub(super) fn put(&mut self, at: usize, value: &'p str) {
        match self.first.get_mut(at) {
            Some(slot) => *slot = value,
            None => self.more.push(value),
        }
    }

    fn value(&self, at: usize) -> &'p str {
        let first = self.first.get(at);
        let value = first.or_else(|| self.more.get(at - self.first.len()));
        value.copied().unwrap_or("")
    }
}

impl Route {
    /// Validates a request and makes its cache key, which contains its canonical
    /// form.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn canonical(&self, captures: &Captures<'_>, query: Option<&str>) -> Result<Key, Invalid> {
        let mut key = Key::begin(self.number);
        self.write_path(captures, &mut key)?;
        if self.request.any_query {
            if let Some(query) = query {
                key.buffer().push(b'?');
                key.buffer().extend_from_slice(query.as_bytes());
            }
        } else {
            let values = self.query_values(query.unwrap_or(""))?;
            self.write_query(values, &mut key)?;
        }
        Ok(key)
    }

    #[inline]
    fn write_path(&self, captures: &Captures<'_>, key: &mut Key) -> Result<(), Invalid> {
        for piece in &self.upstream.path.0 {
            match piece {
                PathPart::Literal(text) => key.buffer().extend_from_slice(text.as_bytes()),
                PathPart::Tail if has_dot_segment(captures.tail.as_bytes()) => {
                    return Err(Invalid::new("path", captures.tail, NO_DOTS));
                }
                PathPart::Tail => key.buffer().extend_from_slice(captures.tail.as_bytes()),
                PathPart::Param(at) => {
                    let parameter = &self.request.params[*at];
                    let raw = captures.value(*at);
                    let begin = key.buffer().len();
                    parameter
                        .kind
                        .write_canonical(&parameter.name, raw, false, key.buffer())?;
                    // A text may contain encoded slashes.
                    if has_dot_segment(&key.buffer()[begin..]) {
                        return Err(Invalid::new(&parameter.name, raw, NO_DOTS));
                    }
                }
            }
        }
        Ok(())
    }

    /// The values of the declared parameters in a query.
    #[inline]
    fn query_values<'q>(
        &self,
        mut query: &'q str,
    ) -> Result<[Option<&'q str>; MAX_QUERY_PARAMETERS], Invalid> {
        let mut values = [None; MAX_QUERY_PARAMETERS];
        while !query.is_empty() {
            let (pair, rest) = split_at_first(query, b'&');
            query = rest;
            if pair.is_empty() {
                continue;
            }
            let (name, value) = split_at_first(pair, b'=');
            match self.declared(name) {
                Some(at) => {
                    if let Some(first) = values[at].replace(value) {
                        let received = format!("{first}&{name}={value}");
                        let name = &self.request.query[at].name;
                        return Err(Invalid::new(name, &received, "given once"));
                    }
                }
                None if self.request.strict_query => return Err(self.unknown(name)),
                None => {}
            }
        }
        Ok(values)
    }

    #[inline]
    fn write_query(
        &self,
        values: [Option<&str>; MAX_QUERY_PARAMETERS],
        key: &mut Key,
    ) -> Result<(), Invalid> {
        let mut separator = b'?';
        for (parameter, value) in self.request.query.iter().zip(values) {
            if value.is_none() && parameter.default.is_none() {
                continue;
            }
            let out = key.buffer();
            out.push(separator);
            out.extend_from_slice(parameter.name.as_bytes());
            out.push(b'=');
            match (value, &parameter.default) {
                (Some(raw), _) => {
                    parameter
                        .kind
                        .write_canonical(&parameter.name, raw, true, out)?;
                }
                (None, Some(default)) => out.extend_from_slice(default.as_bytes()),
                (None, None) => {}
            }
            separator = b'&';
        }
        Ok(())
    }

    /// The index of the declared query parameter with this name in the request.
    fn declared(&self, raw: &str) -> Option<usize> {
        let position = |name: &str| self.request.query.iter().position(|p| *p.name == *name);
        // A declared name needs no encoding.
        position(raw).or_else(|| match raw.contains(['%', '+']) {
            false => None,
            true => position(&decode(raw, true)?),
        })
    }

    fn unknown(&self, name: &str) -> Invalid {
        let names: Vec<_> = self.request.query.iter().map(|p| &*p.name).collect();
        let allowed = match names.is_empty() {
            true => "absent: this route takes no query parameters".to_owned(),
            false => format!("one of the query parameters {}", names.join(", ")),
        };
        Invalid::new("query", name, allowed)
    }

    /// The key of a page of the list of the block at a height; `None` where this
    /// route does not have whole blocks' lists.
    pub(crate) fn key_of_block(&self, height: u32, limit: u64, offset: u64) -> Option<Key> {
        let mut key = Key::begin(self.number);
        for piece in &self.upstream.path.0 {
            let text = match piece {
                PathPart::Literal(text) => text.to_string(),
                PathPart::Param(at) if self.is_block(*at) => height.to_string(),
                PathPart::Param(_) | PathPart::Tail => return None,
            };
            key.buffer().extend_from_slice(text.as_bytes());
        }
        let mut separator = '?';
        for parameter in &self.request.query {
            let value = match &*parameter.name {
                "limit" => limit,
                "offset" => offset,
                _ if parameter.default.is_none() => continue,
                _ => return None,
            };
            let pair = format!("{separator}{}={value}", parameter.name);
            key.buffer().extend_from_slice(pair.as_bytes());
            separator = '&';
        }
        Some(key)
    }

    fn is_block(&self, at: usize) -> bool {
        let parameter = self.request.params.get(at);
        parameter.is_some_and(|param| matches!(param.kind, ParameterType::Block { .. }))
    }
}

/// What is before the first delimiter, and what is after it. Names and values are
/// short, for which this is faster than memchr.
fn split_at_first(text: &str, delimiter: u8) -> (&str, &str) {
    match text.bytes().position(|byte| byte == delimiter) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    }
}
