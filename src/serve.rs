//! Starts and stops a server: sockets, threads, gateways.
//!
//! Each worker is a thread with a runtime of its own, or all share one
//! (`server.runtime`). A further thread runs the admin listener, probes and
//! maintenance (`control`). `generation` makes gateways, `reloader` replaces one
//! by the next.

mod control;
mod generation;
mod reloader;
mod sockets;
mod threads;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
pub use generation::gateway;
pub use reloader::{LoadedConfig, Loader};
use reloader::{Reloader, RestartSettings, SharedDuration};
use sockets::Sockets;
pub use sockets::bind;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime as Tokio};
use tokio::sync::watch;

use crate::admin::{Admin, Token};
use crate::clock::Clock;
use crate::config::Runtime;
use crate::gateway::Gateway;
use crate::listener::{Acceptor, Backlog, Current, Drain};
use crate::reload::{ReloadResult, Reloads};
use crate::sandbox::Sandbox;
use crate::supervisor::{InheritedSockets, Supervisor};
use crate::upstream::SetupError;
use crate::upstream::client::resolver::Resolver;

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
    /// Resolves the upstreams' names.
    pub resolver: Resolver,
    /// The clock.
    pub clock: Clock,
    /// Inherited listening sockets.
    pub sockets: InheritedSockets,
    /// Is notified of reloads.
    pub supervisor: Supervisor,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be bound.
    #[error("cannot listen on {address}: {error}{}", advice(error))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The admin listener would be open to the network.
    #[error(
        "the admin side is on {0}, off loopback, and there is no token: set ORDGATE_ADMIN_TOKEN or admin.token_file, or have admin.listen on 127.0.0.1"
    )]
    OpenAdmin(SocketAddr),
    /// A client for the upstream cannot be made.
    #[error(transparent)]
    Upstream(#[from] SetupError),
    /// The system provides no thread, no runtime or no randomness.
    #[error("the system refuses {what}: {error}")]
    System {
        /// What it refuses.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl StartError {
    /// Refuses an admin address off loopback without a token.
    pub fn open_admin(address: SocketAddr, token: Option<&Token>) -> Option<Self> {
        let is_open = !address.ip().to_canonical().is_loopback() && token.is_none();
        is_open.then_some(Self::OpenAdmin(address))
    }
}

/// A likely cause of an error of `bind`.
fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::AddrInUse {
        "; another program may use it, and port 0 takes a free one"
    } else if error.kind() == io::ErrorKind::AddrNotAvailable {
        "; this machine does not have the address"
    } else {
        ""
    }
}

