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
/// come by then.
pub(crate) async fn exchange(
    sent: ResponseFuture,
    mut charge: Charge,
    slot: Option<Arc<InFlightSlot>>,
    patience: Duration,
) -> Option<Exchanged> {
    let (to, head) = oneshot::channel();
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
