//! Metrics of the responses that replicas keep for each other.

use std::fmt;

use super::{Metrics, by, one};
use crate::gateway::Gateway;

/// Writes them; without an engine, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let Some(tier) = gateway
        .shared
        .as_deref()
        .map(|shared| shared.tier().snapshot())
    else {
        return Ok(());
    };
    to.gauge(
        "ordgate_shared_tier_used",
        "Whether responses of other replicas are looked up: not while the engine or its journal does not answer",
        one(f64::from(u8::from(tier.is_used))),
    )?;
    to.counter(
        "ordgate_shared_tier_lookups",
        "Responses that memory and disk did not have, by what came of the look-up in the engine: a usable response; none, and this replica fetches it under a lock; a wait for another replica's fetch (also counted by its end); a fetch without a lock after that, or because too many waited; no look-up, since the journal is not heard; no answer in time",
        by(
            "result",
            [
                ("hit", tier.hits),
                ("led", tier.led),
                ("followed", tier.followed),
                ("unlocked", tier.unlocked),
                ("skipped", tier.skipped),
                ("error", tier.errors),
            ],
        ),
    )?;
    to.counter(
        "ordgate_shared_tier_unusable",
        "Responses that the engine had and that were not used: of another form or route; purged; too old; not known to agree with the chain as it is known here",
        by("reason", tier.unusable),
    )?;
    to.counter(
        "ordgate_shared_tier_given_up",
        "Fetches under a lock that ended without a response for others",
        one(tier.given_up),
    )?;
    to.gauge(
        "ordgate_shared_tier_queued",
        "Responses that wait to be stored in the engine",
        one(tier.queued as f64),
    )?;
    to.counter(
        "ordgate_shared_tier_writes",
        "Responses that were fetched: stored in the engine; not stored, since a later one was there, too many waited, they were too large, or the engine did not answer",
        by(
            "result",
            [
                ("stored", tier.stored),
                ("overtaken", tier.overtaken),
                ("dropped", tier.dropped),
                ("too_large", tier.too_large),
                ("error", tier.unstored),
            ],
        ),
    )
}
