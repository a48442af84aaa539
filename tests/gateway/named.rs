//! Named upstreams: which route uses which, with which key; failures of one affect
//! its own routes only.

use crate::support::{BLOCK, Reply, Setup, TOKEN, TX, Upstream, token, within};

/// A gateway before a default upstream and one that has the runes API.
fn before(ordinals: &Upstream, runes: &Upstream) -> Setup {
    let url = runes.url();
    let setup = Setup::before(ordinals).keys("shared-key-of-a-test");
    setup.config(&format!("upstreams.runes.url = \"{url}\""))
}

fn block(number: usize) -> String {
    format!("/runes/v1/blocks/{}/activity", 840_000 + number)
}

#[tokio::test]
async fn each_route_uses_its_own_upstream_and_key() {
    for own in [None, Some("own-key-of-a-test")] {
        let (ordinals, runes) = (Upstream::start(), Upstream::start());
        let setup = before(&ordinals, &runes);
        let gateway = match own {
            None => setup.start(),
            Some(own) => setup.own_keys("runes", own).start(),
        };
        for path in [TOKEN, TX, BLOCK, TOKEN, BLOCK] {
            assert_eq!(gateway.get(path).await.status, 200, "{path}");
        }
        let status = gateway.status();
        let shared = "shared-key-of-a-test";
        for (name, upstream, sent, part, key) in [
            ("default", &ordinals, 1, "/ordinals/", shared),
            ("runes", &runes, 2, "/runes/", own.unwrap_or(shared)),
        ] {
            let seen = upstream.seen();
            assert_eq!(seen.len(), sent, "{name}");
            for seen in seen {
                assert!(seen.target().starts_with(part), "{}", seen.target());
                assert_eq!(seen.field("x-api-key").as_deref(), Some(key));
            }
            let shown = &status["upstreams"][name];
            assert_eq!(
                (&shown["url"], &shown["sent"]),
                (&upstream.url().into(), &sent.into())
            );
            let labels = format!("{{upstream=\"{name}\",result=\"answered\"}}");
            let line = format!("ordgate_upstream_results_total{labels} {sent}\n");
            let metrics = gateway.admin("/metrics").await;
            assert!(metrics.text().contains(&line), "{line}");
        }
        assert_eq!(status["upstream"], status["upstreams"]["default"]);
    }
}

/// Whether it fails, refuses the key that both have, or hangs with all that it may take of
/// their budget.
#[tokio::test]
async fn failures_of_one_upstream_do_not_affect_another() {
    let rows = [
        (Reply::nothing().close(), false, "broken"),
        (Reply::status(401, "{}"), false, "refusing"),
        (Reply::nothing().hang(), true, "refusing"),
    ];
    for (reply, hangs, condition) in rows {
        let (ordinals, runes) = (Upstream::start(), Upstream::start());
        let config = "upstream = { requests_per_second = 16, queue_timeout = \"20ms\" }";
        let gateway = before(&ordinals, &runes).config(config).manual().start();
        runes.always(reply);
        for round in 0..2 {
            let mut asked = Vec::new();
            for number in 0..16 {
                let mut client = gateway.client_from([127, 0, 1, number + 1]).await;
                let target = block(100 * round + usize::from(number));
                client.send_request("GET", &target, &[]).await;
                if !hangs {
                    assert!(matches!(client.answer("GET").await.status, 502 | 503));
                }
                asked.push(client);
            }
            if hangs {
                let has_all = async { while gateway.figure("/upstreams/runes/in_flight") < 8 {} };
                within("it hangs", has_all).await;
            }
            for number in 0..4 {
                let target = token(10 * round + number);
                assert_eq!(gateway.get(&target).await.status, 200, "{condition}");
            }
            gateway.advance(1_100);
        }
        let status = gateway.status();
        let [one, other] = ["runes", "default"].map(|name| &status["upstreams"][name]);
        assert_eq!(one["endpoints"][0]["condition"], condition, "{status}");
        assert_eq!(other["endpoints"][0]["condition"], "sound", "{status}");
        let results = &other["results"];
        assert_eq!([&results["failed"], &results["answered"]], [0, 8]);
    }
}

#[tokio::test]
async fn an_answer_of_one_upstream_is_not_served_for_another() {
    let (one, other) = (Upstream::start(), Upstream::start());
    one.always(Reply::json("{\"of\":\"one\"}"));
    other.always(Reply::json("{\"of\":\"other\"}"));
    let gateway = before(&one, &other).start();
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"other\"}");
    assert_eq!(gateway.get(TOKEN).await.text(), "{\"of\":\"one\"}");
    // The tip of the runes goes to the default one and back, and its routes with it.
    for (tip, expected, sent) in [("default", "one", 1), ("runes", "other", 2)] {
        let reload = gateway
            .reload(&format!("chain.tip.runes.upstream = \"{tip}\""))
            .await;
        let lost = reload.json()["notes"].to_string();
        assert!(lost.contains("block") && !lost.contains("token"), "{lost}");
        let answer = gateway.get(BLOCK).await;
        assert_eq!(answer.text(), format!("{{\"of\":\"{expected}\"}}"));
        let hit = gateway.get(TOKEN).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
        assert_eq!(other.count(), sent);
    }
}
