//! Serves one connection in HTTP/2: hyper on a stream whose frames are guarded,
//! with one timer.
//!
//! Requests take the same path as in HTTP/1.1. The limits of streams, windows and
//! header lists are hyper's, set here. `guard` counts the frames that hyper does
//! not limit, and follows the client's windows; `stream` reads and writes.

mod body;
mod frames;
mod guard;
mod rates;
mod stream;
mod windows;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arc_swap::Cache;
use body::{HeldBuffers, Http2Body, Http2Response};
use bytes::Bytes;
use guard::{FrameFault, NO_ERROR};
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use stream::{Http2Stream, SharedStream};
use tokio::time::{Instant, Sleep, sleep};

use super::establish::Accepted;
use super::http1::{DRAIN_GRACE, LINGER};
use super::socket::ClientStream;
use super::watch::ConnectionTimeouts;
use super::{Acceptor, Current};
use crate::clock::{Clock, Moment};
use crate::gateway::{Gateway, Session};
use crate::meter::{FrameFlood, Totals};
use crate::unsent::{SendBuffer, UnsentConnection};
use crate::wire::activity::Activity;

/// The most concurrent streams, and the most pending resets.
const MAX_STREAMS: u32 = 100;
/// Bytes of the receive windows of a stream and of the connection (RFC 9113 §5.2).
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// The latter for a trusted proxy, whose streams may be of several clients: all of their
/// windows, 6.25 MiB. Uploads of one client that wait then leave the windows of the others
/// as they are.
const PROXY_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Bytes of a response that h2 buffers for a stream beyond the client's window.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// The time between two PINGs, and the time for the answer to one.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a blocked connection's memory is looked at.
const BLOCKED_CHECK: Duration = Duration::from_secs(1);

type HttpConnection<S> =
    http2::Connection<TokioIo<SharedStream<S>>, ConnectionService, InlineExecutor>;

impl Acceptor {
    /// Serves one connection, of which nothing has been read, to its end.
    pub(super) async fn serve_http2_at_once<S: ClientStream>(&self, stream: S, accepted: Accepted) {
        let connection = self.next_connection.fetch_add(1, Relaxed);
        let trust = &accepted.settings.trust;
        let unsent = UnsentConnection::new(&self.totals.unsent, trust, accepted.peer, connection);
        let serving = self.serve_http2(stream, Bytes::new(), accepted, (connection, unsent));
        Box::pin(serving).await;
    }

    /// Serves one connection to its end. `early` has been read from it, and
    /// `unsent` is its entry in the table of unsent bytes.
    pub(super) async fn serve_http2<S: ClientStream>(
        &self,
        stream: S,
        early: Bytes,
        accepted: Accepted,
        (connection, unsent): (u64, UnsentConnection),
    ) {
        let Accepted {
            peer,
            settings,
            mut drain,
            open: _open,
            counted: _counted,
            ..
        } = accepted;
        let window = match settings.trust.contains(peer) {
            true => PROXY_WINDOW,
            false => CONNECTION_WINDOW,
        };
        let settings = &settings.settings;
        let _counted_http2 = Http2Connection::count(&self.totals);
        let clock = &self.clock;
        let activity = Arc::new(Activity::new(clock.now()));
        // Until the preface and the first frame have arrived.
        activity.set_head_since(Some(clock.now()));
        let session = Session::http2(peer, connection, activity.clone(), settings.head_bounds());
        let stream = Http2Stream::new(stream, early, settings.times, activity.clone(), clock);
        let stream = SharedStream::new(stream);
        let buffers = Arc::<HeldBuffers>::default();
        let service = ConnectionService {
            current: RefCell::new(Cache::new(self.current.clone())),
            session: Arc::new(session),
            buffers: buffers.clone(),
            is_first: Cell::new(true),
        };
        let io = TokioIo::new(stream.share());
        let mut http = pin!(builder(settings.max_head_bytes, window).serve_connection(io, service));
        let mut state = ConnectionState {
            stream,
            activity,
            times: settings.times,
            clock,
            totals: &self.totals,
            peer,
            buffers,
            unsent,
            registered: None,
            draining: pin!(async move { drain.wait_for(|drain| *drain).await.is_ok() }),
            timer: pin!(sleep(settings.times.shortest())),
            phase: Phase::Open,
            client_bound: settings.per_client.map(|client| client.unsent_bytes),
        };
        poll_fn(|cx| state.poll(cx, http.as_mut())).await;
    }
}

