//! Several base URLs: where the preferred one fails, another answers; and which
//! of them is asked changes no more than it must.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use ordgate::sandbox::{Sandbox, Settings};
use ordgate::upstream::endpoint::EndpointSnapshot;
use serde_json::Value;
use tokio::time::Instant;

use super::{key, metric, rested};
use crate::chain;
use crate::respect::ALL;
use crate::support::gateway::urls;
use crate::support::upstream::{refusing, usual_body};
use crate::support::{
    Client, Gate, Gateway, Process, ROUTES, Reply, Setup, TOKEN, Upstream, token, until,
};

/// Three failures open a breaker; nothing is sent again to where it has failed.
const SOON: &str = r#"
    upstream.breaker = { failures = 3, pause = "1s", max_pause = "8s" }
    upstream.retry.limit = 0
"#;

/// Tips are asked for often, and so are those who stand by: thrice as seldom.
const OFTEN: &str = r#"
    chain.tip.ordinals.every = "100ms"
    chain.tip.runes.every = "100ms"
"#;

/// The tokens that an upstream was asked for: neither statuses nor what is asked
/// of those who stand by.
fn tokens(upstream: &Upstream) -> usize {
    let mut targets = upstream.targets();
    targets.retain(|target| target.contains("/tokens/"));
    targets.len()
}

fn fares(gateway: &Gateway) -> Vec<EndpointSnapshot> {
    gateway.server().current_gateway().upstreams.first().fares()
}

/// The place of the one that is asked.
fn asked(gateway: &Gateway) -> usize {
    let fares = fares(gateway);
    fares.iter().position(|fare| fare.is_present).unwrap()
}

fn switches(gateway: &Gateway) -> u64 {
    let present = gateway.server().current_gateway();
    present.upstreams.first().tally().switches.load(SeqCst)
}

async fn status(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["upstream"].clone()
}

fn pair() -> [Upstream; 2] {
    [Upstream::start(), Upstream::start()]
}

fn before(upstreams: &[Upstream; 2], config: &str) -> Gateway {
    let [one, other] = upstreams;
    let setup = Setup::before_all(&[one, other]).keys("a-key").manual();
    setup.config(SOON).config(config).start()
}

#[tokio::test]
async fn what_the_preferred_one_fails_at_the_other_answers_at_once() {
    let html = "content-type: text/html\r\n";
    let rows = [
        ("reset", Reply::nothing().reset()),
        ("closed", Reply::nothing().close()),
        ("500", Reply::status(500, "{}")),
        (
            "503 for long",
            Reply::with(503, "retry-after: 900\r\n", "{}"),
        ),
        ("silent", Reply::nothing().hang()),
        (
            "truncated",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
        ),
        ("garbage", Reply::raw("garbage\r\n\r\n").close()),
        ("HTML", Reply::with(200, html, "<html>")),
        ("redirect", Reply::with(302, "location: /\r\n", "")),
        (
            "stalled",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").hang(),
        ),
        (
            "stalled chunks",
            Reply::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n").hang(),
        ),
        (
            "slow",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")
                .drip(" ".repeat(9999), Duration::from_millis(5)),
        ),
    ];
    for (name, reply) in rows {
        let upstreams = pair();
        let [preferred, other] = &upstreams;
        let gateway = match name {
            "silent" => before(&upstreams, "upstream.first_byte_timeout = \"300ms\""),
            "stalled" | "stalled chunks" | "slow" => {
                before(&upstreams, "upstream.response_body.grace = \"300ms\"")
            }
            _ => before(&upstreams, ""),
        };
        preferred.always(reply);
        for number in 0..8 {
            let began = Instant::now();
            let target = token(number);
            let answer = gateway.get(&target).await;
            assert_eq!(answer.text(), usual_body(&target), "{name}");
            assert!(began.elapsed() < Duration::from_secs(10), "{name}");
            // One attempt that fails for each request, until it is left alone.
            assert_eq!(tokens(preferred), (number + 1).min(3), "{name}");
            assert_eq!(tokens(other), number + 1, "{name}");
            assert_eq!(asked(&gateway), usize::from(number >= 2), "{name}");
        }
        let told = status(&gateway).await;
        assert_eq!(told["switches"], 1, "{name}");
        assert_eq!(told["failed"], 0, "{name}: no request has");
        assert_eq!(told["endpoints"][0]["condition"], "broken", "{name}");
        rested(&gateway, name).await;
    }
}

