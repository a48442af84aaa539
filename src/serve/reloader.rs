//! What a reload does: reads the configuration and the secrets again, makes a
//! gateway from them, and replaces the current one.
//!
//! Invariant: everything is checked before anything changes. A refused reload
//! reports all problems and changes nothing.
//!
//! Settings that need a restart (the admin socket, threads, the log's format) stay as they
//! are, and the report names them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Listeners, SharedSettings, StartError, generation};
use crate::admin::Token;
use crate::clock::Clock;
use crate::config::{Config, SHIPPED_NAME, SandboxUpstream, SharedTable};
use crate::listener::{Acceptor, Current};
use crate::reload::{ReloadResult, Reloads};
use crate::shared;
use crate::supervisor::Supervisor;
use crate::telemetry;
use crate::units;
use crate::upstream::ProviderKeys;

/// What is read at the start and by each reload, with flags applied.
pub struct LoadedConfig {
    /// The checked configuration.
    pub config: Config,
    /// The provider's keys.
    pub keys: ProviderKeys,
    /// The admin listener's token.
    pub admin_token: Option<Token>,
}

/// Reads it, or returns everything that is wrong with it.
pub type Loader = Box<dyn Fn() -> Result<LoadedConfig, Vec<String>> + Send + Sync>;

/// Settings that need a restart.
pub(super) struct RestartSettings {
    admin: SocketAddr,
    workers: u64,
    log: telemetry::Settings,
    cache_bytes: u64,
    state_path: Option<PathBuf>,
    state_bytes: u64,
    replicas: Option<shared::Settings>,
}

impl RestartSettings {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            admin: config.file.admin.listen,
            workers: *config.file.server.workers,
            log: config.log(),
            cache_bytes: *config.file.cache.max_bytes,
            state_path: config.file.state.path.clone(),
            state_bytes: *config.file.state.max_bytes,
            replicas: config.file.shared.as_ref().map(SharedTable::settings),
        }
    }

    /// The settings that are different in another configuration.
    fn differences(&self, config: &Config) -> Vec<String> {
        let other = Self::of(config);
        let mut notes = Vec::new();
        let mut compare = |name: &str, one: Value, other: Value| {
            if one != other {
                notes.push(format!(
                    "{name} is now {other}, which needs a restart; until then {one} stays in use"
                ));
            }
        };
        compare("admin.listen", json!(self.admin), json!(other.admin));
        compare("server.workers", json!(self.workers), json!(other.workers));
        compare(
            "cache.max_bytes",
            json!(units::format_size(self.cache_bytes)),
            json!(units::format_size(other.cache_bytes)),
        );
        compare(
            "state.path",
            json!(self.state_path),
            json!(other.state_path),
        );
        compare(
            "state.max_bytes",
            json!(units::format_size(self.state_bytes)),
            json!(units::format_size(other.state_bytes)),
        );
        let replicas = |of: &Self| json!(of.replicas.as_ref().map(|shared| shared.replicas));
        compare("shared.replicas", replicas(self), replicas(&other));
        let prefix = |of: &Self| json!(of.replicas.as_ref().map(|shared| shared.prefix.clone()));
        compare("shared.prefix", prefix(self), prefix(&other));
        compare("log.level", json!(self.log.level), json!(other.log.level));
        compare(
            "log.format",
            json!(self.log.format),
            json!(other.log.format),
        );
        notes
    }
}

/// What a reload reads and changes.
pub(super) struct Reloader {
    pub(super) load: Loader,
    pub(super) config_name: String,
    pub(super) restart_settings: RestartSettings,
    /// The address that the admin listener is bound to.
    pub(super) admin: SocketAddr,
    /// The sandbox, where it is the upstream.
    pub(super) sandbox: Option<SandboxUpstream>,
    /// Resolves the upstreams' names.
    pub(super) current: Current,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) listeners: Arc<Listeners>,
    pub(super) shared: SharedSettings,
    /// Changes with each new gateway.
    pub(super) changed: watch::Sender<()>,
}

impl Reloader {
    /// The reloads, one at a time.
    pub(super) fn reloads(self, clock: Clock, supervisor: Supervisor) -> Reloads {
        Reloads::new(Box::new(move || self.reload()), clock, supervisor)
    }

    /// Reloads. Must not run twice at the same time.
    fn reload(&self) -> ReloadResult {
        let LoadedConfig {
            mut config,
            keys,
            admin_token,
        } = (self.load)()?;
        if self.shared.sets_keys.load(Ordering::Relaxed) && !config.sets_keys {
            return Err(vec![format!(
                "{}: the file sets no key, but the running configuration has keys, so the file may have been truncated: write it again, and reload. If the built-in values are wanted for every key, restart ordgate with this file, or set one of the keys to its built-in value",
                self.config_name
            )]);
        }
        config.use_sandbox(self.sandbox.as_ref());
        StartError::check_admin(self.admin, &config.file.admin, admin_token.as_ref())
            .map_err(|why| vec![why.to_string()])?;
        let mut notes = self.restart_settings.differences(&config);
        notes.extend(config.warnings(&keys));
        if self.config_name == SHIPPED_NAME {
            notes.push(format!(
                "the configuration is {SHIPPED_NAME} and cannot have changed: only the files of keys and of the token are read again"
            ));
        }
        let shared = config.clone();
        let before = self.current.load_full();
        let now = before.clock.wall(before.clock.now());
        let listeners = self.listeners.prepare(config.listeners.clone(), now);
        let listeners = listeners.map_err(StartError::lines)?;
        let made = generation::after(&before, config, &keys);
        let (gateway, mut report) = made.map_err(|why| vec![why])?;
        self.current.store(gateway.clone());
        self.acceptor.apply(shared.connections);
        self.shared.set(&shared, admin_token);
        notes.extend(self.listeners.apply(listeners));
        report.notes.extend(notes);
        self.changed.send_replace(());
        gateway.maintain();
        Ok(report)
    }
}

/// A duration that a reload may change, in milliseconds.
pub(super) struct SharedDuration(AtomicU64);

impl SharedDuration {
    pub(super) fn new(duration: Duration) -> Arc<Self> {
        let shared = Self(AtomicU64::new(0));
        shared.set(duration);
        Arc::new(shared)
    }

    pub(super) fn set(&self, duration: Duration) {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
