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
mod parameter;
mod reference;
pub mod routes;
pub mod server;
#[cfg(test)]
mod tests;
mod warnings;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Uri;
pub use reference::{page, schema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use server::AdminTable;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

use crate::admin::host;
use crate::client_tokens::TokenFile;
use crate::identify::TrustedProxies;
use crate::limit;
use crate::listener::{self, ListenerSettings};
use crate::route::RouteTable;
use crate::{respond, shared, state, telemetry, upstream};
use merge::{located, merged};

/// The proxy.toml that the repository ships.
pub const SHIPPED: &str = include_str!("../proxy.toml");
/// Its name in messages.
pub const SHIPPED_NAME: &str = "proxy.toml (built in)";

/// proxy.toml. `ordgate check` prints it with the values that take effect.
#[expect(missing_docs, reason = "each table is documented at its type")]
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Whether the three routes of the built-in configuration are there beside those of the
    /// file. A route of the file that has the name of one of them changes the keys that it
    /// sets. They are there unless this is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builtin_routes: Option<bool>,
    /// How much of the API there is: "typed", the three built-in routes; or "all", which adds
    /// routes for everything else below /ordinals/v1/ and /runes/v1/.
    ///
    /// Their answers have any content type and are kept until the indexer's tip moves, an
    /// inscription's content for a day; the query goes up as it was sent. What inscribers wrote
    /// may be scripts, so these routes are `untrusted`. Whoever can use the gateway can then ask for all that
    /// the API key allows below these paths. A route of the file that has the name of one of
    /// them (docs/caching.md) changes the keys that it sets.
    pub api: Api,
    pub server: server::ServerTable,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listener: Vec<ListenerSettings>,
    pub admin: AdminTable,
    pub clients: server::ClientsTable,
    pub answers: respond::Settings,
    pub limit: limit::Settings,
    pub cache: server::CacheTable,
    pub state: server::StateTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<shared::Settings>,
    pub chain: chain::ChainTable,
    pub upstream: upstream::Settings,
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
    pub upstreams: BTreeMap<String, upstream::Settings>,
    pub log: telemetry::Settings,
    pub telemetry: server::TelemetryTable,
    /// The kinds of requests that ordgate answers: `[[route]]`.
    ///
    /// The router, the validation of parameters, the cache key and /openapi.json are made from
    /// them.
    pub route: Vec<routes::RouteEntry>,
}

/// How much of the API there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Api {
    /// The three built-in routes.
    #[default]
    Typed,
    /// Everything.
    All,
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
    /// The tokens that clients may have, if there is a token file; whoever reads the secrets reads
    /// it.
    pub tokens: Option<Arc<TokenFile>>,
    /// Cache mode `chain`.
    pub chain: crate::chain::Settings,
    /// How each upstream is called; routes and tips have their numbers. Upstreams that no route
    /// uses are not among them.
    pub upstreams: Vec<upstream::Settings>,
    /// The requests that are answered.
    pub routes: RouteTable,
    /// What the limits of this machine have lowered, for the warnings.
    pub lowered: Option<String>,
    /// Whether the environment names a collector, to which traces are exported.
    pub names_collector: bool,
}

