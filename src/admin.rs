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
mod connections;
mod dashboard;
mod explain;
mod history;
pub(crate) mod host;
mod purge;
mod query;
mod response;
mod status;
mod token;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use browser::{browser_sign, refuse_browser};
use connections::{Connections, Timed, Use};
use http::header::{ALLOW, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use response::{invalid, json_body, problem, problem_with, text, typed};
use serde_json::json;
pub use token::Token;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::history::ProcessHistory;
use crate::listener::{BoundListener, Current, Drain, is_connection_error};
use crate::log_writer::LogInterval;
use crate::reload::{NotReloaded, Reloads};
use crate::sync::lock;
use crate::telemetry;
use crate::upstream::keys::UNKNOWN;
use crate::wire::Body;

/// What the admin listener serves.
pub struct Admin {
    /// The current gateway.
    pub current: Current,
    /// The token that requests must have, if any; a reload may change it.
    pub token: Arc<Mutex<Option<Token>>>,
    /// The host names that it answers to besides localhost; a reload may change
    /// them.
    pub hosts: Arc<ArcSwap<Vec<String>>>,
    /// Whether `/readyz` fails until every probed tip has been known once; a reload
    /// may change it.
    /// Reloads the configuration.
    pub reloads: Arc<Reloads>,
    /// The public listeners, with what is known of their certificates at a time.
    pub listeners: Box<dyn Fn(SystemTime) -> Vec<BoundListener> + Send + Sync>,
    /// The number of worker threads.
    pub workers: usize,
    /// The source of the configuration.
    pub config: String,
    /// When the process began to serve.
    pub since: Moment,
    /// Whether the process is stopping.
    pub drain: Drain,
    /// The last ten minutes.
    pub history: Arc<ProcessHistory>,
}

/// The most open connections; for one more, another is closed.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle, and a request's head or body may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The paths, and the methods that they allow.
const PATHS: [(&str, &str); 8] = [
    ("/healthz", "GET, HEAD"),
    ("/readyz", "GET, HEAD"),
    ("/metrics", "GET, HEAD"),
    ("/status", "GET, HEAD"),
    ("/history", "GET, HEAD"),
    ("/explain", "GET, HEAD"),
    ("/purge", "POST"),
    ("/reload", "POST"),
];

impl Admin {
    /// Serves until the process ends.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut connections = Connections::new(CONNECTIONS);
        let purged = Arc::new(Notify::new());
        tokio::spawn(sweep_after_purges(self.current.clone(), purged.clone()));
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
            let used = connections.admit(peer.ip().into());
            let served = tokio::spawn(self.clone().serve_one(stream, used, purged.clone()));
            connections.serves(served.abort_handle());
            // Let it read its request before further connections are accepted,
            // for which it might be closed.
            tokio::task::yield_now().await;
        }
    }

    async fn serve_one(self: Arc<Self>, stream: TcpStream, used: Use, purged: Arc<Notify>) {
        let service = service_fn(|request| {
            let (admin, purged, used) = (self.clone(), purged.clone(), used.clone());
            async move {
                used.touch();
                let response = admin.answer(request, &purged).await;
                used.touch();
                Ok::<_, Infallible>(response)
            }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(TIMEOUT)
            // A request counts though its client sends no more: otherwise whether a purge is
            // carried out would depend on when the end of the client's input is read.
            .half_close(true)
            .serve_connection(TokioIo::new(Timed::new(stream)), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "an admin connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, purged: &Notify) -> Response<Body> {
        // Probes need no token and may use any host name: they reveal nothing else.
        let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
        // The dashboard's files contain no data; the page asks for the token.
        let file = dashboard::file(request.uri().path());
        if !is_probe && file.is_none() && !self.admits(&request) {
            let mut response = text(
                StatusCode::UNAUTHORIZED,
                "A token is needed: authorization: Bearer TOKEN\n",
            );
            let challenge = HeaderValue::from_static("Bearer realm=\"ordgate admin\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return response;
        }
        if !is_probe && let Err(foreign) = host::check(&request, &self.hosts.load()) {
            return problem(foreign.status(), &foreign.detail(), None);
        }
        let path = request.uri().path();
        let known = PATHS.into_iter().find(|(known, _)| *known == path);
        let known = known.or(file.map(|_| (path, "GET, HEAD")));
        let Some((path, allow)) = known else {
            return text(
                StatusCode::NOT_FOUND,
                "The paths are /, /healthz, /readyz, /metrics, /status, /history, /explain, /purge and /reload\n",
            );
        };
        if !allow
            .split(", ")
            .any(|method| method == request.method().as_str())
        {
            return wrong_method(allow);
        }
        if let Some(file) = file {
            return file.response(request.headers());
        }
        let gateway = &self.current.load_full();
        match path {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if *self.drain.borrow() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => self.ready(gateway),
            "/metrics" => self.metrics(gateway),
            "/history" => history::answer(&self.history, &request),
            "/explain" => explain_elsewhere(gateway.clone(), request.uri().query()).await,
            "/purge" => {
                let response = purge::answer(gateway, request, TIMEOUT).await;
                if response.status() == StatusCode::OK {
                    purged.notify_one();
                }
                response
            }
            "/reload" => self.reload(request.headers()).await,
            _ => json_body(status::status(self, gateway).to_string()),
        }
    }

    /// The metrics, as OpenMetrics text.
    fn metrics(&self, gateway: &Arc<Gateway>) -> Response<Body> {
        match telemetry::render(status::figures(self, gateway)) {
            Ok(metrics) => typed(telemetry::MEDIA_TYPE, metrics.into()),
            Err(std::fmt::Error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the metrics could not be written\n",
            ),
        }
    }

    /// The public listeners now.
    fn bound(&self, gateway: &Gateway) -> Vec<BoundListener> {
        (self.listeners)(gateway.clock.wall(gateway.clock.now()))
    }

    /// Whether the gateway can serve: not before the tips are known, because a wrong
    /// or missing upstream shows there first.
    fn ready(&self, gateway: &Gateway) -> Response<Body> {
        let missing = gateway.not_ready();
        let (status, mut why) = match missing.is_empty() {
            true => (StatusCode::OK, "ready\n".to_owned()),
            false => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        };
        for missing in missing {
            why.push_str(&format!("not ready: {missing}\n"));
        }
        let unknown = gateway.upstreams.budgets().unknown(gateway.clock.now());
        if let Some(waiting) = unknown {
            why.push_str(&format!(
                "API keys with a limit a minute are not used for {} s more: what they have spent is not known, since {UNKNOWN}\n",
                waiting.as_secs() + 1
            ));
        }
        let mut response = typed("text/plain; charset=utf-8", why.into());
        *response.status_mut() = status;
        response
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let token = *lock(&self.token);
        let Some(token) = token else {
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
        sent.is_some_and(|sent| Token::new(sent) == token)
    }

    /// Reloads the configuration.
    async fn reload(&self, fields: &HeaderMap) -> Response<Body> {
        if let Some(sign) = browser_sign(fields) {
            return refuse_browser("reload", &sign, "kill -HUP");
        }
        let why = match self.reloads.request().await {
            Ok(done) => return json_body(format!("{:#}\n", done.value())),
            Err(why) => why,
        };
        let (status, detail) = match &why {
            NotReloaded::Refused(problems) => {
                let detail = "The new configuration is refused and the previous one stays in use; problems says why";
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                return problem_with(status, detail, &[("problems", json!(problems))]);
            }
            NotReloaded::Late(_) => (StatusCode::SERVICE_UNAVAILABLE, capitalized(&why)),
            NotReloaded::Failed => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "Reloading has failed (see the log); the previous configuration stays in use"
                    .to_owned(),
            ),
        };
        problem(status, &detail, None)
    }
}

/// An error as a sentence.
fn capitalized(error: &NotReloaded) -> String {
    let mut text = error.to_string();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// 405.
fn wrong_method(allow: &'static str) -> Response<Body> {
    let mut response = typed(
        "text/plain; charset=utf-8",
        format!("The allowed methods are {allow}\n").into(),
    );
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Explains a URL, on another thread: a long list takes a while.
async fn explain_elsewhere(gateway: Arc<Gateway>, query: Option<&str>) -> Response<Body> {
    let query = query.map(str::to_owned);
    let explained = move || explain::answer(&gateway, query.as_deref());
    match tokio::task::spawn_blocking(explained).await {
        Ok(Ok(explained)) => json_body(format!("{explained:#}\n")),
        Ok(Err(wrong)) => invalid(&wrong),
        Err(error) => {
            tracing::error!(%error, "explaining a URL has failed");
            let detail = "Explaining this URL has failed (see the log)";
            problem(StatusCode::INTERNAL_SERVER_ERROR, detail, None)
        }
    }
}

/// Frees the memory of purged responses after each purge. It runs on another
/// thread, since this one answers the operator and probes the tips.
async fn sweep_after_purges(current: Current, purged: Arc<Notify>) {
    loop {
        purged.notified().await;
        let gateway = current.load_full();
        let swept = tokio::task::spawn_blocking(move || gateway.maintain());
        if let Err(error) = swept.await {
            tracing::error!(%error, "sweeping has failed");
        }
    }
}
