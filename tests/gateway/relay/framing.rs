//! Malformed and ambiguous answers.

use super::is_refused;
use crate::respect::plain;
use crate::support::{Reply, Upstream};

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
