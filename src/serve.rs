//! From settings to a running server: sockets, threads, and their end.
//!
//! Each worker is a thread with a runtime of its own (or all share one, if so
//! configured); one more thread has the admin side and the housekeeping. The
//! binary starts a [`Server`], says that it is ready, and waits for a signal.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime as Tokio};
use tokio::sync::watch;

use crate::access_log::AccessLog;
use crate::admin::{Admin, Token};
use crate::cache::Cache;
use crate::cache::etag::etag;
use crate::cache::targeted::TargetList;
use crate::chain::Chain;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::config::{Config, Runtime, base_url};
use crate::fill::Fill;
use crate::gateway::{Document, Gateway};
use crate::limit::Limit;
use crate::listener::{Door, Drain};
use crate::meter::Meter;
use crate::openapi;
use crate::probe;
use crate::relay::Relay;
use crate::respond::Respond;
use crate::sandbox::Sandbox;
use crate::upstream::keys::ApiKey;
use crate::upstream::{Ask, SetupError, Upstream};

/// What a server is made of.
pub struct Options {
    /// The checked configuration.
    pub config: Config,
    /// Where it came from.
    pub config_name: String,
    /// The provider's keys.
    pub keys: Vec<ApiKey>,
    /// What the admin side demands.
    pub admin_token: Option<Token>,
    /// The upstream that is to run in this process, in place of the
    /// configured one.
    pub sandbox: Option<Sandbox>,
    /// What time it is.
    pub clock: Clock,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot listen.
    #[error("cannot listen on {address}: {error}{}", advice(error))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The admin side would be open to the network.
    #[error(
        "admin.listen is {0}, off loopback, and there is no token: set ORDGATE_ADMIN_TOKEN or admin.token_file, or listen on 127.0.0.1"
    )]
    OpenAdmin(SocketAddr),
    /// The upstream cannot be called.
    #[error(transparent)]
    Upstream(#[from] SetupError),
    /// The system gives no thread, no runtime or no randomness.
    #[error("the system refuses {what}: {error}")]
    System {
        /// What it refuses.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// What may be behind a socket's refusal, where its kind tells.
fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::AddrInUse {
        "; another program may have it, and port 0 takes a free one"
    } else if error.kind() == io::ErrorKind::AddrNotAvailable {
        "; the address is none of this machine's"
    } else {
        ""
    }
}

/// A running server.
pub struct Server {
    gateway: Arc<Gateway>,
    public: SocketAddr,
    admin: SocketAddr,
    drain: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    drain_timeout: Duration,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Waiting connections that the kernel holds for us.
const BACKLOG: i32 = 4096;
/// How often callers and answers that are past use are forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

impl Server {
    /// Binds, starts the threads, and is ready when it returns.
    ///
    /// # Errors
    /// Where a socket, a thread or the upstream's setup fails; nothing runs
    /// then.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let Options {
            mut config,
            config_name,
            keys,
            admin_token,
            sandbox,
            clock,
        } = options;
        let since = clock.now();
        for warning in config.warnings(!keys.is_empty()) {
            tracing::warn!("{warning}");
        }
        if !config.admin.listen.ip().is_loopback() && admin_token.is_none() {
            return Err(StartError::OpenAdmin(config.admin.listen));
        }
        let (drain, draining) = watch::channel(false);
        let (stopped, stopping) = watch::channel(false);
        let mut helpers = Vec::new();
        let (public_socket, public) = bind(config.server.listen)?;
        let (admin_socket, admin_address) = bind(config.admin.listen)?;
        if let Some(sandbox) = sandbox {
            let (socket, address) = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            config.upstream.url = base_url(&format!("http://{address}"));
            let mut stop = stopping.clone();
            helpers.push(thread("sandbox", current_thread()?, async move {
                match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        let stop = async move { drop(stop.wait_for(|stop| *stop).await) };
                        sandbox.serve(listener, stop).await;
                    }
                    Err(error) => tracing::error!(%error, "the sandbox's socket is no use"),
                }
            })?);
        }
        let workers = match config.server.workers {
            0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            workers => workers,
        };
        let drain_timeout = config.server.drain_timeout;
        let runtime = config.server.runtime;
        let connections = config.server.connections;
        let gateway = gateway(config, keys, clock, None)?;
        let door = Door::new(gateway.clone(), connections);
        let admin = Arc::new(Admin {
            gateway: gateway.clone(),
            token: admin_token,
            listen: public,
            workers,
            config: config_name,
            since,
            drain: draining.clone(),
        });
        let mut stop = stopping.clone();
        let housekeeper = gateway.clone();
        helpers.push(thread("control", current_thread()?, async move {
            let listener = match TcpListener::from_std(admin_socket) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "the admin socket is no use"),
            };
            for tip in housekeeper.tips() {
                tokio::spawn(probe::watch(housekeeper.fill.clone(), tip));
            }
            let housekeeping = async {
                loop {
                    tokio::time::sleep(HOUSEKEEPING).await;
                    housekeeper.keep_house();
                }
            };
            tokio::select! {
                () = admin.serve(listener) => {}
                () = housekeeping => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        })?);
        let mut server = Self {
            gateway,
            public,
            admin: admin_address,
            drain,
            stopped,
            drain_timeout,
            workers: Vec::new(),
            helpers,
        };
        match runtime {
            Runtime::PerCore => {
                for _ in 0..workers {
                    // One socket for all: whichever worker is free accepts, and
                    // no other process can share the port unnoticed.
                    let socket = public_socket
                        .try_clone()
                        .map_err(|error| StartError::System {
                            what: "another handle of a socket",
                            error,
                        })?;
                    server.work(current_thread()?, vec![socket], &door, &draining)?;
                }
            }
            Runtime::WorkStealing => {
                let pool = Builder::new_multi_thread()
                    .worker_threads(workers)
                    .enable_all()
                    .build();
                let pool = pool.map_err(|error| StartError::System {
                    what: "a runtime",
                    error,
                })?;
                server.work(pool, vec![public_socket], &door, &draining)?;
            }
        }
        Ok(server)
    }

    fn work(
        &mut self,
        runtime: Tokio,
        sockets: Vec<std::net::TcpListener>,
        door: &Arc<Door>,
        drain: &Drain,
    ) -> Result<(), StartError> {
        let (door, drain) = (door.clone(), drain.clone());
        let gateway = self.gateway.clone();
        let drain_timeout = self.drain_timeout;
        self.workers.push(thread("worker", runtime, async move {
            let mut accepting = Vec::new();
            for socket in sockets {
                match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        accepting.push(tokio::spawn(door.clone().accept(listener, drain.clone())));
                    }
                    Err(error) => tracing::error!(%error, "the public socket is no use"),
                }
            }
            for task in accepting {
                if let Err(error) = task.await {
                    tracing::error!(%error, "accepting has failed");
                }
            }
            // Every worker waits for all connections: one may be waiting for
            // what another's task fetches.
            let finished = async {
                while gateway.meter.connections.load(Relaxed) > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let open = || gateway.meter.connections.load(Relaxed);
            if tokio::time::timeout(drain_timeout, finished).await.is_err() {
                tracing::warn!(
                    connections = open(),
                    "drain_timeout has passed; what is still open is closed"
                );
            }
        })?);
        Ok(())
    }

    /// Where the public side listens.
    pub fn public(&self) -> SocketAddr {
        self.public
    }

    /// Where the admin side listens.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// What it serves.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Stops accepting, and lets what is under way finish.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Waits until all is finished, within `drain_timeout` after
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

