//! Metrics in Prometheus' form (OpenMetrics text), made when they are asked
//! for, from what the rooms count.

mod upstream;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::chain::TipSnapshot;
use crate::gateway::Gateway;
use crate::limit::{Limit, MissRefusals};

/// All metrics of a gateway, as text; and how many reloads were done and how
/// many refused.
///
/// # Errors
/// Where the text cannot be written; memory is the only reason.
pub fn render(
    gateway: &std::sync::Arc<Gateway>,
    reloads: (u64, u64),
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reading(gateway.clone(), reloads)));
    let mut text = String::with_capacity(4096);
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Reading(std::sync::Arc<Gateway>, (u64, u64));

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

type Labels<'l> = &'l [(&'l str, &'l str)];

/// Encodes one family: its name, its help, its cells.
fn family<M: EncodeMetric>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    cells: impl IntoIterator<Item = (Vec<(String, String)>, M)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in cells {
        if labels.is_empty() {
            value.encode(family.encode_family::<Vec<(String, String)>>(&labels)?)?;
        } else {
            value.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn labels(pairs: Labels<'_>) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

impl Collector for Reading {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        let gateway = &self.0;
        let mut counter = |name: &str, help: &str, cells: Vec<(Vec<(String, String)>, u64)>| {
            let cells = cells
                .into_iter()
                .map(|(labels, n)| (labels, ConstCounter::new(n)));
            family(&mut to, name, help, MetricType::Counter, cells)
        };
        let one = |n: &AtomicU64| vec![(Vec::new(), n.load(Relaxed))];

        let routes = gateway.routes.routes();
        let requests = gateway.meter.counts().into_iter().map(|count| {
            let route = count
                .route
                .and_then(|at| routes.get(at))
                .map_or("none", |route| &*route.name);
            let pairs = [
                ("route", route),
                ("outcome", count.outcome),
                ("class", count.class),
            ];
            (labels(&pairs), count.requests)
        });
        counter(
            "ordgate_requests",
            "Requests answered, by route, by how the answer came about (from what is stored, fresh or stale, by asking the upstream, or by refusing), and by class of status",
            requests.collect(),
        )?;
        let totals = &gateway.meter.totals;
        counter(
            "ordgate_connections_accepted",
            "Client connections accepted",
            one(&totals.accepted),
        )?;
        let by_reason = |reasons: [(&str, u64); 2]| {
            reasons
                .map(|(reason, n)| (labels(&[("reason", reason)]), n))
                .to_vec()
        };
        counter(
            "ordgate_connections_turned_away",
            "Client connections turned away, for there were too many in total, or too many of one client",
            by_reason([
                ("total", totals.turned_away.load(Relaxed)),
                ("client", totals.turned_away_client.load(Relaxed)),
            ]),
        )?;
        counter(
            "ordgate_connections_reset",
            "Client connections reset, for the client took its answer too slowly, or for answers that clients have not taken held too much memory",
            by_reason([
                ("slow", totals.too_slow.load(Relaxed)),
                ("unsent", totals.unsent.closed()),
            ]),
        )?;
        let refused = gateway.limit.as_ref().map(Limit::refused);
        let read =
            |of: fn(&MissRefusals) -> &AtomicU64| refused.map_or(0, |all| of(all).load(Relaxed));
        let results = [
            ("refused", read(|all| &all.misses)),
            ("stale", read(|all| &all.stale)),
        ];
        counter(
            "ordgate_misses_limited",
            "Requests over their client's limit on misses: refused with 429, or answered with what is stale",
            results
                .map(|(result, n)| (labels(&[("result", result)]), n))
                .to_vec(),
        )?;
        let (done, refused) = self.1;
        let reloads = [("done", done), ("refused", refused)];
        counter(
            "ordgate_reloads",
            "Reloads of the configuration: done, or refused for what was wrong with it",
            reloads
                .map(|(result, n)| (labels(&[("result", result)]), n))
                .to_vec(),
        )?;
        let standings = gateway.tip_snapshots();
        let tips = |of: fn(&TipSnapshot) -> u64| {
            let cells = standings
                .iter()
                .map(|tip| (labels(&[("tip", &tip.name)]), of(tip)));
            cells.collect::<Vec<_>>()
        };
        counter(
            "ordgate_tip_probes",
            "Probes of a tip that have ended",
            tips(|tip| tip.probes),
        )?;
        counter(
            "ordgate_tip_probe_failures",
            "Probes of a tip that have failed",
            tips(|tip| tip.failures),
        )?;
        counter(
            "ordgate_tip_reorgs",
            "Reorgs seen by what an indexer says",
            tips(|tip| tip.reorgs),
        )?;
        counter(
            "ordgate_purges",
            "Purges, by the operator and by reorgs",
            vec![(Vec::new(), gateway.cache.store().purges())],
        )?;

        let mut gauge = |name: &str, help: &str, cells: Vec<(Vec<(String, String)>, f64)>| {
            let cells = cells
                .into_iter()
                .map(|(labels, n)| (labels, ConstGauge::new(n)));
            family(&mut to, name, help, MetricType::Gauge, cells)
        };
        let single = |n: f64| vec![(Vec::new(), n)];
        let size = gateway.cache.store().size();
        gauge(
            "ordgate_cache_entries",
            "Stored responses",
            single(size.entries as f64),
        )?;
        gauge(
            "ordgate_cache_bytes",
            "Memory that stored responses take",
            single(size.bytes as f64),
        )?;
        gauge(
            "ordgate_cache_max_bytes",
            "The bound on that memory",
            single(size.max_bytes as f64),
        )?;
        gauge(
            "ordgate_connections",
            "Client connections open",
            single(totals.connections.load(Relaxed) as f64),
        )?;
        gauge(
            "ordgate_unsent_bytes",
            "Memory held by answers that clients have not taken yet",
            single(totals.unsent.held() as f64),
        )?;
        gauge(
            "ordgate_unsent_max_bytes",
            "The bound on that memory",
            single(totals.unsent.bound() as f64),
        )?;
        gauge(
            "ordgate_callers",
            "Callers that the limit remembers, as of its last pruning",
            single(totals.callers.load(Relaxed) as f64),
        )?;
        gauge(
            "ordgate_collapse_keys",
            "Cache keys that are being fetched",
            single(gateway.fill.collapse.len() as f64),
        )?;
        let heights = standings.iter().filter_map(|tip| {
            let height = f64::from(tip.height?);
            Some((labels(&[("tip", &tip.name)]), height))
        });
        gauge(
            "ordgate_tip_height",
            "The height of a tip, where one is known",
            heights.collect(),
        )?;
        // Of a tip that nobody asks for, an alert would be wrong.
        let asked = gateway.asked_tips();
        let whether = |is: fn(&TipSnapshot) -> bool| {
            let cells = asked.iter();
            cells
                .map(|tip| (labels(&[("tip", &tip.name)]), f64::from(u8::from(is(tip)))))
                .collect::<Vec<_>>()
        };
        gauge(
            "ordgate_tip_known",
            "Whether a probe has confirmed a tip lately; else times alone count",
            whether(|tip| tip.known),
        )?;
        gauge(
            "ordgate_tip_known_once",
            "Whether a tip has been known at any time since the start",
            whether(|tip| tip.known_once),
        )?;
        gauge(
            "ordgate_tip_epoch",
            "The present epoch of a tip",
            tips(|tip| tip.epoch)
                .into_iter()
                .map(|(labels, epoch)| (labels, epoch as f64))
                .collect(),
        )?;
        let sliceable = gateway.paged().map(|(route, sliceable)| {
            let value = f64::from(u8::from(sliceable));
            (labels(&[("route", &*route.name)]), value)
        });
        gauge(
            "ordgate_route_sliceable",
            "Whether a route's pages are cut from windows just now",
            sliceable.collect(),
        )?;
        let build = labels(&[("version", env!("CARGO_PKG_VERSION"))]);
        gauge(
            "ordgate_build_info",
            "Which ordgate this is",
            vec![(build, 1.0)],
        )?;
        upstream::encode(gateway, &mut to)
    }
}
