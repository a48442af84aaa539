//! The responses that replicas keep for each other, in `/status`.

use serde_json::{Map, Value, json};

use crate::shared::Shared;

/// What became of look-ups and of fetched responses. `null` without an engine.
pub(super) fn responses(shared: Option<&Shared>) -> Value {
    let Some(tier) = shared.map(|shared| shared.tier().snapshot()) else {
        return Value::Null;
    };
    let unusable = tier.unusable.into_iter();
    let unusable: Map<_, _> = unusable
        .map(|(reason, count)| (reason.to_owned(), count.into()))
        .collect();
    json!({
        "used": tier.is_used,
        "hits": tier.hits,
        "unusable": unusable,
        "led": tier.led,
        "followed": tier.followed,
        "given_up": tier.given_up,
        "unlocked": tier.unlocked,
        "skipped": tier.skipped,
        "errors": tier.errors,
        "stored": tier.stored,
        "overtaken": tier.overtaken,
        "dropped": tier.dropped,
        "too_large": tier.too_large,
        "unstored": tier.unstored,
        "queued": tier.queued,
    })
}
