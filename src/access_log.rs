//! The access log: one line for each request. Where it is disabled, the gateway
//! does no more than check an `Option`.
//!
//! With `sample`, only some of the requests that are answered from memory or refused have
//! a line. Those that fail (5xx), get a stale response, leave memory or take long always
//! have one.

mod combined;

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, StatusCode, Uri, Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::outcome::{HitSource, Outcome};
use crate::client_tokens::redact;
use crate::identify::ClientLabel;
use crate::log_writer::Destination;
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::trace;
use crate::wire::request_id::RequestId;

/// The target of the lines in the log.
const TARGET: &str = "ordgate::access";

/// The most bytes of a path, of a query and of a field in a line; the rest is left out.
const MAX_PART: usize = 2048;

/// Requests that take so long are not sampled.
const SLOW: Duration = Duration::from_secs(1);

/// The access log: a line for each request.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// "off" logs no requests; "log" writes them with the log; "combined" writes them to standard
    /// output, in the format of the same name of Apache and nginx. Queries of plain routes
    /// (headers = "all", or mode "respect") may be secret and are not logged.
    pub format: AccessFormat,
    /// One of so many requests is logged of those that are answered from memory or refused
    /// (4xx). Those that fail (5xx), take a second, or leave memory are always logged.
    pub sample: NonZeroU64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            format: AccessFormat::Off,
            sample: NonZeroU64::MIN,
        }
    }
}

/// The format of the lines, and where they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessFormat {
    /// None.
    Off,
    /// Events of the log.
    Log,
    /// Apache's combined format, on standard output.
    Combined,
}

/// The access log.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessFormat,
    sample: u64,
    /// Requests that may be left out.
    sampled: AtomicU64,
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
    /// The request target.
    pub uri: &'a Uri,
    /// The request's fields.
    pub fields: &'a HeaderMap,
    /// The route's name, where one matched.
    pub route: Option<&'a str>,
    /// Whether that route is plain: what its queries mean is the origin's matter, so they
    /// may be secret and are not logged.
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

    /// The target without its query.
    fn target(&self) -> Option<Cow<'_, str>> {
        self.uri.path_and_query().map(|_| shown(self.uri.path()))
    }

    fn query(&self) -> Option<Cow<'_, str>> {
        let query = self.uri.query().filter(|_| !self.is_plain);
        query.map(shown)
    }
}

impl AccessLog {
    /// The access log, where it is enabled.
    pub fn new(settings: &Settings) -> Option<Self> {
        (settings.format != AccessFormat::Off).then(|| Self {
            format: settings.format,
            sample: settings.sample.get(),
            sampled: AtomicU64::new(0),
        })
    }

    /// Whether a request has a line. Counts it, for sampling.
    #[inline]
    pub(crate) fn wants(&self, kind: RequestKind, status: StatusCode, took: Duration) -> bool {
        let is_sampled = match kind {
            RequestKind::Answer(Outcome::Hit {
                ttl: 0..,
                from: HitSource::Memory,
            })
            | RequestKind::Document
            | RequestKind::Preflight
            | RequestKind::Refusal(_) => !status.is_server_error() && took < SLOW,
            RequestKind::Answer(_) | RequestKind::Failure(..) => false,
        };
        !is_sampled
            || self
                .sampled
                .fetch_add(1, Relaxed)
                .is_multiple_of(self.sample)
    }

    /// Writes the line of a request.
    pub fn write(&self, entry: &LogEntry<'_>) {
        match self.format {
            AccessFormat::Off => {}
            AccessFormat::Log => write_event(entry),
            AccessFormat::Combined => {
                let line = combined::line(entry);
                // It is dropped, and counted, where the queue is full.
                let _ = Destination::StandardOutput
                    .writer()
                    .write_all(line.as_bytes());
            }
        }
    }
}

fn write_event(entry: &LogEntry<'_>) {
    let method = Some(entry.method());
    tracing::info!(
        target: TARGET,
        client = %entry.client,
        method = method.as_deref(),
        version = ?entry.version,
        path = entry.target().as_deref(),
        query = entry.query().as_deref(),
        route = entry.route,
        status = entry.status,
        bytes = entry.bytes,
        duration_us = entry.duration.as_micros() as u64,
        cache = entry.kind.name(),
        reason = entry.kind.reason().map(Reason::name),
        upstream_us = entry.upstream.map(|time| time.as_micros() as u64),
        request_id = entry.request_id.as_str(),
        trace_id = trace::id_for(entry.fields).map(display),
    );
}

/// A part of a request as a line has it: bounded, and without a client token or a key of
/// the provider, which some client may send where none belongs.
fn shown(part: &str) -> Cow<'_, str> {
    redact(part, MAX_PART)
}

#[cfg(test)]
mod tests;
