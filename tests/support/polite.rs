//! An HTTP/2 client that keeps to the rules: the `h2` crate's.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Answer, within};

/// One connection; it is closed when this is dropped.
pub(crate) struct PoliteClient {
    send: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl PoliteClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = within("connecting", TcpStream::connect(address)).await;
        let (send, connection) = h2::client::handshake(stream.unwrap()).await.unwrap();
        Self {
            send,
            connection: tokio::spawn(connection),
        }
    }

    /// Sends a request, and gives its answer once it is awaited.
    pub(crate) async fn start(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &str,
    ) -> impl Future<Output = Result<Answer, h2::Error>> + use<> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://localhost{target}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        self.send = self.send.clone().ready().await.unwrap();
        let request = request.body(()).unwrap();
        let (response, mut sending) = self.send.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            sending.send_data(body.to_owned().into(), true).unwrap();
        }
        async {
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
