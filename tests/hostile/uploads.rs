//! Request bodies: malformed, aborted, or sent a byte at a time.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::respect::all_below;
use crate::support::{Gateway, ROUTES, Reply, Setup, Upstream, token, until, within};

/// More than the sockets' buffers take at once.
const LARGE: usize = 200 * 1024;

const UPLOAD: &str = "/plain/upload";

fn plain(setup: Setup) -> Setup {
    setup.config(&format!("{ROUTES}\n{}", all_below("plain")))
}

/// The honest client's typed miss and plain one are both answered, and nothing that the
/// others did is held against the upstream.
async fn honest_is_served(gateway: &Gateway, number: usize) {
    for target in [token(number), format!("/plain/{number}")] {
        assert_eq!(gateway.get(&target).await.status, 200);
    }
    until("no slot is held", || gateway.in_flight() == 0).await;
    let status = gateway.status()["upstream"].clone();
    assert_eq!(status["endpoints"][0]["condition"], "sound");
}

#[tokio::test]
async fn malformed_uploads_are_400_and_leave_the_breaker_closed() {
    let upstream = Upstream::start();
    let gateway = plain(Setup::before(&upstream)).start();
    let large = format!("{LARGE:x}\r\n{}\r\n", "x".repeat(LARGE));
    for (number, begun) in ["3\r\nabc\r\n", &large].into_iter().enumerate() {
        for _ in 0..12 {
            let mut client = gateway.client().await;
            let chunked = [("transfer-encoding", "chunked")];
            client.send_request("POST", UPLOAD, &chunked).await;
            client.send(begun).await;
            client.send("no chunk size\r\n").await;
            let answer = client.answer("POST").await;
            assert_eq!(answer.status, 400, "{answer:?}");
            assert_eq!(answer.field("connection"), Some("close"));
            answer.problem();
        }
        honest_is_served(&gateway, number).await;
    }
    assert_eq!(upstream.count(), 4, "no upload has been sent");
    assert_eq!(gateway.figure("/upstream/results/failed"), 0);
}

#[tokio::test]
async fn dribbling_uploads_hold_no_slot() {
    let upstream = Upstream::start();
    let slots = "upstream.max_in_flight = 4";
    let gateway = plain(Setup::before(&upstream)).config(slots).start();
    let framings = [
        (("content-length", "5"), "he", "llo"),
        (
            ("transfer-encoding", "chunked"),
            "2\r\nhe\r\n",
            "3\r\nllo\r\n0\r\n\r\n",
        ),
    ];
    let mut dribbling = Vec::new();
    for (framing, first, rest) in framings.into_iter().cycle().take(8) {
        let mut client = gateway.client().await;
        client.send_request("POST", UPLOAD, &[framing]).await;
        client.send(first).await;
        dribbling.push((client, rest));
    }
    for number in 0..8 {
        honest_is_served(&gateway, number).await;
    }
    assert_eq!(upstream.count(), 16, "no upload has begun");
    // The uploads are none the worse for having taken their time.
    for (client, rest) in &mut dribbling {
        client.send(rest).await;
        assert_eq!(client.answer("POST").await.status, 200);
    }
    let seen = upstream.seen().split_off(16);
    assert_eq!(seen.len(), 8);
    for seen in seen {
        assert_eq!((&*seen.body, seen.whole), (&b"hello"[..], true));
        assert_eq!(seen.field("content-length").as_deref(), Some("5"));
        assert_eq!(seen.field("transfer-encoding"), None);
    }
}

/// A GET with a body must not lead a collapsed fetch: the others would wait for
/// its body.
#[tokio::test]
async fn the_body_of_a_get_delays_no_other_client() {
    let upstream = Upstream::start();
    upstream.always(Reply::with(200, "cache-control: max-age=60\r\n", "a"));
    let gateway = plain(Setup::before(&upstream)).start();
    let mut dribbling = gateway.client().await;
    let length = [("content-length", "5")];
    dribbling.send_request("GET", "/plain/a", &length).await;
    dribbling.send("he").await;
    until("it waits", || gateway.connections() == 1).await;
    for target in ["/plain/b", "/plain/a"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    assert_eq!(upstream.count(), 2);
    dribbling.send("llo").await;
    assert_eq!(dribbling.answer("GET").await.status, 200);
}

/// An origin that answers before it has read the body, as one does that refuses it; and one
/// that closes the connection, though it is there: what is uploaded is the client's choice.
#[tokio::test]
async fn an_origin_that_does_not_read_an_upload_stays_in_service() {
    let refusal =
        "HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large";
    for (answer, status) in [(refusal, 413), ("", 502)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let origin = tokio::spawn(async move {
            loop {
                let (mut connection, _) = listener.accept().await.unwrap();
                let mut head = [0; 64];
                connection.read_exact(&mut head).await.unwrap();
                let own = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
                let text = if head.starts_with(b"GET") {
                    own
                } else {
                    answer
                };
                connection.write_all(text.as_bytes()).await.unwrap();
                if !text.is_empty() {
                    while connection.read(&mut head).await.is_ok_and(|n| n > 0) {}
                }
            }
        });
        let gateway = plain(Setup::at(&url)).start();
        for _ in 0..12 {
            let mut client = gateway.client().await;
            let length = LARGE.to_string();
            let fields = [("content-length", &*length)];
            let asked = client.request_with_body("POST", UPLOAD, &fields);
            assert_eq!(within("an answer", asked).await.status, status);
        }
        honest_is_served(&gateway, 0).await;
        origin.abort();
    }
}

/// Also after a reload has changed the bound.
#[tokio::test]
async fn an_upload_that_is_too_large_is_413() {
    let upstream = Upstream::start();
    let gateway = plain(Setup::before(&upstream)).start();
    let declared = [("expect", "100-continue"), ("content-length", "2001")];
    let mut client = gateway.client().await;
    client.send_request("POST", UPLOAD, &declared).await;
    assert_eq!(client.answer("POST").await.status, 100);
    client.send("x".repeat(2001)).await;
    assert_eq!(client.answer("POST").await.status, 200);
    assert_eq!(upstream.seen()[0].field("expect"), None);

    let smaller = "upstream.max_request_body = \"2000B\"";
    assert_eq!(gateway.reload(smaller).await.status, 200);
    // Its body is not requested.
    let answer = gateway.request("POST", UPLOAD, &declared).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    answer.problem();
    let mut client = gateway.client().await;
    let chunked = [("transfer-encoding", "chunked")];
    client.send_request("POST", UPLOAD, &chunked).await;
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    client.send(chunk.repeat(3)).await;
    assert_eq!(client.answer("POST").await.status, 413);
    assert_eq!(upstream.count(), 1, "neither was sent");
}
