//! Warnings about configurations that are valid and probably not intended; and the time between
//! statuses of the tips where the budget is small: they take about a quarter of it, or clients
//! would get nothing.

use std::time::Duration;

use super::Config;
use crate::cache::policy::Mode;
use crate::chain::{STANDBYS_SELDOM, TipSource};
use crate::route::HeaderMode;
use crate::shared::EngineUrl;
use crate::units;
use crate::upstream::ProviderKeys;

impl Config {
    /// What is valid and probably not intended, given the API keys.
    pub fn warnings(&self, keys: &ProviderKeys) -> Vec<String> {
        let mut warnings = Vec::from_iter(self.lowered.clone());
        let is_used = |name: &String| self.upstreams.iter().any(|one| *one.name == **name);
        let unused = self.file.upstreams.keys().filter(|name| !is_used(name));
        warnings.extend(unused.map(|name| format!(
            "no route uses the upstream \"{name}\": upstreams.{name} has no effect; a route or a tip uses it with upstream = \"{name}\", as does the tip of that name"
        )));
        for (number, settings) in (0..).zip(&self.upstreams) {
            let with_keys = settings.sends_keys(!keys.of(settings).is_empty());
            if !with_keys && settings.has_own_rate() {
                warnings.push(format!(
                    "the limits of [{}] have no effect: its requests carry no API key, and only the use of a key is limited",
                    settings.table()
                ));
            }
            let routes = self.routes.routes().iter();
            let open = routes.filter(|route| {
                with_keys && route.headers == HeaderMode::All && route.upstream.number == number
            });
            warnings.extend(open.map(|route| format!(
                "the route \"{}\" passes every request on (headers = \"all\"), with the API key: every client can use all that the key allows",
                route.name
            )));
        }
        let own = keys.own.iter();
        let own = own.map(|(name, keys)| (format!("upstreams.{name}"), keys));
        for (table, keys) in std::iter::once(("upstream".to_owned(), &keys.shared)).chain(own) {
            warnings.extend(keys.iter().filter_map(|key| {
                let (name, warning) = (key.name(), key.warning()?);
                Some(format!("the API key {name} of {table} {warning}"))
            }));
        }
        warnings.extend(self.clone().fit_probes(keys));
        let shared = self.file.shared.as_ref();
        let engine = shared.and_then(|shared| shared.engine.as_ref());
        if engine.is_some_and(EngineUrl::is_exposed) {
            let text = "the engine's URL (ORDGATE_SHARED_URL or shared.url_file) names another machine without TLS: what replicas share can be read and changed on the way, and the password be read; use rediss://, or a socket in the file system (unix://)";
            warnings.push(text.to_owned());
        }
        if self.names_collector && !cfg!(feature = "otlp") {
            let text = "the environment names a collector of traces, but this ordgate is built without the cargo feature otlp: none are exported";
            warnings.push(text.to_owned());
        }
        warnings
    }

    /// Lengthens the time between statuses of the tips where they would take more than a
    /// quarter of a budget, given the API keys; says so.
    pub fn fit_probes(&mut self, keys: &ProviderKeys) -> Option<String> {
        let (longer, budget) = self.longer_intervals(keys)?;
        let fitted = longer.into_iter().map(|(at, every)| {
            let tip = &mut self.chain.tips[at];
            tip.every = every;
            format!("{} every {}", tip.name, units::format(every))
        });
        let fitted = fitted.collect::<Vec<_>>().join(" and ");
        Some(format!(
            "the tips would take more than a quarter of the budget, {budget} requests a minute: they are read less often, {fitted}, and new blocks are seen later; raise requests_per_minute, or set chain.tip.*.every to these times"
        ))
    }

    /// The tips that are to be read less often, by their numbers, each with the time between
    /// its statuses; and the budget of a minute that this is for. It is the smallest of any
    /// upstream, as though all upstreams shared their keys.
    fn longer_intervals(&self, keys: &ProviderKeys) -> Option<(Vec<(usize, Duration)>, u32)> {
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
        let shared = self.file.shared.as_ref();
        let alone = shared.filter(|shared| shared.engine.is_none());
        let least = least / alone.map_or(1, |shared| shared.replicas.get());
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

#[cfg(test)]
mod tests;
