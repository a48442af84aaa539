//! One exchange with the upstream, in a task of its own.
//!
//! A request that has been sent may reach the upstream, and count there, as long as its
//! connection is open: it may lie in the receive buffer of a server that is stopped at
//! the moment. So the task goes on when nobody waits for the answer any more, and holds
//! the request's slot and its charge until the answer's head or the end of the connection,
//! which is closed after [`Charge::longest`].

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::charge::Charge;
use super::client::RequestBody;
use super::client::pool::{Connection, SendError};
use super::endpoint::InFlightSlot;

/// Sends a request that is [ready](Charge::ready), and waits for the head of its answer for
/// `patience`; `None` if none has come by then.
pub(crate) async fn exchange(
    connection: Connection,
    request: Request<RequestBody>,
    mut charge: Charge,
    slot: Option<Arc<InFlightSlot>>,
    patience: Duration,
) -> Option<Result<(Response<Incoming>, Charge), SendError>> {
    if !charge.is_usable() {
        connection.put_back();
        return Some(Err(SendError::NotWritten));
    }
    let (to, head) = oneshot::channel();
    charge.mark_sent();
    tokio::spawn(async move {
        let answered = match timeout(charge.longest(), connection.send(request)).await {
            // The limits in the answer are applied before the charge ends.
            Ok(Ok(response)) => {
                charge.mark_answered();
                Ok((response, charge))
            }
            Ok(Err(error)) => {
                if matches!(error, SendError::NotWritten) {
                    charge.mark_unsent();
                }
                drop(charge);
                Err(error)
            }
            Err(_elapsed) => return,
        };
        drop(slot);
        // Nobody may wait for it any more.
        let _ = to.send(answered);
    });
    timeout(patience, head).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::clock::Clock;
    use crate::upstream::Priority;
    use crate::upstream::client::no_body;
    use crate::upstream::client::pool::tests::pool;
    use crate::upstream::key::tests::keys;

    /// A server that never answers: the request counts after its client has gone, and two
    /// minutes at most.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_waits_for_counts_for_two_minutes() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let request = Request::get(url).body(no_body()).unwrap();
        let connection = pool().connect(request.uri()).await.unwrap();
        let clock = Clock::manual();
        let keys = keys("a-key", 1, 1, &clock);
        let charge = keys.take(Priority::Miss).unwrap();
        let patience = Duration::from_secs(60);
        let exchanged = exchange(connection, request, charge, None, patience).await;
        assert!(exchanged.is_none());
        let window = Duration::from_secs(61);
        for (seconds, left) in [(59, 0), (2, 1)] {
            advance(Duration::from_secs(seconds)).await;
            sleep(Duration::from_millis(1)).await;
            clock.advance(window);
            assert_eq!(keys.snapshots()[0].remaining, Some(left), "{seconds}");
        }
    }
}
