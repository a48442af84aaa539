//! Replicas use what another one has fetched, and fetch once what all of them need. The
//! engine is a real server, which is stopped, killed and given wrong values.

mod chain;
mod faults;
mod locks;

use std::time::Duration;

use futures_util::future::join_all;
use ordgate::clock::Clock;
use serde_json::Value;
use tokio::time::Instant;

use super::servers::{Answer, Server, is_installed};
use super::support::{self, Gate, Gateway, Reply, Setup, TOKEN, Upstream, until};

/// No budget is in the way, and a call may take as long as a busy machine needs.
const CONFIG: &str = r#"
    [shared]
    replicas = 4
    timeout = "1s"
    fill_wait = "20s"
    [upstream]
    requests_per_minute = "unlimited"
    requests_per_second = "unlimited"
    [limit]
    enabled = false
"#;

/// Some replicas with this engine.
pub(super) fn replicas(
    count: usize,
    engine: &Server,
    clock: &Clock,
    setup: impl Fn() -> Setup,
) -> Vec<Gateway> {
    let start = |number: usize| {
        let name = format!("[shared]\nname = \"replica-{number}\"");
        let setup = setup().config(CONFIG).config(&name);
        setup.engine(&engine.url()).clock(clock).start()
    };
    (0..count).map(start).collect()
}

/// What `/status` says of the responses that are shared.
pub(super) async fn responses(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["shared"]["responses"].clone()
}

