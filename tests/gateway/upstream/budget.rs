//! The budget, counted by an upstream with a clock of its own: no key exceeds it,
//! whatever clients, failures and reloads there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use ordgate::clock::Moment;
use ordgate::sandbox::{Sandbox, Settings};
use tokio::time::MissedTickBehavior;

use super::{key, keyed, metric};
use crate::chain::{is_status, reply};
use crate::support::upstream::{Seen, refusing};
use crate::support::{Client, Gateway, Reply, Setup, Upstream, token};

/// The largest bounds that are ever configured.
const MINUTE: usize = 30;
const SECOND: usize = 5;

/// Both keys, enough demand to spend the whole budget, and three ways to send more than
/// once.
const CONFIG: &str = r#"
    server.workers = 2
    clients.trusted_proxies = ["127.0.0.1"]
    limit.enabled = false
    chain.tip.ordinals.every = "2s"
    chain.tip.runes.every = "2s"
    upstream.requests_per_minute = 30
    upstream.requests_per_second = 5
    upstream.queue_timeout = "700ms"
"#;

/// An upstream with a sandbox's answers. While the flag is set, about every fourth
/// answer but those of status paths is a failure.
fn failing(sandbox: &Sandbox) -> (Upstream, Arc<AtomicBool>) {
    let upstream = Upstream::start();
    let fails = Arc::new(AtomicBool::new(false));
    let (sandbox, is_failing, count) = (sandbox.clone(), fails.clone(), AtomicUsize::new(0));
    upstream.usually(move |seen| {
        let target = seen.target();
        if is_status(&target) || !is_failing.load(SeqCst) {
            return reply(&sandbox, &target);
        }
        match count.fetch_add(1, SeqCst) % 13 {
            3 => Reply::status(500, "{}"),
            7 => Reply::status(503, "{}"),
            11 => Reply::nothing().reset(),
            _ => reply(&sandbox, &target),
        }
    });
    (upstream, fails)
}

/// When each key was used, by the upstream's clock.
fn uses(seen: &[Seen]) -> BTreeMap<String, Vec<Moment>> {
    let mut uses: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for seen in seen {
        let key = seen.field("x-api-key").unwrap_or_default();
        uses.entry(key).or_default().push(seen.at);
    }
    uses
}

/// Probes of both tips that have ended; and that both are known.
fn probes(gateway: &Gateway) -> u64 {
    let tips = gateway.tips();
    for tip in &tips {
        assert!(tip.known, "a tip is lost: {tip:?}");
    }
    tips.iter().map(|tip| tip.probes).sum()
}

#[tokio::test]
async fn under_load_failures_and_reloads_no_key_exceeds_its_budget() {
    let sandbox = Sandbox::new(Settings::default());
    let tip = sandbox.tip().height;
    let (upstream, fails) = failing(&sandbox);
    let setup = Setup::before(&upstream).chain().keys("first-key,other-key");
    let gateway = setup.config(CONFIG).start();
    gateway.until_tips_are_known().await;
    let final_block = format!("/runes/v1/blocks/{}/activity", tip - 100);
    let warm = gateway
        .get(&format!("{final_block}?limit=60&offset=0"))
        .await;
    assert_eq!(warm.status, 200);
    // A retry uses the budget as well.
    upstream.once(&token(5000), Reply::status(503, "{}"));
    assert_eq!(gateway.get(&token(5000)).await.status, 404);
    fails.store(true, SeqCst);

    let (served, probed) = demand(&gateway, &sandbox, &final_block).await;

    let seen = upstream.seen();
    let uses = uses(&seen);
    assert_eq!(uses.len(), 2, "{:?}", uses.keys());
    for (key, times) in &uses {
        check_uses(key, times);
    }
    assert!(served > 80 + 20, "{served}");
    // A quarter of both budgets is one for each tip in eight seconds, and new blocks are
    // suspected in between.
    let least = 2 * 2;
    assert!(
        probed.last() >= Some(&least),
        "probes of the tip go on: {probed:?}"
    );
    let is_warm = |seen: &&Seen| seen.target().starts_with(&final_block);
    assert_eq!(seen.iter().filter(is_warm).count(), 1, "hits use no budget");
    let metrics = gateway.admin("/metrics").await;
    for reason in ["miss", "probe", "retry"] {
        let none = format!(
            "ordgate_upstream_requests_total{{reason=\"{reason}\",upstream=\"default\"}} 0\n"
        );
        assert!(!metrics.text().contains(&none), "{reason}");
    }
}

