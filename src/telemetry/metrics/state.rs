//! Metrics of what outlives the process, and of what replicas share.

use std::fmt;

use super::{Metrics, by, one};
use crate::gateway::Gateway;
use crate::shared::SharedSnapshot;

/// Writes those of the state directory; without one, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let state = &gateway.state;
    let (Some(answers), Some(spent)) = (state.answers.snapshot(), state.spent.snapshot()) else {
        return Ok(());
    };
    let faults = [("answers.db", &answers.fault), ("spent.db", &spent.fault)];
    to.gauge(
        "ordgate_state_fault",
        "Whether a database of the state directory is not used until a restart, after an error",
        by(
            "database",
            faults.map(|(name, fault)| (name, f64::from(u8::from(fault.is_some())))),
        ),
    )?;
    to.gauge(
        "ordgate_state_bytes",
        "Bytes of stored responses on disk",
        one(answers.bytes as f64),
    )?;
    to.gauge(
        "ordgate_state_max_bytes",
        "Their bound",
        one(answers.max_bytes as f64),
    )?;
    to.counter(
        "ordgate_state_look_ups",
        "Look-ups on disk: a response was found, or none in time",
        by("result", [("hit", answers.hits), ("miss", answers.misses)]),
    )?;
    to.counter(
        "ordgate_state_dropped",
        "Responses that were not stored on disk, because too many waited or a purge came first",
        one(answers.dropped),
    )?;
    to.gauge(
        "ordgate_state_unknown_spending_seconds",
        "For how long API keys rest because it is not known what was spent before the start",
        one(spent.unknown_seconds),
    )
}

/// Writes those of what replicas share; without replicas, none.
pub(super) fn encode_shared(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let Some(shared) = &gateway.fill.lower.shared else {
        return Ok(());
    };
    let SharedSnapshot {
        replicas,
        engine,
        permits,
        purges,
        responses,
        tips,
        ..
    } = shared.snapshot();
    to.gauge(
        "ordgate_shared_replicas",
        "The most replicas that run at once (shared.replicas)",
        one(f64::from(replicas)),
    )?;
    let Some(engine) = engine else {
        return Ok(());
    };
    to.gauge(
        "ordgate_shared_engine_up",
        "Whether the engine answers",
        one(f64::from(u8::from(engine.is_up))),
    )?;
    to.counter(
        "ordgate_shared_permits",
        "Requests for a permit of a budget's pool, by result",
        by(
            "result",
            [
                ("granted", permits.granted),
                ("spent", permits.spent),
                ("closed", permits.closed),
                ("resting", permits.resting),
                ("absent", permits.absent),
                ("late", permits.late),
            ],
        ),
    )?;
    to.counter(
        "ordgate_shared_responses",
        "Look-ups of responses in the engine, by result",
        by(
            "result",
            [
                ("found", responses.found),
                ("led", responses.led),
                ("alone", responses.alone),
            ],
        ),
    )?;
    to.counter(
        "ordgate_shared_purges",
        "Purges of other replicas that were applied; all means that one may have been missed",
        by(
            "what",
            [
                ("named", purges.heard.saturating_sub(purges.dropped_all)),
                ("all", purges.dropped_all),
            ],
        ),
    )?;
    to.gauge(
        "ordgate_shared_purges_waiting",
        "Purges of this replica that the engine does not have yet",
        one(purges.waiting as f64),
    )?;
    to.counter(
        "ordgate_shared_tips",
        "Statuses of tips: asked for all replicas, taken from another one, or asked alone because the engine did not answer",
        by(
            "by",
            [
                ("this", tips.asked),
                ("another", tips.taken),
                ("alone", tips.alone),
            ],
        ),
    )
}
