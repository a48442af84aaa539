//! What the upstream does with one request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Holds an answer back until the test opens it.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        let mut opened = self.0.subscribe();
        // The sender lives as long as this gate does.
        let _ = opened.wait_for(|open| *open).await;
    }
}

/// What the upstream does about one request.
#[derive(Clone)]
pub(crate) struct Reply(pub(super) Vec<Step>);

#[derive(Clone)]
pub(super) enum Step {
    Wait(Gate),
    Send(Vec<u8>),
    Drip(Vec<u8>, Duration),
    Endless(Vec<u8>),
    Close,
    Reset,
    Hang,
}

/// Fields that the reference upstream and the provider in front of it send, which
/// ordgate must not forward.
const FIELDS: &str = "content-type: application/json; charset=utf-8\r\n\
     vary: Origin\r\naccess-control-allow-origin: https://upstream.example\r\n\
     cache-control: public, no-cache, must-revalidate\r\netag: \"of-the-tip\"\r\n\
     server: telling-server\r\nset-cookie: telling=cookie\r\n\
     ratelimit-limit: 500\r\nratelimit-remaining: 499\r\nx-ratelimit-remaining: 499\r\n\
     via: 1.1 telling-proxy\r\nage: 77\r\n";

impl Reply {
    /// Exactly these bytes.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self(vec![Step::Send(bytes.as_ref().to_vec())])
    }

    /// 200 with a body.
    pub(crate) fn json(body: impl AsRef<[u8]>) -> Self {
        Self::status(200, body)
    }

    /// A status with a JSON body and the reference's fields.
    pub(crate) fn status(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self::with(status, FIELDS, body)
    }

    /// A status with these fields (each ending in CRLF) and a body.
    pub(crate) fn with(status: u16, fields: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let length = body.len();
        let mut bytes =
            format!("HTTP/1.1 {status} Telling\r\n{fields}content-length: {length}\r\n\r\n")
                .into_bytes();
        bytes.extend_from_slice(body);
        Self::raw(bytes)
    }

    /// 200 whose body comes in chunks of this size.
    pub(crate) fn chunked(body: impl AsRef<[u8]>, size: usize) -> Self {
        let mut bytes =
            format!("HTTP/1.1 200 OK\r\n{FIELDS}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for chunk in body.as_ref().chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        Self::raw(bytes)
    }

    /// An empty reply, to which steps are added.
    pub(crate) fn nothing() -> Self {
        Self(Vec::new())
    }

    /// Held back until the gate opens.
    pub(crate) fn behind(mut self, gate: &Gate) -> Self {
        self.0.insert(0, Step::Wait(gate.clone()));
        self
    }

    /// Then these bytes, once the gate opens.
    pub(crate) fn then(mut self, gate: &Gate, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(Step::Wait(gate.clone()));
        self.0.push(Step::Send(bytes.as_ref().to_vec()));
        self
    }

    /// Then these bytes, one at a time, in this interval.
    pub(crate) fn drip(mut self, bytes: impl AsRef<[u8]>, every: Duration) -> Self {
        self.0.push(Step::Drip(bytes.as_ref().to_vec(), every));
        self
    }

    /// Then these bytes again and again, while they are read.
    pub(crate) fn endless(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(Step::Endless(bytes.as_ref().to_vec()));
        self
    }

    /// Then the connection is closed.
    pub(crate) fn close(mut self) -> Self {
        self.0.push(Step::Close);
        self
    }

    /// Then the connection is reset.
    pub(crate) fn reset(mut self) -> Self {
        self.0.push(Step::Reset);
        self
    }

    /// Then nothing more, on an open connection.
    pub(crate) fn hang(mut self) -> Self {
        self.0.push(Step::Hang);
        self
    }
}
