//! `/metrics`: all metrics as OpenMetrics text. They are read from the counters of
//! the modules when `/metrics` is requested.

mod process;
mod requests;
mod state;
mod tls;
mod tokens;
mod traces;
mod upstream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::build;
use crate::chain::TipSnapshot;
use crate::gateway::Gateway;
use crate::listener::BoundListener;
use crate::meter::FrameFlood;
use crate::meter::LatencyHistogram;

/// The media type of OpenMetrics text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a gateway, of reloads (how many were done and how many refused),
/// and of the public listeners.
///
/// # Errors
/// Where the text cannot be formatted.
pub fn render(
    gateway: &Arc<Gateway>,
    reloads: (u64, u64),
    listeners: Vec<BoundListener>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Reading {
        gateway: gateway.clone(),
        reloads,
        listeners,
    }));
    let mut text = String::with_capacity(4096);
    encode(&mut text, &registry)?;
    Ok(text)
}

struct Reading {
    gateway: Arc<Gateway>,
    reloads: (u64, u64),
    listeners: Vec<BoundListener>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

impl Collector for Reading {
    fn encode(&self, to: DescriptorEncoder<'_>) -> fmt::Result {
        let (gateway, mut to) = (&*self.gateway, Metrics(to));
        requests::encode(gateway, &mut to)?;
        connections(gateway, &mut to)?;
        tls::encode(gateway, &self.listeners, &mut to)?;
        limits(gateway, &mut to)?;
        tokens::encode(gateway, &mut to)?;
        reloads(self.reloads, &mut to)?;
        cache(gateway, &mut to)?;
        state::encode(gateway, &mut to)?;
        state::encode_shared(gateway, &mut to)?;
        compression(gateway, &mut to)?;
        traces::encode(gateway, &mut to)?;
        tips(gateway, &mut to)?;
        process::encode(&mut to)?;
        let build = labels(&[
            ("version", build::VERSION),
            ("commit", build::COMMIT),
            ("rustc", build::RUSTC),
        ]);
        to.gauge(
            "ordgate_build_info",
            "The version of ordgate, and what it was built from",
            vec![(build, 1.0)],
        )?;
        upstream::encode(gateway, &mut to)
    }
}

fn http2(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let meter = gateway.meter();
    let http2 = &meter.totals.http2;
    let in_http2 = http2.requests();
    let all: u64 = meter.counts().iter().map(|count| count.requests).sum();
    to.counter(
        "ordgate_requests_by_version",
        "Requests answered, by version of HTTP",
        by(
            "version",
            [("1.1", all.saturating_sub(in_http2)), ("2", in_http2)],
        ),
    )?;
    to.counter(
        "ordgate_http2_connections_accepted",
        "Client connections served in HTTP/2",
        one(http2.accepted.load(Relaxed)),
    )?;
    to.gauge(
        "ordgate_http2_connections",
        "Client connections open in HTTP/2",
        one(http2.connections.load(Relaxed) as f64),
    )?;
    let floods = FrameFlood::ALL.map(|(flood, name)| {
        let closed = &http2.floods[flood as usize];
        (name, closed.load(Relaxed))
    });
    to.counter(
        "ordgate_http2_floods",
        "Client connections closed because of too many HTTP/2 frames of a kind",
        by("kind", floods),
    )
}

fn connections(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let totals = &gateway.meter().totals;
    let read = |n: &AtomicU64| n.load(Relaxed);
    to.counter(
        "ordgate_connections_accepted",
        "Client connections accepted",
        one(read(&totals.accepted)),
    )?;
    to.counter(
        "ordgate_connections_turned_away",
        "Client connections turned away because there were too many in total, or too many of one client",
        by(
            "reason",
            [
                ("total", read(&totals.turned_away)),
                ("client", read(&totals.turned_away_client)),
            ],
        ),
    )?;
    to.counter(
        "ordgate_connections_reset",
        "Client connections reset because the client read its response too slowly, or because unread responses held too much memory",
        by(
            "reason",
            [
                ("slow", read(&totals.too_slow)),
                ("unsent", totals.unsent.closed()),
            ],
        ),
    )?;
    to.gauge(
        "ordgate_connections",
        "Client connections open",
        one(read(&totals.connections) as f64),
    )?;
    http2(gateway, to)?;
    to.gauge(
        "ordgate_unsent_bytes",
        "Memory held by responses that clients have not read yet",
        one(totals.unsent.held() as f64),
    )?;
    to.gauge(
        "ordgate_unsent_max_bytes",
        "The bound on that memory",
        one(totals.unsent.bound() as f64),
    )
}

fn limits(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let limit = gateway.limit();
    let [refused, stale] = [0, 1].map(|n| limit.map_or(0, |limit| limit.refused[n].load(Relaxed)));
    to.counter(
        "ordgate_misses_limited",
        "Requests over their client's limit on misses: refused with 429, or answered with a stale response",
        by("result", [("refused", refused), ("stale", stale)]),
    )
}

fn reloads((done, refused): (u64, u64), to: &mut Metrics<'_>) -> fmt::Result {
    to.counter(
        "ordgate_reloads",
        "Reloads of the configuration: done, or refused because it was invalid",
        by("result", [("done", done), ("refused", refused)]),
    )
}

fn cache(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let store = gateway.cache.store();
    to.counter(
        "ordgate_purges",
        "Purges, by the operator and by reorgs",
        one(store.purges()),
    )?;
    let size = store.size();
    to.gauge(
        "ordgate_cache_entries",
        "Stored responses",
        one(size.entries as f64),
    )?;
    to.gauge(
        "ordgate_cache_bytes",
        "Memory held by stored responses",
        one(size.bytes as f64),
    )?;
    to.gauge(
        "ordgate_cache_max_bytes",
        "The bound on that memory",
        one(size.max_bytes as f64),
    )?;
    to.gauge(
        "ordgate_collapse_keys",
        "Cache keys that are being fetched",
        one(gateway.fill.collapse.len() as f64),
    )?;
    let sliceable = gateway.paged().map(|(route, are_pages_cut)| {
        let labels = labels(&[("route", &*route.name)]);
        (labels, f64::from(u8::from(are_pages_cut)))
    });
    to.gauge(
        "ordgate_route_sliceable",
        "Whether a route's pages are cut from windows at present",
        sliceable.collect(),
    )
}

fn compression(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let counts = gateway.compressor.counts();
    let results = counts.iter().flat_map(|(coding, of)| {
        let results = [
            ("made", of.made),
            ("not-worthwhile", of.not_worthwhile),
            ("skipped", of.skipped),
        ];
        results.map(|(result, n)| {
            let pairs = [("coding", coding.name()), ("result", result)];
            (labels(&pairs), n)
        })
    });
    to.counter(
        "ordgate_compressions",
        "Stored bodies that were to be compressed, by coding and by result: made, not-worthwhile (not smaller), skipped (too many waited, or it was not stored any more)",
        results.collect(),
    )?;
    let before = counts.iter().map(|(coding, of)| (coding.name(), of.before));
    to.counter(
        "ordgate_compression_bytes_before",
        "The bytes of the bodies that were compressed",
        by_coding(before),
    )?;
    let after = counts.iter().map(|(coding, of)| (coding.name(), of.after));
    to.counter(
        "ordgate_compression_bytes_after",
        "The bytes of the same bodies, compressed",
        by_coding(after),
    )
}

fn by_coding<'n>(values: impl Iterator<Item = (&'n str, u64)>) -> Cells<u64> {
    values
        .map(|(coding, n)| (labels(&[("coding", coding)]), n))
        .collect()
}

