//! `api = "all"`: the rest of the API, of any content type, by the epochs of its tip.

use ordgate::sandbox::{Sandbox, Settings};

use super::{ORDINALS, RARELY, RUNES, before, is_status, own, probe_all, reply, settled, targets};
use crate::support::{Answer, Gate, Gateway, Reply, Setup, Upstream, until};

const ALL: &str = "api = \"all\"\nlimit.enabled = false";
const ETCHINGS: &str = "/runes/v1/etchings?limit=2&b=%20x&limit=3";
const IMAGE: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: image/x-odd\r\nset-cookie: a=b\r\nserver: s\r\nx-own: 1\r\n";

/// An upstream with a sandbox's statuses, and with these fields and this body for all else.
fn upstream_with(sandbox: &Sandbox, fields: &'static str, body: &'static str) -> Upstream {
    let (upstream, sandbox) = (Upstream::start(), sandbox.clone());
    upstream.usually(move |seen| match is_status(&seen.target()) {
        true => reply(&sandbox, &seen.target()),
        false => Reply::with(200, fields, body),
    });
    upstream
}

/// The tag of a tip, as a field.
fn tag(sandbox: &Sandbox, status: &str) -> String {
    let fields = own(sandbox, status).1;
    let line = fields.lines().find(|line| line.starts_with("etag"));
    format!("{}\r\n", line.unwrap())
}

fn is_hit(answer: &Answer) -> bool {
    answer.must("cache-status").contains("; hit")
}

fn stored(answer: &Answer) -> bool {
    answer.must("cache-status").contains("; stored")
}

#[tokio::test]
async fn the_rest_of_the_api_is_kept_until_its_tip_moves() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = upstream_with(&sandbox, "content-type: text/html\r\n", "<script>");
    let gateway = before(&upstream, ALL).await;
    let mut client = gateway.client().await;
    let own = [
        ("accept", "a/b"),
        ("cookie", "c=d"),
        ("x-api-key", "k"),
        ("range", "bytes=0-1"),
        ("cache-control", "no-cache"),
    ];
    for (method, expected) in [("HEAD", ""), ("GET", "<script>"), ("GET", "<script>")] {
        let answer = client.request(method, ETCHINGS, &own).await;
        assert_eq!((answer.status, answer.text()), (200, expected));
        for (name, value) in [
            ("content-type", "text/html"),
            ("content-security-policy", "sandbox"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "public, max-age=7200"),
        ] {
            assert_eq!(answer.must(name), value, "{method}");
        }
        assert_eq!(is_hit(&answer), method == "GET", "{answer:?}");
    }
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(
        (seen.method(), seen.target()),
        ("GET".into(), ETCHINGS.into())
    );
    assert_eq!(
        seen.names(),
        ["accept", "accept-encoding", "host", "user-agent", "via"]
    );
    assert!(!seen.text().contains("a/b"));
    let held = client.get(ETCHINGS).await.must("etag").to_owned();
    let held = [("if-none-match", &*held)];
    assert_eq!(client.request("GET", ETCHINGS, &held).await.status, 304);
    assert_eq!(client.request("POST", ETCHINGS, &[]).await.status, 405);
    // The other API's tip moves, too: there is one chain.
    sandbox.advance(1);
    gateway.probe(ORDINALS).await;
    assert!(is_hit(&client.get(ETCHINGS).await));
    gateway.probe(RUNES).await;
    assert!(!is_hit(&client.get(ETCHINGS).await));
    assert!(is_hit(&client.get(ETCHINGS).await));
    // It is fetched once more when the indexer has surely finished writing.
    gateway.advance(30_000);
    probe_all(&gateway).await;
    assert!(!is_hit(&client.get(ETCHINGS).await));
    assert_eq!(targets(&upstream).len(), 3);
    // The typed routes, and what is invalid on them, are as before.
    let typed = client.get("/runes/v1/transactions/xyz/activity").await;
    assert_eq!(typed.status, 400);
    assert_eq!(client.get("/other/v1/x").await.status, 404);
}

#[tokio::test]
async fn without_it_only_the_typed_routes_are_there() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = upstream_with(&sandbox, "", "{}");
    let gateway = before(&upstream, "").await;
    assert_eq!(gateway.get(ETCHINGS).await.status, 404);
    assert!(targets(&upstream).is_empty());
}

