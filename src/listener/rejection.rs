//! Answers connections over a limit without hyper.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::socket::ClientStream;
use super::{Acceptor, ConnectionSettings, ListenerProtocol, OverLimit, Settings};
use crate::gateway::Gateway;
use crate::identify::Client;
use crate::refusal::Refusal;
use crate::respond::{RequestId, ResponseContext};
use crate::wire::Body;

/// Connections that are being answered at once; those beyond are closed without
/// an answer.
const MAX_REJECTIONS: usize = 256;
/// How long a client has to read the answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Bounds the connections that are being rejected.
pub(super) struct Rejections(Semaphore);

impl Default for Rejections {
    fn default() -> Self {
        Self(Semaphore::new(MAX_REJECTIONS))
    }
}

impl Rejections {
    /// Sends the answer, and reads until the client closes: closing with unread
    /// bytes would reset the connection, and the client would lose the answer.
    async fn answer<S: ClientStream>(&self, mut stream: S, answer: &[u8]) {
        let Ok(_slot) = self.0.try_acquire() else {
            return;
        };
        let exchange = async {
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

impl Acceptor {
    /// Answers a connection over a limit, and closes it. Over TLS there is no answer.
    pub(super) async fn reject<S: ClientStream>(
        &self,
        stream: S,
        limit: OverLimit,
        settings: &ConnectionSettings,
        protocol: &ListenerProtocol,
    ) {
        let rejected = match limit {
            OverLimit::Total => &self.totals.turned_away,
            OverLimit::Client => &self.totals.turned_away_client,
        };
        rejected.fetch_add(1, Relaxed);
        if protocol.tls.is_some() {
            // An answer takes a handshake, which is what is scarce.
            return;
        }
        self.rejections
            .answer(stream, settings.refusal(limit))
            .await;
    }
}

impl ConnectionSettings {
    pub(super) fn of(gateway: &Gateway, settings: Settings) -> Self {
        Self {
            over_total: prepared(gateway, &Refusal::TooManyConnections),
            over_client: prepared(gateway, &Refusal::TooManyClientConnections),
            trust: gateway.clients.trust.clone(),
            settings,
        }
    }

    /// The answer to a connection over a limit.
    fn refusal(&self, limit: OverLimit) -> &[u8] {
        match limit {
            OverLimit::Total => &self.over_total,
            OverLimit::Client => &self.over_client,
        }
    }
}

/// A refusal as the bytes of an HTTP/1.1 response.
fn prepared(gateway: &Gateway, refusal: &Refusal) -> Vec<u8> {
    let context = ResponseContext {
        fields: &HeaderMap::new(),
        client: Client::from(IpAddr::from(Ipv4Addr::UNSPECIFIED)),
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
    let mut text = format!("HTTP/1.1 {}\r\n", head.status).into_bytes();
    for (name, value) in &head.headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(&body);
    text
}
