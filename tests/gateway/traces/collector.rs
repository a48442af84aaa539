//! A collector of traces: a server that records what is posted to it in OTLP's JSON.

use serde_json::Value;

use crate::support::{Process, Reply, Upstream, until};

/// A running collector.
pub(super) struct Collector(pub(super) Upstream);

/// A span as it was exported.
#[derive(Clone, Debug)]
pub(super) struct ExportedSpan(Value);

impl Collector {
    /// One that accepts everything.
    pub(super) fn start() -> Self {
        let server = Upstream::start();
        server.always(Reply::json("{}"));
        Self(server)
    }

    /// An ordgate with this configuration that exports to it, and where it serves clients.
    pub(super) fn of(&self, upstream: &Upstream, config: &str) -> (Process, std::net::SocketAddr) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy.toml");
        std::fs::write(&path, config).unwrap();
        let path = path.display().to_string();
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*self.0.url()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "x-tenant=a%20b,api-key=hidden",
            ),
            ("OTEL_SERVICE_NAME", "edge"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone=north"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("ORDGATE_API_KEYS", "a-provider-key"),
        ];
        let (process, public, _) = Process::before(upstream, &["--config", &path], &variables);
        (process, public)
    }

    /// The bodies of all exports, in their order.
    pub(super) fn bodies(&self) -> Vec<String> {
        let seen = self.0.seen().into_iter().filter(|seen| seen.whole);
        seen.map(|seen| String::from_utf8(seen.body).unwrap())
            .collect()
    }

    /// All spans, in the order of their exports.
    pub(super) fn spans(&self) -> Vec<ExportedSpan> {
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
        spans
    }

    /// Waits for so many spans.
    pub(super) async fn until_spans(&self, count: usize) -> Vec<ExportedSpan> {
        until("the spans are exported", || self.spans().len() >= count).await;
        self.spans()
    }
}

impl ExportedSpan {
    fn text(&self, name: &str) -> String {
        self.0[name].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn trace(&self) -> String {
        self.text("traceId")
    }

    pub(super) fn id(&self) -> String {
        self.text("spanId")
    }

    pub(super) fn parent(&self) -> String {
        self.text("parentSpanId")
    }

    pub(super) fn name(&self) -> String {
        self.text("name")
    }

    /// Whether it is of a client's request.
    pub(super) fn is_request(&self) -> bool {
        self.0["kind"] == 2
    }

    /// The value of an attribute, as text; empty where there is none.
    pub(super) fn attribute(&self, name: &str) -> String {
        let mut all = self.0["attributes"].as_array().unwrap().iter();
        let Some(found) = all.find(|one| one["key"] == name) else {
            return String::new();
        };
        let value = found["value"].as_object().unwrap().values().next().unwrap();
        let text = value.as_str().map(str::to_owned);
        text.unwrap_or_else(|| value.to_string())
    }

    /// When it began and ended, in nanoseconds.
    pub(super) fn times(&self) -> [u64; 2] {
        ["startTimeUnixNano", "endTimeUnixNano"].map(|name| self.text(name).parse().unwrap())
    }
}
