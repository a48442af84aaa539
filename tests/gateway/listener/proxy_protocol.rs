//! The PROXY protocol on listeners that have it, and on those that have it not. Its headers
//! are in `listener::proxy_header`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::support::client::request;
use crate::support::{Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, until};

/// A gateway with a listener whose connections begin with a PROXY header, and the
/// address of that listener.
fn start(upstream: &Upstream, config: &str) -> (Gateway, SocketAddr) {
    let gateway = Setup::before(upstream)
        .config("listener = [{ address = \"127.0.0.1:0\", proxy_protocol = true }]")
        .config("clients.trusted_proxies = [\"127.0.0.1\"]")
        .config(config)
        .start();
    let proxied = gateway
        .server()
        .bound_listeners()
        .last()
        .unwrap()
        .address
        .tcp();
    (gateway, proxied.unwrap())
}

fn v1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 127.0.0.1 40000 80\r\n").into_bytes()
}

/// The status of a request behind this header; `None` if the connection is closed.
async fn status(address: SocketAddr, header: &[u8]) -> Option<u16> {
    let mut client = Client::connect(address).await;
    client
        .send([header, request("GET", TOKEN, &[]).as_bytes()].concat())
        .await;
    client.try_answer("GET").await.map(|answer| answer.status)
}

#[tokio::test]
async fn each_reported_client_has_limits_of_its_own() {
    let upstream = Upstream::start();
    let (gateway, proxied) = start(&upstream, "limit = { requests_per_minute = 1, burst = 2 }");
    // UNKNOWN keeps the address of the connection.
    let unknown = b"PROXY UNKNOWN\r\n".to_vec();
    for header in [v1("192.0.2.1"), v1("192.0.2.2"), unknown] {
        for expected in [200, 200, 429] {
            assert_eq!(status(proxied, &header).await, Some(expected));
        }
    }
    assert_eq!(gateway.figure("/connections/proxy_header_refused"), 0);
}

/// Where all others are at work, its own row is the only idle one.
#[tokio::test]
async fn a_connection_does_not_make_room_for_itself() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let (gateway, proxied) = start(&upstream, "server.max_connections = 3");
    let mut working = Vec::new();
    for ticker in ["a", "b"] {
        let target = format!("/ordinals/v1/brc-20/tokens/{ticker}aaa");
        working.push(gateway.start_get(&target).await);
    }
    upstream.until_requests(2).await;
    let header = v1("192.0.2.1");
    let mut client = Client::connect(proxied).await;
    client
        .send([&header[..], request("GET", "/none", &[]).as_bytes()].concat())
        .await;
    for _ in 0..2 {
        assert_eq!(client.answer("GET").await.status, 404);
        client.send(request("GET", "/none", &[])).await;
    }
    gate.open();
}

#[tokio::test]
async fn a_header_from_anyone_else_is_refused() {
    let upstream = Upstream::start();
    let (gateway, proxied) = start(&upstream, "clients.trusted_proxies = [\"127.0.0.9\"]");
    assert_eq!(status(proxied, &v1("192.0.2.1")).await, None);
    let mut trusted = Client::connect_from([127, 0, 0, 9], proxied).await;
    let head = request("GET", TOKEN, &[]);
    trusted
        .send([&v1("192.0.2.1")[..], head.as_bytes()].concat())
        .await;
    assert_eq!(trusted.answer("GET").await.status, 200);
    // Where it is off, a header is a malformed request.
    assert_eq!(status(gateway.public, &v1("192.0.2.1")).await, Some(400));
}

/// A running HAProxy, which ends when this is dropped.
struct Haproxy {
    child: Child,
    _config: tempfile::NamedTempFile,
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn haproxy_reports_its_clients_in_both_versions() {
    if Command::new("haproxy")
        .arg("-v")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        assert!(
            std::env::var_os("ORDGATE_CI").is_none(),
            "CI installs haproxy"
        );
        eprintln!("NOT RUN: there is no haproxy");
        return;
    }
    let upstream = Upstream::start();
    let (_gateway, proxied) = start(&upstream, "limit = { requests_per_minute = 1, burst = 2 }");
    // On an address of its own: no other test can take the port meanwhile.
    let free = || {
        let socket = std::net::TcpListener::bind("127.0.0.77:0").unwrap();
        socket.local_addr().unwrap()
    };
    let (one, other) = (free(), free());
    let mut config = tempfile::NamedTempFile::new().unwrap();
    write!(
        config,
        "defaults\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n\
         listen one\n bind {one}\n server s {proxied} send-proxy\n\
         listen other\n bind {other}\n server s {proxied} send-proxy-v2\n"
    )
    .unwrap();
    let child = Command::new("haproxy").arg("-f").arg(config.path()).spawn();
    let _haproxy = Haproxy {
        child: child.unwrap(),
        _config: config,
    };
    until("haproxy listens", || {
        std::net::TcpStream::connect(other).is_ok()
    })
    .await;
    for from in [[127, 0, 0, 2], [127, 0, 0, 3]] {
        for (front, expected) in [(one, 200), (other, 200), (one, 429)] {
            let mut client = Client::connect_from(from, front).await;
            assert_eq!(client.get(TOKEN).await.status, expected, "{from:?}");
        }
    }
}
