//! Named upstreams: which route uses which, with which key; failures of one affect
//! its own routes only.

use crate::support::respect::all_below;
use crate::support::{BLOCK, Client, Process, Reply, Setup, TOKEN, TX, Upstream, token, until};

/// A gateway before a default upstream and one that has the runes API.
fn before(ordinals: &Upstream, runes: &Upstream) -> Setup {
    let url = runes.url();
    Setup::before(ordinals).config(&format!("[upstreams.runes]\nurl = \"{url}\"\n"))
}

/// Targets of requests that an upstream has received.
fn paths(upstream: &Upstream) -> Vec<String> {
    let targets = upstream.targets().into_iter();
    targets
        .map(|target| target.split('?').next().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn each_route_uses_its_own_upstream() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let gateway = before(&ordinals, &runes).start();
    let mut client = gateway.client().await;
    for path in [TOKEN, TX, BLOCK, TOKEN, BLOCK] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(paths(&ordinals), [TOKEN]);
    assert_eq!(paths(&runes), [TX, BLOCK]);
    let status = gateway.admin("/status").await.json();
    for (name, url, sent) in [("default", ordinals.url(), 1), ("runes", runes.url(), 2)] {
        let upstream = &status["upstreams"][name];
        assert_eq!(upstream["url"], url, "{name}");
        assert_eq!(upstream["sent"], sent, "{name}");
        assert_eq!(upstream["queue"]["waiting"], 0, "{name}");
    }
    assert_eq!(status["upstream"], status["upstreams"]["default"]);
    let metrics = gateway.admin("/metrics").await;
    for line in [
        "ordgate_upstream_results_total{result=\"answered\",upstream=\"default\"} 1\n",
        "ordgate_upstream_results_total{result=\"answered\",upstream=\"runes\"} 2\n",
        "ordgate_upstream_queue{upstream=\"runes\"} 0.0\n",
    ] {
        assert!(metrics.text().contains(line), "{line}");
    }
}

#[tokio::test]
async fn keys_are_shared_unless_one_has_its_own() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    for (own, expected) in [
        (None, "shared-key-of-a-test"),
        (Some("own-key-of-a-test"), "own-key-of-a-test"),
    ] {
        let setup = before(&ordinals, &runes).keys("shared-key-of-a-test");
        let setup = match own {
            None => setup,
            Some(own) => setup.own_keys("runes", own),
        };
        let gateway = setup.start();
        gateway.get(TOKEN).await;
        gateway.get(BLOCK).await;
        let key = |upstream: &Upstream| upstream.seen().pop().unwrap().field("x-api-key");
        assert_eq!(key(&ordinals).unwrap(), "shared-key-of-a-test");
        assert_eq!(key(&runes).unwrap(), expected);
    }
}

#[tokio::test]
async fn failures_of_one_upstream_do_not_affect_another() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let gateway = before(&ordinals, &runes)
        .config("[cache]\nerror_ttl = \"1ms\"\nmax_error_ttl = \"1ms\"\n")
        .start();
    runes.always(Reply::status(500, "{}"));
    let mut client = gateway.client().await;
    let mut refused = 0;
    for number in 0..20 {
        let block = format!("/runes/v1/blocks/{}/activity", 840_000 + number);
        let answer = client.get(&block).await;
        refused += usize::from(answer.status == 503);
        assert!(matches!(answer.status, 502 | 503), "{}", answer.text());
        assert_eq!(client.get(&token(number)).await.status, 200);
    }
    assert!(refused > 0, "the breaker of the one is open");
    let status = gateway.admin("/status").await.json();
    let state = |name: &str| status["upstreams"][name]["breaker"]["state"].clone();
    assert_eq!(
        (state("default"), state("runes")),
        ("closed".into(), "open".into())
    );
    assert_eq!(status["upstreams"]["default"]["failed"], 0);
    assert_eq!(status["upstreams"]["default"]["answered"], 20);
    // A refused key is no other upstream's affair either.
    let gateway = before(&ordinals, &runes)
        .keys("shared-key-of-a-test")
        .start();
    runes.always(Reply::status(401, "{}"));
    for path in [BLOCK, TX] {
        assert_eq!(gateway.get(path).await.status, 502, "{path}");
    }
    assert_eq!(gateway.get(&token(21)).await.status, 200);
}

#[tokio::test]
async fn an_answer_of_one_upstream_is_not_served_for_another() {
    let (one, other) = (Upstream::start(), Upstream::start());
    one.always(Reply::json("{\"of\":\"one\"}"));
    other.always(Reply::json("{\"of\":\"other\"}"));
    let gateway = before(&one, &other).start();
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"other\"}");
    assert_eq!(gateway.get(TOKEN).await.text(), "{\"of\":\"one\"}");
    // The tip of the runes goes back to the default one, and its routes with it.
    let reload = gateway
        .reload("[chain.tip.runes]\nupstream = \"default\"\n")
        .await
        .json();
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"one\"}");
    assert_eq!(
        gateway.get(TOKEN).await.must("cache-status"),
        "ordgate; hit; ttl=9"
    );
    let kept = reload["routes"]["kept"].to_string();
    assert!(
        kept.contains("brc20-token") && !kept.contains("block"),
        "{reload}"
    );
    // And elsewhere again, by its URL.
    let (sent, url) = (other.count(), other.url());
    let moved =
        format!("[upstreams.runes]\nurl = \"{url}\"\n[chain.tip.runes]\nupstream = \"runes\"\n");
    gateway.reload(&moved).await;
    assert_eq!(gateway.get(BLOCK).await.text(), "{\"of\":\"other\"}");
    assert_eq!(other.count(), sent + 1);
}

