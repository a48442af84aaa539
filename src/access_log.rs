//! The access log: one line for each request. Where it is disabled, the gateway
//! does no more than check an `Option`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{Method, Version};
use serde::Serialize;

use crate::identify::ClientLabel;
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::trace::context::TraceId;
use crate::wire::request_id::RequestId;

/// The configuration of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Whether requests are logged. Off by default.
    pub enabled: bool,
    /// The level of the lines.
    pub level: LogLevel,
    /// One request in so many is logged. Status codes from 400 are always logged.
    pub sample: u64,
    /// The fields of a line.
    pub fields: Vec<Field>,
}

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Shown by default.
    Info,
    /// Shown where the log level is `debug`.
    Debug,
}

impl LogLevel {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 2] = [("info", Self::Info), ("debug", Self::Debug)];
}

/// A field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The client whose limits it counts against.
    Client,
    /// The method.
    Method,
    /// The version of HTTP: `1.0`, `1.1` or `2`.
    Version,
    /// The route's name.
    Route,
    /// A hash of the cache key: the same for requests of the same response.
    Key,
    /// The status.
    Status,
    /// The length of the response's body in bytes.
    Bytes,
    /// Milliseconds from the request's last byte to its response.
    Duration,
    /// The outcome: one of [`KIND_NAMES`](crate::meter::KIND_NAMES).
    Cache,
    /// Why the request was refused or failed, or why a stale response answered it: the
    /// name of a [`Reason`](crate::reason::Reason).
    Reason,
    /// Milliseconds that the upstream took.
    Upstream,
    /// The request's id.
    RequestId,
    /// The id of the trace that the request belongs to.
    TraceId,
}

impl Field {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 13] = [
        ("client", Self::Client),
        ("method", Self::Method),
        ("version", Self::Version),
        ("route", Self::Route),
        ("key", Self::Key),
        ("status", Self::Status),
        ("bytes", Self::Bytes),
        ("duration", Self::Duration),
        ("cache", Self::Cache),
        ("reason", Self::Reason),
        ("upstream", Self::Upstream),
        ("request_id", Self::RequestId),
        ("trace_id", Self::TraceId),
    ];
}

/// The access log.
#[derive(Debug)]
pub struct AccessLog {
    settings: Settings,
    requests: AtomicU64,
}

/// The contents of a line.
#[derive(Debug)]
pub struct LogEntry<'a> {
    /// The client whose limits it counts against.
    pub client: ClientLabel<'a>,
    /// The method.
    pub method: &'a Method,
    /// The version of HTTP.
    pub version: Version,
    /// The route's name, where one matched.
    pub route: Option<&'a str>,
    /// A hash of the cache key, where the request is valid.
    pub key: Option<u64>,
    /// The status.
    pub status: u16,
    /// The length of the response's body, or 0 where it is not known yet.
    pub bytes: u64,
    /// The time from the request's last byte to its response.
    pub duration: Duration,
    /// What the request counts as.
    pub kind: RequestKind,
    /// How long the upstream took, where the request reached it.
    pub upstream: Option<Duration>,
    /// The request's id.
    pub request_id: RequestId,
    /// The id of the trace that the request belongs to, if it does.
    pub trace_id: Option<TraceId>,
}

impl AccessLog {
    /// The access log, where it is enabled.
    pub fn new(settings: &Settings) -> Option<Self> {
        settings.enabled.then(|| Self {
            settings: settings.clone(),
            requests: AtomicU64::new(0),
        })
    }

    /// Logs a request, unless sampling leaves it out.
    pub fn write(&self, entry: &LogEntry<'_>) {
        let nth = self.requests.fetch_add(1, Relaxed);
        let is_sampled = entry.status < 400;
        if is_sampled && !nth.is_multiple_of(self.settings.sample) {
            return;
        }
        let has = |field| self.settings.fields.contains(&field);
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "ordgate::access",
                    client = has(Field::Client).then(|| tracing::field::display(entry.client)),
                    method = has(Field::Method).then_some(entry.method.as_str()),
                    version = has(Field::Version).then(|| number(entry.version)),
                    route = entry.route.filter(|_| has(Field::Route)),
                    key = entry.key.filter(|_| has(Field::Key)).map(|key| tracing::field::display(format!("{key:016x}"))),
                    status = has(Field::Status).then_some(entry.status),
                    bytes = has(Field::Bytes).then_some(entry.bytes),
                    duration_ms = has(Field::Duration).then(|| millis(entry.duration)),
                    cache = has(Field::Cache).then(|| entry.kind.name()),
                    reason = entry.kind.reason().filter(|_| has(Field::Reason)).map(Reason::name),
                    upstream_ms = entry.upstream.filter(|_| has(Field::Upstream)).map(millis),
                    request_id = has(Field::RequestId).then_some(entry.request_id.as_str()),
                    trace_id = entry.trace_id.filter(|_| has(Field::TraceId)).map(tracing::field::display),
                )
            };
        }
        match self.settings.level {
            LogLevel::Info => line!(info),
            LogLevel::Debug => line!(debug),
        }
    }
}

/// A version of HTTP without its name.
fn number(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        // There are no others on the listeners.
        _ => "1.1",
    }
}