/// hyper's server with ordgate's limits, and this receive window of the connection.
fn builder(max_head_bytes: usize, window: u32) -> http2::Builder<InlineExecutor> {
    let mut http = http2::Builder::new(InlineExecutor);
    let streams = MAX_STREAMS as usize;
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_pending_accept_reset_streams(streams)
        .max_local_error_reset_streams(streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(window)
        .max_header_list_size(u32::try_from(max_head_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    http
}

/// Counts an open connection until it is dropped.
struct Http2Connection(Arc<Totals>);

impl Http2Connection {
    fn count(totals: &Arc<Totals>) -> Self {
        totals.http2.accepted.fetch_add(1, Relaxed);
        totals.http2.connections.fetch_add(1, Relaxed);
        Self(totals.clone())
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.0.http2.connections.fetch_sub(1, Relaxed);
    }
}

/// How far the shutdown of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// GOAWAY is sent; the streams in progress are still served.
    Draining,
    /// hyper is done with it: what is left is written.
    Closing,
}

/// What ends a connection besides hyper: its timer, the drain, and the guard.
struct ConnectionState<'a, S, D> {
    stream: SharedStream<S>,
    activity: Arc<Activity>,
    times: ConnectionTimeouts,
    clock: &'a Clock,
    totals: &'a Totals,
    peer: IpAddr,
    buffers: Arc<HeldBuffers>,
    unsent: UnsentConnection,
    /// What is registered as unsent.
    registered: Option<Vec<SendBuffer>>,
    /// Ready once the gateway drains.
    draining: Pin<&'a mut D>,
    timer: Pin<&'a mut Sleep>,
    phase: Phase,
    /// The most that the responses to one client may hold.
    client_bound: Option<u64>,
}

impl<S: ClientStream, D: Future> ConnectionState<'_, S, D> {
    /// Ready when the connection has ended or must be closed.
    fn poll(&mut self, cx: &mut Context<'_>, mut http: Pin<&mut HttpConnection<S>>) -> Poll<()> {
        loop {
            if self.phase == Phase::Open && self.draining.as_mut().poll(cx).is_ready() {
                self.drain(http.as_mut());
            }
            if self.phase != Phase::Closing {
                let has_ended = http.as_mut().poll(cx).is_ready();
                // h2 waits without bound for a client that it has sent GOAWAY to.
                if has_ended || self.stream.lock().is_shut_down() {
                    // The client has caused the error; GOAWAY reports it where possible.
                    self.close(None);
                }
            }
            let stream = self.stream.share();
            let mut stream = stream.lock();
            if self.phase == Phase::Closing {
                if stream.finish(cx).is_ready() {
                    return Poll::Ready(());
                }
            } else {
                if let Poll::Ready(Err(_broken)) = stream.flush(cx) {
                    return Poll::Ready(());
                }
                if self.check_blocked(cx, &mut stream).is_ready() {
                    return Poll::Ready(());
                }
                if self.activity.half_closed_since().is_some() && stream.is_all_sent() {
                    // The client has closed its side, and can request nothing more.
                    drop(stream);
                    self.close(None);
                    continue;
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            match self.after_timer(&stream) {
                TimerAction::Keep(pause) => self.set_timer(pause),
                TimerAction::Drain => {
                    drop(stream);
                    self.drain(http.as_mut());
                }
                TimerAction::Close if self.phase == Phase::Closing => return Poll::Ready(()),
                TimerAction::Close => {
                    drop(stream);
                    self.close(Some(NO_ERROR));
                }
                TimerAction::Reset => {
                    self.totals.too_slow.fetch_add(1, Relaxed);
                    stream.reset_on_close();
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Sends GOAWAY; the streams in progress are still served.
    fn drain(&mut self, http: Pin<&mut HttpConnection<S>>) {
        self.phase = Phase::Draining;
        http.graceful_shutdown();
        self.set_timer(DRAIN_GRACE);
    }

    /// Writes what is left. GOAWAY has this code, or that of what the guard ends the
    /// connection for.
    fn close(&mut self, code: Option<u32>) {
        self.phase = Phase::Closing;
        self.unsent.clear_stalled();
        let stream = self.stream.share();
        let mut stream = stream.lock();
        if let Some(flood) = stream.guard().flood() {
            self.count_flood(flood);
        }
        let fault = stream.guard().fault().map(FrameFault::code);
        if let Some(code) = fault.or(code) {
            stream.send_goaway(code);
        }
        self.set_timer(LINGER);
    }

    fn count_flood(&self, flood: FrameFlood) {
        if !self.totals.http2.count_flood(flood, self.clock.now()) {
            return;
        }
        let what = match flood {
            FrameFlood::Other => {
                "over 100 of its requests had errors or were refused since it began, or it sent too many small or incomplete HTTP/2 frames"
            }
            FrameFlood::Resets
            | FrameFlood::Pings
            | FrameFlood::Settings
            | FrameFlood::EmptyData
            | FrameFlood::Control
            | FrameFlood::Continuations => {
                "it sent, or caused, too many HTTP/2 frames of this kind"
            }
        };
        tracing::warn!(
            client = %self.peer,
            kind = flood.name(),
            "a client's connection was closed, because {what}; others are logged a minute later at the earliest"
        );
    }

    /// Registers what a blocked connection holds. Ready where it must be reset.
    fn check_blocked(&mut self, cx: &Context<'_>, stream: &mut Http2Stream<S>) -> Poll<()> {
        let Some((since, deadline)) = stream.blocked() else {
            if self.registered.take().is_some() {
                self.unsent.clear_stalled();
                self.activity.clear_stalled();
                self.activity.cancel_reset();
            }
            return Poll::Pending;
        };
        self.check_blocked_since(cx, stream, since, deadline)
    }

    #[cold]
    fn check_blocked_since(
        &mut self,
        cx: &Context<'_>,
        stream: &mut Http2Stream<S>,
        since: Moment,
        deadline: Moment,
    ) -> Poll<()> {
        let (responses, mut held) = self.buffers.buffers();
        held.push(SendBuffer {
            end: Arc::as_ptr(&self.buffers).addr(),
            bytes: stream.held(),
        });
        self.activity.set_stalled(since, deadline);
        if self.registered.as_ref() != Some(&held) {
            if self.registered.is_none() {
                self.set_timer(BLOCKED_CHECK);
            }
            let now = self.clock.now();
            self.unsent
                .set_stalled(&held, now, &self.activity, cx.waker());
            // The bound of a client spares its last connection, for a single answer
            // may exceed it. This one holds several.
            let bytes: u64 = held.iter().map(|one| one.bytes).sum();
            let is_over = responses > 1
                && self.unsent.is_of_client()
                && self.client_bound.is_some_and(|bound| bytes > bound);
            self.registered = Some(held);
            if is_over && !self.activity.is_reset_requested() {
                self.unsent.count_closed();
                self.activity.request_reset();
            }
        }
        if self.activity.is_reset_requested() {
            stream.reset_on_close();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn set_timer(&mut self, pause: Duration) {
        self.timer.as_mut().reset(Instant::now() + pause);
    }

    /// What to do now that the timer has elapsed.
    fn after_timer(&self, stream: &Http2Stream<S>) -> TimerAction {
        let (activity, now) = (&self.activity, self.clock.now());
        let left = |since: Moment, timeout: Duration| timeout.saturating_sub(now.since(since));
        let is_answering = stream.guard().windows().open_streams() > 0;
        if self.phase == Phase::Closing {
            return TimerAction::Close;
        }
        if let Some((since, deadline)) = stream.blocked() {
            // A client that has closed its side, or has gone, can enlarge no window.
            let is_lost = activity.half_closed_since().is_some() && stream.is_stuck();
            // The end of a body needs no window, and may follow at once.
            if is_lost && left(since, DRAIN_GRACE).is_zero() {
                return TimerAction::Close;
            }
            return match deadline.since(now) {
                Duration::ZERO => TimerAction::Reset,
                left => TimerAction::Keep(left.min(BLOCKED_CHECK)),
            };
        }
        if let Some(since) = activity.half_closed_since() {
            let left = left(since, self.times.half_closed_timeout);
            return match is_answering && !left.is_zero() {
                true => TimerAction::Keep(left.min(DRAIN_GRACE)),
                false => TimerAction::Close,
            };
        }
        if let Some(since) = activity.head_since() {
            return match left(since, self.times.header_timeout) {
                Duration::ZERO => TimerAction::Close,
                left => TimerAction::Keep(left),
            };
        }
        if self.phase == Phase::Draining {
            return match is_answering {
                true => TimerAction::Keep(DRAIN_GRACE),
                false => TimerAction::Close,
            };
        }
        // A head may begin at any moment, and then has its own timeout.
        let soon = self.times.shortest();
        match left(activity.last(), self.times.idle_timeout) {
            _ if is_answering => TimerAction::Keep(soon),
            Duration::ZERO => TimerAction::Drain,
            left => TimerAction::Keep(left.min(soon)),
        }
    }
}

/// What to do when the timer of a connection has elapsed.
enum TimerAction {
    /// Check again after this time.
    Keep(Duration),
    /// Send GOAWAY: the connection is idle.
    Drain,
    /// Send GOAWAY with the last stream, and close. h2 sends it only to a client that has
    /// answered its PING; without it none may retry a request (RFC 9113 §6.8).
    Close,
    /// Reset: the client reads its responses too slowly.
    Reset,
}

/// hyper's service for one connection.
struct ConnectionService {
    /// The current gateway. hyper calls from one task, one request after another.
    current: RefCell<Cache<Current, Arc<Gateway>>>,
    session: Arc<Session>,
    buffers: Arc<HeldBuffers>,
    /// Whether no request has come.
    is_first: Cell<bool>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Http2Body>;
    type Error = std::convert::Infallible;
    type Future = Http2Response;

    fn call(&self, request: Request<Incoming>) -> Http2Response {
        let is_head = request.method() == Method::HEAD;
        let mut current = self.current.borrow_mut();
        let response = current.load().answer(&self.session, request);
        let is_first = self.is_first.replace(false);
        Http2Response::new(response, &self.buffers, is_head, is_first)
    }
}

/// Polls each response once where hyper has made it, and gives it a task only if
/// it must wait: most are ready at once.
#[derive(Clone, Copy)]
struct InlineExecutor;

impl<F: Future<Output = ()> + Send + Unpin + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, mut response: F) {
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut response).poll(&mut cx).is_pending() {
            // The task polls it again, with a waker that works.
            tokio::spawn(response);
        }
    }
}

#[cfg(test)]
mod tests;
