//! Ranges of stored responses.

use super::{did, is_hit, manual, ok};
use crate::support::{Answer, Gateway, Reply, Upstream};

/// A thousand bytes, each telling its place.
fn body() -> String {
    (0..250).map(|n| format!("{n:03}.")).collect()
}

async fn stored(upstream: &Upstream) -> Gateway {
    let gateway = manual(upstream);
    let fields = [
        "cache-control: max-age=60",
        "etag: \"one\"",
        "last-modified: Sat, 01 Nov 2025 00:00:00 GMT",
        "content-type: text/plain",
    ];
    upstream.always(ok(&fields, &body()));
    gateway.get("/v").await;
    gateway
}

async fn get_range(gateway: &Gateway, range: &str) -> Answer {
    let answer = gateway.request("GET", "/v", &[("range", range)]).await;
    assert!(is_hit(&answer), "{range}: {answer:?}");
    answer
}

#[tokio::test]
async fn one_range_gets_206() {
    let upstream = Upstream::start();
    let gateway = stored(&upstream).await;
    let body = body();
    for (range, first, last) in [
        ("bytes=0-0", 0, 0),
        ("bytes=100-199", 100, 199),
        ("bytes=990-", 990, 999),
        ("bytes=990-5000", 990, 999),
        ("bytes=-10", 990, 999),
        ("bytes=-5000", 0, 999),
        ("Bytes=5-6", 5, 6),
        // Near enough to be one.
        ("bytes=0-9,10-19", 0, 19),
        ("bytes=0-9,5000-6000", 0, 9),
    ] {
        let answer = get_range(&gateway, range).await;
        assert_eq!(answer.status, 206, "{range}");
        let expected = format!("bytes {first}-{last}/1000");
        assert_eq!(answer.must("content-range"), expected, "{range}");
        assert_eq!(answer.text(), &body[first..=last], "{range}");
        assert_eq!(answer.must("content-type"), "text/plain");
        assert_eq!(answer.must("etag"), "\"one\"");
        let length = answer.body.len() as u64;
        assert_eq!(answer.number("content-length"), length);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn several_ranges_get_multipart() {
    let upstream = Upstream::start();
    let gateway = stored(&upstream).await;
    let answer = get_range(&gateway, "bytes=0-3, 500-503, -4").await;
    assert_eq!(answer.status, 206);
    assert_eq!(answer.field("content-range"), None);
    let media = answer.must("content-type").to_owned();
    let boundary = media.strip_prefix("multipart/byteranges; boundary=");
    let boundary = boundary
        .unwrap_or_else(|| panic!("{media}"))
        .trim_matches('"');
    let text = answer.text().to_owned();
    let text = text
        .strip_suffix(&format!("--{boundary}--\r\n"))
        .unwrap_or(&text);
    let delimiter = format!("--{boundary}");
    let mut parts = text.split(&delimiter);
    assert_eq!(parts.next().map(str::trim), Some(""));
    for (range, content) in [("0-3", "000."), ("500-503", "125."), ("996-999", "249.")] {
        let part = parts.next().unwrap().to_ascii_lowercase();
        assert!(
            part.contains(&format!("content-range: bytes {range}/1000\r\n")),
            "{part}"
        );
        assert!(part.contains("content-type: text/plain\r\n"), "{part}");
        assert!(part.contains(&format!("\r\n\r\n{content}\r\n")), "{part}");
    }
}

#[tokio::test]
async fn a_malformed_range_is_ignored_and_an_unsatisfiable_one_gets_416() {
    let upstream = Upstream::start();
    let gateway = stored(&upstream).await;
    for range in ["lines=0-1", "bytes=5-2", "bytes=a-b", "bytes=", "bytes 0-1"] {
        let answer = get_range(&gateway, range).await;
        assert_eq!((answer.status, answer.body.len()), (200, 1000), "{range}");
    }
    for range in ["bytes=1000-", "bytes=5000-6000", "bytes=-0"] {
        let answer = get_range(&gateway, range).await;
        assert_eq!(answer.status, 416, "{range}");
        assert_eq!(answer.must("content-range"), "bytes */1000");
        assert!(answer.body.is_empty());
    }
    // A range is for GET.
    let head = gateway
        .request("HEAD", "/v", &[("range", "bytes=0-1")])
        .await;
    assert_eq!((head.status, head.must("content-length")), (200, "1000"));
}

#[tokio::test]
async fn if_range_needs_the_same_representation() {
    let upstream = Upstream::start();
    let gateway = stored(&upstream).await;
    for (condition, status) in [
        ("\"one\"", 206),
        ("\"two\"", 200),
        ("W/\"one\"", 200),
        ("Sat, 01 Nov 2025 00:00:00 GMT", 206),
        ("Sat, 01 Nov 2025 00:00:01 GMT", 200),
        ("nonsense", 200),
    ] {
        let fields = [("range", "bytes=0-3"), ("if-range", condition)];
        let answer = gateway.request("GET", "/v", &fields).await;
        assert_eq!(answer.status, status, "{condition}");
    }
    // A condition that says 304 counts before the range.
    let fields = [("range", "bytes=0-3"), ("if-none-match", "\"one\"")];
    let answer = gateway.request("GET", "/v", &fields).await;
    assert_eq!(answer.status, 304);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_206_of_the_origin_is_forwarded_and_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = "cache-control: max-age=60\r\ncontent-range: bytes 0-3/8\r\n";
    upstream.once("/v", Reply::with(206, fields, "half"));
    let asked = [("range", "bytes=0-3")];
    let answer = gateway.request("GET", "/v", &asked).await;
    assert_eq!((answer.status, answer.text()), (206, "half"));
    assert_eq!(did(&answer), "fwd=uri-miss; fwd-status=206");
    assert_eq!(upstream.seen()[0].field("range").unwrap(), "bytes=0-3");
    upstream.once("/v", ok(&["cache-control: max-age=60"], "half and"));
    assert_eq!(gateway.get("/v").await.text(), "half and");
}
