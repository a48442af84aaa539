//! The tables of the cache, of what is kept on disk, and of logs and traces.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access_log::{self, AccessFormat};
use crate::telemetry::Format;
use crate::units::{Size, Time};

/// The cache: its memory, and failures.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CacheTable {
    /// The most memory for stored responses, with their keys, fields and index. A change needs a
    /// restart.
    #[serde(with = "Size::<1_048_576>")]
    pub max_bytes: u64,
    /// How long a client waits for a fresh answer before it gets a stale one that its route
    /// allows (`stale_if_error`).
    ///
    /// The time counts from when the request went to the upstream. The fetch goes on, and
    /// its answer is stored.
    #[serde(with = "Time::<0>")]
    pub stale_wait: Duration,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            stale_wait: Duration::from_secs(2),
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
    #[serde(with = "Size::<33_554_432>")]
    pub max_bytes: u64,
}

impl Default for StateTable {
    fn default() -> Self {
        Self {
            path: None,
            max_bytes: 1 << 30,
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
    sample: NonZeroU64,
}

impl Default for AccessTable {
    fn default() -> Self {
        Self {
            enabled: false,
            format: AccessFormat::Log,
            sample: NonZeroU64::MIN,
        }
    }
}

impl AccessTable {
    pub(super) fn settings(&self) -> access_log::Settings {
        access_log::Settings {
            enabled: self.enabled,
            format: self.format,
            sample: self.sample.get(),
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
