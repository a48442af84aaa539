//! A raw HTTP/1.1 client: it sends the bytes it is given, and reads one response
//! at a time by its framing.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::wire::{Head, Wire};
use super::within;

/// One connection.
pub(crate) struct Client {
    wire: Wire,
}

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) version: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    fn on(stream: TcpStream) -> Self {
        Self {
            wire: Wire::new(stream),
        }
    }

    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|error| panic!("{address}: {error}"));
        Self::on(stream)
    }

    /// Connects from another address of this machine, such as 127.0.0.2: as
    /// another client.
    pub(crate) async fn connect_from(from: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let stream = within("connecting", socket.connect(address)).await.unwrap();
        Self::on(stream)
    }

    /// Connects with a small receive buffer, so that the gateway soon notices that
    /// nothing is read.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> Self {
        Self::connect_narrow_from([127, 0, 0, 1], address).await
    }

    /// The same from another address of this machine.
    pub(crate) async fn connect_narrow_from(from: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let stream = within("connecting", socket.connect(address)).await.unwrap();
        Self::on(stream)
    }

    /// Sends exactly these bytes. A peer that has closed may refuse some; what it
    /// sent before can still be read.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = within("sending", self.wire.send(bytes)).await;
    }

    /// Closes the sending half.
    pub(crate) async fn finish(&mut self) {
        within("finishing", self.wire.stream.shutdown())
            .await
            .unwrap();
    }

    /// Sends a request without a body, with these fields beside Host.
    pub(crate) async fn send_request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) {
        self.send(request(method, target, fields)).await;
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        self.send_request(method, target, fields).await;
        self.answer(method).await
    }

    pub(crate) async fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, &[]).await
    }

    /// Reads the answer to a request of this method.
    pub(crate) async fn answer(&mut self, method: &str) -> Answer {
        let answer = self.try_answer(method).await;
        answer.unwrap_or_else(|| panic!("the connection was closed without an answer"))
    }

    /// Reads an answer; `None` where the connection ends before one is whole.
    pub(crate) async fn try_answer(&mut self, method: &str) -> Option<Answer> {
        within("an answer", self.read(method)).await
    }

    /// Waits until the other end closes or resets the connection; returns what
    /// came before.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let whole = async { while self.wire.more().await {} };
        within("the end of the connection", whole).await;
        self.wire.take_held()
    }

    /// Waits for at least this many bytes; returns all that have come.
    pub(crate) async fn some(&mut self, length: usize) -> Vec<u8> {
        let enough = async { while self.wire.held() < length && self.wire.more().await {} };
        within("some bytes", enough).await;
        self.wire.take_held()
    }

    async fn read(&mut self, method: &str) -> Option<Answer> {
        let Head { line, fields } = self.wire.head().await.ok()?;
        let mut parts = line.splitn(3, ' ');
        let version = parts.next().unwrap().to_owned();
        let status = parts.next().unwrap().parse().unwrap();
        let mut answer = Answer {
            status,
            version,
            fields,
            body: Vec::new(),
        };
        if method == "HEAD" || matches!(status, 100..=199 | 204 | 304) {
            return Some(answer);
        }
        answer.body = if answer.field("transfer-encoding") == Some("chunked") {
            self.wire.chunks().await.ok()?
        } else if let Some(length) = answer.field("content-length") {
            self.wire.exactly(length.parse().unwrap()).await.ok()?
        } else {
            while self.wire.more().await {}
            self.wire.take_held()
        };
        Some(answer)
    }
}

/// A request's bytes.
pub(crate) fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text
}

impl Answer {
    /// The value of a field that comes at most once.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(key, _)| key == name);
        let value = values.next().map(|(_, value)| &**value);
        assert_eq!(values.next(), None, "{name} comes twice: {:?}", self.fields);
        value
    }

    /// The values of a field that may come several times.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let values = self.fields.iter().filter(|(key, _)| key == name);
        values.map(|(_, value)| &**value).collect()
    }

    /// The value of a field that must be there.
    pub(crate) fn must(&self, name: &str) -> &str {
        let value = self.field(name);
        value.unwrap_or_else(|| panic!("there is no {name}: {self:?}"))
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        let value = self.must(name);
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {value}"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    /// The body of a refusal, after a check of what all refusals share.
    pub(crate) fn problem(&self) -> Value {
        assert_eq!(self.must("content-type"), "application/problem+json");
        assert_eq!(self.must("cache-control"), "no-store");
        assert_eq!(self.must("access-control-allow-origin"), "*", "{self:?}");
        assert_eq!(self.field("etag"), None);
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        assert!(problem["title"].is_string(), "{problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|d| !d.is_empty()),
            "{problem}"
        );
        assert!(
            problem["error"].as_str().is_some_and(|e| !e.is_empty()),
            "{problem}"
        );
        if let Some(id) = self.field("x-request-id") {
            assert_eq!(problem["request_id"], id, "{problem}");
            let exposed = self.must("access-control-expose-headers");
            for name in ["retry-after", "ratelimit", "cache-status", "x-request-id"] {
                assert!(
                    exposed.split(", ").any(|other| other == name),
                    "{name} in {exposed}"
                );
            }
        }
        problem
    }

    /// All of it as bytes, for searching.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{:?}", self.fields).into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}