#[tokio::test]
async fn an_answer_is_streamed_to_the_client_that_leads_while_it_is_stored() {
    let sandbox = Sandbox::new(Settings::default());
    for content in ["/ordinals/v1/inscriptions/7/content", "/runes/v1/x/y"] {
        let upstream = upstream_with(&sandbox, "", "{}");
        let gateway = before(&upstream, ALL).await;
        let gate = Gate::new();
        let halves = Reply::raw(format!("{IMAGE}content-length: 8\r\n\r\nhalf"));
        upstream.once(content, halves.then(&gate, "rest"));
        let mut leader = gateway.start_get(content).await;
        let mut came = String::new();
        while !came.contains("half") {
            came.push_str(&String::from_utf8_lossy(&leader.some(1).await));
        }
        let head = came.to_lowercase();
        for part in [
            "stored",
            "content-length: 8",
            "image/x-odd",
            "sandbox",
            "nosniff",
        ] {
            assert!(head.contains(part), "{part}: {head}");
        }
        for part in ["rest", "set-cookie", "server:", "x-own", "etag:", "via"] {
            assert!(!head.contains(part), "{part}: {head}");
        }
        let mut other = gateway.start_get(content).await;
        gateway.until_all_is_read().await;
        gate.open();
        let answer = other.answer("GET").await;
        assert_eq!(answer.text(), "halfrest");
        assert!(answer.must("cache-status").contains("collapsed"));
        let stored = gateway.get(content).await;
        assert!(
            is_hit(&stored) && stored.field("etag").is_some(),
            "{stored:?}"
        );
        assert_eq!(targets(&upstream).len(), 1);
    }
}

#[tokio::test]
async fn an_inscriptions_content_is_kept_for_a_day_and_what_it_is_otherwise_for_its_epoch() {
    let sandbox = Sandbox::new(Settings::default());
    // Its tag says nothing about the tip, whatever other routes' tags say.
    let upstream = upstream_with(&sandbox, "etag: \"its-own\"\r\n", "{}");
    let gateway = before(&upstream, ALL).await;
    let (whole, content) = (
        "/ordinals/v1/inscriptions/7",
        "/ordinals/v1/inscriptions/7/content",
    );
    for target in [whole, content] {
        assert!(stored(&gateway.get(target).await));
    }
    let fields = tag(&sandbox, "/ordinals/v1/");
    upstream.once(
        "/ordinals/v1/brc-20/tokens",
        Reply::with(200, &fields, "{}"),
    );
    assert!(stored(&gateway.get("/ordinals/v1/brc-20/tokens").await));
    sandbox.advance(1);
    probe_all(&gateway).await;
    assert!(stored(&gateway.get(whole).await));
    gateway.advance(86_399_000);
    assert!(is_hit(&gateway.get(content).await));
    gateway.advance(1_000);
    assert!(!is_hit(&gateway.get(content).await));
}

#[tokio::test]
async fn an_answer_of_another_tip_is_passed_on_and_not_stored() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = upstream_with(&sandbox, "", "1");
    let gateway = before(&upstream, ALL).await;
    let statuses = || upstream.targets().len() - targets(&upstream).len();
    upstream.once(
        "/runes/v1/a",
        Reply::with(200, &tag(&sandbox, "/runes/v1/"), "2"),
    );
    assert!(stored(&gateway.get("/runes/v1/a").await));
    let before = statuses();
    upstream.once("/runes/v1/b", Reply::with(200, "etag: \"new\"\r\n", "3"));
    let answer = gateway.get("/runes/v1/b").await;
    assert_eq!(
        (answer.text(), answer.must("cache-control")),
        ("3", "no-store")
    );
    assert!(!stored(&answer));
    gateway.advance(1_000);
    until("the status is asked for", || statuses() > before).await;
    // Without a tag: sent before the present tip was seen.
    let gate = Gate::new();
    upstream.once("/runes/v1/c", Reply::with(200, "", "4").behind(&gate));
    let mut early = gateway.start_get("/runes/v1/c").await;
    until("it is sent", || targets(&upstream).len() == 3).await;
    sandbox.advance(1);
    probe_all(&gateway).await;
    gate.open();
    let answer = early.answer("GET").await;
    assert_eq!((answer.text(), stored(&answer)), ("4", false));
    assert_eq!(gateway.get("/runes/v1/c").await.text(), "1");
}

