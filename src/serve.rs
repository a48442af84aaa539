//! Starts and stops a server: sockets, threads, gateways.
//!
//! Each worker is a thread with a runtime of its own, on which it accepts and serves
//! connections (`listeners`). A further thread runs the admin listener and
//! probes, and starts maintenance (`control`). `build` makes gateways, `reloader` replaces one by the next.

mod build;
mod control;
mod error;
mod listeners;
mod reloader;
mod threads;

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
pub use build::{Process, build};
pub use error::StartError;
pub use listeners::bind_tcp;
use listeners::{Listeners, admin_socket};
pub use reloader::{LoadedConfig, Loader};
use reloader::{Reloader, restart_values};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::admin::{Access, Admin, Token};
use crate::clock::Clock;
use crate::config::server::ServerTable;
use crate::gateway::Gateway;
use crate::listener::{Acceptor, BoundListener, Current};
use crate::reload::Reloads;
use crate::sandbox::Sandbox;
use crate::supervisor::InheritedSockets;
use crate::sync::lock;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp::Exporter;
use crate::tls::{self, Tls};
use crate::upstream::Upstreams;

/// How long a start waits for what other replicas have purged.
const FIRST_PURGES: Duration = Duration::from_millis(500);

/// How long the first line on standard output waits for the first statuses.
const FIRST_STATUSES: Duration = Duration::from_secs(1);

/// How often a server that drains looks whether connections are left.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// What a server is made from.
pub struct Options {
    /// The configuration and the secrets.
    pub loaded: LoadedConfig,
    /// Where the configuration was read from.
    pub config_name: String,
    /// Reads both again for a reload.
    pub load: Loader,
    /// An upstream to run in this process, instead of the configured one.
    pub sandbox: Option<Sandbox>,
    /// The clock.
    pub clock: Clock,
    /// Inherited listening sockets.
    pub sockets: InheritedSockets,
}

/// A running server.
pub struct Server {
    /// The gateway that it started with; a reload replaces it.
    pub first: Arc<Gateway>,
    current: Current,
    /// Its reloads.
    pub reloads: Arc<Reloads>,
    listeners: Arc<Listeners>,
    /// How long it drains, and other times.
    settings: Arc<ArcSwap<ServerTable>>,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// `true` once it has been told to drain.
    drain: watch::Sender<bool>,
    /// `true` once the threads must end.
    stopped: watch::Sender<bool>,
    /// That of the control thread, and those of the workers.
    pub runtimes: Vec<Handle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Binds the sockets and starts the threads. The server serves when this
    /// returns.
    ///
    /// # Errors
    /// Where a socket, a thread or the upstream's setup fails; nothing runs then.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let (clock, mut loaded) = (options.clock, options.loaded);
        let (stopped, stopping) = watch::channel(false);
        let sandbox = options.sandbox;
        let sandbox = sandbox.map(|own| threads::spawn_sandbox(own, stopping.clone()));
        let (sandbox, thread) = sandbox.transpose()?.unzip();
        let threads = Vec::from_iter(thread);
        if let Some(sandbox) = &sandbox {
            loaded.config.use_sandbox(sandbox);
        }
        check(&loaded, &clock)?;
        let LoadedConfig {
            config,
            keys,
            admin_token,
        } = loaded;
        (config.warnings(&keys).iter()).for_each(|warning| tracing::warn!("{warning}"));
        let (tls, now) = (Tls::default(), clock.wall_now());
        let names = config.listeners.iter().map(|one| one.name.as_deref());
        let mut passed = options.sockets.assign(&names.collect::<Vec<_>>())?;
        let passed_admin = passed.pop().flatten();
        let listeners = Listeners::open(&config.listeners, passed, tls, now)?;
        let (admin_socket, admin) = admin_socket(config.file.admin.listen, passed_admin)?;
        check_admin(admin, admin_token.as_ref())?;

        let process = Process::new(&config, clock.clone())?;
        let (first, _) = build(config.clone(), &keys, &process, None, None)?;

