//! The open public listeners: their sockets, and the loops that accept from them.
//! A reload opens and closes some of them, and leaves the others alone.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::StartError;
use super::sockets::{BoundSocket, SocketFile, bind};
use crate::listener::{
    Acceptor, Backlog, BoundListener, ListenAddress, Listener, ListenerProtocol, ListenerSettings,
    ListeningSocket,
};
use crate::meter::TlsCounts;
use crate::sync::lock;
use crate::tls::{Tls, TlsServer};

/// How long a reload waits at most for the sockets of closed listeners to be closed.
const MAX_CLOSING: Duration = Duration::from_secs(5);

/// The public listeners that are open now.
pub(super) struct Listeners {
    acceptor: Arc<Acceptor>,
    tls: Tls,
    /// The runtimes that accept.
    workers: Vec<Handle>,
    /// Accept loops that have not ended.
    accepting: Arc<AtomicUsize>,
    open: Mutex<OpenListeners>,
}

#[derive(Default)]
struct OpenListeners {
    listeners: Vec<OpenListener>,
    /// Whether all are closed, and none can be opened any more.
    is_draining: bool,
}

/// A listener that is open.
struct OpenListener {
    settings: ListenerSettings,
    bound: ListenAddress,
    is_ipv6_only: bool,
    backlog: Backlog,
    listener: Arc<Listener>,
    /// Removes the file of a unix socket.
    file: Option<SocketFile>,
    /// Its accept loops that have not ended.
    accepting: Arc<AtomicUsize>,
}

/// A change of the listeners that is known to succeed, but for file descriptors and for
/// `deferred`.
pub(super) struct ListenerChange {
    wanted: Vec<LoadedListener>,
    added: Vec<(LoadedListener, BoundSocket)>,
    /// New ones whose addresses overlap with some that this change closes: they can be
    /// bound only after that.
    deferred: Vec<LoadedListener>,
}

/// The settings of a listener, with its certificates.
#[derive(Clone)]
pub(super) struct LoadedListener {
    pub(super) settings: ListenerSettings,
    tls: Option<Arc<TlsServer>>,
    /// Whether `[::]` leaves IPv4 to another listener.
    is_ipv6_only: bool,
}

impl LoadedListener {
    /// Loads the certificates of listeners, apart from those in use that have not changed.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(super) fn load(
        all: Vec<ListenerSettings>,
        tls: &Tls,
        in_use: &[Arc<TlsServer>],
        now: SystemTime,
    ) -> Result<Vec<Self>, StartError> {
        let mut problems = Vec::new();
        let addresses: Vec<_> = all.iter().map(|one| one.address.clone()).collect();
        let load = |settings: ListenerSettings| {
            let mut others = addresses.iter();
            let is_ipv6_only = others.any(|other| settings.address.leaves_ipv4_to(other));
            let server = settings
                .tls
                .as_ref()
                .map(|settings| tls.server(settings, in_use, now));
            let tls = server.transpose().unwrap_or_else(|found| {
                problems.extend(found);
                None
            });
            Self {
                settings,
                tls,
                is_ipv6_only,
            }
        };
        let all = all.into_iter().map(load).collect();
        match problems.is_empty() {
            true => Ok(all),
            false => Err(StartError::Certificates(problems)),
        }
    }

    /// Binds its address.
    pub(super) fn bind(&self) -> Result<BoundSocket, StartError> {
        let settings = &self.settings;
        bind(&settings.address, settings.mode, self.is_ipv6_only)
    }
}

impl Listeners {
    /// Opens no listener yet.
    pub(super) fn new(acceptor: Arc<Acceptor>, tls: Tls, workers: Vec<Handle>) -> Arc<Self> {
        Arc::new(Self {
            acceptor,
            tls,
            workers,
            accepting: Arc::default(),
            open: Mutex::default(),
        })
    }

    /// Accepts from all of these sockets.
    ///
    /// # Errors
    /// Where there are no more file descriptors.
    pub(super) fn add_all(
        &self,
        all: Vec<LoadedListener>,
        sockets: Vec<BoundSocket>,
    ) -> Result<(), StartError> {
        let mut each = all.into_iter().zip(sockets);
        each.try_for_each(|(loaded, socket)| self.add(loaded, socket))
    }

