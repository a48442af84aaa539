//! proxy.toml: from the text of the file to checked settings. Only this module
//! knows the file; each setting's type belongs to the module that uses it.
//!
//! The keys are declared in one place, a table for each part of the file (see
//! [`key`]): name, type, bounds, default and documentation. The reader, `ordgate
//! check --all`, the shipped proxy.toml and `ordgate schema` are made from that.
//!
//! A file is read whole, and all its problems are reported at once, each with line
//! and column. Nothing is validated again later. The provider's API keys are never
//! in the file.

mod assign;
mod cache;
mod chain;
mod clients;
mod containers;
mod file;
mod key;
mod kinds;
mod log;
mod pattern;
mod print;
mod probe_interval;
mod problem;
mod reference;
mod routes;
mod schema;
mod server;
mod shared;
mod shipped;
mod state;
mod telemetry;
mod text;
mod upstream;
mod warnings;

use std::num::NonZeroU32;
use std::time::Duration;

use http::{HeaderName, Uri};
pub use key::nearest;
pub use kinds::without_user;
pub use problem::{ConfigProblem, KeyPositions};
pub use reference::{ReferenceKey, ReferenceTable, reference, reference_page};
pub use schema::schema;
pub use server::{AdminSettings, Runtime, ServerSettings};
pub use shared::{ReplicaOverrides, ReplicaSettings, replica_count};
pub use shipped::shipped_text;
pub use state::StateSettings;
use toml::de::{DeTable, DeValue};
pub use upstream::{UrlOverrides, base_url, is_name as is_upstream_name, wrong_host};

use self::chain::Tips;
use self::file::File;
use self::key::KeyTable as _;
use self::problem::{FileSpan, Path, Problems};
use crate::fill::failure_backoff;
use crate::identify::TrustedProxies;
use crate::listener::ListenerSettings;
use crate::route::RouteTable;
use crate::telemetry::otlp::CollectorSettings;
use crate::trace::tracer;
use crate::upstream::DEFAULT;
use crate::{access_log, client_tokens, limit, listener, respond};

/// The proxy.toml that the repository ships.
pub const SHIPPED: &str = include_str!("../proxy.toml");
/// Its name in messages.
pub const SHIPPED_NAME: &str = "proxy.toml (built in)";

/// Everything that is configured, checked.
#[derive(Clone)]
pub struct Config {
    /// Sockets, threads and connections.
    pub server: ServerSettings,
    /// The listeners that have settings of their own.
    pub listeners: Vec<ListenerSettings>,
    /// The admin listener.
    pub admin: AdminSettings,
    /// The proxies whose forwarding fields are believed.
    pub trust: TrustedProxies,
    /// The tokens that clients may have. The token file is read by whoever reads the
    /// secrets.
    pub tokens: client_tokens::Settings,
    /// What answers have beside the body.
    pub respond: respond::Settings,
    /// How stored bodies are compressed.
    pub compression: crate::compress::Settings,
    /// How many requests each client may send.
    pub limit: limit::Settings,
    /// Whether the file sets a limit on clients; the built-in one counts as setting none.
    pub sets_limit: bool,
    /// What each client may hold, if clients are limited.
    pub per_client: listener::PerClient,
    /// The most memory for stored responses, in bytes.
    pub cache_bytes: u64,
    /// How long a client waits for a fresh answer before it gets a stale one.
    pub stale_wait: Duration,
    /// How long failures are remembered.
    pub failure_backoff: failure_backoff::Settings,
    /// A response field that takes precedence over `CDN-Cache-Control` (RFC 9213).
    pub targeted: Option<HeaderName>,
    /// What is kept on disk.
    pub state: StateSettings,
    /// What several replicas share, if there are several.
    pub shared: Option<ReplicaSettings>,
    /// Cache mode `chain`.
    pub chain: crate::chain::Settings,
    /// How each upstream is called; routes and tips have their numbers. Upstreams
    /// that no route uses are not among them.
    pub upstreams: Vec<crate::upstream::Settings>,
    /// The names of the upstreams that no route uses.
    pub unused_upstreams: Vec<Box<str>>,
    /// What is logged.
    pub log: crate::telemetry::Settings,
    /// The line for each request.
    pub access_log: access_log::Settings,
    /// Which requests are traced.
    pub traces: tracer::Settings,
    /// Where traces are exported to, if anywhere. It is in the environment.
    pub collector: Option<CollectorSettings>,
    /// The requests that are answered.
    pub routes: RouteTable,
    /// Whether the file sets any key; the built-in one counts as setting none.
    pub sets_keys: bool,
    /// Where the file sets its keys; none of the built-in file.
    pub positions: KeyPositions,
}

impl Config {
    /// The shipped configuration.
    ///
    /// # Errors
    /// Never, as a test checks; the list is there for the caller's `?`.
    pub fn shipped() -> Result<Self, Vec<ConfigProblem>> {
        Self::parse(SHIPPED_NAME, SHIPPED)
    }

