//! Makes the canonical form of a request to a route.

use matchit::Params;
use percent_encoding::percent_decode;

use super::template::{PathPart, TAIL};
use super::{Parameter, Route};
use crate::cache::key::Key;
use crate::validate::{Invalid, ParameterType, decode};

/// What a tail or a parameter must not contain: the upstream, or a proxy before
/// it, could resolve it to a path outside the route's.
const NO_DOTS: &str = "without . and .. as segments, percent-encoded ones and those before \\, %2F, %5C or ; among them";

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
        for piece in &self.upstream.path.0 {
            let out = key.buffer();
            let begin = out.len();
            let (name, raw) = match piece {
                PathPart::Literal(text) => {
                    out.extend_from_slice(text.as_bytes());
                    continue;
                }
                PathPart::Tail => {
                    let tail = captures.get(TAIL).unwrap_or("");
                    out.extend_from_slice(tail.as_bytes());
                    ("path", tail)
                }
                PathPart::Param(at) => {
                    let Parameter { name, kind, .. } = &self.request.params[*at];
                    let raw = captures.get(&**name).unwrap_or("");
                    kind.write_canonical(name, raw, false, out)?;
                    (&**name, raw)
                }
            };
            // A text may contain encoded slashes.
            if has_dot_segment(&out[begin..]) {
                return Err(Invalid::new(name, raw, NO_DOTS));
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
            let pairs = query
                .split('&')
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let mut given = pairs.filter(|(sent, _)| is_name(sent, name));
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
        parameter.is_some_and(|param| matches!(param.kind, ParameterType::Block))
    }
}

/// Whether a path has a dot segment (RFC 3986 §5.2.4), `.` or `..`, in any form that some
/// server takes for one: it would lead to a path outside of the base URL or of
/// `upstream_path`.
///
/// A dot may be percent-encoded. A segment may end with a slash or a backslash, either of
/// which may be percent-encoded, or with the semicolon of parameters or a NUL, which some
/// servers remove before they resolve dots. Text that is encoded twice is not decoded twice
/// by a server that follows the RFC.
pub(super) fn has_dot_segment(path: &[u8]) -> bool {
    // Most paths contain neither.
    if memchr::memchr2(b'.', b'%', path).is_none() {
        return false;
    }
    // The dots that the segment consists of so far; `None` where it has another byte.
    let mut dots = Some(0);
    for byte in percent_decode(path).chain([b'/']) {
        let ends = matches!(byte, b'/' | b'\\' | b';' | 0);
        if ends && matches!(dots, Some(1 | 2)) {
            return true;
        }
        dots = match byte {
            b'/' | b'\\' => Some(0),
            b'.' => dots.map(|dots| dots + 1),
            _ => None,
        };
    }
    false
}

/// Whether the name of a parameter came, perhaps percent-encoded.
fn is_name(sent: &str, name: &str) -> bool {
    // A declared name needs no encoding.
    sent == name || sent.contains(['%', '+']) && decode(sent, true).is_some_and(|sent| sent == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_dot_segments() {
        for path in [
            ".",
            "..",
            "../x",
            "a/..",
            "a/./b",
            "a/../b",
            "a/%2e%2e/b",
            "a/%2E%2e/b",
            "a/%2e",
            "a/.%2E/b",
            "%2e./b",
            "a//../b",
            "..%2fb",
            "a%2F..%2Fb",
            "a%2f%2e%2e",
            "..\\b",
            "a\\..",
            "..%5Cb",
            "a%5c..",
            "..;/b",
            "..;x=y/b",
            "a/..%3b/b",
            "a/.;/b",
            "..%00",
            "a/..%00x/b",
            "a/.../..",
        ] {
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "a/b",
            "a.b/c",
            "..a",
            "a..",
            "a../b",
            "a/.b",
            "a/b./c",
            "...",
            "a/.../b",
            "%2e%2e%2e",
            ".well-known/x",
            "a/..b;c",
            "a/b..;c",
            "%252e%252e/b",
            "..%252fb",
            "%2",
            "%",
            "a%20.%20b",
            "a/%2eb",
        ] {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }
}
