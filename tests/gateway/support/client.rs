//! A raw HTTP/1.1 client: it sends the bytes that it is given, and reads one
//! answer at a time with its framing.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::within;

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    held: Vec<u8>,
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
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            held: Vec::new(),
        }
    }

    /// One from another address of this machine, such as 127.0.0.2: another
    /// client.
    pub(crate) async fn connect_from(from: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let stream = within("connecting", socket.connect(address)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            held: Vec::new(),
        }
    }

    /// One whose receive buffer is small, so that the other end soon notices
    /// that nothing is read.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> Self {
        Self::connect_narrow_from([127, 0, 0, 1], address).await
    }

    /// The same from another address of this machine.
    pub(crate) async fn connect_narrow_from(from: [u8; 4], address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let stream = within("connecting", socket.connect(address)).await.unwrap();
        Self {
            stream,
            held: Vec::new(),
        }
    }

    /// Sends exactly these bytes. A peer that has closed already may refuse
    /// some; what it has said is still there to be read.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = within("sending", self.stream.write_all(bytes.as_ref())).await;
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish(&mut self) {
        within("finishing", self.stream.shutdown()).await.unwrap();
    }

    /// Sends a request without a body, with these fields beside Host.
    pub(crate) async fn ask(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) {
        self.send(request(method, target, fields)).await;
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        self.ask(method, target, fields).await;
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

    /// Waits until the other end closes or resets the connection, and answers
    /// what came before.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let whole = async { while self.more().await {} };
        within("the end of the connection", whole).await;
        std::mem::take(&mut self.held)
    }

    /// Waits until so many bytes have come, and answers all there are.
    pub(crate) async fn some(&mut self, length: usize) -> Vec<u8> {
        let enough = async { while self.held.len() < length && self.more().await {} };
        within("some bytes", enough).await;
        std::mem::take(&mut self.held)
    }

    async fn more(&mut self) -> bool {
        self.stream
            .read_buf(&mut self.held)
            .await
            .is_ok_and(|n| n > 0)
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.held.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.held.len() < length {
            if !self.more().await {
                return None;
            }
        }
        Some(self.held.drain(..length).collect())
    }

    async fn read(&mut self, method: &str) -> Option<Answer> {
        let line = self.line().await?;
        let mut parts = line.splitn(3, ' ');
        let version = parts.next().unwrap().to_owned();
        let status = parts.next().unwrap().parse().unwrap();
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer {
            status,
            version,
            fields,
            body: Vec::new(),
        };
        if method == "HEAD" || matches!(status, 100..=199 | 204 | 304) {
            return Some(answer);
        }
        if answer.field("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
                let chunk = self.exactly(size).await?;
                answer.body.extend_from_slice(&chunk);
                assert_eq!(self.line().await?, "");
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = answer.field("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.exactly(length).await?;
        } else {
            while self.more().await {}
            answer.body = std::mem::take(&mut self.held);
        }
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

    /// The body of a refusal, after a look at all that refusals have in common.
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
