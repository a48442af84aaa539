//! The example of an edge configuration: it starts with its files and ports replaced, and
//! each of its listeners serves.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ordgate::sandbox::{Api, Sandbox, Settings};
use rustls::ProtocolVersion;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{example, ready};
use crate::support::https::{Certificates, HttpsClient, get_on};
use crate::support::{Client, Process, SandboxServer, within};

const EDGE: &str = include_str!("../../../deploy/examples/edge.toml");
/// What the example calls the certificate's files, in two listeners.
const TLS_FILES: &str = "/etc/ordgate/tls/";

/// The addresses of the ready line: the listeners in the order of the file, then the
/// admin listener.
fn bound(process: &Process) -> (SocketAddr, SocketAddr, SocketAddr) {
    let line = loop {
        let line = process.line();
        if let Some(rest) = line.strip_prefix("ordgate is ready on ") {
            break rest.to_owned();
        }
    };
    let ports = line.split([' ', ',', ')']);
    let ports = ports.filter_map(|word| word.split_once("://")?.1.parse().ok());
    let [https, balanced, admin] = <[SocketAddr; 3]>::try_from(ports.collect::<Vec<_>>()).unwrap();
    (https, balanced, admin)
}

/// All that comes after a GET on a stream, which ends after it.
async fn get(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, target: &str) -> String {
    let request = format!(
        "GET {target} HTTP/1.1\r\nhost: x\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n"
    );
    let mut bytes = Vec::new();
    let answered = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_end(&mut bytes).await
    };
    within("an answer", answered).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The files that the example names, and its text with their paths.
fn files(certificates: &Certificates, sandbox: &SandboxServer) -> tempfile::NamedTempFile {
    certificates.sign("localhost");
    let path = |name: &str| certificates.path(name).display().to_string();
    certificates.write("api-keys", "the-key\n");
    let chain = std::fs::read_to_string(path("localhost.pem")).unwrap();
    certificates.write("fullchain.pem", &chain);
    let key = std::fs::read_to_string(path("localhost.key")).unwrap();
    certificates.write("privkey.pem", &key);
    assert_eq!(EDGE.matches(TLS_FILES).count(), 4);
    let text = EDGE.replace(TLS_FILES, &path(""));
    example(
        &text,
        &[
            ("https://api.example", sandbox.url()),
            ("\"/etc/ordgate/api-keys", format!("\"{}", path("api-keys"))),
            ("= \"[::]:443\"", "= \"127.0.0.1:0\"".to_owned()),
            ("= \"0.0.0.0:8443\"", "= \"127.0.0.1:0\"".to_owned()),
            (
                "= \"unix:/run/ordgate/http.sock\"",
                format!("= \"unix:{}\"", path("http.sock")),
            ),
            (
                "\"/etc/ordgate/client-tokens",
                format!("\"{}", path("client-tokens")),
            ),
            (
                "\"/var/lib/ordgate\"",
                format!("\"{}\"", certificates.path("state").display()),
            ),
            ("[\"10.0.0.0/28\"]", "[\"127.0.0.7\"]".to_owned()),
            (
                "\nlisten = \"127.0.0.1:9090\"",
                "\nlisten = \"127.0.0.1:0\"".to_owned(),
            ),
            ("drain_delay = \"5s\"", "drain_delay = \"0s\"".to_owned()),
        ],
    )
}

#[tokio::test]
async fn the_example_of_an_edge_serves() {
    let sandbox = Sandbox::new(Settings {
        require_key: Some("the-key".to_owned()),
        ..Settings::default()
    });
    let api = SandboxServer::start(&sandbox, Api::Both);
    let certificates = Certificates::new();
    let made = Process::run(&["token", "new", "partner"], &[]).out;
    let (token, line) = made.split_once('\n').unwrap();
    certificates.write("client-tokens", line);
    let file = files(&certificates, &api);
    let path = file.path().display().to_string();
    let checked = super::checked(&path);
    assert!(
        checked.contains("# client tokens: 1 of 1 names"),
        "{checked}"
    );

    let process = Process::start(&["serve", "--config", &path], &[]);
    let (https, balanced, admin) = bound(&process);
    ready(admin).await;
    let examples = sandbox.examples();
    let (target, page) = (examples.token(), examples.block());

    // Over TLS, with either version of HTTP.
    let client = certificates.client();
    let seen = client.get(https, "localhost", target).await.unwrap();
    assert_eq!(seen.version, ProtocolVersion::TLSv1_3);
    assert!(
        seen.text.starts_with("HTTP/1.1 200 OK\r\n"),
        "{}",
        seen.text
    );
    assert!(seen.text.contains("\r\nvary: origin, accept-encoding\r\n"));
    let mut http2 = client.clone();
    http2.config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = http2.connect(https, "localhost").await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let url = format!("https://localhost{page}");
    let request = http::Request::get(url).header("x-api-key", token).body(());
    let answer = send.send_request(request.unwrap(), true).unwrap().0;
    let answer = within("an answer over HTTP/2", answer).await.unwrap();
    assert_eq!(answer.status(), 200);
    connection.abort();

    the_unix_socket_serves(&certificates.path("http.sock"), target, page).await;
    only_the_trusted_proxy_is_served(&client, balanced, target).await;

    // What the operator sees.
    let status = Client::connect(admin).await.get("/status").await.json();
    let listeners = status["listeners"].as_array().unwrap();
    assert_eq!(listeners.len(), 3, "{status}");
    assert_eq!(
        status["client_tokens"]["busiest"][0]["name"], "partner",
        "{status}"
    );
    let answers = &status["state_directory"]["answers"];
    assert!(
        answers["fault"].is_null() && answers["bytes"].is_u64(),
        "{status}"
    );
    let metrics = Client::connect(admin).await.get("/metrics").await;
    assert!(metrics.text().contains("ordgate_tls_handshakes_total"));
}

/// From the trusted proxy, and from anyone else.
async fn only_the_trusted_proxy_is_served(
    client: &HttpsClient,
    balanced: SocketAddr,
    target: &str,
) {
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    let dial = async |from: [u8; 4]| {
        let mut stream = client.from(from).dial(balanced).await;
        let sent = stream.write_all(header).await;
        sent.map(|()| stream)
    };
    let stream = dial([127, 0, 0, 7]).await.unwrap();
    let stream = client.secure(stream, "localhost").await.unwrap();
    let seen = get_on(stream, target).await.unwrap();
    assert!(
        seen.text.starts_with("HTTP/1.1 200 OK\r\n"),
        "{}",
        seen.text
    );
    let refused = match dial([127, 0, 0, 8]).await {
        Ok(stream) => client.secure(stream, "localhost").await.is_err(),
        Err(_closed) => true,
    };
    assert!(refused);
}

async fn the_unix_socket_serves(socket: &Path, target: &str, page: &str) {
    let stream = UnixStream::connect(socket).await.unwrap();
    assert!(get(stream, target).await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(mode(socket), 0o660);
    let compressed = async {
        loop {
            let stream = UnixStream::connect(socket).await.unwrap();
            if get(stream, page)
                .await
                .contains("\r\ncontent-encoding: gzip\r\n")
            {
                break;
            }
        }
    };
    within("a compressed answer", compressed).await;
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Each key that the reader must look at is marked.
#[test]
fn the_example_of_an_edge_marks_what_to_change() {
    let marks = EDGE.lines().filter(|line| line.contains("# CHANGE: "));
    assert_eq!(marks.count(), 6);
}
