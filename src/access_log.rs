//! One line for a request, for those who want it. Off, it costs a hit nothing:
//! the walk asks one `Option`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::Method;
use serde::Serialize;

use crate::cache::outcome::{OUTCOMES, Outcome};
use crate::identify::Client;
use crate::respond::RequestId;

/// Whether and how requests are logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Off by default.
    pub enabled: bool,
    /// The level of the lines.
    pub level: LogLevel,
    /// One request in so many is logged; refusals and failures always.
    pub sample: u64,
    /// What a line says.
    pub fields: Vec<Field>,
}

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For all to see.
    Info,
    /// For those who look closely.
    Debug,
}

impl LogLevel {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 2] = [("info", Self::Info), ("debug", Self::Debug)];
}

/// What a line can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// Whose limits it counted against.
    Client,
    /// The method.
    Method,
    /// The route's name.
    Route,
    /// A hash of the cache key: equal for equal questions.
    Key,
    /// The status.
    Status,
    /// The bytes of the body.
    Bytes,
    /// Milliseconds from the request's last byte to its answer.
    Duration,
    /// How the answer came about.
    Cache,
    /// Milliseconds that the upstream took.
    Upstream,
    /// The request's id.
    RequestId,
}

impl Field {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 10] = [
        ("client", Self::Client),
        ("method", Self::Method),
        ("route", Self::Route),
        ("key", Self::Key),
        ("status", Self::Status),
        ("bytes", Self::Bytes),
        ("duration", Self::Duration),
        ("cache", Self::Cache),
        ("upstream", Self::Upstream),
        ("request_id", Self::RequestId),
    ];
}

/// The log.
#[derive(Debug)]
pub struct AccessLog {
    settings: Settings,
    seen: AtomicU64,
}

/// What is known of a request when it is answered.
#[derive(Debug)]
pub struct LogEntry<'a> {
    /// Whose limits it counted against.
    pub caller: Client,
    /// The method.
    pub method: &'a Method,
    /// The route's name, where one was found.
    pub route: Option<&'a str>,
    /// A hash of the cache key, where the request was valid.
    pub key: Option<u64>,
    /// The status.
    pub status: u16,
    /// The bytes of the body.
    pub bytes: u64,
    /// From the request's last byte to its answer.
    pub duration: Duration,
    /// How the answer came about; `None` where it was refused.
    pub outcome: Option<Outcome>,
    /// What the upstream took, where it was asked.
    pub upstream: Option<Duration>,
    /// The request's id.
    pub request_id: RequestId,
}

impl AccessLog {
    /// The log, where it is on.
    pub fn new(settings: &Settings) -> Option<Self> {
        settings.enabled.then(|| Self {
            settings: settings.clone(),
            seen: AtomicU64::new(0),
        })
    }

    /// Logs a request, or passes it over as the sampling has it.
    pub fn write(&self, visit: &LogEntry<'_>) {
        let nth = self.seen.fetch_add(1, Relaxed);
        let ordinary = visit.status < 400;
        if ordinary && !nth.is_multiple_of(self.settings.sample) {
            return;
        }
        let has = |field| self.settings.fields.contains(&field);
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "ordgate::access",
                    client = has(Field::Client).then(|| tracing::field::display(visit.caller)),
                    method = has(Field::Method).then_some(visit.method.as_str()),
                    route = visit.route.filter(|_| has(Field::Route)),
                    key = visit.key.filter(|_| has(Field::Key)).map(|key| tracing::field::display(format!("{key:016x}"))),
                    status = has(Field::Status).then_some(visit.status),
                    bytes = has(Field::Bytes).then_some(visit.bytes),
                    duration_ms = has(Field::Duration).then(|| millis(visit.duration)),
                    cache = has(Field::Cache).then(|| visit.outcome.map_or("refused", |o| OUTCOMES[o.index()])),
                    upstream_ms = visit.upstream.filter(|_| has(Field::Upstream)).map(millis),
                    request_id = has(Field::RequestId).then_some(visit.request_id.as_str()),
                )
            };
        }
        match self.settings.level {
            LogLevel::Info => line!(info),
            LogLevel::Debug => line!(debug),
        }
    }
}
