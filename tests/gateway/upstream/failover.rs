//! Several base URLs: if the preferred endpoint fails, lags or is no indexer, another is
//! used. Which one is chosen stands in `upstream::selection`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::{endpoint, key, metric, until_idle};
use crate::respect::ALL;
use crate::support::gateway::urls;
use crate::support::upstream::usual_body;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

/// So many requests find that an endpoint does not answer.
const TEN: usize = 10;

/// The tokens that an upstream got requests for, without status paths and standby
/// probes.
fn tokens(upstream: &Upstream) -> usize {
    let targets = upstream.targets().into_iter();
    targets.filter(|target| target.contains("/tokens/")).count()
}

fn pair() -> [Upstream; 2] {
    [Upstream::start(), Upstream::start()]
}

/// Nothing is sent again to where it has failed.
fn before([one, other]: &[Upstream; 2]) -> Setup {
    let setup = Setup::before_all(&[one, other]).keys("a-key").manual();
    setup.config("upstream.retry = false")
}

/// The position of the endpoint that is in use.
fn in_use(gateway: &Gateway) -> usize {
    usize::from(endpoint(gateway, 0)["selected"] != true)
}

/// Status paths that say this height, and tokens.
fn at_height(upstream: &Upstream, height: &Arc<AtomicU64>) {
    let height = height.clone();
    upstream.usually(move |seen| match seen.target() {
        target if target.ends_with("/v1/") => {
            let height = height.load(SeqCst);
            Reply::json(format!(r#"{{"status":"ready","block_height":{height}}}"#))
        }
        target => Reply::json(usual_body(&target)),
    });
}

/// The shipped routes before two at these heights, whose tips are asked for often.
fn chained(upstreams: &[Upstream; 2], heights: [u64; 2]) -> (Gateway, [Arc<AtomicU64>; 2]) {
    let heights = heights.map(|height| Arc::new(AtomicU64::new(height)));
    for (upstream, height) in upstreams.iter().zip(&heights) {
        at_height(upstream, height);
    }
    let often = "chain.tip.ordinals.every = \"100ms\"\nchain.tip.runes.every = \"100ms\"";
    let gateway = before(upstreams).chain().config(often).start();
    (gateway, heights)
}

#[tokio::test]
async fn if_the_preferred_endpoint_fails_the_other_answers_at_once() {
    let html = "content-type: text/html\r\n";
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{";
    let large = "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n";
    // With whether the breaker opens, and what clients get if it is not the endpoint's fault.
    let rows = [
        ("closed", true, None, Reply::nothing().close()),
        ("500", false, None, Reply::status(500, "{}")),
        ("410 for a target", false, None, Reply::status(410, "{}")),
        ("truncated", false, None, Reply::raw(cut).close()),
        ("HTML", false, None, Reply::with(200, html, "<html>")),
        (
            "redirect",
            false,
            None,
            Reply::with(302, "location: /\r\n", ""),
        ),
        ("silent", false, None, Reply::nothing().hang()),
        ("stalled", false, None, Reply::raw(cut).hang()),
        ("404", false, Some(404), Reply::status(404, "{}")),
        ("400", false, Some(400), Reply::status(400, "{}")),
        ("large", false, Some(502), Reply::raw(large).hang()),
    ];
    for (name, opens, own, reply) in rows {
        let upstreams = pair();
        let [preferred, other] = &upstreams;
        let is_slow = matches!(name, "silent" | "stalled");
        let times = "upstream.first_byte_timeout = \"1s\"\nupstream.silence_timeout = \"1s\"";
        let setup = before(&upstreams);
        let gateway = setup.config(if is_slow { times } else { "" }).start();
        preferred.always(reply);
        let requests = if opens { TEN + 2 } else { 3 };
        for number in 1..=if is_slow { 1 } else { requests } {
            let target = token(number);
            let answer = gateway.get(&target).await;
            match own {
                Some(status) => assert_eq!(answer.status, status, "{name}"),
                None => assert_eq!(answer.text(), usual_body(&target), "{name}"),
            }
            let asked = if opens { TEN.min(number) } else { number };
            let elsewhere = if own.is_some() { 0 } else { number };
            assert_eq!(
                upstreams.each_ref().map(tokens),
                [asked, elsewhere],
                "{name}"
            );
            let left = opens && number >= TEN;
            assert_eq!(in_use(&gateway), usize::from(left), "{name}");
        }
        assert_eq!(
            gateway.figure("/upstream/results/switches"),
            u64::from(opens),
            "{name}"
        );
        let condition = if opens { "broken" } else { "sound" };
        assert_eq!(endpoint(&gateway, 0)["condition"], condition, "{name}");
        assert_eq!(tokens(other) == 0, own.is_some());
    }
}

#[tokio::test]
async fn if_both_endpoints_fail_each_gets_one_request_and_the_client_an_error() {
    let upstreams = pair();
    let gateway = before(&upstreams).start();
    for upstream in &upstreams {
        upstream.always(Reply::nothing().close());
    }
    // The standby has been probed.
    until("the probe has ended", || {
        gateway.of_upstreams("answered") + gateway.of_upstreams("failed") == 1
    })
    .await;
    for number in 1..TEN {
        gateway.get(&token(number)).await.problem();
        assert_eq!(upstreams.each_ref().map(tokens), [number; 2]);
    }
    gateway.get(&token(TEN)).await;
    let answer = gateway.get(&token(TEN + 1)).await;
    assert_eq!(answer.status, 503, "both breakers are open");
    assert!(
        (1..=5).contains(&answer.number("retry-after")),
        "{answer:?}"
    );
}

/// What obeys the origin's fields passes on whatever an origin says; what it
/// could not say anything to goes elsewhere, if it is safe to repeat.
#[tokio::test]
async fn plain_requests_fail_over_if_that_is_safe() {
    let rows = [
        ("GET", Reply::nothing().reset(), 200, [1, 1]),
        ("HEAD", Reply::nothing().reset(), 200, [1, 1]),
        ("POST", Reply::nothing().reset(), 502, [1, 0]),
        ("PUT", Reply::nothing().close(), 502, [1, 0]),
        ("DELETE", Reply::nothing().hang(), 504, [1, 0]),
        ("GET", Reply::nothing().hang(), 200, [1, 1]),
        ("GET", Reply::status(500, "{}"), 500, [1, 0]),
        ("GET", Reply::status(410, "{}"), 410, [1, 0]),
    ];
    for (method, reply, expected, asked) in rows {
        let upstreams = pair();
        let setup = before(&upstreams).config(ALL);
        let gateway = setup
            .config("upstream.first_byte_timeout = \"300ms\"")
            .start();
        upstreams[0].always(reply);
        let answer = gateway.request(method, "/some/tokens/here", &[]).await;
        assert_eq!(answer.status, expected, "{method}");
        assert_eq!(upstreams.each_ref().map(tokens), asked, "{method}");
    }
}

#[tokio::test]
async fn a_standby_without_a_tip_is_well_whatever_it_answers() {
    let upstreams = pair();
    upstreams[1].always(Reply::with(404, "content-type: text/html\r\n", "<p>none"));
    let gateway = before(&upstreams)
        .config("builtin_routes = false")
        .config(ALL)
        .start();
    upstreams[1].until_requests(1).await;
    until("it has answered", || gateway.of_upstreams("answered") > 0).await;
    assert_eq!(gateway.of_upstreams("failed"), 0);
}

#[tokio::test]
async fn the_preferred_endpoint_is_used_again_after_its_probation() {
    let upstreams = pair();
    let [preferred, other] = &upstreams;
    let (gateway, heights) = chained(&upstreams, [840_000; 2]);
    until("a tip is known", || gateway.tips()[0].known).await;
    preferred.always(Reply::nothing().close());
    // The tip's requests find out.
    until("it is left", || in_use(&gateway) == 1).await;
    // It answers again: as a standby endpoint it is probed, which closes the breaker.
    at_height(preferred, &heights[0]);
    until("it is sound", || {
        endpoint(&gateway, 0)["condition"] == "sound"
    })
    .await;
    let turned = gateway.figure("/upstream/results/switches");
    for second in 0..30 {
        assert_eq!(gateway.get(&token(second)).await.status, 200);
        assert_eq!(in_use(&gateway), 1, "{second}");
        gateway.advance(1_000);
    }
    assert_eq!((tokens(preferred), tokens(other)), (0, 30));
    assert_eq!(gateway.get(&token(30)).await.status, 200);
    assert_eq!((tokens(preferred), tokens(other)), (1, 30));
    assert_eq!(gateway.figure("/upstream/results/switches"), turned + 1);
}

/// `/status` and metrics show each endpoint's height as well.
#[tokio::test]
async fn one_that_cannot_be_used_makes_no_other_lag() {
    let upstreams = pair();
    let (gateway, _tips) = chained(&upstreams, [840_000, 840_300]);
    let is = |condition: &str| endpoint(&gateway, 0)["condition"] == condition;
    until("the first lags", || is("lagging")).await;
    upstreams[1].usually(|_| Reply::status(500, "{}"));
    until("it lags behind nobody", || is("sound")).await;
}

#[tokio::test]
async fn an_endpoint_that_lags_is_not_used_while_another_is_sound() {
    #[rustfmt::skip]
    let rows = [
        // Their heights, which is used, how they stand.
        ([840_000, 840_002], 0, ["sound", "sound"], [2, 0]),
        ([840_000, 840_003], 1, ["lagging", "sound"], [3, 0]),
        ([840_009, 840_000], 0, ["sound", "lagging"], [0, 9]),
    ];
    for (heights, expected, conditions, lags) in rows {
        let upstreams = pair();
        let (gateway, tips) = chained(&upstreams, heights);
        let are_known = || {
            let is_known = |at: usize| {
                let end = endpoint(&gateway, at);
                end["condition"] == conditions[at] && end["lag_blocks"] == lags[at]
            };
            let tips = gateway.tips();
            is_known(0)
                && is_known(1)
                && in_use(&gateway) == expected
                && tips.iter().all(|t| t.known)
        };
        until("both heights are known", are_known).await;
        for number in 0..3 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(tokens(&upstreams[expected]), 3, "{heights:?}");
        assert_eq!(
            gateway.figure("/upstream/results/switches"),
            expected as u64,
            "{heights:?}"
        );
        for (at, upstream) in upstreams.iter().enumerate() {
            let labels = format!("{{upstream=\"default\",endpoint=\"{}\"", upstream.url());
            let name = format!("ordgate_upstream_selected{labels}}}");
            let asked = if at == expected { "1" } else { "0" };
            assert_eq!(metric(&gateway, &name).await, asked, "{heights:?}");
            let condition = format!("condition=\"{}\"", conditions[at]);
            let name = format!("ordgate_upstream_condition{labels},{condition}}}");
            assert_eq!(metric(&gateway, &name).await, "1", "{heights:?}");
        }
        // The other is asked where this one fails, and believed once its height is right.
        upstreams[expected].always(Reply::status(500, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 200, "{heights:?}");
        tips[1 - expected].store(heights[expected], SeqCst);
        let is_sound = || endpoint(&gateway, 1 - expected)["condition"] == "sound";
        until("it is believed", is_sound).await;
    }
}

/// No request pays two attempts.
#[tokio::test]
async fn an_endpoint_whose_status_path_fails_is_left() {
    let upstreams = pair();
    let (gateway, [height, _]) = chained(&upstreams, [840_000; 2]);
    let [preferred, other] = &upstreams;
    preferred.always(Reply::status(500, "{}"));
    until("it is left", || in_use(&gateway) == 1).await;
    let before = [tokens(preferred), tokens(other)];
    for number in 0..4 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    let after = [before[0], before[1] + 4];
    assert_eq!([tokens(preferred), tokens(other)], after);
    assert_eq!(endpoint(&gateway, 0)["condition"], "wrong");
    at_height(preferred, &height);
    let condition = || endpoint(&gateway, 0)["condition"].clone();
    until("it is sound", || condition() == "sound").await;
}

#[tokio::test]
async fn a_key_that_one_host_refuses_works_at_the_other() {
    let throttled = Reply::with(429, "retry-after: 60\r\n", "{}");
    for (reply, state) in [
        (Reply::status(401, "{}"), "quarantined"),
        (throttled, "cooling"),
    ] {
        let upstreams = pair();
        let [one, _] = &upstreams;
        let gateway = before(&upstreams).start();
        one.always(reply);
        for number in 0..5 {
            assert_eq!(gateway.get(&token(number)).await.status, 200, "{state}");
        }
        assert_eq!(upstreams.each_ref().map(tokens), [1, 5], "{state}");
        assert_eq!(key(&gateway, 0)["state"], state);
        assert_eq!(endpoint(&gateway, 0)["condition"], "refusing", "{state}");
        // In time it is tried again.
        one.always(Reply::json("{}"));
        gateway.advance(60_000);
        assert_eq!(gateway.get(TOKEN).await.status, 200);
        until_idle(&gateway, state).await;
    }
}

/// Such as after a reload that changes the order of the URLs, and takes one away.
#[tokio::test]
async fn a_reload_moves_requests_and_leaves_those_under_way_where_they_are() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let gateway = before(&upstreams).start();
    let gate = Gate::new();
    one.once(TOKEN, Reply::json(r#"{"from":"one"}"#).behind(&gate));
    let mut client = gateway.start_get(TOKEN).await;
    until("it is sent", || tokens(one) == 1).await;
    for (number, (list, asked)) in [(urls(&[other, one]), 1), (urls(&[other]), 2)]
        .iter()
        .enumerate()
    {
        assert_eq!(gateway.reload(list).await.status, 200);
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        assert_eq!((tokens(one), tokens(other)), (1, *asked));
        assert_eq!(gateway.status()["upstream"]["url"], other.url());
    }
    gate.open();
    assert_eq!(client.answer("GET").await.text(), r#"{"from":"one"}"#);
}
