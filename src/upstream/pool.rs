//! The HTTP/1.1 connections of one upstream, with TLS by rustls on aws-lc-rs and the public
//! certificate authorities of webpki-roots, and those that the operator adds.
//!
//! A connection carries one request at a time. It is idle again when the body of the answer
//! has been read, and may be used again for [`IDLE_TIMEOUT`]; the next request
//! after that closes it.
//! One that the server has closed, or whose answer was not read to its end, is not used again.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::{RequestBody, Settings, SetupError};
use crate::regular_file::{self, MAX_AUTHORITIES};
use crate::sync::lock;

/// How long an unused connection may be used again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest head of a response, in bytes.
const MAX_HEAD: usize = 128 * 1024;
/// The most header fields of a response.
const MAX_FIELDS: usize = 1000;

/// TCP's user time-out: how long bytes may be unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(25);
/// TCP keepalive: the idle time before the first probe,
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// the time between probes,
const KEEPALIVE_EACH: Duration = Duration::from_secs(5);
/// and the unanswered probes after which the connection is closed.
const KEEPALIVE_TIMES: u32 = 3;

/// The connections of one upstream.
pub(crate) struct ConnectionPool {
    connector: HttpsConnector<HttpConnector>,
    connect_timeout: Duration,
    /// The one that became idle last is the last.
    idle: Mutex<Vec<(Instant, Connection)>>,
}

/// A connection that carries no request.
pub(crate) struct Connection {
    pool: Weak<ConnectionPool>,
    /// The base URL that it was made for.
    url: Uri,
    sender: SendRequest<RequestBody>,
    /// Whether it has carried a request before.
    is_reused: bool,
}

/// Why a connection could not be made, or has failed.
#[derive(Debug, thiserror::Error)]
#[error("{}", if *is_connect { "no connection was made" } else { "the connection has failed" })]
pub(crate) struct ConnectionError {
    source: Box<dyn StdError + Send + Sync>,
    /// Whether no connection was made.
    pub(crate) is_connect: bool,
    /// Whether no byte of a request was written: the server had closed an idle connection.
    pub(crate) is_unwritten: bool,
}

impl ConnectionPool {
    /// The connections of an upstream with these settings. None is made yet.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn new(settings: &Settings) -> Result<Arc<Self>, SetupError> {
        let settings_of_tls = tls(settings)?;
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        // It is divided among the addresses of a name. `connect` limits the whole.
        http.set_connect_timeout(Some(settings.connect_timeout()));
        // So a machine that is gone is noticed before responses time out.
        http.set_keepalive(Some(KEEPALIVE_AFTER));
        http.set_keepalive_interval(Some(KEEPALIVE_EACH));
        http.set_keepalive_retries(Some(KEEPALIVE_TIMES));
        // Without this, what a machine that is gone does not acknowledge is retransmitted
        // for a quarter of an hour, during which TCP keepalive does not probe. The kernel of
        // a stopped server still acknowledges.
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Ok(Arc::new(Self {
            connector: HttpsConnector::from((http, settings_of_tls)),
            connect_timeout: settings.connect_timeout(),
            idle: Mutex::default(),
        }))
    }

    /// A connection to the server of this URL: the one that became idle last, or a new one.
    ///
    /// # Errors
    /// If none can be made within `connect_timeout`.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        url: &Uri,
    ) -> Result<Connection, ConnectionError> {
        if let Some(idle) = self.take_idle(url) {
            return Ok(idle);
        }
        let connected = match timeout(self.connect_timeout, self.handshake(url)).await {
            Ok(connected) => connected,
            Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
        };
        match connected {
            Ok(sender) => Ok(Connection {
                pool: Arc::downgrade(self),
                url: url.clone(),
                sender,
                is_reused: false,
            }),
            Err(source) => Err(ConnectionError {
                source,
                is_connect: true,
                is_unwritten: true,
            }),
        }
    }

    async fn handshake(
        &self,
        url: &Uri,
    ) -> Result<SendRequest<RequestBody>, Box<dyn StdError + Send + Sync>> {
        let mut connector = self.connector.clone();
        poll_fn(|cx| connector.poll_ready(cx)).await?;
        let stream = connector.call(url.clone()).await?;
        let mut settings = http1::Builder::new();
        settings.max_buf_size(MAX_HEAD).max_headers(MAX_FIELDS);
        let (sender, connection) = settings.handshake(stream).await?;
        tokio::spawn(async move {
            // The request on it gets the same error.
            let _reported = connection.await;
        });
        Ok(sender)
    }

    fn take_idle(&self, url: &Uri) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        idle.retain(|(since, one)| since.elapsed() < IDLE_TIMEOUT && !one.sender.is_closed());
        let at = idle.iter().rposition(|(_, one)| one.url == *url)?;
        Some(idle.remove(at).1)
    }
}

