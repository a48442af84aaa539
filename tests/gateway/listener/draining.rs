//! Draining: what is under way is answered, and idle connections end.

use std::net::SocketAddr;
use std::sync::mpsc;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};

use super::HALF;
use super::half_closed::is_whole;
use crate::respect;
use crate::support::client::request;
use crate::support::https::{Certificates, get_on};
use crate::support::wire::Wire;
use crate::support::{
    Client, Endpoint, Gate, Gateway, Reply, Setup, TOKEN, Transport, Upstream, until, within,
};

/// A regression: a drain broke off an answer of which the rest took longer than
/// a connection's last call.
#[tokio::test]
async fn draining_waits_for_the_rest_of_an_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"60s\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.once("/x", Reply::raw(HALF).then(&gate, "half"));
    let mut kept = gateway.client().await;
    let mut client = gateway.start_get("/x").await;
    let begun = client.some(20).await;
    assert_eq!(kept.get("/").await.status, 200);
    gateway.server().drain();
    // An idle connection is closed after the accept queue is empty, so that has
    // happened.
    kept.rest().await;
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
}

/// What was on its way when the gateway was told to stop is answered: a head
/// that had begun, a request that a kept connection sends just then, and what
/// the kernel has let in.
#[tokio::test]
async fn draining_answers_requests_under_way() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.drain_timeout = \"10s\"");
    let mut begun = gateway.client().await;
    let whole = request("GET", TOKEN, &[]);
    let (first, last) = whole.split_at(20);
    begun.send(first).await;
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    let mut silent = gateway.client().await;
    until("all are let in", || gateway.connections() == 3).await;
    gateway.server().drain();
    kept.send_request("GET", TOKEN, &[]).await;
    silent.send_request("GET", TOKEN, &[]).await;
    begun.send(last).await;
    for mut client in [kept, silent, begun] {
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.must("connection"), "close");
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: whom the kernel had let in was turned out where the runtime had
/// not heard of them yet. That is a matter of microseconds, hence the rounds.
#[tokio::test]
async fn draining_answers_connections_in_the_accept_queue() {
    let upstream = Upstream::start();
    for round in 0..40 {
        let gateway = Gateway::with(&upstream, "server.drain_timeout = \"60s\"");
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(gateway.start_get("/openapi.json").await);
        }
        gateway.server().drain();
        for client in &mut clients {
            let answer = client.try_answer("GET").await;
            assert!(answer.is_some(), "turned out in round {round}");
        }
    }
}

/// Drains a gateway while its worker is busy: what `begin` has connected is in the accept
/// queue then.
async fn drain_with_queued<T>(gateway: &Gateway, begin: impl Future<Output = T>) -> T {
    let (release, released) = mpsc::channel::<()>();
    let (tell, busy) = oneshot::channel();
    let worker = gateway.server().runtimes().pop().unwrap();
    worker.spawn(async move {
        tell.send(()).unwrap();
        // Ends when `release` is dropped.
        let _ = released.recv();
    });
    within("the worker is busy", busy).await.unwrap();
    let begun = begin.await;
    gateway.server().drain();
    drop(release);
    begun
}

/// A gateway with this listener, and the listener's address.
fn with_listener(upstream: &Upstream, listener: &str) -> (Gateway, SocketAddr) {
    let gateway = Setup::before(upstream)
        .config("server.drain_timeout = \"60s\"")
        .config("clients.trusted_proxies = [\"127.0.0.1\"]")
        .config(listener)
        .start();
    let mut listeners = gateway.server().listeners().into_iter().rev();
    let address = listeners.find_map(|address| address.tcp()).unwrap();
    (gateway, address)
}

const PROXY_HEADER: &str = "PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\n";

/// A regression: connections that begin with a PROXY header were closed.
#[tokio::test]
async fn draining_answers_queued_connections_with_a_proxy_header() {
    let upstream = Upstream::start();
    let listener = "listener = [{ address = \"127.0.0.1:0\", proxy_protocol = true }]";
    let (gateway, address) = with_listener(&upstream, listener);
    let begin = async {
        let mut client = Client::connect(address).await;
        let head = request("GET", TOKEN, &[]);
        client.send(PROXY_HEADER.to_owned() + &head).await;
        client
    };
    let mut client = drain_with_queued(&gateway, begin).await;
    let answer = client.try_answer("GET").await.expect("an answer");
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn draining_answers_queued_connections_with_a_proxy_header_and_tls() {
    let upstream = Upstream::start();
    let certificates = Certificates::new();
    certificates.sign("localhost");
    let listener = certificates.listener(&["localhost"], "proxy_protocol = true");
    let (gateway, address) = with_listener(&upstream, &listener);
    let client = certificates.client();
    let mut handshakes = JoinSet::new();
    let begin = async {
        let mut stream = client.dial(address).await;
        stream.write_all(PROXY_HEADER.as_bytes()).await.unwrap();
        let client = client.clone();
        handshakes.spawn(async move { client.secure(stream, "localhost").await });
        // The ClientHello is sent.
        yield_now().await;
    };
    drain_with_queued(&gateway, begin).await;
    let stream = handshakes.join_next().await.unwrap().unwrap();
    let seen = get_on(stream.unwrap(), TOKEN).await.unwrap();
    assert!(seen.text.starts_with("HTTP/1.1 200"), "{}", seen.text);
}

#[tokio::test]
async fn draining_answers_queued_connections_on_a_unix_socket() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listener = format!("listener = [{{ address = \"unix:{}\" }}]", path.display());
    let (gateway, _) = with_listener(&upstream, &listener);
    let begin = async {
        let stream = within("connecting", UnixStream::connect(&path)).await;
        let mut wire = Wire::new(stream.unwrap());
        wire.send(request("GET", TOKEN, &[])).await.unwrap();
        wire
    };
    let mut wire = drain_with_queued(&gateway, begin).await;
    let answer = within("an answer", wire.answer("GET")).await.unwrap();
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn draining_answers_queued_connections_in_http2() {
    let upstream = Upstream::start();
    let (gateway, address) = with_listener(&upstream, "listener = []");
    let transport = Transport::H2c;
    let begin = async {
        let mut client = Endpoint { address, transport }.client().await;
        client.send_request("GET", TOKEN, &[]).await;
        // The request is sent.
        yield_now().await;
        client
    };
    let mut client = drain_with_queued(&gateway, begin).await;
    let answer = client.try_answer("GET").await.expect("an answer");
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn draining_closes_idle_connections() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.drain_timeout = \"10s\"");
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    let mut silent = gateway.client().await;
    until("both are let in", || gateway.connections() == 2).await;
    gateway.server().drain();
    assert_eq!(kept.rest().await, b"");
    assert_eq!(silent.rest().await, b"");
}
