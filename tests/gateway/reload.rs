//! Reloading: what a new configuration changes, and what it leaves alone.

mod process;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Sandbox, Settings};

use crate::support::upstream::{Seen, usual_body};
use crate::support::{Answer, Client, Gateway, Setup, TOKEN, Upstream, token, until, within};

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

async fn status(gateway: &Gateway) -> serde_json::Value {
    gateway.admin("/status").await.json()
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
    let changed = route("c", "/three", "") + &route("a", "/one", "strict_query = true");
    let report = done(&gateway.reload(&changed).await);
    assert_eq!(report["routes"]["kept"], serde_json::json!(["a"]));
    assert_eq!(report["routes"]["begun"], serde_json::json!(["c"]));
    assert_eq!(report["routes"]["gone"], serde_json::json!(["b"]));
    assert!(is_hit(&client.get("/a").await));
    assert_eq!(client.get("/a?x=1").await.status, 400, "as it is now");
    assert_eq!(client.get("/c").await.text(), usual_body("/three"));
    assert_eq!(client.get("/b").await.status, 404);
    assert_eq!(upstream.targets(), ["/one", "/three"]);
    let status = status(&gateway).await;
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
    assert!(
        report["notes"].to_string().contains("upstream.url"),
        "{report}"
    );
    assert!(!is_hit(&gateway.get("/a").await));
    assert_eq!((upstream.count(), other.count()), (3, 1));
}

#[tokio::test]
async fn a_clients_spent_limit_survives_a_reload() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "limit = { requests_per_minute = 1, burst = 2 }");
    let mut client = gateway.client().await;
    for expected in [200, 200, 429] {
        assert_eq!(client.get(TOKEN).await.status, expected);
    }
    done(&gateway.reload("cache.stale_wait = \"1s\"").await);
    assert_eq!(client.get(TOKEN).await.status, 429);
    assert_eq!(gateway.get(TOKEN).await.status, 429);
    done(&gateway.reload("limit.burst = 3").await);
    assert_eq!(client.get(TOKEN).await.status, 200, "another quota");
}

#[tokio::test]
async fn the_budget_is_not_exceeded_across_reloads() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("upstream = { requests_per_minute = 3, queue_timeout = \"1ms\" }")
        .keys("first-key,second-key")
        .start();
    let mut number = 0;
    let mut spend = async |times: usize| {
        for _ in 0..times {
            number += 1;
            gateway.get(&token(number)).await;
        }
    };
    spend(2).await;
    for keys in [
        "first-key",
        "second-key",
        "",
        "first-key,second-key",
        "second-key,first-key",
        "",
        "third-key",
    ] {
        done(&gateway.rekey(keys).await);
        spend(5).await;
        done(&gateway.reload("upstream.idle_timeout = \"9s\"").await);
        spend(2).await;
        done(
            &gateway
                .reload("upstream = { idle_timeout = \"8s\", max_in_flight = 5 }")
                .await,
        );
        spend(2).await;
    }
    // The same keys at the same place under another name of it.
    let other = upstream.url().replace("127.0.0.1", "localhost");
    done(&gateway.reload(&format!("upstream.url = \"{other}\"")).await);
    spend(4).await;
    let seen = upstream.seen();
    let own = |seen: &[Seen], key| {
        let keys = seen.iter().filter_map(|seen| seen.field("x-api-key"));
        keys.filter(|own| own == key).count()
    };
    for key in ["first-key", "second-key", "third-key"] {
        assert_eq!(own(&seen, key), 3, "{key}");
    }
    done(&gateway.rekey("third-key").await);
    done(&gateway.reload("upstream.requests_per_minute = 6").await);
    spend(4).await;
    let spent = own(&upstream.seen(), "third-key");
    assert_eq!(spent, 3 + 2, "what is spent counts under a new bound");
}

