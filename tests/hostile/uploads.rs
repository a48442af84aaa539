//! Request bodies: malformed, aborted, or sent a byte at a time.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::respect::all_below;
use crate::support::{Gateway, ROUTES, Reply, Setup, Upstream, token, until, within};

/// More than the sockets' buffers take at once.
const LARGE: usize = 200 * 1024;

fn plain(setup: Setup) -> Setup {
    setup.config(&format!("{ROUTES}\n{}", all_below("plain")))
}

fn before(upstream: &Upstream) -> Gateway {
    plain(Setup::before(upstream)).start()
}

/// The honest client: a typed miss and a plain one are both answered.
async fn honest_is_served(gateway: &Gateway, number: usize) {
    assert_eq!(gateway.get(&token(number)).await.status, 200);
    let target = format!("/plain/{number}");
    assert_eq!(gateway.get(&target).await.status, 200);
}

async fn upstream_status(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["upstream"].clone()
}

/// That nothing which the clients did is held against the upstream.
async fn upstream_is_well(gateway: &Gateway) {
    until("no slot is held", || gateway.in_flight() == 0).await;
    let status = upstream_status(gateway).await;
    assert_eq!(status["endpoints"][0]["condition"], "sound");
    assert_eq!(status["endpoints"][0]["failed"], 0, "{status}");
    assert_eq!(
        (&status["failed"], &status["broken"]),
        (&0.into(), &0.into())
    );
}

#[tokio::test]
async fn malformed_uploads_are_400_and_leave_the_breaker_closed() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let chunked = [("transfer-encoding", "chunked")];
    let large = format!("{LARGE:x}\r\n{}\r\n", "x".repeat(LARGE));
    for (number, begun) in ["3\r\nabc\r\n", &large].into_iter().enumerate() {
        for _ in 0..12 {
            let mut client = gateway.client().await;
            client.send_request("POST", "/plain/upload", &chunked).await;
            client.send(begun).await;
            client.send("no chunk size\r\n").await;
            let answer = client.answer("POST").await;
            assert_eq!(answer.status, 400, "{answer:?}");
            assert_eq!(answer.field("connection"), Some("close"));
            answer.problem();
        }
        honest_is_served(&gateway, number).await;
        upstream_is_well(&gateway).await;
    }
    assert_eq!(upstream.count(), 4, "no upload has been sent");
}

#[tokio::test]
async fn dribbling_uploads_hold_no_slot() {
    let upstream = Upstream::start();
    let limits = "upstream.max_in_flight = 4";
    let gateway = plain(Setup::before(&upstream)).config(limits).start();
    let mut dribbling = Vec::new();
    for number in 0..8 {
        let mut client = gateway.client().await;
        let framing = match number % 2 {
            0 => ("content-length", "5"),
            _ => ("transfer-encoding", "chunked"),
        };
        let target = format!("/plain/upload/{number}");
        client.send_request("POST", &target, &[framing]).await;
        client.send(["he", "2\r\nhe\r\n"][number % 2]).await;
        dribbling.push(client);
    }
    for number in 0..8 {
        honest_is_served(&gateway, number).await;
    }
    assert_eq!(upstream.count(), 16, "no upload has begun");
    // The uploads are none the worse for having taken their time.
    for (number, client) in dribbling.iter_mut().enumerate() {
        client
            .send(["llo", "3\r\nllo\r\n0\r\n\r\n"][number % 2])
            .await;
        assert_eq!(client.answer("POST").await.status, 200);
    }
    let seen = upstream.seen();
    for seen in &seen[16..] {
        assert_eq!((&*seen.body, seen.whole), (&b"hello"[..], true));
        assert_eq!(seen.field("content-length").as_deref(), Some("5"));
        assert_eq!(seen.field("transfer-encoding"), None);
    }
    assert_eq!(seen.len(), 24);
    upstream_is_well(&gateway).await;
}

