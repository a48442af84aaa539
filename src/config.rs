//! proxy.toml: from the text of the file to checked settings.
//!
//! Each table of the file is a struct, of which serde makes the reader, `ordgate check` and
//! schemars the schema; its documentation is that of the struct. What is no TOML, of another
//! type, out of its bounds or unknown is reported with line and column; what makes no sense
//! together, by the names of the keys. Nothing is validated again later. The provider's API
//! keys are never in the file.

mod assign;
pub mod chain;
mod merge;
pub mod operation;
mod parameter;
mod probe_interval;
mod reference;
pub mod routes;
pub mod server;
#[cfg(test)]
mod tests;
pub mod upstream;
pub mod value;
mod warnings;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use http::{HeaderName, Uri};
pub use operation::SharedTable;
pub use reference::{KeyReference, TableReference, page, schema, tables};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use server::AdminTable;
use toml::de::DeTable;
pub use upstream::{UrlOverrides, base_url, is_name as is_upstream_name, without_user, wrong_host};

use crate::admin::host;
use crate::identify::TrustedProxies;
use crate::listener::{self, ListenAddress, ListenerSettings};
use crate::respond;
use crate::route::RouteTable;
use crate::upstream::DEFAULT;
use crate::{access_log, client_tokens, compress, limit, state, telemetry};
use merge::{has_value, located, merged};

/// The proxy.toml that the repository ships.
pub const SHIPPED: &str = include_str!("../proxy.toml");
/// Its name in messages.
pub const SHIPPED_NAME: &str = "proxy.toml (built in)";

/// proxy.toml. `ordgate check` prints it with the values that take effect.
#[expect(missing_docs, reason = "each table is documented at its type")]
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Whether the three routes of the built-in configuration are there beside those of the
    /// file. A route of the file that has the name of one of them changes the keys that it
    /// sets.
    pub builtin_routes: bool,
    pub server: server::ServerTable,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listener: Vec<server::ListenerTable>,
    pub admin: AdminTable,
    pub clients: server::ClientsTable,
    pub answers: server::AnswerTable,
    pub limit: server::LimitTable,
    pub cache: operation::CacheTable,
    pub state: operation::StateTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedTable>,
    pub chain: chain::ChainTable,
    pub upstream: upstream::UpstreamTable,
    /// More upstreams, for APIs that have servers of their own: `[upstreams.NAME]`.
    ///
    /// Each has all keys of `[upstream]`, and takes the ones that it does not set from there. A
    /// route or a tip uses it with upstream = "NAME"; its name is 1 to 32 of a-z, 0-9 and -.
    /// Each upstream has its own endpoints, connections, breakers, slots, queue, and retries,
    /// so the failures of one affect its own routes only. API keys are shared, and what a key
    /// has spent counts for all upstreams that it is sent to, unless an upstream sets an
    /// `api_keys_file` of its own, or the environment has ORDGATE_API_KEYS_NAME (the name in
    /// upper case, - as _).
    ///
    /// The reference indexer serves its two APIs on two ports. For it, `[upstreams.runes]` with a
    /// `url` is enough.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub upstreams: BTreeMap<String, upstream::UpstreamTable>,
    pub log: operation::LogTable,
    pub telemetry: operation::TelemetryTable,
    /// The kinds of requests that ordgate answers: `[[route]]`.
    ///
    /// The router, the validation of parameters, the cache key and /openapi.json are made from
    /// them.
    pub route: Vec<routes::RouteEntry>,
}

impl Default for File {
    fn default() -> Self {
        Self {
            builtin_routes: true,
            server: server::ServerTable::default(),
            listener: Vec::new(),
            admin: AdminTable::default(),
            clients: server::ClientsTable::default(),
            answers: server::AnswerTable::default(),
            limit: server::LimitTable::default(),
            cache: operation::CacheTable::default(),
            state: operation::StateTable::default(),
            shared: None,
            chain: chain::ChainTable::default(),
            upstream: upstream::UpstreamTable::default(),
            upstreams: BTreeMap::new(),
            log: operation::LogTable::default(),
            telemetry: operation::TelemetryTable::default(),
            route: Vec::new(),
        }
    }
}

