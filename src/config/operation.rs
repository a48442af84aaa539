//! The tables of the cache, of what is kept and shared, and of logs and traces.

use std::num::NonZeroU32;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::limits;
use super::value::{Count, DAY, Size, Time};
use crate::access_log::{self, AccessFormat};
use crate::shared::{self, EngineUrl};
use crate::telemetry::{self, Format};
use crate::upstream::Settings;

/// The cache: its memory, and failures.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheTable {
    /// The most memory for stored responses, with their keys, fields and index.
    pub max_bytes: Size<1_048_576, 17_592_186_044_416>,
    /// How long a client waits for a fresh answer before it gets a stale one that its route
    /// allows (`stale_if_error`).
    ///
    /// The time counts from when the request went to the upstream. The fetch goes on, and
    /// its answer is stored.
    pub stale_wait: Time<0, DAY>,
    /// A response field of the upstream that takes precedence over CDN-Cache-Control and
    /// Cache-Control (RFC 9213), on routes with cache.mode = "respect".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) targeted_field: Option<String>,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            max_bytes: Size(256 << 20),
            stale_wait: Time::seconds(2),
            targeted_field: None,
        }
    }
}

/// What is kept on disk, so that a restart loses nothing and spends no budget twice.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StateTable {
    /// A directory for what each API key has spent, and for answers. Without it, nothing is
    /// kept on disk.
    ///
    /// It is created if it does not exist; it must belong to ordgate's user, and nobody else
    /// may have access to it. One process uses it at a time. --state and ORDGATE_STATE take
    /// precedence over this key; if none of them is set, systemd's STATE_DIRECTORY is used.
    /// Without a directory, a restart forgets what was spent in the last minute, and may
    /// exceed the budget. A change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The most bytes of stored answers. A change needs a restart.
    pub max_bytes: Size<33_554_432, 17_592_186_044_416>,
}

impl Default for StateTable {
    fn default() -> Self {
        Self {
            path: None,
            max_bytes: Size(1 << 30),
        }
    }
}

/// What several ordgates share that use the same API keys, for example behind a load
/// balancer. Without this table, an ordgate uses its API keys alone.
///
/// Each replica has the same part of each key's budget: requests_per_minute and
/// requests_per_second divided by `replicas`, rounded down. With an engine, that is so for a
/// quarter of the budget, and the rest goes to those that need it. Their requests together
/// never exceed the budget. Clients' limits are not shared: a client whose requests the load
/// balancer spreads over all replicas may send as many to each of them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SharedTable {
    /// The most replicas that run at the same time, those included that overlap while they
    /// are replaced.
    ///
    /// Every replica must have the same value. To add replicas, raise it everywhere first;
    /// to remove some, stop them, wait 61 s, and lower it then. ORDGATE_SHARED_REPLICAS
    /// takes precedence over this key. A change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Count<1, 10_000>>,
    /// A file with the URL of the engine and its password, unless ORDGATE_SHARED_URL is set.
    /// Without either, replicas share through no engine.
    ///
    /// The file must not be readable by others or writable by its group (chmod 600). A
    /// change needs a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    /// What the names of all keys in the engine begin with: 1 to 32 letters, digits, dots,
    /// hyphens and underscores. Replicas with the same prefix share. A change needs a
    /// restart.
    pub(super) prefix: String,
    /// How long the engine may take to answer. A later answer is ignored.
    pub(super) timeout: Time<1, 1000>,
    /// How long a request waits while another replica fetches the same response. Then it is
    /// fetched here as well; with 0, replicas do not wait for each other's fetches.
    pub(super) fill_wait: Time<0, 30_000>,
    /// The engine's URL, from the environment or from `url_file`. It has a password.
    #[serde(skip)]
    pub engine: Option<EngineUrl>,
}

impl Default for SharedTable {
    fn default() -> Self {
        Self {
            replicas: None,
            url_file: None,
            prefix: "ordgate".to_owned(),
            timeout: Time(std::time::Duration::from_millis(20)),
            fill_wait: Time::seconds(2),
            engine: None,
        }
    }
}

