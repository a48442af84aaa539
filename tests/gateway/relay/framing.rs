//! Malformed and ambiguous answers.

use super::is_refused;
use crate::respect::plain;
use crate::support::wire::rows;
use crate::support::{Reply, Upstream};

/// The name, what the client gets, and what the upstream sends after its status line
/// and `cache-control`.
const ROWS: &str = r"
    plain | body | content-length: 4\r\n\r\nbody
    two lengths that agree | body | content-length: 4\r\ncontent-length: 4\r\n\r\nbody
    a list of lengths that agree | body | content-length: 4, 4\r\n\r\nbody
    two lengths that differ | refused | content-length: 4\r\ncontent-length: 5\r\n\r\nbody!
    a list of lengths that differ | refused | content-length: 4, 5\r\n\r\nbody!
    a length with a sign | refused | content-length: +4\r\n\r\nbody
    a length that is none | refused | content-length: four\r\n\r\nbody
    a length below zero | refused | content-length: -4\r\n\r\nbody
    a length beyond all | refused | content-length: 99999999999999999999\r\n\r\nbody
    chunks | body | transfer-encoding: chunked\r\n\r\n4;a=b\r\nbody\r\n0\r\n\r\n
    chunks and a length | body | content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n
    a length and chunks | body | transfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n4\r\nbody\r\n0\r\n\r\n
    a chunk size that is none | broken | transfer-encoding: chunked\r\n\r\nxyz\r\nbody\r\n0\r\n\r\n
    a chunk size with a sign | broken | transfer-encoding: chunked\r\n\r\n+4\r\nbody\r\n0\r\n\r\n
    a chunk size beyond all | broken | transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\nbody\r\n
    a chunk that is longer | broken | transfer-encoding: chunked\r\n\r\n4\r\nbody!\r\n0\r\n\r\n
    a folded field | refused | x-a: one\r\n two\r\ncontent-length: 4\r\n\r\nbody
    a space before the colon | refused | content-length : 4\r\n\r\nbody
    a NUL in a field | refused | x-a: o\0ne\r\ncontent-length: 4\r\n\r\nbody
    a bare CR in a field | refused | x-a: o\rne\r\ncontent-length: 4\r\n\r\nbody
    a field without a name | refused | : one\r\ncontent-length: 4\r\n\r\nbody
    a coding that we do not know | unread | transfer-encoding: gzip, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n
    a coding that is no coding | refused | transfer-encoding: xchunked\r\ncontent-length: 4\r\n\r\nbody
    chunks of chunks | unread | transfer-encoding: chunked, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n
    chunks in capitals | body | transfer-encoding: Chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n
";

#[tokio::test]
async fn a_malformed_answer_affects_no_other_request() {
    for [name, gets, rest] in rows(ROWS) {
        for control in ["no-store", "max-age=60"] {
            let what = format!("{name}, {control}");
            let upstream = Upstream::start();
            let gateway = plain(&upstream).start();
            let raw = format!("HTTP/1.1 200 OK\r\ncache-control: {control}\r\n{rest}");
            upstream.once("/v", Reply::raw(raw));
            let mut client = gateway.client().await;
            match &*gets {
                // This body, correctly framed.
                body @ "body" => {
                    for _ in 0..2 {
                        let answer = client.get("/v").await;
                        assert_eq!(answer.status, 200, "{what}");
                        if upstream.count() == 1 {
                            assert_eq!(answer.text(), body, "{what}");
                            let framed = answer.all("content-length").len()
                                + answer.all("transfer-encoding").len();
                            assert_eq!(framed, 1, "{what}: {answer:?}");
                            if let Some(length) = answer.field("content-length") {
                                assert_eq!(length, "4", "{what}");
                            }
                        }
                    }
                    continue;
                }
                // 502. After "unread" the connection may be used again, since the
                // end of the answer is known.
                "refused" | "unread" => {
                    let answer = client.get("/v").await;
                    assert!(is_refused(&answer), "{what}: {answer:?}");
                }
                // 502, or an answer that is visibly incomplete.
                _ => {
                    assert_eq!(gets, "broken", "{what}");
                    client
                        .send_request("GET", "/v", &[("connection", "close")])
                        .await;
                    let received = client.received().await;
                    let passes = received.status() == Some(200) && received.is_whole;
                    assert!(!passes, "{what}: {received:?}");
                }
            }
            // Nothing was stored, and nothing is left over for the next.
            upstream.always(Reply::with(200, "cache-control: no-store\r\n", "next"));
            let next = gateway.get("/v").await;
            assert_eq!((next.status, next.text()), (200, "next"), "{what}");
            let seen = upstream.seen();
            assert_eq!(seen.len(), 2, "{what}");
            let reused = seen[0].connection == seen[1].connection;
            assert!(!reused || gets == "unread", "{what}");
        }
    }
}

