//! Metrics of what replicas share.

use std::fmt;
use std::time::Duration;

use super::{Cells, Metrics, labels, one};
use crate::gateway::Gateway;

/// Writes them; if there are no other replicas, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let Some(replicas) = gateway.upstreams.replicas() else {
        return Ok(());
    };
    to.gauge(
        "ordgate_shared_replicas",
        "The most replicas that run at once, as this one is configured",
        one(f64::from(replicas.count.get())),
    )?;
    let unknown = gateway.upstreams.unknown_spending(gateway.clock.now());
    let waiting = unknown.map_or(Duration::ZERO, |(waiting, _)| waiting);
    to.gauge(
        "ordgate_shared_waiting_seconds",
        "How long API keys are not used because it is not known what the replica before had spent",
        one(waiting.as_secs_f64()),
    )?;
    to.gauge(
        "ordgate_shared_allowance",
        "The requests of each key that this replica may send, by window: those that each replica has in any case (floor), and those that it was granted beside them; absent where the budget is unlimited",
        allowances(gateway),
    )
}

fn allowances(gateway: &Gateway) -> Cells<f64> {
    let mut cells = Cells::new();
    for (_, upstream) in gateway.upstreams.iter() {
        for key in upstream.key_snapshots() {
            let Some(allowance) = key.allowance else {
                continue;
            };
            let (floor, granted) = (allowance.floor, allowance.granted);
            let windows = [
                ("minute", floor.per_minute, granted.per_minute),
                ("second", floor.per_second, granted.per_second),
            ];
            for (window, floor, granted) in windows {
                let Some(floor) = floor else {
                    continue;
                };
                for (part, requests) in [("floor", floor), ("granted", granted)] {
                    let pairs = [
                        ("key", &*key.name),
                        ("part", part),
                        ("upstream", upstream.name()),
                        ("window", window),
                    ];
                    cells.push((labels(&pairs), requests as f64));
                }
            }
        }
    }
    cells
}