    /// Accepts from a socket.
    ///
    /// # Errors
    /// Where there are no more file descriptors, or the process stops.
    fn add(&self, loaded: LoadedListener, socket: BoundSocket) -> Result<(), StartError> {
        let LoadedListener {
            settings,
            tls,
            is_ipv6_only,
        } = loaded;
        let BoundSocket {
            socket,
            address: bound,
            file,
            backlog,
        } = socket;
        let mut open = self.lock();
        if open.is_draining {
            return Err(StartError::Stopping(bound));
        }
        let listener = Arc::new(Listener {
            protocol: ArcSwap::from_pointee(ListenerProtocol::of(&settings, tls)),
            drain: watch::Sender::new(false),
        });
        let mut handles = vec![socket];
        while let Some(first) = handles
            .first()
            .filter(|_| handles.len() < self.workers.len())
        {
            // All share one socket rather than the port: an idle worker accepts,
            // and no other process can bind the port.
            let another = first.try_clone().map_err(|error| StartError::System {
                what: "another handle of a socket",
                error,
            })?;
            handles.push(another);
        }
        let of_listener = Arc::default();
        for (worker, socket) in self.workers.iter().zip(handles) {
            let accepting = AcceptLoop::begin([&self.accepting, &of_listener]);
            self.accept(worker, socket, &listener, (backlog, accepting), &bound);
        }
        open.listeners.push(OpenListener {
            settings,
            bound,
            is_ipv6_only,
            backlog,
            listener,
            file,
            accepting: of_listener,
        });
        Ok(())
    }

    fn accept(
        &self,
        worker: &Handle,
        socket: ListeningSocket,
        listener: &Arc<Listener>,
        (backlog, accepting): (Backlog, AcceptLoop),
        bound: &ListenAddress,
    ) {
        let accept = self
            .acceptor
            .clone()
            .accept(socket, listener.clone(), backlog);
        let bound = bound.clone();
        worker.spawn(async move {
            if let Err(error) = accept.await {
                tracing::error!(%error, "the socket {bound} cannot be used");
            }
            drop(accepting);
        });
    }

    /// Prepares for these listeners: loads certificates, binds the sockets of new ones.
    ///
    /// # Errors
    /// Where a certificate is refused or a socket cannot be bound. Nothing has changed
    /// then.
    pub(super) fn prepare(
        &self,
        wanted: Vec<ListenerSettings>,
        now: SystemTime,
    ) -> Result<ListenerChange, StartError> {
        let wanted = LoadedListener::load(wanted, &self.tls, &self.certificates(), now)?;
        let open = self.lock();
        let mut closed: Vec<_> = open.listeners.iter().collect();
        let mut new = wanted.clone();
        // Several may have the same address with port 0: each stands for another.
        new.retain(|new| {
            let at = closed.iter().position(|open| open.is(new));
            at.map(|at| closed.swap_remove(at)).is_none()
        });
        let is_deferred = |new: &LoadedListener| closed.iter().any(|open| open.blocks(new));
        let (deferred, new): (Vec<_>, Vec<_>) = new.into_iter().partition(is_deferred);
        let added = new.into_iter().map(|new| {
            let socket = new.bind()?;
            Ok((new, socket))
        });
        let added = added.collect::<Result<_, StartError>>()?;
        drop(open);
        Ok(ListenerChange {
            wanted,
            added,
            deferred,
        })
    }

