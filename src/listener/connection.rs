//! Drives hyper on one connection, with one timer that ends it for lack of progress.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error as _;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::Cache;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::establish::Accepted;
use super::http2::{Http2Service, InlineExecutor, builder};
use super::io::ClientIo;
use super::socket::{ClientStream, ReadAhead};
use super::{Acceptor, ConnectionTimeouts, Current, Drain};
use crate::clock::Moment;
use crate::connections::Activity;
use crate::gateway::{Gateway, ResponseFuture, Session};
use crate::meter::Totals;
use crate::wire::Body;

/// How long an idle connection stays open once the gateway drains: a request that
/// is on its way is still answered, with `connection: close`.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);
/// How long a client may go on sending what nobody reads, so that it sees its answer.
const LINGER: Duration = Duration::from_secs(2);
/// How often a connection whose client has an answer to read is looked at.
const STALLED_CHECK: Duration = Duration::from_secs(1);
/// The least that hyper may buffer.
const MIN_BUFFER: usize = 16 * 1024;
/// The line that a client begins with in HTTP/2 (RFC 9113 §3.4).
const HTTP2_PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1 or 1.0.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Acceptor {
    /// Serves a connection in HTTP to its end. `early` has been read from it; the protocol
    /// is not known unless ALPN has chosen it.
    pub(super) async fn serve_http<S: ClientStream>(
        &self,
        mut stream: S,
        mut early: BytesMut,
        accepted: Accepted,
        protocol: Option<Protocol>,
    ) {
        let times = accepted.settings.settings.times;
        let protocol = match protocol {
            Some(known) => known,
            None => {
                let begun = timeout(times.header_timeout, begin(&mut stream, &mut early));
                let Ok(Ok(protocol)) = begun.await else {
                    return;
                };
                protocol
            }
        };
        let stream = ReadAhead::new(early.freeze(), stream);
        match protocol {
            Protocol::Http1 => self.serve_http1(stream, accepted).await,
            Protocol::Http2 => self.serve_http2(stream, accepted).await,
        }
    }

    async fn serve_http1<S: ClientStream>(&self, stream: S, accepted: Accepted) {
        let settings = &accepted.settings.settings;
        let requests = self.requests(&accepted);
        let io = ClientIo::new(stream, accepted.open.activity().clone());
        let mut http = pin!(
            http1::Builder::new()
                .max_header_size(settings.max_head_bytes)
                .max_buf_size((settings.max_head_bytes * 2).max(MIN_BUFFER))
                .half_close(true)
                .serve_connection(TokioIo::new(io), Http1Service(requests))
        );
        // An error is the client's doing (a reset, a truncated head), and has been answered
        // where that was possible.
        let _ = self.drive(&accepted, http.as_mut()).await;
    }

    async fn serve_http2<S: ClientStream>(&self, stream: S, accepted: Accepted) {
        let activity = accepted.open.activity().clone();
        activity.set_http2();
        let _counted = Http2Connection::count(&self.totals);
        let requests = self.requests(&accepted);
        let io = TokioIo::new(ClientIo::new(stream, activity.clone()));
        let http = builder(accepted.settings.settings.max_head_bytes)
            .serve_connection(io, Http2Service::new(requests));
        let mut http = pin!(http);
        let ended = self.drive(&accepted, http.as_mut()).await;
        let is_flood = activity.is_flood() || ended.is_err_and(|error| is_flood_of_h2(&error));
        if is_flood && self.totals.http2.count_flood(activity.now()) {
            tracing::warn!(
                client = %accepted.peer,
                "a client's connection was closed, because it sent far more HTTP/2 frames than requests, or too many requests with errors; others are logged a minute later at the earliest"
            );
        }
    }

    fn requests(&self, accepted: &Accepted) -> Requests {
        let activity = accepted.open.activity().clone();
        Requests {
            current: RefCell::new(Cache::new(self.current.clone())),
            session: Arc::new(Session::new(accepted.peer, accepted.number, activity)),
        }
    }

    /// Drives hyper until it has ended the connection, or its timer has.
    async fn drive<H: HttpConnection>(
        &self,
        accepted: &Accepted,
        mut http: Pin<&mut H>,
    ) -> Result<(), hyper::Error> {
        let mut drain = accepted.drain.clone();
        let times = &accepted.settings.settings.times;
        let mut driver = Driver {
            activity: accepted.open.activity(),
            times,
            totals: &self.totals,
            drain: drain.clone(),
            draining: pin!(drain.wait_for(|drain| *drain)),
            timer: pin!(sleep(times.shortest())),
            drain_polled: false,
            timer_polled: false,
            is_draining: false,
            is_ending: false,
            is_lingering: false,
            write_deadline: None,
        };
        poll_fn(|cx| driver.poll(cx, http.as_mut())).await
    }
}

/// Reads until it is known which version the client speaks.
async fn begin<S: ClientStream>(stream: &mut S, early: &mut BytesMut) -> std::io::Result<Protocol> {
    while early.len() < HTTP2_PREFACE_LINE.len() && HTTP2_PREFACE_LINE.starts_with(early) {
        if stream.read_buf(early).await? == 0 {
            break;
        }
    }
    Ok(match early.starts_with(HTTP2_PREFACE_LINE) {
        true => Protocol::Http2,
        false => Protocol::Http1,
    })
}

/// Whether h2 has found too many frames of a kind.
fn is_flood_of_h2(error: &hyper::Error) -> bool {
    let h2 = error
        .source()
        .and_then(|error| error.downcast_ref::<h2::Error>());
    h2.and_then(h2::Error::reason) == Some(h2::Reason::ENHANCE_YOUR_CALM)
}

