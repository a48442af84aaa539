//! The effective configuration, as `ordgate check` prints it.

use serde::Serialize;

use super::{Admin, Config, Server, routes};
use crate::upstream::{DEFAULT, ProviderKeys};
use crate::{access_log, limit, listener, respond, telemetry, units};

impl Config {
    /// The effective configuration as a proxy.toml: every key said. There is
    /// no secret in it, since none is in a [`Config`].
    ///
    /// # Errors
    /// Where a value cannot be spelt in TOML; none of ours is such.
    pub fn print(&self, keys: &ProviderKeys) -> Result<String, toml::ser::Error> {
        #[derive(Serialize)]
        struct Log<'a> {
            #[serde(flatten)]
            log: &'a telemetry::Settings,
            access: &'a access_log::Settings,
        }
        #[derive(Serialize)]
        struct Limit<'a> {
            #[serde(flatten)]
            limit: &'a limit::Settings,
            #[serde(flatten)]
            per_client: listener::PerClient,
        }
        #[derive(Serialize)]
        struct File<'a> {
            server: &'a Server,
            admin: &'a Admin,
            clients: toml::Table,
            answers: &'a respond::Settings,
            limit: Limit<'a>,
            cache: toml::Table,
            chain: toml::Table,
            #[serde(skip_serializing_if = "Option::is_none")]
            upstream: Option<toml::Table>,
            upstreams: toml::Table,
            log: Log<'a>,
            route: Vec<toml::Value>,
        }
        let size = |bytes| toml::Value::from(units::format_size(bytes));
        let mut default = None;
        let mut upstreams = toml::Table::new();
        for settings in &self.upstreams {
            let with_keys = !keys.of(settings).is_empty();
            let mut table = toml::Table::try_from(settings.in_force(with_keys))?;
            table.insert("max_body_bytes".into(), size(settings.max_body_bytes));
            if *settings.name != *DEFAULT && !settings.has_own_keys_file {
                // Read again, it would be a file of the upstream's own.
                table.remove("api_keys_file");
            }
            match &*settings.name {
                DEFAULT => default = Some(table),
                name => drop(upstreams.insert(name.to_owned(), table.into())),
            }
        }
        let shares = |settings: &&crate::upstream::Settings| !settings.has_own_keys_file;
        let mut sharing = self.upstreams.iter().filter(shares);
        if let Some(file) = sharing.find_map(|settings| settings.api_keys_file.as_ref())
            && default.is_none()
        {
            // Nothing asks the default upstream, and the others have its keys.
            let file = toml::Value::try_from(file)?;
            default = Some(toml::Table::from_iter([("api_keys_file".to_owned(), file)]));
        }
        let mut cache = toml::Table::new();
        cache.insert("max_bytes".into(), size(self.cache_bytes));
        cache.insert("stale_wait".into(), units::format(self.stale_wait).into());
        cache.extend(toml::Table::try_from(self.lapses)?);
        if let Some(name) = &self.targeted {
            cache.insert("targeted_field".into(), name.as_str().into());
        }
        let mut chain = toml::Table::try_from(&self.chain)?;
        let mut tips = toml::Table::new();
        let named = self.chain.tips.iter().filter(|tip| tip.path.is_some());
        for tip in named {
            tips.insert(tip.name.to_string(), toml::Value::try_from(tip)?);
        }
        chain.insert("tip".into(), tips.into());
        let proxies = self
            .trust
            .networks
            .iter()
            .map(|net| toml::Value::from(net.to_string()));
        let proxies = proxies.collect::<Vec<_>>();
        toml::to_string_pretty(&File {
            server: &self.server,
            admin: &self.admin,
            clients: toml::Table::from_iter([("trusted_proxies".to_owned(), proxies.into())]),
            answers: &self.respond,
            limit: Limit {
                limit: &self.limit,
                per_client: self.per_client,
            },
            cache,
            chain,
            upstream: default,
            upstreams,
            log: Log {
                log: &self.log,
                access: &self.access_log,
            },
            route: self
                .routes
                .routes()
                .iter()
                .map(|route| routes::print(route, self))
                .collect(),
        })
    }
}
