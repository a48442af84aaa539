//! Traces: a request's place in the trace of its client (W3C Trace Context), and the
//! spans of what ordgate does for it. [`telemetry::otlp`](crate::telemetry) exports them.
//!
//! Only what leaves memory has a trace. The gateway begins it ([`Trace::begin`]) for a
//! miss, and the work on the request runs in its [`scope`]; a task
//! that is spawned for it takes it along ([`inherit`]). So whatever happens below finds
//! the trace without an argument for it, as hyper's connectors find theirs, and what
//! ordgate does on its own account (probes, refreshes, prefetching) has none.
//!
//! A trace is *recorded* if its client asks for that, or by chance, within bounds
//! ([`tracer`]). Then it has one span for the request, and a child for each step:
//! `queue`, `budget`, an upstream attempt, `store`. Otherwise the client's
//! `traceparent` is passed on as it came.
//!
//! A fetch that several clients wait for belongs to the trace of the client that caused
//! it. The spans of the others have a link to that client's span.
//!
//! Invariants: nothing in a span is secret: no field of a request but `traceparent`
//! and `tracestate`, no token, and the client's kind in place of its name. A
//! `tracestate`, which is free text, goes to the upstream only with a request whose
//! answer no other client gets: a stored answer must not depend on it.

pub mod context;
pub mod span;
pub(crate) mod steps;
pub mod tracer;

use std::borrow::Cow;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use context::{SpanContext, SpanId, TRACEPARENT, TRACESTATE, TraceId, state_of};
use http::{HeaderMap, HeaderValue};
use span::{AttributeValue, SpanKind, SpanRecord};
use steps::{StepDurations, StepTimes};
use tokio::task_local;
use tracer::Tracer;

use crate::clock::Moment;
use crate::identify::Client;
use crate::sync::lock;

/// The most spans of one trace, so that its size is bounded.
const MOST_SPANS: u32 = 64;

task_local! {
    static CURRENT: CurrentTrace;
}

/// The trace of the running task.
#[derive(Clone)]
struct CurrentTrace {
    trace: Option<Arc<Trace>>,
    /// Whether no other client gets what is fetched.
    is_alone: bool,
    /// The steps of the client's request, which are measured without a trace too.
    steps: Arc<StepTimes>,
}

/// A request that fetches for others too.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeadingRequest {
    /// Its span, if that is recorded.
    span: Option<SpanContext>,
    /// Its steps, if a client has caused it.
    steps: Option<Arc<StepTimes>>,
}

/// The trace of one request.
pub struct Trace {
    id: TraceId,
    /// The client's span, if the request has one.
    parent: Option<SpanContext>,
    /// The `tracestate` of the request.
    state: Option<Box<str>>,
    recording: Option<Recording>,
}

/// What a recorded trace has beside.
struct Recording {
    tracer: Arc<Tracer>,
    /// The context of the span of the request.
    server: SpanContext,
    /// That span, until it ends.
    record: Mutex<Option<SpanRecord>>,
    /// The number of spans so far.
    spans: AtomicU32,
}

/// A span under way. It ends when it is dropped, and is exported if it is recorded.
#[must_use]
pub(crate) struct Span(Option<Box<OpenSpan>>);

struct OpenSpan {
    trace: Arc<Trace>,
    record: SpanRecord,
}

/// The span of a request under way. If it is dropped before [`end`](Self::end), the
/// client has disconnected.
#[must_use]
pub(crate) struct ServerSpan(Option<Arc<Trace>>);

impl Trace {
    /// The trace of a request with these fields; `None` if it has none and is not
    /// recorded. Without a tracer nothing is recorded.
    pub(crate) fn begin(
        tracer: Option<&Arc<Tracer>>,
        fields: &HeaderMap,
        client: Client,
        now: Moment,
    ) -> Option<Arc<Self>> {
        let parent = SpanContext::of(fields);
        let tracer = tracer.filter(|tracer| tracer.admits(client, parent, fastrand::f64(), now));
        if tracer.is_none() && parent.is_none() {
            return None;
        }
        let id = parent.map_or_else(|| TraceId::new(fastrand::u128(..)), |parent| parent.trace);
        let state = parent.and_then(|_| state_of(fields));
        let recording = tracer.map(|tracer| {
            let server = SpanContext::recorded(id, SpanId::new(fastrand::u64(..)), parent);
            Recording {
                tracer: tracer.clone(),
                server,
                record: Mutex::new(Some(SpanRecord {
                    context: server,
                    parent: parent.map(|parent| parent.span),
                    is_parent_remote: parent.is_some(),
                    state: state.clone(),
                    name: Cow::Borrowed("request"),
                    kind: SpanKind::Server,
                    began: now,
                    ended: now,
                    attributes: Vec::new(),
                    links: Vec::new(),
                    failed: false,
                })),
                spans: AtomicU32::new(1),
            }
        });
        Some(Arc::new(Self {
            id,
            parent,
            state,
            recording,
        }))
    }

