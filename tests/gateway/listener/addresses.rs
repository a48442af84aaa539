//! Several listeners: addresses, and unix sockets.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::support::client::{read, request};
use crate::support::wire::Wire;
use crate::support::{Answer, Client, Gateway, Setup, TOKEN, Upstream, until, within};

/// A GET on a new connection to a unix socket.
async fn get(path: &Path, target: &str) -> Answer {
    let stream = within("connecting", UnixStream::connect(path)).await;
    let mut wire = Wire::new(stream.unwrap());
    wire.send(request("GET", target, &[])).await.unwrap();
    within("answering", read(&mut wire, "GET")).await.unwrap()
}

/// The addresses that `/status` has.
async fn addresses(gateway: &Gateway) -> Vec<String> {
    let status = gateway.admin("/status").await.json();
    let listeners = status["listeners"].as_array().unwrap().clone();
    let address = |one: &serde_json::Value| one["address"].as_str().unwrap().to_owned();
    listeners.iter().map(address).collect()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn all_addresses_share_one_cache_and_status_lists_them() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listen = format!(
        "server.listen = [\"127.0.0.1:0\", \"[::1]:0\", \"unix:{}\"]",
        path.display()
    );
    let gateway = Setup::before(&upstream).config(&listen).start();
    let listeners = gateway.server().bound_listeners();
    for address in listeners.iter().filter_map(|one| one.address.tcp()) {
        assert_ne!(address.port(), 0);
        assert_eq!(Client::connect(address).await.get(TOKEN).await.status, 200);
    }
    let answer = get(&path, TOKEN).await;
    assert_eq!(answer.status, 200);
    let hit = answer.must("cache-status");
    assert!(hit.contains("hit"), "{hit}");
    assert_eq!(upstream.seen().len(), 1);
    let expected: Vec<_> = listeners
        .iter()
        .map(|one| one.address.to_string())
        .collect();
    assert_eq!(addresses(&gateway).await, expected);
    assert_eq!(expected.len(), 3);
}

#[tokio::test]
async fn a_unix_socket_has_its_mode_and_its_file_goes_with_the_listener() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listener = |mode: &str| {
        format!(
            "listener = [{{ address = \"unix:{}\", mode = \"{mode}\" }}]",
            path.display()
        )
    };
    let gateway = Setup::before(&upstream).config(&listener("0600")).start();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(get(&path, TOKEN).await.status, 200);
    let reloaded = gateway.reload(&listener("0666")).await;
    let note = "the public listeners have other addresses or modes, which needs a restart";
    assert!(reloaded.text().contains(note), "{}", reloaded.text());
    assert_eq!(mode(&path), 0o600);
    assert_eq!(get(&path, TOKEN).await.status, 200);
    gateway.end().await;
    assert!(!path.exists(), "the gateway has ended");
}

#[tokio::test]
async fn only_a_stale_socket_file_is_replaced() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let listen = format!("server.listen = \"unix:{}\"", path.display());
    let start = || Setup::before(&upstream).config(&listen).try_start();
    // What a killed process leaves behind: nobody listens.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
    let gateway = start().unwrap();
    assert_eq!(get(&path, TOKEN).await.status, 200);
    let refused = start().err().unwrap().to_string();
    assert!(refused.contains("another process listens"), "{refused}");
    assert_eq!(get(&path, TOKEN).await.status, 200, "the first goes on");
    gateway.end().await;
    std::fs::write(&path, "a file").unwrap();
    let refused = start().err().unwrap().to_string();
    assert!(refused.contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
}

#[tokio::test]
async fn listeners_stay_open_for_the_drain_delay() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    gateway.server().drain(Duration::from_secs(10));
    assert_eq!(gateway.admin("/readyz").await.status, 503);
    assert_eq!(gateway.get(TOKEN).await.status, 200, "a new connection");
    let answer = kept.get(TOKEN).await;
    assert_eq!((answer.status, answer.field("connection")), (200, None));
    gateway.server().drain(Duration::ZERO);
    until("listeners close", || {
        std::net::TcpStream::connect(gateway.public).is_err()
    })
    .await;
}
