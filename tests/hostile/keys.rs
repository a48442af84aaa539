//! API keys that the origin sends back: no byte of one reaches a client, and other
//! clients' answers are unaffected.

use ordgate::probe::ProbeOutcome;

use crate::chain::RARELY;
use crate::support::respect::all_with_stale;
use crate::support::{Answer, Client, Gate, Gateway, Reply, Setup, Upstream};

const KEY: &str = "k9Zq-ordgate-s3cret-7Xw2";
const OTHER: &str = "second-S3cret-key_4Yv8";

fn plain(upstream: &Upstream) -> Setup {
    let keys = format!("{KEY},{OTHER}");
    let setup = Setup::before(upstream).config(&all_with_stale("1h"));
    setup.keys(&keys)
}

/// Fails where bytes have a key in them, or five characters of it: a part of a
/// key is as little to be handed on.
fn search(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    for key in [KEY, OTHER] {
        let key = key.to_lowercase();
        for at in 0..key.len() - 5 {
            let part = &key[at..at + 5];
            // Common words of these tests.
            if ["ordga", "rdgat", "dgate"].contains(&part) {
                continue;
            }
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

async fn honest(client: &mut Client) -> Answer {
    let answer = client.get("/honest").await;
    assert_eq!((answer.status, answer.text()), (200, "honest"));
    answer
}

fn is_502(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.1 502")
}

#[tokio::test]
async fn a_key_in_a_head_is_a_502() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    upstream.once(
        "/honest",
        Reply::with(200, "cache-control: max-age=60\r\n", "honest"),
    );
    let mut client = gateway.client().await;
    honest(&mut client).await;
    let fields = [
        format!("x-echo: {KEY}"),
        format!("x-echo: sent {OTHER} to us"),
        format!("location: /?key={KEY}"),
        format!("set-cookie: key={KEY}"),
        format!("etag: \"{KEY}\""),
        format!("{KEY}: 1"),
        format!("x-{OTHER}-x: 1"),
        format!("warning: 199 - \"{KEY}\""),
    ];
    for field in fields {
        for status in [200, 201, 206, 301, 400, 404, 500, 503] {
            for control in ["no-store", "max-age=60"] {
                let fields = format!("cache-control: {control}\r\n{field}\r\n");
                upstream.once("/v", Reply::with(status, &fields, "body"));
                let got = all_of(&gateway, "GET", "/v").await;
                assert!(is_502(&got), "{status} {field}");
                search(&field, &got);
            }
        }
        for method in ["POST", "HEAD", "OPTIONS", "DELETE"] {
            let fields = format!("{field}\r\n");
            let body = if method == "HEAD" { "" } else { "body" };
            upstream.once("/v", Reply::with(200, &fields, body));
            let got = all_of(&gateway, method, "/v").await;
            assert!(is_502(&got), "{method} {field}");
            search(&field, &got);
        }
        honest(&mut client).await;
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
    let gateway = plain(&upstream)
        .config("upstream.max_body_bytes = \"1KiB\"")
        .start();
    upstream.once(
        "/honest",
        Reply::with(200, "cache-control: max-age=60\r\n", "honest"),
    );
    let mut client = gateway.client().await;
    honest(&mut client).await;
    let long = "x".repeat(3000);
    let bodies = [
        format!("{{\"sent\":\"{KEY}\"}}"),
        format!("{long}{OTHER}{long}"),
        OTHER.to_owned(),
    ];
    for body in bodies {
        for (status, method) in [
            (200, "GET"),
            (200, "POST"),
            (201, "PUT"),
            (206, "GET"),
            (302, "GET"),
            (404, "GET"),
            (401, "GET"),
            (500, "GET"),
            (503, "POST"),
        ] {
            for control in ["no-store", "private", "max-age=60"] {
                let fields = format!("cache-control: {control}\r\n");
                upstream.once("/v", Reply::with(status, &fields, &body));
                let got = all_of(&gateway, method, "/v").await;
                search(&format!("{method} {status} {control}"), &got);
                // What was stored of it would be answered with.
                upstream.once(
                    "/v",
                    Reply::with(200, "cache-control: no-store\r\n", "after"),
                );
                let after = gateway.get("/v").await;
                assert_eq!((after.status, after.text()), (200, "after"));
            }
        }
        honest(&mut client).await;
    }
}

/// Chunks of the origin's of every size, each sent when the one before it has
/// arrived.
#[tokio::test]
async fn a_key_split_between_chunks_is_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let body = format!("before it {KEY} after it");
    for size in [1, 2, 5, 7, 11, 20, 23, 24, 25, 33] {
        upstream.once("/v", Reply::chunked(&body, size));
        let got = all_of(&gateway, "POST", "/v").await;
        search(&format!("chunks of {size}"), &got);
        assert!(!got.ends_with(b"0\r\n\r\n"), "it is broken off");
    }
    let (gate, at) = (Gate::new(), body.find(KEY).unwrap() + 9);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let first = Reply::raw(format!("{head}{}", &body[..at]));
    upstream.once("/v", first.then(&gate, &body[at..]));
    let mut client = gateway.client().await;
    client.send_request("POST", "/v", &[]).await;
    let mut got = Vec::new();
    while !got.ends_with(b"before it ") {
        got.extend(client.some(1).await);
    }
    gate.open();
    got.extend(client.rest().await);
    assert!(got.ends_with(b"before it "), "it is broken off there");
    search("two halves", &got);
}

/// The origin echoes a guess and pauses: a client that got more for a wrong byte than for
/// the right one would learn the key byte by byte.
#[tokio::test]
async fn how_much_is_held_back_does_not_tell_a_right_guess_from_a_wrong_one() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    for known in 0..KEY.len() - 1 {
        let mut came = Vec::new();
        for guess in [&KEY[..=known], &format!("{}!", &KEY[..known])] {
            let gate = Gate::new();
            let head = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 99\r\n\r\n";
            let first = Reply::raw(format!("{head}guess {guess}"));
            let rest = " ".repeat(99 - "guess ".len() - guess.len());
            upstream.once("/v", first.then(&gate, &rest));
            let mut client = gateway.client().await;
            client.send_request("GET", "/v", &[]).await;
            let mut got = Vec::new();
            while !String::from_utf8_lossy(&got).contains("guess ") {
                got.extend(client.some(1).await);
            }
            let got = String::from_utf8(got).unwrap();
            came.push(got.split_once("guess ").unwrap().1.len());
            gate.open();
            let rest = client.some(guess.len()).await;
            assert!(rest.starts_with(guess.as_bytes()), "it is no key");
        }
        assert_eq!(came, [0, 0], "{known} bytes are known");
    }
}

#[tokio::test]
async fn events_are_not_held_back() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let events = ["data: one\n\n", "data: k9Zq-ordgate\r\n\r\n", "data: 3\n\n"];
    let gates = [Gate::new(), Gate::new()];
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let stream = Reply::raw(format!("{head}{}", events[0]));
    let stream = stream.then(&gates[0], events[1]).then(&gates[1], events[2]);
    upstream.once("/v", stream.hang());
    let mut client = gateway.client().await;
    client.send_request("GET", "/v", &[]).await;
    let mut got = String::new();
    for (event, gate) in events.iter().zip(gates.iter().map(Some).chain([None])) {
        while !got.contains(event) {
            got += &String::from_utf8(client.some(1).await).unwrap();
        }
        if let Some(gate) = gate {
            gate.open();
        }
    }
}

