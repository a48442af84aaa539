//! `/status`: the state of the gateway as JSON. Keys are named, never shown.

mod errors;
mod latency;
mod spending;

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};

use super::Admin;
use crate::build;
use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::gateway::Gateway;
use crate::log_writer::Destination;
use crate::meter::{Count, FrameFlood, Http2Totals};
use crate::route::Route;
use crate::upstream::ClientUsage;
use crate::upstream::Upstream;
use crate::upstream::endpoint::{EndpointSnapshot, Host};
use crate::upstream::keys::KeySnapshotAtHost;
use errors::errors;
use spending::last_failure;

/// The most clients that are listed, by their use of the budget.
const HEAVIEST: usize = 10;

/// The body of `/status`.
pub(super) fn status(admin: &Admin, gateway: &Gateway) -> Value {
    let totals = &gateway.meter().totals;
    let size = gateway.cache.store().size();
    let routes = gateway.routes.routes();
    let counts = gateway.meter().counts();
    let stale = counts.iter().filter(|count| count.outcome == "stale");
    let stale: u64 = stale.map(|count| count.requests).sum();
    let bound = admin.bound(gateway);
    let listen = bound.first().map(|listener| &listener.address);
    let listeners: Vec<_> = bound
        .iter()
        .map(|listener| {
            json!({
                "address": listener.address,
                "name": listener.settings.name,
                "proxy_protocol": listener.settings.proxy_protocol,
                "tls": listener.settings.tls.as_ref().map(|tls| {
                    json!({
                        "min_version": tls.min_version,
                        "certificates": listener.certificates,
                    })
                }),
            })
        })
        .collect();
    let sliceable = gateway
        .paged()
        .map(|(route, sliceable)| json!({ "route": &*route.name, "sliceable": sliceable }));
    let (latency, latency_total) = latency::latency(gateway);
    json!({
        "version": build::VERSION,
        "commit": build::COMMIT,
        "state": state(admin, gateway),
        "uptime_seconds": gateway.clock.now().since(admin.since).as_secs(),
        "listen": listen,
        "listeners": listeners,
        "workers": admin.workers,
        "config": admin.config,
        "reload": admin.reloads.status(),
        "connections": {
            "open": totals.connections.load(Relaxed),
            "accepted": totals.accepted.load(Relaxed),
            "turned_away": totals.turned_away.load(Relaxed),
            "turned_away_client": totals.turned_away_client.load(Relaxed),
            "proxy_header_refused": totals.proxy_header_refused.load(Relaxed),
            "reset_slow": totals.too_slow.load(Relaxed),
            "reset_unsent": totals.unsent.closed(),
            "http2": http2(&totals.http2),
        },
        "unsent": { "bytes": totals.unsent.held(), "max_bytes": totals.unsent.bound() },
        "misses_limited": misses_limited(gateway),
        "client_tokens": client_tokens(gateway),
        "state_directory": state_directory(gateway),
        "shared": gateway.fill.lower.shared.as_ref().map(|shared| shared.snapshot()),
        "cache": { "entries": size.entries, "bytes": size.bytes, "max_bytes": size.max_bytes },
        "compression": compression(gateway),
        "chain": {
            "tips": gateway.tip_snapshots(),
            "purges": gateway.cache.store().purges(),
            "routes": sliceable.collect::<Vec<_>>(),
        },
        "collapse": { "keys": gateway.fill.collapse.len() },
        "remembered_errors": gateway.fill.failures.len(),
        "upstream": upstream(gateway.upstreams.first(), gateway),
        "upstreams": upstreams(gateway),
        "errors": errors(gateway),
        "stale_answers": stale,
        "traces": traces(gateway),
        "requests": requests(&counts, routes),
        "refused": refused(gateway),
        "log_lines_dropped": log_lines_dropped(),
        "latency": latency,
        "latency_total": latency_total,
    })
}