impl SharedTable {
    /// The number of replicas; 1 if it is not set, which is refused before.
    pub fn replicas(&self) -> NonZeroU32 {
        self.replicas.map_or(NonZeroU32::MIN, Count::positive)
    }

    /// Says what is missing, or of what a replica would have no part.
    pub(super) fn check(&self, upstreams: &[Settings], problems: &mut Vec<String>) {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let is_prefix = (1..=32).contains(&self.prefix.len());
        if !is_prefix || !self.prefix.bytes().all(is_allowed) {
            problems.push(format!(
                "shared.prefix is {:?}; allowed are 1 to 32 letters, digits, dots, hyphens and underscores",
                self.prefix
            ));
        }
        if self.replicas.is_none() {
            problems.push(
                "shared.replicas is missing: the most replicas that run at the same time; set it, or ORDGATE_SHARED_REPLICAS"
                    .to_owned(),
            );
        }
        let replicas = self.replicas();
        let limits = upstreams.iter().flat_map(|upstream| limits(upstream, true));
        problems.extend(limits.filter(|(_, limit)| *limit < replicas.get()).map(
            |(key, limit)| {
                format!(
                    "shared.replicas is {replicas}, and {key} is {limit}: each replica's part would be 0 requests: lower shared.replicas, or raise that limit"
                )
            },
        ));
    }

    /// How replicas share.
    pub(crate) fn settings(&self) -> shared::Settings {
        shared::Settings {
            replicas: self.replicas(),
            engine: self.engine.clone(),
            prefix: self.prefix.clone(),
            timeout: *self.timeout,
            fill_wait: *self.fill_wait,
        }
    }
}

/// Logs, on standard error.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogTable {
    /// What is logged: error, warn, info, debug, trace or off; or a list such as
    /// "info,ordgate::upstream=debug". Release builds have no messages of level trace. A
    /// level without a target is that of ordgate's own messages: of the libraries, only
    /// errors are logged, unless the list names them, as in "info,h2=debug,rustls=debug".
    ///
    /// The environment variable ORDGATE_LOG takes precedence. A change needs a restart.
    pub(super) level: String,
    /// "auto" is text on a terminal, JSON elsewhere. A change needs a restart.
    pub(super) format: Format,
    pub(super) access: AccessTable,
}

impl Default for LogTable {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: Format::Auto,
            access: AccessTable::default(),
        }
    }
}

impl LogTable {
    /// The levels, by target.
    pub(super) fn level(&self) -> &str {
        &self.level
    }

    /// What is logged.
    pub(super) fn settings(&self) -> telemetry::Settings {
        telemetry::Settings {
            level: self.level.clone(),
            format: self.format,
        }
    }
}

/// The access log: a line for each request.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AccessTable {
    /// Whether requests are logged.
    enabled: bool,
    /// "log" writes them with the log; "combined" writes them to standard output, in the
    /// format of the same name of Apache and nginx. Queries of plain routes (headers = "all",
    /// or mode "respect") may be secret and are not logged.
    format: AccessFormat,
    /// One of so many requests is logged of those that are answered from memory or refused
    /// (4xx). Those that fail (5xx), take a second, or leave memory are always logged.
    sample: Count<1, 1_000_000>,
}

impl Default for AccessTable {
    fn default() -> Self {
        Self {
            enabled: false,
            format: AccessFormat::Log,
            sample: Count(1),
        }
    }
}

impl AccessTable {
    pub(super) fn settings(&self) -> access_log::Settings {
        access_log::Settings {
            enabled: self.enabled,
            format: self.format,
            sample: *self.sample,
        }
    }
}

/// Traces of requests that are not answered from memory. They are exported by OTLP if the
/// environment names a collector: OTEL_EXPORTER_OTLP_ENDPOINT.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryTable {
    /// The share of requests that are traced, from 0 to 1.
    ///
    /// For a request with `traceparent` that a trusted proxy has sent, the flag in that
    /// field decides.
    pub(super) sample: f64,
}

impl Default for TelemetryTable {
    fn default() -> Self {
        Self { sample: 0.01 }
    }
}
