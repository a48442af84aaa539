//! The trace of a request that is not answered from memory.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, Version};

use super::logged::HeadToLog;
use super::{Gateway, RequestContext, ResponseFuture, Session};
use crate::identify::Client;
use crate::meter::RequestKind;
use crate::trace::span::{known_method, method_attributes};
use crate::trace::steps::UpstreamStep;
use crate::trace::{self, ServerSpan, Trace};
use crate::wire::Body;

impl Gateway {
    /// Begins the trace of a request, if it has one. `query` is what is shown of its
    /// query.
    pub(super) fn begin_trace<B>(
        &self,
        request: &Request<B>,
        context: &mut RequestContext,
        query: Option<&str>,
    ) -> Option<Arc<Trace>> {
        let (tracer, client) = (self.records.tracer.as_ref(), context.client());
        let trace = Trace::begin(tracer, request.headers(), client, context.began)?;
        if let Some(logged) = &mut context.logged {
            logged.trace_id = Some(trace.id());
        }
        trace.change(|span| {
            let route = context.route.map(usize::from);
            let route = route.and_then(|at| self.routes.routes().get(at));
            let method = known_method(request.method()).unwrap_or("HTTP");
            span.name = method.into();
            if let Some(route) = route {
                let path = route.request.path.to_string();
                span.name = format!("{method} {path}").into();
                span.set("http.route", path);
                span.set("ordgate.route", route.name.to_string());
            }
            for (name, value) in method_attributes(request.method()) {
                span.set(name, value);
            }
            span.set("url.path", request.uri().path().to_owned());
            if let Some(query) = query {
                span.set("url.query", query.to_owned());
            }
            span.set("network.protocol.version", protocol(context.version));
            span.set("ordgate.request_id", context.request_id.as_str().to_owned());
            span.set("ordgate.client.kind", kind(client));
        });
        Some(trace)
    }

    /// Ends a request that was not answered from memory as `finish` does, and notes the
    /// outcome in its span.
    pub(super) fn finish_waiting(
        &self,
        session: &Session,
        context: &RequestContext,
        kind: RequestKind,
        upstream_took: Option<Duration>,
        response: Response<Body>,
    ) -> Response<Body> {
        let steps = trace::step_durations();
        let upstream = steps.map(|steps| steps[UpstreamStep::Upstream as usize]);
        trace::change_request(|span| {
            span.set("ordgate.cache", kind.name());
            if let Some(reason) = kind.reason() {
                span.set("ordgate.reason", reason.name());
            }
        });
        let took = upstream.filter(|took| !took.is_zero()).or(upstream_took);
        self.finish(session, context, HeadToLog::Kept, kind, took, response)
    }
}

/// The response to a request, made within its trace.
pub(super) fn in_trace(
    trace: Option<Arc<Trace>>,
    response: impl Future<Output = Response<Body>> + Send + 'static,
) -> ResponseFuture {
    let span = ServerSpan::of(trace.as_ref());
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
