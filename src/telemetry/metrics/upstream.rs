//! Metrics of the upstreams: their endpoints, their keys, and the requests that
//! wait for them. Keys are named, never shown.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::{Cells, Metrics, labels, one};
use crate::gateway::Gateway;
use crate::upstream::endpoint::EndpointSnapshot;
use crate::upstream::failover::Condition;
use crate::upstream::keys::{KeySnapshot, KeySnapshotAtHost};
use crate::upstream::{Priority, Upstream};

/// Writes the metrics of all upstreams; each cell has its upstream's name as a
/// label.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let all: Vec<_> = gateway.upstreams.iter().map(|(_, one)| &**one).collect();
    let endpoint_snapshots: Vec<_> = all
        .iter()
        .map(|one| (one.name(), one.endpoint_snapshots()))
        .collect();
    let key_snapshots = all.iter().map(|one| (one.name(), one.key_snapshots()));
    let key_snapshots: Vec<_> = key_snapshots.collect();
    counts(&all, to)?;
    sent(&all, to)?;
    queue(&all, to)?;
    request_bodies(&all, to)?;
    let endpoints = flat(&endpoint_snapshots);
    endpoint_states(&endpoints, to)?;
    endpoint_counts(&endpoints, to)?;
    keys(&flat(&key_snapshots), to)?;
    to.gauge(
        "ordgate_remembered_errors",
        "Cache keys whose fetches failed recently; one that keeps failing is fetched less and less often",
        one(gateway.fill.failures.len() as f64),
    )
}