#[tokio::test]
async fn malformed_answers_get_502() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(300_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(5_000));
    for raw in [
        "just text, and no status line\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\ncontent-length: 0\r\n\r\n",
        "ICY 200 OK\r\ncontent-length: 0\r\n\r\n",
        "\0\0\0\0\r\n\r\n",
        &huge,
        &many,
    ] {
        let upstream = Upstream::start();
        let gateway = plain(&upstream).start();
        upstream.once("/v", Reply::raw(raw).close());
        let answer = gateway.request("POST", "/v", &[]).await;
        let start: String = raw.chars().take(30).collect();
        assert!(is_refused(&answer), "{start}: {answer:?}");
        assert_eq!(gateway.get("/v").await.status, 200, "{start}");
    }
}

/// HTTP/1.0 has no chunks (RFC 9112 §6.1).
#[tokio::test]
async fn chunked_http_1_0_answers_are_refused() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let raw = "HTTP/1.0 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
               4\r\nbody\r\n0\r\n\r\n";
    upstream.once("/v", Reply::raw(raw).close());
    let answer = gateway.get("/v").await;
    assert!(is_refused(&answer), "{answer:?}");
    assert_eq!(gateway.get("/v").await.status, 200);
}

/// Bytes after an answer's end belong to no answer.
#[tokio::test]
async fn bytes_after_an_answer_answer_no_request() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let more = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
    for control in ["no-store", "max-age=60"] {
        let first = format!(
            "HTTP/1.1 200 OK\r\ncache-control: {control}\r\ncontent-length: 4\r\n\r\nbody{more}"
        );
        let target = format!("/{control}");
        upstream.once(&target, Reply::raw(first));
        assert_eq!(gateway.get(&target).await.text(), "body");
        for _ in 0..3 {
            let other = gateway.get("/other").await;
            assert!(!other.text().contains("smuggled"));
        }
    }
}

/// Lines that end in a bare LF may be accepted, but must mean the same to both
/// sides.
#[tokio::test]
async fn bare_line_feeds_are_read_once_or_refused() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let raw = "HTTP/1.1 200 OK\ncache-control: no-store\ncontent-length: 4\n\nbody";
    upstream.once("/v", Reply::raw(raw));
    let answer = gateway.get("/v").await;
    if answer.status == 200 {
        assert_eq!(answer.text(), "body");
    } else {
        assert!(is_refused(&answer), "{answer:?}");
    }
    assert_eq!(gateway.get("/v").await.status, 200);
}

/// ordgate requests no transfer coding but chunked: a body with another one is
/// neither forwarded as if it were plain nor stored.
#[tokio::test]
async fn other_transfer_codings_than_chunked_are_refused() {
    for coding in [
        "xyz",
        "gzip",
        "X-Gzip",
        "deflate",
        "xyz, gzip",
        "identity",
        "",
    ] {
        let upstream = Upstream::start();
        let gateway = plain(&upstream).start();
        let raw = format!(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: {coding}\r\n\r\nbody"
        );
        upstream.once("/v", Reply::raw(raw).close());
        let answer = gateway.get("/v").await;
        assert!(is_refused(&answer), "{coding}: {answer:?}");
    }
}