    /// Whether its spans are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Changes the span of the request, if it is recorded and has not ended.
    pub(crate) fn change(&self, change: impl FnOnce(&mut SpanRecord)) {
        if let Some(recording) = &self.recording
            && let Some(record) = &mut *lock(&recording.record)
        {
            change(record);
        }
    }

    /// Ends the span of the request.
    fn end(&self, finish: impl FnOnce(&mut SpanRecord)) {
        let Some(recording) = &self.recording else {
            return;
        };
        let record = lock(&recording.record).take();
        if let Some(mut record) = record {
            record.ended = recording.tracer.clock.now();
            finish(&mut record);
            recording.tracer.keep(record);
        }
    }
}

impl ServerSpan {
    /// The span of the request of a trace.
    pub(crate) fn of(trace: Option<&Arc<Trace>>) -> Self {
        Self(trace.filter(|trace| trace.is_recorded()).cloned())
    }

    /// Ends it with the status of the response.
    pub(crate) fn end(mut self, status: u16) {
        if let Some(trace) = self.0.take() {
            trace.end(|record| {
                record.set("http.response.status_code", status);
                if status >= 500 {
                    record.failed = true;
                    if !record
                        .attributes
                        .iter()
                        .any(|(name, _)| *name == "error.type")
                    {
                        record.set("error.type", status.to_string());
                    }
                }
            });
        }
    }
}

impl Drop for ServerSpan {
    fn drop(&mut self) {
        if let Some(trace) = self.0.take() {
            // RFC 9209 has no word for it.
            trace.end(|record| record.set("error.type", "client_disconnected"));
        }
    }
}

/// Runs a future within a trace.
pub(crate) fn scope<F: Future>(
    trace: Option<Arc<Trace>>,
    future: F,
) -> impl Future<Output = F::Output> {
    in_scope(trace, false, Arc::default(), future)
}

fn in_scope<F: Future>(
    trace: Option<Arc<Trace>>,
    is_alone: bool,
    steps: Arc<StepTimes>,
    future: F,
) -> impl Future<Output = F::Output> {
    let current = CurrentTrace {
        trace,
        is_alone,
        steps,
    };
    CURRENT.scope(current, future)
}

/// A future that is to be spawned, within the present trace. What it fetches may be for
/// others too.
pub(crate) fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    in_scope(current(), false, step_times().unwrap_or_default(), future)
}

/// Runs a future whose answer no other client gets, within the present trace.
pub(crate) fn alone<F: Future>(future: F) -> impl Future<Output = F::Output> {
    in_scope(current(), true, step_times().unwrap_or_default(), future)
}

/// The present trace.
pub(crate) fn current() -> Option<Arc<Trace>> {
    CURRENT.try_with(|current| current.trace.clone()).ok()?
}

/// The steps of the present request; `None` outside of one.
fn step_times() -> Option<Arc<StepTimes>> {
    CURRENT.try_with(|current| current.steps.clone()).ok()
}

/// How long the present request has spent in each step on the way to the upstream; `None`
/// if no step has begun.
pub(crate) fn step_durations() -> Option<StepDurations> {
    CURRENT.try_with(|current| current.steps.so_far()).ok()?
}

/// The id of the present trace.
pub(crate) fn current_id() -> Option<TraceId> {
    current().map(|trace| trace.id)
}

/// The id of the trace of a request with these fields: the present one, otherwise that
/// of its client.
pub(crate) fn id_for(fields: &HeaderMap) -> Option<TraceId> {
    current_id().or_else(|| SpanContext::of(fields).map(|parent| parent.trace))
}

