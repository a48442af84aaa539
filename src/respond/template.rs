//! Templates: the header fields of stored responses, prepared once for each
//! [`Metadata`] under the current configuration.
//!
//! A hit clones its template and sets the fields that differ between requests,
//! in their order, without a look-up by name.

use std::sync::OnceLock;

use http::header::{AGE, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::EMPTY;
use crate::cache::coding::{CODINGS, Coding};
use crate::cache::metadata::{ClientFreshness, Metadata, NUMBERED};
use crate::wire::{RATELIMIT, X_REQUEST_ID};

/// The fields that responses with the same metadata have in common.
pub(super) struct HeaderTemplate {
    /// The fields; those that differ between requests are empty.
    pub(super) fields: HeaderMap,
    /// The role of each field, in their order, up to the last that is set for each
    /// request.
    pub(super) roles: Box<[FieldRole]>,
}

/// What sets a field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldRole {
    /// The template itself.
    Constant,
    /// The stored response's ETag.
    Etag,
    /// The stored response's age.
    Age,
    /// The outcome of the request.
    CacheStatus,
    /// The request's id.
    RequestId,
    /// What is left of the client's rate limit.
    RateLimit,
}

impl FieldRole {
    fn of(name: &HeaderName) -> Self {
        match name {
            name if name == ETAG => Self::Etag,
            name if name == AGE => Self::Age,
            name if name == CACHE_STATUS => Self::CacheStatus,
            name if name == X_REQUEST_ID => Self::RequestId,
            name if name == RATELIMIT => Self::RateLimit,
            _ => Self::Constant,
        }
    }
}

impl HeaderTemplate {
    /// Renders the fields of a stored response, whose body is sent in a coding or as
    /// it is. `add_constant` adds those that every response has.
    pub(super) fn new(
        metadata: &Metadata,
        coding: Option<Coding>,
        add_constant: impl FnOnce(&mut HeaderMap),
    ) -> Self {
        let mut fields = HeaderMap::with_capacity(12);
        fields.insert(CONTENT_TYPE, metadata.content_type.clone());
        if let Some(coding) = coding {
            fields.insert(CONTENT_ENCODING, coding.field());
        }
        fields.insert(CACHE_CONTROL, cache_control(metadata.client_freshness));
        fields.insert(ETAG, EMPTY);
        fields.insert(AGE, EMPTY);
        fields.insert(CACHE_STATUS, EMPTY);
        add_constant(&mut fields);
        let mut roles: Vec<_> = fields.keys().map(FieldRole::of).collect();
        while roles.pop_if(|role| *role == FieldRole::Constant).is_some() {}
        Self {
            roles: roles.into(),
            fields,
        }
    }
}

fn cache_control(freshness: ClientFreshness) -> HeaderValue {
    let text = match freshness {
        ClientFreshness::Nothing => return HeaderValue::from_static("no-store"),
        ClientFreshness::For(time) => format!("public, max-age={}", time.as_secs()),
        ClientFreshness::Immutable(time) => {
            format!("public, max-age={}, immutable", time.as_secs())
        }
    };
    HeaderValue::try_from(text).unwrap_or(EMPTY)
}

/// The templates of one configuration, by the number of their metadata. Each is
/// made when it is first used.
pub(super) struct Templates {
    /// Those of bodies as they are.
    plain: ByNumber,
    /// Those of encoded bodies, by coding.
    encoded: [OnceLock<ByNumber>; CODINGS],
}

type ByNumber = Box<[OnceLock<Box<HeaderTemplate>>]>;

fn by_number() -> ByNumber {
    (0..NUMBERED).map(|_| OnceLock::new()).collect()
}

impl Templates {
    /// No templates yet.
    pub(super) fn new() -> Self {
        Self {
            plain: by_number(),
            encoded: Default::default(),
        }
    }

    /// The template of a metadata and a coding; `None` if the metadata has no number.
    pub(super) fn get(
        &self,
        metadata: &Metadata,
        coding: Option<Coding>,
        make: impl FnOnce() -> HeaderTemplate,
    ) -> Option<&HeaderTemplate> {
        let all = match coding {
            None => &self.plain,
            Some(coding) => self.encoded[coding.index()].get_or_init(by_number),
        };
        let slot = all.get(metadata.number())?;
        Some(slot.get_or_init(|| Box::new(make())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn metadata(content_type: &'static str) -> std::sync::Arc<Metadata> {
        let content_type = HeaderValue::from_static(content_type);
        Metadata::of(content_type, ClientFreshness::Nothing)
    }

    #[test]
    fn cache_control_says_how_long_a_client_may_reuse_a_response() {
        let time = Duration::from_millis(7_900);
        for (freshness, expected) in [
            (ClientFreshness::Nothing, "no-store"),
            (ClientFreshness::For(time), "public, max-age=7"),
            (
                ClientFreshness::Immutable(time),
                "public, max-age=7, immutable",
            ),
        ] {
            assert_eq!(cache_control(freshness), expected);
        }
    }

    #[test]
    fn roles_are_in_the_order_of_the_fields_of_a_copy() {
        let template = HeaderTemplate::new(&metadata("application/json"), None, |fields| {
            fields.insert(X_REQUEST_ID, EMPTY);
            fields.insert("x-constant", HeaderValue::from_static("1"));
        });
        let copy = template.fields.clone();
        // The last field is constant, and needs no role.
        assert_eq!((copy.len(), template.roles.len()), (7, 6));
        for ((name, value), role) in copy.iter().zip(&template.roles) {
            assert_eq!(value.is_empty(), *role != FieldRole::Constant, "{name}");
            assert_eq!(*role, FieldRole::of(name));
        }
    }

    #[test]
    fn a_template_is_made_once() {
        let (templates, metadata) = (Templates::new(), metadata("text/x-once"));
        let make = |coding| HeaderTemplate::new(&metadata, coding, |_| ());
        let first: *const HeaderTemplate = templates.get(&metadata, None, || make(None)).unwrap();
        let gzip = Some(Coding::Gzip);
        let encoded = templates.get(&metadata, gzip, || make(gzip)).unwrap();
        assert_eq!(encoded.fields[CONTENT_ENCODING], "gzip");
        let again = templates.get(&metadata, None, || panic!("it is made already"));
        assert!(std::ptr::eq(first, again.unwrap()));
    }
}
