//! Traces: a request's place in the trace of its client (W3C Trace Context), and the spans of
//! what ordgate does for it: one for the request, and one for each upstream attempt.
//!
//! Only what leaves memory has a trace. The gateway begins it ([`begin`]) for a miss, and the
//! work on the request runs in its [`scope`]; a task that is spawned for it takes it along
//! ([`inherit`]). So whatever happens below finds the trace without an argument for it, and what
//! ordgate does on its own account (probes, refreshes) has none.
//!
//! The spans are OpenTelemetry's. They are recorded if its SDK exports them
//! ([`telemetry::otlp`](crate::telemetry), with the cargo feature `otlp`), and if a trusted
//! proxy asks for that by the flag "sampled", or else by chance. If they are not recorded, the
//! client's `traceparent` is passed on as it came.
//!
//! Invariant: nothing in a span is secret: no field of a request, no token, and the client's
//! kind in place of its name.

pub(crate) mod steps;

use std::future::Future;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
pub(crate) use opentelemetry::trace::TraceContextExt;
pub use opentelemetry::trace::TraceId;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState,
};
pub(crate) use opentelemetry::{Context, KeyValue, Value};
use steps::{StepDurations, StepTimes};
use tokio::task_local;

use crate::client_tokens::redact;

/// `traceparent` (Trace Context, section 3.2).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The flags that are known: sampled, and random (level 2). Others are sent as 0.
const KNOWN_FLAGS: u8 = 3;

/// The longest text of an attribute, in bytes; the rest is left out.
const MOST_TEXT: usize = 1024;

task_local! {
    static CURRENT: Current;
}

/// The trace of the running task.
#[derive(Clone, Default)]
struct Current {
    /// The span of the request, or that of its client if it is not recorded; none without both.
    context: Context,
    /// The steps of the client's request, which are measured without a trace too.
    steps: Arc<StepTimes>,
}

/// The span of a client's request under way. If it is dropped before [`end`](Self::end), the
/// client has disconnected.
#[must_use]
pub(crate) struct ServerSpan(Context);

/// An upstream attempt under way: its span, which ends when this is dropped, or the trace that it
/// belongs to if it is not recorded. Of a span that is not recorded, nothing can be changed.
#[must_use]
pub(crate) struct Attempt(Context);

/// The trace of a request with these fields: that of its client, with a span for the request if
/// it is to be recorded. `sample` is the share of requests that are, or `None` if nothing
/// exports spans; `is_trusted` says whether a trusted proxy has sent the request.
pub(crate) fn begin(sample: Option<f64>, fields: &HeaderMap, is_trusted: bool) -> Context {
    let parent = parent(fields);
    let wanted = parent.as_ref().filter(|_| is_trusted);
    let wanted = wanted.map(SpanContext::is_sampled);
    let context = match parent {
        Some(parent) => Context::new().with_remote_span_context(parent),
        None => Context::new(),
    };
    match sample {
        Some(sample) if wanted.unwrap_or_else(|| fastrand::f64() < sample) => {
            with_span(&context, "request", SpanKind::Server)
        }
        Some(_) | None => context,
    }
}

/// A context with a new span that is a child of the one in this context.
fn with_span(context: &Context, name: &'static str, kind: SpanKind) -> Context {
    let tracer = opentelemetry::global::tracer("ordgate");
    let span = SpanBuilder::from_name(name).with_kind(kind);
    context.with_span(span.start_with_context(&tracer, context))
}

/// The client's span, if a request has one valid `traceparent`. Of a later version than 00 the
/// first four members are read (section 4.3).
fn parent(fields: &HeaderMap) -> Option<SpanContext> {
    let mut values = fields.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let members: Vec<_> = value.to_str().ok()?.split('-').collect();
    let [version, trace, span, flags, rest @ ..] = &members[..] else {
        return None;
    };
    let is_hex = |text: &str, length| {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == length && text.bytes().all(is_digit)
    };
    let is_valid = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    if !is_valid || *version == "ff" || (*version == "00" && !rest.is_empty()) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()? & KNOWN_FLAGS;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(flags);
    let parent = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    parent.is_valid().then_some(parent)
}

/// The name of a method for a span; one that is not standard may be anything.
pub(crate) fn method_name(method: &Method) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
    let known = METHODS.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("_OTHER")
}

/// An attribute with a text from a request, of which a client's token is hidden.
pub(crate) fn redacted(name: &'static str, text: &str) -> KeyValue {
    KeyValue::new(name, redact(text, MOST_TEXT).into_owned())
}

impl ServerSpan {
    /// The span of the request of a trace.
    pub(crate) fn of(context: &Context) -> Self {
        Self(context.clone())
    }

    /// Ends it with the status of the response.
    pub(crate) fn end(self, status: u16) {
        set_status(&self.0, status, 500);
        self.0.span().end();
    }
}

impl Drop for ServerSpan {
    fn drop(&mut self) {
        // Without effect if it has ended.
        let span = self.0.span();
        span.set_attribute(KeyValue::new("error.type", "client_disconnected"));
        span.end();
    }
}

/// Notes the status of a response, which is an error from `errors` on.
fn set_status(context: &Context, status: u16, errors: u16) {
    let span = context.span();
    span.set_attribute(KeyValue::new(
        "http.response.status_code",
        i64::from(status),
    ));
    if status >= errors {
        span.set_status(Status::error(""));
        span.set_attribute(KeyValue::new("error.type", status.to_string()));
    }
}

