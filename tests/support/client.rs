//! A client: in HTTP/1.1 one that sends the bytes it is given, and reads one response
//! at a time by its framing; in HTTP/2 one that gives the responses in the order of
//! their requests.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::polite::PoliteClient;
use super::transport::dial;
use super::wire::{Head, Wire};
use super::within;

/// One connection.
pub(crate) struct Client {
    connection: Connection,
}

enum Connection {
    Http1(Wire),
    Http2(PoliteClient),
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
    /// A connection in HTTP/1.1.
    pub(super) fn on(stream: TcpStream) -> Self {
        Self {
            connection: Connection::Http1(Wire::new(stream)),
        }
    }

    /// Connects in HTTP/1.1. [`Gateway::client`](super::Gateway::client) connects as the
    /// target says.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|error| panic!("{address}: {error}"));
        Self::on(stream)
    }

    /// Connects in HTTP/1.1 from another address of this machine, such as 127.0.0.2: as
    /// another client.
    pub(crate) async fn connect_from(from: [u8; 4], address: SocketAddr) -> Self {
        Self::on(dial(from, address).await.unwrap())
    }

    /// Connects in HTTP/1.1 with a small receive buffer, so that the gateway soon notices that
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

    /// The connection of a test that is about HTTP/1.1.
    fn wire(&mut self) -> &mut Wire {
        match &mut self.connection {
            Connection::Http1(wire) => wire,
            Connection::Http2(_) => panic!("this is HTTP/1.1: connect with Gateway::http1"),
        }
    }

    /// Sends exactly these bytes; in HTTP/2 as a part of the last request's body. A peer
    /// that has closed may refuse some; what it sent before can still be read.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        match &mut self.connection {
            Connection::Http1(wire) => {
                let _ = within("sending", wire.send(bytes)).await;
            }
            Connection::Http2(client) => client.send_body(bytes.as_ref()).await,
        }
    }

    /// Closes the sending half of a connection in HTTP/1.1.
    pub(crate) async fn finish(&mut self) {
        within("finishing", self.wire().stream.shutdown())
            .await
            .unwrap();
    }

    /// Sends a request with these fields beside Host. Its body is what is sent next, as
    /// long as its content-length says.
    pub(crate) async fn send_request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) {
        match &mut self.connection {
            Connection::Http1(wire) => {
                let _ = within("sending", wire.send(request(method, target, fields))).await;
            }
            Connection::Http2(client) => client.send_request(method, target, fields).await,
        }
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

    /// The same with a body as long as its content-length says.
    pub(crate) async fn request_with_body(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        self.send_request(method, target, fields).await;
        let length = fields.iter().find(|(name, _)| *name == "content-length");
        let length = length.map_or(0, |(_, length)| length.parse().unwrap());
        if length > 0 {
            self.send("x".repeat(length)).await;
        }
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
        within("an answer", async {
            match &mut self.connection {
                Connection::Http1(wire) => read(wire, method).await,
                Connection::Http2(client) => client.answer().await,
            }
        })
        .await
    }

    /// Waits until the other end closes or resets the connection, in HTTP/1.1; returns
    /// what came before.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let wire = self.wire();
        let whole = async { while wire.more().await {} };
        within("the end of the connection", whole).await;
        wire.take_held()
    }

    /// Waits for at least this many bytes in HTTP/1.1; returns all that have come.
    pub(crate) async fn some(&mut self, length: usize) -> Vec<u8> {
        let wire = self.wire();
        let enough = async { while wire.held() < length && wire.more().await {} };
        within("some bytes", enough).await;
        wire.take_held()
    }

    /// Waits for the end of an answer in HTTP/1.1 that may break off, and with it its
    /// connection.
    pub(crate) async fn received(&mut self) -> Received {
        let came = self.rest().await;
        Received {
            text: String::from_utf8_lossy(&came).into_owned(),
            is_whole: is_whole(&came),
        }
    }
}

/// What came of an answer.
#[derive(Debug)]
pub(crate) struct Received {
    /// Its head and its body, as it was framed.
    pub(crate) text: String,
    /// Whether it has ended as its framing says.
    pub(crate) is_whole: bool,
}

impl Received {
    /// The status; `None` if no head came.
    pub(crate) fn status(&self) -> Option<u16> {
        let mut words = self.text.split_ascii_whitespace();
        words.nth(1).map(|status| status.parse().unwrap())
    }
}

/// Whether all of an answer in HTTP/1.1 has come.
fn is_whole(came: &[u8]) -> bool {
    let text = String::from_utf8_lossy(came).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lines = head.split("\r\n");
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    match length {
        Some(length) => body.len() == length.parse::<usize>().unwrap(),
        None => body.ends_with("0\r\n\r\n"),
    }
}

impl From<PoliteClient> for Client {
    fn from(client: PoliteClient) -> Self {
        Self {
            connection: Connection::Http2(client),
        }
    }
}

/// Reads the answer to a request of this method.
pub(crate) async fn read<S>(wire: &mut Wire<S>, method: &str) -> Option<Answer>
where
    S: AsyncRead + AsyncWrite + AsFd + Unpin,
{
    let Head { line, fields } = wire.head().await.ok()?;
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
        wire.chunks().await.ok()?
    } else if let Some(length) = answer.field("content-length") {
        wire.exactly(length.parse().unwrap()).await.ok()?
    } else {
        while wire.more().await {}
        wire.take_held()
    };
    Some(answer)
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

    /// For how many seconds a browser may reuse it.
    pub(crate) fn reusable_for(&self) -> u64 {
        let control = self.must("cache-control");
        let max_age = control.strip_prefix("public, max-age=").unwrap_or(control);
        let max_age: u64 = max_age.parse().unwrap_or_else(|_| panic!("{control}"));
        max_age.saturating_sub(self.number("age"))
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
