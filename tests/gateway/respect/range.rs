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
