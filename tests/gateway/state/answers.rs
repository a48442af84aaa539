//! Answers that outlive the process: a gateway is started again with the same state
//! directory.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;
use tempfile::TempDir;

use crate::chain::{acting, block, is_status, transaction};
use crate::support::respect::{ALL, ok};
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gateway, Reply, Setup, Upstream, until};

/// A state directory, an upstream, and gateways before it, one after the other.
pub(super) struct Ground {
    pub(super) directory: TempDir,
    pub(super) upstream: Upstream,
    config: String,
    is_chain: bool,
}

impl Ground {
    /// Before an upstream that answers for a chain.
    pub(super) fn chain(sandbox: &Sandbox) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            upstream: acting(sandbox),
            config: "chain.tip.runes.every = \"1h\"\nchain.tip.ordinals.every = \"1h\"".to_owned(),
            is_chain: true,
        }
    }

    /// Before an upstream that answers any request, with these routes.
    pub(super) fn routes(routes: &str) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            upstream: Upstream::start(),
            config: routes.to_owned(),
            is_chain: false,
        }
    }

    pub(super) fn setup(&self) -> Setup {
        let path = self.directory.path().display();
        let state = format!("state.path = \"{path}\"\nserver.drain_timeout = \"5s\"");
        let setup = Setup::before(&self.upstream);
        let setup = match self.is_chain {
            true => setup.chain(),
            false => setup,
        };
        setup.config(&self.config).config(&state)
    }

    pub(super) async fn start(&self) -> Gateway {
        self.start_with("").await
    }

    pub(super) async fn start_with(&self, config: &str) -> Gateway {
        let gateway = self.setup().config(config).start();
        if self.is_chain {
            until("the first probes", || {
                gateway.tips().iter().all(|tip| tip.probes > 0)
            })
            .await;
        }
        gateway
    }

    /// The requests but those for a status.
    pub(super) fn requests(&self) -> Vec<String> {
        let mut targets = self.upstream.targets();
        targets.retain(|target| !is_status(target));
        targets
    }

    /// Ends a gateway and starts the next. What was requested so far counts no more.
    pub(super) async fn restart(&self, gateway: Gateway) -> Gateway {
        gateway.end().await;
        self.start().await
    }
}

/// A figure of the answers on disk.
pub(super) fn figure(gateway: &Gateway, name: &str) -> u64 {
    gateway.figure(&format!("/state_directory/answers/{name}"))
}

/// Waits until all that was stored so far is on disk.
pub(super) async fn until_written(gateway: &Gateway, responses: u64) {
    until("all is written", || figure(gateway, "written") >= responses).await;
}

pub(super) fn is_from_disk(answer: &Answer) -> bool {
    answer.must("cache-status").ends_with("; detail=disk")
}

/// A route in mode `override`, and one in mode `respect`.
pub(super) const TIMED: &str = r#"
    [[route]]
    name = "timed"
    path = "/timed/{name}"
    params.name = { type = "string" }
    cache = { mode = "override", times = { 200 = "1h", 404 = "30s" }, stale_if_error = "1h" }
"#;

#[tokio::test]
async fn final_answers_outlive_the_process_and_cost_one_request() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let page = format!("{}?limit=7&offset=3", block(tip - 20));
    let targets = [
        block(tip - 10),
        page,
        transaction(&sandbox.transactions_at(tip - 15)[0]),
        // Recent.
        block(tip - 2),
    ];
    let mut first = Vec::new();
    for target in &targets {
        first.push(gateway.get(target).await);
    }
    let gateway = ground.restart(gateway).await;
    let before = ground.requests().len();
    for (target, first) in targets.iter().zip(&first) {
        let again = gateway.get(target).await;
        assert_eq!(again.body, first.body, "{target}");
        assert!(
            is_from_disk(&again),
            "{target}: {}",
            again.must("cache-status")
        );
        assert_eq!(again.field("etag"), first.field("etag"));
        assert_eq!(again.must("cache-control"), first.must("cache-control"));
        let hit = gateway.get(target).await;
        let status = hit.must("cache-status");
        assert!(status.starts_with("ordgate; hit; ttl="), "{status}");
        assert!(!is_from_disk(&hit), "it is in memory again");
    }
    let asked = ground.requests().split_off(before);
    assert!(asked.is_empty(), "{asked:?}");
    let whole = ground.requests();
    let checks = whole.iter().filter(|target| target.contains("/blocks/"));
    assert!(checks.count() <= 4 + 1, "one check of a block: {whole:?}");
    let status = figure(&gateway, "hits");
    assert!(status >= 3, "{status}");
    let explained = gateway.explain(&targets[2]).await;
    assert_eq!(explained["on_disk"], Value::Bool(true));
}