#[tokio::test]
async fn nobody_at_the_preferred_one() {
    let (_held, address) = refusing();
    let other = Upstream::start();
    let gateway = Setup::alone()
        .config(&format!(
            "upstream.url = [\"http://{address}\", \"{}\"]",
            other.url()
        ))
        .config(SOON)
        .manual()
        .start();
    for number in 0..8 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    let told = status(&gateway).await;
    assert_eq!(told["endpoints"][0]["sent"], 3);
    assert_eq!(told["endpoints"][0]["failed"], 3);
    assert_eq!(tokens(&other), 8);
}

#[tokio::test]
async fn where_both_fail_the_client_is_told_and_each_was_asked_once() {
    let upstreams = pair();
    let gateway = before(&upstreams, "upstream.breaker.enabled = false");
    for upstream in &upstreams {
        upstream.always(Reply::status(500, "{}"));
    }
    for number in 0..4 {
        let answer = gateway.get(&token(number)).await;
        assert_eq!(answer.status, 502);
        answer.problem();
        let counts = upstreams.each_ref().map(tokens);
        assert_eq!(counts, [number + 1; 2]);
    }
    // Both are left alone.
    let gateway = before(&upstreams, "");
    let mut answer = gateway.get(&token(0)).await;
    for number in 1..8 {
        answer = gateway.get(&token(number)).await;
    }
    assert_eq!(answer.status, 503);
    assert!(
        (1..=2).contains(&answer.number("retry-after")),
        "{answer:?}"
    );
    rested(&gateway, "both").await;
}

#[tokio::test]
async fn what_is_no_fault_of_the_place_goes_nowhere_else() {
    let rows = [
        ("404", Reply::status(404, "{}"), 404),
        ("400", Reply::status(400, "{}"), 400),
        (
            "too large",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n").hang(),
            502,
        ),
    ];
    for (name, reply, expected) in rows {
        let upstreams = pair();
        let gateway = before(&upstreams, "");
        upstreams[0].always(reply);
        assert_eq!(gateway.get(TOKEN).await.status, expected, "{name}");
        assert_eq!(upstreams.each_ref().map(tokens), [1, 0], "{name}");
    }
}

/// Waits until the standby has been knocked at, where nothing else was asked.
async fn has_knocked(gateway: &Gateway) {
    let told = || {
        let gateway = gateway.server().first_gateway();
        let tally = gateway.upstreams.first().tally();
        tally.answered.load(SeqCst) + tally.failed.load(SeqCst) == 1
    };
    until("the knock has ended", told).await;
}

#[tokio::test]
async fn whatever_a_standby_says_to_a_knock_it_is_there() {
    let html = "content-type: text/html\r\n";
    let rows = [
        ("a page", Reply::with(200, html, "<html>"), "sound"),
        ("no page", Reply::with(404, html, "<html>"), "sound"),
        (
            "a redirect",
            Reply::with(302, "location: /docs\r\n", ""),
            "sound",
        ),
        (
            "nothing",
            Reply::raw("HTTP/1.1 204 No Content\r\n\r\n"),
            "sound",
        ),
        ("gone", Reply::status(410, "{}"), "sound"),
        ("503", Reply::status(503, "{}"), "broken"),
        ("reset", Reply::nothing().reset(), "broken"),
    ];
    for (name, reply, condition) in rows {
        let upstreams = pair();
        upstreams[1].once("/", reply);
        let gateway = before(&upstreams, "upstream.breaker.failures = 1");
        upstreams[1].asked(1).await;
        has_knocked(&gateway).await;
        assert_eq!(fares(&gateway)[1].condition.name(), condition, "{name}");
        assert_eq!(upstreams[1].targets(), ["/"], "{name}");
        rested(&gateway, name).await;
    }
}

