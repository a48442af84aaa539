//! `/status`: the state of the gateway as JSON, from the snapshots of its parts. `/metrics`
//! has the same figures.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::Admin;
use crate::build;
use crate::cache::date;
use crate::gateway::Gateway;
use crate::identify::Client;
use crate::listener::BoundListener;
use crate::log_writer::Destination;
use crate::meter::LatencyHistogram;
use crate::meter::errors::AnsweredError;
use crate::sync::lock;
use crate::telemetry::process;

/// The body of `/status`: the figures but for the buckets of histograms.
pub(super) fn status(admin: &Admin, gateway: &Gateway) -> Value {
    let mut status = figures(admin, gateway);
    if let Some(members) = status.as_object_mut() {
        members.remove("histograms");
    }
    status
}

/// All figures that `/metrics` has.
pub(super) fn figures(admin: &Admin, gateway: &Gateway) -> Value {
    let totals = &gateway.meter().totals;
    let (not_ready, state) = (gateway.not_ready(), &gateway.state);
    let label = |client: Client| gateway.clients.label(client).to_string();
    let upstreams: Map<_, _> = gateway
        .upstreams
        .iter()
        .map(|(_, one)| (one.name().to_owned(), one.snapshot(label)))
        .collect();
    let listeners: Vec<_> = admin.bound(gateway).iter().map(listener).collect();
    let table = &totals.connections;
    let dropped = Destination::ALL.map(|to| (to.name().to_owned(), to.dropped().into()));
    let mut status = json!({
        "version": build::VERSION,
        "commit": build::COMMIT,
        "rustc": build::RUSTC,
        "state": match *admin.drain.borrow() {
            true => "draining",
            false if not_ready.is_empty() => "ready",
            false => "not ready",
        },
        "not_ready": not_ready,
        "uptime_seconds": gateway.clock.now().since(admin.since).as_secs(),
        "listen": listeners.first().map(|listener| &listener["address"]),
        "listeners": listeners,
        "config": admin.config,
        "process": process::figures(),
        "reload": admin.reloads.status(),
        "connections": **totals,
        "tls_handshakes": totals.tls.snapshot(),
        "unsent": { "bytes": table.unread, "max_bytes": table.most_unread() },
        "misses_limited": gateway.limit().map(|limit| {
            let [refused, stale] = &*limit.refused;
            json!({ "refused": refused, "stale": stale })
        }),
        "client_tokens": client_tokens(gateway),
        "state_directory": state.answers.snapshot().map(|answers| {
            json!({ "answers": answers, "spent": state.spent.snapshot() })
        }),
        "shared": gateway.fill.lower.shared.as_ref().map(|shared| shared.snapshot()),
        "cache": gateway.cache.store().size(),
        "compression": compression(gateway),
        "chain": {
            "tips": gateway.tip_snapshots(),
            "purges": gateway.cache.store().purges(),
        },
        "collapse": { "keys": gateway.fill.collapse.len() },
        "failures_in_backoff": gateway.fill.failures.len(),
        "upstream": upstreams.get(gateway.upstreams.first().name()),
        "upstreams": upstreams,
        "errors": errors(gateway, label),
        "refused": *lock(&totals.refused),
        "log_lines_dropped": Map::from_iter(dropped),
    });
    add_requests(gateway, &mut status);
    status
}

/// Adds how many requests there were, and how long they took.
fn add_requests(gateway: &Gateway, status: &mut Value) {
    const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let (mut requests, mut latency, mut times) = (Vec::new(), Vec::new(), Vec::new());
    let mut total = LatencyHistogram::default();
    for row in gateway.meter().snapshot() {
        let route = row.route.and_then(|at| gateway.routes.routes().get(at));
        let (route, outcome) = (route.map(|route| &*route.name), row.outcome);
        for (class, count) in CLASSES
            .iter()
            .zip(row.classes)
            .filter(|(_, count)| *count > 0)
        {
            requests.push(
                json!({ "route": route, "outcome": outcome, "class": class, "requests": count }),
            );
        }
        let mut own = row.times.summary();
        own["route"] = route.into();
        own["outcome"] = outcome.into();
        latency.push(own);
        times.push(json!({ "route": route, "outcome": outcome, "times": row.times.buckets() }));
        total.add(&row.times);
    }
    let (mut waits, mut first_byte) = (Vec::new(), Vec::new());
    for (_, upstream) in gateway.upstreams.iter() {
        let name = upstream.name();
        for (priority, times) in upstream.waits() {
            waits.push(json!({ "upstream": name, "priority": priority, "times": times.buckets() }));
        }
        for (endpoint, times) in upstream.first_bytes() {
            let times = times.buckets();
            first_byte.push(json!({ "upstream": name, "endpoint": endpoint, "times": times }));
        }
    }
    status["requests"] = requests.into();
    status["latency"] = latency.into();
    status["latency_total"] = total.summary();
    status["histograms"] = json!({ "requests": times, "waits": waits, "first_byte": first_byte });
}

fn listener(listener: &BoundListener) -> Value {
    let settings = &listener.settings;
    json!({
        "address": listener.address,
        "name": settings.name,
        "tls": settings.tls.as_ref().map(|tls| {
            json!({ "min_version": tls.min_version, "certificates": listener.certificates })
        }),
    })
}

/// What came of compressing stored bodies.
fn compression(gateway: &Gateway) -> Value {
    let codings = gateway.compressor.counts();
    let codings = codings.map(|(coding, counts)| (coding.name().to_owned(), json!(counts)));
    json!({ "codings": Map::from_iter(codings) })
}

/// The clients with tokens: the sums of all, and the busiest. `null` without a token
/// file.
fn client_tokens(gateway: &Gateway) -> Value {
    let tokens = &gateway.clients.tokens;
    if !tokens.is_enabled {
        return Value::Null;
    }
    let now = gateway.clock.wall_now();
    let all = gateway.limit().map(|limit| limit.requests.shape());
    let rows = tokens.busiest().into_iter();
    let rows = rows.map(|([limited, admitted], client)| {
        let limit = client.rate.as_ref().map(|rate| rate.shape()).or(all);
        let expires = client.expires.map(date::value);
        json!({
            "name": client.name,
            "requests": admitted,
            "limited": limited,
            "requests_per_minute": limit.map(|(per_minute, _)| per_minute),
            "burst": limit.map(|(_, burst)| burst),
            "origins": client.origins,
            "tokens": client.tokens,
            "expires": expires.as_ref().and_then(|at| at.to_str().ok()),
            "has_expired": client.expires.is_some_and(|at| now >= at),
        })
    });
    json!({
        "required": tokens.is_required,
        "names": tokens.clients.len(),
        "busiest": rows.collect::<Value>(),
    })
}

/// The last answers with a 5xx status, the newest first.
fn errors(gateway: &Gateway, label: impl Fn(Client) -> String) -> Value {
    let clock = &gateway.clock;
    let row = |error: AnsweredError| {
        let url = utf8_percent_encode(&error.target, NON_ALPHANUMERIC);
        let url = (!error.is_cut).then(|| format!("/explain?url={url}"));
        json!({
            "at": date::value(clock.wall(error.at)).to_str().ok(),
            "ago_seconds": clock.now().since(error.at).as_secs(),
            "client": label(error.client),
            "method": error.method,
            "path": error.target,
            "status": error.status.as_u16(),
            "reason": error.reason,
            "cause": error.cause,
            "request_id": error.request_id.as_str(),
            "url": url,
        })
    };
    let last = gateway.meter().totals.errors.last();
    last.into_iter().map(row).collect()
}
