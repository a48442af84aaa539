//! The engine that replicas share, in `/status`.

use serde_json::{Value, json};

use crate::shared::allowance::RequestCounts;
use crate::shared::engine::SharedError;
use crate::shared::engine::server::EngineSnapshot;
use crate::shared::{JournalReport, KeptSnapshot, Shared, TipShare};

/// The engine, and what it says of each budget. `null` if there is none.
pub(super) fn engine(shared: Option<&Shared>) -> Value {
    let Some(shared) = shared.map(Shared::snapshot) else {
        return Value::Null;
    };
    let Some(engine) = &shared.engine else {
        return json!({ "status": "not asked yet" });
    };
    let budgets = shared.budgets.iter().map(budget);
    let tips = shared.tips.iter();
    let tips = tips.map(|(name, share)| (name.to_string(), tip(share)));
    let round_trip = engine
        .round_trip
        .map(|[median, slow]| json!({ "p50": median.as_secs_f64(), "p99": slow.as_secs_f64() }));
    let errors = SharedError::KINDS.iter().zip(engine.errors);
    let errors: serde_json::Map<_, _> = errors
        .map(|(kind, errors)| ((*kind).to_owned(), errors.into()))
        .collect();
    json!({
        "status": status(engine),
        "last_error": engine.last_error.as_ref().map(ToString::to_string),
        "last_error_seconds_ago": engine.failed_ago.map(|ago| ago.as_secs_f64()),
        "errors": errors,
        "round_trip_seconds": round_trip,
        "budgets": budgets.collect::<Vec<_>>(),
        "tips": tips.collect::<serde_json::Map<_, _>>(),
    })
}

fn tip(share: &TipShare) -> Value {
    let probes = match (share.is_holder, share.is_follower) {
        (true, _) => "this replica",
        (false, true) => "another replica",
        (false, false) => "each replica for itself",
    };
    json!({ "probed_by": probes, "followed": share.followed })
}

/// How this replica follows the journal. `null` without an engine.
pub(super) fn journal(shared: Option<&Shared>) -> Value {
    let Some(JournalReport {
        generation,
        applied,
        tail,
        synced,
        is_in_sync,
        failure,
        waiting,
        records: [sent, received, unknown],
        gaps,
        generations,
        replicas,
    }) = shared.map(|shared| shared.snapshot().journal)
    else {
        return Value::Null;
    };
    let replicas = replicas.iter().map(|(name, applied, silent, is_there)| {
        json!({
            "name": **name,
            "applied": applied,
            "silent_ms": silent.as_millis() as u64,
            "reached": is_there,
        })
    });
    json!({
        "generation": generation,
        "applied": applied,
        "tail": tail,
        "heard": is_in_sync,
        "heard_ms_ago": synced.map(|ago| ago.as_millis() as u64),
        "last_error": failure,
        "waiting": waiting,
        "records": { "sent": sent, "received": received, "unknown": unknown },
        "gaps": gaps,
        "generations": generations,
        "replicas": replicas.collect::<Vec<_>>(),
    })
}

fn status(engine: &EngineSnapshot) -> &'static str {
    match (engine.is_up, engine.is_absent) {
        (true, _) => "answers",
        // No call has ended yet.
        (false, false) if engine.last_error.is_none() => "not asked yet",
        (false, is_absent) => match (&engine.last_error, is_absent) {
            (Some(SharedError::Refused(_)), false) => "refuses",
            (Some(SharedError::Refused(_)), true) => "refuses: it is tried now and then",
            (_, false) => "does not answer",
            (_, true) => "does not answer: it is tried now and then",
        },
    }
}

fn budget(budget: &KeptSnapshot) -> Value {
    let counts =
        |counts: RequestCounts| json!({ "minute": counts.minute, "second": counts.second });
    let [following, most] = budget.copies;
    json!({
        "budget": budget.digest,
        "floor_only": budget.is_floor_only,
        "followed_seconds": budget.followed.map(|followed| followed.as_secs()),
        "raised_after_seconds": budget.silence.as_secs(),
        "generations": budget.generations,
        "majority": budget.majority,
        "copies": { "following": following, "most": most },
        "wanted_by_all": counts(budget.wants),
        "granted_at_most": counts(budget.pool),
        "processes": budget.names.iter().map(|name| &**name).collect::<Vec<_>>(),
        "name_twice": budget.has_name_twice(),
    })
}
