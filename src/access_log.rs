//! The access log: one line for each request. Where it is disabled, the gateway
//! does no more than check an `Option`.
//!
//! With `sample`, only some of the requests that memory answers have a line. Those that
//! failed (5xx), were answered by a stale response or took long always have one, and so
//! have those that left memory. Refusals (4xx) that did not take long have one too, but no
//! more than 20 lines a second for one client, and 1,000 for all.

mod combined;
mod refusal_lines;

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use http::header::{REFERER, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::outcome::Outcome;
use crate::client_tokens::redact;
use crate::clock::Moment;
use crate::identify::{Client, ClientLabel};
use crate::log_writer::{self, Destination, LineKind, LogWriter};
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::trace;
use crate::trace::context::TraceId;
use crate::wire::head::{is_replacement, refused_line};
use crate::wire::request_id::RequestId;
use refusal_lines::RefusalLines;

/// The target of the lines in the log.
pub const TARGET: &str = "ordgate::access";

/// The most bytes of a path, of a query and of a field in a line; the rest is left out.
const MAX_PART: usize = 2048;

/// The configuration of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether requests are logged. Off by default.
    pub enabled: bool,
    /// The format of the lines.
    pub format: AccessFormat,
    /// One of so many requests that memory answers is logged.
    pub sample: u64,
    /// Requests that took this long are always logged.
    pub slow: Duration,
    /// The fields of a line.
    pub fields: Vec<Field>,
}

/// The format of the lines, and where they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessFormat {
    /// Events of the log.
    Log,
    /// Apache's combined format, on standard output.
    Combined,
}

/// A field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The client whose limits it counts against.
    Client,
    /// The method.
    Method,
    /// The version of HTTP: `1.0`, `1.1` or `2`.
    Version,
    /// The path, up to 2 KiB.
    Path,
    /// The query, up to 2 KiB, but not on plain routes.
    Query,
    /// The query on plain routes: what it means is the origin's matter, so it may be secret.
    PlainQuery,
    /// The route's name.
    Route,
    /// A hash of the cache key: the same for requests of the same response.
    Key,
    /// The status.
    Status,
    /// The length of the response's body in bytes.
    Bytes,
    /// Microseconds from the request's last byte to the head of its response.
    Duration,
    /// The outcome: one of [`KIND_NAMES`](crate::meter::KIND_NAMES).
    Cache,
    /// Why the request was refused or failed, or why a stale response answered it: the
    /// name of a [`Reason`].
    Reason,
    /// Microseconds that the upstream took.
    Upstream,
    /// The request's id.
    RequestId,
    /// The id of the trace that the request belongs to.
    TraceId,
}

impl Field {
    /// All of them.
    const ALL: [Self; 16] = [
        Self::Client,
        Self::Method,
        Self::Version,
        Self::Path,
        Self::Query,
        Self::PlainQuery,
        Self::Route,
        Self::Key,
        Self::Status,
        Self::Bytes,
        Self::Duration,
        Self::Cache,
        Self::Reason,
        Self::Upstream,
        Self::RequestId,
        Self::TraceId,
    ];

    /// What a line has by default: all, but for queries that may be secret.
    pub fn default_fields() -> Vec<Self> {
        let all = Self::ALL.into_iter();
        all.filter(|field| *field != Self::PlainQuery).collect()
    }
}

/// The access log.
#[derive(Debug)]
pub struct AccessLog {
    settings: Settings,
    requests: AtomicU64,
    refusal_lines: RefusalLines,
    /// Makes the numbers of clients unpredictable.
    hasher: foldhash::quality::RandomState,
}

/// Whether a request has a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineDecision {
    /// It has.
    Line,
    /// Sampling leaves it out.
    No,
    /// It is a refusal, and its client has had its lines, or all clients together have.
    Suppressed,
}

