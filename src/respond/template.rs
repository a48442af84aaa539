//! Templates: the header fields of stored responses, prepared once for each
//! [`Metadata`] under the current configuration.
//!
//! A hit clones its template and sets the fields that differ between requests, which come
//! first, in their order, without a look-up by name.

use std::sync::OnceLock;

use http::header::{
    AGE, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG,
};
use http::{HeaderMap, HeaderValue};

use super::EMPTY;
use crate::cache::coding::{CODINGS, Coding};
use crate::cache::metadata::{ClientFreshness, Metadata, NUMBERED};
use crate::wire::{RATELIMIT, X_REQUEST_ID};

/// What a template depends on beside the metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemplateForm {
    /// The coding of the body, if it is encoded.
    pub(super) coding: Option<Coding>,
    /// Whether the response is sent in HTTP/2. hyper adds `date` and `content-length`
    /// while it writes a head of HTTP/1.1. In HTTP/2 it would insert them into a map
    /// without space for them, which is then copied.
    pub(super) is_http2: bool,
    /// Whether clients are limited.
    pub(super) is_limited: bool,
}

/// The number of forms under one configuration.
const FORMS: usize = (CODINGS + 1) * 2;

/// The fields of a stored response: those that differ between requests, empty, and what
/// follows from the metadata. `add_constant` adds those that every response has.
pub(super) fn template(
    metadata: &Metadata,
    form: TemplateForm,
    add_constant: impl FnOnce(&mut HeaderMap),
) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(12);
    for name in [ETAG, AGE, CACHE_STATUS, X_REQUEST_ID] {
        fields.insert(name, EMPTY);
    }
    if form.is_limited {
        fields.insert(RATELIMIT, EMPTY);
    }
    if form.is_http2 {
        fields.insert(DATE, EMPTY);
        fields.insert(CONTENT_LENGTH, EMPTY);
    }
    fields.insert(CONTENT_TYPE, metadata.content_type.clone());
    if let Some(coding) = form.coding {
        fields.insert(CONTENT_ENCODING, coding.field());
    }
    fields.insert(CACHE_CONTROL, cache_control(metadata.client_freshness));
    add_constant(&mut fields);
    fields
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

/// The templates of one configuration, by the number of their metadata and their form. Each
/// is made when it is first used.
pub(super) struct Templates(Box<[OnceLock<Box<HeaderMap>>]>);

impl Templates {
    /// No templates yet.
    pub(super) fn new() -> Self {
        Self((0..NUMBERED * FORMS).map(|_| OnceLock::new()).collect())
    }

    /// A copy of the template of a metadata and a form; a new one if the metadata has no
    /// number.
    #[inline]
    pub(super) fn copy(
        &self,
        metadata: &Metadata,
        form: TemplateForm,
        make: impl FnOnce() -> HeaderMap,
    ) -> HeaderMap {
        let coding = form.coding.map_or(0, |coding| 1 + coding.index());
        let at = metadata.number() * FORMS + coding * 2 + usize::from(form.is_http2);
        match self.0.get(at) {
            Some(slot) => (**slot.get_or_init(|| Box::new(make()))).clone(),
            None => make(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
    fn a_template_is_made_once_for_each_form() {
        let content_type = HeaderValue::from_static("text/x-once");
        let metadata = Metadata::of(content_type, ClientFreshness::Nothing);
        let templates = Templates::new();
        let codings = [None].into_iter().chain(Coding::ALL.map(Some));
        for (coding, is_http2) in codings.flat_map(|coding| [(coding, false), (coding, true)]) {
            let form = TemplateForm {
                coding,
                is_http2,
                is_limited: false,
            };
            let make = || template(&metadata, form, |_| ());
            let first = templates.copy(&metadata, form, make);
            let again = templates.copy(&metadata, form, || panic!("it is made already"));
            assert_eq!(first, again);
            assert_eq!(
                again.contains_key(CONTENT_ENCODING),
                coding.is_some(),
                "{form:?}"
            );
            assert_eq!(again.contains_key(DATE), is_http2, "{form:?}");
        }
    }
}
