//! From settings to a running server: sockets, threads, and their end.
//!
//! Each worker is a thread with a runtime of its own (or all share one, if so
//! configured); one more thread has the admin side and the housekeeping. The
//! binary starts a [`Server`], says that it is ready, and waits for a signal.
//! Gateways are made in `serve::generation`, and follow each other by reload
//! (`serve::successor`).

mod generation;
mod successor;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
pub use generation::gateway;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use successor::{Fixed, Patience, Successor};
pub use successor::{Fresh, Reread};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime as Tokio};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{Admin, Token};
use crate::clock::Clock;
use crate::config::{Runtime, base_url};
use crate::gateway::Gateway;
use crate::listener::{Acceptor, Backlog, Current, Drain};
use crate::probe;
use crate::probe::standby;
use crate::reload::{Reloaded, Reloads};
use crate::sandbox::{self, Sandbox};
use crate::supervisor::{Handed, Supervisor};
use crate::upstream::SetupError;
use crate::upstream::client::resolver::Names;

/// What a server is made of.
pub struct Options {
    /// Its configuration and its secrets.
    pub fresh: Fresh,
    /// Where the configuration came from.
    pub config_name: String,
    /// Reads both again for a reload.
    pub reread: Reread,
    /// The upstream that is to run in this process, in place of the
    /// configured one.
    pub sandbox: Option<Sandbox>,
    /// Who knows the addresses of names.
    pub names: Names,
    /// What time it is.
    pub clock: Clock,
    /// Sockets that listen already.
    pub handed: Handed,
    /// Who is told of reloads.
    pub supervisor: Supervisor,
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
        "the admin side is on {0}, off loopback, and there is no token: set ORDGATE_ADMIN_TOKEN or admin.token_file, or have admin.listen on 127.0.0.1"
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

impl StartError {
    /// Why nobody may be let in at an address without a token, where that is so.
    pub fn open_admin(address: SocketAddr, token: Option<&Token>) -> Option<Self> {
        let is_open = !address.ip().to_canonical().is_loopback() && token.is_none();
        is_open.then_some(Self::OpenAdmin(address))
    }
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
    first: Arc<Gateway>,
    present: Current,
    reloads: Arc<Reloads>,
    public: SocketAddr,
    admin: SocketAddr,
    drain: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
    drain_timeout: Arc<Patience>,
    backlog: Backlog,
    runtimes: Vec<Handle>,
    workers: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Waiting connections that the kernel holds for us.
const BACKLOG: i32 = 4096;
/// Bytes that the kernel takes of an answer beyond those that are on their way to
/// the client. With more of them a slow client would seem to take nothing for as
/// long as it empties what the kernel holds; and they are memory as well.
const KERNEL_BACKLOG: u32 = 64 * 1024;
/// How often clients and answers that are past use are forgotten, and the wall
/// clock is followed.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

impl Server {
    /// Binds, starts the threads, and is ready when it returns.
    ///
    /// # Errors
    /// Where a socket, a thread or the upstream's setup fails; nothing runs
    /// then.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let Options {
            fresh,
            config_name,
            reread,
            sandbox,
            names,
            clock,
            handed,
            supervisor,
        } = options;
        let Fresh {
            mut config,
            keys,
            admin_token,
        } = fresh;
        let fixed = Fixed::of(&config);
        let since = clock.now();
        for warning in config.warnings(&keys) {
            tracing::warn!("{warning}");
        }
        let (drain, draining) = watch::channel(false);
        let (stopped, stopping) = watch::channel(false);
        let mut helpers = Vec::new();
        let backlog = match handed.public {
            Some(_) => Backlog::Shared,
            None => Backlog::Ours,
        };
        let public_socket = socket("server.listen", config.server.listen, handed.public)?;
        let admin_socket = socket("admin.listen", config.admin.listen, handed.admin)?;
        let (public, admin_address) = (address(&public_socket)?, address(&admin_socket)?);
        if let Some(why) = StartError::open_admin(admin_address, admin_token.as_ref()) {
            return Err(why);
        }
        let mut sandbox_url = None;
        if let Some(sandbox) = sandbox {
            let (socket, address) = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            sandbox_url = base_url(&format!("http://{address}"));
            config.ask_all_at(sandbox_url.as_ref());
            let mut stop = stopping.clone();
            helpers.push(thread("sandbox", current_thread()?, async move {
                match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        let stop = async move { drop(stop.wait_for(|stop| *stop).await) };
                        sandbox.serve(sandbox::Api::Both, listener, stop).await;
                    }
                    Err(error) => tracing::error!(%error, "the sandbox's socket is no use"),
                }
            })?);
        }
        let workers = match config.server.workers {
            0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            workers => workers,
        };
        let drain_timeout = Patience::new(config.server.drain_timeout);
        let runtime = config.server.runtime;
        let connections = config.server.connections;
        let admin_hosts = config.admin.hosts.clone();
        let ready_needs_tips = Arc::new(AtomicBool::new(config.admin.ready_needs_tips));
        let first = gateway(config, &keys, &names, clock.clone(), None)?;
        let present: Current = Arc::new(ArcSwap::new(first.clone()));
        let door = Acceptor::new(present.clone(), connections);
        let shown = present.clone();
        let token = Arc::new(Mutex::new(admin_token));
        let hosts = Arc::new(ArcSwap::from_pointee(admin_hosts));
        let (changed, changes) = watch::channel(());
        let successor = Successor {
            reread,
            config_name: config_name.clone(),
            fixed,
            admin: admin_address,
            sandbox: sandbox_url,
            names,
            present: present.clone(),
            door: door.clone(),
            token: token.clone(),
            hosts: hosts.clone(),
            ready_needs_tips: ready_needs_tips.clone(),
            drain_timeout: drain_timeout.clone(),
            changed,
        };
        let apply = Box::new(move || successor.take_over());
        let reloads = Reloads::new(apply, clock.clone(), supervisor);
        let reloads = Arc::new(reloads);
        let admin = Arc::new(Admin {
            present: present.clone(),
            token,
            hosts,
            ready_needs_tips,
            reloads: reloads.clone(),
            listen: public,
            workers,
            config: config_name,
            since,
            drain: draining.clone(),
        });
        let mut stop = stopping.clone();
        let control = current_thread()?;
        let runtimes = vec![control.handle().clone()];
        helpers.push(thread("control", control, async move {
            let listener = match TcpListener::from_std(admin_socket) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "the admin socket is no use"),
            };
            let housekeeping = upkeep(|| {
                let (gateway, clock) = (present.load_full(), clock.clone());
                move || {
                    clock.follow();
                    gateway.maintain();
                }
            });
            tokio::select! {
                () = admin.serve(listener) => {}
                () = housekeeping => {}
                () = probe_tips(present.clone(), changes) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        })?);
        let mut server = Self {
            first,
            present: shown,
            reloads,
            public,
            admin: admin_address,
            drain,
            stopped,
            drain_timeout,
            backlog,
            runtimes,
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
        door: &Arc<Acceptor>,
        drain: &Drain,
    ) -> Result<(), StartError> {
        let (door, drain) = (door.clone(), drain.clone());
        let totals = self.first.meter.totals.clone();
        let drain_timeout = self.drain_timeout.clone();
        let backlog = self.backlog;
        self.runtimes.push(runtime.handle().clone());
        self.workers.push(thread("worker", runtime, async move {
            let mut accepting = Vec::new();
            for socket in sockets {
                match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        let accept = door.clone().accept(listener, backlog, drain.clone());
                        accepting.push(tokio::spawn(accept));
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
                while totals.connections.load(Relaxed) > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let open = || totals.connections.load(Relaxed);
            if tokio::time::timeout(drain_timeout.get(), finished)
                .await
                .is_err()
            {
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

    /// What it began to serve; a reload puts another in its place.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.first
    }

    /// What it serves now.
    pub fn present(&self) -> Arc<Gateway> {
        self.present.load_full()
    }

    /// Reads the configuration and the secrets again, and serves as they say.
    ///
    /// # Errors
    /// All that is wrong with them; it serves as before then.
    pub fn reload(&self) -> Reloaded {
        self.reloads.run()
    }

    /// Its reloads.
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// The runtimes that all of it runs on.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.runtimes.clone()
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

/// Does the work of the maintenance again and again, each time on a thread of its
/// own: it looks at the whole store, and this runtime answers the operator and
/// asks for tips. That the thread ends each time has an effect of its own: the
/// allocator returns memory that has been free for a second when it frees more,
/// or when a thread ends. So after a peak it is returned even if nothing happens.
async fn upkeep<W: FnOnce() + Send + 'static>(work: impl Fn() -> W) {
    loop {
        tokio::time::sleep(HOUSEKEEPING).await;
        let (tell, done) = tokio::sync::oneshot::channel();
        let work = work();
        let spawned = std::thread::Builder::new()
            .name("ordgate-upkeep".to_owned())
            .spawn(move || {
                work();
                // The server may have ended meanwhile.
                let _ = tell.send(());
            });
        if let Err(error) = spawned {
            tracing::warn!(%error, "the system refuses a thread for maintenance, which is tried again in 5 s");
            continue;
        }
        if done.await.is_err() {
            tracing::error!("maintenance has panicked; it is tried again in 5 s");
        }
    }
}

/// Asks for the tips of whichever gateway is the present one.
async fn probe_tips(present: Current, mut changes: watch::Receiver<()>) {
    loop {
        changes.mark_unchanged();
        let mut probes = JoinSet::new();
        let gateway = present.load_full();
        for tip in gateway.tips() {
            probes.spawn(probe::watch(gateway.fill.clone(), tip));
        }
        for (number, upstream) in gateway.upstreams.iter() {
            if upstream.settings().urls.len() > 1 {
                let (fill, upstream) = (gateway.fill.clone(), upstream.clone());
                probes.spawn(standby::watch(fill, upstream, gateway.tips_of(number)));
            }
        }
        drop(gateway);
        if changes.changed().await.is_err() {
            // There will be no other.
            return std::future::pending().await;
        }
    }
}

/// The socket of a side: the one that was handed over, or one on the address that
/// is configured.
fn socket(
    key: &str,
    configured: SocketAddr,
    handed: Option<std::net::TcpListener>,
) -> Result<std::net::TcpListener, StartError> {
    let Some(socket) = handed else {
        return Ok(bind(configured)?.0);
    };
    bound_backlog(SockRef::from(&socket));
    let address = address(&socket)?;
    if address != configured {
        tracing::info!(
            "{key} is {configured}, but a socket on {address} was handed over: that one is used"
        );
    }
    Ok(socket)
}

fn address(socket: &std::net::TcpListener) -> Result<SocketAddr, StartError> {
    let address = socket.local_addr();
    address.map_err(|error| StartError::System {
        what: "the address of a socket",
        error,
    })
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
        bound_backlog(SockRef::from(&socket));
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = std::net::TcpListener::from(socket);
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open().map_err(|error| StartError::Bind { address, error })
}

/// Bounds what the kernel takes of an answer. Accepted connections have it from
/// the listening socket.
fn bound_backlog(socket: SockRef<'_>) {
    #[cfg(any(target_os = "android", target_os = "linux"))]
    if let Err(error) = socket.set_tcp_notsent_lowat(KERNEL_BACKLOG) {
        tracing::warn!(%error, "TCP_NOTSENT_LOWAT cannot be set: the kernel may hold more of each answer");
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    drop(socket);
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn maintenance_runs_off_this_runtime_each_time_on_a_thread_that_ends() {
        let (tell, told) = mpsc::channel::<ThreadId>();
        let maintenance = upkeep(|| {
            let tell = tell.clone();
            move || tell.send(thread::current().id()).unwrap()
        });
        let rounds = async {
            let mut ids = Vec::new();
            while ids.len() < 2 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                ids.extend(told.try_iter());
            }
            ids
        };
        let ids = tokio::select! {
            ids = rounds => ids,
            () = maintenance => Vec::new(),
        };
        assert_ne!(ids[0], ids[1]);
        assert!(!ids.contains(&thread::current().id()));
    }
}