fn tips(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let all = gateway.tip_snapshots();
    to.counter(
        "ordgate_tip_probes",
        "Probes of a tip that have ended",
        by_tip(&all, |tip| tip.probes),
    )?;
    to.counter(
        "ordgate_tip_probe_failures",
        "Probes of a tip that have failed",
        by_tip(&all, |tip| tip.failures),
    )?;
    to.counter(
        "ordgate_tip_reorgs",
        "Reorgs seen in the answers of an indexer",
        by_tip(&all, |tip| tip.reorgs),
    )?;
    let moved = all.iter().filter_map(|tip| {
        let seconds = tip.moved_seconds_ago?;
        Some((labels(&[("tip", &tip.name)]), seconds))
    });
    to.gauge(
        "ordgate_tip_moved_seconds",
        "Seconds since the status of a tip reported another one than before",
        moved.collect(),
    )?;
    let heights = all.iter().filter_map(|tip| {
        let height = f64::from(tip.height?);
        Some((labels(&[("tip", &tip.name)]), height))
    });
    to.gauge(
        "ordgate_tip_height",
        "The height of a tip, where one is known",
        heights.collect(),
    )?;
    // An alert about a tip that is not probed would be false.
    let probed = gateway.probed_tips();
    to.gauge(
        "ordgate_tip_known",
        "Whether a probe has confirmed a tip recently; otherwise only times decide on freshness",
        by_tip(&probed, |tip| f64::from(u8::from(tip.known))),
    )?;
    to.gauge(
        "ordgate_tip_known_once",
        "Whether a tip has been known at any time since the start",
        by_tip(&probed, |tip| f64::from(u8::from(tip.known_once))),
    )
}

