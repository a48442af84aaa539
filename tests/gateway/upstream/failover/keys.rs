//! Keys at several endpoints: a key that one host refuses may be valid at another.

use super::super::{key, until_idle};
use super::switching::until_probed;
use super::{SOON, before, endpoint_in_use, endpoints, pair, switches, tokens};
use crate::support::upstream::usual_body;
use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token};

/// The keys that an upstream was sent.
pub(super) fn keys(upstream: &Upstream) -> Vec<Option<String>> {
    let seen = upstream.seen();
    let mut keys: Vec<_> = seen.iter().map(|seen| seen.field("x-api-key")).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[tokio::test]
async fn the_key_is_sent_to_every_endpoint_and_to_no_other_host() {
    let upstreams = pair();
    let stranger = Upstream::start();
    let gateway = before(&upstreams, "");
    let location = format!("location: {}/\r\n", stranger.url());
    upstreams[0].always(Reply::with(307, &location, ""));
    for number in 0..6 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    for upstream in &upstreams {
        assert_eq!(keys(upstream), [Some("a-key".to_owned())]);
    }
    assert_eq!(stranger.connections(), 0);
}

/// How the only key stands at each endpoint's host.
async fn key_at(gateway: &Gateway, upstream: &Upstream) -> String {
    let key = key(gateway, 0).await;
    let mut hosts = key["hosts"].as_array().unwrap().iter();
    let host = hosts.find(|host| host["host"] == upstream.url());
    host.map_or("unused".to_owned(), |host| {
        host["state"].as_str().unwrap().to_owned()
    })
}

#[tokio::test]
async fn a_key_that_one_host_refuses_works_at_the_other() {
    let rows = [
        ("401", Reply::status(401, "{}"), "quarantined"),
        (
            "429",
            Reply::with(429, "retry-after: 60\r\n", "{}"),
            "cooling",
        ),
        (
            "429 with nothing left",
            Reply::with(
                429,
                "retry-after: 60\r\nratelimit-remaining: 0\r\nratelimit-reset: 60\r\n",
                "{}",
            ),
            "cooling",
        ),
    ];
    for (name, reply, state) in rows {
        let upstreams = pair();
        let [one, other] = &upstreams;
        let gateway = before(&upstreams, "");
        one.always(reply);
        for number in 0..5 {
            let target = token(number);
            let answer = gateway.get(&target).await;
            assert_eq!(answer.text(), usual_body(&target), "{name}");
        }
        assert_eq!(upstreams.each_ref().map(tokens), [1, 5], "{name}");
        assert_eq!(key_at(&gateway, one).await, state, "{name}");
        assert_eq!(key_at(&gateway, other).await, "ready", "{name}");
        assert_eq!(endpoint_in_use(&gateway), 1, "{name}");
        assert_eq!(endpoints(&gateway)[0]["condition"], "refusing", "{name}");
        until_idle(&gateway, name).await;
        // The other one refuses it too: what is known here is that.
        other.always(Reply::status(401, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 502, "{name}");
        assert_eq!(key_at(&gateway, other).await, "quarantined", "{name}");
        // In time it is tried again at both.
        one.always(Reply::json("{}"));
        gateway.advance(60_000);
        assert_eq!(gateway.get(TOKEN).await.status, 200, "{name}");
        until_idle(&gateway, name).await;
    }
}

#[tokio::test]
async fn a_refused_key_is_quarantined_at_all_endpoints_of_its_host() {
    let rows = [
        ("401", Reply::status(401, "{}"), 502, "quarantined"),
        (
            "429",
            Reply::with(429, "retry-after: 60\r\n", "{}"),
            503,
            "cooling",
        ),
    ];
    for (name, reply, status, state) in rows {
        let upstream = Upstream::start();
        let urls = ["/a", "/b"].map(|path| format!("{}{path}", upstream.url()));
        let gateway = Setup::alone()
            .config(&format!("upstream.url = {urls:?}"))
            .config(SOON)
            .keys("a-key")
            .manual()
            .start();
        // It says nothing of the key before a client's request does.
        until_probed(&gateway).await;
        upstream.always(reply);
        for number in 0..4 {
            let answer = gateway.get(&token(number)).await;
            assert_eq!(answer.status, status, "{name}");
        }
        assert_eq!(tokens(&upstream), 1, "{name}");
        assert_eq!(key_at(&gateway, &upstream).await, state, "{name}");
        assert_eq!(switches(&gateway), 0, "{name}: it would be the same there");
    }
}
