//! What upstream requests were sent for, and how they have failed, in `/status`.

use serde_json::{Value, json};

use super::since;
use crate::clock::Clock;
use crate::gateway::Gateway;
use crate::upstream::Upstream;
use crate::upstream::endpoint::LastFailure;

/// What upstream requests were sent for in the last minutes: by route and reason, the
/// clients and the paths that most of them were sent for.
pub(super) fn spending(gateway: &Gateway) -> Value {
    let recent = gateway.upstreams.usage().recent(gateway.clock.now());
    let by_route = recent.by_route.iter().map(
        |sent| json!({ "route": &*sent.route, "reason": sent.reason, "requests": sent.requests }),
    );
    let clients = recent.clients.iter().map(|row| {
        json!({
            "client": gateway.clients.label(row.item).to_string(),
            "requests": row.count,
            "at_most_too_many": row.error,
        })
    });
    let paths = recent.targets.iter().map(|row| {
        let (route, path) = &row.item;
        json!({
            "route": &**route,
            "path": &**path,
            "requests": row.count,
            "at_most_too_many": row.error,
        })
    });
    json!({
        "since_seconds": recent.since.as_secs(),
        "by_route": by_route.collect::<Vec<_>>(),
        "clients": clients.collect::<Vec<_>>(),
        "paths": paths.collect::<Vec<_>>(),
    })
}

/// The last change of an upstream's endpoint. `null` if there was none.
pub(super) fn last_failover(upstream: &Upstream, clock: &Clock) -> Value {
    let Some(last) = upstream.counters().last_failover() else {
        return Value::Null;
    };
    let (at, ago) = since(last.at, clock);
    json!({
        "at": at,
        "ago_seconds": ago,
        "from": last.from,
        "to": last.to,
        "cause": last.cause,
    })
}

/// The last failure of an endpoint, and how many there were since it answered.
pub(super) fn last_failure(last: &LastFailure, clock: &Clock) -> Value {
    let (at, ago) = since(last.at, clock);
    json!({
        "reason": last.reason,
        "kind": last.kind,
        "cause": last.causes.join(": "),
        "causes": last.causes,
        "at": at,
        "ago_seconds": ago,
        // The old name of `ago_seconds`, for one release.
        "seconds_ago": ago,
        "in_a_row": last.in_a_row,
        "route": last.made_for.route(),
        "request_id": last.made_for.request_id(),
    })
}
