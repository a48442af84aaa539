//! What replicas share, in `/status`.

use std::time::Duration;

use serde_json::{Value, json};

use super::engine;
use crate::admin::Admin;
use crate::gateway::Gateway;
use crate::upstream::{AllowanceSnapshot, Limits};

/// What this replica may use of what replicas share. `null` if it is the only ordgate.
pub(super) fn shared(admin: &Admin, gateway: &Gateway) -> Value {
    let Some(replicas) = gateway.upstreams.replicas() else {
        return Value::Null;
    };
    let unknown = gateway.upstreams.unknown_spending(gateway.clock.now());
    let (waiting, because) = unknown.unzip();
    let keys = gateway.upstreams.iter().flat_map(|(_, upstream)| {
        let keys = upstream.key_snapshots().into_iter();
        let keys = keys.filter_map(|key| Some((key.name, key.allowance?)));
        keys.map(|(name, allowance)| key(&name, upstream.name(), &allowance))
    });
    json!({
        "name": admin.replica_name,
        "replicas": replicas.count,
        "waiting_seconds": waiting.unwrap_or(Duration::ZERO).as_secs_f64(),
        "unknown_because": because,
        "keys": keys.collect::<Vec<_>>(),
        "engine": engine::engine(gateway.shared.as_deref()),
        "journal": engine::journal(gateway.shared.as_deref()),
        "client_limits": "not shared: each replica limits its clients on its own",
    })
}

fn key(name: &str, upstream: &str, allowance: &AllowanceSnapshot) -> Value {
    let granted = allowance.granted;
    json!({
        "key": name,
        "upstream": upstream,
        "budget": limits(allowance.total),
        "floor": limits(allowance.floor),
        "granted": { "minute": granted.per_minute, "second": granted.per_second },
        "lease_seconds": granted.until.as_secs_f64(),
    })
}

fn limits(limits: Limits) -> Value {
    json!({ "minute": limits.per_minute, "second": limits.per_second })
}
