//! What is forwarded: the exact bytes, over which connections, with which key.

use ordgate::serve::StartError;
use ordgate::upstream::SetupError;

use super::{key, keyed};
use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, Setup, TOKEN, Upstream, token};

#[tokio::test]
async fn the_forwarded_request_has_exactly_these_fields() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).keys("a-key-of-ours").start();
    let names = "x-api-key X-API-Key cookie authorization accept user-agent accept-encoding forwarded \
        x-forwarded-for x-real-ip via te upgrade if-none-match if-modified-since range \
        cache-control referer origin";
    let mut fields: Vec<_> = names.split(' ').map(|name| (name, "theirs")).collect();
    fields.push(("connection", "keep-alive, x-api-key"));
    let target = "/runes/v1/blocks/0840000/activity?x=y&offset=0&limit=20";
    let answer = gateway.request("GET", target, &fields).await;
    assert_eq!(answer.status, 200);
    let text = upstream.seen()[0].text();
    let mut lines: Vec<_> = text.trim_end().split("\r\n").collect();
    lines[1..].sort_unstable();
    // Its own name in `via` is the process's.
    let via = lines.iter().position(|line| line.starts_with("via: "));
    let via = lines.remove(via.unwrap());
    let is_own = via.starts_with("via: 1.1 ordgate-") && via.len() == 33;
    assert!(is_own, "{via}");
    let expected = [
        &format!("GET {BLOCK_CANONICAL} HTTP/1.1"),
        "accept-encoding: identity",
        "accept: application/json",
        &format!("host: {}", upstream.address()),
        concat!("user-agent: ordgate/", env!("CARGO_PKG_VERSION")),
        "x-api-key: a-key-of-ours",
    ];
    assert_eq!(lines, expected);
}

/// A self-hosted server gets no key, and has no budget then.
#[tokio::test]
async fn the_key_is_sent_in_the_configured_field_or_not_at_all() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "ours")
        .config("upstream.requests_per_minute = 50")
        .start();
    for (number, (config, field, name, left)) in [
        ("send_api_key = true", Some("x-api-key"), "key-1", Some(49)),
        ("send_api_key = false", None, "none", None),
        ("send_api_key = true", Some("x-api-key"), "key-1", Some(48)),
        (
            "api_key_header = \"X-Other\"",
            Some("x-other"),
            "key-1",
            Some(47),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let done = gateway.reload(&format!("upstream.{config}")).await;
        assert_eq!(done.status, 200, "{}", done.text());
        let fields = [("x-api-key", "theirs"), ("x-other", "theirs")];
        let answer = gateway.request("GET", &token(number), &fields).await;
        assert_eq!(answer.status, 200);
        let seen = upstream.seen().pop().unwrap();
        for name in ["x-api-key", "x-other"] {
            let expected = (field == Some(name)).then_some("ours");
            assert_eq!(seen.field(name).as_deref(), expected, "{config}");
        }
        let shown = key(&gateway, 0);
        assert_eq!(
            (shown["name"].as_str(), shown["budget_left"].as_u64()),
            (Some(name), left)
        );
    }
    let gateway = Gateway::before(&upstream);
    gateway
        .request("GET", TOKEN, &[("x-api-key", "theirs")])
        .await;
    let seen = upstream.seen().pop().unwrap();
    assert!(
        !seen.names().contains(&"x-api-key".to_owned()),
        "no key is configured"
    );
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

/// Where a key would be exposed stands in `upstream::settings`.
#[tokio::test]
async fn a_key_is_not_sent_without_tls() {
    let start =
        |url: &str, keys: &str, more: &str| Setup::at(url).keys(keys).config(more).try_start();
    let plain = "http://api.example";
    let refused = start(plain, "a-key", "").err();
    let Some(StartError::Upstream(SetupError::PlainHttp { .. })) = &refused else {
        panic!("{refused:?}")
    };
    let message = refused.unwrap().to_string();
    assert!(message.contains("allow_plain_http"), "{message}");
    assert!(!message.contains("a-key"), "{message}");
    assert!(start(plain, "", "").is_ok(), "without a key it may");
    assert!(start(plain, "a-key", "upstream.allow_plain_http = true").is_ok());
    assert!(start("http://localhost:1", "a-key", "").is_ok());
    let refused = Setup::alone().try_start().err().unwrap();
    assert!(refused.to_string().contains("--upstream"), "{refused}");
}
