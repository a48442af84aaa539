//! Unsafe methods invalidate stored responses, by the rules of `cache::invalidate`.

use super::{is_hit, manual, ok};
use crate::support::{Gateway, Reply, Upstream};

async fn store(upstream: &Upstream, gateway: &Gateway, targets: &[&str]) {
    upstream.usually(|seen| ok(&["cache-control: max-age=60"], &seen.target()));
    for target in targets {
        gateway.get(target).await;
        assert!(is_hit(&gateway.get(target).await), "{target}");
    }
}

#[tokio::test]
async fn an_unsafe_method_that_succeeds_drops_its_target() {
    let upstream = Upstream::start();
    for (method, status, drops) in [
        ("POST", 200, true),
        ("UNHEARD-OF", 303, true),
        ("POST", 404, false),
        ("OPTIONS", 200, false),
    ] {
        let gateway = manual(&upstream);
        store(&upstream, &gateway, &["/v", "/v?q", "/w"]).await;
        upstream.once("/v", Reply::with(status, "", ""));
        let changed = gateway.request(method, "/v", &[]).await;
        assert_eq!(changed.status, status, "{method}");
        let what = format!("{method} {status}");
        assert_eq!(is_hit(&gateway.get("/v").await), !drops, "{what}");
        assert!(is_hit(&gateway.get("/v?q").await), "{what}");
        assert!(is_hit(&gateway.get("/w").await), "{what}");
    }
}