/// Runs a future within a trace.
pub(crate) fn scope<F: Future>(context: Context, future: F) -> impl Future<Output = F::Output> {
    let current = Current {
        context,
        steps: Arc::default(),
    };
    CURRENT.scope(current, future)
}

/// A future that is to be spawned, within the present trace.
pub(crate) fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(current().unwrap_or_default(), future)
}

fn current() -> Option<Current> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The steps of the present request; `None` outside of one.
fn step_times() -> Option<Arc<StepTimes>> {
    CURRENT.try_with(|current| current.steps.clone()).ok()
}

/// How long the present request has spent in each step on the way to an answer.
pub(crate) fn step_durations() -> StepDurations {
    let steps = CURRENT.try_with(|current| current.steps.so_far());
    steps.unwrap_or_default()
}

/// The id of the present trace.
pub(crate) fn current_id() -> Option<TraceId> {
    let id = CURRENT.try_with(|current| current.context.span().span_context().trace_id());
    id.ok().filter(|id| *id != TraceId::INVALID)
}

/// The id of the trace of a request with these fields: the present one, otherwise that
/// of its client.
pub(crate) fn id_for(fields: &HeaderMap) -> Option<TraceId> {
    current_id().or_else(|| Some(parent(fields)?.trace_id()))
}

/// Sets an attribute of the span of the present request.
pub(crate) fn set(name: &'static str, value: impl Into<Value>) {
    if let Some(current) = current() {
        current
            .context
            .span()
            .set_attribute(KeyValue::new(name, value));
    }
}

impl Attempt {
    /// Begins an attempt of the present request. The attributes are made only if it is recorded.
    pub(crate) fn begin(attributes: impl FnOnce() -> Vec<KeyValue>) -> Self {
        let mut context = current().unwrap_or_default().context;
        if context.span().is_recording() {
            context = with_span(&context, "upstream", SpanKind::Client);
            context.span().set_attributes(attributes());
        }
        Self(context)
    }

    /// Notes the status of the answer.
    pub(crate) fn answered(&self, status: u16) {
        set_status(&self.0, status, 400);
    }

    /// Notes that it has failed. `error` is a word for how.
    pub(crate) fn fail(&self, error: &'static str) {
        let span = self.0.span();
        span.set_status(Status::error(""));
        span.set_attribute(KeyValue::new("error.type", error));
    }

    /// Writes the trace context into the fields of an upstream request. A client's `traceparent`
    /// that is there already stays, unless the attempt is recorded.
    pub(crate) fn propagate(&self, fields: &mut HeaderMap) {
        let span = self.0.span();
        let context = span.span_context();
        if !context.is_valid() || (!span.is_recording() && fields.contains_key(TRACEPARENT)) {
            return;
        }
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
        let value = format!("00-{trace}-{span}-{:02x}", flags.to_u8());
        if let Ok(value) = HeaderValue::try_from(value) {
            fields.insert(TRACEPARENT, value);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn with(lines: &[&str]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|line| (TRACEPARENT, HeaderValue::try_from(*line).unwrap()));
        let mut fields = HeaderMap::new();
        for (name, value) in lines {
            fields.append(name, value);
        }
        fields
    }

    /// Each form, and the flags that are sent on.
    #[tokio::test]
    async fn forms_of_traceparent() {
        let zero_trace = "0".repeat(32);
        let zero_span = "0".repeat(16);
        for (value, flags) in [
            (format!("00-{TRACE}-{SPAN}-01"), Some("01")),
            (format!("00-{TRACE}-{SPAN}-00"), Some("00")),
            (format!("00-{TRACE}-{SPAN}-03"), Some("03")),
            (format!("00-{TRACE}-{SPAN}-ff"), Some("03")),
            (format!("00-{TRACE}-{SPAN}-08"), Some("00")),
            // Version 00 has nothing after it.
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("00-{TRACE}-{SPAN}-011"), None),
            // Later versions may have.
            (format!("01-{TRACE}-{SPAN}-01"), Some("01")),
            (format!("cc-{TRACE}-{SPAN}-01-what-follows"), Some("01")),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{zero_trace}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{zero_span}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("0A-{TRACE}-{SPAN}-01"), None),
            (format!("00_{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-0"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("00-{}g-{SPAN}-01", &TRACE[1..]), None),
            (format!("00-{TRACE}-{SPAN}-+1"), None),
            (String::new(), None),
        ] {
            let context = begin(None, &with(&[&value]), false);
            let mut sent = HeaderMap::new();
            scope(context, async {
                Attempt::begin(Vec::new).propagate(&mut sent)
            })
            .await;
            let expected = flags.map(|flags| format!("00-{TRACE}-{SPAN}-{flags}"));
            let sent = sent.get(TRACEPARENT).map(|sent| sent.to_str().unwrap());
            assert_eq!(sent, expected.as_deref(), "{value}");
        }
    }

    #[test]
    fn traceparent_counts_only_if_it_comes_once() {
        let value = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(id_for(&HeaderMap::new()), None);
        assert_eq!(id_for(&with(&[&value])).unwrap().to_string(), TRACE);
        assert_eq!(id_for(&with(&[&value, &value])), None);
        assert_eq!(id_for(&with(&[&value, ""])), None);
    }
}
