//! Serves one connection in HTTP/1.1: hyper on the guarded stream, with one timer.
//! A client that begins with the preface of HTTP/2 goes on in `http2`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::Cache;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep};

use super::establish::Accepted;
use super::guard::{GuardedStream, Protocol};
use super::socket::ClientStream;
use super::watch::{ConnectionTimeouts, WatchAction, next_action};
use super::{Acceptor, Current, Drain};
use crate::clock::Clock;
use crate::gateway::{Gateway, ResponseFuture, Session};
use crate::unsent::UnsentConnection;
use crate::wire::Body;
use crate::wire::activity::Activity;
use crate::wire::head::HeadFault;

/// How long an idle connection stays open once the gateway drains: a request that
/// is on its way is still answered, with `connection: close`.
pub(super) const DRAIN_GRACE: Duration = Duration::from_millis(500);
/// How long a refused client has to read its answer.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// hyper's default for `max_headers`. With any other value hyper allocates the
/// field table for each request.
const HYPER_MAX_HEADERS: usize = 100;
/// The least that hyper may buffer.
const MIN_BUFFER: usize = 16 * 1024;

type HttpConnection<S> = http1::Connection<TokioIo<GuardedStream<S>>, ConnectionService>;

impl Acceptor {
    /// Serves one connection to its end.
    pub(super) async fn serve_http1<S: ClientStream>(
        &self,
        stream: S,
        accepted: Accepted,
        protocol: Protocol,
    ) {
        let (peer, mut drain) = (accepted.peer, accepted.drain.clone());
        let (trust, settings) = (&accepted.settings.trust, accepted.settings.settings);
        let clock = &self.clock;
        let activity = Arc::new(Activity::new(clock.now()));
        let connection = self.next_connection.fetch_add(1, Relaxed);
        let session = Arc::new(Session::new(peer, connection, activity.clone()));
        let guarded = GuardedStream::new(
            stream,
            settings.head_bounds(),
            settings.times,
            activity.clone(),
            clock.clone(),
            UnsentConnection::new(&self.totals.unsent, trust, peer, connection),
            protocol,
        );
        let service = ConnectionService {
            current: RefCell::new(Cache::new(self.current.clone())),
            session,
            clock: clock.clone(),
        };
        let mut http = http1::Builder::new();
        // The guard bounds heads; hyper needs space for one head and for what it
        // reads beyond it.
        http.max_buf_size((settings.max_head_bytes * 2).max(MIN_BUFFER))
            // The guard withholds a client's end of input.
            .half_close(false);
        if settings.max_fields > HYPER_MAX_HEADERS {
            http.max_headers(settings.max_fields);
        }
        let mut http = http.serve_connection(TokioIo::new(guarded), service);
        let mut state = ConnectionState {
            activity: &activity,
            times: &settings.times,
            clock,
            too_slow: &self.totals.too_slow,
            drain: drain.clone(),
            draining: pin!(drain.wait_for(|drain| *drain)),
            timer: pin!(sleep(settings.times.shortest())),
            drain_polled: false,
            timer_polled: false,
            is_draining: false,
            is_closing: false,
            is_half_closed: false,
        };
        poll_fn(|cx| state.poll(cx, Pin::new(&mut http))).await;
        let Some((stream, early, unsent)) = http.into_parts().io.into_inner().into_http2() else {
            return;
        };
        let serving = self.serve_http2(stream, early.into(), accepted, (connection, unsent));
        // In memory of its own: most connections do not come here.
        Box::pin(serving).await;
    }
}

/// What ends a connection besides hyper: its timer, and the drain.
struct ConnectionState<'a, D> {
    activity: &'a Activity,
    times: &'a ConnectionTimeouts,
    clock: &'a Clock,
    /// Connections that were reset because their client read too slowly.
    too_slow: &'a AtomicU64,
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
    is_closing: bool,
    is_half_closed: bool,
}

impl<D: Future> ConnectionState<'_, D> {
    /// Ready when the connection has ended or must be closed.
    fn poll<S: ClientStream>(
        &mut self,
        cx: &mut Context<'_>,
        mut connection: Pin<&mut HttpConnection<S>>,
    ) -> Poll<()> {
        loop {
            self.poll_drain(cx);
            if connection.as_mut().poll(cx).is_ready() {
                // Errors are the client's doing (a reset, a truncated head), and
                // have been answered where that was possible.
                return Poll::Ready(());
            }
            if self.is_draining && self.activity.is_busy() && !self.is_closing {
                // hyper closes the connection after the answer in progress.
                self.is_closing = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            if !self.is_half_closed && self.activity.half_closed_since().is_some() {
                self.is_half_closed = true;
                self.set_timer(self.times.half_closed_timeout);
            }
            if self.timer_polled && !self.timer.is_elapsed() {
                return Poll::Pending;
            }
            self.timer_polled = true;
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            match self.after_timer() {
                Some(pause) => self.set_timer(pause),
                None => return Poll::Ready(()),
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

    /// How long to wait before the next check; `None` to close the connection.
    fn after_timer(&self) -> Option<Duration> {
        let activity = self.activity;
        let is_idle = activity.head_since().is_none() && activity.stalled_since().is_none();
        if self.is_draining && !self.is_closing && is_idle {
            return None;
        }
        match next_action(activity, self.times, self.clock.now()) {
            WatchAction::Keep(pause) => Some(pause),
            WatchAction::RefuseHead => {
                activity.set_fault(HeadFault::HeadTooSlow);
                Some(LINGER)
            }
            WatchAction::Close => None,
            WatchAction::Reset => {
                if !activity.is_reset_requested() {
                    self.too_slow.fetch_add(1, Relaxed);
                    activity.request_reset();
                }
                Some(LINGER)
            }
        }
    }
}

/// hyper's service for one connection.
struct ConnectionService {
    /// The current gateway. hyper calls from one task, one request after another.
    current: RefCell<Cache<Current, Arc<Gateway>>>,
    session: Arc<Session>,
    clock: Clock,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let mut current = self.current.borrow_mut();
        let gateway = current.load();
        match self.session.activity.is_outdated() {
            false => gateway.answer(&self.session, request),
            true => self.call_outdated(gateway, request),
        }
    }
}

impl ConnectionService {
    /// Answers a request that was read while the previous answer was in progress.
    /// It counts as received now. While the previous answer is stalled this one is
    /// not made: it would wait as long, and hold memory.
    #[cold]
    fn call_outdated(&self, gateway: &Arc<Gateway>, request: Request<Incoming>) -> ResponseFuture {
        let activity = &self.session.activity;
        if activity.stalled_since().is_none() {
            activity.refresh(self.clock.now());
            return gateway.answer(&self.session, request);
        }
        let (gateway, session) = (gateway.clone(), self.session.clone());
        let clock = self.clock.clone();
        // hyper polls this once the previous answer is completely written.
        ResponseFuture::Waiting(Box::pin(async move {
            session.activity.refresh(clock.now());
            let Ok(response) = gateway.answer(&session, request).await;
            response
        }))
    }
}