/// The client configuration of an upstream.
///
/// # Errors
/// If `ca_file` cannot be read or has no usable certificate.
fn tls(settings: &Settings) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = &settings.ca_file {
        let wrong = |why| SetupError::CaFile {
            key: settings.key("ca_file"),
            path: path.to_owned(),
            why,
        };
        let unreadable =
            |error: pem::Error| wrong(format!("{error}; a PEM file of certificates is allowed"));
        let text = regular_file::read(path, MAX_AUTHORITIES);
        let text = text.map_err(|error| unreadable(pem::Error::Io(io::Error::other(error))))?;
        let certificates = CertificateDer::pem_slice_iter(&text);
        let certificates = certificates.collect::<Result<Vec<_>, _>>();
        let (added, _ignored) = roots.add_parsable_certificates(certificates.map_err(unreadable)?);
        if added == 0 {
            return Err(wrong("it holds no certificate that can be used".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

impl Connection {
    /// Keeps it for another request, although none was sent on it.
    pub(crate) fn put_back(self) {
        if let Some(pool) = self.pool.upgrade() {
            lock(&pool.idle).push((Instant::now(), self));
        }
    }

    /// Sends a request, and waits for the head of its answer. Dropped before, the
    /// connection is closed.
    ///
    /// # Errors
    /// If the connection fails.
    pub(crate) async fn send(
        mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ConnectionError> {
        let target = request.uri().path_and_query().cloned();
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from(target);
        let mut error = match self.sender.try_send_request(request).await {
            Ok(response) => {
                tokio::spawn(async move {
                    if self.sender.ready().await.is_ok() {
                        self.is_reused = true;
                        self.put_back();
                    }
                });
                return Ok(response);
            }
            Err(error) => error,
        };
        let is_unwritten = self.is_reused && error.take_message().is_some();
        Err(ConnectionError {
            source: error.into_error().into(),
            is_connect: false,
            is_unwritten,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;
    use crate::reason::Reason;
    use crate::upstream::failure::classify;
    use crate::upstream::no_body;

    /// The pool of the shipped settings.
    pub(crate) fn pool() -> Arc<ConnectionPool> {
        let config = crate::config::Config::parse("p", "").unwrap();
        ConnectionPool::new(&config.upstreams[0]).unwrap()
    }

    /// Sends a request on a connection of the pool, and reads the answer as the server
    /// writes it. Returns the server's side of a new connection.
    pub(crate) async fn get(
        pool: &Arc<ConnectionPool>,
        server: &TcpListener,
        stream: Option<TcpStream>,
    ) -> TcpStream {
        let url: Uri = format!("http://{}/path?query", server.local_addr().unwrap())
            .parse()
            .unwrap();
        let connection = pool.connect(&url).await.unwrap();
        assert_eq!(connection.is_reused, stream.is_some());
        let mut stream = stream.unwrap_or_else(|| server.accept().unwrap().0);
        let request = Request::get(url.clone()).body(no_body()).unwrap();
        let answering = std::thread::spawn(move || {
            let mut head = vec![0; 1000];
            let length = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody")
                .unwrap();
            (stream, head)
        });
        let response = connection.send(request).await.unwrap();
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "body"
        );
        let (stream, head) = answering.join().unwrap();
        assert_eq!(head, "GET /path?query HTTP/1.1\r\n\r\n");
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        stream
    }

    #[tokio::test]
    async fn a_connection_is_used_again_unless_the_server_has_closed_it() {
        let (pool, server) = (pool(), TcpListener::bind("127.0.0.1:0").unwrap());
        let stream = get(&pool, &server, None).await;
        let stream = get(&pool, &server, Some(stream)).await;
        drop(stream);
        sleep(Duration::from_millis(50)).await;
        get(&pool, &server, None).await;
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_told_from_other_faults() {
        // No label has more than 63 characters, so that nobody is asked for it.
        let url = format!("http://{}.example", "x".repeat(64));
        let error = pool().connect(&url.parse().unwrap()).await.err().unwrap();
        assert_eq!(classify(&error), Reason::Dns, "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_idle_for_long_is_not_used_again() {
        let (pool, server) = (pool(), TcpListener::bind("127.0.0.1:0").unwrap());
        let mut stream = get(&pool, &server, None).await;
        sleep(IDLE_TIMEOUT).await;
        get(&pool, &server, None).await;
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}
