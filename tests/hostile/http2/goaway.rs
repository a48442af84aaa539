//! Connections that end with GOAWAY (RFC 9113 §6.8).

use std::io::Write;

use rustix::process::Signal;

use super::{HONEST, HOSTILE, WINDOW, stream};
use crate::support::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, frame, request,
};
use crate::support::{BLOCK, Client, Gate, Gateway, Process, Reply, TOKEN, Upstream, until};

const ENHANCE_YOUR_CALM: u32 = 11;
/// How many HEADERS a client sends at most: far more than the others' memory.
const FRAMES: u32 = 400_000;
/// By how much the memory of the process may grow meanwhile.
const GROWTH: u64 = 10 << 20;

/// The last stream and the code of the next GOAWAY.
async fn goaway(client: &mut FrameClient) -> (u32, u32) {
    let payload = client.next_of(GOAWAY).await.unwrap().payload;
    let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    (number(0), number(4))
}

/// h2 ignores streams above the one that GOAWAY names, and answers none of them. A
/// regression: the guard kept each for as long as an older stream was open.
#[tokio::test]
async fn headers_after_goaway_are_a_flood() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(BLOCK, Reply::json("{}").behind(&gate));
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let routes = crate::support::gateway::ROUTES;
    writeln!(config, "server.drain_timeout = \"60s\"\n{routes}").unwrap();
    let config = config.path().display().to_string();
    let (process, public, _admin) = Process::before(&upstream, &["--config", &config], &[]);
    let mut honest = FrameClient::connect_from(HONEST, public, &[]).await;
    honest.send(&request(1, BLOCK, &[])).await;
    let mut http1 = Client::connect_from(HONEST, public).await;
    http1.send_request("GET", BLOCK, &[]).await;
    upstream.until_requests(1).await;
    // A response that is never read keeps the connection open.
    let mut hostile = FrameClient::connect_from(HOSTILE, public, &[(WINDOW, 0)]).await;
    hostile.send(&request(1, TOKEN, &[])).await;
    hostile.next_of(HEADERS).await.unwrap();
    process.signal(Signal::TERM);
    assert_eq!(goaway(&mut hostile).await, (0x7fff_ffff, 0));
    let ping = hostile.next_of(PING).await.unwrap();
    hostile.send(&frame(PING, ACK, 0, &ping.payload)).await;
    assert_eq!(goaway(&mut hostile).await, (1, 0));
    let before = process.most_memory();
    let headers = |nth| frame(HEADERS, END_HEADERS | END_STREAM, stream(nth), &[]);
    let frames: Vec<_> = (1..=FRAMES).map(headers).collect();
    for some in frames.chunks(1000) {
        if !hostile.try_send(&some.concat()).await {
            break;
        }
    }
    // The client still writes at times when it is closed, and loses the code.
    let code = hostile.end().await.unwrap_or(ENHANCE_YOUR_CALM);
    assert_eq!(code, ENHANCE_YOUR_CALM);
    let after = process.most_memory();
    assert!(after < before + GROWTH, "{before} bytes, then {after}");
    // Those who wait for their answers get them.
    gate.open();
    assert_eq!(honest.next_of(DATA).await.unwrap().stream, 1);
    assert_eq!(http1.answer("GET").await.status, 200);
    drop((honest, http1));
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.errors.contains("control"), "{}", left.errors);
}

/// A client that is far away answers the PING of a drain late, or never. A regression:
/// it got no last stream, and could not retry a request that came too late.
#[tokio::test]
async fn the_last_stream_is_told_without_an_answer_to_ping() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.drain_timeout = \"60s\"");
    let mut client = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    client.send(&request(1, TOKEN, &[])).await;
    client.next_of(DATA).await.unwrap();
    gateway.server().drain();
    assert_eq!(goaway(&mut client).await, (0x7fff_ffff, 0));
    assert_eq!(goaway(&mut client).await, (1, 0));
    assert_eq!(client.end().await, None);
    drop(client);
    until("it is closed", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn a_head_that_is_late_ends_with_goaway() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.header_timeout = \"1s\"");
    let mut client = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    client.send(&request(1, TOKEN, &[])).await;
    client.next_of(DATA).await.unwrap();
    // A part of a frame's head.
    client.send(&[0, 0, 5]).await;
    assert_eq!(goaway(&mut client).await, (1, 0));
    assert_eq!(client.end().await, None);
}