/// What became of spans; `null` where none are exported.
fn traces(gateway: &Gateway) -> Value {
    let Some(tracer) = &gateway.records.tracer else {
        return Value::Null;
    };
    let counts = &tracer.counts;
    json!({
        "waiting": tracer.waiting(),
        "exported": counts.exported.load(Relaxed),
        "dropped": counts.dropped.load(Relaxed),
        "failed": counts.failed.load(Relaxed),
        "limited": counts.limited.load(Relaxed),
    })
}

/// How many requests there were, by route, outcome and class of status code.
fn requests(counts: &[Count], routes: &[Route]) -> Vec<Value> {
    let counts = counts.iter().map(|count| {
        json!({
            "route": count.route.and_then(|at| routes.get(at)).map(|route| &*route.name),
            "outcome": count.outcome,
            "class": count.class,
            "requests": count.requests,
        })
    });
    counts.collect()
}

/// The state that `/readyz` reports.
fn state(admin: &Admin, gateway: &Gateway) -> &'static str {
    if *admin.drain.borrow() {
        "draining"
    } else if gateway.not_ready().is_empty() {
        "ready"
    } else {
        "not ready"
    }
}

/// What outlives the process. `null` without a state directory.
fn state_directory(gateway: &Gateway) -> Value {
    let answers = gateway.state.answers.snapshot();
    let spent = gateway.state.spent.snapshot();
    match answers.is_some() {
        true => json!({ "answers": answers, "spent": spent }),
        false => Value::Null,
    }
}

/// What came of compressing stored bodies.
fn compression(gateway: &Gateway) -> Value {
    let codings = gateway.compressor.counts();
    let codings = codings.map(|(coding, counts)| (coding.name().to_owned(), json!(counts)));
    json!({ "codings": Map::from_iter(codings) })
}

/// Lines of the log that were dropped, by where they were to be written.
fn log_lines_dropped() -> Value {
    let dropped = Destination::ALL.map(|to| (to.name().to_owned(), to.dropped().into()));
    Value::Object(Map::from_iter(dropped))
}

/// What was refused or failed, by reason.
fn refused(gateway: &Gateway) -> Value {
    let counts = gateway.meter().totals.refused.by_reason();
    let found = counts.filter(|(_, count)| *count > 0);
    let named = found.map(|(reason, count)| (reason.name().to_owned(), count.into()));
    Value::Object(named.collect())
}

/// Connections in HTTP/2.
fn http2(http2: &Http2Totals) -> Value {
    let floods = FrameFlood::ALL.iter().map(|(flood, name)| {
        let closed = http2.floods[*flood as usize].load(Relaxed);
        ((*name).to_owned(), closed.into())
    });
    json!({
        "open": http2.connections.load(Relaxed),
        "accepted": http2.accepted.load(Relaxed),
        "requests": http2.requests(),
        "floods": Map::from_iter(floods),
    })
}

/// The results of requests over the limit on misses.
fn misses_limited(gateway: &Gateway) -> Value {
    let Some(limit) = gateway.limit() else {
        return Value::Null;
    };
    let [refused, stale] = &*limit.refused;
    json!({ "refused": refused.load(Relaxed), "stale": stale.load(Relaxed) })
}

/// The clients with tokens: the sums of all, and the busiest. `null` without a token
/// file.
fn client_tokens(gateway: &Gateway) -> Value {
    let tokens = &gateway.clients.tokens;
    if !tokens.is_enabled {
        return Value::Null;
    }
    let now = gateway.clock.system_time();
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
        "busiest": rows.collect::<Vec<_>>(),
    })
}

/// Each upstream by its name. The first one is also under `upstream`.
fn upstreams(gateway: &Gateway) -> Value {
    let each = gateway.upstreams.iter();
    let named = each.map(|(_, one)| (one.name().to_owned(), upstream(one, gateway)));
    Value::Object(named.collect())
}