/// What a line has of the head of a request.
#[derive(Debug)]
pub struct LoggedHead {
    /// Whether it was refused before it was parsed. Then the method is not the request's.
    is_refused: bool,
    /// The beginning of the refused request line, if it is known.
    refused_line: Option<Box<str>>,
    /// `None` where the head was refused.
    target: Option<PathAndQuery>,
    /// The id of the trace that the request belongs to, if it does.
    pub trace_id: Option<TraceId>,
    /// In Apache's format, as the next one.
    user_agent: Option<HeaderValue>,
    referer: Option<HeaderValue>,
}

/// The contents of a line.
#[derive(Debug)]
pub struct LogEntry<'a> {
    /// The address of the connection's other end.
    pub peer: IpAddr,
    /// The client whose limits it counts against.
    pub client: ClientLabel<'a>,
    /// The method.
    pub method: &'a Method,
    /// The version of HTTP.
    pub version: Version,
    /// The rest of the request's head.
    pub head: &'a LoggedHead,
    /// A hash of the cache key, where the request is valid.
    pub key: Option<u64>,
    /// The route's name, where one matched.
    pub route: Option<&'a str>,
    /// Whether that route is plain.
    pub is_plain: bool,
    /// The status.
    pub status: u16,
    /// The length of the response's body, or 0 where it is not known yet.
    pub bytes: u64,
    /// The time of the response.
    pub at: SystemTime,
    /// The time from the request's last byte to its response.
    pub duration: Duration,
    /// What the request counts as.
    pub kind: RequestKind,
    /// How long the upstream took, where the request reached it.
    pub upstream: Option<Duration>,
    /// The request's id.
    pub request_id: RequestId,
}

impl LogEntry<'_> {
    /// The method, which a client may make up.
    fn method(&self) -> Cow<'_, str> {
        shown(self.method.as_str())
    }

    fn path(&self) -> Option<Cow<'_, str>> {
        let path = self.head.target.as_ref()?.path();
        Some(shown(path))
    }

    /// The beginning of a refused request line.
    fn refused_line(&self) -> Option<Cow<'_, str>> {
        self.head.refused_line.as_deref().map(shown_line)
    }

    /// The query, if these fields have it.
    fn query(&self, fields: &[Field]) -> Option<Cow<'_, str>> {
        let field = match self.is_plain {
            true => Field::PlainQuery,
            false => Field::Query,
        };
        if !fields.contains(&field) {
            return None;
        }
        let query = self.head.target.as_ref()?.query()?;
        Some(shown(query))
    }
}

impl AccessLog {
    /// The access log, where it is enabled.
    pub fn new(settings: &Settings) -> Option<Self> {
        settings.enabled.then(|| Self {
            settings: settings.clone(),
            requests: AtomicU64::new(0),
            refusal_lines: RefusalLines::default(),
            hasher: foldhash::quality::RandomState::default(),
        })
    }

    /// Whether a request has a line. Counts it, for sampling and for the bound of its
    /// client's refusals.
    #[inline]
    pub(crate) fn wants(
        &self,
        kind: RequestKind,
        status: StatusCode,
        took: Duration,
        client: Client,
        now: Moment,
    ) -> LineDecision {
        let sample = self.settings.sample;
        let is_wanted = match () {
            () if sample == 1 || took >= self.settings.slow || status.is_server_error() => true,
            () if status.is_client_error() => {
                return match self.refusal_lines.admit(client, now) {
                    true => LineDecision::Line,
                    false => LineDecision::Suppressed,
                };
            }
            () if is_from_memory(kind) => {
                self.requests.fetch_add(1, Relaxed).is_multiple_of(sample)
            }
            () => true,
        };
        match is_wanted {
            true => LineDecision::Line,
            false => LineDecision::No,
        }
    }

