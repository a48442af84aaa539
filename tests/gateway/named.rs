//! Named upstreams: which route uses which, with which key; failures of one affect
//! its own routes only.

use crate::support::{BLOCK, Reply, Setup, TOKEN, TX, Upstream, token};

/// A gateway before a default upstream and one that has the runes API.
fn before(ordinals: &Upstream, runes: &Upstream) -> Setup {
    let url = runes.url();
    Setup::before(ordinals).config(&format!("[upstreams.runes]\nurl = \"{url}\"\n"))
}

/// Targets of requests that an upstream has received.
fn paths(upstream: &Upstream) -> Vec<String> {
    let targets = upstream.targets().into_iter();
    targets
        .map(|target| target.split('?').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn each_route_uses_its_own_upstream() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let gateway = before(&ordinals, &runes).start();
    let mut client = gateway.client().await;
    for path in [TOKEN, TX, BLOCK, TOKEN, BLOCK] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(paths(&ordinals), [TOKEN]);
    assert_eq!(paths(&runes), [TX, BLOCK]);
    let status = gateway.admin("/status").await.json();
    for (name, url, sent) in [("default", ordinals.url(), 1), ("runes", runes.url(), 2)] {
        let upstream = &status["upstreams"][name];
        assert_eq!(upstream["url"], url, "{name}");
        assert_eq!(upstream["sent"], sent, "{name}");
        assert_eq!(upstream["queue"], 0, "{name}");
    }
    assert_eq!(status["upstream"], status["upstreams"]["default"]);
    let metrics = gateway.admin("/metrics").await;
    for line in [
        "ordgate_upstream_results_total{result=\"answered\",upstream=\"default\"} 1\n",
        "ordgate_upstream_results_total{result=\"answered\",upstream=\"runes\"} 2\n",
        "ordgate_upstream_queue{upstream=\"runes\"} 0.0\n",
    ] {
        assert!(metrics.text().contains(line), "{line}");
    }
}

#[tokio::test]
async fn keys_are_shared_unless_one_has_its_own() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    for (own, expected) in [
        (None, "shared-key-of-a-test"),
        (Some("own-key-of-a-test"), "own-key-of-a-test"),
    ] {
        let setup = before(&ordinals, &runes).keys("shared-key-of-a-test");
        let setup = match own {
            None => setup,
            Some(own) => setup.own_keys("runes", own),
        };
        let gateway = setup.start();
        gateway.get(TOKEN).await;
        gateway.get(BLOCK).await;
        let key = |upstream: &Upstream| upstream.seen().pop().unwrap().field("x-api-key");
        assert_eq!(key(&ordinals).unwrap(), "shared-key-of-a-test");
        assert_eq!(key(&runes).unwrap(), expected);
    }
}

#[tokio::test]
async fn failures_of_one_upstream_do_not_affect_another() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let gateway = before(&ordinals, &runes)
        .config("[cache]\nerror_ttl = \"1ms\"\nmax_error_ttl = \"1ms\"\n")
        .start();
    runes.always(Reply::nothing().close());
    let mut client = gateway.client().await;
    let mut refused = 0;
    for number in 0..20 {
        let block = format!("/runes/v1/blocks/{}/activity", 840_000 + number);
        let answer = client.get(&block).await;
        refused += usize::from(answer.status == 503);
        assert!(matches!(answer.status, 502 | 503), "{}", answer.text());
        assert_eq!(client.get(&token(number)).await.status, 200);
    }
    assert!(refused > 0, "the breaker of the one is open");
    let status = gateway.admin("/status").await.json();
    let state = |name: &str| status["upstreams"][name]["endpoints"][0]["condition"].clone();
    assert_eq!(
        (state("default"), state("runes")),
        ("sound".into(), "broken".into())
    );
    assert_eq!(status["upstreams"]["default"]["failed"], 0);
    assert_eq!(status["upstreams"]["default"]["answered"], 20);
    // A refused key is no other upstream's affair either.
    let gateway = before(&ordinals, &runes)
        .keys("shared-key-of-a-test")
        .start();
    runes.always(Reply::status(401, "{}"));
    for path in [BLOCK, TX] {
        assert_eq!(gateway.get(path).await.status, 502, "{path}");
    }
    assert_eq!(gateway.get(&token(21)).await.status, 200);
}

#[tokio::test]
async fn an_answer_of_one_upstream_is_not_served_for_another() {
    let (one, other) = (Upstream::start(), Upstream::start());
    one.always(Reply::json("{\"of\":\"one\"}"));
    other.always(Reply::json("{\"of\":\"other\"}"));
    let gateway = before(&one, &other).start();
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"other\"}");
    assert_eq!(gateway.get(TOKEN).await.text(), "{\"of\":\"one\"}");
    // The tip of the runes goes back to the default one, and its routes with it.
    let reload = gateway
        .reload("[chain.tip.runes]\nupstream = \"default\"\n")
        .await
        .json();
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"one\"}");
    assert_eq!(
        gateway.get(TOKEN).await.must("cache-status"),
        "ordgate; hit; ttl=9"
    );
    let kept = reload["routes"]["kept"].to_string();
    assert!(
        kept.contains("brc20-token") && !kept.contains("block"),
        "{reload}"
    );
    // And elsewhere again, by its URL.
    let (sent, url) = (other.count(), other.url());
    let moved =
        format!("[upstreams.runes]\nurl = \"{url}\"\n[chain.tip.runes]\nupstream = \"runes\"\n");
    gateway.reload(&moved).await;
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"other\"}");
    assert_eq!(other.count(), sent + 1);
}
