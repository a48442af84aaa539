//! What is forwarded: the exact bytes, over which connections, with which key.

use ordgate::serve::StartError;
use ordgate::upstream::SetupError;

use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, Setup, TOKEN, Upstream, token};

#[tokio::test]
async fn connections_are_reused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for number in 0..10 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn the_forwarded_request_has_exactly_these_fields() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).keys("a-key-of-ours").start();
    let fields = [
        ("x-api-key", "the-clients-own"),
        ("X-API-Key", "another"),
        ("cookie", "a=b"),
        ("authorization", "Bearer x"),
        ("accept", "text/html"),
        ("user-agent", "some client"),
        ("accept-encoding", "gzip, br"),
        ("forwarded", "for=1.2.3.4"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
        ("via", "1.1 somewhere"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("connection", "keep-alive, x-api-key"),
        ("if-none-match", "\"x\""),
        ("if-modified-since", "Fri, 20 Nov 2026 16:00:00 GMT"),
        ("range", "bytes=0-3"),
        ("cache-control", "no-cache"),
        ("referer", "https://a.example/"),
        ("origin", "https://a.example"),
    ];
    let target = "/runes/v1/blocks/0840000/activity?x=y&offset=0&limit=20";
    let answer = gateway.request("GET", target, &fields).await;
    assert_eq!(answer.status, 200);
    let host = upstream.address();
    let version = env!("CARGO_PKG_VERSION");
    let mut lines: Vec<_> = upstream.seen()[0]
        .text()
        .trim_end()
        .split("\r\n")
        .map(str::to_owned)
        .collect();
    lines[1..].sort();
    // Its own name in `via` is the process's.
    let via = lines.iter().position(|line| line.starts_with("via: "));
    let via = lines.remove(via.unwrap());
    assert!(
        via.starts_with("via: 1.1 ordgate-") && via.len() == 33,
        "{via}"
    );
    assert_eq!(
        lines,
        [
            format!("GET {BLOCK_CANONICAL} HTTP/1.1"),
            "accept-encoding: identity".to_owned(),
            "accept: application/json".to_owned(),
            format!("host: {host}"),
            format!("user-agent: ordgate/{version}"),
            "x-api-key: a-key-of-ours".to_owned(),
        ]
    );
}

#[tokio::test]
async fn without_a_configured_key_no_key_is_sent() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let fields = [("x-api-key", "the-clients-own")];
    assert_eq!(gateway.request("GET", TOKEN, &fields).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("x-api-key"), None);
    assert!(!seen.text().contains("the-clients-own"));
}

#[tokio::test]
async fn the_key_can_be_sent_in_another_field() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("ours")
        .config("upstream.api_key_header = \"X-Other\"")
        .start();
    let fields = [("x-other", "theirs")];
    assert_eq!(gateway.request("GET", TOKEN, &fields).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("x-other").as_deref(), Some("ours"));
    assert_eq!(seen.field("x-api-key"), None);
}

#[tokio::test]
async fn a_path_of_the_base_url_stands_before_every_target() {
    let upstream = Upstream::start();
    for (number, prefix) in ["/api", "/api/", "/a/b/c"].into_iter().enumerate() {
        let gateway = Setup::at(&format!("{}{prefix}", upstream.url())).start();
        assert_eq!(gateway.get(BLOCK).await.status, 200);
        let expected = format!("{}{BLOCK_CANONICAL}", prefix.trim_end_matches('/'));
        assert_eq!(upstream.targets()[number], expected);
        // What the cache knows it by has no such prefix.
        let hit = gateway.get(BLOCK).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
    }
}

#[tokio::test]
async fn a_key_is_not_sent_without_tls() {
    let start = |url: &str, keys: bool, more: &str| {
        let setup = Setup::at(url).config(more);
        let setup = if keys { setup.keys("a-key") } else { setup };
        setup.try_start()
    };
    for url in ["http://api.example", "http://192.0.2.1:80/api"] {
        let refused = start(url, true, "").err();
        let Some(StartError::Upstream(SetupError::PlainHttp { .. })) = &refused else {
            panic!("{url}: {refused:?}")
        };
        let message = refused.unwrap().to_string();
        assert!(message.contains("allow_plain_http"), "{message}");
        assert!(!message.contains("a-key"), "{message}");
        assert!(start(url, false, "").is_ok(), "without a key it may");
        assert!(start(url, true, "upstream.allow_plain_http = true").is_ok());
    }
    for url in [
        "https://api.example",
        "http://127.0.0.1:1",
        "http://localhost:1",
    ] {
        assert!(start(url, true, "").is_ok(), "{url}");
    }
}

#[tokio::test]
async fn a_gateway_needs_an_upstream() {
    let refused = Setup::alone().try_start().err().unwrap();
    assert!(refused.to_string().contains("--upstream"), "{refused}");
}
