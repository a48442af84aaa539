//! What requests travel over: HTTP/1.1, or HTTP/2 in cleartext or over TLS.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::OnceLock;
use std::{fs, io};

use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::client::TlsStream;

use super::Client;
use super::https::{Certificates, HttpsClient};
use super::polite::PoliteClient;
use super::within;

/// What requests travel over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// HTTP/1.1 in cleartext.
    Http1,
    /// HTTP/2 in cleartext, by prior knowledge.
    H2c,
    /// HTTP/2 over TLS, by ALPN.
    H2Tls,
}

impl Transport {
    /// The version of answers, as [`Answer`](super::Answer) has it.
    pub(crate) const fn version(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::H2c | Self::H2Tls => "HTTP/2.0",
        }
    }
}

/// Handshakes at once: a gateway does not take many more of one client.
static HANDSHAKES: Semaphore = Semaphore::const_new(4);

/// Where clients connect, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

impl Endpoint {
    pub(crate) async fn client(self) -> Client {
        self.client_from([127, 0, 0, 1]).await
    }

    /// Connects from another address of this machine, such as 127.0.0.2: as another
    /// client.
    pub(crate) async fn client_from(self, from: [u8; 4]) -> Client {
        // Before it connects: from then on, the gateway waits for the handshake for only so long.
        let handshake = match self.transport {
            Transport::H2Tls => Some(HANDSHAKES.acquire().await),
            Transport::Http1 | Transport::H2c => None,
        };
        let stream = dial(from, self.address).await;
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.address));
        match self.transport {
            Transport::Http1 => Client::on(stream),
            Transport::H2c => PoliteClient::on(stream, "http").await.into(),
            Transport::H2Tls => {
                let stream = secure(stream).await;
                let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.address));
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                drop(handshake);
                PoliteClient::on(stream, "https").await.into()
            }
        }
    }
}

pub(crate) async fn dial(from: [u8; 4], address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = within("connecting", socket.connect(address)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Does the TLS handshake with a gateway that has the certificate of this process.
pub(crate) async fn secure(stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    shared().client.secure(stream, NAME).await
}

const NAME: &str = "localhost";

/// The certificate of all gateways of this process, and a client that trusts it.
struct SharedCertificate {
    chain: String,
    key: String,
    client: HttpsClient,
}

fn shared() -> &'static SharedCertificate {
    static SHARED: OnceLock<SharedCertificate> = OnceLock::new();
    SHARED.get_or_init(|| {
        let certificates = Certificates::new();
        certificates.sign(NAME);
        let read = |file| fs::read_to_string(certificates.path(file)).unwrap();
        let mut client = certificates.client();
        client.config.alpn_protocols = vec![b"h2".to_vec()];
        SharedCertificate {
            chain: read("localhost.pem"),
            key: read("localhost.key"),
            client,
        }
    })
}

/// The configuration of a listener with the certificate of this process, and the folder
/// that its files are in.
pub(crate) fn tls_listener() -> (String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let SharedCertificate { chain, key, .. } = shared();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (chain, key) = (write("chain.pem", chain), write("key.pem", key));
    // Tests connect often, and some never move their clock.
    let config = format!(
        "limit.tls_handshakes_per_second = 1000000\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [listener.tls]\ncertificates = [{{ chain = {chain:?}, key = {key:?} }}]\n"
    );
    (config, folder)
}