#[tokio::test]
async fn answers_from_disk_are_conditional_and_have_a_head() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    let first = gateway.get("/timed/a").await;
    let etag = first.must("etag").to_owned();
    let condition = ("if-none-match", &*etag);
    let mut gateway = gateway;
    for (method, fields, status) in [
        ("GET", &[condition][..], 304),
        ("HEAD", &[], 200),
        ("GET", &[], 200),
    ] {
        gateway = ground.restart(gateway).await;
        let answer = gateway.request(method, "/timed/a", fields).await;
        assert_eq!(answer.status, status, "{method} {fields:?}");
        assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
        assert_eq!(answer.must("etag"), etag);
    }
    assert_eq!(ground.upstream.count(), 1);
}

#[tokio::test]
async fn what_is_fresh_for_a_short_time_is_not_kept() {
    let ground = Ground::routes(TIMED);
    ground.upstream.once(
        "/timed/gone",
        Reply::status(404, "{\"error\":\"Not found\"}"),
    );
    let gateway = ground.start().await;
    assert_eq!(gateway.get("/timed/gone").await.status, 404);
    gateway.get("/timed/there").await;
    let gateway = ground.restart(gateway).await;
    assert!(is_from_disk(&gateway.get("/timed/there").await));
    assert!(!is_from_disk(&gateway.get("/timed/gone").await));
    assert_eq!(ground.upstream.count(), 3);
}

#[tokio::test]
async fn variants_outlive_the_process_and_what_is_for_one_client_does_not() {
    let ground = Ground::routes(ALL);
    let vary = ["vary: accept-language", "cache-control: max-age=600"];
    ground.upstream.usually(move |seen| match &*seen.target() {
        "/vary" => ok(&vary, &seen.field("accept-language").unwrap_or_default()),
        "/private" => ok(&["cache-control: private, max-age=600"], "private"),
        "/no-store" => ok(&["cache-control: no-store, max-age=600"], "no-store"),
        "/cookie" => ok(
            &["cache-control: public, max-age=600", "set-cookie: a=b"],
            "cookie",
        ),
        "/short" => ok(&["cache-control: max-age=30"], "short"),
        _ => ok(&["cache-control: public, max-age=600"], "public"),
    });
    let gateway = ground.start().await;
    let languages = ["de", "fr"];
    for language in languages {
        let answer = gateway
            .request("GET", "/vary", &[("accept-language", language)])
            .await;
        assert_eq!(answer.text(), language);
    }
    let secret = [("authorization", "Bearer secret-of-a-client")];
    gateway.request("GET", "/authorized", &secret).await;
    let others = ["/private", "/no-store", "/cookie", "/short"];
    for target in others {
        gateway.get(target).await;
    }
    gateway.get("/public").await;
    let gateway = ground.restart(gateway).await;
    let before = ground.upstream.count();
    for language in languages {
        let answer = gateway
            .request("GET", "/vary", &[("accept-language", language)])
            .await;
        assert_eq!(answer.text(), language);
        assert!(answer.must("cache-status").starts_with("ordgate; hit"));
        assert!(answer.number("age") < 600);
    }
    assert!(is_from_disk(&gateway.get("/public").await));
    assert_eq!(ground.upstream.count(), before);
    let other = gateway
        .request("GET", "/vary", &[("accept-language", "it")])
        .await;
    assert_eq!(other.text(), "it");
    for target in others.iter().chain(&["/authorized"]) {
        let answer = gateway.get(target).await;
        assert!(!is_from_disk(&answer), "{target}");
    }
    assert_eq!(ground.upstream.count(), before + 1 + 5);
    drop(gateway);
    let kept = all_bytes(ground.directory.path().to_owned());
    let has = |text: &[u8]| kept.windows(text.len()).any(|part| part == text);
    assert!(!has(b"secret-of-a-client"));
    assert!(has(b"public") && !has(b"no-store"));
}

/// The content of all files.
fn all_bytes(directory: PathBuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => bytes.extend(all_bytes(path)),
            false => bytes.extend(fs::read(path).unwrap()),
        }
    }
    bytes
}