/// A GET with a body must not lead a collapsed fetch: the others would wait for
/// its body.
#[tokio::test]
async fn the_body_of_a_get_delays_no_other_client() {
    let upstream = Upstream::start();
    upstream.usually(|seen| {
        Reply::with(
            200,
            "cache-control: max-age=60\r\n",
            seen.method() + &seen.length.to_string(),
        )
    });
    let gateway = before(&upstream);
    let mut dribbling = gateway.client().await;
    dribbling
        .send_request("GET", "/plain/a", &[("content-length", "5")])
        .await;
    dribbling.send("he").await;
    until("it waits", || gateway.connections() == 1).await;
    let honest = gateway.get("/plain/b").await;
    assert_eq!(honest.status, 200);
    let honest = gateway.get("/plain/a").await;
    assert_eq!((honest.status, upstream.count()), (200, 2));
    dribbling.send("llo").await;
    assert_eq!(dribbling.answer("GET").await.status, 200);
}

/// An origin that answers before it has read the body, as one does that refuses
/// it.
#[tokio::test]
async fn an_answer_before_the_end_of_the_upload_is_forwarded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = plain(Setup::at(&url)).start();
    let mut client = gateway.client().await;
    let length = LARGE.to_string();
    client
        .send_request("POST", "/plain/upload", &[("content-length", &length)])
        .await;
    client.send("x".repeat(LARGE)).await;
    let (mut origin, _) = within("the upload", listener.accept()).await.unwrap();
    let mut head = [0; 64];
    within("its head", origin.read_exact(&mut head))
        .await
        .unwrap();
    let refusal =
        "HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large";
    origin.write_all(refusal.as_bytes()).await.unwrap();
    let answer = client.answer("POST").await;
    assert_eq!((answer.status, answer.text()), (413, "too large"));
    drop(client);
    upstream_is_well(&gateway).await;
}

/// An origin that closes the connection rather than read a large upload: it is
/// there, and what is uploaded is the client's choice.
#[tokio::test]
async fn an_origin_that_closes_on_large_uploads_stays_in_service() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let origin = tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = [0; 64];
            connection.read_exact(&mut head).await.unwrap();
            if head.starts_with(b"GET") {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                connection.write_all(answer.as_bytes()).await.unwrap();
                while connection.read(&mut head).await.is_ok_and(|n| n > 0) {}
            }
        }
    });
    let gateway = plain(Setup::at(&url)).start();
    let length = LARGE.to_string();
    for _ in 0..12 {
        let mut client = gateway.client().await;
        let fields = [("content-length", &*length)];
        client.send_request("POST", "/plain/upload", &fields).await;
        client.send("x".repeat(LARGE)).await;
        assert_eq!(client.answer("POST").await.status, 502);
    }
    honest_is_served(&gateway, 0).await;
    let status = upstream_status(&gateway).await;
    assert_eq!(status["endpoints"][0]["condition"], "sound");
    origin.abort();
}

/// Also after a reload has changed the bound.
#[tokio::test]
async fn an_upload_that_is_too_large_is_413() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let declared = [("expect", "100-continue"), ("content-length", "2001")];
    let chunked = [("transfer-encoding", "chunked")];
    let mut client = gateway.client().await;
    client
        .send_request("POST", "/plain/upload", &declared)
        .await;
    assert_eq!(client.answer("POST").await.status, 100);
    client.send("x".repeat(2001)).await;
    assert_eq!(client.answer("POST").await.status, 200);

    let smaller = "upstream.max_request_body = \"2000B\"";
    assert_eq!(gateway.reload(smaller).await.status, 200);
    // Its body is not requested.
    let answer = gateway.request("POST", "/plain/upload", &declared).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    answer.problem();
    let mut client = gateway.client().await;
    client.send_request("POST", "/plain/upload", &chunked).await;
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    client.send(chunk.repeat(3)).await;
    assert_eq!(client.answer("POST").await.status, 413);
    assert_eq!(upstream.count(), 1, "neither was sent");
    upstream_is_well(&gateway).await;
}
