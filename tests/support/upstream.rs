//! The scripted upstream: a raw listener that answers with the bytes and delays
//! that a test chooses, and records the requests.

mod connection;
mod freezer;
mod reply;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use connection::accept;
use freezer::Freezer;
use ordgate::clock::{Clock, Moment};
pub(crate) use reply::{Gate, Reply};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::within;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) raw: Vec<u8>,
    /// The beginning of its body.
    pub(crate) body: Vec<u8>,
    /// The length of its body, without framing.
    pub(crate) length: u64,
    /// Whether the whole body came.
    pub(crate) whole: bool,
    pub(crate) at: Moment,
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    pub(crate) fn target(&self) -> String {
        let text = self.text();
        text.split(' ').nth(1).unwrap_or("").to_owned()
    }

    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let text = self.text();
        let mut lines = text.split("\r\n").filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    }

    pub(crate) fn method(&self) -> String {
        let text = self.text();
        text.split(' ').next().unwrap_or("").to_owned()
    }

    /// The names of its fields, in lower case and sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let text = self.text();
        let lines = text.split("\r\n").skip(1);
        let names = lines.filter_map(|line| Some(line.split_once(':')?.0.to_ascii_lowercase()));
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    }
}

type Usual = Box<dyn Fn(&Seen) -> Reply + Send>;

struct Shared {
    usual: Mutex<Usual>,
    next: Mutex<VecDeque<(String, Reply)>>,
    seen: watch::Sender<Vec<Seen>>,
    connections: AtomicUsize,
    clock: Clock,
    /// Tells connections to close.
    closing: watch::Sender<()>,
    /// Its thread waits while this says so, and with it all that it serves.
    frozen: Freezer,
}

/// The upstream; it stops when it is dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upstream {
    /// Answers everything with 200 and the target of the request.
    pub(crate) fn start() -> Self {
        Self::listen(any_port(), None)
    }

    /// The same, with the time of requests by this clock.
    pub(crate) fn start_by(clock: &Clock) -> Self {
        Self::listen_by(any_port(), None, clock.clone())
    }

    /// The same, on a socket that has not listened so far.
    pub(crate) fn start_on(socket: Socket) -> Self {
        socket.listen(128).unwrap();
        Self::listen(socket.into(), None)
    }

    /// The same over TLS.
    pub(crate) fn start_tls(acceptor: TlsAcceptor) -> Self {
        Self::listen(any_port(), Some(acceptor))
    }

    fn listen(socket: std::net::TcpListener, tls: Option<TlsAcceptor>) -> Self {
        Self::listen_by(socket, tls, Clock::machine())
    }

    fn listen_by(socket: std::net::TcpListener, tls: Option<TlsAcceptor>, clock: Clock) -> Self {
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let shared = Arc::new(Shared {
            usual: Mutex::new(Box::new(|seen| Reply::json(usual_body(&seen.target())))),
            next: Mutex::default(),
            seen: watch::Sender::new(Vec::new()),
            connections: AtomicUsize::new(0),
            clock,
            closing: watch::Sender::new(()),
            frozen: Freezer::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        // A thread of its own, so that a test may block.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(socket).unwrap();
                tokio::spawn(accept(listener, tls, serving.clone()));
                let freezing = serving.clone();
                tokio::spawn(async move { freezing.frozen.run().await });
                // To be dropped resolves it as well; the tasks end with the runtime.
                let _ = stopped.await;
            });
        });
        Self {
            address,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The configuration that makes it the upstream.
    pub(crate) fn config(&self) -> String {
        format!("upstream.url = \"{}\"", self.url())
    }

    /// The flags that make it the upstream.
    pub(crate) fn flags(&self) -> [String; 2] {
        ["--upstream".to_owned(), self.url()]
    }

    /// Sets the answer to requests without one of their own.
    pub(crate) fn usually(&self, reply: impl Fn(&Seen) -> Reply + Send + 'static) {
        *self.shared.usual.lock().unwrap() = Box::new(reply);
    }

    /// Sets one answer to all requests.
    pub(crate) fn always(&self, reply: Reply) {
        self.usually(move |_| reply.clone());
    }

    /// Sets the answer to the next request for this target.
    pub(crate) fn once(&self, target: &str, reply: Reply) {
        let mut next = self.shared.next.lock().unwrap();
        next.push_back((target.to_owned(), reply));
    }

    /// All requests so far, in their order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }

    /// The targets of all requests so far.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.seen().iter().map(Seen::target).collect()
    }

    /// The number of requests so far.
    pub(crate) fn count(&self) -> usize {
        self.shared.seen.borrow().len()
    }

    /// Waits for this many requests in all.
    pub(crate) async fn until_requests(&self, times: usize) {
        let mut seen = self.shared.seen.subscribe();
        let enough = seen.wait_for(|seen| seen.len() >= times);
        let what = format!("the upstream is asked {times} times");
        assert!(within(&what, enough).await.is_ok(), "{what}");
    }

    /// Closes all connections that are open.
    pub(crate) fn close_connections(&self) {
        self.shared.closing.send_replace(());
    }

    /// Stops it as SIGSTOP does: its kernel still accepts connections and bytes.
    pub(crate) fn freeze(&self) {
        self.shared.frozen.freeze();
    }

    /// Ends a freeze.
    pub(crate) fn thaw(&self) {
        self.shared.frozen.thaw();
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.take();
        self.thaw();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(
                joined.is_ok() || std::thread::panicking(),
                "the upstream has panicked"
            );
        }
    }
}

/// The body of an answer that a test has not set.
pub(crate) fn usual_body(target: &str) -> String {
    format!("{{\"asked\":\"{target}\"}}")
}

fn any_port() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A bound port without a listener: connections are refused while it is held.
pub(crate) fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
