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
const MAX_CLOSING: Duration = Duration::from_secs(1);

/// The public listeners that are open now.
pub(super) struct Listeners {
    acceptor: Arc<Acceptor>,
    tls: Tls,
    /// The runtimes that accept.
    workers: Vec<Handle>,
    /// Accept loops that have not ended.
    accepting: Arc<AtomicUsize>,
    open: Mutex<Vec<OpenListener>>,
}

/// A listener that is open.
struct OpenListener {
    settings: ListenerSettings,
    bound: ListenAddress,
    listener: Arc<Listener>,
    /// Removes the file of a unix socket.
    file: Option<SocketFile>,
    /// Its accept loops that have not ended.
    accepting: Arc<AtomicUsize>,
}

/// A change of the listeners that is known to succeed, but for file descriptors.
pub(super) struct ListenerChange {
    wanted: Vec<LoadedListener>,
    added: Vec<(LoadedListener, BoundSocket)>,
}

/// The settings of a listener, with its certificates.
#[derive(Clone)]
pub(super) struct LoadedListener {
    pub(super) settings: ListenerSettings,
    tls: Option<Arc<TlsServer>>,
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
        let load = |settings: ListenerSettings| {
            let server = settings
                .tls
                .as_ref()
                .map(|settings| tls.server(settings, in_use, now));
            let tls = server.transpose().unwrap_or_else(|found| {
                problems.extend(found);
                None
            });
            Self { settings, tls }
        };
        let all = all.into_iter().map(load).collect();
        match problems.is_empty() {
            true => Ok(all),
            false => Err(StartError::Certificates(problems)),
        }
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
    /// Where there are no more file descriptors.
    fn add(&self, loaded: LoadedListener, socket: BoundSocket) -> Result<(), StartError> {
        let LoadedListener { settings, tls } = loaded;
        let BoundSocket {
            socket,
            address: bound,
            file,
            backlog,
        } = socket;
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
        self.lock().push(OpenListener {
            settings,
            bound,
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
        let in_use: Vec<_> = self.lock().iter().filter_map(OpenListener::tls).collect();
        let wanted = LoadedListener::load(wanted, &self.tls, &in_use, now)?;
        let open = self.lock();
        // Several may have the same address with port 0: each stands for another.
        let mut kept: Vec<_> = open.iter().map(|open| &open.settings.address).collect();
        let new = wanted.iter().filter(|wanted| {
            let at = kept
                .iter()
                .position(|address| **address == wanted.settings.address);
            at.map(|at| kept.swap_remove(at)).is_none()
        });
        let bind = |new: &LoadedListener| {
            let socket = bind(&new.settings.address, new.settings.mode)?;
            Ok((new.clone(), socket))
        };
        let added = new.map(bind).collect::<Result<_, StartError>>()?;
        drop(open);
        Ok(ListenerChange { wanted, added })
    }

    /// Opens, changes and closes listeners. Connections of closed ones finish their
    /// requests. Waits until their sockets are closed, so it must not run on a worker.
    ///
    /// # Errors
    /// The listeners that could not be opened.
    pub(super) fn apply(&self, change: ListenerChange) -> Vec<StartError> {
        let mut wanted: Vec<_> = change.wanted.iter().collect();
        let mut closed = Vec::new();
        self.lock().retain_mut(|open| {
            let at = wanted
                .iter()
                .position(|wanted| wanted.settings.address == open.settings.address);
            match at.map(|at| wanted.remove(at)) {
                Some(wanted) => {
                    open.change(wanted);
                    true
                }
                None => {
                    tracing::info!("{} is closed", open.bound);
                    open.listener.drain.send_replace(true);
                    closed.push(open.accepting.clone());
                    false
                }
            }
        });
        let added = change.added.into_iter();
        let added = added.map(|(loaded, socket)| {
            tracing::info!("{} is open", socket.address);
            self.add(loaded, socket)
        });
        let failed = added.filter_map(Result::err).collect();
        // The next reload may open the same address.
        for _ in 0..MAX_CLOSING.as_millis() {
            if closed.iter().all(|accepting| accepting.load(SeqCst) == 0) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        failed
    }

    /// Closes all. Requests under way finish.
    pub(super) fn drain(&self) {
        for open in self.lock().iter() {
            open.listener.drain.send_replace(true);
        }
    }

    /// Whether no loop accepts any more.
    pub(super) fn are_closed(&self) -> bool {
        self.accepting.load(SeqCst) == 0
    }

    /// The address of each, how it is configured, and its certificates.
    pub(super) fn bound(&self, now: SystemTime) -> Vec<BoundListener> {
        let open = self.lock();
        let each = open.iter().map(|open| BoundListener {
            address: open.bound.clone(),
            settings: open.settings.clone(),
            certificates: open.tls().map_or_else(Vec::new, |tls| tls.status(now)),
        });
        each.collect()
    }

    /// Replaces the certificates whose files have changed, and logs those that expire
    /// soon. Reads files.
    pub(super) fn maintain_certificates(&self, counts: &TlsCounts, now: SystemTime) {
        let servers: Vec<_> = self.lock().iter().filter_map(OpenListener::tls).collect();
        self.tls.maintain(&servers, counts, now);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenListener>> {
        lock(&self.open)
    }
}

impl OpenListener {
    fn tls(&self) -> Option<Arc<TlsServer>> {
        self.listener.protocol.load().tls.clone()
    }

    fn change(&mut self, wanted: &LoadedListener) {
        let LoadedListener {
            settings: wanted,
            tls,
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
