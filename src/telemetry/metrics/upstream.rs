//! Metrics of the upstream: its endpoints, its keys, and those who wait for
//! them. Keys go by their names.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{family, labels};
use crate::gateway::Gateway;
use crate::upstream::breaker::Stance;
use crate::upstream::choice::Condition;
use crate::upstream::endpoint::{Fare, Histogram};
use crate::upstream::keys::Standing;
use crate::upstream::tally::Reason;
use crate::upstream::upload::BodyFault;
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

/// Writes all of them.
pub(super) fn encode(gateway: &Gateway, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let upstream = &gateway.upstream;
    counts(upstream, to)?;
    line(upstream, to)?;
    request_bodies(upstream, to)?;
    endpoints(&upstream.fares(), to)?;
    keys(&upstream.standings(), to)?;
    gauge(
        to,
        "ordgate_remembered_errors",
        "Cache keys that have failed lately; one that goes on failing is asked for less and less",
        vec![(Vec::new(), gateway.fill.lapses() as f64)],
    )
}

fn counts(upstream: &Upstream, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let tally = upstream.tally();
    let read = |n: &AtomicU64| n.load(Relaxed);
    let results = [
        ("answered", read(&tally.answered)),
        ("failed", read(&tally.failed)),
        ("spent", read(&tally.spent)),
        ("crowded", read(&tally.crowded)),
        ("breaker-open", read(&tally.broken)),
    ];
    counter(
        to,
        "ordgate_upstream_results",
        "What came of asking the upstream: an answer, a failure, no budget to ask, too many who ask, or an open breaker",
        results
            .map(|(result, n)| (labels(&[("result", result)]), n))
            .to_vec(),
    )?;
    let causes = [
        ("budget-share", read(&tally.over_budget_share)),
        ("slot-share", read(&tally.over_slot_share)),
    ];
    counter(
        to,
        "ordgate_upstream_share_refusals",
        "Requests that were not sent since their client had had its share: of the budget (some was left for clients that had had less), or of the slots (one was free for clients that held fewer); part of results spent and crowded",
        causes
            .map(|(cause, n)| (labels(&[("cause", cause)]), n))
            .to_vec(),
    )?;
    counter(
        to,
        "ordgate_upstream_requests",
        "Requests sent to the upstream, by why they were",
        Reason::ALL
            .map(|reason| (labels(&[("reason", reason.name())]), tally.sent_for(reason)))
            .to_vec(),
    )?;
    counter(
        to,
        "ordgate_upstream_retries_refused",
        "Failed requests that were not sent again, since too many were lately",
        vec![(Vec::new(), read(&tally.unretried))],
    )?;
    counter(
        to,
        "ordgate_upstream_switches",
        "How often another upstream was turned to, since the one before was not sound or a preferred one was sound again",
        vec![(Vec::new(), read(&tally.switches))],
    )
}

fn line(upstream: &Upstream, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(
        to,
        "ordgate_upstream_queue",
        "Requests that wait for budget, or for a place among those under way",
        vec![(Vec::new(), upstream.line().len() as f64)],
    )?;
    gauge(
        to,
        "ordgate_upstream_clients",
        "Clients that have had some of the budget of late, or want some; /status lists those that have had most",
        vec![(Vec::new(), upstream.line().clients() as f64)],
    )?;
    let heaviest = upstream.line().heaviest(1);
    let heaviest = heaviest.first().map_or(0.0, |share| share.recent);
    gauge(
        to,
        "ordgate_upstream_heaviest_client",
        "What the client has had of the budget that has had the most: its requests, each of which counts half as much after 30 seconds",
        vec![(Vec::new(), heaviest)],
    )?;
    let waited = upstream.line().waited();
    let cells = Priority::ALL.map(|priority| {
        let pairs = labels(&[("priority", priority.name())]);
        (pairs, Counted(waited[priority.rank()].buckets()))
    });
    drop(waited);
    family(
        to,
        "ordgate_upstream_queue_seconds",
        "How long requests have waited for the upstream before they were sent",
        MetricType::Histogram,
        cells,
    )
}