/// The cells of a family: labels and values.
type Cells<T> = Vec<(Vec<(String, String)>, T)>;

/// One cell, without labels.
fn one<T>(value: T) -> Cells<T> {
    vec![(Vec::new(), value)]
}

/// A cell for each value of a label.
fn by<T, const N: usize>(label: &str, values: [(&str, T); N]) -> Cells<T> {
    let cells = values.map(|(value, n)| (labels(&[(label, value)]), n));
    cells.into()
}

fn by_tip<T>(tips: &[TipSnapshot], value: fn(&TipSnapshot) -> T) -> Cells<T> {
    let cells = tips.iter();
    cells
        .map(|tip| (labels(&[("tip", &tip.name)]), value(tip)))
        .collect()
}

fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

/// A histogram that another module counts.
struct Counted(LatencyHistogram);

impl EncodeMetric for Counted {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let mut below = 0;
        let mut buckets = Vec::new();
        for (bound, at_most) in self.0.cumulative() {
            buckets.push((bound.as_secs_f64(), at_most - below));
            below = at_most;
        }
        buckets.push((f64::INFINITY, self.0.count() - below));
        let (sum, count) = (self.0.sum().as_secs_f64(), self.0.count());
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Where metrics are written.
struct Metrics<'e>(DescriptorEncoder<'e>);

impl Metrics<'_> {
    fn counter(&mut self, name: &str, help: &str, cells: Cells<u64>) -> fmt::Result {
        let cells = cells.into_iter();
        let cells = cells.map(|(labels, n)| (labels, ConstCounter::new(n)));
        self.family(name, help, MetricType::Counter, cells)
    }

    fn gauge(&mut self, name: &str, help: &str, cells: Cells<f64>) -> fmt::Result {
        let cells = cells.into_iter();
        let cells = cells.map(|(labels, n)| (labels, ConstGauge::new(n)));
        self.family(name, help, MetricType::Gauge, cells)
    }

    fn histogram(&mut self, name: &str, help: &str, cells: Cells<LatencyHistogram>) -> fmt::Result {
        let cells = cells.into_iter();
        let cells = cells.map(|(labels, times)| (labels, Counted(times)));
        self.family(name, help, MetricType::Histogram, cells)
    }

    /// Writes a family of metrics: its name, its help, its cells.
    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        cells: impl IntoIterator<Item = (Vec<(String, String)>, M)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in cells {
            if labels.is_empty() {
                value.encode(family.encode_family::<Vec<(String, String)>>(&labels)?)?;
            } else {
                value.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
