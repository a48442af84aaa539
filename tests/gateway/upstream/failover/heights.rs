//! Endpoints whose tips differ, and the return to the preferred one.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Sandbox, Settings};

use super::super::until_idle;
use super::{OFTEN, SOON, endpoint_in_use, endpoints, pair, switches, tokens};
use crate::chain;
use crate::support::gateway::urls;
use crate::support::upstream::usual_body;
use crate::support::{Client, Gateway, Process, Reply, Setup, Upstream, token, until};

/// Status paths that say these heights, and tokens.
pub(super) fn at_height(upstream: &Upstream, ordinals: &Arc<AtomicU64>, runes: &Arc<AtomicU64>) {
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

pub(super) fn height(height: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(height))
}

/// The shipped routes before two, whose tips are known.
pub(super) fn chained(upstreams: &[Upstream; 2], config: &str) -> Gateway {
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
async fn the_preferred_endpoint_is_used_again_after_its_probation() {
    let upstreams = pair();
    let tip = height(840_000);
    for upstream in &upstreams {
        at_height(upstream, &tip, &tip);
    }
    let [preferred, other] = &upstreams;
    let gateway = chained(&upstreams, "upstream.return_after = \"20s\"");
    rounds(&upstreams, 2).await;
    assert_eq!(endpoint_in_use(&gateway), 0);
    let mut number = 0;
    for (round, probation) in [20, 20].into_iter().enumerate() {
        // The tip's requests find out as well.
        preferred.always(Reply::nothing().close());
        until("it is left", || endpoint_in_use(&gateway) == 1).await;
        // It answers again: as a standby endpoint it is probed, which closes the breaker.
        at_height(preferred, &tip, &tip);
        let sound = || endpoints(&gateway)[0]["condition"] == "sound";
        until("the preferred one is sound", sound).await;
        let (before, turned) = (tokens(preferred), switches(&gateway));
        for second in 0..probation {
            assert_eq!(endpoint_in_use(&gateway), 1, "{round}, {second}");
            assert_eq!(switches(&gateway), turned, "{round}, {second}");
            number += 1;
            assert_eq!(gateway.get(&token(number)).await.status, 200);
            gateway.advance(1_000);
        }
        assert_eq!(tokens(preferred), before, "{round}: nobody went there");
        // Its probation has ended.
        let begun = tokens(other);
        number += 1;
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        assert_eq!(endpoint_in_use(&gateway), 0, "{round}");
        assert_eq!(tokens(preferred), before + 1, "{round}");
        assert_eq!(tokens(other), begun, "{round}");
        assert_eq!(switches(&gateway), turned + 1, "{round}");
    }
    until_idle(&gateway, "returns").await;
}

#[tokio::test]
async fn an_endpoint_that_lags_is_not_used_while_another_is_sound() {
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
            let endpoints = endpoints(&gateway);
            [&endpoints[0], &endpoints[1]].map(|one| one["lag_blocks"].as_u64().unwrap()) == lags
        };
        rounds(&upstreams, 4).await;
        until("both heights are known", known).await;
        assert_eq!(endpoint_in_use(&gateway), expected, "{heights:?}");
        for number in 0..4 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        assert_eq!(tokens(&upstreams[expected]), 4, "{heights:?}");
        assert_eq!(switches(&gateway), expected as u64, "{heights:?}");
        // Of the one that lags nobody is told to be rid of; it is asked where
        // the other fails.
        upstreams[expected].always(Reply::status(500, "{}"));
        assert_eq!(gateway.get(&token(9)).await.status, 200, "{heights:?}");
        until_idle(&gateway, "lag").await;
    }
}

/// No request pays two attempts.
#[tokio::test]
async fn an_endpoint_whose_status_path_fails_is_left() {
    let upstreams = pair();
    let tip = height(840_000);
    let [preferred, other] = &upstreams;
    at_height(other, &tip, &tip);
    preferred.always(Reply::status(500, "{}"));
    let gateway = chained(&upstreams, "");
    until("it is left", || endpoint_in_use(&gateway) == 1).await;
    let before = tokens(preferred);
    for number in 0..4 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!((tokens(preferred), tokens(other)), (before, 4));
    assert_eq!(endpoints(&gateway)[0]["condition"], "wrong");
    at_height(preferred, &tip, &tip);
    until("it is sound", || {
        endpoints(&gateway)[0]["condition"] == "sound"
    })
    .await;
}

#[tokio::test]
async fn a_target_that_is_gone_retires_no_endpoint() {
    let upstreams = pair();
    let tip = height(840_000);
    for upstream in &upstreams {
        at_height(upstream, &tip, &tip);
    }
    let [preferred, other] = &upstreams;
    let gateway = chained(&upstreams, "");
    rounds(&upstreams, 1).await;
    preferred.once(&token(0), Reply::status(410, "{}"));
    for number in 0..4 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!((tokens(preferred), tokens(other)), (4, 1));
}

#[tokio::test]
async fn a_retired_endpoint_is_left_and_reported() {
    let [retired, other] = pair();
    retired.always(Reply::status(410, r#"{"telling":"gone"}"#));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let urls = urls(&[&retired, &other]);
    file.write_all(urls.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    let variables = [("ORDGATE_API_KEYS", "a-key-of-ours")];
    let (process, public, admin) = Process::serve(&["--config", &path], &variables);
    let mut client = Client::connect(public).await;
    for number in 0..6 {
        let target = token(number);
        assert_eq!(client.get(&target).await.text(), usual_body(&target));
    }
    // Its status path retires it, however many of these came before that was asked for.
    assert_eq!(tokens(&other), 6);
    let mut admin = Client::connect(admin).await;
    let mut metrics = admin.get("/metrics").await;
    while !metrics.text().contains("condition=\"retired\"} 1.0") {
        metrics = admin.get("/metrics").await;
    }
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
    let alarms = left.errors.lines();
    let alarms: Vec<_> = alarms
        .filter(|line| line.contains("it has been retired"))
        .collect();
    assert_eq!(alarms.len(), 1, "{}", left.errors);
    assert!(alarms[0].contains("ERROR"), "{}", alarms[0]);
    assert!(alarms[0].contains(&retired.url()), "{}", alarms[0]);
    for secret in ["telling", "a-key-of-ours"] {
        assert!(!left.errors.contains(secret), "{}", left.errors);
    }
}

#[tokio::test]
async fn final_answers_outlive_a_failover_to_an_endpoint_that_is_slightly_behind() {
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
    until("another is asked", || endpoint_in_use(&gateway) == 1).await;
    // It has reported its own tip.
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
    until_idle(&gateway, "a turn").await;
}
