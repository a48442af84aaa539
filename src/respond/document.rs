//! ordgate's own documents on the public listener: its OpenAPI description, the page that
//! shows it, and the stream of events.

use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::{Responder, ResponseContext, not_modified, response};
use crate::cache::coding::{Coding, preferred};
use crate::cache::validator::{encoded_etag, etag, none_match_fails};
use crate::compress::{encode, unzip};
use crate::wire::Body;

/// A document of ordgate's own.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its path.
    pub(crate) path: &'static str,
    /// Its own fields.
    fields: HeaderMap,
    text: DocumentText,
    etag: HeaderValue,
}

/// A text, as it is and compressed. It is given in one form; the other is made, once,
/// when it is first requested, which takes some milliseconds. All responses share the
/// bytes, so that those that clients have not read yet count once.
#[derive(Debug)]
pub(crate) struct DocumentText {
    given: Bytes,
    is_gzip: bool,
    other: OnceLock<Bytes>,
}

impl DocumentText {
    /// A text.
    pub(crate) fn of(text: Bytes) -> Self {
        Self {
            given: text,
            is_gzip: false,
            other: OnceLock::new(),
        }
    }

    /// A text that is compressed already.
    pub(crate) fn of_gzip(encoded: &'static [u8]) -> Self {
        Self {
            is_gzip: true,
            ..Self::of(Bytes::from_static(encoded))
        }
    }

    fn in_form(&self, is_gzip: bool) -> &Bytes {
        if is_gzip == self.is_gzip {
            return &self.given;
        }
        self.other.get_or_init(|| {
            let made = match is_gzip {
                true => encode(&self.given, Coding::Gzip),
                false => unzip(&self.given),
            };
            // Neither fails for what ordgate brings with it.
            made.map(Bytes::from).unwrap_or_default()
        })
    }
}

impl Document {
    /// A document that clients may keep for five minutes. No token is needed for it.
    pub(crate) fn new(path: &'static str, media: &'static str, text: DocumentText) -> Self {
        let document = Self {
            path,
            fields: HeaderMap::new(),
            etag: etag(&text.given),
            text,
        };
        let document = document.with(CONTENT_TYPE, media);
        document.with(CACHE_CONTROL, "public, max-age=300")
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.fields.insert(name, HeaderValue::from_static(value));
        self
    }

    /// The document as a part of a page, which may load only what the policy says.
    #[must_use]
    pub(crate) fn with_policy(self, policy: &'static str) -> Self {
        let document = self.with(CONTENT_SECURITY_POLICY, policy);
        let document = document.with(X_CONTENT_TYPE_OPTIONS, "nosniff");
        document.with(REFERRER_POLICY, "no-referrer")
    }

    /// The document, for which another version would have another path.
    #[must_use]
    pub(crate) fn that_never_changes(self) -> Self {
        self.with(CACHE_CONTROL, "public, max-age=31536000, immutable")
    }
}

/// For proxies that follow nginx: they pass what comes on at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

impl Responder {
    /// A stream of events.
    pub(crate) fn events(&self, stream: Body, context: &ResponseContext<'_>) -> Response<Body> {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            (CONTENT_TYPE, "text/event-stream"),
            (CACHE_CONTROL, "no-store, no-transform"),
            (X_ACCEL_BUFFERING, "no"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        self.add_own(&mut fields, false, None, context);
        response(StatusCode::OK, fields, stream)
    }

    /// A document of ordgate's own, or 304 if the client has it.
    pub(crate) fn document(
        &self,
        document: &Document,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        let coding = preferred(context.fields, &[Coding::Gzip]);
        let mut fields = document.fields.clone();
        let etag = match coding {
            Some(coding) => {
                fields.insert(CONTENT_ENCODING, coding.field());
                encoded_etag(&document.etag, coding)
            }
            None => document.etag.clone(),
        };
        fields.insert(ETAG, etag);
        self.add_own(&mut fields, true, None, context);
        if none_match_fails(context.fields, &document.etag) {
            not_modified(&mut fields);
            return response(StatusCode::NOT_MODIFIED, fields, Body::default());
        }
        let body = document.text.in_form(coding.is_some()).clone();
        response(StatusCode::OK, fields, Body::new(body))
    }
}