/// Everything that is configured, checked. Settings have the types of the modules that use
/// them.
#[derive(Clone)]
pub struct Config {
    /// The file, with the values of flags and variables that take precedence.
    pub file: File,
    /// The public listeners.
    pub listeners: Vec<ListenerSettings>,
    /// How connections are served.
    pub connections: listener::Settings,
    /// The proxies whose forwarding fields are believed.
    pub trust: TrustedProxies,
    /// The tokens that clients may have. The token file is read by whoever reads the secrets.
    pub tokens: client_tokens::Settings,
    /// How many requests each client may send.
    pub limit: limit::Settings,
    /// A response field that takes precedence over `CDN-Cache-Control` (RFC 9213).
    pub targeted: Option<HeaderName>,
    /// Cache mode `chain`.
    pub chain: crate::chain::Settings,
    /// How each upstream is called; routes and tips have their numbers. Upstreams that no route
    /// uses are not among them.
    pub upstreams: Vec<crate::upstream::Settings>,
    /// The names of the upstreams that no route uses.
    pub unused_upstreams: Vec<Box<str>>,
    /// The requests that are answered.
    pub routes: RouteTable,
    /// Whether the environment names a collector, to which traces are exported.
    pub names_collector: bool,
    /// Whether the file sets a limit on clients; the built-in one counts as setting none.
    pub sets_limit: bool,
}

/// What flags and environment variables say in place of the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The addresses of the public listeners without settings of their own, if there are some.
    pub listen: Vec<ListenAddress>,
    /// The address of the admin listener.
    pub admin: Option<std::net::SocketAddr>,
    /// Base URLs of upstreams.
    pub urls: Vec<(Box<str>, Vec<Uri>)>,
    /// The number of replicas.
    pub replicas: Option<NonZeroU32>,
    /// The engine that replicas share.
    pub engine: Option<crate::shared::EngineUrl>,
}

impl Config {
    /// The shipped configuration.
    ///
    /// # Errors
    /// Never, as a test checks; the list is there for the caller's `?`.
    pub fn shipped() -> Result<Self, Vec<String>> {
        Self::parse(SHIPPED_NAME, SHIPPED)
    }

