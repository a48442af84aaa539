//! API keys that the origin sends back: no byte of one reaches a client, and other
//! clients' answers are unaffected. Where a key may be split is in `upstream::key_search`.

use crate::chain::RARELY;
use crate::support::respect::all_with_stale;
use crate::support::{Gate, Gateway, Reply, Setup, Upstream};

const KEY: &str = "k9Zq-ordgate-s3cret-7Xw2";
const OTHER: &str = "second-S3cret-key_4Yv8";

fn plain(upstream: &Upstream) -> Setup {
    let setup = Setup::before(upstream).config(&all_with_stale("1h"));
    setup.keys(&format!("{KEY},{OTHER}"))
}

/// Fails where bytes have a key in them, or five characters of it: a part of a
/// key is as little to be handed on.
fn search(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    for key in [KEY, OTHER] {
        let key = key.to_lowercase();
        // Common words of these tests apart.
        let parts = (0..key.len() - 5).map(|at| &key[at..at + 5]);
        for part in parts.filter(|part| !"ordgate".contains(part)) {
            assert!(!text.contains(part), "{what} has {part}: {text}");
        }
    }
}

/// All that a connection gets for one request, until it is closed or answered.
async fn all_of(gateway: &Gateway, method: &str, target: &str) -> Vec<u8> {
    let mut client = gateway.client().await;
    let fields = [("connection", "close"), ("te", "trailers")];
    client.send_request(method, target, &fields).await;
    client.rest().await
}

fn is_502(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.1 502")
}

#[tokio::test]
async fn a_key_in_a_head_is_a_502() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let fields = [
        format!("x-echo: {KEY}"),
        format!("x-echo: sent {OTHER} to us"),
        format!("location: /?key={KEY}"),
        format!("etag: \"{KEY}\""),
        format!("{KEY}: 1"),
        format!("x-{OTHER}-x: 1"),
    ];
    for field in fields {
        for status in [200, 206, 301, 404, 503] {
            for control in ["no-store", "max-age=60"] {
                let fields = format!("cache-control: {control}\r\n{field}\r\n");
                upstream.once("/v", Reply::with(status, &fields, "body"));
                let got = all_of(&gateway, "GET", "/v").await;
                assert!(is_502(&got), "{status} {field}");
                search(&field, &got);
            }
        }
        for method in ["POST", "HEAD", "OPTIONS"] {
            let body = if method == "HEAD" { "" } else { "body" };
            upstream.once("/v", Reply::with(200, &format!("{field}\r\n"), body));
            let got = all_of(&gateway, method, "/v").await;
            assert!(is_502(&got), "{method} {field}");
            search(&field, &got);
        }
    }
    // Reason phrases are not forwarded.
    let reason = format!("HTTP/1.1 200 {KEY}\r\ncontent-length: 4\r\n\r\nbody");
    upstream.once("/v", Reply::raw(reason));
    let got = all_of(&gateway, "GET", "/v").await;
    assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n"));
    search("a reason phrase", &got);
}

#[tokio::test]
async fn a_key_in_a_body_is_not_forwarded() {
    let upstream = Upstream::start();
    let setup = plain(&upstream).config("upstream.max_body_bytes = \"1KiB\"");
    let gateway = setup.start();
    upstream.once(
        "/honest",
        Reply::with(200, "cache-control: max-age=60\r\n", "honest"),
    );
    let long = "x".repeat(3000);
    for body in [
        format!("{{\"sent\":\"{KEY}\"}}"),
        format!("{long}{OTHER}{long}"),
    ] {
        for (status, method) in [
            (200, "GET"),
            (200, "POST"),
            (206, "GET"),
            (404, "GET"),
            (503, "POST"),
        ] {
            for control in ["no-store", "private", "max-age=60"] {
                let fields = format!("cache-control: {control}\r\n");
                upstream.once("/v", Reply::with(status, &fields, &body));
                let got = all_of(&gateway, method, "/v").await;
                search(&format!("{method} {status} {control}"), &got);
                // What was stored of it would be answered with.
                let fields = "cache-control: no-store\r\n";
                upstream.once("/v", Reply::with(200, fields, "after"));
                assert_eq!(gateway.get("/v").await.text(), "after");
                assert_eq!(gateway.get("/honest").await.text(), "honest");
            }
        }
    }
}

