//! What is counted of the walk. Each connection counts in one of a few shards,
//! so that cores do not fight over a counter; who reads adds the shards up.
//!
//! A reload makes another meter, for other routes; what stays counts on, so that
//! nobody who counts on in the one is missed in the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::StatusCode;

use crate::cache::outcome::{OUTCOMES, Outcome};
use crate::unsent::UnsentBytes;

/// Classes of status: 1xx to 5xx.
const CLASSES: usize = 5;
/// Cells of a route: each outcome and, last, refusals, by class of status.
const CELLS: usize = (OUTCOMES.len() + 1) * CLASSES;
/// A power of two.
const SHARDS: usize = 8;

/// Counts of requests by route, outcome and class of status.
#[derive(Debug)]
pub struct Meter {
    /// First those of no route, then each route's.
    cells: Box<[Arc<Cells>]>,
    /// What the whole process counts.
    pub totals: Arc<Totals>,
}

/// What is counted whatever the routes.
#[derive(Debug, Default)]
pub struct Totals {
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections turned away since the start, for there were too many.
    pub turned_away: AtomicU64,
    /// Connections turned away since the start, for their client had too many.
    pub turned_away_client: AtomicU64,
    /// Connections reset since the start, for their client took its answer too
    /// slowly.
    pub too_slow: AtomicU64,
    /// Answers that clients have not taken yet.
    pub unsent: Arc<UnsentBytes>,
    /// Callers in the limiter's table, as of its last pruning.
    pub callers: AtomicU64,
}

/// The counts of one route.
#[derive(Debug)]
struct Cells([Shard; SHARDS]);

#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; CELLS]);

impl Cells {
    fn new() -> Arc<Self> {
        let shard = |_| Shard(std::array::from_fn(|_| AtomicU64::new(0)));
        Arc::new(Self(std::array::from_fn(shard)))
    }
}

/// A number of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The route's place in its table; `None` where no route was found.
    pub route: Option<usize>,
    /// An outcome's word, or `refused`.
    pub outcome: &'static str,
    /// Such as `2xx`.
    pub class: &'static str,
    /// How many.
    pub requests: u64,
}

impl Meter {
    /// Zero everywhere, for so many routes.
    pub fn new(routes: usize) -> Self {
        Self {
            cells: (0..=routes).map(|_| Cells::new()).collect(),
            totals: Arc::default(),
        }
    }

    /// The meter of other routes, of which each says at which place it stood
    /// here, if it did.
    pub fn next(&self, routes: impl Iterator<Item = Option<usize>>) -> Self {
        let own = |place: Option<usize>| {
            let cells = place.and_then(|place| self.cells.get(place + 1));
            cells.map_or_else(Cells::new, Arc::clone)
        };
        Self {
            cells: self
                .cells
                .iter()
                .take(1)
                .cloned()
                .chain(routes.map(own))
                .collect(),
            totals: self.totals.clone(),
        }
    }

    /// Counts a request of a connection: on a route, or on none; with an
    /// outcome, or refused.
    pub fn count(
        &self,
        connection: u64,
        route: Option<u16>,
        outcome: Option<Outcome>,
        status: StatusCode,
    ) {
        let route = route.map_or(0, |route| usize::from(route) + 1);
        let outcome = outcome.map_or(OUTCOMES.len(), Outcome::index);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        if let Some(cells) = self.cells.get(route) {
            let shard = &cells.0[connection as usize % SHARDS].0;
            shard[outcome * CLASSES + class].fetch_add(1, Relaxed);
        }
    }

    /// Every count that is not zero.
    pub fn counts(&self) -> Vec<Count> {
        const NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let sum = |cells: &Cells, cell: usize| {
            let shards = cells.0.iter();
            shards.map(|shard| shard.0[cell].load(Relaxed)).sum()
        };
        let of_route = |(route, cells): (usize, &Arc<Cells>)| {
            let count = |cell| Count {
                route: route.checked_sub(1),
                outcome: OUTCOMES.get(cell / CLASSES).copied().unwrap_or("refused"),
                class: NAMES[cell % CLASSES],
                requests: sum(cells, cell),
            };
            (0..CELLS).map(count).collect::<Vec<_>>()
        };
        let counts = self.cells.iter().enumerate().flat_map(of_route);
        counts.filter(|count| count.requests > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_over_shards() {
        let meter = Meter::new(2);
        for connection in 0..100 {
            meter.count(
                connection,
                Some(1),
                Some(Outcome::Hit { ttl: 3 }),
                StatusCode::OK,
            );
        }
        meter.count(1, None, None, StatusCode::NOT_FOUND);
        meter.count(1, Some(9), None, StatusCode::OK);
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
        assert_eq!(meter.counts(), [refused, hits]);
        let next = meter.next([Some(1), None].into_iter());
        meter.count(3, Some(1), Some(Outcome::Hit { ttl: 3 }), StatusCode::OK);
        let hits = Count {
            route: Some(0),
            requests: 101,
            ..hits
        };
        assert_eq!(next.counts(), [refused, hits], "what stays counts on");
    }
}