/// Requests ten times what both keys together allow, for ten seconds, with reloads
/// and new blocks meanwhile. Returns how many requests were served, and the number of
/// probes every two seconds.
async fn demand(gateway: &Gateway, sandbox: &Sandbox, warm: &str) -> (usize, Vec<u64>) {
    let tip = sandbox.tip().height;
    let (mut requests, mut probed) = (Vec::new(), Vec::new());
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..1000_usize {
        tick.tick().await;
        let target = match number % 10 {
            0 => warm.to_owned(),
            1..=3 => format!("/runes/v1/blocks/{}/activity", tip - (number as u32 % 90)),
            _ => token(number),
        };
        let (public, client_address) = (gateway.public, format!("198.51.100.{}", number % 7));
        requests.push(tokio::spawn(async move {
            let mut client = Client::connect(public).await;
            let fields = [("x-forwarded-for", &*client_address)];
            (number, client.request("GET", &target, &fields).await)
        }));
        if number % 50 == 25 {
            reload(gateway, number / 50).await;
        }
        if number % 100 == 99 {
            sandbox.advance(1);
        }
        if number % 200 == 199 {
            probed.push(probes(gateway));
        }
    }
    let mut served = 0;
    for request in requests {
        let (number, answer) = request.await.unwrap();
        match answer.status {
            200 | 404 => served += 1,
            502 => assert_ne!(number % 10, 0, "a hit: {answer:?}"),
            503 => {
                assert_ne!(number % 10, 0, "a hit: {answer:?}");
                assert!((1..=61).contains(&answer.number("retry-after")));
                answer.problem();
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    (served, probed)
}

/// A key is used as often as it may be, and no more often.
fn check_uses(key: &str, times: &[Moment]) {
    assert!(times.len() > MINUTE / 2, "the budget is used: {times:?}");
    for (most, seconds) in [(MINUTE, 60), (SECOND, 1)] {
        for window in times.windows(most + 1) {
            let span = window[most].since(window[0]);
            let least = Duration::from_secs(seconds);
            assert!(span >= least, "{span:?} of {key}: {window:?}");
        }
    }
}

/// Keys come and go, and bounds; at last all is as it was.
async fn reload(gateway: &Gateway, round: usize) {
    let keys = [
        "first-key",
        "other-key",
        "other-key,first-key",
        "first-key,other-key",
    ];
    let done = match round % 8 {
        at @ (0 | 2 | 4 | 6) => gateway.rekey(keys[at / 2]).await,
        1 => gateway.reload("upstream.requests_per_second = 3").await,
        3 => gateway.reload("upstream.requests_per_minute = 28").await,
        5 => gateway.reload("upstream.requests_per_second = 5").await,
        _ => gateway.reload("upstream.requests_per_minute = 30").await,
    };
    assert_eq!(done.status, 200, "{}", done.text());
}

#[tokio::test]
async fn a_client_that_honours_retry_after_is_served() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "first-key,other-key");
    let bounds = "upstream.requests_per_second = 2\nupstream.requests_per_minute = 7";
    assert_eq!(gateway.reload(bounds).await.status, 200);
    let mut number = 0;
    for round in 0..40 {
        // Pauses, so that the windows fill at various moments, and
        // sometimes a 429.
        gateway.advance(round * 37 % 900);
        if round % 5 == 3 {
            let fields = format!("retry-after: {}\r\n", 1 + round % 4);
            upstream.once(&token(number), Reply::with(429, &fields, "{}"));
        }
        let wait = loop {
            let answer = gateway.get(&token(number)).await;
            number += 1;
            match answer.status {
                200 => gateway.advance(round * 11 % 130),
                _ => break answer.number("retry-after"),
            }
        };
        assert!(wait <= 61, "{wait}");
        if wait > 1 {
            gateway.advance((wait - 1) * 1000 - 100);
            let early = gateway.get(&token(number)).await;
            assert_eq!(early.status, 503, "before {wait} s");
            assert!(early.number("retry-after") <= 2, "the rest of it");
            gateway.advance(100);
        }
        gateway.advance(1000);
        let again = gateway.get(&token(number)).await;
        assert_eq!(again.status, 200, "after {wait} s: {again:?}");
        number += 1;
    }
    let spent = metric(
        &gateway,
        "ordgate_upstream_results_total{result=\"spent\",upstream=\"default\"}",
    )
    .await;
    assert!(spent.parse::<u32>().unwrap() >= 40);
}

#[tokio::test]
async fn a_connect_that_fails_costs_no_budget() {
    let (socket, address) = refusing();
    let config = "upstream.requests_per_minute = 10\nupstream.requests_per_second = 4\n\
         upstream.queue_timeout = \"20ms\"\nupstream.retry = false";
    let setup = Setup::at(&format!("http://{address}")).keys("one").manual();
    let gateway = setup.config(config).start();
    for number in 0..9 {
        assert_eq!(gateway.get(&token(number)).await.status, 502, "{number}");
    }
    assert_eq!(key(&gateway, 0).await["budget_left"], 10);
    let upstream = Upstream::start_on(socket);
    for (number, status) in [(11, 200), (12, 200), (13, 200), (14, 200), (15, 503)] {
        let answer = gateway.get(&token(number)).await;
        assert_eq!(answer.status, status, "{number}");
    }
    let left = key(&gateway, 0).await["budget_left"].as_u64();
    assert_eq!((upstream.count(), left), (4, Some(6)));
}
