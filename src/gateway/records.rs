//! What is recorded of a request: its line in the access log, its trace, and, of an
//! answer with a 5xx status, its cause for `/status`.

use std::future::Future;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Body as _;

use super::Gateway;
use super::request::{RequestContext, RequestRef, ResponseFuture, Session};
use crate::access_log::{AccessLog, LogEntry};
use crate::identify::{Client, ClientLabel};
use crate::meter::RequestKind;
use crate::meter::errors::AnsweredError;
use crate::reason::Reason;
use crate::route::Route;
use crate::sync::lock;
use crate::trace::{self, KeyValue, ServerSpan, TraceContextExt as _};
use crate::wire::Body;

impl Gateway {
    /// The route of a request, if it has one.
    fn route_of(&self, context: &RequestContext) -> Option<&Route> {
        self.routes.routes().get(usize::from(context.route?))
    }

    /// Writes the line of a request, which took so long, and its upstream so long.
    #[cold]
    #[inline(never)]
    pub(super) fn write_line(
        &self,
        log: &AccessLog,
        request: RequestRef<'_>,
        kind: RequestKind,
        (took, upstream_took): (Duration, Option<Duration>),
        response: &Response<Body>,
    ) {
        let RequestRef {
            session,
            context,
            uri,
            fields,
        } = request;
        let route = self.route_of(context);
        log.write(&LogEntry {
            peer: session.peer,
            client: ClientLabel {
                client: context.client(),
                name: self
                    .clients
                    .token_client(&context.from)
                    .map(|token| &*token.name),
            },
            method: &context.method,
            version: context.version,
            route: route.map(|route| &*route.name),
            is_plain: route.is_some_and(Route::is_plain),
            uri,
            fields,
            at: self.clock.wall(context.began + took),
            status: response.status().as_u16(),
            // hyper sends no body for HEAD.
            bytes: match context.method {
                Method::HEAD => 0,
                _ => response.body().size_hint().exact().unwrap_or(0),
            },
            duration: took,
            kind,
            upstream: upstream_took,
            request_id: context.request_id,
        });
    }

    /// The trace of a request. `query` is what is shown of its query.
    pub(super) fn begin_trace<B>(
        &self,
        session: &Session,
        request: &Request<B>,
        context: &RequestContext,
        query: Option<&str>,
    ) -> trace::Context {
        let is_trusted = self.clients.trust.contains(session.peer);
        let fields = request.headers();
        let trace = trace::begin(self.records.traced_share, fields, is_trusted);
        let span = trace.span();
        if span.is_recording() {
            let route = self.route_of(context);
            let method = trace::method_name(request.method());
            if let Some(route) = route {
                let path = route.request.path.to_string();
                span.update_name(format!("{method} {path}"));
                span.set_attribute(KeyValue::new("http.route", path));
                span.set_attribute(KeyValue::new("ordgate.route", route.name.to_string()));
            }
            let request_id = context.request_id.as_str().to_owned();
            span.set_attributes([
                KeyValue::new("http.request.method", method),
                trace::redacted("url.path", request.uri().path()),
                KeyValue::new("network.protocol.version", protocol(context.version)),
                KeyValue::new("ordgate.request_id", request_id),
                KeyValue::new("ordgate.client.kind", kind(context.client())),
            ]);
            span.set_attributes(query.map(|query| trace::redacted("url.query", query)));
        }
        trace
    }

    /// Records and counts an answer of a plain route's origin with a 5xx status, which is passed
    /// on.
    pub(super) fn record_passed_error(&self, request: RequestRef<'_>, status: StatusCode) {
        let reason = Reason::UpstreamAnswer;
        let why = "the upstream's own answer, passed on as it is";
        self.record_error(request, status, (reason, why));
        *lock(&self.meter().totals.refused)
            .entry(reason)
            .or_default() += 1;
    }

    /// Records an answer with a 5xx status, for `/status`: the reason, and the cause as
    /// text.
    pub(super) fn record_error(
        &self,
        request: RequestRef<'_>,
        status: StatusCode,
        why: (Reason, &str),
    ) {
        let RequestRef { context, uri, .. } = request;
        let at = (self.clock.now(), context.request_id, context.client());
        let errors = &self.meter().totals.errors;
        let route = self.route_of(context);
        // What a query means is the origin's matter: it may be secret.
        let is_secret = route.is_some_and(Route::is_plain) && uri.query().is_some();
        let target = uri.path_and_query();
        let target = target.map_or("", |target| match is_secret {
            true => target.path(),
            false => PathAndQuery::as_str(target),
        });
        let mut error = AnsweredError::new(at, &context.method, target, status, why);
        error.is_cut |= is_secret;
        errors.record(error);
    }
}

/// The response to a request, made within its trace.
pub(super) fn in_trace(
    trace: trace::Context,
    response: impl Future<Output = Response<Body>> + Send + 'static,
) -> ResponseFuture {
    let span = ServerSpan::of(&trace);
    ResponseFuture::Waiting(Box::pin(trace::scope(trace, async move {
        let response = response.await;
        span.end(response.status().as_u16());
        response
    })))
}

/// A version of HTTP without its name.
fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        // There are no others on the listeners.
        _ => "1.1",
    }
}

/// What a client is identified by. Its address or name is not exported.
const fn kind(client: Client) -> &'static str {
    match client {
        Client::V4(_) | Client::V6(_) => "address",
        Client::Token(_) => "token",
    }
}
