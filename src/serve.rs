//! Starts and stops a server: sockets, threads, gateways.
//!
//! Each worker is a thread with a runtime of its own, or all share one
//! (`server.runtime`); `listeners` accepts connections on them. A further thread
//! runs the admin listener, probes and maintenance (`control`). `generation` makes
//! gateways, `reloader` replaces one by the next.

mod control;
mod error;
mod generation;
mod listeners;
mod preflight;
mod reloader;
mod sockets;
mod start_report;
mod threads;

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
pub use error::StartError;
pub use generation::gateway;
use listeners::{Listeners, LoadedListener};
pub use preflight::{check, with_sandbox};
pub use reloader::{LoadedConfig, Loader};
use reloader::{Reloader, RestartSettings, SharedDuration};
pub use sockets::bind_tcp;
use tokio::runtime::{Handle, Runtime as Tokio};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admin::{Admin, Token};
use crate::clock::Clock;
use crate::config::Config;
use crate::fill;
use crate::gateway::Gateway;
use crate::listener::{Acceptor, BoundListener, Current, Drain, ListenAddress};
use crate::meter::Totals;
use crate::reload::Reloads;
use crate::sandbox::Sandbox;
use crate::supervisor::{InheritedSockets, Supervisor};
use crate::sync::lock;
use crate::telemetry::otlp::{CollectorSettings, Exporter};
use crate::tls::Tls;

/// How long a start waits for what other replicas have purged.
const FIRST_PURGES: Duration = Duration::from_millis(500);

/// How long the first line on standard output waits for the first statuses.
const FIRST_STATUSES: Duration = Duration::from_secs(1);

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
    /// Is notified of reloads.
    pub supervisor: Supervisor,
}

impl Options {
    fn check(&self) -> Result<(), StartError> {
        let has_sandbox = self.sandbox.is_some();
        check(&self.loaded, has_sandbox, &self.sockets, &self.clock)
    }
}

/// A running server.
pub struct Server {
    first: Arc<Gateway>,
    current: Current,
    reloads: Arc<Reloads>,
    listeners: Arc<Listeners>,
    shared: SharedSettings,
    admin: SocketAddr,
    drain: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    runtimes: Vec<Handle>,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Binds the sockets and starts the threads. The server is ready when this
    /// returns.
    ///
    /// # Errors
    /// Where a socket, a thread or the upstream's setup fails; nothing runs then.
    pub fn start(options: Options) -> Result<Self, StartError> {
        options.check()?;
        let (loaded, clock) = (options.loaded, options.clock);
        let (mut config, keys, token) = (loaded.config, loaded.keys, loaded.admin_token);
        (config.warnings(&keys).iter()).for_each(|warning| tracing::warn!("{warning}"));
        let (tls, configured) = load_listeners(&config, options.sandbox.is_some(), &clock)?;
        let sockets = sockets::open(&configured, config.file.admin.listen, options.sockets)?;
        let (public, (admin_socket, admin_address)) = sockets;
        StartError::check_admin(admin_address, &config.file.admin, token.as_ref())?;
        let (drain, draining) = watch::channel(false);
        let (stopped, stopping) = watch::channel(false);
        let restart_settings = RestartSettings::of(&config);
        let (sandbox, sandbox_thread) = match options.sandbox {
            Some(sandbox) => threads::spawn_sandbox(sandbox, stopping.clone())?,
            None => (None, None),
        };
        config.use_sandbox(sandbox.as_ref());
        let shared = SharedSettings::of(&config, token);
        let worker_count = threads::worker_count(*config.file.server.workers);
        let connections = config.connections;
        let collector = config.collector.clone();
        let first = gateway(config, &keys, clock.clone(), None)?;
        let worker_runtimes = worker_runtimes(worker_count)?;
        let current: Current = Arc::new(ArcSwap::new(first.clone()));
        let acceptor = Acceptor::new(current.clone(), connections, worker_count);
        let handles: Vec<_> = worker_runtimes.iter().map(|r| r.handle().clone()).collect();
        let listeners = Listeners::new(acceptor.clone(), tls, handles.clone());
        let (changed, changes) = watch::channel(());
        let reloader = Reloader {
            load: options.load,
            config_name: options.config_name.clone(),
            restart_settings,
            admin: admin_address,
            sandbox,
            current: current.clone(),
            acceptor,
            listeners: listeners.clone(),
            shared: shared.clone(),
            changed,
        };
        let reloads = Arc::new(reloader.reloads(clock.clone(), options.supervisor));
        let control = threads::current_thread()?;
        let mut server = Self {
            first,
            current: current.clone(),
            reloads: reloads.clone(),
            listeners: listeners.clone(),
            shared: shared.clone(),
            admin: admin_address,
            drain,
            stopped,
            runtimes: [vec![control.handle().clone()], handles].concat(),
            workers: Vec::new(),
            helpers: sandbox_thread.into_iter().collect(),
        };
        let admin = Arc::new(Admin {
            current,
            token: shared.admin_token.clone(),
            hosts: shared.hosts.clone(),
            reloads,
            listeners: Box::new(move |now| listeners.bound(now)),
            workers: worker_count,
            config: options.config_name,
            since: server.first.clock.now(),
            drain: draining.clone(),
            history: Arc::default(),
        });
        let open = server.listeners.clone();
        let work = control::run(admin_socket, admin, open, clock, changes, stopping);
        (server.helpers).push(threads::spawn("control", control, work)?);
        server.start_following()?;
        server.start_exporting(collector)?;
        server.start_workers(worker_runtimes, &draining)?;
        server.listeners.add_all(configured, public)?;
        server.maintain_certificates();
        Ok(server)
    }

