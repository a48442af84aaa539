//! The time between statuses of the tips where the budget is small: they take about a
//! quarter of it, or clients would get nothing.

use std::time::Duration;

use super::Config;
use crate::cache::policy::Mode;
use crate::chain::{STANDBYS_SELDOM, TipSource};
use crate::upstream::ProviderKeys;

impl Config {
    /// Lengthens the time between statuses of the tips where they would take more than a
    /// quarter of a budget, given the API keys. The [warnings](Self::warnings) say so.
    pub fn fit_probes(&mut self, keys: &ProviderKeys) {
        let Some((longer, _)) = self.longer_intervals(keys) else {
            return;
        };
        for (at, every) in longer {
            self.chain.tips[at].every = every;
        }
    }

    /// The tips that are to be read less often, by their numbers, each with the time between
    /// its statuses; and the budget of a minute that this is for. It is the smallest of any
    /// upstream, as though all upstreams shared their keys.
    pub(super) fn longer_intervals(
        &self,
        keys: &ProviderKeys,
    ) -> Option<(Vec<(usize, Duration)>, u32)> {
        let budget = |number: u16| {
            let settings = &self.upstreams[usize::from(number)];
            let count = keys.of(settings).len() as u32;
            let of_key = settings.limits(count > 0).per_minute?;
            Some(of_key.saturating_mul(count))
        };
        let is_read = |at: usize, tip: &TipSource| {
            let mut routes = self.routes.routes().iter().map(|route| &route.cache);
            tip.path.is_some()
                && routes.any(|cache| cache.mode == Mode::Chain && usize::from(cache.tip) == at)
        };
        let tips = self.chain.tips.iter().enumerate();
        let tips = tips.filter(|(at, tip)| is_read(*at, tip) && budget(tip.upstream).is_some());
        let tips: Vec<_> = tips.collect();
        let least = tips
            .iter()
            .filter_map(|(_, tip)| budget(tip.upstream))
            .min()?;
        // With an engine, one of the replicas asks for all.
        let alone = self
            .file
            .shared
            .as_ref()
            .filter(|shared| shared.engine.is_none());
        let least = least / alone.map_or(1, |shared| shared.replicas().get());
        let probes = tips.iter().map(|(_, tip)| {
            let urls = self.upstreams[usize::from(tip.upstream)].urls.len();
            let standbys = urls.saturating_sub(1) as f64 / f64::from(STANDBYS_SELDOM);
            60.0 / tip.every.as_secs_f64() * (1.0 + standbys)
        });
        let excess = probes.sum::<f64>() / (f64::from(least.max(1)) / 4.0);
        let longer = tips.iter().map(|(at, tip)| {
            let seconds = tip.every.as_secs_f64() * excess;
            (*at, Duration::from_secs(seconds.ceil() as u64))
        });
        (excess > 1.0).then(|| (longer.collect(), least))
    }
}
