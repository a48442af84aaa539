//! The simulated upstream: it records requests, and answers when the play says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::HeaderMap;
use ordgate::reason::Reason;
use ordgate::upstream::{
    Answer, Failure, Priority, RequestPriority, UpstreamClient, UpstreamRequest,
};
use tokio::sync::oneshot;

/// A request that has just come.
pub(crate) struct Asked {
    pub(crate) text: String,
    pub(crate) fields: HeaderMap,
    pub(crate) priority: Priority,
    pub(crate) reply: oneshot::Sender<Result<Answer, Failure>>,
}

/// The simulated upstream, with its recent requests.
#[derive(Clone, Default)]
pub(crate) struct StandIn(Arc<Mutex<Vec<Asked>>>);

impl StandIn {
    pub(crate) fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.0.lock().unwrap()
    }
}

impl UpstreamClient for StandIn {
    fn send<'a>(
        &'a self,
        request: UpstreamRequest<'a>,
        wish: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        let (reply, answer) = oneshot::channel();
        self.asked().push(Asked {
            text: request.target.to_owned(),
            fields: request.fields,
            priority: wish.priority,
            reply,
        });
        Box::pin(async {
            answer
                .await
                .unwrap_or(Err(Failure::new(Reason::ConnectionClosed)))
        })
    }

    fn max_wait(&self) -> Duration {
        Duration::from_secs(90)
    }
}