    /// What a line will have of the head of a request.
    pub fn head(&self, method: &Method, uri: &Uri, fields: &HeaderMap) -> LoggedHead {
        let is_refused = is_replacement(method, uri);
        let is_combined = self.settings.format == AccessFormat::Combined;
        let field = |name| is_combined.then(|| fields.get(name).cloned());
        LoggedHead {
            is_refused,
            refused_line: is_refused
                .then(|| refused_line(fields).map(Box::from))
                .flatten(),
            target: uri.path_and_query().filter(|_| !is_refused).cloned(),
            trace_id: trace::id_for(fields),
            user_agent: field(USER_AGENT).flatten(),
            referer: field(REFERER).flatten(),
        }
    }

    /// Writes the line of a request.
    pub fn write(&self, entry: &LogEntry<'_>) {
        let client = self.hasher.hash_one(entry.client.client);
        match self.settings.format {
            AccessFormat::Log => log_writer::for_client(client, || self.write_event(entry)),
            AccessFormat::Combined => {
                let line = combined::line(entry, &self.settings.fields);
                let kind = LineKind::Access { client };
                LogWriter::to(Destination::StandardOutput).push(line.as_bytes(), kind);
            }
        }
    }

    fn has(&self, field: Field) -> bool {
        self.settings.fields.contains(&field)
    }

    fn write_event(&self, entry: &LogEntry<'_>) {
        let has = |field| self.has(field);
        let method = Some(entry.method()).filter(|_| !entry.head.is_refused);
        let line = entry.refused_line().filter(|_| has(Field::Path));
        let path = entry.path().filter(|_| has(Field::Path));
        let query = entry.query(&self.settings.fields);
        let key = entry.key.filter(|_| has(Field::Key));
        let reason = entry.kind.reason().filter(|_| has(Field::Reason));
        tracing::info!(
            target: TARGET,
            client = has(Field::Client).then(|| tracing::field::display(entry.client)),
            method = method.filter(|_| has(Field::Method)).as_deref(),
            version = has(Field::Version).then(|| number(entry.version)),
            path = path.as_deref(),
            query = query.as_deref(),
            request_line = line.as_deref(),
            route = entry.route.filter(|_| has(Field::Route)),
            key = key.map(|key| tracing::field::display(format!("{key:016x}"))),
            status = has(Field::Status).then_some(entry.status),
            bytes = has(Field::Bytes).then_some(entry.bytes),
            duration_us = has(Field::Duration).then(|| micros(entry.duration)),
            cache = has(Field::Cache).then(|| entry.kind.name()),
            reason = reason.map(Reason::name),
            upstream_us = entry.upstream.filter(|_| has(Field::Upstream)).map(micros),
            request_id = has(Field::RequestId).then_some(entry.request_id.as_str()),
            trace_id = entry.head.trace_id.filter(|_| has(Field::TraceId)).map(tracing::field::display),
        );
    }
}

/// Whether memory has answered a request, with something fresh: of those requests there
/// may be very many.
fn is_from_memory(kind: RequestKind) -> bool {
    matches!(
        kind,
        RequestKind::Answer(Outcome::Hit { ttl: 0.. })
            | RequestKind::Document
            | RequestKind::Preflight
    )
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A part of a request as a line has it: bounded, and without a client token or a key of
/// the provider, which some client may send where none belongs.
fn shown(part: &str) -> Cow<'_, str> {
    redact(part, MAX_PART)
}

/// The beginning of a refused request line as a line has it.
pub(crate) fn shown_line(line: &str) -> Cow<'_, str> {
    /// The most bytes of it.
    const MAX_LINE: usize = 256;
    let shown = redact(line, MAX_LINE);
    // A backslash that is the last of an odd number begins an escape that was cut.
    let ends = shown.len() - shown.trim_end_matches('\\').len();
    match (ends % 2, shown) {
        (0, shown) => shown,
        (_, Cow::Borrowed(shown)) => Cow::Borrowed(&shown[..shown.len() - 1]),
        (_, Cow::Owned(mut shown)) => {
            shown.pop();
            Cow::Owned(shown)
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

#[cfg(test)]
mod tests;