#[tokio::test]
async fn events_are_not_held_back() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let gate = Gate::new();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let first = Reply::raw(format!("{head}data: k9Zq-ordgate\r\n\r\n"));
    upstream.once("/v", first.then(&gate, "data: 2\n\n").hang());
    let mut client = gateway.start_get("/v").await;
    let mut got = String::new();
    for event in ["data: k9Zq-ordgate\r\n\r\n", "data: 2\n\n"] {
        while !got.contains(event) {
            got += &String::from_utf8(client.some(1).await).unwrap();
        }
        gate.open();
    }
}

/// A status's tag is stored, and told to other replicas.
#[tokio::test]
async fn a_key_in_the_tag_of_a_status_is_not_kept() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).chain().keys(KEY).config(RARELY);
    let gateway = setup.manual().start();
    for (tag, expected) in [(KEY, false), ("tip", true)] {
        let fields = format!("content-type: application/json\r\netag: \"{tag}\"\r\n");
        upstream.always(Reply::with(200, &fields, "{\"block_height\":840000}"));
        assert_eq!(gateway.probe(0).await, expected, "{tag}");
    }
}

/// A 304's fields would be stored, and served to everyone.
#[tokio::test]
async fn a_key_in_a_304_is_neither_forwarded_nor_stored() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let fields = "cache-control: max-age=10\r\netag: \"one\"\r\n";
    upstream.once("/v", Reply::with(200, fields, "body"));
    gateway.get("/v").await;
    let unchanged = |fields: &str| Reply::raw(format!("HTTP/1.1 304 OK\r\n{fields}\r\n"));
    for field in [format!("x-echo: {KEY}\r\n"), format!("{KEY}: 1\r\n")] {
        gateway.advance(10_000);
        for (fields, more) in [(fields, &*field), (fields, "")] {
            upstream.once("/v", unchanged(&format!("{fields}{more}")));
            let got = all_of(&gateway, "GET", "/v").await;
            assert!(got.starts_with(b"HTTP/1.1 200"), "what is stored stands in");
            search(&field, &got);
        }
        // To a client's own condition.
        upstream.once("/w", unchanged(&field));
        let condition = [("if-none-match", "\"one\"")];
        let answer = gateway.request("GET", "/w", &condition).await;
        assert_eq!(answer.status, 502);
        search(&field, &answer.bytes());
    }
}

/// A compressed answer, or a part of one, could not be searched.
#[tokio::test]
async fn codings_that_would_hide_a_key_are_not_requested() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let fields = [
        ("accept-encoding", "gzip, br"),
        ("range", "bytes=0-0"),
        ("if-range", "\"one\""),
    ];
    upstream.always(Reply::with(200, "", "whole"));
    let answer = gateway.request("GET", "/v", &fields).await;
    assert_eq!((answer.status, answer.text()), (200, "whole"));
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("accept-encoding").unwrap(), "identity");
    assert_eq!((seen.field("range"), seen.field("if-range")), (None, None));
    upstream.always(Reply::with(200, "content-encoding: gzip\r\n", "zipped"));
    for method in ["GET", "POST"] {
        let answer = gateway.request(method, "/w", &[]).await;
        assert_eq!(answer.status, 502);
    }
    // Without a key nothing is searched for.
    let gateway = Gateway::with(&upstream, &all_with_stale("1h"));
    let answer = gateway.request("GET", "/y", &fields).await;
    assert_eq!((answer.status, answer.text()), (200, "zipped"));
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.field("accept-encoding").unwrap(), "gzip, br");
    assert!(seen.field("range").is_some());
}
