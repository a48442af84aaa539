//! ordgate's own ETags, and `If-None-Match`.
//!
//! The reference upstream's ETag is that of the chain's tip, the same for every
//! resource, so it is never passed on. ordgate's is a digest of the body: a client
//! still gets 304 after a new block that changed nothing.
//!
//! `If-Match` and `If-Unmodified-Since` protect changes, which a read API does not
//! have (RFC 9110 §13.1.1). The API sends no `Last-Modified`, so dates are not
//! evaluated here.

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderMap;
use http::header::{HeaderValue, IF_NONE_MATCH};

use super::coding::Coding;
use super::validator::{EntityTag, lists_tag};

/// The strong ETag of a body: 128 bits of its SHA-256, in quotes.
pub fn etag(body: &[u8]) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digest = digest(&SHA256, body);
    let digits = digest.as_ref()[..16]
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = digits.map(|digit| HEX[usize::from(digit)]);
    let text: Vec<_> = [b'"'].into_iter().chain(digits).chain([b'"']).collect();
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether a request's `If-None-Match` matches this ETag, or that of the body in a coding,
/// so that the response is 304 (RFC 9110 §13.1.2). `false` if the request has no such field.
pub fn none_match_fails(fields: &HeaderMap, etag: &HeaderValue) -> bool {
    fields.contains_key(IF_NONE_MATCH) && lists_tag(fields, EntityTag::parse(etag.as_bytes()), true)
}

/// The ETag of a body in a coding, whose own ETag this is: strong, like it, and
/// another for each coding (RFC 9110 §8.8.3.3).
pub(crate) fn encoded_etag(etag: &HeaderValue, coding: Coding) -> HeaderValue {
    let own = etag.as_bytes();
    // A weak one stands for all codings already.
    let Some(begin) = own.strip_suffix(b"\"").filter(|own| own.starts_with(b"\"")) else {
        return etag.clone();
    };
    let text = [begin, b"-", coding.name().as_bytes(), b"\""].concat();
    HeaderValue::from_bytes(&text).unwrap_or_else(|_no_value| etag.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_none_match_compares_weakly_in_lists() {
        let tag = HeaderValue::from_static("\"abc\"");
        let rows: &[(&[&str], bool)] = &[
            (&[], false),
            (&["\"abc\""], true),
            (&["W/\"abc\""], true),
            (&["*"], true),
            (&[" * "], true),
            (&["\"x\", \"abc\""], true),
            (&["\"x\",W/\"abc\" , \"y\""], true),
            (&["\"x\"", "\"abc\""], true),
            // A comma within a tag is part of it.
            (&["\"x,\"abc\""], false),
            (&["\"x, \", \"abc\""], true),
            (&["\"ABC\""], false),
            (&["\"ab\""], false),
            (&["abc"], false),
            (&["\"abc"], false),
            (&[""], false),
            (&[",, ,\"abc\""], true),
            (&["w/\"abc\""], false),
        ];
        for (lines, matches) in rows {
            let mut fields = HeaderMap::new();
            for line in *lines {
                fields.append(IF_NONE_MATCH, HeaderValue::from_static(line));
            }
            assert_eq!(none_match_fails(&fields, &tag), *matches, "{lines:?}");
        }
    }
}
