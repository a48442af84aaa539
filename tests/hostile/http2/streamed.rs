//! Responses that stream from the upstream to a client that does not read them.

use std::time::Duration;

use serde_json::Value;

use super::{HONEST, HOSTILE, WINDOW, stream};
use crate::support::frames::{DATA, FrameClient, HEADERS, request};
use crate::support::{Gateway, Reply, Setup, Upstream, respect, within};

const KIB: u64 = 1024;

/// A client may hold 1 MiB.
fn setup(upstream: &Upstream) -> Setup {
    respect::plain(upstream).config("limit.unsent_bytes = \"1MiB\"\ncache.max_bytes = \"64MiB\"")
}

/// 200 with a body in chunks, which has yet to begin.
fn chunked(cache_control: &str) -> Reply {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n";
    Reply::raw(format!("{head}cache-control: {cache_control}\r\n\r\n"))
}

fn chunk(length: usize) -> String {
    format!("{length:x}\r\n{}\r\n", "x".repeat(length))
}

/// Waits until the figures of `/status` are so: the bytes that are held, and how many
/// connections were reset for them.
async fn until_held(gateway: &Gateway, what: &str, holds: impl Fn(u64, u64) -> bool) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap();
    let wait = async {
        loop {
            let status = gateway.admin("/status").await.json();
            let bytes = number(&status["unsent"]["bytes"]);
            if holds(bytes, number(&status["connections"]["reset_unsent"])) {
                return bytes;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, wait).await
}

/// What comes from the upstream waits there until the client takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_responses_that_are_not_read_hold_next_to_nothing() {
    let upstream = Upstream::start();
    upstream.always(chunked("no-store").endless(chunk(16 * KIB as usize)));
    let gateway = setup(&upstream).start();
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[(WINDOW, 0)]).await;
    for nth in 0..20 {
        let target = format!("/{nth}");
        client.send(&request(stream(nth), &target, &[])).await;
        client.next_of(HEADERS).await.unwrap();
    }
    // Another client gets the same responses meanwhile.
    let mut honest = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    honest.send(&request(1, "/0", &[])).await;
    honest.next_of(DATA).await.unwrap();
    drop(honest);
    until_held(&gateway, "nearly nothing is held", |bytes, reset| {
        bytes <= 16 * KIB && reset == 0
    })
    .await;
}
