//! A collector of traces: a server that records what is posted to it in OTLP's JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Reply, Setup, Upstream, until};

/// A running collector.
pub(crate) struct Collector(pub(crate) Upstream);

/// A span as it was exported.
#[derive(Clone, Debug)]
pub(crate) struct ExportedSpan(Value);

impl Collector {
    /// One that accepts everything.
    pub(crate) fn start() -> Self {
        let server = Upstream::start();
        server.always(Reply::json("{}"));
        Self(server)
    }

    /// The environment of a gateway that exports to it, soon after a span has ended.
    pub(crate) fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.0.url()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json".to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ]
    }

    /// Makes a gateway export to it what clients want recorded, and nothing else.
    pub(crate) fn of(&self, setup: Setup) -> Setup {
        let variables = self.variables();
        let setup = variables
            .iter()
            .fold(setup, |setup, (name, value)| setup.collector(name, value));
        setup.config("telemetry.sample = 0.0")
    }

    /// The bodies of all exports, in their order.
    pub(crate) fn bodies(&self) -> Vec<String> {
        let seen = self.0.seen().into_iter().filter(|seen| seen.whole);
        seen.map(|seen| String::from_utf8(seen.body).unwrap())
            .collect()
    }

    /// All spans, each once, in the order of their exports.
    pub(crate) fn spans(&self) -> Vec<ExportedSpan> {
        let mut known = BTreeSet::new();
        let mut spans = Vec::new();
        for body in self.bodies() {
            let body: Value = serde_json::from_str(&body).unwrap();
            for group in body["resourceSpans"].as_array().unwrap() {
                for scope in group["scopeSpans"].as_array().unwrap() {
                    let all = scope["spans"].as_array().unwrap().iter().cloned();
                    spans.extend(all.map(ExportedSpan));
                }
            }
        }
        spans.retain(|span: &ExportedSpan| known.insert(span.id()));
        spans
    }

    /// The spans of requests.
    pub(crate) fn requests(&self) -> Vec<ExportedSpan> {
        let mut spans = self.spans();
        spans.retain(ExportedSpan::is_request);
        spans
    }

    /// Waits until the requests of these traces have been exported, and returns all spans.
    pub(crate) async fn until_traces(&self, traces: &[&str]) -> Vec<ExportedSpan> {
        let has = |trace: &&str| self.requests().iter().any(|span| span.trace() == *trace);
        until("the traces are exported", || traces.iter().all(has)).await;
        self.spans()
    }
}

impl ExportedSpan {
    fn text(&self, name: &str) -> String {
        self.0[name].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn trace(&self) -> String {
        self.text("traceId")
    }

    pub(crate) fn id(&self) -> String {
        self.text("spanId")
    }

    pub(crate) fn parent(&self) -> String {
        self.text("parentSpanId")
    }

    pub(crate) fn name(&self) -> String {
        self.text("name")
    }

    /// Whether it is of a client's request.
    pub(crate) fn is_request(&self) -> bool {
        self.0["kind"] == 2
    }

    /// The value of an attribute, as text; empty where there is none.
    pub(crate) fn attribute(&self, name: &str) -> String {
        let mut all = self.0["attributes"].as_array().unwrap().iter();
        let Some(found) = all.find(|one| one["key"] == name) else {
            return String::new();
        };
        let value = found["value"].as_object().unwrap().values().next().unwrap();
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    }

    /// When it began and ended, in nanoseconds.
    pub(crate) fn times(&self) -> [u64; 2] {
        ["startTimeUnixNano", "endTimeUnixNano"].map(|name| self.text(name).parse().unwrap())
    }
}
