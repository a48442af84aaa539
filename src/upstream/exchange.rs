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
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{advance, sleep};

    use super::*;
    use crate::clock::Clock;
    use crate::shared::permits::PoolPermit;
    use crate::upstream::Priority;
    use crate::upstream::client::no_body;
    use crate::upstream::client::pool::tests::pool;
    use crate::upstream::key::tests::keys;
    use crate::upstream::keys::Keys;

    /// A request with a charge of the only one in a minute, with a permit of the pool or not;
    /// its connection, and the server's side of that.
    async fn ready(
        clock: &Clock,
        is_of_pool: bool,
    ) -> (
        TcpStream,
        Connection,
        Request<RequestBody>,
        Arc<Keys>,
        Charge,
    ) {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let request = Request::get(url).body(no_body()).unwrap();
        let connection = pool().connect(request.uri()).await.unwrap();
        let (stream, _) = server.accept().await.unwrap();
        let keys = keys("a-key", 1, 1, clock);
        let mut charge = keys.take(Priority::Miss).unwrap();
        if is_of_pool {
            charge = charge.with_permit(PoolPermit::without_engine(clock));
        }
        (stream, connection, request, keys, charge)
    }

    /// A server that never answers: the request counts after its client has gone, for two
    /// minutes at most, with a permit of the pool for one. Then the connection is closed.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_waits_for_ends_after_two_minutes_or_one() {
        for (is_of_pool, longest) in [(false, 120), (true, 60)] {
            let clock = Clock::manual();
            let (mut stream, connection, request, keys, charge) = ready(&clock, is_of_pool).await;
            let patience = Duration::from_secs(30);
            let exchanged = exchange(connection, request, charge, None, patience).await;
            assert!(exchanged.is_none());
            let window = Duration::from_secs(61);
            for (seconds, left) in [(longest - 31, 0), (2, 1)] {
                advance(Duration::from_secs(seconds)).await;
                sleep(Duration::from_millis(1)).await;
                clock.advance(window);
                assert_eq!(keys.snapshots()[0].remaining, Some(left), "{seconds}");
            }
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_request_whose_permit_is_a_second_old_is_not_written() {
        let clock = Clock::manual();
        let (mut stream, connection, request, keys, charge) = ready(&clock, true).await;
        clock.advance(Duration::from_secs(1));
        let exchanged = exchange(connection, request, charge, None, Duration::MAX).await;
        assert!(matches!(exchanged, Some(Err(SendError::NotWritten))));
        assert_eq!(keys.snapshots()[0].remaining, Some(1));
        let mut written = Vec::new();
        stream.read_to_end(&mut written).await.unwrap();
        assert_eq!(written, b"");
    }
}
