//! Warnings about configurations that are valid and probably not intended; and the time between
//! statuses of the tips where the budget is small: they take about a quarter of it, or clients
//! would get nothing.

use std::time::Duration;

use super::{Config, limits};
use crate::cache::policy::Mode;
use crate::chain::{STANDBYS_SELDOM, TipSource};
use crate::route::{HeaderMode, Methods};
use crate::shared::EngineUrl;
use crate::units;
use crate::upstream::{DEFAULT, MIN_SHARED_SLOTS, ProviderKeys, Settings};

impl Config {
    /// What is valid and probably not intended, given the API keys.
    pub fn warnings(&self, keys: &ProviderKeys) -> Vec<String> {
        let mut warnings = Vec::new();
        for name in &self.unused_upstreams {
            if **name != *DEFAULT {
                warnings.push(format!(
                    "no route uses the upstream \"{name}\": upstreams.{name} has no effect; a route or a tip uses it with upstream = \"{name}\""
                ));
            }
        }
        if self.tokens.required && self.tokens.tokens.names.is_empty() {
            warnings.push(
                "clients.require_token is true and clients.token_file has no tokens: every request gets 401; make one with ordgate token new NAME"
                    .to_owned(),
            );
        }
        if self.tokens.required {
            self.warn_of_exact_routes(&mut warnings);
        }
        if self.trust.networks.is_empty() {
            let listeners = self.listeners.iter().filter(|one| one.proxy_protocol);
            warnings.extend(listeners.map(|one| format!(
                "the listener on {} has proxy_protocol = true, and clients.trusted_proxies is empty: nobody may connect to it; list the proxies",
                one.address
            )));
        }
        let server = &self.connections;
        if let Some(client) = server.per_client
            && u64::from(client.connections) >= server.max_connections
        {
            warnings.push(format!(
                "limit.connections, {}, is not below server.max_connections, {}: one client may hold them all",
                client.connections, server.max_connections
            ));
        }
        for (number, settings) in (0..).zip(&self.upstreams) {
            let with_keys = settings.sends_keys(!keys.of(settings).is_empty());
            self.warn_of_upstream(number, settings, with_keys, &mut warnings);
            if !with_keys && settings.has_own_rate() {
                warnings.push(format!(
                    "the limits of [{}] have no effect: its requests carry no API key, and only the use of a key is limited",
                    settings.table()
                ));
            }
        }
        let own = keys.own.iter();
        let own = own.map(|(name, keys)| (format!("upstreams.{name}"), keys));
        for (table, keys) in std::iter::once(("upstream".to_owned(), &keys.shared)).chain(own) {
            warnings.extend(keys.iter().filter_map(|key| {
                let (name, warning) = (key.name(), key.warning()?);
                Some(format!("the API key {name} of {table} {warning}"))
            }));
        }
        self.warn_of_probes(keys, &mut warnings);
        self.warn_of_rates(keys, &mut warnings);
        self.warn_of_replicas(keys, &mut warnings);
        if self.names_collector && !cfg!(feature = "otlp") {
            let text = "the environment names a collector of traces, but this ordgate is built without the cargo feature otlp: none are exported";
            warnings.push(text.to_owned());
        }
        warnings
    }

    /// Warns of routes that pass everything on, where a token is required.
    fn warn_of_exact_routes(&self, warnings: &mut Vec<String>) {
        let routes = self.routes.routes().iter();
        for route in routes.filter(|route| route.headers == HeaderMode::All) {
            let name = &route.name;
            warnings.push(format!(
                "clients.require_token is true, and answers of the route \"{name}\" keep the origin's cache-control (headers = \"all\"): a cache in front of ordgate may give public ones to clients without a token; let the origin send private"
            ));
            if route.request.methods == Methods::Any {
                warnings.push(format!(
                    "clients.require_token is true, and the route \"{name}\" passes OPTIONS on (methods = [\"*\"]): CORS preflights have no token and get 401, so pages of other origins cannot use it; list its methods"
                ));
            }
        }
    }