    /// Begins to follow what other replicas purge, if they share an engine.
    fn start_following(&mut self) -> Result<(), StartError> {
        if !self.first.fill.lower.has_engine() {
            return Ok(());
        }
        let (current, mut stop) = (self.current.clone(), self.stopped.subscribe());
        let work = move || async move {
            tokio::select! {
                () = fill::follow(|| current.load().fill.clone()) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        };
        let thread = threads::spawn_with("replicas", threads::current_thread()?, work)?;
        self.helpers.push(thread);
        // What was purged while this process was down is not served from its disk.
        let shared = self.first.fill.lower.shared.clone();
        threads::block_on(async move {
            if let Some(shared) = shared {
                let _away = timeout(FIRST_PURGES, shared.purges.first_heard()).await;
            }
        })
    }

    /// Begins to export traces, if the environment names a collector.
    fn start_exporting(&mut self, collector: Option<CollectorSettings>) -> Result<(), StartError> {
        let tracer = self.first.records.tracer.clone();
        let Some((tracer, collector)) = tracer.zip(collector) else {
            return Ok(());
        };
        let exporter = Exporter::new(tracer, collector)?;
        let mut stop = self.stopped.subscribe();
        let work = exporter.run(async move { drop(stop.wait_for(|stop| *stop).await) });
        let thread = threads::spawn("traces", threads::current_thread()?, work)?;
        self.helpers.push(thread);
        Ok(())
    }

    fn start_workers(&mut self, runtimes: Vec<Tokio>, drain: &Drain) -> Result<(), StartError> {
        for runtime in runtimes {
            let worker = Worker {
                totals: self.first.meter().totals.clone(),
                listeners: self.listeners.clone(),
                drain: drain.clone(),
                shared: self.shared.clone(),
            };
            self.workers
                .push(threads::spawn("worker", runtime, worker.run())?);
        }
        Ok(())
    }

    /// The address of the first public listener that is TCP; the unspecified one if
    /// all are unix sockets.
    pub fn public(&self) -> SocketAddr {
        let addresses = self.listeners().into_iter();
        let mut tcp = addresses.filter_map(|address| address.tcp());
        tcp.next()
            .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// The addresses of all public listeners.
    pub fn listeners(&self) -> Vec<ListenAddress> {
        let open = self.bound_listeners().into_iter();
        open.map(|listener| listener.address).collect()
    }

    /// All public listeners, with their settings and certificates.
    pub fn bound_listeners(&self) -> Vec<BoundListener> {
        let clock = &self.first.clock;
        self.listeners.bound(clock.wall(clock.now()))
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The first base URL of the first upstream: that of the sandbox, if there is one.
    pub fn upstream_url(&self) -> String {
        let endpoints = self.first.upstreams.first().endpoint_snapshots();
        let url = endpoints.first().map_or("", |endpoint| &*endpoint.name);
        url.trim_end_matches('/').to_owned()
    }

    /// Why it is not ready: waits for the first status of each tip, a second at most.
    pub async fn not_ready(&self) -> Vec<String> {
        self.first.first_statuses(FIRST_STATUSES).await;
        self.first.not_ready()
    }

    /// The gateway that it started with; a reload replaces it.
    pub fn first_gateway(&self) -> &Arc<Gateway> {
        &self.first
    }

    /// The gateway that serves now.
    pub fn current_gateway(&self) -> Arc<Gateway> {
        self.current.load_full()
    }

    /// The reloads of this server.
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// All runtimes of this server.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.runtimes.clone()
    }

    /// Replaces the certificates whose files have changed, and logs those that expire
    /// soon. The control thread does this every minute.
    pub fn maintain_certificates(&self) {
        let clock = &self.first.clock;
        let counts = &self.first.meter().totals.tls;
        let now = clock.wall(clock.now());
        self.listeners.maintain_certificates(counts, now);
    }

    /// Stops accepting connections, after `drain_delay`; requests in progress finish.
    pub fn drain(&self) {
        let has_delay = !self.shared.drain_delay.get().is_zero();
        self.shared.in_drain_delay.0.store(has_delay, Relaxed);
        self.drain.send_replace(true);
        if !has_delay {
            self.listeners.drain();
        }
    }

    /// How long connections are accepted after [`drain`](Self::drain), as of the last
    /// reload.
    pub fn drain_delay_time(&self) -> Duration {
        self.shared.drain_delay.get()
    }

    /// What can end `drain_delay` early.
    pub fn drain_delay(&self) -> DrainDelay {
        self.shared.in_drain_delay.clone()
    }

    /// Waits until all connections are closed, at most `drain_timeout` after
    /// [`drain`](Self::drain).
    pub fn wait(self) {
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("a worker has panicked");
            }
        }
        self.stopped.send_replace(true);
        for helper in self.helpers {
            if helper.join().is_err() {
                tracing::error!("a helper thread has panicked");
            }
        }
    }
}

