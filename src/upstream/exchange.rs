//! One exchange with the upstream, in a task of its own.
//!
//! A request that has been sent may reach the upstream, and count there, as long as its
//! connection is open: it may lie in the receive buffer of a server that is stopped at the
//! moment. So the task goes on when nobody waits for the answer any more, and holds the
//! request's permit until the answer's head or the end of the connection, which is closed
//! after [`Permit::longest`].

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::failure::{Failure, classify, texts};
use super::permit::{Asked, Permit};
use super::pool::{Connection, ConnectionError};
use super::queue::RequestPriority;
use super::queue::Slot;
use super::{RequestBody, Upstream};
use crate::client_tokens::redact;
use crate::clock::Moment;
use crate::reason::Reason;

/// The most bytes that are shown of the text of an error.
const MOST_OF_TEXT: usize = 1024;

/// An answer whose body has not been read.
pub(super) struct Answered {
    pub(super) response: Response<Incoming>,
    pub(super) asked: Asked,
    /// Of a request that needs one, to be kept until the body has been received.
    pub(super) slot: Option<Slot>,
    /// When the request was sent.
    pub(super) sent: Moment,
}

impl Upstream {
    /// Sends a request on a connection that is ready, and waits for the head of its answer
    /// for `patience`. A connection that cannot be made costs no budget. `None` if no byte was
    /// written, and nothing is spent: the request is to be admitted again.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        mut permit: Permit,
        request: Request<RequestBody>,
        is_typed: bool,
        patience: Duration,
    ) -> Result<Option<Answered>, Failure> {
        let asked = permit.asked.clone();
        let connection = match self.pool.connect(&asked.endpoint.url).await {
            Ok(connection) => connection,
            Err(error) => {
                self.unanswered(&asked, &permit.request);
                return Err(failed(&error));
            }
        };
        if !permit.ready().await || !permit.is_usable() {
            connection.put_back();
            return Ok(None);
        }
        let is_probe = permit.request.is_probe();
        let sent = self.clock.now();
        self.counters.count_sent(&permit.request);
        asked.endpoint.state().sent += 1;
        permit.mark_sent(true);
        let (to, head) = oneshot::channel();
        let upstream = self.clone();
        tokio::spawn(async move {
            let answered = upstream.carry(connection, request, permit, (is_typed, sent));
            if let Some(answered) = answered.await {
                // Nobody may wait for it any more.
                let _ = to.send(answered);
            }
        });
        match timeout(patience, head).await {
            Ok(Ok(Ok(answered))) => Ok(Some(answered)),
            Ok(Ok(Err(error))) if error.is_unwritten => Ok(None),
            Ok(Ok(Err(error))) => Err(failed(&error)),
            // After the longest that its permit allows, its connection was closed.
            Ok(Err(_)) | Err(_) => {
                if is_probe
                    && asked
                        .endpoint
                        .unanswered(|breaker, now| breaker.silent(patience, now))
                {
                    self.doubted.send_replace(());
                }
                let cause = format!("nothing came in {patience:?}");
                Err(Failure::new(Reason::UpstreamTimeout).because(&cause))
            }
        }
    }

    /// Sends a request, and waits for the head of its answer, as long as its permit allows;
    /// `None` after that.
    async fn carry(
        &self,
        connection: Connection,
        request: Request<RequestBody>,
        mut permit: Permit,
        (is_typed, sent): (bool, Moment),
    ) -> Option<Result<Answered, ConnectionError>> {
        let (asked, has_body) = (permit.asked.clone(), !request.method().is_safe());
        match timeout(permit.longest(), connection.send(request))
            .await
            .ok()?
        {
            Ok(response) => {
                if asked.endpoint.answered(self.clock.now().since(sent)) {
                    self.queue.pump();
                }
                let slot = permit.answered(response.status(), response.headers(), is_typed);
                Some(Ok(Answered {
                    response,
                    asked,
                    slot,
                    sent,
                }))
            }
            Err(error) => {
                if error.is_unwritten {
                    permit.mark_sent(false);
                } else if !has_body {
                    // A server may close the connection to refuse an upload
                    // (RFC 9112 §9.6).
                    self.unanswered(&asked, &permit.request);
                }
                Some(Err(error))
            }
        }
    }

    /// A connection could not be made, or has ended before an answer.
    fn unanswered(&self, asked: &Asked, request: &RequestPriority) {
        let is_decisive = request.is_probe() || !self.has_tip();
        if asked
            .endpoint
            .unanswered(|breaker, now| breaker.failed(is_decisive, now))
        {
            self.doubted.send_replace(());
        }
    }
}

