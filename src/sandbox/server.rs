//! The server: sockets and time.
//!
//! A request's answer is decided before its latency begins, as a database query sees the chain before its reply is sent;
//! an answer can therefore be older than the chain by its latency. Invariants: no lock is held across an await; all tasks
//! end with `serve`. HTTP/2 and TLS are not implemented.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Api, Sandbox, State, control};

/// How long the reference keeps idle connections.
const KEEP_ALIVE: Duration = Duration::from_secs(72);

impl Sandbox {
    /// Serves this API by HTTP/1.1 on the listener until `stop` resolves, then drops all connections and returns. Several
    /// listeners can be served at the same time, with the same API or different ones.
    pub async fn serve(self, api: Api, listener: TcpListener, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection(self.clone(), api, stream));
                    }
                    Err(error) => {
                        // Mostly a lack of file descriptors: wait instead of spinning.
                        tracing::warn!(%error, "the sandbox cannot accept");
                        sleep(Duration::from_millis(20)).await;
                    }
                },
            }
        }
    }
}

async fn connection(sandbox: Sandbox, api: Api, stream: TcpStream) {
    if stream.set_nodelay(true).is_err() {
        // The client is gone.
        return;
    }
    let service = service_fn(|request| respond(&sandbox, api, request));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(KEEP_ALIVE);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        // Usual here: clients disconnect, and faults close connections.
        tracing::trace!(%error, "a connection of the sandbox ended");
    }
}

/// The answer to a request. An error closes the connection.
async fn respond(
    sandbox: &Sandbox,
    api: Api,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    // The body is read, and ignored, when it is dropped after the answer.
    let (request, _body) = request.into_parts();
    let (answer, wait) = if request.uri.path().starts_with("/sandbox/") {
        (Some(control::answer(sandbox, &request)), Duration::ZERO)
    } else {
        let State { model, provider } = &mut *sandbox.state();
        provider.receive(&sandbox.settings, model, api, &request, Instant::now())
    };
    if !wait.is_zero() {
        sleep(wait).await;
    }
    let answer = answer.ok_or_else(|| io::Error::other("closed on purpose"))?;
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    Ok(response)
}

#[cfg(test)]
mod tests;
