//! What `/status`, `/readyz`, `/metrics` and the probes read of a gateway: its
//! tips, and its paged routes.

use std::time::Duration;

use super::Gateway;
use crate::cache::policy::Mode;
use crate::chain::{Progress, TipSnapshot};

impl Gateway {
    /// The numbers of the tips that are probed: a route uses them, and they have a
    /// status path.
    pub(crate) fn tips(&self) -> Vec<u16> {
        let chain = &self.fill.chain;
        let has_path = |tip: &u16| chain.source(*tip).is_some_and(|tip| tip.path.is_some());
        let mut tips: Vec<_> = self.used_tips().filter(has_path).collect();
        tips.sort_unstable();
        tips.dedup();
        tips
    }

    /// The numbers of the probed tips of an upstream.
    pub(crate) fn tips_of(&self, upstream: u16) -> Vec<u16> {
        let mut tips = self.tips();
        let chain = &self.fill.chain;
        tips.retain(|tip| {
            let source = chain.source(*tip);
            source.is_some_and(|source| source.upstream == upstream)
        });
        tips
    }

    /// The tips that have a status path or that a route uses. Whether one is known is said only
    /// of those that are probed.
    pub(crate) fn tip_snapshots(&self) -> Vec<TipSnapshot> {
        let (used, probed): (Vec<_>, _) = (self.used_tips().collect(), self.tips());
        let all = (0..).zip(self.fill.chain.snapshots(self.clock.now()));
        let shown = all.filter(|(number, tip)| tip.path.is_some() || used.contains(number));
        let shown = shown.map(|(number, mut tip)| {
            if !probed.contains(&number) {
                (tip.known, tip.known_once) = (None, None);
            }
            tip
        });
        shown.collect()
    }

    /// Why the gateway is not ready, as lines: a wrong or missing upstream shows first in a
    /// tip that has never been known.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let mut tips = self.tip_snapshots();
        tips.retain(|tip| tip.known_once == Some(false));
        let lines = tips.into_iter().map(|tip| {
            let trouble = tip.trouble.as_deref().unwrap_or("no answer yet");
            format!(
                "the tip \"{}\" of the upstream \"{}\" has never been known: {trouble}",
                tip.name, tip.upstream
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
