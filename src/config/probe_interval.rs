//! The time between probes of the tips where the budget is small: they take about a
//! quarter of it, or clients would get nothing.

use std::time::Duration;

use super::Config;
use crate::cache::policy::Mode;
use crate::chain::STANDBYS_SELDOM;
use crate::route::Route;
use crate::upstream::{ProviderKeys, Settings};

/// The probes of upstreams that share a budget, which are more than a quarter of it.
pub(super) struct TooManyProbes {
    /// The numbers of the upstreams.
    pub(super) upstreams: Vec<u16>,
    /// Probes a minute.
    pub(super) probes: f64,
    /// What the budget is of.
    pub(super) of: String,
    /// Requests a minute.
    pub(super) budget: u32,
}

impl TooManyProbes {
    /// The time between probes that the budget allows, instead of this one. It is a whole
    /// number of seconds if it is longer than one.
    pub(super) fn lengthen(&self, every: Duration) -> Duration {
        let quarter = f64::from(self.budget.max(1)) / 4.0;
        let longer = every.mul_f64(self.probes / quarter);
        match longer > Duration::from_secs(1) {
            true => Duration::from_secs(longer.as_secs_f64().ceil() as u64),
            false => longer,
        }
    }
}

impl Config {
    /// Lengthens the time between probes of the tips where they would take more than a
    /// quarter of a budget, given the API keys. The [warnings](Self::warnings) say so.
    pub fn fit_probes(&mut self, keys: &ProviderKeys) {
        for found in self.too_many_probes(keys) {
            for tip in &mut self.chain.tips {
                if tip.path.is_some() && found.upstreams.contains(&tip.upstream) {
                    tip.every = found.lengthen(tip.every);
                }
            }
        }
    }

    /// Where probes would take more than a quarter of a budget.
    pub(super) fn too_many_probes(&self, keys: &ProviderKeys) -> Vec<TooManyProbes> {
        let shares = |settings: &Settings| {
            let has_keys = !keys.shared.is_empty() && !keys.own.contains_key(&settings.name);
            settings.sends_keys(has_keys)
        };
        let numbered = || (0_u16..).zip(&self.upstreams);
        let (sharing, alone): (Vec<_>, Vec<_>) = numbered().partition(|(_, one)| shares(one));
        let alone = alone.into_iter().map(|one| vec![one]);
        let groups = std::iter::once(sharing).chain(alone);
        groups
            .filter_map(|group| self.too_many_probes_of(&group, keys))
            .collect()
    }

    /// The same for upstreams that share a budget.
    fn too_many_probes_of(
        &self,
        group: &[(u16, &Settings)],
        keys: &ProviderKeys,
    ) -> Option<TooManyProbes> {
        let limit = |settings: &Settings| {
            let has_keys = settings.sends_keys(!keys.of(settings).is_empty());
            settings.limits(has_keys).per_minute
        };
        // The stricter limit holds for all.
        let limited = group
            .iter()
            .filter_map(|(_, one)| Some((limit(one)?, *one)));
        let (limit, settings) = limited.min_by_key(|(limit, _)| *limit)?;
        let sends_keys = settings.sends_keys(!keys.of(settings).is_empty());
        let count = match sends_keys {
            true => u32::try_from(keys.of(settings).len()).unwrap_or(u32::MAX),
            false => 1,
        };
        let all = limit.saturating_mul(count.max(1));
        // With an engine, one of the replicas asks for all.
        let replicas = self
            .file
            .shared
            .as_ref()
            .filter(|shared| shared.engine.is_none());
        let replicas = replicas.map_or(1, |shared| shared.replicas().get());
        let key = match count {
            0 | 1 => settings.key("requests_per_minute"),
            _ => format!("{} of {count} keys", settings.key("requests_per_minute")),
        };
        let found = TooManyProbes {
            upstreams: group.iter().map(|(number, _)| *number).collect(),
            probes: group
                .iter()
                .map(|(number, one)| self.probes_each_minute(*number, one))
                .sum(),
            of: match replicas {
                1 => key,
                _ => format!("a replica's part of {key} ({all} by {replicas})"),
            },
            budget: all / replicas,
        };
        (found.probes > f64::from(found.budget) / 4.0).then_some(found)
    }

    /// How many requests a minute an upstream gets for the tips that routes use, at all
    /// of its endpoints while they are healthy.
    fn probes_each_minute(&self, upstream: u16, settings: &Settings) -> f64 {
        let tips = self.chain.tips.iter().enumerate();
        let used = tips.filter(|(at, tip)| {
            let mut routes = self.routes.routes().iter();
            let goes_by = |route: &Route| {
                route.cache.mode == Mode::Chain && usize::from(route.cache.tip) == *at
            };
            tip.upstream == upstream && tip.path.is_some() && routes.any(goes_by)
        });
        let each = used.map(|(_, tip)| 60.0 / tip.every.as_secs_f64());
        let each: Vec<_> = each.collect();
        let own: f64 = each.iter().sum();
        let rounds = each.iter().copied().fold(0.0, f64::max) / f64::from(STANDBYS_SELDOM);
        let standbys = settings.urls.len().saturating_sub(1);
        own + standbys as f64 * rounds * each.len() as f64
    }
}