fn request_bodies(upstream: &Upstream, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let uploads = upstream.uploads();
    gauge(
        to,
        "ordgate_request_body_buffered_bytes",
        "Bytes of request bodies that are buffered on their way to the upstream",
        vec![(Vec::new(), uploads.buffered() as f64)],
    )?;
    counter(
        to,
        "ordgate_request_bodies_refused",
        "Requests that were refused for their body: it was broken off or malformed, too slow, too large, or there was no room to buffer it",
        BodyFault::ALL
            .map(|fault| (labels(&[("reason", fault.name())]), uploads.refused(fault)))
            .to_vec(),
    )
}

fn endpoints(fares: &[Fare], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let each = |value: fn(&Fare) -> f64| -> Cells<f64> {
        let cells = fares.iter();
        cells
            .map(|fare| (labels(&[("upstream", &fare.name)]), value(fare)))
            .collect()
    };
    gauge(
        to,
        "ordgate_upstream_asked",
        "Which upstream is asked: 1 for that one, 0 for those that stand by",
        each(|fare| f64::from(u8::from(fare.is_present))),
    )?;
    let conditions = fares.iter().flat_map(|fare| {
        Condition::ALL.map(|condition| {
            let pairs = [("upstream", &*fare.name), ("condition", condition.name())];
            let is = condition == fare.condition;
            (labels(&pairs), f64::from(u8::from(is)))
        })
    });
    gauge(
        to,
        "ordgate_upstream_condition",
        "In what condition an upstream is: 1 for that one, 0 for the others",
        conditions.collect(),
    )?;
    let stances = fares.iter().flat_map(|fare| {
        Stance::STATES.map(|state| {
            let pairs = [("upstream", &*fare.name), ("state", state)];
            let is = state == fare.stance.state();
            (labels(&pairs), f64::from(u8::from(is)))
        })
    });
    gauge(
        to,
        "ordgate_upstream_breaker_state",
        "Whether an upstream is asked at all: 1 for the state that its breaker is in, 0 for the others",
        stances.collect(),
    )?;
    gauge(
        to,
        "ordgate_upstream_in_flight",
        "Requests that an upstream has under way",
        each(|fare| f64::from(fare.in_flight)),
    )?;
    gauge(
        to,
        "ordgate_upstream_in_flight_limit",
        "How many requests an upstream may have under way just now",
        each(|fare| f64::from(fare.limit)),
    )?;
    gauge(
        to,
        "ordgate_upstream_lag_blocks",
        "By how many blocks an upstream lags behind the best",
        each(|fare| f64::from(fare.lag)),
    )?;
    let times = fares.iter().map(|fare| {
        let pairs = labels(&[("upstream", &fare.name)]);
        (pairs, Counted(fare.histogram.clone()))
    });
    family(
        to,
        "ordgate_upstream_first_byte_seconds",
        "How long upstream answers have taken to their first byte",
        MetricType::Histogram,
        times,
    )?;
    let sent = fares.iter().flat_map(|fare| {
        let kinds = [("sent", fare.sent), ("failed", fare.failed)];
        kinds.map(|(kind, n)| {
            let pairs = [("upstream", &*fare.name), ("kind", kind)];
            (labels(&pairs), n)
        })
    });
    counter(
        to,
        "ordgate_upstream_attempts",
        "Requests sent to an upstream, and how many of them failed for reasons of its own",
        sent.collect(),
    )
}

fn keys(standings: &[Standing], to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let each = |value: fn(&Standing) -> Option<f64>| -> Cells<f64> {
        let cells = standings.iter();
        cells
            .filter_map(|key| Some((labels(&[("key", &key.name)]), value(key)?)))
            .collect()
    };
    gauge(
        to,
        "ordgate_upstream_budget_left",
        "Requests left in this minute, for each key by name; absent where the budget is unlimited",
        each(|key| key.per_minute.and(key.left).map(|left| left as f64)),
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
        "How long a key is not used, since the upstream has said that it was used too often, has refused it, or has no more for it; for each by name",
        each(|key| Some(key.cooling.as_secs_f64())),
    )?;
    let states = standings.iter().flat_map(|key| {
        Standing::STATES.map(|state| {
            let pairs = [("key", &*key.name), ("state", state)];
            (labels(&pairs), f64::from(u8::from(state == key.state())))
        })
    });
    gauge(
        to,
        "ordgate_upstream_key_state",
        "What state a key is in, for each by name: 1 for that one, 0 for the others",
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
