//! Cookies of one client, which no other client gets.

use super::{FRESH, is_hit, plain};
use crate::support::respect::ALL;
use crate::support::{Gateway, Reply, Upstream};

async fn cookies(gateway: &Gateway, target: &str) -> [Option<String>; 2] {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let answer = gateway.get(target).await;
        seen.push(answer.field("set-cookie").map(str::to_owned));
    }
    [seen.remove(0), seen.remove(0)]
}

/// An origin that gives each request a cookie of its own.
fn baking(upstream: &Upstream, fields: &'static str) {
    let count = std::sync::atomic::AtomicUsize::new(0);
    upstream.usually(move |_| {
        let nth = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let fields = format!("{fields}set-cookie: session={nth}\r\n");
        Reply::with(200, &fields, "body")
    });
}

#[tokio::test]
async fn a_cookie_is_not_stored_by_heuristic_freshness() {
    const OLD: &str = "last-modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n";
    const TAGGED: &str = "etag: \"one\"\r\ncache-control: no-cache\r\n";
    const PUBLIC: &str =
        "last-modified: Sat, 01 Jan 2000 00:00:00 GMT\r\ncache-control: public\r\n";
    for (fields, kept) in [
        (OLD, false),
        (TAGGED, false),
        (
            "expires: Sat, 01 Jan 2000 00:00:00 GMT\r\netag: \"one\"\r\n",
            false,
        ),
        ("cache-control: max-age=0\r\netag: \"one\"\r\n", false),
        (
            "cdn-cache-control: max-age=0\r\ncache-control: max-age=60\r\n",
            false,
        ),
        (FRESH, true),
        ("cache-control: s-maxage=60\r\n", true),
        ("cdn-cache-control: max-age=60\r\n", true),
        ("expires: Sat, 01 Jan 2101 00:00:00 GMT\r\n", true),
        (PUBLIC, true),
    ] {
        let upstream = Upstream::start();
        baking(&upstream, fields);
        let gateway = plain(&upstream).start();
        let [first, second] = cookies(&gateway, "/v").await;
        assert_eq!(first.as_deref(), Some("session=0"), "{fields}");
        let expected = if kept { "session=0" } else { "session=1" };
        assert_eq!(second.as_deref(), Some(expected), "{fields}");

        let never = ALL.replace("\"respect\"", "\"respect\", store_set_cookie = \"never\"");
        let upstream = Upstream::start();
        baking(&upstream, fields);
        let gateway = Gateway::with(&upstream, &never);
        let [_, second] = cookies(&gateway, "/v").await;
        assert_eq!(second.as_deref(), Some("session=1"), "{fields}");
    }
    // Without a cookie it is stored as before.
    let upstream = Upstream::start();
    upstream.always(Reply::with(200, OLD, "body"));
    let gateway = plain(&upstream).start();
    gateway.get("/v").await;
    assert!(is_hit(&gateway.get("/v").await));
}