fn upstream(upstream: &Upstream, gateway: &Gateway) -> Value {
    let clock = &gateway.clock;
    let tally = &upstream.counters;
    let endpoints = upstream.endpoint_snapshots();
    let current = endpoints.iter().find(|endpoint| endpoint.is_selected);
    let keys = upstream.key_snapshots().into_iter().map(|key| {
        json!({
            "name": key.name,
            "budget_left": key.remaining,
            // The part of it that only probes of the tip may use, and how long the next
            // request for a client has to wait.
            "kept_for_probes": key.kept,
            "paused_seconds": key.paused_for.as_secs_f64(),
            "budget": key.per_minute,
            "unusable_seconds": key.worst().unusable_for.as_secs_f64(),
            "state": key.worst().state(),
            "hosts": key.hosts.iter().map(key_at).collect::<Vec<_>>(),
        })
    });
    let (slots, sent) = (upstream.slots(), tally.sent());
    let sent_for = sent.iter().map(
        |(route, reason, requests)| json!({ "route": &**route, "reason": reason, "requests": requests }),
    );
    json!({
        "name": upstream.name(),
        "url": current.map(|endpoint| &*endpoint.name),
        "endpoints": endpoints.iter().map(|snapshot| endpoint(snapshot, clock)).collect::<Vec<_>>(),
        "switches": tally.results("switches"),
        "in_flight": upstream.in_flight(),
        "in_flight_limit": upstream.settings.max_in_flight,
        // Of the slots, those that only clients without a request in flight get.
        "slots": slots.all,
        "slots_free": slots.free,
        "kept_for_other_clients": slots.kept,
        "queue": upstream.queue.len(),
        "request_bodies": {
            "buffered_bytes": upstream.uploads.buffered(),
            "refused": upstream.uploads.refused.load(Relaxed),
        },
        "sent": tally.all_sent(),
        "sent_for": sent_for.collect::<Vec<_>>(),
        "answered": tally.results("answered"),
        "failed": tally.results("failed"),
        "no_budget": tally.results("over_budget") + tally.results("budget_unknown"),
        "no_slot": tally.results("no_slot"),
        "broken": tally.results("breaker_open"),
        "retries_refused": tally.results("unretried"),
        "clients": upstream.queue.active_clients(),
        "heaviest_clients": heaviest(upstream, gateway),
        "keys": keys.collect::<Vec<_>>(),
    })
}

/// A key's state at a host.
fn key_at((host, key): &(Host, KeySnapshotAtHost)) -> Value {
    json!({
        "host": &**host,
        "state": key.state(),
        "unusable_seconds": key.unusable_for.as_secs_f64(),
    })
}

fn endpoint(snapshot: &EndpointSnapshot, clock: &Clock) -> Value {
    json!({
        "url": &*snapshot.name,
        "selected": snapshot.is_selected,
        "condition": snapshot.condition.name(),
        "in_flight": snapshot.counts.in_flight,
        "sent": snapshot.counts.sent,
        "failed": snapshot.counts.failed,
        "lag_blocks": snapshot.lag,
        "last_failure": snapshot.counts.last_failure.as_ref().map(|last| last_failure(last, clock)),
    })
}

/// When something was, as an HTTP date, and how many seconds ago.
fn since(at: Moment, clock: &Clock) -> (Option<String>, u64) {
    let date = date::value(clock.wall(at));
    let date = date.to_str().ok().map(str::to_owned);
    (date, clock.now().since(at).as_secs())
}

/// The clients that used the most of the budget recently, which determines their
/// position in the queue.
fn heaviest(upstream: &Upstream, gateway: &Gateway) -> Vec<Value> {
    let shares = upstream.queue.busiest_clients(HEAVIEST).into_iter();
    let share = |share: ClientUsage| {
        json!({
            "client": share.client.map(|client| gateway.clients.label(client).to_string()),
            "recent": (share.recent * 10.0).round() / 10.0,
            "waiting": share.waiting,
            "in_flight": share.in_flight,
        })
    };
    shares.map(share).collect()
}
