//! Counts of requests and connections. A connection counts in one of a few
//! shards, so that cores do not contend for a counter; a reader adds the shards
//! up.
//!
//! A reload makes another meter, for other routes. The counts of routes that
//! stay are shared by both, so that requests still under way on the old one are
//! not lost.

pub mod errors;
mod latency;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::StatusCode;
use latency::RouteLatency;
pub use latency::{LatencyHistogram, RequestLatency};

use errors::RecentErrors;

use crate::cache::outcome::{OUTCOMES, Outcome};
use crate::clock::Moment;
use crate::log_writer::LogInterval;
use crate::reason::Reason;
use crate::unsent::UnsentBytes;

/// Classes of status codes: 1xx to 5xx.
const CLASSES: usize = 5;
/// Cells of a route: each kind of request, by class of status code.
const CELLS: usize = KIND_NAMES.len() * CLASSES;
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
    let mut names = [""; OUTCOMES.len() + 3];
    let mut at = 0;
    while at < OUTCOMES.len() {
        names[at] = OUTCOMES[at];
        at += 1;
    }
    names[at] = "document";
    names[at + 1] = "preflight";
    names[at + 2] = "refused";
    names
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

/// Counts that do not depend on the routes.
#[derive(Debug, Default)]
pub struct Totals {
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections turned away since the start because there were too many.
    pub turned_away: AtomicU64,
    /// Connections turned away since the start because their client had too many.
    pub turned_away_client: AtomicU64,
    /// Connections closed since the start because they had no valid PROXY header, or
    /// were not from a trusted proxy.
    pub proxy_header_refused: AtomicU64,
    /// Connections reset since the start because their client read its response
    /// too slowly.
    pub too_slow: AtomicU64,
    /// What concerns HTTP/2.
    pub http2: Http2Totals,
    /// TLS handshakes and certificates.
    pub tls: Arc<TlsCounts>,
    /// Memory held by responses that clients have not read yet.
    pub unsent: Arc<UnsentBytes>,
    /// When an untrusted proxy was last logged.
    pub untrusted_proxy: LogInterval,
    /// When it was last logged that a connection could not be accepted.
    pub not_accepted: LogInterval,
    /// Requests that were refused or failed, and refused connections.
    pub refused: RefusalCounts,
    /// The last answers with a 5xx status.
    pub errors: RecentErrors,
}

/// Counts of refusals and failures since the start, by reason.
#[derive(Debug)]
pub struct RefusalCounts([AtomicU64; Reason::ALL.len()]);

impl Default for RefusalCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl RefusalCounts {
    /// Counts one.
    pub fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// Each reason, and how many there were.
    pub fn by_reason(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        let counts = Reason::ALL.into_iter().zip(&self.0);
        counts.map(|(reason, count)| (reason, count.load(Relaxed)))
    }
}

/// Counts of connections in HTTP/2.
#[derive(Debug, Default)]
pub struct Http2Totals {
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections served since the start.
    pub accepted: AtomicU64,
    /// Connections closed since the start because of a flood, by [`FrameFlood`].
    pub floods: [AtomicU64; FrameFlood::ALL.len()],
    /// When each of them was last to be logged.
    logged: [LogInterval; FrameFlood::ALL.len()],
    requests: [Padded; SHARDS],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl Http2Totals {
    /// Counts a request of a connection.
    pub fn count_request(&self, connection: u64) {
        let shard = &self.requests[connection as usize % SHARDS];
        shard.0.fetch_add(1, Relaxed);
    }

    /// Counts a connection that was closed because of a flood. Returns whether to log
    /// it: each kind at most once a minute, since a client may repeat it at will.
    pub fn count_flood(&self, flood: FrameFlood, now: Moment) -> bool {
        self.floods[flood as usize].fetch_add(1, Relaxed);
        self.logged[flood as usize].is_due(LogInterval::MINUTE, now)
    }

    /// Requests answered since the start.
    pub fn requests(&self) -> u64 {
        self.requests
            .iter()
            .map(|shard| shard.0.load(Relaxed))
            .sum()
    }
}

/// What a client has sent, or caused, too much of in HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFlood {
    /// RST_STREAM, by either side.
    Resets,
    /// PING, and acknowledgements of PINGs that were not sent.
    Pings,
    /// SETTINGS.
    Settings,
    /// DATA without content.
    EmptyData,
    /// PRIORITY, WINDOW_UPDATE, unknown frames, and HEADERS that GOAWAY has excluded.
    Control,
    /// CONTINUATION.
    Continuations,
    /// What h2 itself bounds: streams with errors, of which a connection may have 100 in
    /// its life, and small or incomplete frames.
    Other,
}