    /// Reads a file's text. What the file does not set is as in the shipped file,
    /// also the routes.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn parse(file: &str, text: &str) -> Result<Self, Vec<ConfigProblem>> {
        Self::parse_with(file, text, &[], &ReplicaOverrides::default())
    }

    /// Reads a file's text as [`parse`](Self::parse) does. The base URLs of
    /// `overrides` replace those of the file; an upstream that only they name is
    /// otherwise like the default one. Values of `shared` take precedence, too.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn parse_with(
        name: &str,
        text: &str,
        overrides: &UrlOverrides,
        shared: &ReplicaOverrides,
    ) -> Result<Self, Vec<ConfigProblem>> {
        let problems = Problems::new(name, text);
        let (root, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            // What is left of a table that is not TOML is not the user's.
            for error in errors {
                problems.add(&error.span().unwrap_or_default(), error.message());
            }
            return Err(problems.into_list());
        }
        let path = Path::root(&problems);
        let file = File::read(&path, &root.span(), root.get_ref());
        let is_limited = file.limit.is_set() && name != SHIPPED_NAME;
        let mut config = Self::of_file(file, &path, overrides, shared);
        config.sets_limit = is_limited;
        config.sets_keys = name != SHIPPED_NAME && has_value(root.get_ref());
        if !problems.is_empty() {
            return Err(problems.into_list());
        }
        if name != SHIPPED_NAME {
            config.positions = problems.key_positions();
            for settings in &config.upstreams {
                if overrides.iter().any(|(name, _)| *name == settings.name) {
                    config.positions.replaced(&settings.key("url"));
                }
            }
        }
        Ok(config)
    }

    fn of_file(
        mut file: File,
        root: &Path<'_>,
        overrides: &UrlOverrides,
        shared: &ReplicaOverrides,
    ) -> Self {
        let listeners = std::mem::take(&mut file.listener.value);
        let listeners = server::listeners(listeners, root, &mut file.server, &file.admin);
        let nowhere = FileSpan::default();
        let is_incomplete = file.upstreams.is_wrong;
        let default = (file.upstream.at_or(&nowhere).clone(), file.upstream.value);
        let mut upstreams = upstream::settings(default, file.upstreams.value, root, overrides);
        let known = assign::KnownUpstreams {
            settings: &upstreams,
            is_incomplete,
        };
        let path = root.key("chain");
        let (chain, mut tips) = chain::settings(&file.chain, &path, &known, file.chain.is_wrong);
        let (routes, unused_upstreams) = match file.route.is_set() {
            true => routes::table(
                file.route.value,
                root,
                &mut tips,
                &mut upstreams,
                is_incomplete || file.route.is_wrong,
            ),
            false => shipped_routes(&mut tips, &mut upstreams),
        };
        let shared = shared::settings(file.shared, &root.key("shared"), shared, &upstreams);
        let cache_at = file.cache.at_or(&nowhere).clone();
        let failure_backoff = file.cache.value.failures(&root.key("cache"), &cache_at);
        let tokens = file.clients.value.tokens(&root.key("clients"));
        let (limit, per_client) = (file.limit.settings(), file.limit.per_client());
        Self {
            server: file
                .server
                .value
                .settings(limit.enabled.then_some(per_client)),
            listeners,
            admin: file.admin.value.settings(),
            tokens,
            trust: file.clients.value.settings(),
            compression: file.answers.compression.settings(),
            respond: file.answers.value.settings(),
            sets_limit: true,
            sets_keys: true,
            limit,
            per_client,
            cache_bytes: *file.cache.max_bytes,
            stale_wait: *file.cache.stale_wait,
            failure_backoff,
            targeted: file.cache.value.targeted_field.value,
            state: file.state.settings(),
            shared,
            chain: crate::chain::Settings {
                tips: tips.sources,
                ..chain
            },
            upstreams,
            unused_upstreams,
            access_log: file.log.access.settings(),
            log: file.log.settings(),
            traces: file.telemetry.settings(),
            collector: None,
            routes,
            positions: KeyPositions::default(),
        }
    }

    /// All public listeners: those of `server.listen`, then those with settings of
    /// their own.
    pub fn all_listeners(&self) -> Vec<ListenerSettings> {
        let plain = self.server.listen.iter().cloned().map(ListenerSettings::at);
        plain.chain(self.listeners.iter().cloned()).collect()
    }

    /// Lifts the limits on clients' requests, for load tests of a sandbox: if the file sets none, and
    /// only this machine can reach the listeners. A unix socket and a trusted proxy may pass on the
    /// requests of others, so there must be neither.
    pub fn lift_limits(&mut self) {
        let is_local = |one: &ListenerSettings| one.address.is_loopback() && !one.proxy_protocol;
        let has_proxies = !self.trust.networks.is_empty();
        if self.sets_limit || has_proxies || !self.all_listeners().iter().all(is_local) {
            return;
        }
        self.limit.requests_per_minute = LIFTED;
        self.limit.burst = LIFTED;
        self.limit.misses_per_minute = 0;
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

/// The requests per minute of a client whose limit is lifted: the most that a file may set.
const LIFTED: NonZeroU32 = match NonZeroU32::new(60_000_000) {
    Some(most) => most,
    None => NonZeroU32::MIN,
};

/// A sandbox: its URL, and what all its answers follow from.
pub type SandboxUpstream = (Uri, Box<str>);

/// The routes of the shipped file, for a file that has none.
fn shipped_routes(
    tips: &mut Tips,
    upstreams: &mut Vec<crate::upstream::Settings>,
) -> (RouteTable, Vec<Box<str>>) {
    let problems = Problems::new(SHIPPED_NAME, SHIPPED);
    let (root, _errors) = DeTable::parse_recoverable(SHIPPED);
    let path = Path::root(&problems);
    let file = File::read(&path, &root.span(), root.get_ref());
    routes::table(file.route.value, &path, tips, upstreams, false)
}

/// Whether a table sets anything: an empty table sets nothing.
fn has_value(table: &DeTable<'_>) -> bool {
    let mut values = table.values();
    values.any(|value| match value.get_ref() {
        DeValue::Table(inner) => has_value(inner),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_) => true,
    })
}

#[cfg(test)]
mod tests;
