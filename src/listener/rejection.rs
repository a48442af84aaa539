//! Answers connections over a limit without hyper.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::client_connections::ClientConnections;
use super::guard::HTTP2_PREFACE_LINE;
use super::socket::ClientStream;
use super::{Acceptor, ConnectionSettings, ListenerProtocol, OverLimit, Settings};
use crate::gateway::Gateway;
use crate::identify::Client;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::respond::ResponseContext;
use crate::route::HeaderMode;
use crate::wire::Body;
use crate::wire::request_id::RequestId;

/// Connections that are being answered at once; those beyond are closed without
/// an answer.
const MAX_REJECTIONS: usize = 256;
/// How many of them may be of one client.
const MAX_OF_CLIENT: u32 = 16;
/// How long a client has to read the answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client has to begin with the preface of HTTP/2. One that sends nothing gets
/// an answer in HTTP/1.1.
const PREFACE_TIMEOUT: Duration = Duration::from_millis(100);
/// Frame types of HTTP/2 (RFC 9113 §6).
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// Error codes of HTTP/2 (RFC 9113 §7).
const NO_ERROR: u32 = 0;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Bounds the connections that are being rejected.
pub(super) struct Rejections {
    slots: Semaphore,
    clients: Arc<ClientConnections>,
}

impl Default for Rejections {
    fn default() -> Self {
        Self {
            slots: Semaphore::new(MAX_REJECTIONS),
            clients: Arc::default(),
        }
    }
}

impl Rejections {
    /// Sends the refusal, and reads until the client closes: closing with unread
    /// bytes would reset the connection, and the client would lose the answer. `client` is
    /// none for a trusted proxy, which serves many clients.
    async fn answer<S: ClientStream>(
        &self,
        mut stream: S,
        client: Option<Client>,
        refusal: &PreparedRefusal,
    ) {
        let counted = client.map(|client| self.clients.admit(client, MAX_OF_CLIENT));
        let (Ok(_slot), None | Some(Some(_))) = (self.slots.try_acquire(), &counted) else {
            return;
        };
        let exchange = async {
            let preface = tokio::time::timeout(PREFACE_TIMEOUT, begins_with_preface(&mut stream));
            let answer = match preface.await {
                Ok(true) => &refusal.http2,
                Ok(false) | Err(_) => &refusal.http1,
            };
            stream.write_all(answer).await?;
            stream.shutdown().await?;
            let mut discarded = [0; 1024];
            while stream.read(&mut discarded).await? > 0 {}
            io::Result::Ok(())
        };
        // It makes no difference whether the client has read the answer.
        let _ = tokio::time::timeout(TIMEOUT, exchange).await;
    }
}

/// Whether the client speaks HTTP/2. Reads no more than it takes to know that it does.
async fn begins_with_preface<S: ClientStream>(stream: &mut S) -> bool {
    let mut bytes = [0; HTTP2_PREFACE_LINE.len()];
    let mut length = 0;
    while length < bytes.len() && HTTP2_PREFACE_LINE.starts_with(&bytes[..length]) {
        match stream.read(&mut bytes[length..]).await {
            Ok(0) | Err(_) => return false,
            Ok(count) => length += count,
        }
    }
    bytes == HTTP2_PREFACE_LINE
}

impl Acceptor {
    /// Answers a connection over a limit, and closes it. Over TLS there is no answer.
    pub(super) async fn reject<S: ClientStream>(
        &self,
        stream: S,
        (peer, limit): (IpAddr, OverLimit),
        settings: &ConnectionSettings,
        protocol: &ListenerProtocol,
    ) {
        let rejected = match limit {
            OverLimit::Total => &self.totals.turned_away,
            OverLimit::Client => &self.totals.turned_away_client,
        };
        rejected.fetch_add(1, Relaxed);
        self.totals.refused.count(limit.reason());
        if protocol.tls.is_some() {
            // An answer takes a handshake, which is what is scarce.
            return;
        }
        let client = (!settings.trust.contains(peer)).then(|| peer.into());
        self.rejections
            .answer(stream, client, settings.refusal(limit))
            .await;
    }
}

impl ConnectionSettings {
    pub(super) fn of(gateway: &Gateway, settings: Settings) -> Self {
        Self {
            over_total: PreparedRefusal::new(gateway, &Reason::TooManyConnections.into(), NO_ERROR),
            over_client: PreparedRefusal::new(
                gateway,
                &Reason::TooManyClientConnections.into(),
                ENHANCE_YOUR_CALM,
            ),
            trust: gateway.clients.trust.clone(),
            settings,
        }
    }

    /// The answer to a connection over a limit.
    fn refusal(&self, limit: OverLimit) -> &PreparedRefusal {
        match limit {
            OverLimit::Total => &self.over_total,
            OverLimit::Client => &self.over_client,
        }
    }
}

/// The bytes that refuse a connection.
pub(super) struct PreparedRefusal {
    /// A response in HTTP/1.1.
    http1: Vec<u8>,
    /// SETTINGS and GOAWAY: no request on the connection is processed, so the client may
    /// send each again (RFC 9113 §6.8). A response would have to wait for a request.
    http2: Vec<u8>,
}

impl PreparedRefusal {
    fn new(gateway: &Gateway, refusal: &Refusal, code: u32) -> Self {
        let context = ResponseContext {
            method: &Method::GET,
            fields: &HeaderMap::new(),
            headers: HeaderMode::Typed,
            request_id: RequestId::new(gateway.seed),
            permit: None,
            token: None,
            date: None,
        };
        let (head, body) = gateway
            .responder
            .refusal(refusal, None, &context)
            .into_parts();
        let body = match body {
            Body::Whole(Some(body)) => body,
            Body::Whole(None) | Body::Lent(_) | Body::Streamed(_) => Bytes::new(),
        };
        let mut http1 = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
        for (name, value) in &head.headers {
            http1.extend_from_slice(name.as_str().as_bytes());
            http1.extend_from_slice(b": ");
            http1.extend_from_slice(value.as_bytes());
            http1.extend_from_slice(b"\r\n");
        }
        http1.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        http1.extend_from_slice(&body);
        // After the last stream, which is none, and the code, a text for the log.
        let goaway = [&[0; 4], &code.to_be_bytes(), &*body].concat();
        let http2 = [frame(SETTINGS, &[]), frame(GOAWAY, &goaway)].concat();
        Self { http1, http2 }
    }
}

/// A frame of the connection (RFC 9113 §4.1).
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    [&[high, middle, low, kind, 0, 0, 0, 0, 0], payload].concat()
}
