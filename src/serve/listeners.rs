//! The open public listeners: their sockets, and the loops that accept from them.
//! A reload opens and closes some of them, and leaves the others alone.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::StartError;
use super::sockets::{BoundSocket, SocketFile, bind};
use crate::listener::{
    Acceptor, Backlog, BoundListener, ListenAddress, Listener, ListenerProtocol, ListenerSettings,
    ListeningSocket,
};

/// The public listeners that are open now.
pub(super) struct Listeners {
    acceptor: Arc<Acceptor>,
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
}

/// A change of the listeners that is known to succeed, but for file descriptors.
pub(super) struct ListenerChange {
    wanted: Vec<ListenerSettings>,
    added: Vec<(ListenerSettings, BoundSocket)>,
}

impl Listeners {
    /// Opens no listener yet.
    pub(super) fn new(acceptor: Arc<Acceptor>, workers: Vec<Handle>) -> Arc<Self> {
        Arc::new(Self {
            acceptor,
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
        settings: Vec<ListenerSettings>,
        sockets: Vec<BoundSocket>,
    ) -> Result<(), StartError> {
        let mut each = settings.into_iter().zip(sockets);
        each.try_for_each(|(settings, socket)| self.add(settings, socket))
    }

    /// Accepts from a socket.
    ///
    /// # Errors
    /// Where there are no more file descriptors.
    fn add(&self, settings: ListenerSettings, socket: BoundSocket) -> Result<(), StartError> {
        let BoundSocket {
            socket,
            address: bound,
            file,
            backlog,
        } = socket;
        let listener = Arc::new(Listener {
            protocol: ArcSwap::from_pointee(ListenerProtocol::of(&settings)),
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
        for (worker, socket) in self.workers.iter().zip(handles) {
            self.accept(worker, socket, &listener, backlog, &bound);
        }
        self.lock().push(OpenListener {
            settings,
            bound,
            listener,
            file,
        });
        Ok(())
    }

    fn accept(
        &self,
        worker: &Handle,
        socket: ListeningSocket,
        listener: &Arc<Listener>,
        backlog: Backlog,
        bound: &ListenAddress,
    ) {
        self.accepting.fetch_add(1, SeqCst);
        let accepting = AcceptLoop(self.accepting.clone());
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

    /// Prepares for these listeners: binds the sockets of new ones.
    ///
    /// # Errors
    /// Where a socket cannot be bound. Nothing has changed then.
    pub(super) fn prepare(
        &self,
        wanted: Vec<ListenerSettings>,
    ) -> Result<ListenerChange, StartError> {
        let open = self.lock();
        let is_open = |wanted: &ListenerSettings| {
            let mut open = open.iter();
            open.any(|open| open.settings.address == wanted.address)
        };
        let new = wanted.iter().filter(|wanted| !is_open(wanted));
        let bind = |new: &ListenerSettings| Ok((new.clone(), bind(&new.address, new.mode)?));
        let added = new.map(bind).collect::<Result<_, StartError>>()?;
        drop(open);
        Ok(ListenerChange { wanted, added })
    }

    /// Opens, changes and closes listeners. Connections of closed ones finish their
    /// requests.
    ///
    /// # Errors
    /// The listeners that could not be opened.
    pub(super) fn apply(&self, change: ListenerChange) -> Vec<StartError> {
        self.lock().retain_mut(|open| {
            let mut wanted = change.wanted.iter();
            match wanted.find(|wanted| wanted.address == open.settings.address) {
                Some(wanted) => {
                    open.change(wanted);
                    true
                }
                None => {
                    tracing::info!("{} is closed", open.bound);
                    open.listener.drain.send_replace(true);
                    false
                }
            }
        });
        let added = change.added.into_iter();
        let added = added.map(|(settings, socket)| {
            tracing::info!("{} is open", socket.address);
            self.add(settings, socket)
        });
        added.filter_map(Result::err).collect()
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

    /// The address of each, and how it is configured.
    pub(super) fn bound(&self) -> Vec<BoundListener> {
        let open = self.lock();
        let each = open.iter().map(|open| BoundListener {
            address: open.bound.clone(),
            settings: open.settings.clone(),
        });
        each.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OpenListener>> {
        // Each operation leaves the list consistent.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenListener {
    fn change(&mut self, wanted: &ListenerSettings) {
        let protocol = ListenerProtocol::of(wanted);
        self.listener.protocol.store(Arc::new(protocol));
        if let Some(file) = &self.file
            && wanted.mode != self.settings.mode
        {
            file.set_mode(wanted.mode);
        }
        self.settings.clone_from(wanted);
    }
}

/// An accept loop, until it is dropped.
struct AcceptLoop(Arc<AtomicUsize>);

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
