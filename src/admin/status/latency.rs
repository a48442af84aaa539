//! How long requests took, for `/status`.

use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::meter::LatencyHistogram;

/// A row for each route and outcome since the start, and one for all requests.
pub(super) fn latency(gateway: &Gateway) -> (Value, Value) {
    let routes = gateway.routes.routes();
    let mut all = LatencyHistogram::default();
    let mut rows = Vec::new();
    for row in gateway.meter().latency_snapshot() {
        all.add(&row.times);
        let name = row.route.and_then(|at| routes.get(at));
        let mut described = times(&row.times);
        described["route"] = json!(name.map(|route| &*route.name));
        described["outcome"] = row.outcome.into();
        rows.push(described);
    }
    (rows.into(), times(&all))
}

/// The count, the quantiles and the longest time, in milliseconds.
fn times(times: &LatencyHistogram) -> Value {
    let at = |q| times.quantile(q).map(millis);
    json!({
        "count": times.count(),
        "p50_ms": at(0.5),
        "p90_ms": at(0.9),
        "p99_ms": at(0.99),
        "max_ms": times.longest().map(millis),
    })
}

/// With three digits after the point: microseconds.
fn millis(time: std::time::Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