#[tokio::test]
async fn what_is_purged_or_of_an_epoch_that_ends_while_it_comes_is_not_found_later() {
    for by in ["purge", "epoch"] {
        let sandbox = Sandbox::new(Settings::default());
        let upstream = upstream_with(&sandbox, "", "new");
        let gateway = before(&upstream, ALL).await;
        let gate = Gate::new();
        let halves = Reply::raw(format!("{IMAGE}content-length: 8\r\n\r\nhalf"));
        upstream.once("/runes/v1/a", halves.then(&gate, "rest"));
        let mut leader = gateway.start_get("/runes/v1/a").await;
        leader.some(1).await;
        match by {
            "purge" => assert_eq!(gateway.purge("all").await.status, 200),
            _ => {
                sandbox.advance(1);
                probe_all(&gateway).await;
            }
        }
        // It waits for the one that is outdated, and is not answered by it.
        let mut later = gateway.start_get("/runes/v1/a").await;
        gateway.until_all_is_read().await;
        gate.open();
        assert_eq!(later.answer("GET").await.text(), "new", "{by}");
        leader.some(4).await;
        assert_eq!(gateway.get("/runes/v1/a").await.text(), "new", "{by}");
        assert_eq!(targets(&upstream).len(), 2, "{by}");
    }
}

#[tokio::test]
async fn other_statuses_are_not_stored_and_a_frameworks_404_is_an_answer() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = upstream_with(&sandbox, "", "{}");
    let gateway = before(&upstream, ALL).await;
    let framework = r#"{"message":"Route GET:/x not found","error":"Not Found","statusCode":404}"#;
    for (status, expected, is_stored) in [
        (404, 404, true),
        (400, 400, false),
        (422, 422, false),
        (204, 502, false),
        (301, 502, false),
        (401, 502, false),
        (500, 502, false),
    ] {
        let target = format!("/runes/v1/{status}");
        let text = "content-type: text/plain\r\n";
        for _ in 0..2 {
            upstream.once(&target, Reply::with(status, text, framework));
        }
        let first = gateway.get(&target).await;
        assert_eq!(first.status, expected, "{status}");
        assert_eq!(first.text() == framework, expected == status, "{status}");
        assert_eq!(stored(&first), is_stored, "{status}: {first:?}");
        let second = gateway.get(&target).await;
        assert_eq!(is_hit(&second), is_stored, "{status}: {second:?}");
    }
    gateway.advance(1_000);
    assert!(!is_hit(&gateway.get("/runes/v1/404").await));
}

#[tokio::test]
async fn what_is_too_large_is_passed_through_and_not_waited_for() {
    let sandbox = Sandbox::new(Settings::default());
    for length in [
        "content-length: 2000\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n7d0\r\n",
    ] {
        let upstream = upstream_with(&sandbox, "", "{}");
        let gateway = before(
            &upstream,
            &format!("{ALL}\nupstream.max_body_bytes = \"1KiB\""),
        )
        .await;
        let end = if length.starts_with('t') {
            "\r\n0\r\n\r\n"
        } else {
            ""
        };
        let large = || Reply::raw(format!("{IMAGE}{length}{}{end}", "x".repeat(2000)));
        for round in 0..2 {
            upstream.once("/runes/v1/large", large());
            let answer = gateway.get("/runes/v1/large").await;
            assert_eq!((answer.status, answer.body.len()), (200, 2000), "{length}");
            assert_eq!(answer.must("content-security-policy"), "sandbox");
            assert!(answer.field("set-cookie").is_none(), "{answer:?}");
            until("it has ended", || gateway.relayed() == 0).await;
            assert_eq!(targets(&upstream).len(), round + 1);
        }
        // It is known by now that its answers cannot be shared.
        let gate = Gate::new();
        upstream.once("/runes/v1/large", large().behind(&gate));
        let _slow = gateway.start_get("/runes/v1/large").await;
        until("it is sent", || targets(&upstream).len() == 3).await;
        assert_eq!(gateway.get("/runes/v1/large").await.text(), "{}");
    }
}

#[tokio::test]
async fn a_file_changes_the_routes_of_the_rest_and_may_add_its_own() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = upstream_with(&sandbox, "", "1");
    let config = r#"
        api = "all"
        [[route]]
        name = "runes-rest"
        untrusted = false
        [[route]]
        name = "own"
        path = "/runes/v1/own/{rest:*}"
        response = "any"
        cache.mode = "off"
    "#;
    let setup = Setup::before(&upstream).chain().config(RARELY);
    let gateway: Gateway = setup.config(config).manual().start();
    settled(&gateway).await;
    let answer = gateway.get("/runes/v1/etchings").await;
    assert!(answer.field("x-content-type-options").is_none());
    assert!(answer.field("content-security-policy").is_none());
    for _ in 0..2 {
        let own = gateway.get("/runes/v1/own/a").await;
        assert_eq!((own.text(), own.must("cache-control")), ("1", "no-store"));
    }
    assert_eq!(targets(&upstream).len(), 3);
}
