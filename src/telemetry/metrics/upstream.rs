//! Metrics of the upstreams: their endpoints, their keys, and the requests that
//! wait for them. Keys go by their names.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{family, labels};
use crate::gateway::Gateway;
use crate::upstream::client::upload::BodyFault;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::breaker::BreakerState;
use crate::upstream::endpoint::selection::Condition;
use crate::upstream::endpoint::{EndpointSnapshot, Histogram};
use crate::upstream::keys::{KeySnapshot, KeySnapshotAtHost};
use crate::upstream::{Priority, Upstream};

type Cells<T> = Vec<(Vec<(String, String)>, T)>;

/// A histogram that is counted elsewhere.
struct Counted(Histogram);

impl EncodeMetric for Counted {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let (sum, count, cumulative) = &self.0;
        let mut below = 0;
        let mut buckets: Vec<_> = Vec::with_capacity(cumulative.len() + 1);
        for (bound, at_most) in cumulative {
            buckets.push((*bound, at_most - below));
            below = *at_most;
        }
        buckets.push((f64::INFINITY, count - below));
        encoder.encode_histogram::<NoLabelSet>(*sum, *count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Writes all of them; each cell says its upstream's name.
pub(super) fn encode(gateway: &Gateway, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let all: Vec<_> = gateway.upstreams.iter().map(|(_, one)| &**one).collect();
    let fares: Vec<_> = all.iter().map(|one| (one.name(), one.fares())).collect();
    let standings = all.iter().map(|one| (one.name(), one.standings()));
    let standings: Vec<_> = standings.collect();
    counts(&all, to)?;
    line(&all, to)?;
    request_bodies(&all, to)?;
    endpoints(&flat(&fares), to)?;
    keys(&flat(&standings), to)?;
    gauge(
        to,
        "ordgate_remembered_errors",
        "Cache keys that have failed lately; one that goes on failing is asked for less and less",
        vec![(Vec::new(), gateway.fill.lapses() as f64)],
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

fn counts(all: &[&Upstream], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let read = |n: &AtomicU64| n.load(Relaxed);
    let results = |one: &Upstream| {
        let tally = one.tally();
        [
            ("answered", read(&tally.answered)),
            ("failed", read(&tally.failed)),
            ("spent", read(&tally.spent)),
            ("crowded", read(&tally.crowded)),
            ("breaker-open", read(&tally.broken)),
        ]
    };
    counter(
        to,
        "ordgate_upstream_results",
        "What came of asking the upstream: an answer, a failure, no budget to ask, too many who ask, or an open breaker",
        by(all, "result", results),
    )?;
    let causes = |one: &Upstream| {
        let tally = one.tally();
        [
            ("budget-share", read(&tally.over_budget_share)),
            ("slot-share", read(&tally.over_slot_share)),
        ]
    };
    counter(
        to,
        "ordgate_upstream_share_refusals",
        "Requests that were not sent since their client had had its share: of the budget (some was left for clients that had had less), or of the slots (one was free for clients that held fewer); part of results spent and crowded",
        by(all, "cause", causes),
    )?;
    let reasons = |one: &Upstream| {
        SendReason::ALL.map(|reason| (reason.name(), one.tally().sent_for(reason)))
    };
    counter(
        to,
        "ordgate_upstream_requests",
        "Requests sent to the upstream, by why they were",
        by(all, "reason", reasons),
    )?;
    counter(
        to,
        "ordgate_upstream_retries_refused",
        "Failed requests that were not sent again, since too many were lately",
        each(all, |one| read(&one.tally().unretried)),
    )?;
    counter(
        to,
        "ordgate_upstream_switches",
        "How often another endpoint was turned to, since the one before was not sound or a preferred one was sound again",
        each(all, |one| read(&one.tally().switches)),
    )
}

fn line(all: &[&Upstream], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(
        to,
        "ordgate_upstream_queue",
        "Requests that wait for budget, or for a place among those under way",
        each(all, |one| one.line().len() as f64),
    )?;
    gauge(
        to,
        "ordgate_upstream_clients",
        "Clients that have had some of the budget of late, or want some; /status lists those that have had most",
        each(all, |one| one.line().active_clients() as f64),
    )?;
    let heaviest = |one: &Upstream| {
        let heaviest = one.line().busiest_clients(1);
        heaviest.first().map_or(0.0, |share| share.recent)
    };
    gauge(
        to,
        "ordgate_upstream_heaviest_client",
        "What the client has had of the budget that has had the most: its requests, each of which counts half as much after 30 seconds",
        each(all, heaviest),
    )?;
    let waited = |one: &Upstream| {
        let waited = one.line().wait_times();
        Priority::ALL.map(|priority| {
            let buckets = waited[priority.index()].buckets();
            (priority.name(), Counted(buckets))
        })
    };
    family(
        to,
        "ordgate_upstream_queue_seconds",
        "How long requests have waited for the upstream before they were sent",
        MetricType::Histogram,
        by(all, "priority", waited),
    )
}

fn request_bodies(all: &[&Upstream], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(
        to,
        "ordgate_request_body_buffered_bytes",
        "Bytes of request bodies that are buffered on their way to the upstream",
        each(all, |one| one.uploads().buffered() as f64),
    )?;
    let refused =
        |one: &Upstream| BodyFault::ALL.map(|fault| (fault.name(), one.uploads().refused(fault)));
    counter(
        to,
        "ordgate_request_bodies_refused",
        "Requests that were refused for their body: it was broken off or malformed, too slow, too large, or there was no room to buffer it",
        by(all, "reason", refused),
    )
}

fn endpoints(fares: &[(&str, &EndpointSnapshot)], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let of = |upstream: &str, fare: &EndpointSnapshot, more: &[(&str, &str)]| {
        let own = [("upstream", upstream), ("endpoint", &*fare.name)];
        labels(&[&own[..], more].concat())
    };
    let each = |value: fn(&EndpointSnapshot) -> f64| -> Cells<f64> {
        let cells = fares.iter();
        cells
            .map(|(upstream, fare)| (of(upstream, fare, &[]), value(fare)))
            .collect()
    };
    gauge(
        to,
        "ordgate_upstream_asked",
        "Which endpoint of an upstream is asked: 1 for that one, 0 for those that stand by",
        each(|fare| f64::from(u8::from(fare.is_present))),
    )?;
    let conditions = fares.iter().flat_map(|(upstream, fare)| {
        Condition::ALL.map(|condition| {
            let is = condition == fare.condition;
            let labels = of(upstream, fare, &[("condition", condition.name())]);
            (labels, f64::from(u8::from(is)))
        })
    });
    gauge(
        to,
        "ordgate_upstream_condition",
        "In what condition an endpoint is: 1 for that one, 0 for the others",
        conditions.collect(),
    )?;
    let stances = fares.iter().flat_map(|(upstream, fare)| {
        BreakerState::STATES.map(|state| {
            let is = state == fare.stance.state();
            let labels = of(upstream, fare, &[("state", state)]);
            (labels, f64::from(u8::from(is)))
        })
    });
    gauge(
        to,
        "ordgate_upstream_breaker_state",
        "Whether an endpoint is asked at all: 1 for the state that its breaker is in, 0 for the others",
        stances.collect(),
    )?;
    gauge(
        to,
        "ordgate_upstream_in_flight",
        "Requests that an endpoint has under way",
        each(|fare| f64::from(fare.in_flight)),
    )?;
    gauge(
        to,
        "ordgate_upstream_in_flight_limit",
        "How many requests an endpoint may have under way just now",
        each(|fare| f64::from(fare.limit)),
    )?;
    gauge(
        to,
        "ordgate_upstream_requests_given_up",
        "Requests to an endpoint that ordgate has stopped waiting for and that may still reach it: they count in the budget until their connection has ended, or until the endpoint answers a later request",
        each(|fare| fare.given_up as f64),
    )?;
    gauge(
        to,
        "ordgate_upstream_lag_blocks",
        "By how many blocks an endpoint lags behind the best of its upstream",
        each(|fare| f64::from(fare.lag)),
    )?;
    let times = fares
        .iter()
        .map(|(upstream, fare)| (of(upstream, fare, &[]), Counted(fare.histogram.clone())));
    family(
        to,
        "ordgate_upstream_first_byte_seconds",
        "How long an endpoint's answers have taken to their first byte",
        MetricType::Histogram,
        times,
    )?;
    let sent = fares.iter().flat_map(|(upstream, fare)| {
        let kinds = [("sent", fare.sent), ("failed", fare.failed)];
        kinds.map(|(kind, n)| (of(upstream, fare, &[("kind", kind)]), n))
    });
    counter(
        to,
        "ordgate_upstream_attempts",
        "Requests sent to an endpoint, and how many of them failed for reasons of its own",
        sent.collect(),
    )?;
    let failures = fares.iter().flat_map(|(upstream, fare)| {
        let failures = fare.failures.iter();
        failures.map(|(reason, kind, n)| {
            let labels = of(upstream, fare, &[("reason", reason), ("kind", kind)]);
            (labels, *n)
        })
    });
    counter(
        to,
        "ordgate_upstream_failures",
        "Requests to an endpoint that failed for reasons of its own: the reason by RFC 9209's name, and of what kind it was exactly, such as certificate_expired",
        failures.collect(),
    )
}

fn keys(standings: &[(&str, &KeySnapshot)], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let each = |value: fn(&KeySnapshot) -> Option<f64>| -> Cells<f64> {
        let cells = standings.iter().filter_map(|(upstream, key)| {
            let pairs = [("key", &*key.name), ("upstream", *upstream)];
            Some((labels(&pairs), value(key)?))
        });
        cells.collect()
    };
    gauge(
        to,
        "ordgate_upstream_budget_left",
        "Requests left in this minute, for each key by name; absent where the budget is unlimited",
        each(|key| key.per_minute.and(key.remaining).map(|left| left as f64)),
    )?;
    gauge(
        to,
        "ordgate_upstream_budget",
        "Requests that a minute takes at the most, for each key by name; absent where the budget is unlimited",
        each(|key| key.per_minute.map(|most| most as f64)),
    )?;
    gauge(
        to,
        "ordgate_upstream_cooling_seconds",
        "How long a key is not used, since the upstream has said that it was used too often, has refused it, or has no more for it; for each by name, at the host where it is the longest",
        each(|key| Some(key.worst().unusable_for.as_secs_f64())),
    )?;
    let states = standings.iter().flat_map(|(upstream, key)| {
        KeySnapshotAtHost::STATES.map(|state| {
            let pairs = [
                ("key", &*key.name),
                ("state", state),
                ("upstream", *upstream),
            ];
            (
                labels(&pairs),
                f64::from(u8::from(state == key.worst().state())),
            )
        })
    });
    gauge(
        to,
        "ordgate_upstream_key_state",
        "What state a key is in, for each by name, at the host where it stands worst: 1 for that one, 0 for the others",
        states.collect(),
    )
}

fn counter(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    cells: Cells<u64>,
) -> fmt::Result {
    let cells = cells.into_iter();
    let cells = cells.map(|(labels, n)| (labels, ConstCounter::new(n)));
    family(to, name, help, MetricType::Counter, cells)
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, cells: Cells<f64>) -> fmt::Result {
    let cells = cells.into_iter();
    let cells = cells.map(|(labels, n)| (labels, ConstGauge::new(n)));
    family(to, name, help, MetricType::Gauge, cells)
}