/// The routes of a plain cache with two origins.
fn two_origins() -> String {
    let route = |name: &str| {
        let to = format!(
            "headers = \"all\"\n    upstream_path = \"/{{rest:*}}\"\n    upstream = \"{name}\""
        );
        all_below(name).replace("headers = \"all\"", &to)
    };
    route("one") + &route("other")
}

#[tokio::test]
async fn an_invalidation_does_not_reach_another_origin() {
    let (one, other) = (Upstream::start(), Upstream::start());
    for upstream in [&one, &other] {
        upstream.always(Reply::with(200, "cache-control: max-age=60\r\n", "{}"));
    }
    let urls = format!(
        "[upstreams.one]\nurl = \"{}\"\n[upstreams.other]\nurl = \"{}\"\n",
        one.url(),
        other.url()
    );
    let gateway = Setup::alone().config(&two_origins()).config(&urls).start();
    for path in ["/one/a", "/other/a"] {
        assert_eq!(gateway.get(path).await.status, 200, "{path}");
    }
    assert_eq!(gateway.request("DELETE", "/one/a", &[]).await.status, 200);
    gateway.get("/one/a").await;
    gateway.get("/other/a").await;
    assert_eq!((one.count(), other.count()), (3, 1));
    assert_eq!(one.targets(), ["/a", "/a", "/a"]);
}

/// Two upstreams may be one server, asked in two ways.
#[tokio::test]
async fn an_invalidation_reaches_all_upstreams_of_its_origin() {
    let origin = Upstream::start();
    origin.always(Reply::with(200, "cache-control: max-age=60\r\n", "{}"));
    let url = origin.url();
    for (other, path) in [
        (url.clone(), "/other/v1/a"),
        (format!("{url}/v1"), "/other/a"),
    ] {
        let urls = format!(
            "[upstreams.one]\nurl = \"{url}\"\n[upstreams.other]\nurl = \"{other}\"\ntimeout = \"5s\"\n"
        );
        let gateway = Setup::alone().config(&two_origins()).config(&urls).start();
        let sent = origin.count();
        gateway.get(path).await;
        gateway.get(path).await;
        assert_eq!(origin.count(), sent + 1);
        let deleted = gateway.request("DELETE", "/one/v1/a", &[]).await;
        assert_eq!(deleted.status, 200);
        gateway.get(path).await;
        assert_eq!(origin.count(), sent + 3, "{other}");
    }
}

#[tokio::test]
async fn it_is_not_ready_before_each_tip_has_been_known() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let status = "{\"status\":\"ready\",\"block_height\":840000}";
    ordinals.always(Reply::json(status));
    runes.always(Reply::status(404, "{\"error\":\"Not found\"}"));
    let gateway = before(&ordinals, &runes)
        .chain()
        .config("chain.tip.runes.every = \"100ms\"")
        .start();
    let known = |name: &str| {
        let mut tips = gateway.tips().into_iter();
        let tip = tips.find(|tip| tip.name == name).unwrap();
        (tip.known_once, tip.failures)
    };
    until("the probes have ended", || {
        known("ordinals").0 && known("runes").1 > 0
    })
    .await;
    let ready = gateway.admin("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(
        ready
            .text()
            .contains("tip \"runes\" of the upstream \"runes\"")
    );
    assert!(
        ready.text().contains("/runes/v1/ answers 404"),
        "{}",
        ready.text()
    );
    assert!(!ready.text().contains("ordinals"), "{}", ready.text());
    let metrics = gateway.admin("/metrics").await;
    for line in [
        "ordgate_tip_known_once{tip=\"ordinals\"} 1.0\n",
        "ordgate_tip_known_once{tip=\"runes\"} 0.0\n",
    ] {
        assert!(metrics.text().contains(line), "{line}");
    }
    assert_eq!(gateway.admin("/status").await.json()["state"], "not ready");
    // Whoever does not want to wait for it need not.
    gateway.reload("admin.ready_needs_tips = false").await;
    assert_eq!(gateway.admin("/status").await.json()["state"], "ready");
    assert_eq!(gateway.admin("/readyz").await.text(), "ready\n");
    gateway.reload("admin.ready_needs_tips = true").await;
    assert_eq!(gateway.admin("/readyz").await.status, 503);
    runes.always(Reply::json(status));
    until("it is known", || known("runes").0).await;
    assert_eq!(gateway.admin("/readyz").await.text(), "ready\n");
    // What has been known once does not end that: it serves by time then.
    let (_, failures) = known("runes");
    runes.always(Reply::status(500, "{}"));
    until("a probe has failed", || known("runes").1 > failures).await;
    assert_eq!(gateway.admin("/readyz").await.text(), "ready\n");
}

