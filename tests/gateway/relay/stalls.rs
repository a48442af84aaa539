//! Bodies of answers that stall: whether the upstream or the client is at fault,
//! and what each of them
//! gets.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::text;
use crate::respect::plain;
use crate::support::upstream::usual_body;
use crate::support::{Gate, Gateway, Reply, Setup, Upstream, until};

const OK: &str = "HTTP/1.1 200 OK\r\n";
const STORE: &str = "cache-control: max-age=60\r\n";
const NO_STORE: &str = "cache-control: no-store\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// Three failures open the breaker.
const SOON: &str = "upstream.breaker = { failures = 3, pause = \"60s\", max_pause = \"60s\" }";

fn grace(upstream: &Upstream, time: &str) -> Gateway {
    let grace = format!("upstream.response_body.grace = \"{time}\"");
    plain(upstream).config(&grace).config(SOON).start()
}

async fn endpoint(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["upstream"]["endpoints"][0].clone()
}

/// Waits until no request is in flight, and no target is being fetched.
async fn until_idle(gateway: &Gateway) {
    until("all is at rest", || {
        gateway.in_flight() == 0 && gateway.relayed() == 0
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stalls_breaks_off_and_counts_against_the_upstream() {
    let drip = Duration::from_millis(5);
    let rows = [
        Reply::raw(format!("{OK}{STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{NO_STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{STORE}{CHUNKED}\r\n4\r\nhalf\r\n")).hang(),
        Reply::raw(format!("{OK}{NO_STORE}content-length: 9999\r\n\r\nhalf"))
            .drip("~".repeat(9999), drip),
    ];
    for (row, reply) in rows.into_iter().enumerate() {
        let upstream = Upstream::start();
        let gateway = grace(&upstream, "300ms");
        upstream.always(reply);
        // Those who share it are two; each time it is the same.
        for number in 0..3 {
            let path = format!("/{number}");
            let began = Instant::now();
            let mut clients = [gateway.client().await, gateway.client().await];
            for client in &mut clients[..1 + usize::from(row == 0)] {
                client.send_request("GET", &path, &[]).await;
                let received = text(&client.some(1).await);
                assert!(received.starts_with('H'), "{row}: {received}");
            }
            for client in &mut clients[..1 + usize::from(row == 0)] {
                let received = client.received().await;
                assert!(received.text.contains("half"), "{row}: {received:?}");
                assert!(!received.is_whole, "{row}: {received:?}");
            }
            assert!(began.elapsed() >= Duration::from_millis(300), "{row}");
            until_idle(&gateway).await;
            assert_eq!(upstream.count(), number + 1, "{row}");
            let endpoint = endpoint(&gateway).await;
            assert_eq!(endpoint["failed"], number + 1, "{row}: {endpoint}");
            let failure = &endpoint["last_failure"];
            assert_eq!(failure["reason"], "connection_read_timeout", "{row}");
            assert_eq!(failure["kind"], "body_stalled", "{row}");
        }
        let status = gateway.get("/other").await.status;
        assert_eq!(status, 503, "{row}: the breaker is open");
    }
}

#[tokio::test]
async fn streams_may_pause() {
    let fields = [
        "content-type: text/event-stream\r\ncache-control: max-age=60\r\n".to_owned(),
        format!("content-type: application/x-ndjson\r\n{NO_STORE}"),
        // Nothing says for how long it is fresh.
        "content-type: application/x-ndjson\r\n".to_owned(),
        "cache-control: no-cache\r\n".to_owned(),
    ];
    for fields in fields {
        let upstream = Upstream::start();
        let gateway = grace(&upstream, "20ms");
        let gate = Gate::new();
        let begin = format!("{OK}{fields}{CHUNKED}\r\n1\r\n1\r\n");
        upstream.once("/v", Reply::raw(begin).then(&gate, "1\r\n2\r\n0\r\n\r\n"));
        let mut client = gateway.start_get("/v").await;
        upstream.until_requests(1).await;
        let began = Instant::now();
        until("a long pause", || {
            began.elapsed() > Duration::from_millis(300)
        })
        .await;
        gate.open();
        let answer = client.answer("GET").await;
        assert_eq!(answer.text(), "12", "{fields}");
        assert_eq!(endpoint(&gateway).await["failed"], 0, "{fields}");
    }
}

#[tokio::test]
async fn a_pause_of_a_client_is_not_a_stall_of_the_upstream() {
    for cached in [STORE, NO_STORE] {
        let upstream = Upstream::start();
        let gateway = grace(&upstream, "1s");
        // More than the sockets hold, and than may be stored.
        let body = "x".repeat(24 << 20);
        upstream.once("/v", Reply::with(200, cached, &body));
        let mut client = gateway.start_get("/v").await;
        upstream.until_requests(1).await;
        let began = Instant::now();
        until("the client pauses", || {
            began.elapsed() > Duration::from_millis(2500)
        })
        .await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.body.len(), body.len(), "{cached}");
        assert_eq!(endpoint(&gateway).await["failed"], 0, "{cached}");
    }
}

#[tokio::test]
async fn a_buffered_answer_that_stalls_is_fetched_from_another_endpoint() {
    const TYPED: &str = r#"
        [[route]]
        name = "token"
        path = "/tokens/{ticker}"
        params.ticker = { type = "ticker" }
        cache = { mode = "respect" }
    "#;
    let json = "content-type: application/json\r\n";
    for reply in [
        Reply::raw(format!("{OK}{json}content-length: 9\r\n\r\n{{")).hang(),
        Reply::raw(format!("{OK}{json}{CHUNKED}\r\n1\r\n{{\r\n")).hang(),
        Reply::raw(format!("{OK}{json}content-length: 9\r\n\r\n{{")).close(),
    ] {
        let upstreams = [Upstream::start(), Upstream::start()];
        let [preferred, other] = &upstreams;
        let gateway = Setup::before_all(&[preferred, other])
            .config(TYPED)
            .config("upstream.response_body.grace = \"300ms\"")
            .start();
        preferred.always(reply);
        let answer = gateway.get("/tokens/ordi").await;
        assert_eq!(answer.text(), usual_body("/tokens/ordi"));
        for upstream in &upstreams {
            let mut targets = upstream.targets();
            // The standby is probed.
            targets.retain(|target| target != "/");
            assert_eq!(targets, ["/tokens/ordi"]);
        }
        assert_eq!(endpoint(&gateway).await["failed"], 1);
        until_idle(&gateway).await;
    }
}
