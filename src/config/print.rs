//! The effective configuration, as `ordgate check` prints it: from the settings
//! that are in force, so that it shows what they are.

use toml::{Table, Value};

use super::{Config, routes, text};
use crate::units;
use crate::upstream::{DEFAULT, ProviderKeys};

impl Config {
    /// The effective configuration as a proxy.toml: every key that has a value. It
    /// has no secrets, because a [`Config`] has none.
    ///
    /// # Errors
    /// If a value cannot be written in TOML; none of ordgate's is such.
    pub fn print(&self, keys: &ProviderKeys) -> Result<String, toml::ser::Error> {
        Ok(text::file(&self.values(keys)?, false))
    }

    /// The same with the documentation of every key, and with the keys that have no
    /// value as comments.
    ///
    /// # Errors
    /// As [`print`](Self::print).
    pub fn print_all(&self, keys: &ProviderKeys) -> Result<String, toml::ser::Error> {
        Ok(text::file(&self.values(keys)?, true))
    }

    /// The values of all keys.
    pub(super) fn values(&self, keys: &ProviderKeys) -> Result<Table, toml::ser::Error> {
        let mut limit = Table::try_from(&self.limit)?;
        limit.extend(Table::try_from(self.per_client)?);
        let mut log = Table::try_from(&self.log)?;
        log.insert("access".into(), Value::try_from(&self.access_log)?);
        let mut answers = Table::try_from(&self.respond)?;
        let compression = Value::try_from(&self.compression)?;
        answers.insert("compression".into(), compression);
        let proxies = self.trust.networks.iter();
        let proxies: Vec<_> = proxies.map(ToString::to_string).collect();
        let mut clients = Table::from_iter([
            ("trusted_proxies".to_owned(), proxies.into()),
            ("proxy_field".to_owned(), self.trust.field().as_str().into()),
            ("require_token".to_owned(), self.tokens.required.into()),
        ]);
        if let Some(file) = &self.tokens.file {
            clients.insert("token_file".to_owned(), Value::try_from(file)?);
        }
        let routes = self.routes.routes().iter();
        let routes: Vec<_> = routes.map(|route| routes::print(route, self)).collect();
        let mut file = Table::from_iter([
            ("server".to_owned(), Value::try_from(&self.server)?),
            ("admin".to_owned(), Value::try_from(&self.admin)?),
            ("clients".to_owned(), clients.into()),
            ("answers".to_owned(), answers.into()),
            ("limit".to_owned(), limit.into()),
            ("cache".to_owned(), self.cache_values()?.into()),
            ("state".to_owned(), Value::try_from(&self.state)?),
            ("chain".to_owned(), self.chain_values()?.into()),
            ("log".to_owned(), log.into()),
            ("telemetry".to_owned(), Value::try_from(self.traces)?),
            ("route".to_owned(), routes.into()),
        ]);
        let mut listeners = Vec::new();
        for listener in &self.listeners {
            let mut values = Table::try_from(listener)?;
            if listener.address.tcp().is_some() {
                // It has no file.
                values.remove("mode");
            }
            listeners.push(values);
        }
        if !listeners.is_empty() {
            file.insert("listener".to_owned(), listeners.into());
        }
        if let Some(shared) = &self.shared {
            file.insert("shared".to_owned(), Value::try_from(shared)?);
        }
        let (default, named) = self.upstream_values(keys)?;
        if let Some(default) = default {
            file.insert("upstream".to_owned(), default.into());
        }
        file.insert("upstreams".to_owned(), named.into());
        Ok(file)
    }

    fn cache_values(&self) -> Result<Table, toml::ser::Error> {
        let mut cache = Table::try_from(self.failure_backoff)?;
        let max_bytes = units::format_size(self.cache_bytes);
        cache.insert("max_bytes".into(), max_bytes.into());
        cache.insert("stale_wait".into(), units::format(self.stale_wait).into());
        if let Some(name) = &self.targeted {
            cache.insert("targeted_field".into(), name.as_str().into());
        }
        Ok(cache)
    }

    fn chain_values(&self) -> Result<Table, toml::ser::Error> {
        let mut tips = Table::new();
        for tip in self.chain.tips.iter().filter(|tip| tip.path.is_some()) {
            tips.insert(tip.name.to_string(), Value::try_from(tip)?);
        }
        let mut chain = Table::try_from(&self.chain)?;
        chain.insert("tip".into(), tips.into());
        Ok(chain)
    }

    /// The values of `[upstream]`, if a route uses it or others have its keys, and of
    /// the named upstreams.
    fn upstream_values(
        &self,
        keys: &ProviderKeys,
    ) -> Result<(Option<Table>, Table), toml::ser::Error> {
        let mut default = None;
        let mut named = Table::new();
        for settings in &self.upstreams {
            let with_keys = !keys.of(settings).is_empty();
            let mut table = Table::try_from(settings.in_force(with_keys))?;
            let max_body_bytes = units::format_size(settings.max_body_bytes);
            table.insert("max_body_bytes".into(), max_body_bytes.into());
            if *settings.name != *DEFAULT && !settings.has_own_file {
                // Read again, it would be a file of this upstream alone.
                table.remove("api_keys_file");
            }
            match &*settings.name {
                DEFAULT => default = Some(table),
                name => drop(named.insert(name.to_owned(), table.into())),
            }
        }
        let mut sharing = self.upstreams.iter().filter(|one| !one.has_own_file);
        if let Some(file) = sharing.find_map(|settings| settings.api_keys_file.as_ref())
            && default.is_none()
        {
            // No route uses the default upstream, and the others have its keys.
            let file = Value::try_from(file)?;
            default = Some(Table::from_iter([("api_keys_file".to_owned(), file)]));
        }
        Ok((default, named))
    }
}