/// A regression: who had to go elsewhere waited at the head of the line for a
/// place there, and all who wanted the one that is asked waited behind.
#[tokio::test]
async fn who_finds_no_place_elsewhere_holds_up_nobody() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let gateway = before(
        &upstreams,
        "upstream.max_in_flight = 1\nupstream.min_in_flight = 1\nupstream.queue_timeout = \"20s\"",
    );
    let gate = Gate::new();
    for number in 0..2 {
        one.once(&token(number), Reply::status(500, "{}"));
        other.once(&token(number), Reply::json("{}").behind(&gate));
    }
    let mut first = gateway.client().await;
    first.ask("GET", &token(0), &[]).await;
    until("the other is asked", || tokens(other) == 1).await;
    // The other has no place: it is as if there were none.
    let began = Instant::now();
    assert_eq!(gateway.get(&token(1)).await.status, 502);
    for number in 2..6 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(upstreams.each_ref().map(tokens), [6, 1]);
    gate.open();
    assert_eq!(first.answer("GET").await.status, 200);
    rested(&gateway, "no place").await;
}

/// It has had its turn: those who wait for the preferred one are not before it.
#[tokio::test]
async fn who_goes_elsewhere_does_not_stand_in_line_again() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let gateway = before(
        &upstreams,
        "upstream.max_in_flight = 2\nupstream.min_in_flight = 2\nupstream.queue_timeout = \"20s\"",
    );
    let [held, fails] = [Gate::new(), Gate::new()];
    one.always(Reply::json("{}").behind(&held));
    one.once(&token(0), Reply::status(500, "{}").behind(&fails));
    let mut clients = Vec::new();
    for number in 0..5 {
        let mut client = gateway.client().await;
        client.ask("GET", &token(number), &[]).await;
        clients.push(client);
        until("it is asked, or waits", || {
            let waiting = gateway
                .server()
                .first_gateway()
                .upstreams
                .first()
                .line()
                .len();
            tokens(one) + waiting == number + 1
        })
        .await;
    }
    fails.open();
    // Three wait, of whom one takes the place that it has left.
    assert_eq!(clients.remove(0).answer("GET").await.status, 200);
    assert_eq!(tokens(other), 1);
    held.open();
    for mut client in clients {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    rested(&gateway, "a line").await;
}