impl FrameFlood {
    /// Its name in metrics, `/status` and the log.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Each of them with its name in metrics and `/status`, in the order of its
    /// number.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Resets, "resets"),
        (Self::Pings, "pings"),
        (Self::Settings, "settings"),
        (Self::EmptyData, "empty_data"),
        (Self::Control, "control"),
        (Self::Continuations, "continuations"),
        (Self::Other, "other"),
    ];
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
    /// Certificates replaced because their files had changed.
    pub certificates_replaced: AtomicU64,
    /// Changed files of certificates that were refused.
    pub certificates_refused: AtomicU64,
}

impl TlsCounts {
    /// The versions, in the order of [`succeeded`](Self::succeeded).
    pub const VERSIONS: [&str; 2] = ["1.2", "1.3"];
}

/// The counts of one route.
#[derive(Debug)]
struct RouteCounts {
    shards: [CellShard; SHARDS],
    latency: RouteLatency,
}

#[derive(Debug)]
#[repr(align(128))]
struct CellShard([AtomicU64; CELLS]);

impl RouteCounts {
    fn new() -> Arc<Self> {
        let shard = |_| CellShard(std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Self {
            shards: std::array::from_fn(shard),
            latency: RouteLatency::default(),
        })
    }
}

/// A number of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The route's place in its table; `None` where no route was found.
    pub route: Option<usize>,
    /// One of [`KIND_NAMES`].
    pub outcome: &'static str,
    /// Such as `2xx`.
    pub class: &'static str,
    /// How many.
    pub requests: u64,
}

impl Meter {
    /// A meter of `routes` routes, all counts zero.
    pub fn new(routes: usize) -> Self {
        Self {
            routes: (0..=routes).map(|_| RouteCounts::new()).collect(),
            totals: Arc::default(),
        }
    }

    /// The meter after a reload. For each of its routes, `routes` has the position of the
    /// same route here, whose counts it continues; `None` for a new one.
    pub fn next(&self, routes: impl Iterator<Item = Option<usize>>) -> Self {
        let own = |place: Option<usize>| {
            let counts = place.and_then(|place| self.routes.get(place + 1));
            counts.map_or_else(RouteCounts::new, Arc::clone)
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
            self.totals.refused.count(reason);
        }
        let route = route.map_or(0, |route| usize::from(route) + 1);
        let kind = kind.index();
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        if let Some(counts) = self.routes.get(route) {
            let shard = &counts.shards[connection as usize % SHARDS].0;
            shard[kind * CLASSES + class].fetch_add(1, Relaxed);
            let nanos = took.as_secs() * 1_000_000_000 + u64::from(took.subsec_nanos());
            counts.latency.record(connection, kind, nanos);
        }
    }

    /// All counts but those that are zero.
    pub fn counts(&self) -> Vec<Count> {
        const NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let sum = |counts: &RouteCounts, cell: usize| {
            let shards = counts.shards.iter();
            shards.map(|shard| shard.0[cell].load(Relaxed)).sum()
        };
        let of_route = |(route, counts): (usize, &Arc<RouteCounts>)| {
            let count = |cell| Count {
                route: route.checked_sub(1),
                outcome: KIND_NAMES[cell / CLASSES],
                class: NAMES[cell % CLASSES],
                requests: sum(counts, cell),
            };
            (0..CELLS).map(count).collect::<Vec<_>>()
        };
        let counts = self.routes.iter().enumerate().flat_map(of_route);
        counts.filter(|count| count.requests > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_over_shards() {
        let meter = Meter::new(2);
        let hit = RequestKind::Answer(Outcome::Hit { ttl: 3 });
        let took = Duration::from_micros(20);
        for connection in 0..100 {
            meter.count(connection, Some(1), hit, StatusCode::OK, took);
        }
        let kinds = [RequestKind::Refusal(Reason::NoRoute), RequestKind::Document];
        meter.count(1, None, kinds[0], StatusCode::NOT_FOUND, took);
        meter.count(1, None, kinds[1], StatusCode::OK, took);
        meter.count(1, Some(9), kinds[0], StatusCode::OK, took);
        let document = Count {
            route: None,
            outcome: "document",
            class: "2xx",
            requests: 1,
        };
        let refused = Count {
            route: None,
            outcome: "refused",
            class: "4xx",
            requests: 1,
        };
        let hits = Count {
            route: Some(1),
            outcome: "hit",
            class: "2xx",
            requests: 100,
        };
        assert_eq!(meter.counts(), [document, refused, hits]);
        let next = meter.next([Some(1), None].into_iter());
        meter.count(3, Some(1), hit, StatusCode::OK, took);
        let hits = Count {
            route: Some(0),
            requests: 101,
            ..hits
        };
        assert_eq!(
            next.counts(),
            [document, refused, hits],
            "what stays counts on"
        );
        let reasons = next.totals.refused.by_reason();
        let found = reasons.filter(|(_, count)| *count > 0);
        assert_eq!(found.collect::<Vec<_>>(), [(Reason::NoRoute, 2)]);
    }
}
