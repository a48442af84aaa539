//! Reloading: what a new configuration changes, and what it leaves alone.

mod process;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use futures_util::future::{join, join_all};
use ordgate::sandbox::{Sandbox, Settings};

use crate::support::upstream::usual_body;
use crate::support::{Answer, Gateway, Setup, TOKEN, Upstream, token, until, within};

/// A route beside those of most tests.
fn route(name: &str, upstream_path: &str, more: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nupstream_path = \"{upstream_path}\"\n\
         cache = {{ mode = \"override\", times = {{ 200 = \"1h\" }} }}\n{more}\n"
    )
}

/// That a reload was done; what it says.
fn done(answer: &Answer) -> serde_json::Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn is_hit(answer: &Answer) -> bool {
    answer.must("cache-status").starts_with("ordgate; hit")
}

#[tokio::test]
async fn connections_and_stored_responses_survive_a_reload() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config(&(route("a", "/one", "") + &route("b", "/two", "")))
        .start();
    let mut client = gateway.client().await;
    assert_eq!(client.get("/a").await.text(), usual_body("/one"));
    assert_eq!(client.get("/c").await.status, 404);
    // Another order, other bounds, a route more and one less: numbers of routes
    // are not their places.
    let changed = route("c", "/three", "") + &route("a", "/one", "methods = [\"GET\"]");
    let report = done(&gateway.reload(&changed).await);
    assert!(!report["notes"].to_string().contains("stored"), "{report}");
    assert!(is_hit(&client.get("/a").await));
    let head = client.request("HEAD", "/a", &[]).await;
    assert_eq!(head.status, 405, "as it is now");
    assert_eq!(client.get("/c").await.text(), usual_body("/three"));
    assert_eq!(client.get("/b").await.status, 404);
    assert_eq!(upstream.targets(), ["/one", "/three"]);
    let status = gateway.status();
    assert_eq!(status["reload"]["done"], 1);
    assert_eq!(status["reload"]["last"]["ok"], true);
    let requests = status["requests"].as_array().unwrap();
    let hits = requests
        .iter()
        .find(|n| n["route"] == "a" && n["outcome"] == "miss");
    assert_eq!(hits.unwrap()["requests"], 1, "counts go on: {requests:?}");
}

#[tokio::test]
async fn a_changed_route_does_not_use_its_old_responses() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, &route("a", "/one", ""));
    for (path, asked) in [("/one", 1), ("/two", 2), ("/one", 3)] {
        done(&gateway.reload(&route("a", path, "")).await);
        let first = gateway.get("/a").await;
        assert_eq!((first.text(), is_hit(&first)), (&*usual_body(path), false));
        assert!(is_hit(&gateway.get("/a").await));
        assert_eq!(upstream.count(), asked);
    }
    // What was the answer of one upstream is none of another's.
    let other = Upstream::start();
    let report = done(&gateway.reload(&other.config()).await);
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.contains("what was stored for it is not"), "{report}");
    assert!(!is_hit(&gateway.get("/a").await));
    assert_eq!((upstream.count(), other.count()), (3, 1));
}

