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

use super::{EMPTY, Responder};
use crate::cache::coding::{CODINGS, Coding};
use crate::cache::directives::make_private;
use crate::cache::metadata::{ClientFreshness, Metadata, NUMBERED};
use crate::wire::{RATELIMIT, X_REQUEST_ID};

/// The templates of one configuration, by the number of their metadata, the coding of the
/// body, and the version of HTTP. Each is made when it is first used.
pub(super) type Templates = Box<[OnceLock<Box<HeaderMap>>]>;

/// No templates yet.
pub(super) fn none() -> Templates {
    let slots = 0..NUMBERED * (CODINGS + 1) * 2;
    slots.map(|_| OnceLock::new()).collect()
}

impl Responder {
    /// A copy of a template. hyper adds `date` and `content-length` while it writes a head of
    /// HTTP/1.1. In HTTP/2 it would insert them into a map without space for them, which is
    /// then copied.
    #[inline]
    pub(super) fn template(
        &self,
        metadata: &Metadata,
        coding: Option<Coding>,
        is_http2: bool,
    ) -> HeaderMap {
        let form = coding.map_or(0, |coding| 1 + coding.index()) * 2 + usize::from(is_http2);
        let make = || self.make_template(metadata, coding, is_http2);
        match (self.templates).get(metadata.number * (CODINGS + 1) * 2 + form) {
            Some(slot) => (**slot.get_or_init(|| Box::new(make()))).clone(),
            None => make(),
        }
    }

    #[cold]
    fn make_template(
        &self,
        metadata: &Metadata,
        coding: Option<Coding>,
        is_http2: bool,
    ) -> HeaderMap {
        let mut fields = HeaderMap::with_capacity(12);
        for name in [ETAG, AGE, CACHE_STATUS, X_REQUEST_ID] {
            fields.insert(name, EMPTY);
        }
        if self.limit_policy.is_some() {
            fields.insert(RATELIMIT, EMPTY);
        }
        if is_http2 {
            fields.insert(DATE, EMPTY);
            fields.insert(CONTENT_LENGTH, EMPTY);
        }
        fields.insert(CONTENT_TYPE, metadata.content_type.clone());
        if let Some(coding) = coding {
            fields.insert(CONTENT_ENCODING, coding.field());
        }
        fields.insert(CACHE_CONTROL, cache_control(metadata.client_freshness));
        let is_kept = metadata.client_freshness != ClientFreshness::Nothing;
        self.add_constant(&mut fields, is_kept && self.compression.is_some());
        if self.is_private {
            make_private(&mut fields);
        }
        fields
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::respond::Settings;

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
    fn each_form_has_a_template_of_its_own_with_what_differs_first() {
        let content_type = HeaderValue::from_static("text/x-once");
        let metadata = Metadata::of(content_type, ClientFreshness::Nothing);
        let policy = HeaderValue::from_static("1");
        let responder = Responder::new(&Settings::default(), Some(policy), None);
        let codings = [None].into_iter().chain(Coding::ALL.map(Some));
        for (coding, is_http2) in codings.flat_map(|coding| [(coding, false), (coding, true)]) {
            for _made_and_again in 0..2 {
                let fields = responder.template(&metadata, coding, is_http2);
                let expected = coding.map(Coding::field);
                assert_eq!(fields.get(CONTENT_ENCODING), expected.as_ref());
                let empty = fields.values().take_while(|value| value.is_empty());
                assert_eq!(empty.count(), if is_http2 { 7 } else { 5 });
                let rest = fields.values().skip_while(|value| value.is_empty());
                assert!(rest.into_iter().all(|value| !value.is_empty()));
            }
        }
    }
}
