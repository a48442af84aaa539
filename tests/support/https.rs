//! TLS as a client of the gateway: an authority, certificates in files, and requests
//! over connections of their own.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore,
    SupportedProtocolVersion,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::transport::dial;
use super::within;

/// An authority, and a folder for the certificates that it signs.
pub(crate) struct Certificates {
    pub(crate) folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = "an authority for tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificates = Self {
            folder: tempfile::tempdir().unwrap(),
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        };
        certificates.write("ca.pem", &certificates.issuer.pem());
        certificates
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that only its owner may read.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }

    /// Signs a certificate for a name, into NAME.pem and NAME.key.
    pub(crate) fn sign(&self, name: &str) {
        self.sign_for(name, &[name], &rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    }

    /// Signs a certificate for some names, into FILE.pem and FILE.key.
    pub(crate) fn sign_for(
        &self,
        file: &str,
        names: &[&str],
        algorithm: &'static rcgen::SignatureAlgorithm,
        change: impl Fn(&mut CertificateParams),
    ) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    /// The configuration of a listener with these pairs, and with more keys.
    pub(crate) fn listener(&self, files: &[&str], more: &str) -> String {
        let path = |file: &str, end: &str| self.path(&format!("{file}.{end}"));
        let pairs = files.iter().map(|file| {
            format!(
                "{{ chain = {:?}, key = {:?} }}",
                path(file, "pem"),
                path(file, "key")
            )
        });
        let pairs: Vec<_> = pairs.collect();
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n{more}\n[listener.tls]\ncertificates = [{}]\n",
            pairs.join(", ")
        )
    }

    /// A client that trusts the authority.
    pub(crate) fn client(&self) -> HttpsClient {
        self.client_of(&[&rustls::version::TLS13, &rustls::version::TLS12])
    }

    /// The same with these versions.
    pub(crate) fn client_of(&self, versions: &[&'static SupportedProtocolVersion]) -> HttpsClient {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        HttpsClient {
            config,
            from: [127, 0, 0, 1],
        }
    }
}

/// A client. Its connections share a cache of sessions.
#[derive(Clone)]
pub(crate) struct HttpsClient {
    pub(crate) config: ClientConfig,
    /// The address that it connects from.
    pub(crate) from: [u8; 4],
}

/// What a client saw of a connection.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) version: ProtocolVersion,
    pub(crate) handshake: HandshakeKind,
    pub(crate) alpn: Option<Vec<u8>>,
    pub(crate) group: String,
    /// The certificate.
    pub(crate) certificate: Vec<u8>,
    /// All that came.
    pub(crate) text: String,
}

impl HttpsClient {
    /// The same from another address.
    pub(crate) fn from(&self, from: [u8; 4]) -> Self {
        Self {
            from,
            ..self.clone()
        }
    }

    /// Connects and does the handshake.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        name: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        self.secure(dial(self.from, address).await?, name).await
    }

    /// Does the handshake.
    pub(crate) async fn secure(
        &self,
        stream: TcpStream,
        name: &str,
    ) -> io::Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        let name = ServerName::try_from(name.to_owned()).unwrap();
        within("the handshake", connector.connect(name, stream)).await
    }

    /// A GET on a connection of its own, which ends after it.
    pub(crate) async fn get(
        &self,
        address: SocketAddr,
        name: &str,
        target: &str,
    ) -> io::Result<Seen> {
        let stream = self.connect(address, name).await?;
        get_on(stream, target).await
    }
}

/// A GET on a connection, which ends after it.
pub(crate) async fn get_on(mut stream: TlsStream<TcpStream>, target: &str) -> io::Result<Seen> {
    let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut text = String::new();
    within("an answer", async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_string(&mut text).await
    })
    .await?;
    let connection: &ClientConnection = stream.get_ref().1;
    Ok(Seen {
        version: connection.protocol_version().unwrap(),
        handshake: connection.handshake_kind().unwrap(),
        alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
        group: connection
            .negotiated_key_exchange_group()
            .map_or_else(String::new, |group| format!("{:?}", group.name())),
        certificate: connection.peer_certificates().unwrap()[0].to_vec(),
        text,
    })
}
