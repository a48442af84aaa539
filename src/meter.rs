//! Counts of requests and connections. A connection counts in one of a few
//! shards, so that cores do not contend for a counter; a reader adds the shards
//! up.
//!
//! A reload makes another meter, for other routes. The counts of routes that
//! stay are shared by both, so that requests still under way on the old one are
//! not lost.

pub mod errors;
pub(crate) mod latency;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
pub use latency::LatencyHistogram;
use latency::Times;
use serde::Serialize;
use serde_json::{Value, json};

use errors::RecentErrors;

use crate::cache::outcome::{OUTCOMES, Outcome};
use crate::connections::Connections;
use crate::log_writer::LogInterval;
use crate::reason::Reason;
use crate::sync::lock;

/// Classes of status codes: 1xx to 5xx.
const CLASSES: usize = 5;
const KINDS: usize = KIND_NAMES.len();
/// A power of two, so that the remainder is a mask.
const SHARDS: usize = 8;

/// What a request counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// It was answered by a route.
    Answer(Outcome),
    /// The upstream failed, or no request to it was possible.
    Failure(Outcome, Reason),
    /// It was answered with a document of ordgate's own.
    Document,
    /// It was OPTIONS.
    Preflight,
    /// It was refused.
    Refusal(Reason),
}

/// The names of the kinds of requests in logs and metrics, where they are outcomes too.
pub const KIND_NAMES: [&str; OUTCOMES.len() + 3] = {
    let [hit, stale, miss, collapsed, bypass, disk, shared] = OUTCOMES;
    [
        hit,
        stale,
        miss,
        collapsed,
        bypass,
        disk,
        shared,
        "document",
        "preflight",
        "refused",
    ]
};

impl RequestKind {
    /// The position of its name in [`KIND_NAMES`].
    #[inline]
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Answer(outcome) | Self::Failure(outcome, _) => outcome.index(),
            Self::Document => OUTCOMES.len(),
            Self::Preflight => OUTCOMES.len() + 1,
            Self::Refusal(_) => OUTCOMES.len() + 2,
        }
    }

    /// Its name in logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        KIND_NAMES[self.index()]
    }

    /// Why it was refused, why it failed, or why a stale response answered it.
    #[inline]
    pub(crate) fn reason(self) -> Option<Reason> {
        match self {
            Self::Failure(_, reason)
            | Self::Refusal(reason)
            | Self::Answer(Outcome::StaleIfError { reason, .. }) => Some(reason),
            Self::Answer(_) | Self::Document | Self::Preflight => None,
        }
    }
}

/// Counts of requests by route, outcome and class of status code, and how long they took.
#[derive(Debug)]
pub struct Meter {
    /// First the counts of requests without a route, then each route's.
    routes: Box<[Arc<RouteCounts>]>,
    /// Counts of the whole process.
    pub totals: Arc<Totals>,
}

/// Counts that do not depend on the routes. `/status` shows those of connections.
#[derive(Debug, Default, Serialize)]
pub struct Totals {
    /// Connections open now, and what they hold.
    #[serde(flatten)]
    pub connections: Arc<Connections>,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections closed since the start because they had no valid PROXY header, or
    /// were not from a trusted proxy.
    pub proxy_header_refused: AtomicU64,
    /// Connections reset since the start because their client read its response
    /// too slowly.
    #[serde(rename = "reset_slow")]
    pub too_slow: AtomicU64,
    /// Connections closed since the start because of a flood in HTTP/2.
    pub http2_floods: AtomicU64,
    /// When one was last logged: a client may repeat it at will.
    #[serde(skip)]
    pub flood_logged: LogInterval,
    /// TLS handshakes and certificates.
    #[serde(skip)]
    pub tls: Arc<TlsCounts>,
    /// When an untrusted proxy was last logged.
    #[serde(skip)]
    pub untrusted_proxy: LogInterval,
    /// When it was last logged that a connection could not be accepted.
    #[serde(skip)]
    pub not_accepted: LogInterval,
    /// Requests that were refused or failed, by reason.
    #[serde(skip)]
    pub refused: Mutex<BTreeMap<Reason, u64>>,
    /// The last answers with a 5xx status.
    #[serde(skip)]
    pub errors: RecentErrors,
}

/// Counts of TLS towards clients since the start.
#[derive(Debug, Default)]
pub struct TlsCounts {
    /// Handshakes that succeeded, by version (1.2, 1.3): with a new session, and with
    /// one that was resumed.
    pub succeeded: [[AtomicU64; 2]; 2],
    /// Handshakes that failed.
    pub failed: AtomicU64,
    /// Connections that ended before a whole ClientHello had come.
    pub closed: AtomicU64,
    /// Connections closed because the handshake took too long.
    pub too_slow: AtomicU64,
    /// Connections closed because too many handshakes were under way for too long.
    pub over_limit: AtomicU64,
    /// Connections closed because their client did too many handshakes.
    pub over_client_limit: AtomicU64,
}

