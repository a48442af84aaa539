//! Drives hyper on one connection, with one timer that ends it for lack of progress.

use std::cell::Cell;
use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep};

use super::establish::Accepted;
use super::http2;
use super::io::{ClientIo, FLOOD};
use super::socket::Stream;
use super::{Acceptor, Current, Drain, Settings};
use crate::clock::Moment;
use crate::connections::Activity;
use crate::gateway::{ResponseFuture, Session};
use crate::log_writer::LogInterval;
use crate::meter::Totals;
use crate::wire::body::BodyError;

/// How long an idle connection stays open once the gateway drains: a request that
/// is on its way is still answered, with `connection: close`.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);
/// How long a client may go on sending what nobody reads, so that it sees its answer.
const LINGER: Duration = Duration::from_secs(2);
/// How often a connection whose client has an answer to read is looked at.
const STALLED_CHECK: Duration = Duration::from_secs(1);
/// The longest time from the first byte of a request's head to its last.
const HEAD: Duration = Duration::from_secs(10);
/// The most bytes of a request's head.
pub(super) const MAX_HEAD_BYTES: usize = 16 * 1024;

impl Acceptor {
    /// Serves a connection in HTTP to its end.
    pub(super) async fn serve_http(&self, stream: Stream, is_http2: bool, accepted: Accepted) {
        let activity = accepted.open.activity().clone();
        let session = Session::new(accepted.peer, accepted.number, activity.clone());
        let requests = Requests {
            current: self.current.clone(),
            session: Arc::new(session),
        };
        let io = TokioIo::new(ClientIo::new(stream, activity.clone()));
        if !is_http2 {
            let service = service_fn(move |request| requests.answer(request));
            let http = http1::Builder::new()
                .max_header_size(MAX_HEAD_BYTES)
                .max_buf_size(2 * MAX_HEAD_BYTES)
                .half_close(true)
                .serve_connection(io, service);
            let end = http1::Connection::graceful_shutdown;
            // An error is the client's doing (a reset, a truncated head), and has been
            // answered where that was possible.
            let _ = self.drive(&accepted, pin!(http), end).await;
            return;
        }
        activity.set_http2();
        let is_first = Cell::new(true);
        let service =
            service_fn(move |request| http2::answer(&requests, request, is_first.replace(false)));
        let http = http2::builder().serve_connection(io, service);
        let end = hyper::server::conn::http2::Connection::graceful_shutdown;
        let ended = self.drive(&accepted, pin!(http), end).await;
        if !ended.is_err_and(|error| is_flood(&error)) {
            return;
        }
        self.totals.http2_floods.fetch_add(1, Relaxed);
        let log = &self.totals.flood_logged;
        if log.is_due(LogInterval::MINUTE, activity.now()) {
            tracing::warn!(
                client = %accepted.peer,
                "a client's connection was closed, because it sent far more HTTP/2 frames than requests, or too many requests with errors; others are logged a minute later at the earliest"
            );
        }
    }

    /// Drives hyper until it has ended the connection, or its timer has. `end` ends it after
    /// what is in progress.
    async fn drive<H: Future<Output = Result<(), hyper::Error>>>(
        &self,
        accepted: &Accepted,
        mut http: Pin<&mut H>,
        end: fn(Pin<&mut H>),
    ) -> Result<(), hyper::Error> {
        let mut drain = accepted.drain.clone();
        let times = &accepted.settings.settings;
        let mut driver = Driver {
            activity: accepted.open.activity(),
            times,
            totals: &self.totals,
            drain: drain.clone(),
            draining: pin!(drain.wait_for(|drain| *drain)),
            timer: pin!(sleep(shortest(times))),
            is_waiting: false,
            is_draining: false,
            is_idle: false,
            is_ending: false,
            is_lingering: false,
            write_deadline: None,
        };
        poll_fn(|cx| driver.poll(cx, http.as_mut(), end)).await
    }
}

/// The shortest timeout: no deadline that is set later can be nearer than this.
fn shortest(times: &Settings) -> Duration {
    HEAD.min(times.idle_timeout).min(times.write_timeout)
}

/// Whether a connection has ended because of a flood, which h2 also finds.
fn is_flood(error: &hyper::Error) -> bool {
    let error = error.source();
    let h2 = error.and_then(|error| error.downcast_ref::<h2::Error>());
    let io = error.and_then(|error| error.downcast_ref::<io::Error>());
    h2.and_then(h2::Error::reason) == Some(h2::Reason::ENHANCE_YOUR_CALM)
        || io.is_some_and(|error| error.kind() == FLOOD)
}

