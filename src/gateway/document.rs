//! ordgate's own documents on the public listener, such as its OpenAPI
//! description.

use bytes::Bytes;
use http::{HeaderValue, Method, Request};

use super::{Gateway, NextStep, RequestContext};
use crate::meter::RequestKind;
use crate::refusal::Refusal;

/// A document of ordgate's own.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// Its path.
    pub(crate) path: &'static str,
    /// Its media type.
    pub(crate) media: &'static str,
    /// Its text.
    pub(crate) text: Bytes,
    /// Its ETag.
    pub(crate) etag: HeaderValue,
}

impl Gateway {
    /// Answers a request whose path is no route: with a document, or not at all. A
    /// document needs no token: it says how to use one, and a browser that opens it
    /// sends none.
    pub(super) fn document<B: hyper::body::Body>(
        &self,
        request: &Request<B>,
        context: &RequestContext,
    ) -> Result<NextStep, Refusal> {
        let path = request.uri().path();
        let document = self.documents.iter().find(|document| document.path == path);
        let Some(document) = document else {
            self.clients.require_token(&context.from)?;
            return Err(Refusal::NoRoute);
        };
        let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
        let fields = context.for_response(&self.clients, request.headers());
        let (response, kind) = match *request.method() {
            Method::GET | Method::HEAD if !request.body().is_end_stream() => {
                return Err(Refusal::Body);
            }
            Method::GET | Method::HEAD => {
                let Document {
                    media, text, etag, ..
                } = document;
                let response = self.responder.document(media, text, etag, &fields);
                (response, RequestKind::Document)
            }
            Method::OPTIONS => {
                let response = self.responder.preflight(&allow, &fields);
                (response, RequestKind::Preflight)
            }
            _ => return Err(Refusal::Method { allow }),
        };
        Ok(NextStep::Done(response, kind))
    }
}
