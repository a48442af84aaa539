//! Freshening: how a 304 updates a stored response (RFC 9111 §3.2, §4.3.4), and the fields
//! of ordgate's own 304s (RFC 9110 §15.4.5).
//!
//! The freshened fields must be judged again like those of a new response
//! ([`super::storable`], [`super::reuse::StoredFacts`]): a 304 may carry
//! `no-store`.

use http::HeaderMap;
use http::header::{
    AGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
    ETAG, HeaderName, LAST_MODIFIED, TRAILER,
};

use super::validator::EntityTag;
use super::{date, hop};

/// Fields that describe the stored bytes themselves: a 304 neither replaces nor repeats them.
const OF_THE_BYTES: [HeaderName; 6] = [
    CONTENT_LENGTH,
    CONTENT_ENCODING,
    CONTENT_RANGE,
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
    let modified = |headers| date::field(headers, &LAST_MODIFIED);
    match (EntityTag::of(not_modified), EntityTag::of(stored)) {
        // A strong one names only a strong one (RFC 9110 §8.8.3.2).
        (Some(tag), Some(own)) => tag.opaque == own.opaque && (tag.weak || !own.weak),
        (Some(_), None) => false,
        (None, _) => modified(not_modified).is_some_and(|date| modified(stored) == Some(date)),
    }
}

/// Updates the fields of a stored response from a 304 (§3.2). Each field of the update
/// replaces all lines of its name, except hop-by-hop fields and those that describe the stored
/// bytes. `Date` and `Age` become those of the update, and are absent where it has none.
pub(crate) fn freshen(stored: &mut HeaderMap, update: &HeaderMap) {
    let mut update = update.clone();
    hop::strip(&mut update);
    for name in OF_THE_BYTES.iter().chain(&[ETAG, TRAILER]) {
        update.remove(name);
    }
    for name in update.keys().chain(&[AGE, DATE]) {
        stored.remove(name);
    }
    stored.extend(update);
}

/// The fields of a 304 from a stored response (RFC 9110 §15.4.5): all except
/// metadata of the representation, which the client has. `Last-Modified` stays
/// if it is the only validator.
#[must_use]
pub(crate) fn not_modified_fields(stored: &HeaderMap) -> HeaderMap {
    let mut fields = stored.clone();
    for name in OF_THE_BYTES.iter().chain(&[CONTENT_TYPE, CONTENT_LANGUAGE]) {
        fields.remove(name);
    }
    if fields.contains_key(ETAG) {
        fields.remove(LAST_MODIFIED);
    }
    fields
}

#[cfg(test)]
mod tests;
