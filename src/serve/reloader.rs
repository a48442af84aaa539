//! What a reload does: reads the configuration and the secrets again, makes a
//! gateway from them, and replaces the current one.
//!
//! Everything is checked before anything changes. A refused reload reports all problems and
//! changes nothing. What needs a restart stays as it is, and the report names it.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Listeners, Process, StartError, build, check_admin};
use crate::admin::{Access, Token};
use crate::config::server::ServerTable;
use crate::config::{Config, File, SHIPPED_NAME, SandboxUpstream};
use crate::listener::{Acceptor, Current};
use crate::reload::ReloadResult;
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

/// The keys that need a restart, beside the addresses of public listeners.
const NEED_RESTART: [&str; 9] = [
    "admin.listen",
    "server.workers",
    "cache.max_bytes",
    "state.path",
    "state.max_bytes",
    "shared.replicas",
    "shared.url_file",
    "log.level",
    "log.format",
];

/// The values of the keys that need a restart.
pub(super) fn restart_values(file: &File) -> Vec<Value> {
    let all = json!(file);
    let value = |key: &&str| all.pointer(&format!("/{}", key.replace('.', "/")));
    let values = NEED_RESTART.iter().map(value);
    values
        .map(|value| value.cloned().unwrap_or_default())
        .collect()
}

/// What a reload reads and changes.
pub(super) struct Reloader {
    pub(super) load: Loader,
    pub(super) process: Process,
    pub(super) config_name: String,
    /// Those that the process started with.
    pub(super) restart_values: Vec<Value>,
    /// The address that the admin listener is bound to.
    pub(super) admin: SocketAddr,
    /// The sandbox, where it is the upstream.
    pub(super) sandbox: Option<SandboxUpstream>,
    pub(super) current: Current,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) listeners: Arc<Listeners>,
    /// Which requests the admin listener answers.
    pub(super) access: Arc<ArcSwap<Access>>,
    /// How the server is run.
    pub(super) server: Arc<ArcSwap<ServerTable>>,
    /// Changes with each new gateway.
    pub(super) changed: watch::Sender<()>,
}

impl Reloader {
    /// Reloads. Must not run twice at the same time.
    pub(super) fn reload(&self) -> ReloadResult {
        let LoadedConfig {
            mut config,
            keys,
            admin_token,
        } = (self.load)()?;
        if let Some(sandbox) = &self.sandbox {
            config.use_sandbox(sandbox);
        }
        check_admin(self.admin, admin_token.as_ref()).map_err(lines)?;
        let mut notes = self.needs_restart(&config);
        notes.extend(config.warnings(&keys));
        let before = self.current.load_full();
        let now = before.clock.wall_now();
        let protocols = self.listeners.load(&config.listeners, now);
        let protocols = protocols.map_err(lines)?;
        let made = build(config.clone(), &keys, &self.process, Some(&before), None);
        let (gateway, lost) = made.map_err(lines)?;
        self.current.store(gateway.clone());
        self.acceptor.apply(config.connections);
        if self.listeners.are_at(&config.listeners) {
            self.listeners.apply(config.listeners.clone(), protocols);
        }
        self.access.store(Arc::new(Access {
            token: admin_token,
            hosts: config.file.admin.hosts,
        }));
        self.server.store(Arc::new(config.file.server));
        self.changed.send_replace(());
        gateway.maintain();
        Ok([lost, notes].concat())
    }

    /// What of a configuration is not used until a restart.
    fn needs_restart(&self, config: &Config) -> Vec<String> {
        let values = restart_values(&config.file);
        let shown = |value: &Value| match value.is_null() {
            true => "no value".to_owned(),
            false => value.to_string(),
        };
        let each = NEED_RESTART.iter().zip(&self.restart_values).zip(&values);
        let changed = each.filter(|((_, used), wanted)| used != wanted);
        let mut notes: Vec<_> = changed
            .map(|((key, used), wanted)| {
                format!(
                    "{key} is now {}, which needs a restart; until then {} stays in use",
                    shown(wanted),
                    shown(used)
                )
            })
            .collect();
        if !self.listeners.are_at(&config.listeners) {
            notes.push("the public listeners have other addresses or modes, which needs a restart; until then they stay as they are".to_owned());
        }
        if self.config_name == SHIPPED_NAME {
            notes.push(format!(
                "the configuration is {SHIPPED_NAME}, and the environment of a process cannot change: this reload has changed nothing; --config FILE at the start names a file that can"
            ));
        }
        notes
    }
}

/// Each problem on its own.
fn lines(error: StartError) -> Vec<String> {
    error.to_string().lines().map(str::to_owned).collect()
}
