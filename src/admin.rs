//! The operator's door, apart from the clients': `/healthz` (the process
//! lives), `/readyz` (it can serve), `/metrics`, `/status`.
//!
//! Invariant: off loopback nothing is answered without the token.
//!
//! Deliberately absent: the walk. Nothing here touches the upstream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ring::digest::{SHA256, digest};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::listener::Drain;
use crate::telemetry;
use crate::wire::Body;

/// The operator's token, kept as a digest: it cannot be shown, and comparing
/// digests tells nothing of it by its time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token([u8; 32]);

impl Token {
    /// A token of this text.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, text.trim().as_bytes()).as_ref());
        Self(bytes)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// What the admin side tells of beside the gateway.
pub struct Admin {
    /// The gateway.
    pub gateway: Arc<Gateway>,
    /// What is demanded, if anything.
    pub token: Option<Token>,
    /// Where the public side listens.
    pub listen: SocketAddr,
    /// Threads that serve it.
    pub workers: usize,
    /// Where the configuration came from.
    pub config: String,
    /// When the process was ready.
    pub since: Moment,
    /// Whether it is to stop.
    pub drain: Drain,
}

/// Connections to the admin side at once; one more takes the oldest's place.
/// Those that are idle must not keep out the one that asks whether we live.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle, and a request's head may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Admin {
    /// Serves until the process ends.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "an admin connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let admin = self.clone();
            open.retain(|connection| !connection.is_finished());
            if open.len() >= CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
                // It goes, and whoever has come is served, before more come.
                tokio::task::yield_now().await;
            }
            let served = tokio::spawn(async move {
                let service = service_fn(|request| {
                    let response = admin.answer(&request);
                    async move { Ok::<_, Infallible>(response) }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "an admin connection failed");
                }
            });
            open.push_back(served.abort_handle());
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        if !self.admits(request) {
            let mut response = text(
                StatusCode::UNAUTHORIZED,
                "A token is needed: authorization: Bearer TOKEN\n",
            );
            let challenge = HeaderValue::from_static("Bearer realm=\"ordgate admin\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return response;
        }
        let path = request.uri().path();
        if !["/healthz", "/readyz", "/metrics", "/status"].contains(&path) {
            return text(
                StatusCode::NOT_FOUND,
                "There are /healthz, /readyz, /metrics and /status here\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(
                StatusCode::METHOD_NOT_ALLOWED,
                "This path takes GET, HEAD\n",
            );
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match path {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if *self.drain.borrow() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => text(StatusCode::OK, "ready\n"),
            "/metrics" => match telemetry::render(&self.gateway) {
                Ok(metrics) => typed(
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    metrics.into(),
                ),
                Err(_) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics could not be written\n",
                ),
            },
            _ => typed("application/json", self.status().to_string().into()),
        }
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let value = request
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let sent = value.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token)
        });
        sent.is_some_and(|sent| Token::new(sent) == *token)
    }

    fn status(&self) -> serde_json::Value {
        let gateway = &self.gateway;
        let meter = &gateway.meter;
        let size = gateway.cache.store().size();
        let tally = gateway.upstream.tally();
        let routes = gateway.routes.routes();
        let requests = gateway.meter.counts().into_iter().map(|count| {
            json!({
                "route": count.route.and_then(|at| routes.get(at)).map(|route| &*route.name),
                "outcome": count.outcome,
                "class": count.class,
                "requests": count.requests,
            })
        });
        let keys = gateway.upstream.standings().into_iter().map(|standing| {
            json!({
                "name": standing.name,
                "budget_left": standing.left,
                "cooling_seconds": standing.cooling.as_secs_f64(),
            })
        });
        let settings = gateway.upstream.settings();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "state": if *self.drain.borrow() { "draining" } else { "ready" },
            "uptime_seconds": gateway.clock.now().since(self.since).as_secs(),
            "listen": self.listen.to_string(),
            "workers": self.workers,
            "config": self.config,
            "connections": {
                "open": meter.connections.load(Relaxed),
                "accepted": meter.accepted.load(Relaxed),
                "turned_away": meter.turned_away.load(Relaxed),
            },
            "callers": meter.callers.load(Relaxed),
            "cache": { "entries": size.entries, "bytes": size.bytes, "max_bytes": size.max_bytes },
            "collapse": { "keys": gateway.fill.collapse.len() },
            "upstream": {
                "url": settings.url.as_ref().map(ToString::to_string),
                "in_flight": gateway.upstream.in_flight(),
                "sent": tally.sent.load(Relaxed),
                "answered": tally.answered.load(Relaxed),
                "failed": tally.failed.load(Relaxed),
                "spent": tally.spent.load(Relaxed),
                "retried": tally.retried.load(Relaxed),
                "keys": keys.collect::<Vec<_>>(),
            },
            "requests": requests.collect::<Vec<_>>(),
        })
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = typed(
        "text/plain; charset=utf-8",
        Bytes::from_static(text.as_bytes()),
    );
    *response.status_mut() = status;
    response
}

fn typed(media: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(body));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_compared_and_never_shown() {
        let token = Token::new("s3cret\n");
        assert_eq!(token, Token::new("s3cret"));
        assert_ne!(token, Token::new("S3cret"));
        assert_eq!(format!("{token:?}"), "[redacted]");
    }
}
