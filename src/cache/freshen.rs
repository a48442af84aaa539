//! Freshening: how a 304 updates a stored response (RFC 9111 §3.2, §4.3.4), and the fields
//! of ordgate's own 304s (RFC 9110 §15.4.5).
//!
//! The freshened fields must be judged again like those of a new response
//! ([`super::storable`], [`super::reuse::StoredFacts`]): a 304 may carry
//! `no-store`.

use http::{
    HeaderMap,
    header::{self, HeaderName},
};

use super::{date, hop, validator::EntityTag};

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

/// Whether a 304 names the stored response that was validated (§4.3.4). Then it updates
/// that response. One that names another validator, or none, still confirms it for the
/// request that it answers (§4.3.3), but does not change its fields. An entity tag is more
/// reliable than a date, which counts only without a tag.
#[must_use]
pub(crate) fn names(not_modified: &HeaderMap, stored: &HeaderMap) -> bool {
    let modified = |headers| date::field(headers, &header::LAST_MODIFIED);
    match (EntityTag::of(not_modified), EntityTag::of(stored)) {
        (Some(tag), Some(own)) if tag.weak => tag.equals_weakly(&own),
        (Some(tag), Some(own)) => tag.equals_strongly(&own),
        (Some(_), None) => false,
        (None, _) => modified(not_modified).is_some_and(|date| modified(stored) == Some(date)),
    }
}

/// Whether a 304 updates this field of a stored response (§3.2).
#[must_use]
pub(crate) fn replaces(name: &HeaderName, update: &HeaderMap) -> bool {
    !OF_THE_BYTES.contains(name) && *name != header::TRAILER && !hop::ends_here(name, update)
}

/// Updates the fields of a stored response from a 304 (§3.2). Each field of the update replaces all lines of its name, except
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
