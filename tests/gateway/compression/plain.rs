//! Compression on routes whose answers follow the origin's fields.

use super::{compress, count, decoded, text};
use crate::support::respect::{ok, plain, typed};
use crate::support::{Upstream, until};

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
    let other = [("if-none-match", "\"one-deflate\"")];
    assert_eq!(gateway.request("GET", ORDI, &other).await.status, 200);
    // A range is of the body as it is; a condition by the coding's tag does not hold.
    let range = [GZIP[0], ("range", "bytes=0-9")];
    let part = gateway.request("GET", ORDI, &range).await;
    assert_eq!((part.status, part.field("content-encoding")), (206, None));
    assert_eq!(part.body, &text(8000).as_bytes()[..10]);
    assert_eq!(part.must("etag"), "\"one\"");
    for (tag, status) in [("\"one\"", 206), ("\"one-gzip\"", 200)] {
        let range = [GZIP[0], ("range", "bytes=0-9"), ("if-range", tag)];
        let part = gateway.request("GET", ORDI, &range).await;
        assert_eq!(
            (part.status, part.field("content-encoding")),
            (status, None)
        );
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
    // 200 with the same body.
    upstream.once(ORDI, ok(&fields, &text(8000)));
    gateway.advance(91_000);
    let same = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(same.must("content-encoding"), "gzip");
    // And with another.
    let fields = [JSON, "cache-control: max-age=60", "etag: \"two\""];
    upstream.once(ORDI, ok(&fields, &text(6000)));
    gateway.advance(61_000);
    let other = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(other.field("content-encoding"), None);
    assert_eq!(other.body, text(6000).as_bytes());
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn weak_tags_stay_and_forbidden_bodies_are_sent_as_they_are() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let control = "cache-control: max-age=60";
    upstream.once(
        "/tokens/weak",
        ok(&[JSON, control, "etag: W/\"w\""], &text(8000)),
    );
    gateway.get("/tokens/weak").await;
    compress(&gateway, "/tokens/weak", "gzip").await;
    let answer = gateway.request("GET", "/tokens/weak", &GZIP).await;
    assert_eq!(answer.must("content-encoding"), "gzip");
    assert_eq!(answer.must("etag"), "W/\"w\"");
    let control = "cache-control: max-age=60, no-transform";
    upstream.once("/tokens/fixed", ok(&[JSON, control], &text(8000)));
    upstream.once(
        "/tokens/small",
        ok(&[JSON, "cache-control: max-age=60"], &text(900)),
    );
    for path in ["/tokens/fixed", "/tokens/small"] {
        for _request in 0..4 {
            let answer = gateway.request("GET", path, &GZIP).await;
            assert_eq!(answer.field("content-encoding"), None, "{path}");
        }
    }
    let fields = [GZIP[0], ("cache-control", "no-transform")];
    let answer = gateway.request("GET", "/tokens/weak", &fields).await;
    assert_eq!(answer.field("content-encoding"), None);
    assert_eq!(count(&gateway, "made"), 1);
    assert_eq!(gateway.figure("/compression/waiting"), 0);
}

#[tokio::test]
async fn an_exact_cache_alters_nothing() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let fields = [JSON, "cache-control: max-age=60", "etag: \"one\""];
    upstream.once("/a", ok(&fields, &text(8000)));
    for _request in 0..4 {
        let answer = gateway.request("GET", "/a", &GZIP).await;
        assert_eq!(answer.field("content-encoding"), None);
        assert_eq!(
            (answer.field("vary"), answer.must("etag")),
            (None, "\"one\"")
        );
    }
    // That is another tag of the origin's.
    let known = [("if-none-match", "\"one-gzip\"")];
    assert_eq!(gateway.request("GET", "/a", &known).await.status, 200);
    assert_eq!(gateway.figure("/compression/codings/gzip/made"), 0);
}

#[tokio::test]
async fn a_part_in_a_coding_is_not_continued_by_date() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let modified = gateway.date(-3600);
    let dates = [
        format!("date: {}", gateway.date(0)),
        format!("last-modified: {modified}"),
    ];
    let fields = [JSON, "cache-control: max-age=600", &dates[0], &dates[1]];
    upstream.once(ORDI, ok(&fields, &text(8000)));
    gateway.get(ORDI).await;
    compress(&gateway, ORDI, "gzip").await;
    let whole = gateway.request("GET", ORDI, &GZIP).await;
    assert_eq!(whole.must("content-encoding"), "gzip");
    assert_eq!(whole.must("last-modified"), modified);
    // The connection breaks in the middle, and the client goes on from there. The date
    // does not say in which coding its part is.
    let range = [GZIP[0], ("range", "bytes=100-"), ("if-range", &*modified)];
    let rest = gateway.request("GET", ORDI, &range).await;
    assert_eq!((rest.status, rest.field("content-range")), (200, None));
    assert_eq!(decoded(&rest), text(8000).as_bytes());
    // A range that continues nothing is one of the body as it is.
    let part = gateway.request("GET", ORDI, &range[..2]).await;
    assert_eq!((part.status, part.field("content-encoding")), (206, None));
    assert_eq!(part.body, &text(8000).as_bytes()[100..]);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn conditions_and_the_method_come_before_a_range() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let fields = [JSON, "cache-control: max-age=600", "etag: \"one\""];
    upstream.once(ORDI, ok(&fields, &text(8000)));
    gateway.get(ORDI).await;
    compress(&gateway, ORDI, "gzip").await;
    let range = ("range", "bytes=0-9");
    for known in ["\"one-gzip\"", "\"one\""] {
        let fields = [GZIP[0], range, ("if-none-match", known)];
        let same = gateway.request("GET", ORDI, &fields).await;
        assert_eq!((same.status, same.must("etag")), (304, "\"one\""));
    }
    let fields = [GZIP[0], range, ("if-none-match", "\"two-gzip\"")];
    let part = gateway.request("GET", ORDI, &fields).await;
    assert_eq!((part.status, part.body.len()), (206, 10));
    let head = gateway.request("HEAD", ORDI, &[GZIP[0], range]).await;
    assert_eq!((head.status, head.must("etag")), (200, "\"one\""));
    assert_eq!(head.number("content-length"), text(8000).len() as u64);
    assert_eq!(head.field("content-range"), None);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_background_validation_is_no_request_for_a_coding() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let control = "cache-control: max-age=10, stale-while-revalidate=60";
    let fields = [JSON, control, "etag: \"one\""];
    upstream.once(ORDI, ok(&fields, &text(8000)));
    gateway.get(ORDI).await;
    gateway.advance(15_000);
    let fresh = format!("etag: \"one\"\r\n{control}\r\n");
    upstream.once(ORDI, crate::support::Reply::with(304, &fresh, ""));
    let stale = gateway.request("GET", ORDI, &GZIP).await;
    assert!(stale.must("cache-status").ends_with("hit; ttl=-5"));
    upstream.until_requests(2).await;
    until("it is validated", || gateway.relayed() == 0).await;
    assert_eq!(gateway.get(ORDI).await.number("age"), 0);
    // One after it in the same queue is compressed: that is all.
    let other = [JSON, "cache-control: max-age=600"];
    upstream.once("/tokens/last", ok(&other, &text(8000)));
    gateway.get("/tokens/last").await;
    compress(&gateway, "/tokens/last", "zstd").await;
    assert_eq!(count(&gateway, "made"), 1, "it was requested once");
}