/// Waits until it is so in `/status`.
pub(super) async fn wait_until(gateway: &Gateway, what: &str, is_so: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    loop {
        let now = responses(gateway).await;
        if is_so(&now) {
            return;
        }
        let waited = began.elapsed();
        assert!(waited < support::PATIENCE, "{what}: {now:#}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until all replicas are in sync with the journal.
pub(super) async fn in_sync(gateways: &[Gateway]) {
    for gateway in gateways {
        wait_until(gateway, "the tier is used", |now| now["used"] == true).await;
    }
}

/// Waits until so many responses were stored in the engine by a replica.
pub(super) async fn stored(gateway: &Gateway, count: u64) {
    let what = format!("{count} are stored");
    wait_until(gateway, &what, |now| now["stored"] == count).await;
}

/// The keys in the engine that hold responses, or their locks.
pub(super) fn keys(engine: &Server, pattern: &str) -> Vec<String> {
    let keys = engine.call(&["KEYS", pattern]);
    let keys = keys.list().iter().map(|key| key.text().to_owned());
    keys.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_all_replicas_need_is_fetched_once() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(4, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    for round in 0..3 {
        let target = support::token(round);
        let gate = Gate::new();
        upstream.once(&target, Reply::json("{\"one\":1}").behind(&gate));
        let before = upstream.count();
        let all = join_all(gateways.iter().map(|gateway| gateway.get(&target)));
        let opened = async {
            for gateway in &gateways {
                wait_until(gateway, "it leads or follows", |now| {
                    let sum = |name: &str| now[name].as_u64().unwrap();
                    sum("led") + sum("followed") > round as u64
                })
                .await;
            }
            gate.open();
            Instant::now()
        };
        let (answers, opened) = tokio::join!(all, opened);
        eprintln!(
            "all have it {:?} after the upstream answers",
            opened.elapsed()
        );
        assert_eq!(upstream.count(), before + 1, "one request for all");
        let mut shared = 0;
        for answer in &answers {
            assert_eq!((answer.status, answer.text()), (200, "{\"one\":1}"));
            let status = answer.must("cache-status");
            shared += usize::from(status.ends_with("; detail=shared"));
        }
        assert_eq!(shared, 3);
    }
    assert!(keys(&engine, "*:l").is_empty(), "no lock is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_has_fetched_another_one_has() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(2, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    let first = gateways[0].get(TOKEN).await;
    assert!(first.must("cache-status").contains("fwd=uri-miss"));
    stored(&gateways[0], 1).await;
    let explained = gateways[1].explain(TOKEN).await;
    let entry = &explained["shared"][0];
    assert_eq!(
        (&entry["present"], &entry["usable"]),
        (&true.into(), &true.into())
    );
    // Its age is counted on.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let second = gateways[1].get(TOKEN).await;
    assert_eq!(second.body, first.body);
    assert_eq!(second.must("etag"), first.must("etag"));
    let status = second.must("cache-status");
    assert!(status.starts_with("ordgate; hit; ttl="), "{status}");
    assert!(status.ends_with("; detail=shared"), "{status}");
    assert!((1..10).contains(&second.number("age")), "{status}");
    let third = gateways[1].get(TOKEN).await;
    let status = third.must("cache-status");
    assert!(status.starts_with("ordgate; hit; ttl=") && !status.contains("detail"));
    assert_eq!(upstream.count(), 1);
    let metrics = gateways[1].admin("/metrics").await;
    let hits = "ordgate_shared_tier_lookups_total{result=\"hit\"} 1";
    assert!(metrics.text().contains(hits), "{}", metrics.text());
    let counted = "outcome=\"shared\",class=\"2xx\"";
    let counted = metrics.text().lines().any(|line| line.contains(counted));
    assert!(counted, "{}", metrics.text());
}

/// A fetch that began before a purge is stored late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_purged_is_used_nowhere_though_it_is_stored_late() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let gateways = replicas(3, &engine, &clock, || Setup::before(&upstream));
    in_sync(&gateways).await;
    // One response is in the engine, and one is on its way.
    let (stored_before, late) = (support::token(1), support::token(2));
    upstream.always(Reply::json("\"old\""));
    assert_eq!(gateways[1].get(&stored_before).await.text(), "\"old\"");
    stored(&gateways[1], 1).await;
    let gate = Gate::new();
    upstream.once(&late, Reply::json("\"old\"").behind(&gate));
    let fetched = gateways[1].get(&late);
    let purged = async {
        until("the fetch is under way", || upstream.count() == 2).await;
        upstream.always(Reply::json("\"new\""));
        let purged = gateways[0].purge("route=brc20-token").await;
        assert_eq!(purged.status, 200, "{}", purged.text());
        gate.open();
    };
    let (fetched, ()) = tokio::join!(fetched, purged);
    assert_eq!(fetched.status, 200);
    wait_until(&gateways[1], "it is stored, late", |now| now["queued"] == 0).await;
    for target in [&stored_before, &late] {
        for gateway in &gateways {
            let answer = gateway.get(target).await;
            assert_eq!(answer.text(), "\"new\"", "{target}");
        }
    }
    let unusable = &responses(&gateways[0]).await["unusable"];
    assert!(unusable["purged"].as_u64() > Some(0), "{unusable}");
}

/// The same path under another configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_means_something_else_has_its_own_responses() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let first = replicas(1, &engine, &clock, || Setup::before(&upstream));
    let routes = support::ROUTES.replacen("200 = \"10s\"", "200 = \"11s\"", 1);
    assert_ne!(routes, support::ROUTES);
    let other = replicas(1, &engine, &clock, || {
        Setup::before(&upstream).config(&routes)
    });
    in_sync(&first).await;
    in_sync(&other).await;
    first[0].get(TOKEN).await;
    stored(&first[0], 1).await;
    other[0].get(TOKEN).await;
    assert_eq!(upstream.count(), 2);
    stored(&other[0], 1).await;
    // Its value under the other's key is of no use either.
    let [one, two] = &keys(&engine, "*:e:*")[..] else {
        panic!("two keys");
    };
    let swapped = "local one, two = redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]) \
                   redis.call('HSET', KEYS[1], unpack(two)) redis.call('HSET', KEYS[2], unpack(one))";
    let answer = engine.call(&["EVAL", swapped, "2", one, two]);
    assert_eq!(answer, Answer::Nothing);
    let third = replicas(1, &engine, &clock, || Setup::before(&upstream));
    in_sync(&third).await;
    third[0].get(TOKEN).await;
    assert_eq!(upstream.count(), 3);
    assert_eq!(responses(&third[0]).await["unusable"]["foreign"], 1);
}

/// Routes of two modes to one origin.
const TWO_MODES: &str = r#"
    [[route]]
    name = "timed"
    path = "/timed/{id}"
    params.id = { type = "string" }
    cache = { mode = "override", times.200 = "1h" }
    [[route]]
    name = "plain"
    path = "/plain/{id}"
    params.id = { type = "string" }
    headers = "all"
    methods = ["*"]
    cache = { mode = "respect" }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_unsafe_request_invalidates_does_not_come_back_from_the_engine() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let setup = || Setup::alone().config(&upstream.config()).config(TWO_MODES);
    let gateways = replicas(1, &engine, &clock, setup);
    in_sync(&gateways).await;
    upstream.once("/timed/a", Reply::json("1"));
    assert_eq!(gateways[0].get("/timed/a").await.text(), "1");
    stored(&gateways[0], 1).await;
    clock.advance(Duration::from_millis(10));
    let field = "content-location: /timed/a\r\n";
    upstream.once("/plain/b", Reply::with(200, field, "done"));
    let post = gateways[0].request("POST", "/plain/b", &[]).await;
    assert_eq!(post.status, 200);
    upstream.once("/timed/a", Reply::json("2"));
    assert_eq!(gateways[0].get("/timed/a").await.text(), "2");
}
