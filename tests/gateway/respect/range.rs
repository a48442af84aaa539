//! Ranges: those of stored responses, whose rules are in `cache::range`, and those that the
//! origin answers.

use super::{did, is_hit, manual, ok};
use crate::support::{Reply, Upstream};

#[tokio::test]
async fn a_range_of_a_stored_response_gets_206() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let body: String = (0..250).map(|n| format!("{n:03}.")).collect();
    let fields = [
        "cache-control: max-age=60",
        "etag: \"one\"",
        "content-type: text/plain",
        "content-digest: sha-256=:AAAA:",
    ];
    upstream.always(ok(&fields, &body));
    gateway.get("/v").await;
    for (range, first, last) in [
        ("bytes=100-199", 100, 199),
        ("bytes=990-5000", 990, 999),
        ("bytes=-10", 990, 999),
    ] {
        let answer = gateway.request("GET", "/v", &[("range", range)]).await;
        assert!(is_hit(&answer), "{range}: {answer:?}");
        assert_eq!(answer.status, 206, "{range}");
        let expected = format!("bytes {first}-{last}/1000");
        assert_eq!(answer.must("content-range"), expected, "{range}");
        assert_eq!(answer.text(), &body[first..=last], "{range}");
        assert_eq!(answer.must("content-type"), "text/plain");
        assert_eq!(answer.must("etag"), "\"one\"");
        assert_eq!(answer.all("content-digest"), [""; 0], "it is of the whole");
        assert_eq!(answer.number("content-length"), answer.body.len() as u64);
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