/// A status's tag is stored, and told to other replicas.
#[tokio::test]
async fn a_key_in_the_tag_of_a_status_is_not_kept() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().keys(KEY).config(RARELY);
    let gateway = gateway.manual().start();
    for (tag, expected) in [(KEY, ProbeOutcome::Failed), ("tip", ProbeOutcome::Learned)] {
        let fields = format!("content-type: application/json\r\netag: \"{tag}\"\r\n");
        upstream.always(Reply::with(200, &fields, "{\"block_height\":840000}"));
        assert_eq!(gateway.probe(0).await, expected, "{tag}");
    }
}

#[tokio::test]
async fn a_key_in_trailers_is_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).start();
    let raw = |trailer: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n\
             4\r\nbody\r\n0\r\n{trailer}\r\n\r\n"
        )
    };
    for trailer in [format!("x-end: {KEY}"), format!("{KEY}: 1")] {
        upstream.once("/v", Reply::raw(raw(&trailer)));
        search(&trailer, &all_of(&gateway, "POST", "/v").await);
    }
    upstream.once("/v", Reply::raw(raw("x-end: of it")));
    let got = String::from_utf8(all_of(&gateway, "POST", "/v").await).unwrap();
    assert!(
        got.ends_with("4\r\nbody\r\n0\r\nx-end: of it\r\n\r\n"),
        "{got}"
    );
}

/// A 304's fields would be stored, and served to everyone.
#[tokio::test]
async fn a_key_in_a_304_is_neither_forwarded_nor_stored() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let fields = "cache-control: max-age=10\r\netag: \"one\"\r\n";
    upstream.once("/v", Reply::with(200, fields, "body"));
    gateway.get("/v").await;
    for field in [format!("x-echo: {KEY}"), format!("{KEY}: 1")] {
        gateway.advance(10_000);
        let unchanged = format!("HTTP/1.1 304 Not Modified\r\n{fields}{field}\r\n\r\n");
        upstream.once("/v", Reply::raw(unchanged));
        let got = all_of(&gateway, "GET", "/v").await;
        assert!(got.starts_with(b"HTTP/1.1 200"), "what is stored stands in");
        search(&field, &got);
        upstream.once(
            "/v",
            Reply::raw(format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n")),
        );
        search(&field, &all_of(&gateway, "GET", "/v").await);
        // To a client's own condition.
        let mut client = gateway.client().await;
        let unchanged = format!("HTTP/1.1 304 Not Modified\r\n{field}\r\n\r\n");
        upstream.once("/w", Reply::raw(unchanged));
        let answer = client
            .request("GET", "/w", &[("if-none-match", "\"one\"")])
            .await;
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
        ("range", "bytes=0-0,1-1,2-2"),
        ("if-range", "\"one\""),
    ];
    upstream.always(Reply::with(200, "", "whole"));
    let answer = gateway.request("GET", "/v", &fields).await;
    assert_eq!((answer.status, answer.text()), (200, "whole"));
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("accept-encoding").unwrap(), "identity");
    assert_eq!((seen.field("range"), seen.field("if-range")), (None, None));
    upstream.always(Reply::with(200, "content-encoding: gzip\r\n", "zipped"));
    for target in ["/w", "/x"] {
        assert_eq!(gateway.get(target).await.status, 502);
        let posted = gateway.request("POST", target, &[]).await;
        assert_eq!(posted.status, 502);
    }

    // Without a key nothing is searched for.
    let gateway = Gateway::with(&upstream, &all_with_stale("1h"));
    let answer = gateway.request("GET", "/y", &fields).await;
    assert_eq!((answer.status, answer.text()), (200, "zipped"));
    let seen = upstream.seen();
    let seen = seen.last().unwrap();
    assert_eq!(seen.field("accept-encoding").unwrap(), "gzip, br");
    assert!(seen.field("range").is_some());
}