/// Makes the gateway: every room from its settings. Where another stands in for
/// the upstream, that one is asked on routes of the API.
///
/// # Errors
/// Where the upstream cannot be called or the system has no randomness.
pub fn gateway(
    config: Config,
    keys: Vec<ApiKey>,
    clock: Clock,
    stand_in: Option<Arc<dyn Ask>>,
) -> Result<Arc<Gateway>, StartError> {
    let limit = Limit::new(&config.limit, clock.clone());
    let policy = limit.as_ref().map(|limit| limit.policy().clone());
    let text = Bytes::from(openapi::document(&config.routes).to_string());
    let mut seed = [0; 8];
    SystemRandom::new()
        .fill(&mut seed)
        .map_err(|_unspecified| StartError::System {
            what: "randomness",
            error: io::Error::other("no source of it"),
        })?;
    let seed = u64::from_ne_bytes(seed);
    let routes = Arc::new(config.routes);
    let chain = Arc::new(Chain::new(&config.chain));
    let cache = Cache::new(config.cache_bytes, chain.clone());
    let upstream = Arc::new(Upstream::new(config.upstream, keys, clock.clone())?);
    let respond = Arc::new(Respond::new(&config.respond, policy));
    let asked: Arc<dyn Ask> = match stand_in {
        Some(stand_in) => stand_in,
        None => upstream.clone(),
    };
    let fill = Fill::new(
        routes.clone(),
        cache.clone(),
        chain,
        asked,
        respond.clone(),
        clock.clone(),
    );
    let looks_ahead = config.chain.look_ahead.refresh > 0;
    let gateway = Arc::new(Gateway {
        trust: config.trust,
        limit,
        fill,
        looks_ahead,
        relay: Arc::new(Relay {
            routes: routes.clone(),
            cache: cache.clone(),
            fetching: Collapse::new(),
            upstream: upstream.clone(),
            respond: respond.clone(),
            targets: TargetList::new(config.targeted),
            clock: clock.clone(),
            seed,
        }),
        meter: Meter::new(routes.routes().len()),
        access_log: AccessLog::new(&config.access_log),
        documents: vec![Document {
            path: openapi::PATH,
            media: "application/json",
            etag: etag(&text),
            text,
        }],
        cache,
        upstream,
        respond,
        routes,
        stale_wait: config.stale_wait,
        clock,
        seed,
    });
    if !gateway.tips().is_empty() {
        gateway.upstream.keep_for_probes();
    }
    Ok(gateway)
}

/// A listening socket that tokio can take, and where it really listens.
///
/// # Errors
/// Where the address is taken or not this machine's.
pub fn bind(address: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), StartError> {
    let open = || -> io::Result<(std::net::TcpListener, SocketAddr)> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart must not wait for the last run's connections to be
        // forgotten.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = std::net::TcpListener::from(socket);
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open().map_err(|error| StartError::Bind { address, error })
}

fn current_thread() -> Result<Tokio, StartError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| StartError::System {
        what: "a runtime",
        error,
    })
}

/// Runs a future on a thread and a runtime of its own.
fn thread(
    name: &str,
    runtime: Tokio,
    work: impl Future<Output = ()> + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let spawned = std::thread::Builder::new()
        .name(format!("ordgate-{name}"))
        .spawn(move || {
            runtime.block_on(work);
            // What is left over has had its time: do not wait for blocking look-ups
            // of names.
            runtime.shutdown_background();
        });
    spawned.map_err(|error| StartError::System {
        what: "a thread",
        error,
    })
}
