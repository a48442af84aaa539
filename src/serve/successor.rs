//! What a reload does: reads the configuration and the secrets again, makes the
//! gateway that they say, and puts it in the place of the present one.
//!
//! Invariant: all of it is understood before any of it is done. What is wrong is
//! told whole, and nothing has changed then.
//!
//! Deliberately absent: what takes a restart (sockets, threads, how logs look).
//! It goes on as it is, and the operator is told.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{StartError, generation};
use crate::admin::Token;
use crate::config::{Config, Runtime, SHIPPED_NAME};
use crate::listener::{Acceptor, Current};
use crate::reload::Reloaded;
use crate::telemetry;
use crate::upstream::ProviderKeys;
use crate::upstream::client::resolver::Names;

/// What is read at the start and again by each reload, flags applied.
pub struct Fresh {
    /// The checked configuration.
    pub config: Config,
    /// The provider's keys.
    pub keys: ProviderKeys,
    /// What the admin side demands.
    pub admin_token: Option<Token>,
}

/// Reads all of that again; or says all that is wrong with it.
pub type Reread = Box<dyn Fn() -> Result<Fresh, Vec<String>> + Send + Sync>;

/// What a reload does not change.
pub(super) struct Fixed {
    listen: SocketAddr,
    admin: SocketAddr,
    workers: usize,
    runtime: Runtime,
    log: telemetry::Settings,
}

impl Fixed {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            listen: config.server.listen,
            admin: config.admin.listen,
            workers: config.server.workers,
            runtime: config.server.runtime,
            log: config.log.clone(),
        }
    }

    /// What of another configuration takes a restart.
    fn differs(&self, config: &Config) -> Vec<String> {
        let other = Self::of(config);
        let mut notes = Vec::new();
        let mut compare = |name: &str, one: Value, other: Value| {
            if one != other {
                notes.push(format!(
                    "{name} is {other} now, which takes a restart; {one} goes on"
                ));
            }
        };
        compare("server.listen", json!(self.listen), json!(other.listen));
        compare("admin.listen", json!(self.admin), json!(other.admin));
        compare("server.workers", json!(self.workers), json!(other.workers));
        compare("server.runtime", json!(self.runtime), json!(other.runtime));
        compare("log.level", json!(self.log.level), json!(other.log.level));
        compare(
            "log.format",
            json!(self.log.format),
            json!(other.log.format),
        );
        notes
    }
}

/// What a reload reaches.
pub(super) struct Successor {
    pub(super) reread: Reread,
    pub(super) config_name: String,
    pub(super) fixed: Fixed,
    /// Where the admin side really listens.
    pub(super) admin: SocketAddr,
    /// The sandbox's URL, where that is the upstream.
    pub(super) sandbox: Option<Uri>,
    /// Who knows the addresses of names.
    pub(super) names: Names,
    pub(super) present: Current,
    pub(super) door: Arc<Acceptor>,
    pub(super) token: Arc<Mutex<Option<Token>>>,
    /// The names of the admin side.
    pub(super) hosts: Arc<ArcSwap<Vec<String>>>,
    /// Whether `/readyz` fails until each tip has been known once.
    pub(super) ready_needs_tips: Arc<AtomicBool>,
    pub(super) drain_timeout: Arc<Patience>,
    /// Says that there is another gateway.
    pub(super) changed: watch::Sender<()>,
}

impl Successor {
    /// Reloads; nobody else does at the same time.
    pub(super) fn take_over(&self) -> Reloaded {
        let Fresh {
            mut config,
            keys,
            admin_token,
        } = (self.reread)()?;
        config.ask_all_at(self.sandbox.as_ref());
        if let Some(why) = StartError::open_admin(self.admin, admin_token.as_ref()) {
            return Err(vec![why.to_string()]);
        }
        let mut notes = self.fixed.differs(&config);
        notes.extend(config.warnings(&keys));
        if self.config_name == SHIPPED_NAME {
            notes.push(format!(
                "the configuration is {SHIPPED_NAME} and cannot have changed: files of keys and of the token are all that is read again"
            ));
        }
        let (connections, drain_timeout) = (config.server.connections, config.server.drain_timeout);
        let (hosts, ready_needs_tips) = (config.admin.hosts.clone(), config.admin.ready_needs_tips);
        let before = self.present.load_full();
        let made = generation::after(&before, config, &keys, &self.names);
        let (gateway, mut done) = made.map_err(|why| vec![why])?;
        done.notes.extend(notes);
        self.present.store(gateway.clone());
        self.door.behave(connections);
        self.drain_timeout.set(drain_timeout);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = admin_token;
        self.hosts.store(Arc::new(hosts));
        self.ready_needs_tips
            .store(ready_needs_tips, Ordering::Relaxed);
        self.changed.send_replace(());
        before.cache.store().retire();
        let routes = &gateway.routes;
        gateway
            .cache
            .store()
            .keep_routes(|number| routes.get(number).is_some());
        Ok(done)
    }
}

/// A time that a reload may change.
pub(super) struct Patience(AtomicU64);

impl Patience {
    pub(super) fn new(time: Duration) -> Arc<Self> {
        let patience = Self(AtomicU64::new(0));
        patience.set(time);
        Arc::new(patience)
    }

    fn set(&self, time: Duration) {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
