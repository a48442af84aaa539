//! Validators and preconditions (RFC 9110 §8.8, §13; RFC 9111 §4.3.1, §4.3.2), and ordgate's
//! own entity tags, which are digests of bodies. (That of the reference upstream is of the
//! chain's tip, the same for every resource.)
//!
//! Preconditions are evaluated against the selected stored response, to find
//! whether the client's copy is current. Before a request is forwarded, its
//! conditions are replaced by those of the selected stored response. Evaluation
//! allocates nothing.
//!
//! A malformed entity tag is no validator: it is never sent and equals nothing.
//! `If-Match` and `If-Unmodified-Since` are for the origin only (§4.3.2): such
//! a request is forwarded unchanged.

use aws_lc_rs::digest::{SHA256, digest};
use http::header::{HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode, header};

use super::coding::Coding;
use super::date;
use super::list::{members, only};

/// An entity tag (RFC 9110 §8.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// Whether it is weak.
    pub weak: bool,
    /// The text between the quotes.
    pub opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Reads a value that is exactly one entity tag.
    #[must_use]
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let value = value.trim_ascii();
        let weak = value.starts_with(b"W/");
        let quoted = value.get(usize::from(weak) * 2..)?;
        let opaque = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        // etagc: visible ASCII or obs-text, without quotes.
        let is_etagc = |&byte: &u8| byte > b' ' && byte != 0x7f && byte != b'"';
        (opaque.iter().all(is_etagc)).then_some(Self { weak, opaque })
    }

    /// The `ETag` of a response.
    #[must_use]
    pub fn of(headers: &'a HeaderMap) -> Option<Self> {
        only(headers, &header::ETAG).and_then(Self::parse)
    }

    /// Strong comparison (§8.8.3.2): equal, and neither is weak.
    #[must_use]
    pub fn equals_strongly(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }
}

/// Whether the preconditions of a GET or HEAD say that its client has the stored 200 with
/// these fields, so that the response is 304 (RFC 9110 §13.2.2, RFC 9111 §4.3.2). With
/// `is_encoded`, the stored response may be sent in codings, whose tags are then also of it.
#[must_use]
pub fn is_not_modified(request: &HeaderMap, stored: &HeaderMap, is_encoded: bool) -> bool {
    if for_the_origin(request) {
        return false;
    }
    // §13.1.3: If-Modified-Since is ignored beside If-None-Match.
    if request.contains_key(IF_NONE_MATCH) {
        return lists_tag(request, EntityTag::of(stored), is_encoded);
    }
    is_unmodified_since(request, stored)
}

/// Whether the request has preconditions that only an origin evaluates (RFC
/// 9111 §4.3.2).
#[must_use]
pub fn for_the_origin(request: &HeaderMap) -> bool {
    request.contains_key(header::IF_MATCH) || request.contains_key(header::IF_UNMODIFIED_SINCE)
}

/// Whether `If-None-Match` lists an entity tag, by weak comparison (§13.1.2), or is `*`, which
/// matches any representation. With `is_encoded`, the tags of the codings of the same body
/// match too. A tag that ends in a backslash is found only at the end of a list.
#[inline]
fn lists_tag(request: &HeaderMap, own: Option<EntityTag<'_>>, is_encoded: bool) -> bool {
    let matches = |tag: EntityTag<'_>, own: EntityTag<'_>| {
        let suffix = || tag.opaque.strip_prefix(own.opaque);
        tag.opaque == own.opaque || is_encoded && suffix().is_some_and(Coding::is_tag_suffix)
    };
    let mut lines = request.get_all(IF_NONE_MATCH).iter();
    lines.any(|line| {
        let line = line.as_bytes();
        line.trim_ascii() == b"*"
            || own.is_some_and(|own| {
                members(line)
                    .filter_map(EntityTag::parse)
                    .any(|tag| matches(tag, own))
            })
    })
}

/// §13.1.3. Without Last-Modified, the stored response's Date counts (RFC 9111 §4.3.2),
/// which every stored response has.
fn is_unmodified_since(request: &HeaderMap, stored: &HeaderMap) -> bool {
    let since = only(request, &header::IF_MODIFIED_SINCE).and_then(date::parse);
    let modified = date::field(stored, &header::LAST_MODIFIED);
    let changed = modified.or_else(|| date::field(stored, &header::DATE));
    let pair = changed.zip(since);
    pair.is_some_and(|(changed, since)| changed <= since)
}

/// Whether a 304 may be about a stored response of this status. A 304 stands for a
/// 200 (§15.4.5), and an origin ignores the conditions of a request that it would
/// answer otherwise (§13.2.1). An error with the same entity tag as the 200, as
/// some origins send it, would otherwise be confirmed for as long as the tag stays.
#[must_use]
pub(crate) fn can_be_validated(status: StatusCode) -> bool {
    status == StatusCode::OK
}

/// Replaces the conditions of a forwarded GET or HEAD by those of the stored response that
/// is validated (RFC 9111 §4.3.1), if there is one. Removes the range as well, since the
/// answer is to be stored. Returns whether the request is conditional now.
pub fn make_conditional(request: &mut HeaderMap, stored: Option<&HeaderMap>) -> bool {
    for name in [
        IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_RANGE,
        header::RANGE,
    ] {
        request.remove(name);
    }
    let Some(stored) = stored else {
        return false;
    };
    let tag = stored.get(header::ETAG);
    let tag = tag.filter(|_| EntityTag::of(stored).is_some());
    let modified = stored.get(header::LAST_MODIFIED);
    let modified = modified.filter(|_| date::field(stored, &header::LAST_MODIFIED).is_some());
    let conditions = [(IF_NONE_MATCH, tag), (header::IF_MODIFIED_SINCE, modified)];
    for (name, value) in conditions {
        if let Some(value) = value {
            request.insert(name, value.clone());
        }
    }
    tag.or(modified).is_some()
}

/// 128 bits of the SHA-256 of a text, in hexadecimal digits.
pub(crate) fn digits(text: &[u8]) -> String {
    let digest = digest(&SHA256, text);
    let digits = digest.as_ref()[..16].iter();
    digits.map(|byte| format!("{byte:02x}")).collect()
}

/// The strong ETag of a body: its [`digits`], in quotes.
pub fn etag(body: &[u8]) -> HeaderValue {
    let text = format!("\"{}\"", digits(body));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"\""))
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
mod tests;
