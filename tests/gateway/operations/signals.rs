//! Signals: draining, and its end.

use rustix::process::Signal;

use super::file;
use crate::support::{BLOCK, Client, Gate, Process, ROUTES, Reply, TOKEN, Upstream, until};

#[tokio::test]
async fn sigterm_lets_requests_under_way_finish() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let (_held, path) = file(&format!("builtin_routes = false\n{ROUTES}"));
    let (process, public, admin) = Process::before(&upstream, &["--config", &path], &[]);
    let mut slow = Client::connect(public).await;
    slow.send_request("GET", TOKEN, &[]).await;
    upstream.until_requests(1).await;

    process.signal(Signal::TERM);
    // No new ones are taken. The listening socket goes with its last handle.
    until("new connections are refused", || {
        std::net::TcpStream::connect(public).is_err()
    })
    .await;
    let ready = Client::connect(admin).await.get("/readyz").await;
    assert_eq!(ready.status, 503);

    gate.open();
    let answer = slow.answer("GET").await;
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    assert_eq!(slow.rest().await, b"");
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.errors.contains("draining"), "{}", left.errors);
}

#[tokio::test]
async fn draining_has_an_end() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let (_held, path) = file(&format!(
        "builtin_routes = false\n[server]\ndrain_timeout = \"100ms\"\n{ROUTES}"
    ));
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut slow = Client::connect(public).await;
    slow.send_request("GET", BLOCK, &[]).await;
    upstream.until_requests(1).await;
    process.signal(Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.errors.contains("drain_timeout"), "{}", left.errors);
    assert_eq!(slow.rest().await, b"");
}