    fn warn_of_upstream(
        &self,
        number: u16,
        settings: &Settings,
        with_keys: bool,
        warnings: &mut Vec<String>,
    ) {
        let key = |key| settings.key(key);
        let routes = self.routes.routes().iter();
        let open = routes
            .filter(|route| route.headers == HeaderMode::All && route.upstream.number == number);
        if with_keys {
            warnings.extend(open.map(|route| format!(
                "the route \"{}\" passes every request on (headers = \"all\"), with the API key: every client can use all that the key allows",
                route.name
            )));
        }
        let has = |scheme: &str| {
            let mut urls = settings.urls.iter();
            urls.any(|url| url.scheme_str() == Some(scheme))
        };
        if with_keys && has("http") && has("https") {
            warnings.push(format!(
                "{} has https and http URLs: the API key is sent to each of them, and over http anyone on the way can read it",
                key("url")
            ));
        }
        let slots = settings.max_in_flight.get();
        if slots < MIN_SHARED_SLOTS {
            warnings.push(format!(
                "{} is {slots}: with fewer than {MIN_SHARED_SLOTS}, one client's slow requests can hold up all others; set at least {MIN_SHARED_SLOTS}",
                key("max_in_flight")
            ));
        }
    }

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

    /// Warns of tips that are read less often than is configured.
    fn warn_of_probes(&self, keys: &ProviderKeys, warnings: &mut Vec<String>) {
        let Some((longer, budget)) = self.longer_intervals(keys) else {
            return;
        };
        let tips = longer.iter().map(|(at, every)| {
            let name = &self.chain.tips[*at].name;
            format!("{name} every {}", units::format(*every))
        });
        let tips = tips.collect::<Vec<_>>().join(" and ");
        warnings.push(format!(
            "the tips would take more than a quarter of the budget, {budget} requests a minute: they are read less often, {tips}, and new blocks are seen later; raise requests_per_minute, or set chain.tip.*.every to these times"
        ));
    }

    /// Warns of upstreams that share API keys and have different rates.
    fn warn_of_rates(&self, keys: &ProviderKeys, warnings: &mut Vec<String>) {
        let shares = |settings: &&Settings| {
            let has_keys = !keys.shared.is_empty() && !keys.own.contains_key(&settings.name);
            settings.sends_keys(has_keys)
        };
        let mut sharing = self.upstreams.iter().filter(shares);
        let Some(first) = sharing.next() else {
            return;
        };
        let others = sharing.filter(|other| other.limits(true) != first.limits(true));
        warnings.extend(others.map(|other| {
            let key = "requests_per_minute and requests_per_second";
            format!(
                "{} and {} share API keys, and their {key} differ: the stricter ones apply to both, because a key has one budget; give one of them API keys of its own, or set its send_api_key = false",
                first.table(),
                other.table()
            )
        }));
    }

    /// Warns of what replicas lose.
    fn warn_of_replicas(&self, keys: &ProviderKeys, warnings: &mut Vec<String>) {
        let Some(shared) = &self.file.shared else {
            return;
        };
        if shared.engine.as_ref().is_some_and(EngineUrl::is_exposed) {
            warnings.push(
                "the engine's URL (ORDGATE_SHARED_URL or shared.url_file) names another machine without TLS: what replicas share can be read and changed on the way, and the password be read; use rediss://, or a socket in the file system (unix://)"
                    .to_owned(),
            );
        }
        if shared.engine.is_some() {
            // The engine gives what the floors leave.
            return;
        }
        let replicas = shared.replicas;
        for upstream in &self.upstreams {
            let has_keys = upstream.sends_keys(!keys.of(upstream).is_empty());
            warnings.extend(limits(upstream, has_keys).into_iter().filter_map(|(key, limit)| {
                let lost = limit % replicas;
                (lost > limit / 4).then(|| format!(
                    "{key} is {limit}, and each of the {replicas} replicas has {}: {lost} are not used; a multiple of {replicas} is used whole",
                    limit / replicas
                ))
            }));
        }
    }
}

#[cfg(test)]
mod tests;