#[tokio::test]
async fn a_client_that_forbids_a_fetch_gets_what_is_on_disk() {
    let ground = Ground::routes(ALL);
    ground
        .upstream
        .always(ok(&["cache-control: max-age=600"], "one"));
    let gateway = ground.start().await;
    gateway.get("/a").await;
    let gateway = ground.restart(gateway).await;
    let only = [("cache-control", "only-if-cached")];
    let answer = gateway.request("GET", "/a", &only).await;
    assert_eq!(answer.text(), "one");
    assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
    let absent = gateway.request("GET", "/b", &only).await;
    assert_eq!(absent.status, 504);
    assert_eq!(ground.upstream.count(), 1, "nothing was fetched");
}

#[tokio::test]
async fn an_unsafe_method_invalidates_what_is_on_disk() {
    let ground = Ground::routes(ALL);
    ground
        .upstream
        .always(ok(&["cache-control: max-age=600"], "one"));
    let gateway = ground.start().await;
    gateway.get("/a").await;
    gateway.get("/b").await;
    until_written(&gateway, 2).await;
    gateway.request("POST", "/a", &[]).await;
    ground
        .upstream
        .always(ok(&["cache-control: max-age=600"], "two"));
    let gateway = ground.restart(gateway).await;
    assert_eq!(gateway.get("/a").await.text(), "two");
    assert_eq!(gateway.get("/b").await.text(), "one");
}

#[tokio::test]
async fn an_unsafe_method_is_answered_once_its_removals_are_in_the_file() {
    let ground = Ground::routes(ALL);
    ground
        .upstream
        .always(ok(&["cache-control: max-age=600"], "one"));
    let gateway = ground.start().await;
    let path = ground.directory.path().join("answers/purges");
    // The file ends with a mark that has the number of the next removal.
    let marks = |bytes: &[u8]| bytes[bytes.len() - 40..].to_vec();
    let mut before = marks(&fs::read(&path).unwrap());
    for _ in 0..100 {
        gateway.request("POST", "/a", &[]).await;
        let after = marks(&fs::read(&path).unwrap());
        assert_ne!(before, after);
        before = after;
    }
}

#[tokio::test]
async fn a_purge_outlives_the_process() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    for target in ["/timed/a", "/timed/b", "/timed/c"] {
        gateway.get(target).await;
    }
    until_written(&gateway, 3).await;
    assert_eq!(gateway.purge("url=/timed/a").await.status, 200);
    let gateway = ground.restart(gateway).await;
    assert!(!is_from_disk(&gateway.get("/timed/a").await));
    assert!(is_from_disk(&gateway.get("/timed/b").await));
    let number = gateway.purge("url=/timed/b").await.json()["number"].as_u64();
    assert!(number >= Some(2), "the numbers continue: {number:?}");
    let gateway = ground.restart(gateway).await;
    assert!(
        is_from_disk(&gateway.get("/timed/a").await),
        "it was stored again"
    );
    assert!(!is_from_disk(&gateway.get("/timed/b").await));
    assert_eq!(gateway.purge("all").await.status, 200);
    let gateway = ground.restart(gateway).await;
    assert!(!is_from_disk(&gateway.get("/timed/c").await));
}

#[tokio::test]
async fn what_is_evicted_from_memory_is_still_on_disk() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start_with("cache.max_bytes = \"1MiB\"").await;
    let body = "x".repeat(20_000);
    ground
        .upstream
        .usually(move |seen| Reply::json(format!("\"{} {body}\"", seen.target())));
    let targets: Vec<_> = (0..200).map(|n| format!("/timed/{n}")).collect();
    for target in &targets {
        gateway.get(target).await;
    }
    until_written(&gateway, 200).await;
    let before = ground.upstream.count();
    for target in &targets {
        let answer = gateway.get(target).await;
        assert!(answer.text().starts_with(&format!("\"{target} ")));
    }
    assert_eq!(ground.upstream.count(), before);
    assert!(figure(&gateway, "hits") > 100);
}

