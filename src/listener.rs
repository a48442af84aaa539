//! The public door: accepts connections, watches their time, and hands each
//! request to the walk.
//!
//! hyper parses; `guard` sees to it that what it parses can be read in one
//! way only; one timer for a connection (`watch`) ends it when its time is
//! up. So a hit pays for no timer.
//!
//! Deliberately absent: runtimes and sockets' making, which are `serve`'s.

mod clients;
mod guard;
mod watch;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use arc_swap::{ArcSwap, Cache};
use bytes::Bytes;
use clients::{Clients, Counted};
use guard::Guard;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch as signal};
pub use watch::ConnectionTimeouts;
use watch::{WatchAction, judge};

use crate::clock::Clock;
use crate::gateway::{Gateway, ResponseFuture, Session};
use crate::identify::Trust;
use crate::meter::Totals;
use crate::refusal::Refusal;
use crate::respond::{RequestId, ResponseContext};
use crate::unsent::{self, Account};
use crate::wire::Body;
use crate::wire::activity::Activity;
use crate::wire::head::{HeadBounds, HeadFault};

/// How connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Connections at once; more are turned away with 503.
    pub max_connections: u64,
    /// Bytes of a request's head.
    pub max_head_bytes: usize,
    /// Bytes of a request's target.
    pub max_target_bytes: usize,
    /// Field lines of a request.
    pub max_fields: usize,
    /// Bytes of answers that clients have not taken, in total; beyond it the
    /// clients that hold the most lose connections.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_unsent_bytes: u64,
    /// What one client may hold; `None` without a limit.
    #[serde(skip)]
    pub per_client: Option<PerClient>,
    /// The times that a connection has.
    #[serde(flatten)]
    pub times: ConnectionTimeouts,
}

/// What one client may hold at once. Trusted proxies may hold any of it, since
/// they serve many clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PerClient {
    /// Connections; more are turned away with 429.
    pub connections: u32,
    /// Bytes of answers that it has not taken; beyond it its connections are
    /// closed, except for the last one.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub unsent_bytes: u64,
}

impl Settings {
    fn unsent(&self) -> unsent::Bounds {
        unsent::Bounds {
            total: self.max_unsent_bytes,
            per_client: self.per_client.map(|client| client.unsent_bytes),
        }
    }
}

/// What serves at present; a reload puts another in its place. A connection
/// sees that by one load for each request, and lets go of the old one then.
pub type Current = Arc<ArcSwap<Gateway>>;

/// Whether the gateway is to stop: `true` once it drains.
pub type Drain = signal::Receiver<bool>;

/// Whose the connections are that the kernel holds for a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// This process's alone: it serves them before it goes.
    Ours,
    /// Also those of the process that comes next, to which they are left: the
    /// socket goes on listening.
    Shared,
}

/// How long a connection without a request is kept once the gateway drains: a
/// request that was on its way is answered, and the answer says that it is the
/// last.
const LAST_CALL: Duration = Duration::from_millis(500);
/// How long a refused client has to read why.
const LINGER: Duration = Duration::from_secs(2);
/// The fields that hyper has room for unless it is told another number. Told
/// any, it makes that room anew for each request, and not on its stack.
const HYPERS_FIELDS: usize = 100;
/// Connections that are being turned away at once; more are just closed.
const TURNING_AWAY: usize = 256;
/// What every accept loop shares.
pub struct Acceptor {
    present: Current,
    totals: Arc<Totals>,
    clock: Clock,
    manners: ArcSwap<ConnectionSettings>,
    numbers: AtomicU64,
    turning_away: Semaphore,
    clients: Arc<Clients>,
}

/// How connections are served that come from now on.
struct ConnectionSettings {
    settings: Settings,
    /// Whose connections are not counted per client.
    trust: Trust,
    /// The answer to a connection too many.
    sorry: Vec<u8>,
    /// The answer to a connection too many of one client.
    sorry_client: Vec<u8>,
}

/// Why a connection is turned away.
#[derive(Clone, Copy)]
enum TurnedAway {
    /// There are as many as are served.
    Total,
    /// Its client has as many as one may have.
    Client,
}

impl Acceptor {
    /// The door of whichever gateway is the present one.
    pub fn new(present: Current, settings: Settings) -> Arc<Self> {
        let gateway = present.load_full();
        gateway.meter.totals.unsent.set(settings.unsent());
        Arc::new(Self {
            totals: gateway.meter.totals.clone(),
            clock: gateway.clock.clone(),
            manners: ArcSwap::from_pointee(ConnectionSettings::of(&gateway, settings)),
            present,
            numbers: AtomicU64::new(1),
            turning_away: Semaphore::new(TURNING_AWAY),
            clients: Arc::default(),
        })
    }

    /// Serves connections that come from now on as these settings want, and as
    /// the present gateway speaks.
    pub fn behave(&self, settings: Settings) {
        let manners = ConnectionSettings::of(&self.present.load_full(), settings);
        self.totals.unsent.set(settings.unsent());
        self.manners.store(Arc::new(manners));
    }