    /// Opens, changes and closes listeners. Connections of closed ones finish their
    /// requests. Waits until their sockets are closed, so it must not run on a worker.
    /// Returns what the operator must know, such as listeners that could not be opened.
    pub(super) fn apply(&self, change: ListenerChange) -> Vec<String> {
        let mut notes = Vec::new();
        let closed = self.close_all_but(&change.wanted);
        for (loaded, socket) in change.added {
            let failed = self.open(loaded, socket).err();
            notes.extend(failed.map(|error| error.to_string()));
        }
        // The next reload may open the same address.
        for _ in 0..MAX_CLOSING.as_millis() {
            if closed.iter().all(OpenListener::is_closed) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        for new in change.deferred {
            let bound = new.bind();
            let opened = bound.and_then(|socket| self.open(new.clone(), socket));
            let Err(error) = opened else { continue };
            notes.push(error.to_string());
            for old in closed.iter().filter(|old| old.blocks(&new)) {
                let reopened = self.reopen(old);
                notes.push(match reopened {
                    Ok(()) => format!("{} stays open instead", old.bound),
                    Err(error) => error.to_string(),
                });
            }
        }
        let inherited = closed.iter().filter(|old| old.backlog == Backlog::Shared);
        notes.extend(inherited.map(|old| {
            format!(
                "{} is not served any more, but the supervisor keeps its socket open: connections to it get no answer until the supervisor closes it",
                old.bound
            )
        }));
        notes
    }

    /// Changes the listeners that stay, and closes the others.
    fn close_all_but(&self, wanted: &[LoadedListener]) -> Vec<OpenListener> {
        let mut wanted: Vec<_> = wanted.iter().collect();
        let mut open = self.lock();
        let mut closed = Vec::new();
        for mut listener in std::mem::take(&mut open.listeners) {
            match wanted.iter().position(|wanted| listener.is(wanted)) {
                Some(at) => {
                    listener.change(wanted.remove(at));
                    open.listeners.push(listener);
                }
                None => {
                    tracing::info!("{} is closed", listener.bound);
                    listener.close();
                    closed.push(listener);
                }
            }
        }
        closed
    }

    fn open(&self, loaded: LoadedListener, socket: BoundSocket) -> Result<(), StartError> {
        let address = socket.address.clone();
        self.add(loaded, socket)?;
        tracing::info!("{address} is open");
        Ok(())
    }

    /// Opens a listener again that was closed.
    fn reopen(&self, old: &OpenListener) -> Result<(), StartError> {
        let socket = bind(&old.bound, old.settings.mode, old.is_ipv6_only)?;
        let loaded = LoadedListener {
            settings: old.settings.clone(),
            tls: old.tls(),
            is_ipv6_only: old.is_ipv6_only,
        };
        self.open(loaded, socket)
    }

    /// Closes all, for good. Requests under way finish.
    pub(super) fn drain(&self) {
        let mut open = self.lock();
        open.is_draining = true;
        open.listeners.iter_mut().for_each(OpenListener::close);
    }

    /// Whether no loop accepts any more.
    pub(super) fn are_closed(&self) -> bool {
        self.accepting.load(SeqCst) == 0
    }

    /// The address of each, how it is configured, and its certificates.
    pub(super) fn bound(&self, now: SystemTime) -> Vec<BoundListener> {
        let open = self.lock();
        let each = open.listeners.iter().map(|open| BoundListener {
            address: open.bound.clone(),
            settings: open.settings.clone(),
            certificates: open.tls().map_or_else(Vec::new, |tls| tls.status(now)),
        });
        each.collect()
    }

    /// Replaces the certificates whose files have changed, and logs those that expire
    /// soon. Reads files.
    pub(super) fn maintain_certificates(&self, counts: &TlsCounts, now: SystemTime) {
        self.tls.maintain(&self.certificates(), counts, now);
    }

    /// The certificates in use.
    fn certificates(&self) -> Vec<Arc<TlsServer>> {
        let open = self.lock();
        let servers = open.listeners.iter().filter_map(OpenListener::tls);
        servers.collect()
    }

    fn lock(&self) -> MutexGuard<'_, OpenListeners> {
        lock(&self.open)
    }
}

impl OpenListener {
    fn tls(&self) -> Option<Arc<TlsServer>> {
        self.listener.protocol.load().tls.clone()
    }

    /// Whether this is the listener that is wanted, though its other settings may change.
    fn is(&self, wanted: &LoadedListener) -> bool {
        // What an inherited socket accepts was decided by the supervisor.
        let is_same_socket =
            self.backlog == Backlog::Shared || self.is_ipv6_only == wanted.is_ipv6_only;
        self.settings.address == wanted.settings.address && is_same_socket
    }

    /// Whether another one can be bound only after this one is closed. An inherited socket
    /// stays open even then.
    fn blocks(&self, new: &LoadedListener) -> bool {
        self.backlog == Backlog::Ours && self.bound.overlaps(&new.settings.address)
    }

    /// Accepts no more connections.
    fn close(&mut self) {
        // Before the socket is closed.
        self.file = None;
        self.listener.drain.send_replace(true);
    }

    /// Whether its socket is closed.
    fn is_closed(&self) -> bool {
        self.accepting.load(SeqCst) == 0
    }

    fn change(&mut self, wanted: &LoadedListener) {
        let LoadedListener {
            settings: wanted,
            tls,
            is_ipv6_only: _,
        } = wanted;
        let protocol = ListenerProtocol::of(wanted, tls.clone());
        self.listener.protocol.store(Arc::new(protocol));
        if let Some(file) = &self.file
            && wanted.mode != self.settings.mode
        {
            file.set_mode(wanted.mode);
        }
        self.settings.clone_from(wanted);
    }
}

/// An accept loop, until it is dropped: it counts among those of its listener and among all.
struct AcceptLoop([Arc<AtomicUsize>; 2]);

impl AcceptLoop {
    fn begin(counts: [&Arc<AtomicUsize>; 2]) -> Self {
        let count = |count: &Arc<AtomicUsize>| {
            count.fetch_add(1, SeqCst);
            count.clone()
        };
        Self(counts.map(count))
    }
}

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        for count in &self.0 {
            count.fetch_sub(1, SeqCst);
        }
    }
}