impl TlsCounts {
    /// The handshakes by version and result.
    pub fn snapshot(&self) -> Value {
        let [of_12, of_13] = &self.succeeded;
        let succeeded = |[new, resumed]: &[AtomicU64; 2]| json!({ "new": new, "resumed": resumed });
        json!({
            "1.2": succeeded(of_12),
            "1.3": succeeded(of_13),
            "none": {
                "failed": self.failed,
                "closed": self.closed,
                "too-slow": self.too_slow,
                "over-limit": self.over_limit,
                "over-client-limit": self.over_client_limit,
            },
        })
    }
}

/// The counts of one route.
type RouteCounts = [Shard; SHARDS];

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([KindCounts; KINDS]);

/// The requests of one kind.
#[derive(Debug, Default)]
struct KindCounts {
    classes: [AtomicU64; CLASSES],
    times: Times,
}

/// The requests of one kind on one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// The route's place in its table; `None` where no route was found.
    pub route: Option<usize>,
    /// One of [`KIND_NAMES`].
    pub outcome: &'static str,
    /// How many of them have a status of each class, 1xx to 5xx.
    pub classes: [u64; CLASSES],
    /// How long they took.
    pub times: LatencyHistogram,
}

impl Meter {
    /// A meter of `routes` routes, all counts zero.
    pub fn new(routes: usize) -> Self {
        Self {
            routes: (0..=routes).map(|_| Arc::default()).collect(),
            totals: Arc::default(),
        }
    }

    /// The meter after a reload. For each of its routes, `routes` has the position of the
    /// same route here, whose counts it continues; `None` for a new one.
    pub fn next(&self, routes: impl Iterator<Item = Option<usize>>) -> Self {
        let own = |place: Option<usize>| {
            let counts = place.and_then(|place| self.routes.get(place + 1));
            counts.cloned().unwrap_or_default()
        };
        Self {
            routes: self
                .routes
                .iter()
                .take(1)
                .cloned()
                .chain(routes.map(own))
                .collect(),
            totals: self.totals.clone(),
        }
    }

    /// Counts a request of a connection, which took this time. It has no `route` where
    /// none matched.
    #[inline]
    pub fn count(
        &self,
        connection: u64,
        route: Option<u16>,
        kind: RequestKind,
        status: StatusCode,
        took: Duration,
    ) {
        if let RequestKind::Failure(_, reason) | RequestKind::Refusal(reason) = kind {
            *lock(&self.totals.refused).entry(reason).or_default() += 1;
        }
        let route = route.map_or(0, |route| usize::from(route) + 1);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        if let Some(counts) = self.routes.get(route) {
            let shard = &counts[connection as usize % SHARDS];
            let counts = &shard.0[kind.index()];
            counts.classes[class].fetch_add(1, Relaxed);
            counts.times.count(took);
        }
    }

    /// The counts of each kind of requests that there were, by route.
    pub fn snapshot(&self) -> Vec<RequestCounts> {
        let mut rows = Vec::new();
        for (route, shards) in self.routes.iter().enumerate() {
            for (kind, outcome) in KIND_NAMES.into_iter().enumerate() {
                let mut row = RequestCounts {
                    route: route.checked_sub(1),
                    outcome,
                    classes: [0; CLASSES],
                    times: LatencyHistogram::default(),
                };
                for Shard(kinds) in &**shards {
                    row.times.add(&kinds[kind].times.snapshot());
                    for (count, more) in row.classes.iter_mut().zip(&kinds[kind].classes) {
                        *count += more.load(Relaxed);
                    }
                }
                rows.extend((row.classes != [0; CLASSES]).then_some(row));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_over_shards_and_stay_over_a_reload() {
        let meter = Meter::new(2);
        assert_eq!(meter.snapshot(), []);
        let hit = RequestKind::Answer(Outcome::hit(3));
        let took = Duration::from_micros(15);
        for connection in 0..100 {
            meter.count(connection, Some(1), hit, StatusCode::OK, took);
        }
        let refusal = RequestKind::Refusal(Reason::NoRoute);
        meter.count(1, None, refusal, StatusCode::NOT_FOUND, took);
        meter.count(1, None, RequestKind::Document, StatusCode::OK, took);
        meter.count(1, Some(9), refusal, StatusCode::OK, took);
        let rows = |meter: &Meter| {
            let rows = meter.snapshot().into_iter();
            rows.map(|row| (row.route, row.outcome, row.classes, row.times.count()))
                .collect::<Vec<_>>()
        };
        let document = (None, "document", [0, 1, 0, 0, 0], 1);
        let refused = (None, "refused", [0, 0, 0, 1, 0], 1);
        let hits = (Some(1), "hit", [0, 100, 0, 0, 0], 100);
        assert_eq!(rows(&meter), [document, refused, hits]);
        let next = meter.next([Some(1), None].into_iter());
        meter.count(3, Some(1), hit, StatusCode::OK, took);
        let hits = (Some(0), "hit", [0, 101, 0, 0, 0], 101);
        assert_eq!(
            rows(&next),
            [document, refused, hits],
            "what stays counts on"
        );
        let refused = lock(&next.totals.refused).clone();
        assert_eq!(refused, BTreeMap::from([(Reason::NoRoute, 2)]));
    }
}
