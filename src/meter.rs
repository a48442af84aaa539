//! What is counted of the walk. Each connection counts in one of a few shards,
//! so that cores do not fight over a counter; who reads adds the shards up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::StatusCode;

use crate::cache::outcome::{OUTCOMES, Outcome};

/// Classes of status: 1xx to 5xx.
const CLASSES: usize = 5;
/// Cells of a route: each outcome and, last, refusals, by class of status.
const CELLS: usize = (OUTCOMES.len() + 1) * CLASSES;
/// A power of two.
const SHARDS: usize = 8;

/// Counts of requests by route, outcome and class of status.
#[derive(Debug)]
pub struct Meter {
    shards: Box<[Shard]>,
    /// Connections open now.
    pub connections: AtomicU64,
    /// Connections accepted since the start.
    pub accepted: AtomicU64,
    /// Connections turned away since the start.
    pub turned_away: AtomicU64,
    /// Callers in the limiter's table, as of its last pruning.
    pub callers: AtomicU64,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard(Box<[AtomicU64]>);

/// A number of requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The route's index; `None` where no route was found.
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
        let cells = || {
            (0..(routes + 1) * CELLS)
                .map(|_| AtomicU64::new(0))
                .collect()
        };
        Self {
            shards: (0..SHARDS).map(|_| Shard(cells())).collect(),
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            callers: AtomicU64::new(0),
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
        let shard = &self.shards[connection as usize % SHARDS].0;
        let route = route.map_or(0, |route| usize::from(route) + 1);
        let outcome = outcome.map_or(OUTCOMES.len(), Outcome::index);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        if let Some(cell) = shard.get(route * CELLS + outcome * CLASSES + class) {
            cell.fetch_add(1, Relaxed);
        }
    }

    /// Every count that is not zero.
    pub fn counts(&self) -> Vec<Count> {
        const NAMES: [&str; CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let cells = self.shards.first().map_or(0, |shard| shard.0.len());
        let sum = |cell: usize| {
            self.shards
                .iter()
                .map(|shard| shard.0[cell].load(Relaxed))
                .sum()
        };
        (0..cells)
            .map(|cell| Count {
                route: (cell / CELLS).checked_sub(1),
                outcome: OUTCOMES
                    .get(cell % CELLS / CLASSES)
                    .copied()
                    .unwrap_or("refused"),
                class: NAMES[cell % CLASSES],
                requests: sum(cell),
            })
            .filter(|count| count.requests > 0)
            .collect()
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
    }
}
