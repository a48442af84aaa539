//! The scripted upstream: a raw listener that answers with the bytes, and the
//! manners, that a test has given it, and that records what it was asked.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ordgate::clock::{Clock, Moment};
use ordgate::sandbox::Api;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::gateway::split;
use super::{Shape, within};

/// What holds an answer back until the test lets it go.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    async fn passed(&self) {
        let mut opened = self.0.subscribe();
        // The sender lives as long as this gate does.
        let _ = opened.wait_for(|open| *open).await;
    }
}

/// What lets one answer through at a time: a server that does one thing after
/// another.
#[derive(Clone, Default)]
pub(crate) struct Turnstile(Arc<tokio::sync::Mutex<()>>);

/// What the upstream does about one request.
#[derive(Clone)]
pub(crate) struct Reply(Vec<Step>);

#[derive(Clone)]
enum Step {
    Wait(Gate),
    Send(Vec<u8>),
    Drip(Vec<u8>, Duration),
    Endless(Vec<u8>),
    Turn(Turnstile, Duration),
    Hold(Arc<()>),
    Close,
    Reset,
    Hang,
}

/// What the reference upstream and the provider before it say beside an answer,
/// and what ordgate must not pass on.
const FIELDS: &str = "content-type: application/json; charset=utf-8\r\n\
     vary: Origin\r\naccess-control-allow-origin: https://upstream.example\r\n\
     cache-control: public, no-cache, must-revalidate\r\netag: \"of-the-tip\"\r\n\
     server: telling-server\r\nset-cookie: telling=cookie\r\n\
     ratelimit-limit: 500\r\nratelimit-remaining: 499\r\nx-ratelimit-remaining-minute: 499\r\n\
     via: 1.1 telling-proxy\r\nage: 77\r\n";

impl Reply {
    /// Exactly these bytes.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self(vec![Step::Send(bytes.as_ref().to_vec())])
    }

    /// 200 with a body.
    pub(crate) fn json(body: impl AsRef<[u8]>) -> Self {
        Self::status(200, body)
    }

    /// A status with a JSON body and the reference's fields.
    pub(crate) fn status(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self::with(status, FIELDS, body)
    }

    /// A status with these fields (each ending in CRLF) and a body.
    pub(crate) fn with(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let length = body.len();
        let mut bytes =
            format!("HTTP/1.1 {status} Telling\r\n{fields}content-length: {length}\r\n\r\n")
                .into_bytes();
        bytes.extend_from_slice(body);
        Self::raw(bytes)
    }

    /// 200 whose body comes in chunks of this size.
    pub(crate) fn chunked(body: impl AsRef<[u8]>, size: usize) -> Self {
        let mut bytes =
            format!("HTTP/1.1 200 OK\r\n{FIELDS}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for chunk in body.as_ref().chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        Self::raw(bytes)
    }

    /// Nothing at all, for what follows.
    pub(crate) fn nothing() -> Self {
        Self(Vec::new())
    }

    /// Held back until the gate opens.
    pub(crate) fn behind(mut self, gate: &Gate) -> Self {
        self.0.insert(0, Step::Wait(gate.clone()));
        self
    }

    /// Then these bytes, once the gate opens.
    pub(crate) fn then(mut self, gate: &Gate, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(Step::Wait(gate.clone()));
        self.0.push(Step::Send(bytes.as_ref().to_vec()));
        self
    }

    /// A byte at a time, so often, for ever if need be.
    pub(crate) fn drip(mut self, bytes: impl AsRef<[u8]>, every: Duration) -> Self {
        self.0.push(Step::Drip(bytes.as_ref().to_vec(), every));
        self
    }

    /// The same bytes again and again, for as long as they are taken.
    pub(crate) fn endless(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(Step::Endless(bytes.as_ref().to_vec()));
        self
    }

    /// Held back until those before it have each taken so long, and so long
    /// itself.
    pub(crate) fn in_turn(mut self, turnstile: &Turnstile, takes: Duration) -> Self {
        self.0.insert(0, Step::Turn(turnstile.clone(), takes));
        self
    }

    /// This is held until the answer has been sent.
    pub(crate) fn holding(mut self, held: &Arc<()>) -> Self {
        self.0.insert(0, Step::Hold(held.clone()));
        self
    }

    /// Then the connection is closed.
    pub(crate) fn close(mut self) -> Self {
        self.0.push(Step::Close);
        self
    }

    /// Then the connection is reset.
    pub(crate) fn reset(mut self) -> Self {
        self.0.push(Step::Reset);
        self
    }

    /// Then nothing more comes, and the connection stays.
    pub(crate) fn hang(mut self) -> Self {
        self.0.push(Step::Hang);
        self
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) raw: Vec<u8>,
    /// As much of its body as is worth keeping.
    pub(crate) body: Vec<u8>,
    /// How long its body was, without any framing.
    pub(crate) length: u64,
    /// Whether the body came whole.
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
    /// Targets that went to the server which does not have them.
    strays: Mutex<Vec<String>>,
    seen: watch::Sender<Vec<Seen>>,
    connections: AtomicUsize,
    /// Connections that are open, and how many may be: others are closed at once.
    open: AtomicUsize,
    most_open: AtomicUsize,
    clock: Clock,
    /// Its thread waits while this says so, and with it all that it serves.
    frozen: Freezer,
}