/// Changes the span of the present request, if it is recorded.
pub(crate) fn change_request(change: impl FnOnce(&mut SpanRecord)) {
    if let Some(trace) = current() {
        trace.change(change);
    }
}

/// The present request, for those who will wait for what it fetches.
pub(crate) fn leader() -> LeadingRequest {
    let recording = |trace: Arc<Trace>| Some(trace.recording.as_ref()?.server);
    LeadingRequest {
        span: current().and_then(recording),
        steps: step_times(),
    }
}

/// Notes that the present request waits for what another one fetches. Returns how long the
/// steps of that one have taken by now.
pub(crate) fn follow(leader: &LeadingRequest) -> StepDurations {
    change_request(|record| {
        record.set("ordgate.collapsed", true);
        record.links.extend(leader.span.filter(|leader| {
            record.links.len() < MOST_SPANS as usize && !record.links.contains(leader)
        }));
    });
    let steps = leader.steps.as_ref();
    steps.and_then(|steps| steps.so_far()).unwrap_or_default()
}

/// Notes that this wait has ended. `before` is what [`follow`] has returned.
pub(crate) fn followed(leader: &LeadingRequest, before: StepDurations) {
    if let (Some(own), Some(steps)) = (step_times(), &leader.steps) {
        own.take_over(steps, before);
    }
}

/// Begins a step of the present request.
pub(crate) fn begin(name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Span {
    let Some(trace) = current() else {
        return Span(None);
    };
    let Some(recording) = &trace.recording else {
        return Span(None);
    };
    if recording.spans.fetch_add(1, Relaxed) >= MOST_SPANS {
        return Span(None);
    }
    let now = recording.tracer.clock.now();
    let span = SpanId::new(fastrand::u64(..));
    let record = SpanRecord {
        context: recording.server.with(span),
        parent: Some(recording.server.span),
        is_parent_remote: false,
        state: trace.state.clone(),
        name: name.into(),
        kind,
        began: now,
        ended: now,
        attributes: Vec::new(),
        links: Vec::new(),
        failed: false,
    };
    Span(Some(Box::new(OpenSpan { trace, record })))
}

impl Span {
    /// Sets an attribute. The value is made only if the span is recorded.
    pub(crate) fn set<V: Into<AttributeValue>>(
        &mut self,
        name: &'static str,
        value: impl FnOnce() -> V,
    ) {
        if let Some(open) = &mut self.0 {
            open.record.set(name, value());
        }
    }

    /// Notes that the step has failed. `error` is a word for how.
    pub(crate) fn fail(&mut self, error: &'static str) {
        if let Some(open) = &mut self.0 {
            open.record.failed = true;
            open.record.set("error.type", error);
        }
    }

    /// Notes that the step has failed by a status (semantic conventions for HTTP).
    pub(crate) fn fail_with_status(&mut self, status: u16) {
        if let Some(open) = &mut self.0 {
            open.record.failed = true;
            open.record.set("error.type", status.to_string());
        }
    }

    /// Writes the trace context into the fields of an upstream request: this span's, or
    /// the client's where the trace is not recorded. Fields of the client that are there
    /// stay, except for a `traceparent` in place of which this span's is sent.
    pub(crate) fn propagate(&self, fields: &mut HeaderMap) {
        let Ok(current) = CURRENT.try_with(Clone::clone) else {
            return;
        };
        let Some(trace) = current.trace else {
            return;
        };
        let own = self.0.as_ref().map(|open| open.record.context);
        if (own.is_some() || !fields.contains_key(TRACEPARENT))
            && let Some(value) = own.or(trace.parent).and_then(SpanContext::field)
        {
            fields.insert(TRACEPARENT, value);
            if trace.parent.is_none() {
                // It belongs to another trace than this one, which begins here.
                fields.remove(TRACESTATE);
            }
        }
        if current.is_alone
            && !fields.contains_key(TRACESTATE)
            && let Some(state) = &trace.state
            && let Ok(value) = HeaderValue::from_str(state)
        {
            fields.insert(TRACESTATE, value);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.0.take()
            && let OpenSpan { trace, mut record } = *open
            && let Some(Recording { tracer, .. }) = &trace.recording
        {
            record.ended = tracer.clock.now();
            tracer.keep(record);
        }
    }
}
