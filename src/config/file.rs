//! The whole of proxy.toml, as it is declared.

use super::cache::CacheKeys;
use super::chain::ChainKeys;
use super::clients::{AnswersKeys, ClientsKeys, LimitKeys};
use super::containers::{NamedTable, named, optional_table, table, tables};
use super::key::keys;
use super::log::LogKeys;
use super::problem::FileSpan;
use super::routes::RouteKeys;
use super::server::{AdminKeys, ListenerKeys, ServerKeys};
use super::shared::SharedKeys;
use super::state::StateKeys;
use super::telemetry::TelemetryKeys;
use super::upstream::{self, UpstreamKeys};
use crate::upstream::DEFAULT;

keys! {
    /// The configuration of ordgate. `ordgate check --all` prints every key with its
    /// value and documentation.
    pub(super) struct File {
        server: ServerKeys = table() => ServerKeys::defaults();
        listener: Vec<(FileSpan, ListenerKeys)> = tables() => Vec::new();
        admin: AdminKeys = table() => AdminKeys::defaults();
        clients: ClientsKeys = table() => ClientsKeys::defaults();
        answers: AnswersKeys = table() => AnswersKeys::defaults();
        limit: LimitKeys = table() => LimitKeys::defaults();
        cache: CacheKeys = table() => CacheKeys::defaults();
        state: StateKeys = table() => StateKeys::defaults();
        shared: Option<SharedKeys> = optional_table() => None;
        chain: ChainKeys = table() => ChainKeys::defaults();
        upstream: UpstreamKeys = table() => UpstreamKeys::defaults();
        /// More upstreams, for APIs that have servers of their own: [upstreams.NAME].
        ///
        /// Each has all keys of [upstream], and takes the ones that it does not set from
        /// there. A route or a tip uses it with upstream = "NAME"; its name is 1 to 32 of
        /// a-z, 0-9 and -. Each upstream has its own endpoints, connections, breakers,
        /// slots, queue, and retries, so the failures of one affect its own routes
        /// only. API keys are shared, and what a key has spent counts for all upstreams
        /// that it is sent to, unless an upstream sets an `api_keys_file` of its own, or
        /// the environment has ORDGATE_API_KEYS_NAME (the name in upper case, - as _).
        ///
        /// The reference indexer serves its two APIs on two ports. For it,
        /// [upstreams.runes] with a `url` is enough.
        upstreams: Vec<NamedTable<UpstreamKeys>> = named(upstream::NAMES).except(DEFAULT) => Vec::new();
        log: LogKeys = table() => LogKeys::defaults();
        telemetry: TelemetryKeys = table() => TelemetryKeys::defaults();
        /// The kinds of requests that ordgate answers: [[route]].
        ///
        /// The router, the validation of parameters, the cache key and /openapi.json are
        /// made from them. A file without routes has the three of the built-in
        /// configuration; a file with routes has those alone.
        route: Vec<(FileSpan, RouteKeys)> = tables() => Vec::new();
    }
}