/// What stops a server as a whole: its kernel goes on, and nothing else.
#[derive(Default)]
struct Freezer {
    wanted: AtomicBool,
    is_frozen: Mutex<bool>,
    changed: Condvar,
    asked: tokio::sync::Notify,
}

impl Freezer {
    /// Stops the thread that runs this, whenever that is wanted.
    async fn run(&self) {
        loop {
            self.asked.notified().await;
            let mut frozen = self.is_frozen.lock().unwrap();
            while self.wanted.load(SeqCst) {
                *frozen = true;
                self.changed.notify_all();
                frozen = self.changed.wait(frozen).unwrap();
            }
            *frozen = false;
        }
    }

    fn freeze(&self) {
        self.wanted.store(true, SeqCst);
        self.asked.notify_one();
        let frozen = self.is_frozen.lock().unwrap();
        drop(self.changed.wait_while(frozen, |frozen| !*frozen).unwrap());
    }

    fn thaw(&self) {
        let _frozen = self.is_frozen.lock().unwrap();
        self.wanted.store(false, SeqCst);
        self.changed.notify_all();
    }
}

/// The upstream; it stops when it is dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    /// Where the runes API is, where it is a server of its own.
    runes: Option<SocketAddr>,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upstream {
    /// One that answers everything with 200 and the target that was asked.
    pub(crate) fn start() -> Self {
        Self::listen(any_port(), None)
    }

    /// One that tells the time by this clock.
    pub(crate) fn start_by(clock: &Clock) -> Self {
        Self::listen_by(any_port(), None, clock.clone())
    }

    /// One on a socket on which nobody has listened so far.
    pub(crate) fn start_on(socket: Socket) -> Self {
        socket.listen(128).unwrap();
        Self::listen(socket.into(), None)
    }

    /// One with the port of another, at a second address of this machine.
    pub(crate) fn start_beside(other: &Self) -> Self {
        let address = (BESIDE, other.address.port());
        Self::listen(std::net::TcpListener::bind(address).unwrap(), None)
    }

    /// The same over TLS.
    pub(crate) fn start_tls(acceptor: TlsAcceptor) -> Self {
        Self::listen(any_port(), Some(acceptor))
    }

    /// The same over TLS.
    pub(crate) fn start_tls_by(acceptor: TlsAcceptor, clock: &Clock) -> Self {
        Self::listen_by(any_port(), Some(acceptor), clock.clone())
    }

    fn listen(socket: std::net::TcpListener, tls: Option<TlsAcceptor>) -> Self {
        Self::listen_by(socket, tls, Clock::machine())
    }

    fn listen_by(socket: std::net::TcpListener, tls: Option<TlsAcceptor>, clock: Clock) -> Self {
        let mut sockets = vec![(socket, Api::Both)];
        if crate::SHAPE == Shape::Split {
            sockets[0].1 = Api::Ordinals;
            sockets.push((any_port(), Api::Runes));
        }
        for (socket, _) in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        let mut addresses = sockets.iter().map(|(socket, _)| socket.local_addr());
        let address = addresses.next().unwrap().unwrap();
        let runes = addresses.next().map(Result::unwrap);
        drop(addresses);
        let shared = Arc::new(Shared {
            usual: Mutex::new(Box::new(|seen| Reply::json(usual_body(&seen.target())))),
            next: Mutex::default(),
            strays: Mutex::default(),
            seen: watch::Sender::new(Vec::new()),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(usize::MAX),
            clock,
            frozen: Freezer::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        // A thread of its own: a test may block, and is answered all the same.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                for (socket, api) in sockets {
                    let listener = TcpListener::from_std(socket).unwrap();
                    tokio::spawn(accept(listener, api, tls.clone(), serving.clone()));
                }
                let freezing = serving.clone();
                tokio::spawn(async move { freezing.frozen.run().await });
                // To be dropped resolves it as well; the tasks end with the runtime.
                let _ = stopped.await;
            });
        });
        Self {
            address,
            runes,
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

    /// Where it has the runes API.
    pub(crate) fn runes_url(&self) -> String {
        format!("http://{}", self.runes.unwrap_or(self.address))
    }

    /// The configuration that makes it the upstream.
    pub(crate) fn config(&self) -> String {
        match self.runes {
            None => format!("upstream.url = \"{}\"", self.url()),
            Some(_) => split(&self.url(), &self.runes_url()),
        }
    }

    /// The flags that make it the upstream.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--upstream".to_owned(), self.url()];
        if self.runes.is_some() {
            let runes = format!("runes={}", self.runes_url());
            flags.extend(["--upstream".to_owned(), runes]);
        }
        flags
    }

    /// What is answered where nothing else was said.
    pub(crate) fn usually(&self, reply: impl Fn(&Seen) -> Reply + Send + 'static) {
        *self.shared.usual.lock().unwrap() = Box::new(reply);
    }

    /// The same to everything.
    pub(crate) fn always(&self, reply: Reply) {
        self.usually(move |_| reply.clone());
    }

    /// What is answered once, when this target is next asked.
    pub(crate) fn once(&self, target: &str, reply: Reply) {
        let mut next = self.shared.next.lock().unwrap();
        next.push_back((target.to_owned(), reply));
    }

    /// All that was asked so far, in its order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }

    /// The targets that were asked so far.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.seen().iter().map(Seen::target).collect()
    }

    /// How often it was asked.
    pub(crate) fn count(&self) -> usize {
        self.shared.seen.borrow().len()
    }

    /// Waits until it has been asked so often.
    pub(crate) async fn asked(&self, times: usize) {
        let mut seen = self.shared.seen.subscribe();
        let enough = seen.wait_for(|seen| seen.len() >= times);
        let what = format!("the upstream is asked {times} times");
        assert!(within(&what, enough).await.is_ok(), "{what}");
    }

    /// Has no more connections open than so many from now on; further ones are
    /// closed as soon as they are accepted.
    pub(crate) fn take_connections(&self, most: usize) {
        self.shared.most_open.store(most, SeqCst);
    }

    /// Stops it as a whole, as SIGSTOP does: its kernel accepts connections and
    /// takes in what is sent.
    pub(crate) fn freeze(&self) {
        self.shared.frozen.freeze();
    }

    /// It goes on.
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
        let strays = self.shared.strays.lock().unwrap();
        assert!(
            strays.is_empty() || std::thread::panicking(),
            "requests to the wrong upstream: {strays:?}"
        );
    }
}