#[tokio::test]
async fn no_alert_is_raised_for_an_unused_tip() {
    let origin = Upstream::start();
    let url = origin.url();
    let urls = format!("[upstreams.one]\nurl = \"{url}\"\n[upstreams.other]\nurl = \"{url}\"\n");
    let elsewhere = "[[route]]\nname = \"a\"\npath = \"/a\"\nupstream = \"one\"\ncache = { mode = \"chain\" }\n";
    for routes in [two_origins(), two_origins() + elsewhere] {
        let gateway = Setup::alone().config(&routes).config(&urls).start();
        assert_eq!(gateway.admin("/readyz").await.text(), "ready\n");
        let metrics = gateway.admin("/metrics").await;
        let known = metrics.text();
        let known = known
            .lines()
            .find(|line| line.starts_with("ordgate_tip_known"));
        assert_eq!(known, None);
    }
}

#[tokio::test]
async fn upstreams_without_a_tip_have_separate_chains() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let page = |digit: &str| {
        let (hash, tx) = (format!("{:0<8}{}", "", digit.repeat(56)), digit.repeat(64));
        format!(
            "{{\"limit\":20,\"offset\":0,\"total\":1,\"results\":[{{\"rune\":{{}},\"operation\":\"mint\",\"location\":{{\"block_hash\":\"{hash}\",\"block_height\":5,\"tx_id\":\"{tx}\",\"tx_index\":1,\"timestamp\":1}}}}]}}"
        )
    };
    one.always(Reply::json(page("a")));
    other.always(Reply::json(page("b")));
    let mut config = String::new();
    for (name, upstream) in [("one", &one), ("other", &other)] {
        let url = upstream.url();
        config.push_str(&format!(
            "[upstreams.{name}]\nurl = \"{url}\"\n[[route]]\nname = \"{name}\"\npath = \"/{name}/{{block}}\"\nupstream = \"{name}\"\nparams.block.type = \"block\"\nresponse = \"rune-activity\"\ncache.mode = \"chain\"\n"
        ));
    }
    let gateway = Setup::alone().config(&config).start();
    for _ in 0..3 {
        for path in ["/one/5", "/other/5"] {
            assert_eq!(gateway.get(path).await.status, 200, "{path}");
        }
    }
    let reorgs: u64 = gateway.tips().iter().map(|tip| tip.reorgs).sum();
    assert_eq!((one.count(), other.count(), reorgs), (1, 1, 0));
}

#[tokio::test]
async fn the_command_line_names_them() {
    let (ordinals, runes) = (Upstream::start(), Upstream::start());
    let named = [
        format!("ordinals={}", ordinals.url()),
        format!("runes={}", runes.url()),
    ];
    let both = named.join(",");
    let keys = [
        ("ORDGATE_API_KEYS", "shared-key-of-a-test"),
        ("ORDGATE_API_KEYS_RUNES", "own-key-of-a-test"),
    ];
    let arguments = ["--upstream", &named[0], "--upstream", &named[1]];
    let variable = [keys[0], keys[1], ("ORDGATE_UPSTREAM", &both)];
    for (arguments, variables) in [(&arguments[..], &keys[..]), (&[], &variable)] {
        let (process, public, _) = Process::serve(arguments, variables);
        let mut client = Client::connect(public).await;
        client.get(TOKEN).await;
        client.get(TX).await;
        for (upstream, path, key) in [
            (&ordinals, TOKEN, "shared-key-of-a-test"),
            (&runes, TX, "own-key-of-a-test"),
        ] {
            let mut seen = upstream.seen().into_iter();
            let asked = seen.rfind(|seen| seen.target().starts_with(path)).unwrap();
            assert_eq!(asked.field("x-api-key").unwrap(), key);
        }
        drop(process);
    }
    for (arguments, expected) in [
        (
            &["--upstream", "rune=http://127.0.0.1:9"][..],
            "--upstream rune=...: no route uses an upstream of that name; allowed are names that a route or a tip has as upstream = \"NAME\", and the names of the tips: ordinals, runes",
        ),
        (
            &["--upstream", "runes=127.0.0.1:9"],
            "\"runes=127.0.0.1:9\" came; allowed is an http or https URL",
        ),
        (
            &["--upstream", "runes=http://127.0.0.1:9"],
            "some routes use the default upstream, which has no URL: give --upstream URL",
        ),
        (
            &[
                "--upstream",
                "runes=http://127.0.0.1:9",
                "--upstream",
                "runes=http://127.0.0.1:9",
            ],
            "http://127.0.0.1:9/ came twice",
        ),
    ] {
        let process = Process::start(
            &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat(),
            &[("ORDGATE_ADMIN", "127.0.0.1:0")],
        );
        let left = process.wait();
        assert_eq!(left.code(), Some(2), "{arguments:?}");
        assert!(left.errors.contains(expected), "{}", left.errors);
    }
}
