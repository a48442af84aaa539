//! The upstream's front: answers for the sandbox, counts what comes, and goes
//! down to order, in one of two ways.
//!
//! Down, it either refuses (nobody listens, connections were reset) or is mute
//! (connections are taken, nothing is ever said). Either way it comes back on
//! the port that it had.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method};
use ordgate::sandbox::Sandbox;
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::arrivals::Arrivals;
use crate::support::socket::{ANY_PORT, bound};
use crate::support::wire::Wire;

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Nobody listens.
    Refuses,
    /// Nobody speaks.
    Mute,
}

impl Mood {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::Well => "answers",
            Self::Refuses => "refuses",
            Self::Mute => "is mute",
        }
    }
}

/// How long the upstream takes for an answer.
const LATENCY: Duration = Duration::from_millis(10);

pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    /// Holds the port while nobody listens: no other socket of the machine may
    /// get it meanwhile.
    _holder: Socket,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    sandbox: Sandbox,
    arrivals: Arrivals,
    accepts: AtomicUsize,
    mood: watch::Sender<Mood>,
}

impl Front {
    pub(crate) async fn start(sandbox: &Sandbox) -> Self {
        let holder = bound(ANY_PORT);
        let front = Self {
            address: holder.local_addr().unwrap().as_socket().unwrap(),
            shared: Arc::new(Shared {
                sandbox: sandbox.clone(),
                arrivals: Arrivals::default(),
                accepts: AtomicUsize::new(0),
                mood: watch::Sender::new(Mood::Mute),
            }),
            _holder: holder,
            accepting: Mutex::default(),
        };
        front.become_(Mood::Well).await;
        front
    }

    /// Changes its mood. Connections of before are reset, as those of a machine
    /// that is gone.
    pub(crate) async fn become_(&self, mood: Mood) {
        let accepting = self.accepting.lock().unwrap().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            // The socket is closed once the task is gone.
            let _ = accepting.await;
        }
        self.shared.mood.send_replace(mood);
        if mood != Mood::Refuses {
            let socket = bound(self.address);
            socket.listen(1024).unwrap();
            let listener = TcpListener::from_std(socket.into()).unwrap();
            let accepting = tokio::spawn(accept(listener, self.shared.clone()));
            *self.accepting.lock().unwrap() = Some(accepting);
        }
    }

    /// What was asked while it was well.
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.shared.arrivals
    }

    /// Connections accepted so far.
    pub(crate) fn accepts(&self) -> usize {
        self.shared.accepts.load(SeqCst)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            accepting.abort();
        }
        self.shared.mood.send_replace(Mood::Refuses);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        shared.accepts.fetch_add(1, SeqCst);
        tokio::spawn(connection(stream, shared.clone()));
    }
}

/// Serves a connection until the mood changes.
async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut mood = shared.mood.subscribe();
    let began = *mood.borrow_and_update();
    let mut wire = Wire::new(stream);
    tokio::select! {
        _ = mood.changed() => wire.reset(),
        () = converse(&mut wire, began, &shared) => {}
    }
}

async fn converse(wire: &mut Wire, mood: Mood, shared: &Shared) {
    while let Ok(head) = wire.head().await {
        shared.arrivals.add(head.field("x-api-key").unwrap_or(""));
        if mood == Mood::Mute {
            // It reads, and that is all.
            while wire.more().await {}
            return;
        }
        let answer = shared
            .sandbox
            .answer(&Method::GET, head.target(), &HeaderMap::new());
        tokio::time::sleep(LATENCY).await;
        let mut bytes = format!("HTTP/1.1 {}\r\n", answer.status).into_bytes();
        for (name, value) in &answer.headers {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&answer.body);
        if wire.send(bytes).await.is_err() {
            return;
        }
    }
}