/// The parts of each upstream, with its name.
fn flat<'a, T>(of: &'a [(&'a str, Vec<T>)]) -> Vec<(&'a str, &'a T)> {
    let each = of.iter();
    each.flat_map(|(name, parts)| parts.iter().map(move |part| (*name, part)))
        .collect()
}

/// One cell for each upstream.
fn each<T>(all: &[&Upstream], value: impl Fn(&Upstream) -> T) -> Cells<T> {
    let cells = all.iter();
    cells
        .map(|one| (labels(&[("upstream", one.name())]), value(one)))
        .collect()
}

/// Cells for each upstream and each value of a label.
fn by<const N: usize, T>(
    all: &[&Upstream],
    label: &str,
    values: impl Fn(&Upstream) -> [(&'static str, T); N],
) -> Cells<T> {
    let cells = all.iter().flat_map(|one| {
        values(one).map(|(value, cell)| {
            let pairs = [(label, value), ("upstream", one.name())];
            (labels(&pairs), cell)
        })
    });
    cells.collect()
}

fn counts(all: &[&Upstream], to: &mut Metrics<'_>) -> fmt::Result {
    let results = |one: &Upstream| {
        [
            "answered",
            "failed",
            "over_budget",
            "budget_unknown",
            "no_slot",
            "breaker_open",
        ]
        .map(|result| (result, one.counters.results(result)))
    };
    to.counter(
        "ordgate_upstream_results",
        "Results of requests to the upstream: answered, failed, or why it was not sent: no budget was left (over_budget, budget_unknown), too many were in flight or waited (no_slot), the breaker was open (breaker_open)",
        by(all, "result", results),
    )?;
    to.counter(
        "ordgate_upstream_retries_refused",
        "Failed requests that were not retried because there were too many retries recently",
        each(all, |one| one.counters.results("unretried")),
    )?;
    to.counter(
        "ordgate_upstream_switches",
        "How often ordgate switched to another endpoint, because the one in use was not healthy or a preferred one was healthy again",
        each(all, |one| one.counters.results("switches")),
    )
}

fn sent(all: &[&Upstream], to: &mut Metrics<'_>) -> fmt::Result {
    let cells = all.iter().flat_map(|one| {
        one.counters
            .sent()
            .into_iter()
            .map(|(route, reason, requests)| {
                let pairs = [
                    ("route", &*route),
                    ("reason", reason),
                    ("upstream", one.name()),
                ];
                (labels(&pairs), requests)
            })
    });
    to.counter(
        "ordgate_upstream_requests",
        "Requests sent to the upstream, by route (none for probes of tips) and by reason: probe, miss, revalidation, retry, key-check, block-check (whether a block still is in the chain)",
        cells.collect(),
    )
}

fn queue(all: &[&Upstream], to: &mut Metrics<'_>) -> fmt::Result {
    to.gauge(
        "ordgate_upstream_queue",
        "Requests that wait for budget or for a slot",
        each(all, |one| one.queue.len() as f64),
    )?;
    to.gauge(
        "ordgate_upstream_clients",
        "Clients that used the budget recently or wait for it; /status lists the heaviest",
        each(all, |one| one.queue.active_clients() as f64),
    )?;
    let heaviest = |one: &Upstream| {
        let heaviest = one.queue.busiest_clients(1);
        heaviest.first().map_or(0.0, |share| share.recent)
    };
    to.gauge(
        "ordgate_upstream_heaviest_client",
        "Recent requests of the client that used the most of the budget; each counts half as much after 30 seconds",
        each(all, heaviest),
    )?;
    let waited = |one: &Upstream| {
        Priority::ALL.map(|priority| (priority.name(), one.queue.waited(priority)))
    };
    to.histogram(
        "ordgate_upstream_queue_seconds",
        "How long requests waited before they were sent to the upstream",
        by(all, "priority", waited),
    )
}

fn request_bodies(all: &[&Upstream], to: &mut Metrics<'_>) -> fmt::Result {
    to.gauge(
        "ordgate_request_body_buffered_bytes",
        "Bytes of request bodies that are buffered for the upstream",
        each(all, |one| one.uploads.buffered() as f64),
    )?;
    to.counter(
        "ordgate_request_bodies_refused",
        "Requests refused because of their body: it was incomplete or malformed, too slow, too large, or there was no room to buffer it",
        each(all, |one| one.uploads.refused.load(Relaxed)),
    )
}

/// The labels of an endpoint's cell.
fn endpoint_labels(
    upstream: &str,
    endpoint: &EndpointSnapshot,
    more: &[(&str, &str)],
) -> Vec<(String, String)> {
    let own = [("upstream", upstream), ("endpoint", &*endpoint.name)];
    labels(&[&own[..], more].concat())
}

fn endpoint_states(snapshots: &[(&str, &EndpointSnapshot)], to: &mut Metrics<'_>) -> fmt::Result {
    let each = |value: fn(&EndpointSnapshot) -> f64| -> Cells<f64> {
        let cells = snapshots.iter();
        cells
            .map(|(upstream, endpoint)| (endpoint_labels(upstream, endpoint, &[]), value(endpoint)))
            .collect()
    };
    to.gauge(
        "ordgate_upstream_asked",
        "Which endpoint of an upstream is in use: 1 for that one, 0 for standbys",
        each(|endpoint| f64::from(u8::from(endpoint.is_selected))),
    )?;
    let one_of = |label: &str, names: &[&str], current: fn(&EndpointSnapshot) -> &'static str| {
        let cells = snapshots.iter().flat_map(|(upstream, endpoint)| {
            names.iter().map(move |name| {
                let labels = endpoint_labels(upstream, endpoint, &[(label, name)]);
                (labels, f64::from(u8::from(*name == current(endpoint))))
            })
        });
        cells.collect::<Cells<f64>>()
    };
    let conditions = Condition::ALL.map(Condition::name);
    to.gauge(
        "ordgate_upstream_condition",
        "The condition of an endpoint: 1 for the current one, 0 for the others",
        one_of("condition", &conditions, |endpoint| {
            endpoint.condition.name()
        }),
    )?;
    to.gauge(
        "ordgate_upstream_breaker_open",
        "Whether the breaker of an endpoint is open: 1, or 0",
        each(|endpoint| f64::from(u8::from(endpoint.condition == Condition::Broken))),
    )?;
    to.gauge(
        "ordgate_upstream_in_flight",
        "Requests in flight to an endpoint",
        each(|endpoint| f64::from(endpoint.counts.in_flight)),
    )?;
    to.gauge(
        "ordgate_upstream_lag_blocks",
        "By how many blocks an endpoint is behind the best one of its upstream",
        each(|endpoint| f64::from(endpoint.lag)),
    )
}

fn endpoint_counts(snapshots: &[(&str, &EndpointSnapshot)], to: &mut Metrics<'_>) -> fmt::Result {
    let times = snapshots.iter().map(|(upstream, endpoint)| {
        (
            endpoint_labels(upstream, endpoint, &[]),
            endpoint.counts.first_byte.clone(),
        )
    });
    to.histogram(
        "ordgate_upstream_first_byte_seconds",
        "How long an endpoint took to the first byte of its answers",
        times.collect(),
    )?;
    let sent = snapshots.iter().flat_map(|(upstream, endpoint)| {
        let kinds = [
            ("sent", endpoint.counts.sent),
            ("failed", endpoint.counts.failed),
        ];
        kinds.map(|(kind, n)| (endpoint_labels(upstream, endpoint, &[("kind", kind)]), n))
    });
    to.counter(
        "ordgate_upstream_attempts",
        "Requests sent to an endpoint, and how many of them failed because of the endpoint",
        sent.collect(),
    )?;
    let failures = snapshots.iter().flat_map(|(upstream, endpoint)| {
        let failures = endpoint.counts.failures.iter();
        failures.map(|(reason, n)| {
            let labels = endpoint_labels(upstream, endpoint, &[("reason", reason.name())]);
            (labels, *n)
        })
    });
    to.counter(
        "ordgate_upstream_failures",
        "Attempts that failed, by endpoint and reason",
        failures.collect(),
    )
}

fn keys(snapshots: &[(&str, &KeySnapshot)], to: &mut Metrics<'_>) -> fmt::Result {
    let each = |value: fn(&KeySnapshot) -> Option<f64>| -> Cells<f64> {
        let cells = snapshots.iter().filter_map(|(upstream, key)| {
            let pairs = [("key", &*key.name), ("upstream", *upstream)];
            Some((labels(&pairs), value(key)?))
        });
        cells.collect()
    };
    to.gauge(
        "ordgate_upstream_budget_left",
        "Requests left in this minute, for each key by name; absent where the budget is unlimited",
        each(|key| key.per_minute.and(key.remaining).map(|left| left as f64)),
    )?;
    to.gauge(
        "ordgate_upstream_budget_kept",
        "The part of the requests left that is kept for probes of the tip, for each key by name",
        each(|key| key.per_minute.map(|_| key.kept as f64)),
    )?;
    to.gauge(
        "ordgate_upstream_budget",
        "The most requests in a minute, for each key by name; absent where the budget is unlimited",
        each(|key| key.per_minute.map(|most| most as f64)),
    )?;
    let unusable = |key: &KeySnapshot| Some(key.worst().unusable_for.as_secs_f64());
    to.gauge(
        "ordgate_upstream_key_unusable_seconds",
        "How long a key is not used: it is in cooldown (429), its quota is spent, or it is in quarantine (401, 403); for each by name, at the host where that is longest",
        each(unusable),
    )?;
    let states = snapshots.iter().flat_map(|(upstream, key)| {
        KeySnapshotAtHost::STATES.map(|state| {
            let pairs = [
                ("key", &*key.name),
                ("state", state),
                ("upstream", *upstream),
            ];
            let is = state == key.worst().state();
            (labels(&pairs), f64::from(u8::from(is)))
        })
    });
    to.gauge(
        "ordgate_upstream_key_state",
        "The state of a key, for each by name, at the host where it is worst: 1 for the current one, 0 for the others. ready; cooling (cooldown after 429); quarantined (after 401, 403)",
        states.collect(),
    )
}