impl Config {
    /// Reads a file's text. What the file does not set has its default.
    ///
    /// # Errors
    /// What is wrong with the file: the first problem of its syntax and types, or all of what
    /// makes no sense together.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<String>> {
        Self::parse_with(name, text, "")
    }

    /// Reads a file's text as [`parse`](Self::parse) does. The lines of `overrides`, such as
    /// `server.workers = 2`, take precedence over it.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn parse_with(name: &str, text: &str, overrides: &str) -> Result<Self, Vec<String>> {
        let problem = |error| vec![located(name, text, &error)];
        let table = DeTable::parse(text).map_err(problem)?.into_inner();
        let above = DeTable::parse(overrides).map_err(problem)?.into_inner();
        let merged = Spanned::new(0..text.len(), merged(above, table));
        let mut file = File::deserialize(Deserializer::from(merged)).map_err(problem)?;
        if file.server.listen.is_empty() && file.listener.is_empty() {
            file.server.listen.push(server::PUBLIC.into());
        }
        let mut problems = Vec::new();
        let assigned = assign::assign(&file, &mut problems);
        let listeners = server::listeners(&file, &mut problems);
        check(&file, &assigned.upstreams, &mut problems);
        if !problems.is_empty() {
            let named = problems.into_iter().map(|why| format!("{name}: {why}"));
            return Err(named.collect());
        }
        let clients = &file.clients;
        Ok(Self {
            listeners,
            connections: file.server.connections(&file.limit),
            trust: TrustedProxies {
                networks: clients.trusted_proxies.clone(),
                write_forwarded: clients.proxy_field == server::ProxyField::Forwarded,
            },
            tokens: clients.token_file.as_ref().map(|_| Arc::default()),
            chain: crate::chain::Settings {
                times: file.chain.finality(),
                tips: assigned.tips,
            },
            upstreams: assigned.upstreams,
            routes: assigned.routes,
            lowered: None,
            names_collector: false,
            file,
        })
    }

    /// What is kept on disk, if anything.
    pub(crate) fn state(&self) -> Option<state::Settings> {
        Some(state::Settings {
            path: self.file.state.path.clone()?,
            max_bytes: self.file.state.max_bytes,
        })
    }

    /// The share of requests that are traced; `None` if traces are not exported.
    pub(crate) fn traced_share(&self) -> Option<f64> {
        let is_exported = self.names_collector && cfg!(feature = "otlp");
        is_exported.then_some(self.file.telemetry.sample)
    }

    /// Lifts the limits on clients, for load tests of a sandbox: if the file has the usual ones,
    /// and only this machine can reach the listeners. A unix socket and a trusted proxy may pass
    /// on the requests of others, so there must be neither.
    pub fn lift_limits(&mut self) {
        let is_local = |one: &ListenerSettings| one.address.is_loopback() && !one.proxy_protocol;
        let limit = &mut self.file.limit;
        if *limit == limit::Settings::default()
            && self.trust.networks.is_empty()
            && self.listeners.iter().all(is_local)
        {
            limit.enabled = false;
            self.connections = self.file.server.connections(limit);
        }
    }

    /// Makes a sandbox the upstream in place of all others.
    pub fn use_sandbox(&mut self, (url, content): &SandboxUpstream) {
        for settings in &mut self.upstreams {
            settings.urls = vec![url.clone()];
            settings.content = Some(content.clone());
        }
    }
}

/// Says what makes no sense together, or what only looks like a value.
fn check(file: &File, upstreams: &[upstream::Settings], problems: &mut Vec<String>) {
    let clients = &file.clients;
    refuse(
        problems,
        clients.require_token && clients.token_file.is_none(),
        "clients.require_token is true; it takes a clients.token_file with the tokens",
    );
    for one in file.listener.iter().filter(|one| one.proxy_protocol) {
        refuse(
            problems,
            clients.trusted_proxies.is_empty(),
            format!(
                "the listener on {} has proxy_protocol = true, and clients.trusted_proxies is empty: nobody may connect to it; list the proxies",
                one.address
            ),
        );
    }
    let level = &file.log.level;
    refuse(
        problems,
        telemetry::filter(level).is_none(),
        format!("log.level is {level:?}; allowed is {}", telemetry::FILTER),
    );
    let sample = file.telemetry.sample;
    refuse(
        problems,
        !(0.0..=1.0).contains(&sample),
        format!("telemetry.sample is {sample}; allowed is a number from 0 to 1"),
    );
    for name in &file.admin.hosts {
        refuse(
            problems,
            !host::is_name(name),
            format!(
                "admin.hosts has {name:?}; allowed is a host name without a port, such as \"ordgate.internal\""
            ),
        );
    }
    for (name, tip) in &file.chain.tip {
        let path = &tip.path;
        let is_plain = path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        refuse(
            problems,
            !path.starts_with('/') || !is_plain,
            format!(
                "chain.tip.{name}.path is {path:?}; allowed is a path on the upstream, such as \"/runes/v1/\""
            ),
        );
    }
    let Some(replicas) = file.shared.as_ref().map(|shared| shared.replicas.get()) else {
        return;
    };
    for upstream in upstreams {
        // As though there were keys.
        let limits = upstream.limits(true);
        for (key, limit) in [
            ("requests_per_minute", limits.per_minute),
            ("requests_per_second", limits.per_second),
        ] {
            let limit = limit.unwrap_or(u32::MAX);
            refuse(
                problems,
                limit < replicas,
                format!(
                    "shared.replicas is {replicas}, and {} is {limit}: each replica's part would be 0 requests: lower shared.replicas, or raise that limit",
                    upstream.key(key)
                ),
            );
        }
    }
}

/// Adds a problem, where something is wrong.
fn refuse(problems: &mut Vec<String>, is_wrong: bool, why: impl Into<String>) {
    if is_wrong {
        problems.push(why.into());
    }
}

/// A sandbox: its URL, and what all its answers follow from.
pub type SandboxUpstream = (Uri, Box<str>);
