//! Fields that `private` or `no-cache` names: they are for the client whose request
//! the origin answered, and for no other (RFC 9111 §5.2.2.4, §5.2.2.7).

use super::{did, is_hit, manual, ok};
use crate::support::Upstream;

#[tokio::test]
async fn named_fields_are_for_the_client_whose_request_was_answered() {
    for directive in ["private", "no-cache"] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let control = format!("cache-control: max-age=60, {directive}=\"Set-Cookie, x-user\"");
        let fields = [
            &*control,
            "set-cookie: a=1",
            "set-cookie: b=2",
            "x-user: joe",
            "x-all: 1",
        ];
        upstream.always(ok(&fields, "body"));
        let first = gateway.get("/v").await;
        assert_eq!(did(&first), "fwd=uri-miss; fwd-status=200; stored");
        // A part of it, and what a refused storing passes on.
        let part = [("range", "bytes=0-1"), ("cache-control", "no-cache")];
        let part = gateway.request("GET", "/v", &part).await;
        let passed = [("cache-control", "no-store, no-cache")];
        let passed = gateway.request("GET", "/v", &passed).await;
        for answer in [first, part, passed] {
            assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"], "{directive}");
            assert_eq!(answer.all("x-user"), ["joe"], "{directive}");
        }
        let hit = gateway.get("/v").await;
        assert!(is_hit(&hit), "{hit:?}");
        let own = [hit.all("set-cookie"), hit.all("x-user")].concat();
        assert_eq!((own.len(), hit.all("x-all")), (0, vec!["1"]), "{directive}");
    }
}