    /// Reads a file's text. What the file does not set has its default.
    ///
    /// # Errors
    /// What is wrong with the file: the first problem of its syntax and types, or all of what
    /// makes no sense together.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<String>> {
        Self::parse_with(name, text, &Overrides::default())
    }

    /// Reads a file's text as [`parse`](Self::parse) does, with values that take precedence.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn parse_with(name: &str, text: &str, overrides: &Overrides) -> Result<Self, Vec<String>> {
        let is_shipped = name == SHIPPED_NAME;
        let table = DeTable::parse(text).map_err(|error| vec![located(name, text, &error)])?;
        let has = |key: &str| !is_shipped && table.get_ref().get(key).is_some_and(has_value);
        let sets_limit = has("limit");
        let merged = merged(table, is_shipped);
        let mut file = File::deserialize(toml::de::Deserializer::from(merged))
            .map_err(|error| vec![located(name, text, &error)])?;
        overrides.apply(&mut file);
        file.upstream.fill();
        file.upstreams
            .values_mut()
            .for_each(upstream::UpstreamTable::fill);
        let mut problems = Vec::new();
        let mut config = Self::of_file(file, &mut problems);
        config.sets_limit = sets_limit;
        match problems.is_empty() {
            true => Ok(config),
            false => Err(problems
                .into_iter()
                .map(|why| format!("{name}: {why}"))
                .collect()),
        }
    }

    fn of_file(file: File, problems: &mut Vec<String>) -> Self {
        let upstreams = upstream::settings(&file.upstream, &file.upstreams, problems);
        let tips = file.chain.tips(&upstreams, problems);
        let zeros = file.chain.hash_zeros.small() as u8;
        let assigned = assign::assign(&file.route, tips, upstreams, zeros, problems);
        let listeners = server::listeners(&file.server, &file.listener, &file.admin, problems);
        check(&file, &assigned.upstreams, problems);
        let targeted = file.cache.targeted_field.as_deref().and_then(|field| {
            let name = HeaderName::try_from(field);
            if name.is_err() {
                problems.push(format!(
                    "cache.targeted_field is {field:?}; allowed is the name of a field"
                ));
            }
            name.ok()
        });
        let networks = file.clients.trusted_proxies.iter();
        let limit = &file.limit;
        Self {
            listeners,
            connections: file.server.connections(limit),
            trust: TrustedProxies {
                networks: networks.map(|network| network.0).collect(),
                write_forwarded: file.clients.proxy_field == server::ProxyField::Forwarded,
            },
            tokens: client_tokens::Settings {
                file: file.clients.token_file.clone(),
                required: file.clients.require_token,
                ..client_tokens::Settings::default()
            },
            limit: limit::Settings {
                enabled: limit.enabled,
                requests_per_minute: limit.requests_per_minute.positive(),
                burst: limit.burst.positive(),
                misses_per_minute: limit.misses_per_minute.small(),
            },
            targeted,
            chain: crate::chain::Settings {
                tips: assigned.tips,
                ..file.chain.settings()
            },
            upstreams: assigned.upstreams,
            unused_upstreams: assigned.unused,
            routes: assigned.routes,
            names_collector: false,
            sets_limit: true,
            file,
        }
    }

    /// The effective configuration as TOML.
    ///
    /// # Errors
    /// Never: every value can be written as TOML.
    pub fn print(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(&self.file)
    }

    /// What answers have beside the body.
    pub(crate) fn respond(&self) -> respond::Settings {
        let answers = &self.file.answers;
        respond::Settings {
            cors_origins: answers.cors_origins.clone(),
            cache_status_key: answers.cache_status_key,
            server_timing: answers.server_timing,
        }
    }

    /// How stored bodies are compressed.
    pub(crate) fn compression(&self) -> compress::Settings {
        compress::Settings {
            enabled: !self.file.answers.compression.is_empty(),
            min_bytes: 1 << 10,
            codings: self.file.answers.compression.clone(),
        }
    }

    /// What is kept on disk, if anything.
    pub(crate) fn state(&self) -> Option<state::Settings> {
        Some(state::Settings {
            path: self.file.state.path.clone()?,
            max_bytes: *self.file.state.max_bytes,
        })
    }

    /// What is logged.
    pub fn log(&self) -> telemetry::Settings {
        self.file.log.settings()
    }

    /// The line for each request.
    pub(crate) fn access_log(&self) -> access_log::Settings {
        self.file.log.access.settings()
    }

    /// The share of requests that are traced; `None` if traces are not exported.
    pub(crate) fn traced_share(&self) -> Option<f64> {
        let is_exported = self.names_collector && cfg!(feature = "otlp");
        is_exported.then_some(self.file.telemetry.sample)
    }

    /// Lifts the limits on clients' requests, for load tests of a sandbox: if the file sets none, and
    /// only this machine can reach the listeners. A unix socket and a trusted proxy may pass on the
    /// requests of others, so there must be neither.
    pub fn lift_limits(&mut self) {
        let is_local = |one: &ListenerSettings| one.address.is_loopback() && !one.proxy_protocol;
        let has_proxies = !self.trust.networks.is_empty();
        if self.sets_limit || has_proxies || !self.listeners.iter().all(is_local) {
            return;
        }
        self.limit.requests_per_minute = LIFTED;
        self.limit.burst = LIFTED;
        self.limit.misses_per_minute = 0;
        self.file.limit.lift(LIFTED);
    }

    /// Whether the limits on clients are lifted.
    pub fn has_lifted_limits(&self) -> bool {
        self.limit.requests_per_minute == LIFTED && !self.sets_limit
    }

    /// The name of the upstream of a number.
    pub fn upstream_name(&self, number: u16) -> &str {
        let settings = self.upstreams.get(usize::from(number));
        settings.map_or(DEFAULT, |settings| &settings.name)
    }

    /// Makes a sandbox the upstream in place of all others, if one is given.
    pub fn use_sandbox(&mut self, sandbox: Option<&SandboxUpstream>) {
        for settings in &mut self.upstreams {
            if let Some((url, content)) = sandbox {
                settings.urls = vec![url.clone()];
                settings.content = Some(content.clone());
            }
        }
    }
}

