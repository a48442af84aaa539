//! Conditional requests, evaluated on stored responses.

use super::{is_hit, manual, ok};
use crate::support::Upstream;

const MODIFIED: &str = "Sat, 01 Nov 2025 00:00:00 GMT";
const BEFORE: &str = "Fri, 31 Oct 2025 23:59:59 GMT";
const AFTER: &str = "Sat, 01 Nov 2025 00:00:01 GMT";

#[tokio::test]
async fn etags_take_precedence_over_dates() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let modified = format!("last-modified: {MODIFIED}");
    let fields = [
        "cache-control: max-age=60",
        "etag: W/\"one\"",
        &modified,
        "vary: accept",
        "x-other: 1",
        "content-type: text/plain",
    ];
    upstream.always(ok(&fields, "body"));
    gateway.get("/v").await;
    let none_match = |value| ("if-none-match", value);
    let since = |value| ("if-modified-since", value);
    let rows: [(&[(&str, &str)], u16); 12] = [
        (&[none_match("\"one\"")], 304),
        (&[none_match("W/\"one\"")], 304),
        (&[none_match("\"two\", W/\"one\"")], 304),
        (&[none_match("\"two\""), none_match("\"one\"")], 304),
        (&[none_match("*")], 304),
        (&[none_match("\"two\"")], 200),
        (&[none_match("one")], 200),
        (&[since(MODIFIED)], 304),
        (&[since(AFTER)], 304),
        (&[since(BEFORE)], 200),
        (&[none_match("\"two\""), since(AFTER)], 200),
        (&[none_match("\"one\""), since(BEFORE)], 304),
    ];
    for (asked, status) in rows {
        for method in ["GET", "HEAD"] {
            let mut client = gateway.client().await;
            let answer = client.request(method, "/v", asked).await;
            assert_eq!(answer.status, status, "{method} {asked:?}");
            assert!(is_hit(&answer), "{method} {asked:?}");
            if status == 304 {
                assert_eq!(answer.must("etag"), "W/\"one\"");
                assert_eq!(answer.must("vary"), "accept");
                assert_eq!(answer.must("cache-control"), "max-age=60");
                assert_eq!(answer.must("date"), gateway.date(0));
                assert_eq!(answer.field("content-type"), None);
            }
            // What follows on the connection is not disturbed.
            assert_eq!(client.get("/v").await.text(), "body");
        }
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn preconditions_for_the_origin_are_forwarded() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&["cache-control: max-age=60", "etag: \"one\""], "body"));
    gateway.get("/v").await;
    for (at, field) in [("if-match", "\"x\""), ("if-unmodified-since", MODIFIED)]
        .into_iter()
        .enumerate()
    {
        upstream.once("/v", super::Reply::with(412, "", "no"));
        let answer = gateway.request("GET", "/v", &[field]).await;
        assert_eq!((answer.status, answer.text()), (412, "no"));
        let seen = &upstream.seen()[at + 1];
        assert_eq!(seen.field(field.0).unwrap(), field.1);
        assert!(is_hit(&gateway.get("/v").await), "what is stored stays");
    }
}

#[tokio::test]
async fn conditions_apply_to_successful_answers_only() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = "cache-control: max-age=60\r\netag: \"one\"\r\n";
    upstream.always(super::Reply::with(404, fields, "none"));
    gateway.get("/v").await;
    let asked = [("if-none-match", "\"one\"")];
    let answer = gateway.request("GET", "/v", &asked).await;
    assert_eq!((answer.status, answer.text()), (404, "none"));
    assert!(is_hit(&answer));
}