/// How a connection has failed. Some texts are the upstream's, such as the names in a
/// certificate.
fn failed(error: &ConnectionError) -> Failure {
    let text = redact(&texts(error), MOST_OF_TEXT).into_owned();
    Failure::new(classify(error)).because(&text)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::time::{Instant, advance, sleep};

    use super::*;
    use crate::clock::Clock;
    use crate::shared::permits::PoolPermit;
    use crate::upstream::pool::tests::get;
    use crate::upstream::queue::tests::upstream_at;
    use crate::upstream::{Priority, no_body};

    /// A server, its upstream with a budget of one request a minute, and a permit for it, with
    /// one of the pool or without; and the request.
    async fn ready(
        clock: &Clock,
        pool: Option<PoolPermit>,
    ) -> (TcpListener, Arc<Upstream>, Permit, Request<RequestBody>) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let config = "upstream.requests_per_minute = 1\nupstream.requests_per_second = 1";
        let upstream = upstream_at(&url, config, "a-key", clock);
        let request = RequestPriority::own(Priority::Miss);
        let permit = upstream.acquire(request, None, Instant::now()).await;
        let mut permit = permit.ok().unwrap();
        permit.set_pool(pool);
        let request = Request::get(format!("{url}/path?query")).body(no_body());
        let request = request.unwrap();
        (server, upstream, permit, request)
    }

    /// A server that never answers: the request counts after its client has gone, for two
    /// minutes at most, with a permit of the pool for one. Then the connection is closed.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_waits_for_ends_after_two_minutes_or_one() {
        for (is_of_pool, longest) in [(false, 120), (true, 60)] {
            let clock = Clock::manual();
            let pool = is_of_pool.then(|| PoolPermit::without_engine(&clock));
            let (server, upstream, permit, request) = ready(&clock, pool).await;
            let patience = Duration::from_secs(30);
            let exchanged = upstream.exchange(permit, request, true, patience);
            assert!(exchanged.await.is_err());
            let (mut stream, _) = server.accept().await.unwrap();
            let window = Duration::from_secs(61);
            for (seconds, left) in [(longest - 31, 0), (2, 1)] {
                advance(Duration::from_secs(seconds)).await;
                sleep(Duration::from_millis(1)).await;
                clock.advance(window);
                let snapshots = upstream.key_snapshots();
                assert_eq!(snapshots[0]["budget_left"], left, "{seconds}");
            }
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_request_whose_permit_is_a_second_old_is_not_written() {
        let clock = Clock::manual();
        let pool = PoolPermit::without_engine(&clock);
        let unused = pool.unused();
        let (server, upstream, permit, request) = ready(&clock, Some(pool)).await;
        clock.advance(Duration::from_secs(1));
        let exchanged = upstream.exchange(permit, request, true, Duration::MAX);
        assert!(exchanged.await.unwrap().is_none());
        assert_eq!(upstream.key_snapshots()[0]["budget_left"], 1);
        assert_eq!(unused(), 1, "it is given back");
        // The connection is idle now, and closed with the pool.
        drop(upstream);
        let (mut stream, _) = server.accept().await.unwrap();
        let mut written = Vec::new();
        stream.read_to_end(&mut written).await.unwrap();
        assert_eq!(written, b"");
    }

    /// The server closes an idle connection after it was taken for a request.
    #[tokio::test]
    async fn a_request_that_was_not_written_on_a_reused_connection_spends_nothing() {
        let clock = Clock::manual();
        let pool = PoolPermit::without_engine(&clock);
        let unused = pool.unused();
        let (server, upstream, mut permit, request) = ready(&clock, Some(pool)).await;
        let server = server.into_std().unwrap();
        let stream = get(&upstream.pool, &server, None).await;
        let connection = upstream.pool.connect(request.uri()).await.unwrap();
        drop(stream);
        sleep(Duration::from_millis(50)).await;
        permit.mark_sent(true);
        let carried = upstream.carry(connection, request, permit, (true, clock.now()));
        assert!(carried.await.unwrap().err().unwrap().is_unwritten);
        assert_eq!(upstream.key_snapshots()[0]["budget_left"], 1);
        assert_eq!(unused(), 1, "its permit of the pool is given back");
    }
}
