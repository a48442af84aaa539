//! One exchange with the upstream, in a task of its own.
//!
//! A request that has been sent may reach the upstream, and count there, as long as its
//! connection is open: it may lie in the receive buffer of a server that is stopped at
//! the moment. So the task goes on when nobody waits for the answer any more, and holds
//! the request's slot and its charge until the answer's head, the end of the connection,
//! or [`LINGER`].

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use hyper_util::client::legacy::{Error, ResponseFuture};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::charge::Charge;
use super::endpoint::InFlightSlot;

/// How long a request is under way at most.
pub(crate) const LINGER: Duration = Duration::from_secs(120);

/// The head of an answer or an error, and the charge of the request.
pub(crate) type Exchanged = (Result<Response<Incoming>, Error>, Charge);

/// Sends a request and waits for the head of its answer for `patience`; `None` if none has
/// come by then, or its permit is too old.
pub(crate) async fn exchange(
    sent: ResponseFuture,
    mut charge: Charge,
    slot: Option<Arc<InFlightSlot>>,
    patience: Duration,
) -> Option<Exchanged> {
    let (to, head) = oneshot::channel();
    if !charge.is_usable() {
        return None;
    }
    charge.mark_sent();
    tokio::spawn(async move {
        let Ok(head) = timeout(LINGER, sent).await else {
            return;
        };
        match &head {
            Err(error) if error.is_connect() => charge.mark_unsent(),
            Err(_) => charge.end(),
            // The limits in the answer are applied before the charge ends.
            Ok(_) => {}
        }
        drop(slot);
        // Nobody may wait for it any more.
        let _ = to.send((head, charge));
    });
    timeout(patience, head).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use http::Request;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use tokio::net::TcpListener;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::clock::Clock;
    use crate::upstream::Priority;
    use crate::upstream::client::{RequestBody, no_body};
    use crate::upstream::key::tests::keys;

    /// A server that never answers: the request counts after its client has gone, and two
    /// minutes at most.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_waits_for_counts_for_two_minutes() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let client: Client<_, RequestBody> = Client::builder(TokioExecutor::new()).build_http();
        let clock = Clock::manual();
        let keys = keys("a-key", 1, 1, &clock);
        let charge = keys.take(Priority::Miss).unwrap();
        let sent = client.request(Request::get(url).body(no_body()).unwrap());
        let patience = Duration::from_secs(60);
        assert!(exchange(sent, charge, None, patience).await.is_none());
        let window = Duration::from_secs(61);
        for (seconds, left) in [(59, 0), (2, 1)] {
            advance(Duration::from_secs(seconds)).await;
            sleep(Duration::from_millis(1)).await;
            clock.advance(window);
            assert_eq!(keys.snapshots()[0].remaining, Some(left), "{seconds}");
        }
    }

    /// A connection that cannot be made costs nothing.
    #[tokio::test]
    async fn a_request_that_was_not_sent_does_not_count() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        drop(server);
        let client: Client<_, RequestBody> = Client::builder(TokioExecutor::new()).build_http();
        let keys = keys("a-key", 1, 1, &Clock::manual());
        let charge = keys.take(Priority::Miss).unwrap();
        let sent = client.request(Request::get(url).body(no_body()).unwrap());
        let exchanged = exchange(sent, charge, None, Duration::from_secs(60)).await;
        assert!(matches!(exchanged, Some((Err(_), _))));
        drop(exchanged);
        assert_eq!(keys.snapshots()[0].remaining, Some(1));
    }
}
