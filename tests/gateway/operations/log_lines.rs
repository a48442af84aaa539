//! What requests add to the log: a bounded number of lines, and none with a query.

use std::fmt::Write;

use rustix::process::Signal;

use super::file;
use crate::support::respect::ALL;
use crate::support::{Client, Gate, Process, Reply, Upstream};

/// One client gets no more than two of these slots.
const SLOTS: &str = "upstream = { max_in_flight = 4, queue_timeout = \"10ms\" }";
/// Requests of the client beyond its slots.
const REFUSED: usize = 40;

/// A query that must not be shown, with what may be a client token in it.
fn query(nth: usize) -> String {
    format!("hush{nth}=secret&k=og_{}", &"aZ3".repeat(17)[..49])
}

/// What a process logs at this level while one client has all of its slots in use, sends
/// more requests, and gets answers that are none.
async fn logged(level: &str) -> String {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let (_held, path) = file(&format!("{SLOTS}\n{ALL}"));
    let (process, public, _) =
        Process::before(&upstream, &["--config", &path], &[("ORDGATE_LOG", level)]);
    for nth in 0..3 {
        let target = format!("/garbage{nth}?{}", query(nth));
        upstream.once(&target, Reply::raw("garbage\r\n\r\n").close());
        let reply = Client::connect(public).await.get(&target).await;
        assert_eq!(reply.status, 502);
    }
    upstream.always(Reply::json("{}").behind(&gate));
    let sent = upstream.count();
    let mut held = Vec::new();
    for nth in 0..2 {
        let mut client = Client::connect(public).await;
        let target = format!("/held{nth}?{}", query(nth));
        client
            .send(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        held.push(client);
    }
    upstream.until_requests(sent + 2).await;
    let mut client = Client::connect(public).await;
    for nth in 0..REFUSED {
        let reply = client.get(&format!("/over{nth}?{}", query(nth))).await;
        assert_eq!(reply.problem()["reason"], "no_slot");
    }
    gate.open();
    for mut client in held {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    process.signal(Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    left.errors
}

#[tokio::test]
async fn a_client_over_its_share_adds_no_line_for_each_request() {
    let log = logged("info").await;
    assert!(!log.contains("/over"), "{log}");
    let lines = log.lines().count();
    assert!(lines < REFUSED / 2, "{lines} lines: {log}");
}

#[tokio::test]
async fn no_message_shows_a_query() {
    let log = logged("trace").await;
    let mut shown = String::new();
    for nth in 0..3 {
        write!(shown, "/garbage{nth} /over{nth} ").unwrap();
    }
    for path in shown.split_whitespace() {
        assert!(log.contains(&format!("\"{path}\"")), "{path} in {log}");
    }
    for secret in ["hush", "secret", "aZ3aZ3"] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}