#[tokio::test]
async fn keys_are_added_and_removed_under_load_without_a_lost_request() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).keys("first-key");
    let gateway = Arc::new(setup.config("limit.enabled = false").start());
    let stop = Arc::new(AtomicBool::new(false));
    let load = (0..8).map(|client| {
        let (gateway, stop) = (gateway.clone(), stop.clone());
        tokio::spawn(async move {
            let (mut connection, mut number) = (gateway.client().await, 0);
            while !stop.load(SeqCst) {
                number += 1;
                let answer = connection.get(&token(client * 1_000_000 + number)).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            number
        })
    });
    let load: Vec<_> = load.collect();
    for keys in [
        "first-key,second-key",
        "second-key",
        "third-key,second-key",
        "third-key",
    ] {
        let (before, count) = (gateway.rekey(keys).await, upstream.count());
        done(&before);
        upstream.until_requests(count + 50).await;
    }
    // Whoever was granted the key before may be on the way yet: one each client.
    let late = upstream
        .seen()
        .split_off(upstream.count().saturating_sub(30));
    let keys: Vec<_> = late
        .iter()
        .filter_map(|seen| seen.field("x-api-key"))
        .collect();
    assert!(keys.iter().all(|key| key == "third-key"), "{keys:?}");
    stop.store(true, SeqCst);
    let mut sent = 0;
    for client in load {
        sent += within("a client ends", client).await.unwrap();
    }
    assert_eq!(upstream.count(), sent);
    drop(gateway);
}

#[tokio::test]
async fn a_bad_configuration_is_refused_whole_with_all_reasons() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, &route("a", "/one", ""));
    gateway.get("/a").await;
    let answer = gateway
        .reload("limit.burst = 0\nserver.wokers = 3\nlimit.requests_per_minute = 9")
        .await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(answer.must("content-type"), "application/problem+json");
    let problems = answer.json()["problems"].clone();
    let reports = |what: &str| {
        let mut all = problems.as_array().unwrap().iter();
        all.any(|problem| {
            let text = problem.as_str().unwrap();
            let place = text
                .strip_prefix("test.toml:")
                .unwrap_or_else(|| panic!("{text}"));
            text.contains(what) && place.split(':').take(2).all(|n| n.parse::<u32>().is_ok())
        })
    };
    assert!(
        reports("limit.burst is 0") && reports("server.wokers"),
        "{problems}"
    );
    let status = status(&gateway).await;
    assert_eq!(status["reload"]["refused"], 1);
    assert_eq!(status["reload"]["last"]["ok"], false);
    assert_eq!(status["reload"]["last"]["problems"], problems);
    assert!(
        status["reload"]["last"]["at"]
            .as_str()
            .unwrap()
            .ends_with("GMT")
    );
    let metrics = gateway.admin("/metrics").await;
    assert!(
        metrics
            .text()
            .contains("ordgate_reloads_total{result=\"refused\"} 1")
    );
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
    assert_eq!(
        upstream
            .seen()
            .last()
            .unwrap()
            .field("x-api-key")
            .as_deref(),
        Some("first-key")
    );
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
async fn a_page_in_a_browser_cannot_reload() {
    let gateway = Setup::at("http://127.0.0.1:1").start();
    for fields in [
        [("origin", "http://127.0.0.1:9090")],
        [("sec-fetch-site", "cross-site")],
    ] {
        let mut client = Client::connect(gateway.admin).await;
        let answer = client.request("POST", "/reload", &fields).await;
        assert_eq!(answer.status, 403, "{fields:?}");
    }
    assert_eq!(gateway.admin("/reload").await.status, 405);
    assert_eq!(status(&gateway).await["reload"]["done"], 0);
}

#[tokio::test]
async fn the_chain_survives_a_reload_and_old_probes_end() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = Setup::alone().chain().sandbox(&sandbox).start();
    let path = sandbox.examples().block().to_owned();
    let first = gateway.get(&path).await;
    assert!(!is_hit(&first));
    let tips = async || status(&gateway).await["chain"]["tips"].clone();
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
