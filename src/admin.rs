//! The operator's door, apart from the clients': `/healthz` (the process
//! lives), `/readyz` (it can serve), `/metrics`, `/status`, `/explain` (what is
//! known of a URL), `/purge` and `/reload`.
//!
//! Invariants: off loopback nothing but `/healthz` and `/readyz` is answered
//! without the token; nothing but `/purge` and `/reload` changes anything, and no
//! page in a browser can make them, nor read anything under a name of its own
//! (`host`).
//!
//! Deliberately absent: the walk. Nothing here touches the upstream.

pub mod client;
mod connections;
mod explain;
pub(crate) mod host;
mod purge;
mod status;

use std::convert::Infallible;
use std::fmt;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use connections::{Connections, Timed, Use};
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ORIGIN, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::chain::TipSnapshot;
use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::listener::{Current, Drain, is_connection_error};
use crate::reload::Reloads;
use crate::telemetry;
use crate::validate::{Invalid, decode};
use crate::wire::{Body, PROBLEM_JSON, SEC_FETCH_SITE};

/// The operator's token, kept as a digest: it cannot be shown, and comparing
/// digests tells nothing of it by its time.
#[derive(Clone, Copy)]
pub struct Token([u8; 32]);

impl PartialEq for Token {
    /// Takes the same time wherever the two differ.
    fn eq(&self, other: &Self) -> bool {
        let bytes = self.0.iter().zip(&other.0);
        let differ = bytes.fold(0, |differ, (one, other)| differ | (one ^ other));
        black_box(differ) == 0
    }
}

impl Eq for Token {}

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
    pub present: Current,
    /// What is demanded, if anything; a reload may change it.
    pub token: Arc<Mutex<Option<Token>>>,
    /// The names that it goes by beside localhost; a reload may change them.
    pub hosts: Arc<ArcSwap<Vec<String>>>,
    /// Whether `/readyz` fails until each tip has been known once; a reload may
    /// change it.
    pub ready_needs_tips: Arc<AtomicBool>,
    /// What reloads.
    pub reloads: Arc<Reloads>,
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

/// Connections to the admin side at once; another makes room for one more.
const CONNECTIONS: usize = 64;
/// How long a connection may be idle, and a request's head may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What there is, and what it takes.
const PATHS: [(&str, &str); 7] = [
    ("/healthz", "GET, HEAD"),
    ("/readyz", "GET, HEAD"),
    ("/metrics", "GET, HEAD"),
    ("/status", "GET, HEAD"),
    ("/explain", "GET, HEAD"),
    ("/purge", "POST"),
    ("/reload", "POST"),
];

impl Admin {
    /// Serves until the process ends.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut connections = Connections::new(CONNECTIONS);
        let purged = Arc::new(Notify::new());
        tokio::spawn(sweep(self.present.clone(), purged.clone()));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // One that was reset before it was accepted holds up nobody; a
                    // lack of descriptors passes when some connection ends.
                    if !is_connection_error(&error) {
                        tracing::warn!(%error, "an admin connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    continue;
                }
            };
            let used = connections.admit(peer.ip().into());
            let served = tokio::spawn(self.clone().serve_one(stream, used, purged.clone()));
            connections.serves(served.abort_handle());
            // Its request is read before more connections are accepted, which
            // might take its place.
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
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(Timed::new(stream)), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "an admin connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>, purged: &Notify) -> Response<Body> {
        // Probes need no token and may go by any name: they learn nothing else.
        let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
        if !is_probe && !self.admits(&request) {
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
        let Some((path, allow)) = PATHS.into_iter().find(|(known, _)| *known == path) else {
            return text(
                StatusCode::NOT_FOUND,
                "There are /healthz, /readyz, /metrics, /status, /explain, /purge and /reload here\n",
            );
        };
        if !allow
            .split(", ")
            .any(|method| method == request.method().as_str())
        {
            let mut response = typed(
                "text/plain; charset=utf-8",
                format!("This path takes {allow}\n").into(),
            );
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static(allow));
            return response;
        }
        let gateway = &self.present.load_full();
        match path {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if *self.drain.borrow() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
            }
            "/readyz" => self.ready(gateway),
            "/metrics" => match telemetry::render(gateway, self.reloads.counts()) {
                Ok(metrics) => typed(
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    metrics.into(),
                ),
                Err(_) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the metrics could not be written\n",
                ),
            },
            "/explain" => match explain::answer(gateway, request.uri().query()) {
                Ok(explained) => typed("application/json", format!("{explained:#}\n").into()),
                Err(wrong) => invalid(&wrong),
            },
            "/purge" => {
                let response = purge::answer(gateway, request, PATIENCE).await;
                if response.status() == StatusCode::OK {
                    purged.notify_one();
                }
                response
            }
            "/reload" => self.reload(request.headers()).await,
            _ => typed(
                "application/json",
                status::status(self, gateway).to_string().into(),
            ),
        }
    }

    /// Whether the gateway can serve: not before the tips are known, since a wrong
    /// or missing upstream shows there first.
    fn ready(&self, gateway: &Gateway) -> Response<Body> {
        let unknown = self.missing_tips(gateway);
        if unknown.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let mut why = String::new();
        for tip in unknown {
            let trouble = tip.trouble.as_deref().unwrap_or("no answer yet");
            why.push_str(&format!(
                "not ready: the tip \"{}\" of the upstream \"{}\" has never been known: {trouble}\n",
                tip.name, tip.upstream
            ));
        }
        let mut response = typed("text/plain; charset=utf-8", why.into());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }

    /// The tips that it takes to be ready and that have never been known.
    fn missing_tips(&self, gateway: &Gateway) -> Vec<TipSnapshot> {
        match self.ready_needs_tips.load(Ordering::Relaxed) {
            true => gateway.unknown_tips(),
            false => Vec::new(),
        }
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let token = *self.token.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Reloads, on a thread apart from this one.
    async fn reload(&self, fields: &HeaderMap) -> Response<Body> {
        if let Some(from) = browser(fields) {
            return of_a_browser("reload", &from, "kill -HUP");
        }
        let reloads = self.reloads.clone();
        match tokio::task::spawn_blocking(move || reloads.run()).await {
            Ok(Ok(done)) => typed("application/json", format!("{:#}\n", done.value()).into()),
            Ok(Err(problems)) => {
                let detail = "The new configuration is refused whole, and the one from before goes on; problems says why";
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                problem_with(status, detail, &[("problems", json!(problems))])
            }
            Err(error) => {
                tracing::error!(%error, "reloading has failed");
                let detail =
                    "Reloading has failed, as the log tells; the configuration from before goes on";
                problem(StatusCode::INTERNAL_SERVER_ERROR, detail, None)
            }
        }
    }
}

