//! An HTTP/2 client that keeps to the rules: the `h2` crate's.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, yield_now};

use super::{Answer, within};

/// Fields that a request in HTTP/2 must not have (RFC 9113 §8.2.2). They are left out.
const HTTP1_ONLY: [&str; 4] = ["connection", "keep-alive", "proxy-connection", "upgrade"];

/// One connection; it is closed when this is dropped.
pub(crate) struct PoliteClient {
    scheme: &'static str,
    send: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    /// The requests whose answers have not been read, in their order.
    pending: VecDeque<Pending>,
}

/// A request whose answer has not been read to its end.
struct Pending {
    /// `None` if the connection was closed before the request.
    response: Option<ResponseFuture>,
    /// What is left to send of its body.
    body: Option<(SendStream<Bytes>, usize)>,
}

impl PoliteClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await;
        Self::on(stream.unwrap(), "http").await
    }

    /// On this stream, for targets of this scheme.
    pub(super) async fn on(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        scheme: &'static str,
    ) -> Self {
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        Self {
            scheme,
            send,
            connection: tokio::spawn(connection),
            pending: VecDeque::new(),
        }
    }

    fn head(&self, method: &str, target: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}://localhost{target}", self.scheme));
        for (name, value) in fields {
            if !HTTP1_ONLY.contains(name) {
                request = request.header(*name, *value);
            }
        }
        request.body(()).unwrap()
    }

    /// Sends a request, and gives its answer once it is awaited.
    pub(crate) async fn start(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> impl Future<Output = Result<Answer, h2::Error>> + use<> {
        self.send = self.send.clone().ready().await.unwrap();
        let request = self.head(method, target, fields);
        let (response, mut sending) = self.send.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            sending.send_data(body.to_owned().into(), true).unwrap();
        }
        read(response)
    }

    /// Sends a request. [`send_body`](Self::send_body) sends its body, of which
    /// content-length gives the length.
    pub(super) async fn send_request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) {
        let length = fields.iter().find(|(name, _)| *name == "content-length");
        let length = length.map_or(0, |(_, length)| length.parse().unwrap());
        let request = self.head(method, target, fields);
        let (mut response, mut body) = (None, None);
        if let Ok(ready) = self.send.clone().ready().await {
            self.send = ready;
            let sent = self.send.send_request(request, length == 0);
            let (future, sending) =
                sent.unwrap_or_else(|error| panic!("{method} {target}: {error}"));
            response = Some(future);
            body = (length > 0).then_some((sending, length));
        }
        self.pending.push_back(Pending { response, body });
        // The connection's task writes it.
        yield_now().await;
    }

    /// Sends a part of the last request's body. A stream that was reset takes none.
    pub(super) async fn send_body(&mut self, bytes: &[u8]) {
        let last = self.pending.back_mut().expect("a request comes first");
        let Some((sending, left)) = &mut last.body else {
            panic!("the request has no body, or is whole");
        };
        *left = left
            .checked_sub(bytes.len())
            .expect("within content-length");
        let _ = sending.send_data(Bytes::copy_from_slice(bytes), *left == 0);
        if *left == 0 {
            last.body = None;
        }
        yield_now().await;
    }

    /// Reads the answer to the first request whose answer has not been read; `None` if
    /// its stream or the connection ends before the answer is whole.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        let first = self.pending.pop_front().expect("a request comes first");
        read(first.response?).await.ok()
    }

    pub(crate) async fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        let answer = self.start(method, target, fields, "").await;
        within("an answer", answer).await.unwrap()
    }

    pub(crate) async fn get(&mut self, target: &str) -> Answer {
        self.request("GET", target, &[]).await
    }

    /// Waits until the server has ended the connection.
    pub(crate) async fn end(self) -> Result<(), h2::Error> {
        drop(self.send);
        within("the end", self.connection).await.unwrap()
    }
}

async fn read(response: ResponseFuture) -> Result<Answer, h2::Error> {
    let response = response.await?;
    let fields = response.headers().iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        (name.to_string(), value.into_owned())
    });
    let mut answer = Answer {
        status: response.status().as_u16(),
        version: format!("{:?}", response.version()),
        fields: fields.collect(),
        body: Vec::new(),
    };
    let mut receiving = response.into_body();
    while let Some(data) = receiving.data().await {
        let data = data?;
        answer.body.extend_from_slice(&data);
        receiving.flow_control().release_capacity(data.len())?;
    }
    Ok(answer)
}
