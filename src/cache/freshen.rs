//! Freshening: how a 304 or the answer to HEAD updates stored responses (RFC
//! 9111 §3.2, §4.3.4, §4.3.5), and the fields of ordgate's own 304s (RFC 9110
//! §15.4.5).
//!
//! The freshened fields must be judged again like those of a new response
//! ([`super::storable`], [`super::reuse::StoredFacts`]): a 304 may carry
//! `no-store`.

use std::time::SystemTime;

use http::{
    HeaderMap, StatusCode,
    header::{self, HeaderName},
};

use super::{date, hop, validator::EntityTag, validator::strong_date};

/// Fields that describe the stored bytes themselves, which a 304 does not replace (§3.2).
const OF_THE_BYTES: [HeaderName; 7] = [
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::ETAG,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// The stored responses that a 304 applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identified {
    /// These, by index: [`freshen`] each.
    Stored(Vec<usize>),
    /// The one stored response that was validated, though the 304 names none of
    /// its validators. It may be used for this request, and its fields do not
    /// change.
    Unnamed,
    /// None: repeat the request without conditions.
    Other,
}

/// Identifies the stored responses that a 304 applies to, among those that
/// matched the request or whose validators it carried (§4.3.4).
#[must_use]
pub(crate) fn identify(not_modified: &HeaderMap, initial: &[&HeaderMap]) -> Identified {
    let tag = EntityTag::of(not_modified);
    let modified = date::field(not_modified, &header::LAST_MODIFIED);
    let found = match (tag, modified) {
        // A strong validator identifies all responses that have it. An entity
        // tag is more reliable than a date, which counts only without a tag.
        (Some(tag), _) if !tag.weak => with_tag(initial, |own| own.equals_strongly(&tag)),
        // A weak validator identifies the most recent response that has it.
        (Some(tag), _) => most_recent(initial, with_tag(initial, |own| own.equals_weakly(&tag))),
        (None, Some(modified)) if strong_date(not_modified).is_some() => {
            with_date(initial, modified)
        }
        (None, Some(modified)) => most_recent(initial, with_date(initial, modified)),
        // A 304 without a validator updates the stored response only if that is
        // the only one and has none either. If it has one, §4.3.3 still
        // applies: the origin has confirmed it.
        (None, None) => match initial {
            [only] if has_validator(only) => return Identified::Unnamed,
            [_] => vec![0],
            _ => Vec::new(),
        },
    };
    if found.is_empty() {
        Identified::Other
    } else {
        Identified::Stored(found)
    }
}

fn with_tag(initial: &[&HeaderMap], equals: impl Fn(&EntityTag<'_>) -> bool) -> Vec<usize> {
    let has = |at: &usize| EntityTag::of(initial[*at]).is_some_and(|own| equals(&own));
    (0..initial.len()).filter(has).collect()
}

fn with_date(initial: &[&HeaderMap], modified: SystemTime) -> Vec<usize> {
    let has = |at: &usize| date::field(initial[*at], &header::LAST_MODIFIED) == Some(modified);
    (0..initial.len()).filter(has).collect()
}

fn has_validator(headers: &HeaderMap) -> bool {
    EntityTag::of(headers).is_some() || date::field(headers, &header::LAST_MODIFIED).is_some()
}

fn most_recent(initial: &[&HeaderMap], found: Vec<usize>) -> Vec<usize> {
    found
        .into_iter()
        .max_by_key(|&at| date::field(initial[at], &header::DATE))
        .into_iter()
        .collect()
}

/// Whether a 304, or the answer to a HEAD, updates this field of a stored response
/// (§3.2).
#[must_use]
pub(crate) fn replaces(name: &HeaderName, update: &HeaderMap) -> bool {
    !OF_THE_BYTES.contains(name) && *name != header::TRAILER && !hop::ends_here(name, update)
}

/// Updates the fields of a stored response from a 304, or from the 200 to a
/// HEAD (§3.2). Each field of the update replaces all lines of its name, except
/// hop-by-hop fields and those that describe the stored bytes. `Date` and `Age`
/// become those of the update, and are absent where it has none.
pub(crate) fn freshen(stored: &mut HeaderMap, update: &HeaderMap) {
    stored.remove(header::AGE);
    stored.remove(header::DATE);
    for name in update.keys().filter(|name| replaces(name, update)) {
        stored.remove(name);
        for value in update.get_all(name) {
            stored.append(name, value.clone());
        }
    }
}

/// What the 200 to a HEAD means for a stored response to GET (§4.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadEffect {
    /// It has the same representation: [`freshen`] it.
    Freshen,
    /// Its representation has changed: treat it as stale.
    Stale,
}

/// Compares a stored response with the 200 to a HEAD. One of another status is of
/// another representation, whatever its fields are.
#[must_use]
pub(crate) fn head_effect(
    status: StatusCode,
    stored: &HeaderMap,
    length: u64,
    head: &HeaderMap,
) -> HeadEffect {
    let same = |name: HeaderName| match head.get(&name) {
        Some(received) => stored.get(&name) == Some(received),
        None => true,
    };
    let same_length = head.get(header::CONTENT_LENGTH).is_none_or(|said| {
        said.to_str()
            .is_ok_and(|said| said.trim().parse() == Ok(length))
    });
    let is_same = status == StatusCode::OK
        && same(header::ETAG)
        && same(header::LAST_MODIFIED)
        && same_length;
    if is_same {
        HeadEffect::Freshen
    } else {
        HeadEffect::Stale
    }
}

/// Metadata of the representation that a 304 omits (RFC 9110 §15.4.5).
const OF_THE_REPRESENTATION: [HeaderName; 8] = [
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_RANGE,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
];

/// The fields of a 304 from a stored response (RFC 9110 §15.4.5): all except
/// metadata of the representation, which the client has. `Last-Modified` stays
/// if it is the only validator.
#[must_use]
pub(crate) fn not_modified_fields(stored: &HeaderMap) -> HeaderMap {
    let mut fields = stored.clone();
    for name in &OF_THE_REPRESENTATION {
        fields.remove(name);
    }
    if fields.contains_key(header::ETAG) {
        fields.remove(header::LAST_MODIFIED);
    }
    fields
}

#[cfg(test)]
mod tests;
