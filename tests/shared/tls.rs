//! The whole program with an engine that is reached by TLS, or by a unix socket.

use std::net::{SocketAddr, TcpListener};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::servers::{Server, is_installed};
use super::support::{Client, Process, Upstream};

/// A server that takes TLS on this port, and the file with its authority.
fn start(port: u16, directory: &std::path::Path) -> (Server, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let file = |name: &str, content: String| {
        let path = directory.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let authority = file("ca.pem", issuer.pem());
    let (certificate, key) = (
        file("cert.pem", certificate.pem()),
        file("key.pem", key.serialize_pem()),
    );
    let port = port.to_string();
    let options = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &authority,
        "--tls-auth-clients",
        "no",
    ];
    (Server::start_with(&options), authority)
}

/// A process that trusts the authorities of this file, and its admin listener.
fn trusting(upstream: &Upstream, url: &str, authorities: &str) -> (Process, SocketAddr) {
    let variables = [
        ("ORDGATE_SHARED_URL", url),
        ("ORDGATE_SHARED_REPLICAS", "2"),
        ("SSL_CERT_FILE", authorities),
    ];
    let (process, _, admin) = Process::before(upstream, &[], &variables);
    (process, admin)
}

/// What a process that trusts the authorities of this file says of the engine, when its
/// status or last error has this text.
async fn status(url: &str, authorities: &str, expected: &str) -> serde_json::Value {
    let upstream = Upstream::start();
    let (_process, admin) = trusting(&upstream, url, authorities);
    let mut last = serde_json::Value::Null;
    for _ in 0..1500 {
        let status = Client::connect(admin).await.get("/status").await.json();
        last = status["shared"]["engine"].clone();
        let said = ["status", "last_error"].map(|key| last[key].as_str());
        if said
            .into_iter()
            .flatten()
            .any(|said| said.starts_with(expected))
        {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{url}: not {expected:?}: {last:#}");
}

/// Waits until a process with this engine is in sync with the journal, and purges there.
async fn purge_by_the_journal(url: &str, authorities: &str) {
    let upstream = Upstream::start();
    let (_process, admin) = trusting(&upstream, url, authorities);
    let mut records = 0;
    for attempt in 0..1500 {
        let mut client = Client::connect(admin).await;
        let journal = client.get("/status").await.json()["shared"]["journal"].clone();
        records = journal["records"]["sent"].as_u64().unwrap_or(0);
        if records > 0 {
            return;
        }
        if attempt == 0 {
            let purged = client.request("POST", "/purge?all", &[]).await;
            assert_eq!(purged.status, 200, "{}", purged.text());
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{url}: {records} records were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_is_followed_by_a_unix_socket() {
    if !is_installed() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine");
    let socket = socket.to_str().unwrap();
    let _server = Server::start_with(&["--unixsocket", socket]);
    purge_by_the_journal(&format!("unix://{socket}"), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_is_reached_by_tls_if_its_certificate_is_trusted() {
    if !is_installed() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let (server, authority) = start(port, directory.path());
    let url = format!("rediss://:s3cret@localhost:{port}");
    server.call(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let engine = status(&url, &authority, "answers").await;
    assert_eq!(engine["errors"]["refused"], 0, "{engine:#}");
    purge_by_the_journal(&url, &authority).await;

    let other = Server::start();
    let nobody = rcgen::generate_simple_self_signed(["elsewhere".to_owned()]).unwrap();
    let file = directory.path().join("other.pem");
    std::fs::write(&file, nobody.cert.pem()).unwrap();
    let engine = status(&url, file.to_str().unwrap(), "no connection").await;
    assert!(!engine.to_string().contains("s3cret"), "{engine:#}");
    // Without TLS, the server is not asked anything.
    let plain = format!("rediss://localhost:{}", other.port);
    let engine = status(&plain, &authority, "no ").await;
    assert_ne!(engine["status"], "answers", "{engine:#}");
}