/// The body of an answer to which nothing else was said.
pub(crate) fn usual_body(target: &str) -> String {
    format!("{{\"asked\":\"{target}\"}}")
}

/// An address of this machine at which nobody listens but who says so.
pub(crate) const BESIDE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn any_port() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A port on which nobody listens, and nobody else can, while it is held.
pub(crate) fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A stream that can be reset.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn tcp(&self) -> &TcpStream;
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Wire for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

async fn accept(listener: TcpListener, api: Api, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let connection = shared.connections.fetch_add(1, SeqCst);
        let (shared, tls) = (shared.clone(), tls.clone());
        if shared.open.fetch_add(1, SeqCst) >= shared.most_open.load(SeqCst) {
            shared.open.fetch_sub(1, SeqCst);
            continue;
        }
        tokio::spawn(async move {
            stream.set_nodelay(true).unwrap();
            // A client that goes away, or that does not trust us, is what some
            // tests are about.
            let _ = match tls {
                None => converse(stream, connection, api, &shared).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => converse(stream, connection, api, &shared).await,
                    Err(error) => Err(error),
                },
            };
            shared.open.fetch_sub(1, SeqCst);
        });
    }
}

async fn converse(
    mut stream: impl Wire,
    connection: usize,
    api: Api,
    shared: &Shared,
) -> io::Result<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut held).await? == 0 {
                return Ok(());
            }
        };
        let raw = held.drain(..end).collect();
        let seen = Seen {
            raw,
            body: Vec::new(),
            length: 0,
            whole: false,
            at: shared.clock.now(),
            connection,
        };
        if !has(api, &seen.target()) {
            shared.strays.lock().unwrap().push(seen.target());
        }
        let reply = choose(shared, &seen);
        let (length, chunked) = framing(&seen);
        let mut place = 0;
        shared.seen.send_modify(|all| {
            place = all.len();
            all.push(seen);
        });
        if chunked {
            while let size @ 1.. = chunk_size(&mut stream, &mut held).await? {
                take(&mut stream, &mut held, size, shared, place).await?;
                line(&mut stream, &mut held).await?;
            }
            // Trailers, and the end.
            while !line(&mut stream, &mut held).await?.is_empty() {}
        } else {
            take(&mut stream, &mut held, length, shared, place).await?;
        }
        shared.seen.send_modify(|all| all[place].whole = true);
        let mut held_until_sent = Vec::new();
        for step in reply.0 {
            match step {
                Step::Hold(until_sent) => held_until_sent.push(until_sent),
                Step::Wait(gate) => gate.passed().await,
                Step::Send(bytes) => stream.write_all(&bytes).await?,
                Step::Drip(bytes, every) => {
                    let mut tick = tokio::time::interval(every);
                    for byte in bytes {
                        tick.tick().await;
                        stream.write_all(&[byte]).await?;
                    }
                }
                Step::Endless(bytes) => loop {
                    stream.write_all(&bytes).await?;
                },
                Step::Turn(turnstile, takes) => {
                    let _alone = turnstile.0.lock().await;
                    tokio::time::sleep(takes).await;
                }
                Step::Close => return stream.shutdown().await,
                Step::Reset => return SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO)),
                Step::Hang => {
                    while stream.read_buf(&mut held).await? > 0 {}
                    return Ok(());
                }
            }
        }
        stream.flush().await?;
    }
}

