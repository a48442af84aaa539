//! The client of `/purge` and `/readyz`, for the commands `ordgate purge` and `ordgate health`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, InvalidHeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// How long the whole exchange may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a check of readiness may take.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a response's body.
const MOST_ANSWER: usize = 1 << 20;

/// What to purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// These URLs.
    Urls(Vec<String>),
    /// All responses of these routes.
    Routes(Vec<String>),
    /// All responses with these tags.
    Tags(Vec<String>),
    /// Everything.
    All,
}

/// Why a purge failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing listens on the address.
    #[error(
        "no ordgate can be reached on {0}: is it running, and is this its admin address? --admin ADDR names another, --config FILE takes it from the server's configuration"
    )]
    Unreachable(SocketAddr),
    /// It did not answer in time.
    #[error("{0} did not answer within {seconds} s", seconds = .1.as_secs())]
    TimedOut(SocketAddr, Duration),
    /// The response is incomplete, or is not HTTP.
    #[error("the server on {0} is not an ordgate admin listener: {1}")]
    Strange(SocketAddr, String),
    /// It requires a token, or another one.
    #[error(
        "{0} requires its token: set ORDGATE_ADMIN_TOKEN to it, or name the server's configuration (with admin.token_file) with --config"
    )]
    Token(SocketAddr),
    /// The token has characters that a field must not have.
    #[error("the admin token has characters that no field may have; visible ASCII is allowed")]
    BadToken(#[from] InvalidHeaderValue),
    /// It is not ready.
    #[error("{0} is not ready: {1}")]
    NotReady(SocketAddr, String),
    /// It refused the request.
    #[error("{0} refuses: {1}")]
    Refused(SocketAddr, String),
}

/// Sends a purge to an admin listener, and returns its response.
///
/// # Errors
/// If the listener cannot be reached, does not answer, or refuses.
pub async fn purge(
    admin: SocketAddr,
    token: Option<&str>,
    wanted: &Wanted,
) -> Result<Value, CallError> {
    let admin = reachable(admin);
    let body = match wanted {
        Wanted::Urls(urls) => json!({ "url": urls }),
        Wanted::Routes(names) => json!({ "route": names }),
        Wanted::Tags(tags) => json!({ "tag": tags }),
        Wanted::All => json!({ "all": true }),
    };
    let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
    *request.method_mut() = Method::POST;
    let uri = format!("http://{admin}/purge").parse();
    *request.uri_mut() = uri.map_err(|_never| CallError::Unreachable(admin))?;
    let fields = request.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
        value.set_sensitive(true);
        fields.insert(AUTHORIZATION, value);
    }
    let sent = tokio::time::timeout(TIMEOUT, send(admin, request));
    let (status, bytes) = match sent.await {
        Ok(received) => received?,
        Err(_elapsed) => return Err(CallError::TimedOut(admin, TIMEOUT)),
    };
    let received: Option<Value> = serde_json::from_slice(&bytes).ok();
    let detail = received.as_ref().and_then(|body| body["detail"].as_str());
    match (status, detail) {
        (StatusCode::OK, _) => received
            .filter(|body| body["purged"].is_array())
            .ok_or_else(|| CallError::Strange(admin, "it answers with something else".to_owned())),
        (StatusCode::UNAUTHORIZED, _) => Err(CallError::Token(admin)),
        // Each admin listener has the path.
        (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, _) | (_, None) => {
            Err(CallError::Strange(admin, format!("it answers {status}")))
        }
        (_, Some(detail)) => Err(CallError::Refused(admin, detail.to_owned())),
    }
}

/// Checks that a running ordgate is ready, within 5 s.
///
/// # Errors
/// If it is not, cannot be reached, or does not answer.
pub async fn check_ready(admin: SocketAddr) -> Result<(), CallError> {
    let admin = reachable(admin);
    let mut request = Request::new(Full::new(Bytes::new()));
    let uri = format!("http://{admin}/readyz").parse();
    *request.uri_mut() = uri.map_err(|_never| CallError::Unreachable(admin))?;
    let sent = tokio::time::timeout(READY_TIMEOUT, send(admin, request));
    let (status, bytes) = match sent.await {
        Ok(received) => received?,
        Err(_elapsed) => return Err(CallError::TimedOut(admin, READY_TIMEOUT)),
    };
    let text = String::from_utf8_lossy(&bytes);
    match (status, text.trim()) {
        (StatusCode::OK, "ready") => Ok(()),
        (StatusCode::SERVICE_UNAVAILABLE, why) => {
            // The error says it already.
            let of_line = |line: &str| line.strip_prefix("not ready: ").unwrap_or(line).to_owned();
            let lines: Vec<_> = why.lines().map(of_line).collect();
            Err(CallError::NotReady(admin, printable(&lines.join("\n"))))
        }
        (status, _) => Err(CallError::Strange(admin, format!("it answers {status}"))),
    }
}

/// A text for a terminal: its lines joined, and at most 2000 characters.
fn printable(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let joined = lines.join("; ");
    let shown = joined.chars().filter(|character| !character.is_control());
    shown.take(2000).collect()
}

async fn send(
    admin: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), CallError> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client
        .request(request)
        .await
        .map_err(|error| match error.is_connect() {
            true => CallError::Unreachable(admin),
            false => CallError::Strange(admin, error.to_string()),
        })?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_ANSWER).collect();
    let strange = |error: Box<dyn std::error::Error + Send + Sync>| {
        CallError::Strange(admin, error.to_string())
    };
    Ok((status, body.await.map_err(strange)?.to_bytes()))
}

/// The address to connect to: loopback for a listener on all addresses.
fn reachable(admin: SocketAddr) -> SocketAddr {
    let ip = match admin.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, admin.port())
}
