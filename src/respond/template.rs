//! Templates: the header fields of stored responses, prepared once for each
//! [`Metadata`] under the current configuration.
//!
//! A hit clones its template and sets the fields that differ between requests,
//! in their order, without a look-up by name.

use std::sync::OnceLock;

use http::header::{
    AGE, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG,
};
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
    /// The time, in HTTP/2.
    Date,
    /// The length of the body, in HTTP/2.
    ContentLength,
}

/// What a template depends on beside the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TemplateForm {
    /// The coding of the body, if it is encoded.
    pub(super) coding: Option<Coding>,
    /// Whether the response is sent in HTTP/2. hyper adds `date` and `content-length`
    /// while it writes a head of HTTP/1.1. In HTTP/2 it would insert them into a map
    /// without space for them, which is then copied.
    pub(super) is_http2: bool,
}

impl TemplateForm {
    fn index(self) -> usize {
        let coding = self.coding.map_or(0, |coding| 1 + coding.index());
        coding * 2 + usize::from(self.is_http2)
    }
}

impl FieldRole {
    fn of(name: &HeaderName) -> Self {
        match name {
            name if name == ETAG => Self::Etag,
            name if name == AGE => Self::Age,
            name if name == CACHE_STATUS => Self::CacheStatus,
            name if name == X_REQUEST_ID => Self::RequestId,
            name if name == RATELIMIT => Self::RateLimit,
            name if name == DATE => Self::Date,
            name if name == CONTENT_LENGTH => Self::ContentLength,
            _ => Self::Constant,
        }
    }
}

impl HeaderTemplate {
    /// Renders the fields of a stored response. `add_constant` adds those that every
    /// response has.
    pub(super) fn new(
        metadata: &Metadata,
        form: TemplateForm,
        add_constant: impl FnOnce(&mut HeaderMap),
    ) -> Self {
        let mut fields = HeaderMap::with_capacity(12);
        fields.insert(CONTENT_TYPE, metadata.content_type.clone());
        if let Some(coding) = form.coding {
            fields.insert(CONTENT_ENCODING, coding.field());
        }
        fields.insert(CACHE_CONTROL, cache_control(metadata.client_freshness));
        fields.insert(ETAG, EMPTY);
        fields.insert(AGE, EMPTY);
        fields.insert(CACHE_STATUS, EMPTY);
        if form.is_http2 {
            fields.insert(DATE, EMPTY);
            fields.insert(CONTENT_LENGTH, EMPTY);
        }
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
    by_form: [OnceLock<ByNumber>; (CODINGS + 1) * 2],
}

type ByNumber = Box<[OnceLock<Box<HeaderTemplate>>]>;

fn by_number() -> ByNumber {
    (0..NUMBERED).map(|_| OnceLock::new()).collect()
}

impl Templates {
    /// No templates yet.
    pub(super) fn new() -> Self {
        Self {
            by_form: Default::default(),
        }
    }

    /// The template of a metadata and a form; `None` if the metadata has no number.
    pub(super) fn get(
        &self,
        metadata: &Metadata,
        form: TemplateForm,
        make: impl FnOnce() -> HeaderTemplate,
    ) -> Option<&HeaderTemplate> {
        let all = self.by_form[form.index()].get_or_init(by_number);
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

    const PLAIN: TemplateForm = TemplateForm {
        coding: None,
        is_http2: false,
    };

    #[test]
    fn roles_are_in_the_order_of_the_fields_of_a_copy() {
        for (is_http2, fields, roles) in [(false, 7, 6), (true, 9, 8)] {
            let form = TemplateForm { is_http2, ..PLAIN };
            let template = HeaderTemplate::new(&metadata("application/json"), form, |fields| {
                fields.insert(X_REQUEST_ID, EMPTY);
                fields.insert("x-constant", HeaderValue::from_static("1"));
            });
            let copy = template.fields.clone();
            // The last field is constant, and needs no role.
            assert_eq!((copy.len(), template.roles.len()), (fields, roles));
            for ((name, value), role) in copy.iter().zip(&template.roles) {
                assert_eq!(value.is_empty(), *role != FieldRole::Constant, "{name}");
                assert_eq!(*role, FieldRole::of(name));
            }
        }
    }

    #[test]
    fn a_template_is_made_once_for_each_form() {
        let (templates, metadata) = (Templates::new(), metadata("text/x-once"));
        let codings = [
            None,
            Some(Coding::Gzip),
            Some(Coding::Brotli),
            Some(Coding::Zstd),
        ];
        let forms =
            codings.map(|coding| [false, true].map(|is_http2| TemplateForm { coding, is_http2 }));
        for form in forms.into_iter().flatten() {
            let make = || HeaderTemplate::new(&metadata, form, |_| ());
            let first: *const HeaderTemplate = templates.get(&metadata, form, make).unwrap();
            let again = templates.get(&metadata, form, || panic!("it is made already"));
            let again = again.unwrap();
            assert!(std::ptr::eq(first, again));
            let coding = again.fields.get(CONTENT_ENCODING);
            assert_eq!(coding.is_some(), form.coding.is_some(), "{form:?}");
            assert_eq!(again.fields.contains_key(DATE), form.is_http2, "{form:?}");
        }
    }
}
