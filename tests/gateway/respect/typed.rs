//! Mode `respect` on a typed route: the origin's fields decide the freshness, and
//! no field of the client is forwarded.

use super::{did, is_hit, ok};
use crate::support::respect::typed;
use crate::support::{Reply, Upstream};

const JSON: &str = "content-type: application/json";

#[tokio::test]
async fn typed_routes_use_the_origins_freshness_and_ordgates_fields() {
    let upstream = Upstream::start();
    let gateway = typed(&upstream);
    let fields = [
        JSON,
        "cache-control: max-age=60",
        "set-cookie: a=b",
        "server: telling",
        "vary: x-some",
        "etag: \"one\"",
    ];
    upstream.once("/tokens/ordi", ok(&fields, "{\"a\":1}"));
    let own = [("cookie", "mine"), ("x-some", "1"), ("x-api-key", "mine")];
    let first = gateway.request("GET", "/tokens/ORDI", &own).await;
    assert_eq!((first.status, first.text()), (200, "{\"a\":1}"));
    assert_eq!(did(&first), "fwd=uri-miss; fwd-status=200; stored");
    for name in ["set-cookie", "server"] {
        assert_eq!(first.field(name), None, "{name}");
    }
    for name in ["access-control-allow-origin", "x-request-id", "ratelimit"] {
        assert!(first.field(name).is_some(), "{name}");
    }
    for (name, value) in [("etag", "\"one\""), ("cache-control", "max-age=60")] {
        assert_eq!(first.field(name), Some(value));
    }
    // What nothing of the client's went into cannot vary with the client.
    let other = gateway
        .request("GET", "/tokens/%6Frdi", &[("x-some", "2")])
        .await;
    assert!(is_hit(&other), "{other:?}");
    let head = gateway.request("HEAD", "/tokens/ordi", &[]).await;
    assert_eq!(head.field("content-length"), Some("7"));
    let same = gateway
        .request("GET", "/tokens/ordi", &[("if-none-match", "\"one\"")])
        .await;
    assert_eq!(same.status, 304);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].names(),
        ["accept", "accept-encoding", "host", "user-agent", "via"]
    );
}

#[tokio::test]
async fn failures_of_the_origin_become_problems_and_stale_answers_stand_in() {
    let upstream = Upstream::start();
    let failing = "cache-control: max-age=60\r\n";
    for reply in [
        Reply::with(500, failing, "telling"),
        Reply::with(302, "location: /x\r\n", ""),
    ] {
        let gateway = typed(&upstream);
        upstream.once("/tokens/ordi", reply);
        gateway.get("/tokens/ordi").await.problem();
        let fields = [JSON, "cache-control: max-age=1"];
        upstream.once("/tokens/ordi", ok(&fields, "{}"));
        assert_eq!(
            gateway.get("/tokens/ordi").await.status,
            200,
            "it is not kept"
        );
        gateway.advance(5_000);
        upstream.always(Reply::nothing().close());
        let stale = gateway.get("/tokens/ordi").await;
        assert_eq!((stale.status, stale.text()), (200, "{}"));
        assert!(did(&stale).contains("stale-if-error"), "{stale:?}");
    }
}