        let workers = threads::workers(config.file.server.workers)?;
        let control = threads::runtime()?;
        let handles = workers.iter().map(|worker| worker.handle().clone());
        let handles: Vec<_> = handles.collect();
        let current: Current = Arc::new(ArcSwap::new(first.clone()));
        let acceptor = Acceptor::new(current.clone(), config.connections, workers.len());
        let (changed, changes) = watch::channel(());
        let access = Arc::new(ArcSwap::from_pointee(Access {
            token: admin_token,
            hosts: config.file.admin.hosts.clone(),
        }));
        let reloader = Reloader {
            load: options.load,
            process,
            config_name: options.config_name.clone(),
            restart_values: restart_values(&config.file),
            admin,
            sandbox,
            current: current.clone(),
            acceptor: acceptor.clone(),
            listeners: listeners.clone(),
            access: access.clone(),
            server: Arc::new(ArcSwap::from_pointee(config.file.server)),
            changed,
        };
        let server = Self {
            settings: reloader.server.clone(),
            reloads: Reloads::new(move || reloader.reload(), clock),
            runtimes: [vec![control.handle().clone()], handles.clone()].concat(),
            first,
            current: current.clone(),
            listeners: listeners.clone(),
            admin,
            drain: watch::Sender::new(false),
            stopped,
            threads: Mutex::new(threads),
        };
        let admin = server.admin(access, options.config_name);
        let (open, stop) = (listeners.clone(), stopping.clone());
        server.spawn("control", control, move || {
            control::run(admin_socket, Arc::new(admin), open, changes, stop)
        })?;
        server.wait_for_purges()?;
        #[cfg(feature = "otlp")]
        server.start_exporting()?;
        for worker in workers {
            let stop = stopping.clone();
            server.spawn("worker", worker, move || threads::stopped(stop))?;
        }
        listeners.accept(&acceptor, &handles)?;
        Ok(server)
    }

    /// What the admin listener shows and changes.
    fn admin(&self, access: Arc<ArcSwap<Access>>, config: String) -> Admin {
        let bound = self.listeners.clone();
        Admin {
            current: self.current.clone(),
            access,
            reloads: self.reloads.clone(),
            listeners: Box::new(move |now| bound.bound(now)),
            config,
            since: self.first.clock.now(),
            drain: self.drain.subscribe(),
            history: Arc::default(),
        }
    }

    /// Waits for what other replicas have purged while this process was down: it must not be
    /// served from the disk.
    fn wait_for_purges(&self) -> Result<(), StartError> {
        let shared = self.first.fill.lower.shared.as_ref();
        let Some(shared) = shared.filter(|shared| shared.has_engine()) else {
            return Ok(());
        };
        // Without the engine, nothing is known. The time belongs to the runtime that waits.
        let heard = async {
            timeout(FIRST_PURGES, shared.purges.first_heard())
                .await
                .ok()
        };
        threads::block_on(heard).map(drop)
    }

    /// Begins to export traces, if the environment names a collector.
    #[cfg(feature = "otlp")]
    fn start_exporting(&self) -> Result<(), StartError> {
        if self.first.records.traced_share.is_none() {
            return Ok(());
        }
        let runtime = threads::runtime()?;
        let exporter = Exporter::begin(runtime.handle().clone())?;
        let stop = threads::stopped(self.stopped.subscribe());
        self.spawn("traces", runtime, move || async move {
            stop.await;
            exporter.finish().await;
        })
    }

    /// Runs a future, which is made there, on a new thread with this runtime.
    fn spawn<F: Future<Output = ()>>(
        &self,
        name: &str,
        runtime: Runtime,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = threads::spawn(name, runtime, make)?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Logs what serves: the version, the configuration, and what it leads to. Nothing of
    /// it is secret.
    pub fn report_start(&self, config: &str) {
        let gateway = &self.first;
        let upstreams = gateway.upstreams.iter().map(|(_, upstream)| {
            let urls: Vec<_> = upstream.base_urls().collect();
            format!("{}: {}", upstream.name(), urls.join(" "))
        });
        let shared = gateway.fill.lower.shared.as_ref();
        tracing::info!(
            version = crate::build::VERSION,
            commit = crate::build::COMMIT,
            config,
            listen = self.urls(),
            admin = %self.admin,
            upstreams = upstreams.collect::<Vec<_>>().join(", "),
            state_directory = gateway.state.answers.is_on(),
            shared_engine = shared.is_some_and(|shared| shared.has_engine()),
            replicas = shared.map_or(1, |shared| shared.replicas()),
            "ordgate has started"
        );
    }

    /// All public listeners, with their settings and certificates.
    pub fn bound_listeners(&self) -> Vec<BoundListener> {
        let clock = &self.first.clock;
        self.listeners.bound(clock.wall_now())
    }

    /// Where the public listeners are.
    pub fn urls(&self) -> String {
        let listeners = self.bound_listeners();
        let urls: Vec<_> = listeners.iter().map(BoundListener::url).collect();
        urls.join(", ")
    }

    /// The first base URL of the first upstream: that of the sandbox, if there is one.
    pub fn upstream_url(&self) -> String {
        self.first.upstreams.first().base_url(0).to_owned()
    }

    /// Why it is not ready: waits for the first status of each tip, a second at most.
    pub async fn not_ready(&self) -> Vec<String> {
        self.first.first_statuses(FIRST_STATUSES).await;
        self.first.not_ready()
    }

    /// The gateway that serves now.
    pub fn current_gateway(&self) -> Arc<Gateway> {
        self.current.load_full()
    }

    /// `server.drain_delay`, as it is now.
    pub fn drain_delay(&self) -> Duration {
        self.settings.load().drain_delay
    }

    /// Says that it is not ready, and stops accepting connections after this time; requests in
    /// progress finish.
    pub fn drain(&self, delay: Duration) {
        self.drain.send_replace(true);
        let (listeners, events) = (self.listeners.clone(), self.first.fill.chain.events.clone());
        let drain = move || {
            listeners.drain();
            events.drain();
        };
        if delay.is_zero() {
            return drain();
        }
        self.runtimes[0].spawn(async move {
            sleep(delay).await;
            drain();
        });
    }

    /// Waits until all connections are closed, at most `drain_timeout` after connections are
    /// no more accepted, which [`drain`](Self::drain) brings about. Then it ends the threads.
    pub fn wait(&self) {
        let open = || self.first.meter().totals.connections.open.load(Relaxed);
        let drained = threads::block_on(async {
            while !self.listeners.are_draining() {
                sleep(DRAIN_INTERVAL).await;
            }
            let closed = async {
                while !self.listeners.are_closed() || open() > 0 {
                    sleep(DRAIN_INTERVAL).await;
                }
            };
            let drain_timeout = self.settings.load().drain_timeout;
            timeout(drain_timeout, closed).await
        });
        if !matches!(drained, Ok(Ok(()))) {
            tracing::warn!(
                connections = open(),
                "drain_timeout has passed; open connections are closed"
            );
        }
        self.stopped.send_replace(true);
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.join().is_err() {
                tracing::error!("a thread has panicked");
            }
        }
    }
}

/// Refuses what a server cannot be made from, whatever its sockets are. Opens no socket, and
/// changes nothing on disk.
///
/// # Errors
/// The first reason, as the start would report it.
pub fn check(loaded: &LoadedConfig, clock: &Clock) -> Result<(), StartError> {
    let config = &loaded.config;
    let now = clock.wall_now();
    let tls = config.listeners.iter().filter_map(|one| one.tls.as_ref());
    let problems = tls.flat_map(|tls| tls::check(tls, now));
    let problems: Vec<_> = problems.collect();
    if !problems.is_empty() {
        return Err(StartError::Certificates(problems));
    }
    let (keys, budgets) = (&loaded.keys, Arc::default());
    Upstreams::new(&config.upstreams, keys, None, &budgets, clock, None)?;
    Ok(())
}

/// Refuses an admin address off loopback without a token.
///
/// # Errors
/// [`StartError::OpenAdmin`].
pub fn check_admin(address: SocketAddr, token: Option<&Token>) -> Result<(), StartError> {
    match token.is_some() || address.ip().to_canonical().is_loopback() {
        true => Ok(()),
        false => Err(StartError::OpenAdmin { address }),
    }
}
