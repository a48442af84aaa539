//! The admin listener: `/healthz` (the process runs), `/readyz` (it can serve),
//! `/metrics`, `/status`, `/history` (the last ten minutes), `/explain` (what is known
//! of a URL), `/purge`, `/reload`, and the dashboard at `/`.
//!
//! Invariants: beyond loopback, only `/healthz`, `/readyz` and the dashboard's files,
//! which contain no data, are answered without the token; only `/purge` and `/reload`
//! change anything, no web page but the dashboard can call them (`browser`), and none
//! can read anything under another host name (`host`).
//!
//! Nothing here sends a request to the upstream.

mod browser;
pub mod client;
mod dashboard;
mod explain;
pub(crate) mod host;
mod purge;
mod query;
mod response;
mod status;
mod token;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http::header::{ALLOW, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use response::{invalid, json_body, problem, problem_with, text, typed};
use serde_json::json;
pub use token::Token;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::history::ProcessHistory;
use crate::identify::Client;
use crate::listener::{BoundListener, Current, Drain, is_connection_error};
use crate::log_writer::LogInterval;
use crate::reload::{NotReloaded, Reloads};
use crate::telemetry;
use crate::wire::Body;

/// What the admin listener serves.
pub struct Admin {
    /// The current gateway.
    pub current: Current,
    /// Which requests it answers; a reload may change it.
    pub access: Arc<ArcSwap<Access>>,
    /// Reloads the configuration.
    pub reloads: Arc<Reloads>,
    /// The public listeners, with what is known of their certificates at a time.
    pub listeners: Box<dyn Fn(SystemTime) -> Vec<BoundListener> + Send + Sync>,
    /// The source of the configuration.
    pub config: String,
    /// When the process began to serve.
    pub since: Moment,
    /// Whether the process is stopping.
    pub drain: Drain,
    /// The last ten minutes.
    pub history: Arc<ProcessHistory>,
}

/// Which requests the admin listener answers.
pub struct Access {
    /// The token that they must have, if any.
    pub token: Option<Token>,
    /// The host names that they may have besides localhost.
    pub hosts: Vec<String>,
}

/// The most open connections; for one more, another is closed.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle, and a request's head or body may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection is used,
const LONGEST_USE: Duration = Duration::from_mins(5);
/// and how long its last request may take then.
const LAST_REQUEST: Duration = Duration::from_mins(1);

impl Admin {
    /// Serves until the process ends.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut open: Vec<(Client, AbortHandle)> = Vec::new();
        let log = LogInterval::default();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A connection that was reset needs no pause. A lack of
                    // descriptors passes when another connection ends.
                    if !is_connection_error(&error) {
                        if log.is_due(LogInterval::MINUTE, self.current.load().clock.now()) {
                            tracing::warn!(%error, "admin connections cannot be accepted; this is logged again a minute later at the earliest");
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    continue;
                }
            };
            open.retain(|(_, task)| !task.is_finished());
            if open.len() >= CONNECTIONS {
                let (_, task) = open.remove(victim(&open));
                task.abort();
            }
            let served = tokio::spawn(self.clone().serve_one(stream));
            open.push((peer.ip().into(), served.abort_handle()));
            // Let it read its request before further connections are accepted,
            // for which it might be closed.
            tokio::task::yield_now().await;
        }
    }

    async fn serve_one(self: Arc<Self>, stream: TcpStream) {
        let service =
            service_fn(|request| async { Ok::<_, Infallible>(self.answer(request).await) });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(TIMEOUT)
                // A request counts though its client sends no more: otherwise whether a purge is
                // carried out would depend on when the end of the client's input is read.
                .half_close(true)
                .serve_connection(TokioIo::new(stream), service)
        );
        if timeout(LONGEST_USE, connection.as_mut()).await.is_err() {
            connection.as_mut().graceful_shutdown();
            if timeout(LAST_REQUEST, connection).await.is_err() {
                tracing::debug!("the client of an admin connection does not read the answer");
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (path, fields) = (request.uri().path(), request.headers());
        let file = dashboard::file(path);
        // Probes need no token and may use any host name: they reveal nothing else. The
        // dashboard's files contain no data; the page asks for the token.
        let is_probe = matches!(path, "/healthz" | "/readyz");
        if !is_probe && file.is_none() && !self.admits(&request) {
            let why = "A token is needed: authorization: Bearer TOKEN\n";
            let mut response = text(StatusCode::UNAUTHORIZED, why);
            let challenge = HeaderValue::from_static("Bearer realm=\"ordgate admin\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return response;
        }
        if !is_probe && let Err((status, detail)) = host::check(&request, &self.access.load().hosts)
        {
            return problem(status, &detail);
        }
        let (changes, allow) = match path {
            "/purge" | "/reload" => (true, "POST"),
            "/healthz" | "/readyz" | "/metrics" | "/status" | "/history" | "/explain" => {
                (false, "GET, HEAD")
            }
            _ if file.is_some() => (false, "GET, HEAD"),
            _ => {
                let paths = "The paths are /, /healthz, /readyz, /metrics, /status, /history, /explain, /purge and /reload\n";
                return text(StatusCode::NOT_FOUND, paths);
            }
        };
        if !allow.split(", ").any(|method| method == request.method()) {
            let mut response = text(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("The methods are {allow}\n"),
            );
            let allow = HeaderValue::from_static(allow);
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
        if changes && browser::is_foreign_page(fields) {
            let detail = "A page in a browser must not do this: use the dashboard (at / here), ordgate purge, kill -HUP, or a client that sends neither origin nor a sec-fetch-site other than same-origin or none";
            return problem(StatusCode::FORBIDDEN, detail);
        }
        if let Some(file) = file {
            return file;
        }
        let gateway = &self.current.load_full();
        match path {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if *self.drain.borrow() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => ready(gateway),
            "/metrics" => {
                let metrics = telemetry::render(&status::figures(self, gateway));
                typed(telemetry::MEDIA_TYPE, metrics.into())
            }
            "/history" => json_body(self.history.json().to_string()),
            "/explain" => match explain::answer(gateway, request.uri().query()).await {
                Ok(explained) => json_body(format!("{explained:#}\n")),
                Err(wrong) => invalid(&wrong),
            },
            "/purge" => purge::answer(gateway, request, TIMEOUT).await,
            "/reload" => self.reload().await,
            _ => json_body(status::status(self, gateway).to_string()),
        }
    }

    /// The public listeners now.
    fn bound(&self, gateway: &Gateway) -> Vec<BoundListener> {
        (self.listeners)(gateway.clock.wall_now())
    }

    /// Whether a request has the token.
    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = self.access.load().token else {
            return true;
        };
        let value = request.headers().get(AUTHORIZATION);
        let value = value.and_then(|value| value.to_str().ok());
        let sent = value.and_then(|value| value.split_once(' '));
        sent.is_some_and(|(scheme, sent)| {
            scheme.eq_ignore_ascii_case("bearer") && Token::new(sent) == token
        })
    }

    /// Reloads the configuration.
    async fn reload(&self) -> Response<Body> {
        let why = match self.reloads.request().await {
            Ok(notes) => return json_body(format!("{:#}\n", json!({ "notes": notes }))),
            Err(why) => why,
        };
        let status = match &why {
            NotReloaded::Refused(problems) => {
                let detail = "The new configuration is refused and the previous one stays in use; problems says why";
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                return problem_with(status, detail, &[("problems", json!(problems))]);
            }
            NotReloaded::Late(_) => StatusCode::SERVICE_UNAVAILABLE,
            NotReloaded::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut detail = why.to_string();
        detail[..1].make_ascii_uppercase();
        problem(status, &detail)
    }
}

/// The place of the connection to close for a new one: the oldest of the client with the
/// most, so that probes and purges are served whatever another client does.
fn victim(open: &[(Client, AbortHandle)]) -> usize {
    let of = |client| open.iter().filter(|(own, _)| *own == client).count();
    let places = (0..open.len()).rev();
    places.max_by_key(|at| of(open[*at].0)).unwrap_or(0)
}

/// Whether the gateway can serve: not before the tips are known, because a wrong
/// or missing upstream shows there first.
fn ready(gateway: &Gateway) -> Response<Body> {
    let missing = gateway.not_ready();
    match missing.is_empty() {
        true => text(StatusCode::OK, "ready\n"),
        false => {
            let why = format!("not ready: {}\n", missing.join("; "));
            text(StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_connection_of_the_client_with_the_most_is_closed() {
        let task = || tokio::spawn(async {}).abort_handle();
        let rows: [(&[u32], usize); 4] = [
            (&[1], 0),
            (&[1, 2, 2], 1),
            (&[2, 1, 2, 1], 0),
            (&[3, 1, 2, 1], 1),
        ];
        for (clients, expected) in rows {
            let open: Vec<_> = clients
                .iter()
                .map(|client| (Client::V4(*client), task()))
                .collect();
            assert_eq!(victim(&open), expected, "{clients:?}");
        }
    }
}