/// The time after the stop signal in which connections are still accepted.
#[derive(Clone, Default)]
pub struct DrainDelay(Arc<AtomicBool>);

impl DrainDelay {
    /// Ends it. Returns whether it had not ended before.
    pub fn end(&self) -> bool {
        self.0.swap(false, Relaxed)
    }
}

/// Settings that threads read and a reload changes.
#[derive(Clone)]
struct SharedSettings {
    admin_token: Arc<Mutex<Option<Token>>>,
    drain_timeout: Arc<SharedDuration>,
    drain_delay: Arc<SharedDuration>,
    in_drain_delay: DrainDelay,
    /// The host names of the admin listener.
    hosts: Arc<ArcSwap<Vec<String>>>,
    /// Whether the configuration's file sets any key.
    sets_keys: Arc<AtomicBool>,
}

impl SharedSettings {
    fn of(config: &Config, admin_token: Option<Token>) -> Self {
        Self {
            admin_token: Arc::new(Mutex::new(admin_token)),
            drain_timeout: SharedDuration::new(*config.file.server.drain_timeout),
            drain_delay: SharedDuration::new(*config.file.server.drain_delay),
            in_drain_delay: DrainDelay::default(),
            hosts: Arc::new(ArcSwap::from_pointee(config.file.admin.hosts.clone())),
            sets_keys: Arc::new(AtomicBool::new(config.sets_keys)),
        }
    }

    fn set(&self, config: &Config, admin_token: Option<Token>) {
        *lock(&self.admin_token) = admin_token;
        self.drain_timeout.set(*config.file.server.drain_timeout);
        self.drain_delay.set(*config.file.server.drain_delay);
        self.hosts.store(Arc::new(config.file.admin.hosts.clone()));
        self.sets_keys.store(config.sets_keys, Relaxed);
    }
}

/// The configured listeners, with their certificates.
fn load_listeners(
    config: &Config,
    makes_certificates: bool,
    clock: &Clock,
) -> Result<(Tls, Vec<LoadedListener>), StartError> {
    let tls = Tls::new(makes_certificates)?;
    let now = clock.wall(clock.now());
    let listeners = LoadedListener::load(config.listeners.clone(), &tls, &[], now)?;
    Ok((tls, listeners))
}

/// The runtimes that accept and serve connections: one for each thread, which keeps the
/// connections that it has accepted.
fn worker_runtimes(workers: usize) -> Result<Vec<Tokio>, StartError> {
    (0..workers).map(|_| threads::current_thread()).collect()
}

/// What a worker thread needs to know when to end. Its work is tasks of its runtime.
struct Worker {
    totals: Arc<Totals>,
    listeners: Arc<Listeners>,
    drain: Drain,
    shared: SharedSettings,
}

impl Worker {
    /// Runs until the server has drained.
    async fn run(mut self) {
        if self.drain.wait_for(|drain| *drain).await.is_err() {
            // The server did not start.
            return;
        }
        let begun = tokio::time::Instant::now();
        // A reload may shorten it meanwhile, and a second signal ends it.
        let delay = &self.shared.in_drain_delay;
        while delay.0.load(Relaxed) && begun.elapsed() < self.shared.drain_delay.get() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        delay.end();
        self.listeners.drain();
        // Every worker waits for all connections: one may wait for a fetch that runs
        // on another worker.
        let open = || self.totals.connections.load(Relaxed);
        let finished = async {
            while !self.listeners.are_closed() || open() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let timeout = self.shared.drain_timeout.get();
        if tokio::time::timeout(timeout, finished).await.is_err() {
            tracing::warn!(
                connections = open(),
                "drain_timeout has passed; open connections are closed"
            );
        }
    }
}