    /// Accepts until the gateway drains. Each connection is a task of the
    /// runtime that this runs on.
    pub async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        backlog: Backlog,
        mut drain: Drain,
    ) {
        let stop = drain.clone();
        let mut draining = pin!(drain.wait_for(|drain| *drain));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut draining => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, stop.clone()),
                Err(error) => {
                    // A connection that was reset before it was accepted is
                    // its client's affair; a lack of descriptors passes when
                    // some connection ends.
                    tracing::warn!(%error, "a connection could not be accepted");
                    if !is_of_the_connection(&error) {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
        if backlog == Backlog::Shared {
            return;
        }
        // Whoever has been let in by the kernel is not turned out. The runtime
        // may not have heard of them yet, so the socket itself is asked.
        let Ok(listener) = listener.into_std() else {
            return;
        };
        loop {
            match listener.accept().and_then(take) {
                Ok((stream, peer)) => self.admit(stream, peer, stop.clone()),
                Err(error) if is_of_the_connection(&error) => {}
                Err(_there_are_no_more) => return,
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, drain: Drain) {
        let totals = &self.totals;
        let manners = self.manners.load_full();
        totals.accepted.fetch_add(1, Relaxed);
        let counted = match self.count(peer.ip(), &manners) {
            Ok(counted) => counted,
            Err(why) => {
                let reason = match why {
                    TurnedAway::Total => &totals.turned_away,
                    TurnedAway::Client => &totals.turned_away_client,
                };
                reason.fetch_add(1, Relaxed);
                tokio::spawn(self.clone().turn_away(stream, manners, why));
                return;
            }
        };
        let door = self.clone();
        tokio::spawn(async move {
            door.serve(stream, peer.ip(), &manners, drain).await;
            drop(counted);
        });
    }

    /// Counts a connection, in total and as its client's.
    fn count(
        &self,
        peer: IpAddr,
        manners: &ConnectionSettings,
    ) -> Result<(Open, Option<Counted>), TurnedAway> {
        let settings = &manners.settings;
        let before = self.totals.connections.fetch_add(1, Relaxed);
        let open = Open(self.totals.clone());
        if before >= settings.max_connections {
            return Err(TurnedAway::Total);
        }
        let limited = settings.per_client.filter(|_| !manners.trust.holds(peer));
        let Some(limit) = limited else {
            return Ok((open, None));
        };
        match self.clients.admit(peer.into(), limit.connections) {
            Some(counted) => Ok((open, Some(counted))),
            None => Err(TurnedAway::Client),
        }
    }

    /// Serves one connection to its end.
    async fn serve(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        manners: &ConnectionSettings,
        mut drain: Drain,
    ) {
        let settings = manners.settings;
        // Without it small answers wait for the client's delayed ACK; a socket
        // that refuses is about to fail anyway.
        let _ = stream.set_nodelay(true);
        let clock = &self.clock;
        let pulse = Arc::new(Activity::new(clock.now()));
        let session = Arc::new(Session {
            peer,
            connection: self.numbers.fetch_add(1, Relaxed),
            requests: AtomicU64::new(0),
            pulse: pulse.clone(),
        });
        let bounds = HeadBounds {
            head: settings.max_head_bytes,
            target: settings.max_target_bytes,
            fields: settings.max_fields,
        };
        let grace = settings.times.half_closed_timeout;
        let account = Account::new(
            &self.totals.unsent,
            &manners.trust,
            peer,
            session.connection,
        );
        let guard = Guard::new(
            stream,
            bounds,
            settings.times,
            pulse.clone(),
            clock.clone(),
            account,
        );
        let io = TokioIo::new(guard);
        let service = ConnectionService {
            present: RefCell::new(Cache::new(self.present.clone())),
            session: session.clone(),
            clock: clock.clone(),
        };
        let mut http = http1::Builder::new();
        // The guard bounds heads; hyper needs room for one and for what it
        // reads beyond.
        http.max_buf_size((settings.max_head_bytes * 2).max(16 * 1024))
            // The guard tells of a client's end when it is time.
            .half_close(false);
        if settings.max_fields > HYPERS_FIELDS {
            http.max_headers(settings.max_fields);
        }
        let mut connection = pin!(http.serve_connection(io, service));
        let told = drain.clone();
        let mut draining = pin!(drain.wait_for(|drain| *drain));
        let mut listens = false;
        let mut drains = false;
        let mut closing = false;
        let mut ends = false;
        let mut timer = pin!(tokio::time::sleep(settings.times.shortest()));
        let mut set = false;
        poll_fn(|cx| {
            loop {
                // Polled once, it wakes this task when the time comes; until
                // then a look at a number is all that it takes.
                if !drains && (!listens || told.has_changed().is_ok_and(|changed| changed)) {
                    listens = true;
                    if draining.as_mut().poll(cx).is_ready() {
                        drains = true;
                        pulse.set_draining();
                        let deadline = tokio::time::Instant::now() + LAST_CALL;
                        timer.as_mut().reset(deadline);
                        set = false;
                    }
                }
                if connection.as_mut().poll(cx).is_ready() {
                    // Errors are of the client's making (a reset, a truncated
                    // head), and are answered where they can be.
                    return Poll::Ready(());
                }
                if drains && pulse.is_busy() && !closing {
                    // hyper ends the connection with the answer under way.
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
                if !ends && pulse.ended_since().is_some() {
                    ends = true;
                    timer.as_mut().reset(tokio::time::Instant::now() + grace);
                    set = false;
                }
                // So does the timer, each time that it has been set.
                if set && !timer.is_elapsed() {
                    return Poll::Pending;
                }
                set = true;
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let resting = pulse.head_since().is_none() && pulse.stuck_since().is_none();
                if drains && !closing && resting {
                    // Its last call has passed and nothing has come.
                    return Poll::Ready(());
                }
                let pause = match judge(&pulse, &settings.times, clock.now()) {
                    WatchAction::Keep(pause) => pause,
                    WatchAction::TooSlow => {
                        pulse.set_fault(HeadFault::HeadTooSlow);
                        LINGER
                    }
                    WatchAction::Close => return Poll::Ready(()),
                    WatchAction::Reset => {
                        if !pulse.is_cut() {
                            self.totals.too_slow.fetch_add(1, Relaxed);
                            pulse.cut();
                        }
                        LINGER
                    }
                };
                timer.as_mut().reset(tokio::time::Instant::now() + pause);
                set = false;
            }
        })
        .await;
    }

    /// Tells a client that there is no room, and waits a moment for it to read
    /// that.
    async fn turn_away(
        self: Arc<Self>,
        mut stream: TcpStream,
        manners: Arc<ConnectionSettings>,
        why: TurnedAway,
    ) {
        let Ok(_turning) = self.turning_away.try_acquire() else {
            return;
        };
        let sorry = match why {
            TurnedAway::Total => &manners.sorry,
            TurnedAway::Client => &manners.sorry_client,
        };
        let talk = async {
            stream.write_all(sorry).await?;
            stream.shutdown().await?;
            let mut waste = [0; 1024];
            while stream.read(&mut waste).await? > 0 {}
            io::Result::Ok(())
        };
        // Whether the client has heard is its own affair.
        let _ = tokio::time::timeout(Duration::from_secs(1), talk).await;
    }
}

impl ConnectionSettings {
    fn of(gateway: &Gateway, settings: Settings) -> Self {
        Self {
            sorry: sorry(gateway, &Refusal::TooManyConnections),
            sorry_client: sorry(gateway, &Refusal::TooManyClientConnections),
            trust: gateway.trust.clone(),
            settings,
        }
    }
}

/// The answer to a connection too many: as any refusal, but written once, since
/// hyper has no part in it.
fn sorry(gateway: &Gateway, refusal: &Refusal) -> Vec<u8> {
    let said = ResponseContext {
        fields: &HeaderMap::new(),
        request_id: RequestId::new(gateway.seed),
        permit: None,
    };
    let (head, body) = gateway.respond.refusal(refusal, None, &said).into_parts();
    let body = match body {
        Body::Whole(Some(body)) => body,
        Body::Whole(None) | Body::Lent(_) | Body::Streamed(_) => Bytes::new(),
    };
    let mut text = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
    for (name, value) in &head.headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(&body);
    text
}

/// A connection that was accepted outside of the runtime.
fn take((stream, peer): (std::net::TcpStream, SocketAddr)) -> io::Result<(TcpStream, SocketAddr)> {
    stream.set_nonblocking(true)?;
    Ok((TcpStream::from_std(stream)?, peer))
}

/// Whether an error of accepting concerns that one connection alone.
pub(crate) fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// An open connection, for the count.
struct Open(Arc<Totals>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// hyper's service: the walk, for one connection.
struct ConnectionService {
    /// The connection's own view of the present gateway. hyper calls from one
    /// task, one request after another.
    present: RefCell<Cache<Current, Arc<Gateway>>>,
    session: Arc<Session>,
    clock: Clock,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let mut present = self.present.borrow_mut();
        let gateway = present.load();
        match self.session.pulse.is_late() {
            false => gateway.answer(&self.session, request),
            true => self.call_late(gateway, request),
        }
    }
}

impl ConnectionService {
    /// A request that was in the buffer while the answer before it took its
    /// time. It is answered by the present time; and where that answer is still
    /// being written, not before: its own answer would wait as long, and hold
    /// memory.
    #[cold]
    fn call_late(&self, gateway: &Arc<Gateway>, request: Request<Incoming>) -> ResponseFuture {
        let pulse = &self.session.pulse;
        if pulse.stuck_since().is_none() {
            pulse.catch_up(self.clock.now());
            return gateway.answer(&self.session, request);
        }
        let (gateway, session) = (gateway.clone(), self.session.clone());
        let clock = self.clock.clone();
        // hyper polls this once all of the answer before is written.
        ResponseFuture::Under(Box::pin(async move {
            session.pulse.catch_up(clock.now());
            let Ok(response) = gateway.answer(&session, request).await;
            response
        }))
    }
}