/// Status paths that say these heights, and tokens.
fn at_height(upstream: &Upstream, ordinals: &Arc<AtomicU64>, runes: &Arc<AtomicU64>) {
    let (ordinals, runes) = (ordinals.clone(), runes.clone());
    upstream.usually(move |seen| {
        let target = seen.target();
        let height = match &*target {
            "/ordinals/v1/" => &ordinals,
            "/runes/v1/" => &runes,
            _ => return Reply::json(usual_body(&target)),
        };
        let height = height.load(SeqCst);
        Reply::json(format!(r#"{{"status":"ready","block_height":{height}}}"#))
    });
}

fn height(height: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(height))
}

/// The shipped routes before two, whose tips are known.
fn chained(upstreams: &[Upstream; 2], config: &str) -> Gateway {
    let [one, other] = upstreams;
    let setup = Setup::before_all(&[one, other]).chain().keys("a-key");
    let setup = setup.config(SOON).config(OFTEN).config(config);
    setup.manual().start()
}

/// Waits for so many further statuses of each upstream.
async fn rounds(upstreams: &[Upstream; 2], more: usize) {
    let statuses = |upstream: &Upstream| upstream.count() - tokens(upstream);
    let before = upstreams.each_ref().map(statuses);
    until("probes of both", || {
        let now = upstreams.each_ref().map(statuses);
        now.iter()
            .zip(before)
            .all(|(now, before)| *now >= before + more)
    })
    .await;
}

#[tokio::test]
async fn the_preferred_one_is_returned_to_when_it_has_been_well_for_a_while() {
    let upstreams = pair();
    let tip = height(840_000);
    for upstream in &upstreams {
        at_height(upstream, &tip, &tip);
    }
    let [preferred, other] = &upstreams;
    let gateway = chained(&upstreams, "upstream.return_after = \"20s\"");
    rounds(&upstreams, 2).await;
    assert_eq!(asked(&gateway), 0);
    let mut number = 0;
    for (round, probation) in [20, 40].into_iter().enumerate() {
        preferred.always(Reply::status(500, "{}"));
        while asked(&gateway) == 0 {
            number += 1;
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        // It is well again; those who stand by are probed, until its breaker
        // has seen it. (Its pause is over by this clock alone.)
        at_height(preferred, &tip, &tip);
        gateway.advance(10_000);
        let sound = || fares(&gateway)[0].condition.name() == "sound";
        until("the preferred one is sound", sound).await;
        let (before, turned) = (tokens(preferred), switches(&gateway));
        for second in 0..probation {
            assert_eq!(asked(&gateway), 1, "{round}, {second}");
            number += 1;
            assert_eq!(gateway.get(&token(number)).await.status, 200);
            gateway.advance(1_000);
        }
        assert_eq!(tokens(preferred), before, "{round}: nobody went there");
        assert_eq!(switches(&gateway), turned, "{round}");
        // Its probation has ended.
        let begun = tokens(other);
        number += 1;
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        assert_eq!(asked(&gateway), 0, "{round}");
        assert_eq!(tokens(preferred), before + 1, "{round}");
        assert_eq!(tokens(other), begun, "{round}");
        assert_eq!(switches(&gateway), turned + 1, "{round}");
    }
    rested(&gateway, "returns").await;
}

#[tokio::test]
async fn the_one_that_lags_is_not_asked_while_another_is_there() {
    for (heights, most, expected, lags) in [
        ([840_000, 840_000], 2, 0, [0, 0]),
        ([840_000, 840_002], 2, 0, [2, 0]),
        ([840_000, 840_003], 2, 1, [3, 0]),
        ([840_009, 840_000], 2, 0, [0, 9]),
        ([840_000, 840_003], 3, 0, [3, 0]),
        ([840_000, 840_001], 0, 1, [1, 0]),
    ] {
        let upstreams = pair();
        let tips = heights.map(height);
        for (upstream, tip) in upstreams.iter().zip(&tips) {
            at_height(upstream, tip, tip);
        }
        let gateway = chained(&upstreams, &format!("upstream.max_lag = {most}"));
        let known = || {
            let fares = fares(&gateway);
            [fares[0].lag, fares[1].lag] == lags
        };
        rounds(&upstreams, 4).await;
        until("both heights are known", known).await;
        assert_eq!(asked(&gateway), expected, "{heights:?}");
        for number in 0..4 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(tokens(&upstreams[expected]), 4, "{heights:?}");
        assert_eq!(switches(&gateway), expected as u64, "{heights:?}");
        // Of the one that lags nobody is told to be rid of; it is asked where
        // the other fails.
        upstreams[expected].always(Reply::status(500, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 200, "{heights:?}");
        rested(&gateway, "lag").await;
    }
}

#[tokio::test]
async fn a_height_that_cannot_be_displaces_nobody() {
    for (heights, present) in [
        ([840_000, 4_000_000_000_u64], 0),
        ([4_294_967_295, 840_000], 1),
    ] {
        let upstreams = pair();
        let wrong = 1 - present;
        let tips = heights.map(height);
        for (upstream, tip) in upstreams.iter().zip(&tips) {
            at_height(upstream, tip, tip);
        }
        let gateway = chained(&upstreams, "");
        let known = || fares(&gateway)[wrong].condition.name() == "implausible";
        until("it is not believed", known).await;
        rounds(&upstreams, 6).await;
        assert_eq!(asked(&gateway), present, "{heights:?}");
        let told = status(&gateway).await;
        assert_eq!(told["switches"], present, "{heights:?}");
        assert_eq!(told["endpoints"][wrong]["condition"], "implausible");
        assert_eq!(told["endpoints"][present]["lag_blocks"], 0);
        let condition = format!(
            "ordgate_upstream_condition{{upstream=\"default\",endpoint=\"{}\",condition=\"implausible\"}}",
            upstreams[wrong].url()
        );
        assert_eq!(metric(&gateway, &condition).await, "1.0");
        for number in 0..3 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(tokens(&upstreams[present]), 3, "{heights:?}");
        // It is asked where the other fails, and believed when it is right again.
        upstreams[present].always(Reply::status(500, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 200, "{heights:?}");
        tips[wrong].store(840_001, SeqCst);
        let believed = || fares(&gateway)[wrong].condition.name() == "sound";
        until("it is believed", believed).await;
        rested(&gateway, "implausible").await;
    }
}

/// A regression: everything counted as deep below it until the next status.
#[tokio::test]
async fn a_height_that_cannot_be_is_no_tip() {
    let upstreams = pair();
    let tips = [840_000, 840_000].map(height);
    for (upstream, tip) in upstreams.iter().zip(&tips) {
        at_height(upstream, tip, tip);
    }
    let gateway = chained(&upstreams, "");
    rounds(&upstreams, 4).await;
    let gate = Gate::new();
    let held = gate.clone();
    upstreams[1].usually(move |_| Reply::json("{}").behind(&held));
    tips[0].store(4_000_000_000, SeqCst);
    until("it is left", || asked(&gateway) == 1).await;
    let told = gateway.admin("/status").await.json();
    for tip in told["chain"]["tips"].as_array().unwrap() {
        assert_eq!(tip["height"], 840_000, "{tip}");
    }
    gate.open();
    at_height(&upstreams[1], &tips[1], &tips[1]);
    tips[1].store(840_001, SeqCst);
    let gateway = &gateway;
    let follows = async || {
        let told = gateway.admin("/status").await.json();
        let mut tips = told["chain"]["tips"].as_array().unwrap().iter();
        tips.all(|tip| tip["height"] == 840_001)
    };
    while !follows().await {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_that_has_caught_up_is_returned_to_and_nothing_flaps_before() {
    let upstreams = pair();
    let (behind, ahead) = (height(840_000), height(840_005));
    at_height(&upstreams[0], &behind, &behind);
    at_height(&upstreams[1], &ahead, &ahead);
    let gateway = chained(&upstreams, "");
    until("it is left", || asked(&gateway) == 1).await;
    // Blocks come, and both follow.
    for block in 1..=3 {
        ahead.store(840_005 + block, SeqCst);
        behind.store(840_000 + block, SeqCst);
        rounds(&upstreams, 3).await;
        gateway.advance(40_000);
        rounds(&upstreams, 3).await;
        assert_eq!((asked(&gateway), switches(&gateway)), (1, 1));
    }
    behind.store(840_008, SeqCst);
    until("it has caught up", || fares(&gateway)[0].lag == 0).await;
    assert_eq!(asked(&gateway), 1);
    gateway.advance(29_000);
    assert_eq!(asked(&gateway), 1);
    gateway.advance(2_000);
    assert_eq!((asked(&gateway), switches(&gateway)), (0, 2));
}

#[tokio::test]
async fn where_each_lags_on_another_tip_nothing_flaps() {
    let upstreams = pair();
    let (low, high) = (height(840_000), height(840_010));
    at_height(&upstreams[0], &high, &low);
    at_height(&upstreams[1], &low, &high);
    let gateway = chained(&upstreams, "");
    let both = || fares(&gateway).iter().all(|fare| fare.lag == 10);
    until("both lag", both).await;
    // Which of them told its heights first is up to chance.
    let before = (asked(&gateway), switches(&gateway));
    for round in 0..8 {
        rounds(&upstreams, 1).await;
        gateway.advance(10_000);
        assert_eq!(gateway.get(&token(round)).await.status, 200);
        assert_eq!((asked(&gateway), switches(&gateway)), before);
    }
}

#[tokio::test]
async fn one_that_is_retired_is_left_and_an_alarm_is_given() {
    let [retired, other] = pair();
    retired.always(Reply::status(410, r#"{"telling":"gone"}"#));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let urls = urls(&[&retired, &other]);
    file.write_all(format!("{urls}\n{ROUTES}").as_bytes())
        .unwrap();
    let path = file.path().display().to_string();
    let variables = [("ORDGATE_API_KEYS", "a-key-of-ours")];
    let (process, public, admin) = Process::serve(&["--config", &path], &variables);
    let mut client = Client::connect(public).await;
    for number in 0..6 {
        let target = token(number);
        assert_eq!(client.get(&target).await.text(), usual_body(&target));
    }
    assert_eq!((tokens(&retired), tokens(&other)), (1, 6));
    let metrics = Client::connect(admin).await.get("/metrics").await;
    for (upstream, condition) in [(&retired, "retired"), (&other, "sound")] {
        let url = upstream.url();
        let labels =
            format!("{{upstream=\"default\",endpoint=\"{url}\",condition=\"{condition}\"}}");
        let line = format!("ordgate_upstream_condition{labels} 1.0");
        assert!(metrics.text().contains(&line), "{line}: {}", metrics.text());
    }
    process.signal(rustix::process::Signal::TERM);
    drop(client);
    let left = process.wait();
    let alarms = left.errors.lines().filter(|line| line.contains("410 Gone"));
    let alarms: Vec<_> = alarms.collect();
    assert_eq!(alarms.len(), 1, "{}", left.errors);
    assert!(alarms[0].contains("ERROR"), "{}", alarms[0]);
    assert!(alarms[0].contains(&retired.url()), "{}", alarms[0]);
    for secret in ["telling", "a-key-of-ours"] {
        assert!(!left.errors.contains(secret), "{}", left.errors);
    }
}

#[tokio::test]
async fn what_is_final_outlives_the_only_one_that_there_was() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = chain::acting(&sandbox);
    let gateway = chain::before(&upstream, SOON).await;
    let deep = chain::block(sandbox.tip().height - 60);
    let told = gateway.get(&deep).await;
    assert!(told.must("cache-control").contains("immutable"), "{told:?}");
    upstream.always(Reply::status(410, "{}"));
    for number in 0..6 {
        let answer = gateway.get(&token(number)).await;
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
        answer.problem();
    }
    let asked = upstream.count();
    // Hours later it is still there, and a hit.
    for _ in 0..3 {
        let answer = gateway.get(&deep).await;
        assert_eq!((answer.status, &answer.body), (200, &told.body));
        let said = answer.must("cache-status");
        assert!(said.starts_with("ordgate; hit; ttl="), "{said}");
        gateway.advance(3_600_000);
    }
    assert_eq!(upstream.count(), asked);
    let url = upstream.url();
    upstream.always(Reply::status(410, "{}"));
    gateway.get(&token(99)).await;
    let labels = format!("{{upstream=\"default\",endpoint=\"{url}\",condition=\"retired\"}}");
    let name = format!("ordgate_upstream_condition{labels}");
    assert_eq!(metric(&gateway, &name).await, "1.0");
}

/// The keys that an upstream was sent.
fn keys(upstream: &Upstream) -> Vec<Option<String>> {
    let seen = upstream.seen();
    let mut keys: Vec<_> = seen.iter().map(|seen| seen.field("x-api-key")).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[tokio::test]
async fn the_key_goes_to_each_of_them_and_to_nobody_else() {
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
        (
            "403 with nothing left",
            Reply::with(
                403,
                "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 60\r\n",
                "{}",
            ),
            "cooling",
        ),
        (
            "429 with nothing left and no retry-after",
            Reply::with(429, "x-ratelimit-remaining-minute: 0\r\n", "{}"),
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
        assert_eq!(asked(&gateway), 1, "{name}");
        assert_eq!(fares(&gateway)[0].condition.name(), "refusing", "{name}");
        rested(&gateway, name).await;
        // The other one refuses it too: what is known here is that.
        other.always(Reply::status(401, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 502, "{name}");
        assert_eq!(key_at(&gateway, other).await, "quarantined", "{name}");
        // In time it is tried again at both.
        one.always(Reply::json("{}"));
        gateway.advance(60_000);
        assert_eq!(gateway.get(TOKEN).await.status, 200, "{name}");
        rested(&gateway, name).await;
    }
}

#[tokio::test]
async fn a_key_that_is_refused_rests_at_all_endpoints_of_a_host() {
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
        has_knocked(&gateway).await;
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

#[tokio::test]
async fn reloads_that_change_the_urls_lose_nothing() {
    let [one, other] = pair();
    let setup = Setup::before(&one).keys("a-key").config(SOON);
    let gateway = setup.config("limit.enabled = false").start();
    let warm = token(0);
    assert_eq!(gateway.get(&warm).await.status, 200);
    let over = AtomicBool::new(false);
    let next = AtomicU64::new(1);
    let clients = (0..4).map(async |_| {
        let mut client = gateway.client().await;
        let mut answered = 0;
        while !over.load(SeqCst) {
            let number = next.fetch_add(1, SeqCst);
            let target = token(usize::try_from(number).unwrap());
            let answer = client.get(&target).await;
            assert_eq!((answer.status, answer.text()), (200, &*usual_body(&target)));
            answered += 1;
        }
        answered
    });
    let reloads = async {
        let lists: [&[&Upstream]; 6] = [
            &[&one, &other],
            &[&other, &one],
            &[&other],
            &[&one, &other],
            &[&one],
            &[&other, &one],
        ];
        for upstreams in lists {
            let [first, ..] = upstreams else { continue };
            assert_eq!(gateway.reload(&urls(upstreams)).await.status, 200);
            let before = tokens(first);
            until("the first one is asked", || tokens(first) > before + 5).await;
            let told = status(&gateway).await;
            assert_eq!(told["url"], first.url());
            let named: Vec<_> = upstreams.iter().map(|upstream| upstream.url()).collect();
            let shown = told["endpoints"].as_array().unwrap().iter();
            let shown: Vec<_> = shown.map(|end| end["url"].as_str().unwrap()).collect();
            assert_eq!(shown, named);
        }
        over.store(true, SeqCst);
    };
    let ((), answered) = futures_util::future::join(reloads, join_all(clients)).await;
    assert!(
        answered.iter().all(|answered| *answered > 0),
        "{answered:?}"
    );
    let hit = gateway.get(&warm).await;
    assert!(
        hit.must("cache-status").starts_with("ordgate; hit"),
        "{hit:?}"
    );
    rested(&gateway, "reloads").await;
}

#[tokio::test]
async fn what_is_under_way_is_answered_by_whom_it_was_sent_to() {
    let [one, other] = pair();
    let gateway = Setup::before(&one).keys("a-key").start();
    let gate = Gate::new();
    one.once(TOKEN, Reply::json(r#"{"from":"one"}"#).behind(&gate));
    let mut client = gateway.client().await;
    client.ask("GET", TOKEN, &[]).await;
    one.asked(1).await;
    assert_eq!(gateway.reload(&urls(&[&other])).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    gate.open();
    assert_eq!(client.answer("GET").await.text(), r#"{"from":"one"}"#);
    assert_eq!((tokens(&one), tokens(&other)), (1, 1));
    rested(&gateway, "reload").await;
}

#[tokio::test]
async fn what_is_known_of_an_endpoint_outlives_a_reload() {
    let [one, other] = pair();
    let gateway = before_both(&one, &other);
    one.always(Reply::status(500, "{}"));
    for number in 0..4 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(tokens(&one), 3);
    for upstreams in [&[&other, &one], &[&one, &other]] {
        assert_eq!(gateway.reload(&urls(upstreams)).await.status, 200);
        let told = status(&gateway).await;
        let broken = told["endpoints"].as_array().unwrap().iter();
        let broken: Vec<_> = broken.filter(|end| end["condition"] == "broken").collect();
        assert_eq!(broken.len(), 1);
        assert_eq!(broken[0]["url"], one.url());
        assert_eq!(broken[0]["sent"], 3);
        assert_eq!(gateway.get(&token(10)).await.status, 200);
    }
    assert_eq!(tokens(&one), 3, "it is left alone as before");
}

fn before_both(one: &Upstream, other: &Upstream) -> Gateway {
    let setup = Setup::before_all(&[one, other]).keys("a-key");
    setup.config(SOON).manual().start()
}

#[tokio::test]
async fn the_operator_is_told_all_of_it() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let (low, high) = (height(840_000), height(840_004));
    at_height(one, &low, &low);
    at_height(other, &high, &high);
    let gateway = chained(&upstreams, "upstream.max_in_flight = 9");
    until("it is left", || asked(&gateway) == 1).await;
    let gate = Gate::new();
    other.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = gateway.client().await;
    client.ask("GET", TOKEN, &[]).await;
    until("it is asked", || tokens(other) == 1).await;
    let told = status(&gateway).await;
    assert_eq!(told["url"], other.url());
    assert_eq!(told["switches"], 1);
    assert_eq!(told["in_flight"], 1);
    let ends = told["endpoints"].as_array().unwrap();
    let rows = [(one, false, "lagging", 0, 4), (other, true, "sound", 1, 0)];
    assert_eq!(ends.len(), rows.len());
    for (end, (upstream, is_asked, condition, in_flight, lag)) in ends.iter().zip(rows) {
        assert_eq!(end["url"], upstream.url());
        assert_eq!(end["asked"], is_asked);
        assert_eq!(end["condition"], condition);
        assert_eq!(end["breaker"]["state"], "closed");
        assert_eq!(end["breaker"]["open_seconds"], 0.0);
        assert_eq!(end["in_flight"], in_flight);
        assert_eq!(end["in_flight_limit"], 9);
        assert_eq!(end["lag_blocks"], lag);
        assert!(end["sent"].as_u64().is_some_and(|sent| sent > 0), "{end}");
        assert_eq!(end["failed"], 0);
        // Statuses are no measure of what answers take.
        for share in ["p50", "p90", "p99"] {
            assert!(end["first_byte_seconds"][share].is_null(), "{end}");
        }
        let asked = format!(
            "ordgate_upstream_asked{{upstream=\"default\",endpoint=\"{}\"}}",
            upstream.url()
        );
        let value = if is_asked { "1.0" } else { "0.0" };
        assert_eq!(metric(&gateway, &asked).await, value);
    }
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    rested(&gateway, "status").await;
}

/// What obeys the origin's fields passes on whatever an origin says; what it
/// could not say anything to goes elsewhere, if it is safe to repeat.
#[tokio::test]
async fn what_passes_through_goes_elsewhere_where_it_is_safe() {
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
        let [one, other] = &upstreams;
        let gateway = Setup::before_all(&[one, other])
            .config(ALL)
            .config(SOON)
            .config("upstream.first_byte_timeout = \"300ms\"")
            .manual()
            .start();
        one.always(reply);
        let target = "/some/tokens/here";
        let answer = gateway.request(method, target, &[]).await;
        assert_eq!(answer.status, expected, "{method}");
        assert_eq!(upstreams.each_ref().map(tokens), asked, "{method}");
        rested(&gateway, method).await;
    }
}

#[tokio::test]
async fn what_is_final_outlives_a_turn_to_one_that_is_a_little_behind() {
    let sandboxes = [2, 0].map(|ahead| {
        let sandbox = Sandbox::new(Settings::default());
        sandbox.advance(ahead);
        sandbox
    });
    let upstreams = sandboxes.each_ref().map(chain::acting);
    let [one, other] = &upstreams;
    let gateway = chained(&upstreams, "");
    rounds(&upstreams, 3).await;
    let tip = sandboxes[0].tip().height;
    let [deep, recent] = [60, 3].map(|below| chain::block(tip - below));
    let [final_body, recent_body] = [&deep, &recent].map(|target| gateway.get(target));
    let (final_body, recent_body) = (final_body.await.body, recent_body.await.body);
    one.always(Reply::nothing().reset());
    until("another is asked", || asked(&gateway) == 1).await;
    // It has told its own tip.
    let probed = other.count();
    until("the tip is probed there", || other.count() >= probed + 4).await;
    let answer = gateway.get(&deep).await;
    assert!(
        answer
            .must("cache-status")
            .starts_with("ordgate; hit; ttl=")
    );
    assert_eq!(answer.body, final_body);
    // What is recent is there as well, wherever it is from.
    let answer = gateway.get(&recent).await;
    assert_eq!((answer.status, answer.body), (200, recent_body));
    rested(&gateway, "a turn").await;
}

/// A server that takes no more connections and finishes a long answer, as one does
/// that is being replaced.
#[tokio::test]
async fn a_long_answer_does_not_hide_that_an_endpoint_takes_no_more() {
    let upstreams = pair();
    let [preferred, other] = &upstreams;
    let setup = Setup::before_all(&[preferred, other]).config(ALL);
    let gateway = setup.config("upstream.breaker.failures = 3").start();
    let long = Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\nx");
    let every = Duration::from_millis(1);
    preferred.once("/long", long.drip("x".repeat(99_998), every));
    let mut client = gateway.client().await;
    client.ask("GET", "/long", &[]).await;
    client.some(1).await;
    preferred.take_connections(0);
    let began = Instant::now();
    while asked(&gateway) == 0 {
        let mut clients = [gateway.client().await, gateway.client().await];
        let asks = clients.iter_mut().enumerate();
        let asks = asks.map(async |(at, client)| client.get(&format!("/{at}")).await);
        join_all(asks).await;
        assert!(began.elapsed() < Duration::from_secs(8), "nobody asks it");
    }
    client.some(1).await;
}
