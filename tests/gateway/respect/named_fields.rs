//! Fields that `private` or `no-cache` names: they are for the client whose request
//! the origin answered, and for no other (RFC 9111 §5.2.2.4, §5.2.2.7).

use super::{did, is_hit, manual, ok};
use crate::support::{Answer, Upstream};

const DIRECTIVES: [&str; 2] = ["private", "no-cache"];

fn control(directive: &str) -> String {
    format!("cache-control: max-age=60, {directive}=\"Set-Cookie, x-user, content-length\"")
}

/// The values of the named fields, and of one that is for all.
fn values(answer: &Answer) -> [Vec<&str>; 3] {
    ["set-cookie", "x-user", "x-all"].map(|name| answer.all(name))
}

const FIELDS: [&str; 4] = [
    "set-cookie: a=1",
    "set-cookie: b=2",
    "x-user: joe",
    "x-all: 1",
];

fn own() -> [Vec<&'static str>; 3] {
    [vec!["a=1", "b=2"], vec!["joe"], vec!["1"]]
}

fn of_others() -> [Vec<&'static str>; 3] {
    [vec![], vec![], vec!["1"]]
}

#[tokio::test]
async fn named_fields_are_for_the_client_whose_request_was_answered() {
    for directive in DIRECTIVES {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let control = control(directive);
        let fields = [&[&*control], &FIELDS[..]].concat();
        upstream.always(ok(&fields, "body"));
        let first = gateway.get("/v").await;
        assert_eq!(did(&first), "fwd=uri-miss; fwd-status=200; stored");
        assert_eq!(values(&first), own(), "{directive}");
        assert_eq!(first.all("date").len(), 1);
        let hit = gateway.get("/v").await;
        assert!(is_hit(&hit), "{hit:?}");
        assert_eq!(values(&hit), of_others(), "{directive}");
        // A part of it, and what a HEAD or a refused storing passes on.
        let part = [("range", "bytes=0-1"), ("cache-control", "no-cache")];
        let part = gateway.request("GET", "/v", &part).await;
        assert_eq!((part.status, values(&part)), (206, own()), "{directive}");
        let fresh = [("cache-control", "no-store, no-cache")];
        let passed = gateway.request("GET", "/v", &fresh).await;
        assert_eq!(values(&passed), own(), "{directive}");
        assert_eq!(values(&gateway.get("/v").await), of_others(), "{directive}");
        assert_eq!(upstream.count(), 3);
    }
}
