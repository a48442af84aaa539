//! Compression on routes whose answers follow the origin's fields.

use super::{compress, count, decoded, text};
use crate::support::Upstream;
use crate::support::respect::{ok, typed};

const JSON: &str = "content-type: application/json";
const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip")];
const ORDI: &str = "/tokens/ordi";

#[tokio::test]
async fn the_origins_tag_is_extended_by_the_coding() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let fields = [
        JSON,
        "cache-control: max-age=60",
        "etag: \"one\"",
        "vary: x-some",
    ];
    upstream.once(ORDI, ok(&fields, &text(8000)));
    let miss = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(miss.all("vary"), ["accept-encoding", "x-some"]);
    assert_eq!(
        miss.must("etag"),
        "\"one\"",
        "it is altered only with the body"
    );
    compress(&gateway, ORDI, "gzip").await;
    let answer = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(answer.must("content-encoding"), "gzip");
    assert_eq!(answer.must("etag"), "\"one-gzip\"");
    assert_eq!(answer.number("content-length"), answer.body.len() as u64);
    assert_eq!(answer.all("vary"), ["accept-encoding", "x-some"]);
    assert_eq!(decoded(&answer), text(8000).as_bytes());
    let head = gateway.request("HEAD", ORDI, &GZIP).await;
    assert_eq!(head.must("content-length"), answer.must("content-length"));
    assert_eq!(head.must("etag"), "\"one-gzip\"");
    for known in ["\"one\"", "\"one-gzip\"", "\"one-br\"", "W/\"one-zstd\""] {
        for (accept, expected) in [("gzip", "\"one-gzip\""), ("identity", "\"one\"")] {
            let fields = [("accept-encoding", accept), ("if-none-match", known)];
            let same = gateway.request("GET", ORDI, &fields).await;
            assert_eq!((same.status, same.must("etag")), (304, expected), "{known}");
            assert_eq!(same.all("vary"), ["accept-encoding", "x-some"], "{known}");
        }
    }
    // A range is of the body as it is; a condition by the coding's tag does not hold.
    for (tag, status) in [("\"one\"", 206), ("\"one-gzip\"", 200)] {
        let range = [GZIP[0], ("range", "bytes=0-9"), ("if-range", tag)];
        let part = gateway.request("GET", ORDI, &range).await;
        assert_eq!(
            (part.status, part.field("content-encoding")),
            (status, None)
        );
        assert!(status == 200 || part.body == text(8000).as_bytes()[..10]);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_freshened_answer_keeps_its_compressed_body_and_a_replaced_one_loses_it() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let fields = [JSON, "cache-control: max-age=60", "etag: \"one\""];
    upstream.once(ORDI, ok(&fields, &text(8000)));
    gateway.get(ORDI).await;
    compress(&gateway, ORDI, "gzip").await;
    let fresh = "etag: \"one\"\r\ncache-control: max-age=90\r\n";
    upstream.once(ORDI, crate::support::Reply::with(304, fresh, ""));
    gateway.advance(61_000);
    let freshened = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(freshened.must("content-encoding"), "gzip");
    let seen = upstream.seen();
    let asked = seen[1].field("if-none-match");
    assert_eq!(asked.as_deref(), Some("\"one\""), "the origin's own tag");
    assert_eq!(count(&gateway, "made"), 1);
    // 200 with another body and the same tag.
    upstream.once(ORDI, ok(&fields, &text(6000)));
    gateway.advance(91_000);
    let other = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(other.field("content-encoding"), None);
    assert_eq!(other.body, text(6000).as_bytes());
    let stored = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(decoded(&stored), text(6000).as_bytes());
    assert_eq!(upstream.count(), 3);
}
