//! Answers that one client does not read, or that never end: other clients'
//! requests continue.

use crate::support::respect::ALL;
use crate::support::{Client, Gateway, Reply, Setup, Upstream, until};

const CLIENTS: usize = 32;
const LARGE: usize = 10 << 20;

/// Few slots, and a short queue time-out.
const NARROW: &str = r#"
    [upstream]
    max_in_flight = 8
    queue_timeout = "5s"
"#;

fn gateway(upstream: &Upstream) -> Gateway {
    Setup::before(upstream).config(ALL).config(NARROW).start()
}

async fn not_reading(gateway: &Gateway, clients: usize, target: &str) -> Vec<Client> {
    let mut hostile = Vec::new();
    for number in 0..clients {
        let mut client = Client::connect_narrow(gateway.public).await;
        client
            .send_request("GET", &format!("{target}{number}"), &[])
            .await;
        hostile.push(client);
    }
    hostile
}

/// An honest client's misses, all of which must be answered.
async fn honest(gateway: &Gateway) {
    let mut client = gateway.client().await;
    for number in 0..50 {
        let answer = client.get(&format!("/honest/{number}")).await;
        assert_eq!(answer.status, 200, "{number}: {}", answer.text());
    }
}

#[tokio::test]
async fn clients_that_do_not_read_hold_no_slots() {
    for control in ["no-store", "max-age=60"] {
        let upstream = Upstream::start();
        upstream.usually(move |seen| match seen.target().starts_with("/large") {
            true => {
                let fields = format!("cache-control: {control}\r\n");
                Reply::with(200, &fields, vec![b'x'; LARGE])
            }
            false => Reply::json("{}"),
        });
        let gateway = gateway(&upstream);
        let hostile = not_reading(&gateway, CLIENTS, "/large/").await;
        upstream.until_requests(8).await;
        honest(&gateway).await;
        drop(hostile);
        until("all slots are given back", || gateway.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn streams_without_end_hold_no_slots() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.target().starts_with("/events") {
        true => Reply::raw("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
            .hang(),
        false => Reply::json("{}"),
    });
    let gateway = gateway(&upstream);
    let mut hostile = not_reading(&gateway, 4, "/events/").await;
    for client in &mut hostile {
        client.some(1).await;
    }
    honest(&gateway).await;
}

#[tokio::test]
async fn a_slow_reader_does_not_slow_down_others_of_the_same_answer() {
    let upstream = Upstream::start();
    let body = vec![b'x'; LARGE];
    let mut reply =
        b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    for chunk in body.chunks(64 << 10) {
        reply.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        reply.extend_from_slice(chunk);
        reply.extend_from_slice(b"\r\n");
    }
    reply.extend_from_slice(b"0\r\n\r\n");
    let (head, rest) = reply.split_at(1 << 10);
    let gate = crate::support::Gate::new();
    upstream.always(Reply::raw(head).then(&gate, rest));
    // More than may be stored, so that it cannot all be held for the slow one.
    let gateway = Setup::before(&upstream)
        .config(ALL)
        .config("upstream.max_body_bytes = \"1MiB\"")
        .start();
    let mut slow = Client::connect_narrow(gateway.public).await;
    slow.send_request("GET", "/same", &[]).await;
    slow.some(10).await;
    let mut honest = gateway.start_get("/same").await;
    honest.some(0).await;
    gate.open();
    let answer = honest.answer("GET").await;
    assert_eq!((answer.status, answer.body.len()), (200, LARGE));
    assert_eq!(
        upstream.count(),
        2,
        "nothing is stored that it could wait for"
    );
}