/// Whether a server with this API has the target.
fn has(api: Api, target: &str) -> bool {
    match api {
        Api::Both => true,
        Api::Ordinals => !target.starts_with("/runes/"),
        Api::Runes => target.starts_with("/runes/"),
    }
}

/// How long a request's body is, and whether it comes in chunks.
fn framing(seen: &Seen) -> (u64, bool) {
    let length = seen.field("content-length");
    let chunked = seen.field("transfer-encoding").is_some();
    (length.and_then(|n| n.parse().ok()).unwrap_or(0), chunked)
}

/// The most of a body that is kept.
const MOST_KEPT: usize = 1 << 16;

/// Reads so much of a body.
async fn take(
    stream: &mut impl Wire,
    held: &mut Vec<u8>,
    mut left: u64,
    shared: &Shared,
    place: usize,
) -> io::Result<()> {
    while left > 0 {
        if held.is_empty() {
            more(stream, held).await?;
        }
        let have = held.len().min(usize::try_from(left).unwrap());
        let piece: Vec<u8> = held.drain(..have).collect();
        left -= have as u64;
        shared.seen.send_modify(|all| {
            let seen = &mut all[place];
            let room = MOST_KEPT - seen.body.len();
            seen.body.extend_from_slice(&piece[..have.min(room)]);
            seen.length += have as u64;
        });
    }
    Ok(())
}

async fn more(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<()> {
    match stream.read_buf(held).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

async fn line(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<String> {
    loop {
        if let Some(end) = held.windows(2).position(|two| two == b"\r\n") {
            let line: Vec<u8> = held.drain(..end + 2).collect();
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        more(stream, held).await?;
    }
}

async fn chunk_size(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<u64> {
    let line = line(stream, held).await?;
    u64::from_str_radix(&line, 16).map_err(io::Error::other)
}

fn choose(shared: &Shared, seen: &Seen) -> Reply {
    let mut next = shared.next.lock().unwrap();
    let target = seen.target();
    let found = next.iter().position(|(wanted, _)| *wanted == target);
    match found.and_then(|at| next.remove(at)) {
        Some((_, reply)) => reply,
        None => (shared.usual.lock().unwrap())(seen),
    }
}
