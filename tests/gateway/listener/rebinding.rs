//! Addresses that overlap, reloads that exchange them, and sockets that outlive a listener.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use tokio::net::UnixStream;

use super::HALF;
use super::half_closed::is_whole;
use crate::respect;
use crate::support::client::request;
use crate::support::wire::Wire;
use crate::support::{Client, Gate, Gateway, Process, Reply, Setup, TOKEN, Upstream, within};

const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A port that is free on all addresses. The system gives none of these to a socket that
/// asks for any port, so no other test takes it meanwhile.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + u16::try_from(std::process::id() % 1000).unwrap() * 20;
    loop {
        let port = first + NEXT.fetch_add(1, SeqCst);
        if TcpListener::bind((ANY_V6, port)).is_ok() {
            return port;
        }
    }
}

fn listener(addresses: &[&str], port: u16) -> String {
    let one = |address: &&str| format!("{{ address = \"{address}:{port}\" }}");
    let all: Vec<_> = addresses.iter().map(one).collect();
    format!("listener = [{}]", all.join(", "))
}

/// Which of the loopback addresses serve at this port.
async fn serve(port: u16) -> [bool; 2] {
    let mut serve = [false; 2];
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for (serves, address) in serve.iter_mut().zip(loopback) {
        let address = SocketAddr::new(address, port);
        *serves = TcpStream::connect(address).is_ok();
        if *serves {
            assert_eq!(Client::connect(address).await.get(TOKEN).await.status, 200);
        }
    }
    serve
}

async fn reload(gateway: &Gateway, config: &str) -> serde_json::Value {
    let answer = gateway.reload(config).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A regression: `[::]` took the port of IPv4 too, so the second address was in use.
#[tokio::test]
async fn all_addresses_of_both_families_may_be_two_listeners() {
    let upstream = Upstream::start();
    let port = free_port();
    let both = [["0.0.0.0", "[::]"], ["[::]", "0.0.0.0"]];
    for addresses in &both {
        let gateway = Gateway::with(&upstream, &listener(addresses, port));
        assert_eq!(serve(port).await, [true, true], "{addresses:?}");
        gateway.end().await;
    }
    // A reload changes whether `[::]` is for IPv4 too.
    let gateway = Gateway::with(&upstream, &listener(&["[::]"], port));
    assert_eq!(serve(port).await, [true, true]);
    let rows: [(&[&str], [bool; 2]); 5] = [
        (&both[0], [true, true]),
        (&["0.0.0.0"], [true, false]),
        (&both[1], [true, true]),
        (&["[::]"], [true, true]),
        (&["[::1]"], [false, true]),
    ];
    for (addresses, expected) in rows {
        let report = reload(&gateway, &listener(addresses, port)).await;
        assert_eq!(serve(port).await, expected, "{addresses:?}: {report}");
    }
}

/// A regression: the address was bound before the one that it includes was closed, so it was
/// in use.
#[tokio::test]
async fn a_reload_replaces_an_address_by_one_that_includes_it() {
    let upstream = Upstream::start();
    let port = free_port();
    let [narrow, wide] = ["127.0.0.1", "0.0.0.0"].map(|address| listener(&[address], port));
    let gateway = Gateway::with(&upstream, &narrow);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let second = SocketAddr::from(([127, 0, 0, 2], port));
    for config in [&wide, &narrow, &wide, &narrow] {
        let mut kept = Client::connect(address).await;
        assert_eq!(kept.get(TOKEN).await.status, 200);
        reload(&gateway, config).await;
        assert_eq!(kept.get(TOKEN).await.must("connection"), "close");
        assert_eq!(Client::connect(address).await.get(TOKEN).await.status, 200);
        assert_eq!(TcpStream::connect(second).is_ok(), *config == wide);
    }
    // Another program has a part of it: the listener stays as it is.
    let taken = TcpListener::bind(second).unwrap();
    let report = reload(&gateway, &wide).await;
    let notes = report["notes"].to_string();
    for note in [
        format!("cannot listen on 0.0.0.0:{port}: "),
        format!("{address} stays open instead"),
    ] {
        assert!(notes.contains(&note), "{notes}");
    }
    assert_eq!(Client::connect(address).await.get(TOKEN).await.status, 200);
    drop(taken);
    reload(&gateway, &wide).await;
    assert_eq!(Client::connect(second).await.get(TOKEN).await.status, 200);
}

/// A request whose answer is not complete until the gate is opened.
async fn answering(upstream: &Upstream, gateway: &Gateway) -> (Gate, Client, Vec<u8>) {
    let gate = Gate::new();
    upstream.once("/x", Reply::raw(HALF).then(&gate, "half"));
    let mut client = Client::connect(gateway.public).await;
    client.send_request("GET", "/x", &[]).await;
    let begun = client.some(20).await;
    (gate, client, begun)
}

fn slow(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .config("server.drain_timeout = \"60s\"")
        .config(respect::ALL)
}

/// A regression: the listener was opened, accepted connections, and was never closed.
#[tokio::test]
async fn a_reload_opens_no_listener_once_the_process_stops() {
    let upstream = Upstream::start();
    let gateway = slow(&upstream).start();
    let (gate, mut client, begun) = answering(&upstream, &gateway).await;
    gateway.server().drain();
    let port = free_port();
    let report = reload(&gateway, &listener(&["127.0.0.1"], port)).await;
    let expected = format!("127.0.0.1:{port} is not opened: the process is stopping");
    assert!(report["notes"].to_string().contains(&expected), "{report}");
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
    gateway.end().await;
}

/// A regression: a process that drained removed the file at its end, when it could be the
/// next process's.
#[tokio::test]
async fn a_process_that_drains_leaves_the_path_of_its_socket_to_the_next() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listen = format!("listener = [{{ address = \"unix:{}\" }}]", path.display());
    let old = slow(&upstream).config(&listen).start();
    let (gate, mut client, begun) = answering(&upstream, &old).await;
    old.server().drain();
    assert!(
        !path.exists(),
        "the file is removed before its socket is closed"
    );
    let _new = Setup::before(&upstream).config(&listen).start();
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
    old.end().await;
    let stream = within("connecting", UnixStream::connect(&path)).await;
    let mut wire = Wire::new(stream.unwrap());
    wire.send(request("GET", TOKEN, &[])).await.unwrap();
    let answer = within("answering", wire.answer("GET")).await.unwrap();
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_reload_that_closes_an_inherited_socket_says_that_it_stays_open() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let edge = "[[listener]]\nname = \"edge\"\naddress = \"127.0.0.1:1\"\n";
    std::fs::write(file.path(), format!("{server}{edge}")).unwrap();
    let config = file.path().display().to_string();
    let arguments = ["serve", "--sandbox", "--config", &config];
    let process = Process::start_handed(vec![socket.into()], Some("edge"), &arguments);
    let line = loop {
        let line = process.line();
        if line.starts_with("ordgate is ready on ") {
            break line;
        }
    };
    let mut client = Client::connect(address).await;
    assert_eq!(client.get("/openapi.json").await.status, 200, "{line}");
    let admin = line.rsplit_once("http://").unwrap().1.trim_end_matches(')');
    std::fs::write(file.path(), server).unwrap();
    let mut operator = Client::connect(admin.parse().unwrap()).await;
    let answer = operator.request("POST", "/reload", &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let notes = answer.json()["notes"].to_string();
    let expected = format!("{address} is not served any more, but the supervisor keeps its");
    assert!(notes.contains(&expected), "{notes}");
}