/// hyper's connection, in either version of HTTP.
trait HttpConnection: Future<Output = Result<(), hyper::Error>> {
    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl<S: ClientStream> HttpConnection for http1::Connection<TokioIo<ClientIo<S>>, Http1Service> {
    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S: ClientStream> HttpConnection
    for http2::Connection<TokioIo<ClientIo<S>>, Http2Service, InlineExecutor>
{
    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Counts an open connection in HTTP/2 until it is dropped.
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

/// What ends a connection besides hyper: its timer, and the drain.
struct Driver<'a, D> {
    activity: &'a Activity,
    times: &'a ConnectionTimeouts,
    totals: &'a Totals,
    drain: Drain,
    /// Ready once the gateway drains.
    draining: Pin<&'a mut D>,
    timer: Pin<&'a mut Sleep>,
    /// Whether `draining` has been polled. It then wakes the task, so that until
    /// then `drain` need only be checked.
    drain_polled: bool,
    /// The same for `timer`, since it was last set.
    timer_polled: bool,
    is_draining: bool,
    /// Whether hyper ends the connection after what is in progress.
    is_ending: bool,
    is_lingering: bool,
    /// By when the client must read more of its answer.
    write_deadline: Option<Moment>,
}

/// What to do when the timer of a connection has elapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerAction {
    /// Check again after this time.
    Keep(Duration),
    /// In HTTP/2, send GOAWAY.
    End,
    Close,
    /// Close, and drop what the kernel has of the answer: the client reads too slowly.
    Reset,
}

impl<D: Future> Driver<'_, D> {
    /// Ready when the connection has ended or must be closed.
    fn poll<H: HttpConnection>(
        &mut self,
        cx: &mut Context<'_>,
        mut http: Pin<&mut H>,
    ) -> Poll<Result<(), hyper::Error>> {
        loop {
            self.poll_drain(cx);
            if let Poll::Ready(ended) = http.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if self.is_draining
                && !self.is_ending
                && (self.activity.is_http2() || self.activity.is_busy())
            {
                self.is_ending = true;
                http.as_mut().graceful_shutdown();
                continue;
            }
            if !self.is_lingering && self.activity.is_closing() {
                self.is_lingering = true;
                self.set_timer(LINGER);
            }
            if self.timer_polled && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            self.timer_polled = true;
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            match self.after_timer(self.activity.now()) {
                TimerAction::Keep(pause) => self.set_timer(pause),
                TimerAction::End => {
                    self.is_ending = true;
                    http.as_mut().graceful_shutdown();
                    self.set_timer(LINGER);
                }
                TimerAction::Close => return Poll::Ready(Ok(())),
                TimerAction::Reset => {
                    self.totals.too_slow.fetch_add(1, Relaxed);
                    self.activity.close();
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) {
        // A listener that a reload has closed drops the sender.
        let has_changed = || self.drain.has_changed().unwrap_or(true);
        if self.is_draining || self.drain_polled && !has_changed() {
            return;
        }
        self.drain_polled = true;
        if self.draining.as_mut().poll(cx).is_ready() {
            self.is_draining = true;
            self.activity.set_draining();
            self.set_timer(DRAIN_GRACE);
        }
    }

    fn set_timer(&mut self, pause: Duration) {
        self.timer.as_mut().reset(Instant::now() + pause);
        self.timer_polled = false;
    }

    fn after_timer(&mut self, now: Moment) -> TimerAction {
        let (activity, times) = (self.activity, self.times);
        let left = |since: Moment, timeout: Duration| timeout.saturating_sub(now.since(since));
        if self.is_lingering {
            return TimerAction::Close;
        }
        let taken = activity.taken();
        if activity.is_stalled() {
            let before = self.write_deadline.map(|deadline| (deadline, taken));
            let deadline = times.write_deadline(before, now);
            self.write_deadline = Some(deadline);
            return match deadline.since(now) {
                Duration::ZERO => TimerAction::Reset,
                left => TimerAction::Keep(left.min(STALLED_CHECK)),
            };
        }
        self.write_deadline = None;
        // A head or an answer may begin at any moment, and then has its own timeout.
        let soon = times.shortest().min(STALLED_CHECK);
        if activity.is_busy() {
            return TimerAction::Keep(soon);
        }
        if let Some(since) = activity.head_since() {
            return match left(since, times.header_timeout) {
                Duration::ZERO => TimerAction::Close,
                left => TimerAction::Keep(left),
            };
        }
        if self.is_draining || self.is_ending {
            return TimerAction::Close;
        }
        match left(activity.last(), times.idle_timeout) {
            Duration::ZERO if activity.is_http2() => TimerAction::End,
            Duration::ZERO => TimerAction::Close,
            left => TimerAction::Keep(left.min(times.shortest())),
        }
    }
}

/// The requests of one connection, and the gateway that answers them.
pub(super) struct Requests {
    /// The current gateway. hyper calls from one task, one request after another.
    current: RefCell<Cache<Current, Arc<Gateway>>>,
    session: Arc<Session>,
}

impl Requests {
    #[inline]
    pub(super) fn answer<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<crate::wire::body::BodyError>,
    {
        let has_body = !request.body().is_end_stream();
        self.session.activity.begin(has_body);
        self.current
            .borrow_mut()
            .load()
            .answer(&self.session, request)
    }

    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.session.activity
    }
}

/// hyper's service for one connection in HTTP/1.1.
struct Http1Service(Requests);

impl Service<Request<Incoming>> for Http1Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        self.0.answer(request)
    }
}
