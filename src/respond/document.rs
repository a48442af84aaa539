//! ordgate's own documents on the public listener: its OpenAPI description, and the
//! page that shows it.

use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY,
    VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};

use super::{Responder, ResponseContext};
use crate::cache::coding::{AcceptedCodings, Coding};
use crate::cache::etag::{encoded_etag, etag, none_match_fails};
use crate::compress::{Effort, encode, unzip};
use crate::wire::Body;

/// Shorter texts are not compressed.
const LEAST: usize = 1024;

/// A document of ordgate's own.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its path.
    pub(crate) path: &'static str,
    media: &'static str,
    text: DocumentText,
    etag: HeaderValue,
    cache_control: &'static str,
    /// What a page may load, if it is part of one.
    policy: Option<&'static str>,
}

/// A text, as it is and compressed. It is given in one form; the other is made, once,
/// when it is first requested, which takes some milliseconds. All responses share the
/// bytes, so that those that clients have not read yet count once.
#[derive(Debug)]
pub(crate) struct DocumentText {
    plain: OnceLock<Bytes>,
    gzip: OnceLock<Option<Bytes>>,
}

impl DocumentText {
    /// A text.
    pub(crate) fn of(text: Bytes) -> Self {
        Self {
            plain: text.into(),
            gzip: OnceLock::new(),
        }
    }

    /// A text that is compressed already.
    pub(crate) fn of_gzip(encoded: &'static [u8]) -> Self {
        Self {
            plain: OnceLock::new(),
            gzip: Some(Bytes::from_static(encoded)).into(),
        }
    }

    fn plain(&self) -> &Bytes {
        self.plain.get_or_init(|| {
            let encoded = self.gzip.get().and_then(Option::as_ref);
            let text = encoded.and_then(|encoded| unzip(encoded).ok());
            text.map(Bytes::from).unwrap_or_default()
        })
    }

    fn gzip(&self) -> Option<&Bytes> {
        let made = self.gzip.get_or_init(|| {
            let text = self.plain();
            let encoded = encode(text, Coding::Gzip, Effort::Usual).ok();
            encoded.filter(|_| text.len() >= LEAST).map(Bytes::from)
        });
        made.as_ref()
    }
}

impl Document {
    /// A document that clients may keep for five minutes.
    pub(crate) fn new(path: &'static str, media: &'static str, text: DocumentText) -> Self {
        let given = text
            .plain
            .get()
            .or(text.gzip.get().and_then(Option::as_ref));
        let etag = etag(given.map_or(&[][..], |bytes| bytes));
        Self {
            path,
            media,
            text,
            etag,
            // No token is needed for it.
            cache_control: "public, max-age=300",
            policy: None,
        }
    }

    /// The document as a part of a page, which may load only what the policy says.
    #[must_use]
    pub(crate) fn with_policy(mut self, policy: &'static str) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The document, for which another version would have another path.
    #[must_use]
    pub(crate) fn that_never_changes(mut self) -> Self {
        self.cache_control = "public, max-age=31536000, immutable";
        self
    }
}

impl Responder {
    /// A document of ordgate's own, or 304 if the client has it.
    pub(crate) fn document(
        &self,
        document: &Document,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        let accepted = AcceptedCodings::of(context.fields);
        let coding = accepted.and_then(|accepted| accepted.preferred(&[Coding::Gzip]));
        let gzip = coding.and_then(|_| document.text.gzip());
        let unchanged = none_match_fails(context.fields, &document.etag);
        let body = match (unchanged, gzip) {
            (true, _) => Body::default(),
            (false, Some(gzip)) => Body::new(gzip.clone()),
            (false, None) => Body::new(document.text.plain().clone()),
        };
        let mut response = Response::new(body);
        let fields = response.headers_mut();
        let control = HeaderValue::from_static(document.cache_control);
        fields.insert(CACHE_CONTROL, control);
        let etag = match gzip {
            Some(_) => encoded_etag(&document.etag, Coding::Gzip),
            None => document.etag.clone(),
        };
        fields.insert(ETAG, etag);
        self.add_constant(fields);
        fields.append(VARY, HeaderValue::from_static("accept-encoding"));
        self.set_variable(fields, context);
        if let Some(policy) = document.policy {
            fields.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
            fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            fields.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        }
        if unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(document.media));
        if gzip.is_some() {
            fields.insert(CONTENT_ENCODING, Coding::Gzip.field());
        }
        response
    }
}
