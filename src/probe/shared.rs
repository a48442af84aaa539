//! The status of a tip that several replicas need: one asks for it, and the others take its
//! answer (`shared::tip`).

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ProbeOutcome, Status, apply, send};
use crate::chain::TipSource;
use crate::fill::Fill;
use crate::shared::Shared;
use crate::shared::tip::TipLook;

/// The time from one status to the next while the engine does not answer: each replica asks
/// for itself.
const ALONE: Duration = Duration::from_secs(15);

/// A tip whose status replicas share.
pub(super) struct SharedTip {
    shared: Arc<Shared>,
    tip: u16,
    source: TipSource,
}

/// A status, as replicas tell each other.
#[derive(Serialize, Deserialize)]
struct TipStatus {
    height: u32,
    tag: Option<Vec<u8>>,
}

impl SharedTip {
    /// `None` if there is no engine.
    pub(super) fn new(fill: &Fill, tip: u16, source: &TipSource) -> Option<Self> {
        let shared = fill.lower.shared.clone()?;
        fill.lower.has_engine.then(|| Self {
            shared,
            tip,
            source: source.clone(),
        })
    }

    /// Has a status applied that was asked less than `most` ago, here or by another replica.
    /// Returns how long ago it was, and the time to the next.
    pub(super) async fn look(
        &mut self,
        fill: &Arc<Fill>,
        most: Duration,
    ) -> (ProbeOutcome, Duration, Duration) {
        let upstream = fill.upstreams.get(self.source.upstream);
        let (endpoint, url) = upstream.selected_endpoint();
        let path = self.source.path.as_deref().unwrap_or_default();
        let name = format!("{url} {path} {}", self.source.height);
        let look = self.shared.tips.look(&name, most).await;
        let every = match look {
            TipLook::Absent => self.source.every.max(ALONE),
            TipLook::Answer { .. } | TipLook::Ask(_) => self.source.every,
        };
        fill.chain.set_tip_interval(self.tip, every);
        if let TipLook::Answer { asked, answer } = &look
            && let Ok(status) = postcard::from_bytes::<TipStatus>(answer)
        {
            upstream.record_status(usize::from(endpoint), path, Some(status.height));
            let status = Status {
                start: None,
                sent: *asked,
                endpoint,
                height: status.height,
                tag: status.tag,
            };
            let outcome = apply(fill, self.tip, &status).await;
            return (outcome, fill.clock.now().since(*asked), every);
        }
        let (outcome, status) = send(fill, self.tip).await;
        if let (TipLook::Ask(claim), Some(status)) = (look, status)
            && status.endpoint == endpoint
            && let Ok(answer) = postcard::to_allocvec(&TipStatus {
                height: status.height,
                tag: status.tag,
            })
        {
            claim.store(&answer).await;
        }
        (outcome, Duration::ZERO, every)
    }
}