/// A running server.
pub struct Server {
    first: Arc<Gateway>,
    current: Current,
    reloads: Arc<Reloads>,
    public: SocketAddr,
    admin: SocketAddr,
    drain: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    drain_timeout: Arc<SharedDuration>,
    backlog: Backlog,
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
        let LoadedConfig {
            mut config,
            keys,
            admin_token,
        } = options.loaded;
        let (clock, resolver) = (options.clock, options.resolver);
        let since = clock.now();
        for warning in config.warnings(&keys) {
            tracing::warn!("{warning}");
        }
        let sockets = Sockets::open(&config, options.sockets, admin_token.as_ref())?;
        let (drain, draining) = watch::channel(false);
        let (stopped, stopping) = watch::channel(false);
        let restart_settings = RestartSettings::of(&config);
        let start = |sandbox| threads::spawn_sandbox(sandbox, stopping.clone());
        let sandbox = options.sandbox.map(start).transpose()?;
        let (sandbox_url, sandbox_thread) = sandbox.unzip();
        let sandbox_url = sandbox_url.flatten();
        config.ask_all_at(sandbox_url.as_ref());
        let workers = threads::worker_count(config.server.workers);
        let (runtime, connections) = (config.server.runtime, config.server.connections);
        let drain_timeout = SharedDuration::new(config.server.drain_timeout);
        let hosts = Arc::new(ArcSwap::from_pointee(config.admin.hosts.clone()));
        let ready_needs_tips = Arc::new(AtomicBool::new(config.admin.ready_needs_tips));
        let first = gateway(config, &keys, &resolver, clock.clone(), None)?;
        let current: Current = Arc::new(ArcSwap::new(first.clone()));
        let acceptor = Acceptor::new(current.clone(), connections);
        let token = Arc::new(Mutex::new(admin_token));
        let (changed, changes) = watch::channel(());
        let reloader = Reloader {
            load: options.load,
            config_name: options.config_name.clone(),
            restart_settings,
            admin: sockets.admin_address,
            sandbox: sandbox_url,
            resolver,
            current: current.clone(),
            acceptor: acceptor.clone(),
            token: token.clone(),
            hosts: hosts.clone(),
            ready_needs_tips: ready_needs_tips.clone(),
            drain_timeout: drain_timeout.clone(),
            changed,
        };
        let apply = Box::new(move || reloader.reload());
        let reloads = Arc::new(Reloads::new(apply, clock.clone(), options.supervisor));
        let admin = Arc::new(Admin {
            current: current.clone(),
            token,
            hosts,
            ready_needs_tips,
            reloads: reloads.clone(),
            listen: sockets.public_address,
            workers,
            config: options.config_name,
            since,
            drain: draining.clone(),
        });
        let control = threads::current_thread()?;
        let mut server = Self {
            first,
            current,
            reloads,
            public: sockets.public_address,
            admin: sockets.admin_address,
            drain,
            stopped,
            drain_timeout,
            backlog: sockets.backlog,
            runtimes: vec![control.handle().clone()],
            workers: Vec::new(),
            helpers: sandbox_thread.into_iter().collect(),
        };
        let work = control::run(sockets.admin, admin, clock, changes, stopping);
        server
            .helpers
            .push(threads::spawn("control", control, work)?);
        server.start_workers(runtime, workers, sockets.public, &acceptor, &draining)?;
        Ok(server)
    }

    fn start_workers(
        &mut self,
        runtime: Runtime,
        workers: usize,
        socket: std::net::TcpListener,
        acceptor: &Arc<Acceptor>,
        drain: &Drain,
    ) -> Result<(), StartError> {
        match runtime {
            Runtime::PerCore => {
                for _ in 0..workers {
                    // All share one socket rather than the port: an idle worker
                    // accepts, and no other process can bind the port.
                    let socket = threads::duplicate(&socket)?;
                    self.start_worker(threads::current_thread()?, socket, acceptor, drain)?;
                }
                Ok(())
            }
            Runtime::WorkStealing => {
                let pool = threads::multi_thread(workers)?;
                self.start_worker(pool, socket, acceptor, drain)
            }
        }
    }

    fn start_worker(
        &mut self,
        runtime: Tokio,
        socket: std::net::TcpListener,
        acceptor: &Arc<Acceptor>,
        drain: &Drain,
    ) -> Result<(), StartError> {
        let (acceptor, drain) = (acceptor.clone(), drain.clone());
        let totals = self.first.meter().totals.clone();
        let drain_timeout = self.drain_timeout.clone();
        let backlog = self.backlog;
        self.runtimes.push(runtime.handle().clone());
        self.workers
            .push(threads::spawn("worker", runtime, async move {
                match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        // A task of its own, so that a work-stealing runtime can move it.
                        let accepting = tokio::spawn(acceptor.accept(listener, backlog, drain));
                        if let Err(error) = accepting.await {
                            tracing::error!(%error, "accepting connections has failed");
                        }
                    }
                    Err(error) => tracing::error!(%error, "the public socket cannot be used"),
                }
                // Every worker waits for all connections: one may wait for a fetch
                // that runs on another worker.
                let open = || totals.connections.load(Relaxed);
                let finished = async {
                    while open() > 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                };
                let timeout = drain_timeout.get();
                if tokio::time::timeout(timeout, finished).await.is_err() {
                    tracing::warn!(
                        connections = open(),
                        "drain_timeout has passed; open connections are closed"
                    );
                }
            })?);
        Ok(())
    }

    /// The address of the public listener.
    pub fn public(&self) -> SocketAddr {
        self.public
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The gateway that it started with; a reload replaces it.
    pub fn first_gateway(&self) -> &Arc<Gateway> {
        &self.first
    }

    /// The gateway that serves now.
    pub fn current_gateway(&self) -> Arc<Gateway> {
        self.current.load_full()
    }

    /// Reads the configuration and the secrets again, and serves by them.
    ///
    /// # Errors
    /// Everything that is wrong with them; nothing has changed then.
    pub fn reload(&self) -> ReloadResult {
        self.reloads.run()
    }

    /// The reloads of this server.
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// All runtimes of this server.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.runtimes.clone()
    }

    /// Stops accepting connections; requests in progress finish.
    pub fn drain(&self) {
        self.drain.send_replace(true);
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