#[tokio::test]
async fn keys_are_added_and_removed_under_load_without_a_lost_request() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).keys("first-key");
    let gateway = setup.config("limit.enabled = false").start();
    let is_over = AtomicBool::new(false);
    let load = join_all((0..8).map(async |client| {
        let (mut connection, mut number) = (gateway.client().await, 0);
        while !is_over.load(SeqCst) {
            number += 1;
            let answer = connection.get(&token(client * 1_000_000 + number)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        number
    }));
    let reloads = async {
        for keys in ["first-key,second-key", "second-key", "third-key"] {
            done(&gateway.rekey(keys).await);
            upstream.until_requests(upstream.count() + 50).await;
        }
        // Whoever was granted a key before may be on the way yet: one each client.
        let late = upstream.seen().into_iter().rev().take(30);
        let keys: Vec<_> = late.filter_map(|seen| seen.field("x-api-key")).collect();
        assert!(keys.iter().all(|key| key == "third-key"), "{keys:?}");
        is_over.store(true, SeqCst);
    };
    let (sent, ()) = within("the load", join(load, reloads)).await;
    assert_eq!(upstream.count(), sent.iter().sum::<usize>());
}

#[tokio::test]
async fn a_bad_configuration_is_refused_whole_with_all_reasons() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, &route("a", "/one", ""));
    gateway.get("/a").await;
    let answer = gateway
        .reload("clients.require_token = true\nlog.level = \"loud\"\nlimit.requests_per_minute = 9")
        .await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(answer.must("content-type"), "application/problem+json");
    let problems = answer.json()["problems"].clone();
    for what in ["clients.require_token is true", "log.level is \"loud\""] {
        let mut all = problems
            .as_array()
            .unwrap()
            .iter()
            .map(|problem| problem.as_str().unwrap());
        let is_reported = all.any(|text| text.starts_with("test.toml:") && text.contains(what));
        assert!(is_reported, "{problems}");
    }
    let reload = gateway.status()["reload"].clone();
    assert_eq!(reload["refused"], 1);
    assert_eq!(reload["last"]["ok"], false);
    assert_eq!(reload["last"]["problems"], problems);
    assert!(reload["last"]["at"].as_str().unwrap().ends_with("GMT"));
    let metrics = gateway.admin("/metrics").await;
    let line = "ordgate_reloads_total{result=\"refused\"} 1";
    assert!(metrics.text().contains(line));
    let hit = gateway.get("/a").await;
    assert!(is_hit(&hit));
    assert!(
        !hit.must("ratelimit-policy").contains("q=9"),
        "none of it is done"
    );
    // What is valid and cannot be is refused as well, and changes no key.
    let gateway = Setup::before(&upstream).keys("first-key").start();
    let answer = gateway
        .reload("upstream.url = \"http://api.example\"")
        .await;
    assert_eq!(answer.status, 422);
    assert!(answer.text().contains("plain http"), "{}", answer.text());
    gateway.get(&token(7)).await;
    let key = upstream.seen().pop().unwrap().field("x-api-key");
    assert_eq!(key.as_deref(), Some("first-key"));
}

#[tokio::test]
async fn a_setting_that_needs_a_restart_is_reported() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let change = "server = { workers = 2, drain_timeout = \"1s\" }\n\
                  log.level = \"debug\"";
    let notes = done(&gateway.reload(change).await)["notes"].to_string();
    for name in ["server.workers", "log.level"] {
        assert!(notes.contains(name), "{name} in {notes}");
    }
    assert!(
        notes.contains("needs a restart") && !notes.contains("drain"),
        "{notes}"
    );
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn the_chain_survives_a_reload_and_old_probes_end() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = Setup::alone().chain().sandbox(&sandbox).start();
    let path = sandbox.examples().blocks[0].clone();
    let first = gateway.get(&path).await;
    assert!(!is_hit(&first));
    let tips = async || gateway.status()["chain"]["tips"].clone();
    let height = tips().await[1]["height"].clone();
    assert!(height.is_number());
    let mut past = Vec::new();
    for times in 0..20 {
        past.push(Arc::downgrade(&gateway.server().current_gateway().fill));
        let change = format!("chain.tip.runes.every = \"{}s\"", 5 + times % 2);
        done(&gateway.reload(&change).await);
    }
    assert!(is_hit(&gateway.get(&path).await));
    assert_eq!(tips().await[1]["height"], height);
    let probes = tips().await[1]["probes"].as_u64().unwrap();
    assert!(
        probes < 5,
        "a reload asks for nothing that is known: {probes}"
    );
    // The first one is the server's own.
    until("they let go", || {
        past[1..].iter().all(|fill| fill.upgrade().is_none())
    })
    .await;
    // Where answers would be kept no longer so long, they are not.
    done(&gateway.reload("chain.final_depth = 9").await);
    assert!(!is_hit(&gateway.get(&path).await));
}
