//! Requests for ordgate's own documents on the public listener, such as its OpenAPI
//! description. A route with such a path has precedence.

use http::{HeaderValue, Method, Request};

use super::{Gateway, NextStep, RequestContext};
use crate::meter::RequestKind;
use crate::refusal::Refusal;

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
                let response = self.responder.document(document, &fields);
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
