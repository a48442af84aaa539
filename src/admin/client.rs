//! The client of `/purge` and `/readyz`, for the commands `ordgate purge` and `ordgate health`.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue, InvalidHeaderValue};
use http::uri::InvalidUri;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// How long the whole exchange may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of a response's body.
const MOST_ANSWER: usize = 1 << 20;

/// Why a purge failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing listens on the address.
    #[error(
        "no ordgate can be reached on {0}: is it running, and is this its admin address? --admin ADDR names another, --config FILE takes it from the server's configuration"
    )]
    Unreachable(SocketAddr),
    /// It did not answer in time.
    #[error("{0} did not answer within {seconds} s", seconds = TIMEOUT.as_secs())]
    TimedOut(SocketAddr),
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

/// Sends a purge of what is `wanted`, as the body of a request, to an admin listener, and returns
/// its response.
///
/// # Errors
/// If the listener cannot be reached, does not answer, or refuses.
pub async fn purge(
    admin: SocketAddr,
    token: Option<&str>,
    wanted: &Value,
) -> Result<Value, CallError> {
    let mut request = Request::new(Full::new(Bytes::from(wanted.to_string())));
    *request.method_mut() = Method::POST;
    if let Some(token) = token {
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let (status, bytes) = send(admin, "/purge", request).await?;
    let received: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match (status, received["detail"].as_str()) {
        (StatusCode::OK, _) if received["purged"].is_array() => Ok(received),
        (StatusCode::UNAUTHORIZED, _) => Err(CallError::Token(admin)),
        // Each admin listener has the path.
        (StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, _)
        | (_, None) => Err(CallError::Strange(admin, format!("it answers {status}"))),
        (_, Some(detail)) => Err(CallError::Refused(admin, detail.to_owned())),
    }
}

/// Checks that a running ordgate is ready, within 5 s.
///
/// # Errors
/// If it is not, cannot be reached, or does not answer.
pub async fn check_ready(admin: SocketAddr) -> Result<(), CallError> {
    let request = Request::new(Full::new(Bytes::new()));
    let (status, bytes) = send(admin, "/readyz", request).await?;
    let text = String::from_utf8_lossy(&bytes);
    match (status, text.trim()) {
        (StatusCode::OK, "ready") => Ok(()),
        (StatusCode::SERVICE_UNAVAILABLE, why) => {
            // The error says it already.
            let why = why.strip_prefix("not ready: ").unwrap_or(why);
            // A terminal must not take it for commands.
            let shown = why.chars().filter(|character| !character.is_control());
            Err(CallError::NotReady(admin, shown.take(2000).collect()))
        }
        (status, _) => Err(CallError::Strange(admin, format!("it answers {status}"))),
    }
}

/// Sends a request to a path; a listener on all addresses is reached on loopback.
async fn send(
    admin: SocketAddr,
    path: &str,
    mut request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), CallError> {
    let mut to = admin;
    match admin.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => to.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => to.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    let strange = |error: &dyn Display| CallError::Strange(admin, error.to_string());
    let uri = format!("http://{to}{path}").parse();
    *request.uri_mut() = uri.map_err(|error: InvalidUri| strange(&error))?;
    let exchange = async {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let sent = client.request(request).await;
        let response = sent.map_err(|error| match error.is_connect() {
            true => CallError::Unreachable(admin),
            false => strange(&error),
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect();
        let body = body.await.map_err(|error| strange(&error))?;
        Ok((status, body.to_bytes()))
    };
    let exchanged = tokio::time::timeout(TIMEOUT, exchange).await;
    exchanged.map_err(|_elapsed| CallError::TimedOut(admin))?
}
