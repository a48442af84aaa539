//! The status of a tip that several replicas need: one asks for it, and the others take its
//! answer (`shared::tip`).

use std::sync::Arc;
use std::time::Duration;

use super::{Status, apply, ask};
use crate::chain::TipSource;
use crate::fill::Fill;
use crate::shared::tip::{SharedTips, TipLook};

/// The time from one status to the next while the engine does not answer: each replica asks
/// for itself.
const ALONE: Duration = Duration::from_secs(15);

/// A status, as replicas tell each other: the height and the tag.
type TipStatus = (u32, Option<Vec<u8>>);

/// Has a status of a tip applied that was asked less than `most` ago, here or by another
/// replica. Returns whether there was one, how long ago it was, and the time to the next.
pub(super) async fn look(
    fill: &Arc<Fill>,
    tips: &Arc<SharedTips>,
    (tip, source): (u16, &TipSource),
    most: Duration,
) -> (bool, Duration, Duration) {
    let upstream = fill.upstreams.get(source.upstream);
    let (endpoint, url) = upstream.selected_endpoint();
    let path = source.path.as_deref().unwrap_or_default();
    let name = format!("{url} {path}");
    let look = tips.look(&name, most).await;
    let every = match look {
        TipLook::Absent => source.every.max(ALONE),
        TipLook::Answer { .. } | TipLook::Ask(_) => source.every,
    };
    fill.chain
        .tip(tip)
        .change(|ledger| ledger.view.interval = every);
    if let TipLook::Answer { asked, answer } = &look
        && let Ok((height, tag)) = postcard::from_bytes::<TipStatus>(answer)
    {
        upstream.record_status(usize::from(endpoint), path, Some(height));
        let status = Status {
            start: None,
            sent: *asked,
            endpoint,
            height,
            tag,
        };
        apply(fill, tip, &status).await;
        return (true, fill.clock.now().since(*asked), every);
    }
    let status = ask(fill, tip).await;
    let is_known = status.is_some();
    if let (TipLook::Ask(claim), Some(Status { height, tag, .. })) =
        (look, status.filter(|status| status.endpoint == endpoint))
        && let Ok(answer) = postcard::to_allocvec::<TipStatus>(&(height, tag))
    {
        claim.store(&answer).await;
    }
    (is_known, Duration::ZERO, every)
}