impl Overrides {
    fn apply(&self, file: &mut File) {
        if !self.listen.is_empty() {
            file.server.listen = Some(value::OneOrMore(self.listen.clone()));
        }
        file.admin.listen = self.admin.unwrap_or(file.admin.listen);
        for (name, urls) in &self.urls {
            let default = &mut file.upstream;
            match &**name {
                DEFAULT => {
                    let before = default.clone();
                    default.set_urls(urls);
                    let inherited = file.upstreams.values_mut();
                    let inherited = inherited.filter(|own| own.has_urls_of(&before));
                    inherited.for_each(|own| own.set_urls(urls));
                }
                name => {
                    let named = file.upstreams.entry(name.to_owned());
                    named.or_insert_with(|| default.clone()).set_urls(urls);
                }
            }
        }
        if self.replicas.is_some() || self.engine.is_some() {
            let shared = file.shared.get_or_insert_default();
            if let Some(replicas) = self.replicas {
                shared.replicas = Some(value::Count(u64::from(replicas.get())));
            }
            shared.engine.clone_from(&self.engine);
        }
    }
}

/// Says what makes no sense together, or what only looks like a value.
fn check(file: &File, upstreams: &[crate::upstream::Settings], problems: &mut Vec<String>) {
    let clients = &file.clients;
    if clients.require_token && clients.token_file.is_none() {
        problems.push(
            "clients.require_token is true; it takes a clients.token_file with the tokens".into(),
        );
    }
    if !telemetry::is_filter(file.log.level()) {
        problems.push(format!(
            "log.level is {:?}; allowed is {}",
            file.log.level(),
            telemetry::FILTER
        ));
    }
    if !(0.0..=1.0).contains(&file.telemetry.sample) {
        problems.push(format!(
            "telemetry.sample is {}; allowed is a number from 0 to 1",
            file.telemetry.sample
        ));
    }
    for name in file.admin.hosts.iter().filter(|name| !host::is_name(name)) {
        problems.push(format!(
            "admin.hosts has {name:?}; allowed is a host name without a port, such as \"ordgate.internal\""
        ));
    }
    if let Some(shared) = &file.shared {
        shared.check(upstreams, problems);
    }
}

/// The limits of an upstream's API keys, by the names of their keys.
fn limits(upstream: &crate::upstream::Settings, has_keys: bool) -> Vec<(String, u32)> {
    let limits = upstream.limits(has_keys);
    let limits = [
        ("requests_per_minute", limits.per_minute),
        ("requests_per_second", limits.per_second),
    ];
    let limit = |(key, limit): (&str, Option<u32>)| Some((upstream.key(key), limit?));
    limits.into_iter().filter_map(limit).collect()
}

/// The requests per minute of a client whose limit is lifted: the most that a file may set.
const LIFTED: NonZeroU32 = NonZeroU32::new(60_000_000).expect("it is not 0");

/// A sandbox: its URL, and what all its answers follow from.
pub type SandboxUpstream = (Uri, Box<str>);