/// Frees the memory of what was purged, soon after it was; on a thread apart
/// from this one, which answers the operator and asks for tips.
async fn sweep(present: Current, purged: Arc<Notify>) {
    loop {
        purged.notified().await;
        let gateway = present.load_full();
        let swept = tokio::task::spawn_blocking(move || gateway.maintain());
        if let Err(error) = swept.await {
            tracing::error!(%error, "sweeping has failed");
        }
    }
}

/// A value of a query of the admin side. A URL has no blanks, so that a `+` in
/// it is one.
fn asked(name: &str, raw: &str) -> Result<String, Invalid> {
    let text = decode(raw, name != "url").filter(|text| !text.is_empty());
    let wrong = || Invalid::new(name, raw, "percent-encoded UTF-8, and not empty");
    text.map(String::from).ok_or_else(wrong)
}

/// What a public URL asks for: its path and query.
fn public_target(url: &str) -> Result<Uri, Invalid> {
    /// Browsers encode so what was typed.
    const TYPED: &AsciiSet = &CONTROLS.add(b' ');
    let wrong = || {
        let allowed = "a path with its query, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL with one";
        Invalid::new("url", url, allowed)
    };
    let begins = ["/", "http://", "https://"];
    if !begins.iter().any(|begin| url.starts_with(begin)) {
        return Err(wrong());
    }
    let typed = utf8_percent_encode(url, TYPED).to_string();
    Uri::try_from(typed).map_err(|_no_uri| wrong())
}

/// An error of the operator's, as the public side would say it (RFC 9457).
fn problem(status: StatusCode, detail: &str, wrong: Option<&Invalid>) -> Response<Body> {
    let members = wrong.map(|wrong| {
        [
            ("parameter", json!(wrong.parameter)),
            ("received", json!(wrong.received)),
            ("allowed", json!(wrong.allowed)),
        ]
    });
    let members = members.as_ref().map_or(&[][..], |members| &members[..]);
    problem_with(status, detail, members)
}

/// The same, with members of its own.
fn problem_with(status: StatusCode, detail: &str, members: &[(&str, Value)]) -> Response<Body> {
    let mut said = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
        "error": detail,
    });
    for (name, value) in members {
        said[*name] = value.clone();
    }
    let mut response = typed(PROBLEM_JSON, said.to_string().into());
    *response.status_mut() = status;
    response
}

/// What betrays a request that some page in a browser has sent.
fn browser(fields: &HeaderMap) -> Option<String> {
    let site = fields.get(SEC_FETCH_SITE);
    if let Some(site) = site.filter(|site| !["same-origin", "none"].iter().any(|own| site == own)) {
        return Some(format!(
            "sec-fetch-site: {}",
            site.as_bytes().escape_ascii()
        ));
    }
    // Even one of the same origin: whose name resolves to us may be anybody's.
    let origin = fields.get(ORIGIN)?;
    Some(format!("origin: {}", origin.as_bytes().escape_ascii()))
}

/// What such a request is told.
fn of_a_browser(what: &str, from: &str, other: &str) -> Response<Body> {
    let detail = format!(
        "A page in a browser must not {what}, and this request carries {from}; use {other}, or a client that sends neither origin nor a sec-fetch-site other than same-origin or none"
    );
    problem(StatusCode::FORBIDDEN, &detail, None)
}

fn invalid(wrong: &Invalid) -> Response<Body> {
    problem(StatusCode::BAD_REQUEST, &wrong.to_string(), Some(wrong))
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
        for place in 0..32 {
            let mut other = token;
            other.0[place] ^= 1;
            assert_ne!(token, other, "byte {place} differs");
        }
        assert_eq!(format!("{token:?}"), "[redacted]");
    }
}
