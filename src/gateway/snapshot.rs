//! What `/status`, `/readyz`, `/metrics` and the probes read of a gateway: its
//! tips, and its paged routes.

use std::time::Duration;

use serde_json::Value;

use super::Gateway;
use crate::cache::policy::Mode;
use crate::chain::Progress;
use crate::chain::tip::Tip;

impl Gateway {
    /// The numbers of the tips that are probed: a route uses them, and they have a
    /// status path.
    pub(crate) fn tips(&self) -> Vec<u16> {
        let chain = &self.fill.chain;
        let has_path = |tip: &u16| chain.tip(*tip).source.path.is_some();
        let mut tips: Vec<_> = self.used_tips().filter(has_path).collect();
        tips.sort_unstable();
        tips.dedup();
        tips
    }

    /// The numbers of the probed tips of an upstream.
    pub(crate) fn tips_of(&self, upstream: u16) -> Vec<u16> {
        let mut tips = self.tips();
        let chain = &self.fill.chain;
        tips.retain(|tip| chain.tip(*tip).source.upstream == upstream);
        tips
    }

    /// What `/status` shows of the tips that have a status path or that a route uses.
    pub(crate) fn tip_snapshots(&self) -> Vec<Value> {
        let (now, probed) = (self.clock.now(), self.tips());
        let is_used = |tip| self.used_tips().any(|used| used == tip);
        let mut shown: Vec<_> = self.fill.chain.tips().collect();
        shown.retain(|(number, tip)| tip.source.path.is_some() || is_used(*number));
        let snapshot = |(number, tip): (u16, &Tip)| tip.snapshot(probed.contains(&number), now);
        shown.into_iter().map(snapshot).collect()
    }

    /// Why the gateway is not ready, as lines: a wrong or missing upstream shows first in a
    /// tip that has never been known.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let probed = self.tips().into_iter();
        let unknown = probed.map(|tip| self.fill.chain.tip(tip));
        let unknown = unknown.filter(|tip| !tip.was_known());
        let lines = unknown.map(|tip| {
            let trouble = tip.read(|ledger| ledger.trouble.clone());
            let trouble = trouble.as_deref().unwrap_or("no answer yet");
            let (name, upstream) = (&tip.source.name, &tip.source.upstream_name);
            format!(
                "the tip \"{name}\" of the upstream \"{upstream}\" has never been known: {trouble}"
            )
        });
        lines.collect()
    }

    /// Waits until the first status of each tip has come or failed, at most for a time.
    pub(crate) async fn first_statuses(&self, max_wait: Duration) {
        let tips = self.tips().into_iter();
        let each = tips.map(|tip| self.fill.chain.tip(tip).reach(Progress::Probed, max_wait));
        futures_util::future::join_all(each).await;
    }

    /// The tips that routes use, one for each route.
    fn used_tips(&self) -> impl Iterator<Item = u16> {
        let routes = self.routes.routes().iter();
        let chained = routes.filter(|route| route.cache.mode == Mode::Chain);
        chained.map(|route| route.cache.tip)
    }
}