/// What ends a connection besides hyper: its timer, and the drain.
struct Driver<'a, D> {
    activity: &'a Activity,
    times: &'a Settings,
    totals: &'a Totals,
    drain: Drain,
    /// Ready once the gateway drains.
    draining: Pin<&'a mut D>,
    timer: Pin<&'a mut Sleep>,
    /// Whether `draining` and `timer` have been polled since the timer was last set. They then
    /// wake the task, so that until then it is enough to look at `drain` and the timer's time.
    is_waiting: bool,
    is_draining: bool,
    /// Whether HTTP/2 has been idle for too long, and sends GOAWAY.
    is_idle: bool,
    /// Whether hyper ends the connection after what is in progress.
    is_ending: bool,
    is_lingering: bool,
    /// By when the client must read more of its answer.
    write_deadline: Option<Moment>,
}

impl<D: Future> Driver<'_, D> {
    /// Ready when the connection has ended or must be closed.
    fn poll<H: Future<Output = Result<(), hyper::Error>>>(
        &mut self,
        cx: &mut Context<'_>,
        mut http: Pin<&mut H>,
        end: fn(Pin<&mut H>),
    ) -> Poll<Result<(), hyper::Error>> {
        loop {
            self.poll_drain(cx);
            let is_served = self.activity.is_http2() || self.activity.is_busy();
            if (self.is_idle || self.is_draining && is_served) && !self.is_ending {
                self.is_ending = true;
                end(http.as_mut());
            }
            if let Poll::Ready(ended) = http.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            if !self.is_lingering && self.activity.is_closing.load(Relaxed) {
                self.is_lingering = true;
                self.set_timer(LINGER);
            }
            if self.is_waiting && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            self.is_waiting = true;
            ready!(self.timer.as_mut().poll(cx));
            match self.after_timer(self.activity.now()) {
                Some(pause) => self.set_timer(pause),
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) {
        // A listener that a reload has closed drops the sender.
        let has_changed = || self.drain.has_changed().unwrap_or(true);
        if self.is_draining || self.is_waiting && !has_changed() {
            return;
        }
        if self.draining.as_mut().poll(cx).is_ready() {
            self.is_draining = true;
            self.activity.is_draining.store(true, Relaxed);
            self.set_timer(DRAIN_GRACE);
        }
    }

    fn set_timer(&mut self, pause: Duration) {
        self.timer.as_mut().reset(Instant::now() + pause);
        self.is_waiting = false;
    }

    /// When to look again; `None` where the connection must be closed.
    fn after_timer(&mut self, now: Moment) -> Option<Duration> {
        let (activity, times) = (self.activity, self.times);
        let left = |since: Moment, timeout: Duration| {
            let left = timeout.checked_sub(now.since(since));
            left.filter(|left| !left.is_zero())
        };
        if self.is_lingering {
            return None;
        }
        // Each byte that the client takes of its answer gives it a millisecond more, up to the
        // timeout: it may stall, but a byte now and then is not enough.
        let gained = Duration::from_millis(activity.taken());
        if activity.is_stalled() {
            let latest = now + times.write_timeout;
            let deadline = self.write_deadline.map_or(latest, |before| before + gained);
            let deadline = deadline.min(latest);
            self.write_deadline = Some(deadline);
            if deadline <= now {
                self.totals.too_slow.fetch_add(1, Relaxed);
                activity.close();
                return None;
            }
            return Some(deadline.since(now).min(STALLED_CHECK));
        }
        self.write_deadline = None;
        if activity.is_busy() {
            // An answer may begin at any moment, and then has its own timeout. Streams of events are
            // many, and may be looked at late.
            let pause = match activity.is_listening.load(Relaxed) {
                true => shortest(times),
                false => shortest(times).min(STALLED_CHECK),
            };
            return Some(pause);
        }
        if let Some(since) = activity.head_since() {
            return left(since, HEAD.min(times.idle_timeout));
        }
        if self.is_draining || self.is_ending {
            return None;
        }
        let idle = left(activity.last(), times.idle_timeout);
        if idle.is_none() && activity.is_http2() {
            self.is_idle = true;
            return Some(LINGER);
        }
        // So may a head.
        idle.map(|idle| idle.min(shortest(times)))
    }
}

/// The requests of one connection, and the gateway that answers them.
pub(super) struct Requests {
    current: Current,
    pub(super) session: Arc<Session>,
}

impl Requests {
    #[inline]
    pub(super) fn answer<B>(&self, request: Request<B>) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<BodyError>,
    {
        self.session.activity.begin();
        // Not kept: a connection may outlive many reloads.
        self.current.load().answer(&self.session, request)
    }
}