#[tokio::test]
async fn another_meaning_of_a_route_finds_nothing() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    let first = gateway.get("/timed/a").await;
    gateway.end().await;
    let changed = |from: &str, to: &str| TIMED.replace(from, to);
    // What does not change answers changes nothing.
    let same = [
        changed("cache = {", "summary = \"A summary\"\n    cache = {"),
        changed("stale_if_error = \"1h\"", "stale_if_error = \"2h\""),
    ];
    for same in same {
        let gateway = ground.start_with(&same).await;
        let answer = gateway.get("/timed/a").await;
        assert!(is_from_disk(&answer), "{same}");
        assert_eq!(answer.body, first.body);
        gateway.end().await;
    }
    let elsewhere = Upstream::start();
    let rows = [
        changed("\"timed\"", "\"other\""),
        changed(
            "/timed/{name}\"",
            "/timed/{name}\"\nupstream_path = \"/other/{name}\"",
        ),
        changed("200 = \"1h\"", "200 = \"2h\""),
        changed(
            "mode = \"override\", times = { 200 = \"1h\", 404 = \"30s\" }",
            "mode = \"respect\"",
        ),
        changed(
            "params.name",
            "query.more = { type = \"string\" }\nparams.name",
        ),
        format!("upstream.url = \"{}\"\n{TIMED}", elsewhere.url()),
    ];
    for changed in rows {
        let gateway = ground.start_with(&changed).await;
        let before = ground.upstream.count() + elsewhere.count();
        let answer = gateway.get("/timed/a").await;
        assert!(!is_from_disk(&answer), "{changed}");
        assert_eq!(
            ground.upstream.count() + elsewhere.count(),
            before + 1,
            "{changed}"
        );
        gateway.end().await;
    }
    // What comes back may have been purged under another meaning.
    let gateway = ground.start().await;
    assert!(!is_from_disk(&gateway.get("/timed/a").await));
}

#[tokio::test]
async fn many_requests_for_one_key_are_one_read() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    gateway.get("/timed/a").await;
    let gateway = ground.restart(gateway).await;
    let mut clients = Vec::new();
    for _ in 0..300 {
        clients.push(gateway.client().await);
    }
    for client in &mut clients {
        client.send_request("GET", "/timed/a", &[]).await;
    }
    for client in &mut clients {
        let answer = client.answer("GET").await;
        assert_eq!(answer.text(), usual_body("/timed/a"));
    }
    assert_eq!(ground.upstream.count(), 1);
    assert_eq!(figure(&gateway, "hits"), 1);
}

#[tokio::test]
async fn a_disk_hit_is_no_miss_of_its_client() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    for n in 0..40 {
        gateway.get(&format!("/timed/{n}")).await;
    }
    gateway.end().await;
    let gateway = ground.start_with("limit.misses_per_minute = 3").await;
    for n in 0..40 {
        let answer = gateway.get(&format!("/timed/{n}")).await;
        assert!(is_from_disk(&answer), "{n}: {}", answer.status);
    }
    assert_eq!(ground.upstream.count(), 40);
}

#[tokio::test]
async fn age_and_freshness_go_on_while_it_is_down() {
    let ground = Ground::routes(TIMED);
    let clock = Clock::manual();
    let gateway = ground.setup().clock(&clock).start();
    let first = gateway.get("/timed/a").await;
    assert_eq!(first.number("age"), 0);
    gateway.end().await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    clock.advance(minutes(20));
    let gateway = ground.setup().clock(&clock).start();
    let answer = gateway.get("/timed/a").await;
    assert_eq!(answer.number("age"), 1200);
    assert_eq!(
        answer.must("cache-status"),
        "ordgate; hit; ttl=2400; detail=disk"
    );
    gateway.end().await;
    clock.advance(minutes(60));
    ground.upstream.once("/timed/a", Reply::json("\"new\""));
    let gateway = ground.setup().clock(&clock).start();
    let answer = gateway.get("/timed/a").await;
    let status = answer.must("cache-status");
    assert!(status.starts_with("ordgate; fwd=stale;"), "{status}");
    assert_eq!(answer.text(), "\"new\"");
    gateway.end().await;
    // Where the upstream fails, it answers for as long as the route says.
    clock.advance(minutes(100));
    ground.upstream.always(Reply::nothing().reset());
    let gateway = ground.setup().clock(&clock).start();
    let answer = gateway.get("/timed/a").await;
    let status = answer.must("cache-status");
    assert!(status.ends_with("detail=stale-if-error"), "{status}");
    gateway.end().await;
    clock.advance(minutes(100));
    let gateway = ground.setup().clock(&clock).start();
    assert!(gateway.get("/timed/a").await.status >= 500);
}
