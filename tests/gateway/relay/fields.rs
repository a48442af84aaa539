//! Forwarded fields in both directions.

use super::{before, is_refused};
use crate::respect::plain;
use crate::support::{Reply, Upstream};

#[tokio::test]
async fn end_to_end_request_fields_are_forwarded_and_hop_by_hop_ones_are_not() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let fields = [
        ("connection", "x-listed, keep-alive, x-absent"),
        ("x-listed", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers"),
        ("upgrade", "websocket"),
        ("proxy-authorization", "Basic x"),
        ("x-api-key", "the client's own"),
        ("x-any", "one"),
        ("x-any", "two"),
        ("cookie", "a=1"),
        ("accept", "text/html"),
        ("via", "1.0 before"),
        ("user-agent", "client"),
        ("x-forwarded-host", "client.example"),
    ];
    let mut client = gateway.client().await;
    let answer = client.request("GET", "/v?a=b", &fields).await;
    assert_eq!(answer.status, 200);
    let seen = &upstream.seen()[0];
    let expected =
        "accept cookie forwarded host user-agent via via x-any x-any x-forwarded-for x-real-ip";
    assert_eq!(seen.names().join(" "), expected, "{}", seen.text());
    let address = upstream.address().to_string();
    assert_eq!(seen.field("host"), Some(address));
    assert_eq!(seen.target(), "/v?a=b");
    let all = seen.text();
    let place = |part: &str| all.find(part).unwrap_or_else(|| panic!("{part} in {all}"));
    assert!(place("via: 1.0 before") < place("via: 1.1 ordgate"));
    assert!(place("x-any: one") < place("x-any: two"));
}

#[tokio::test]
async fn end_to_end_response_fields_are_forwarded_and_hop_by_hop_ones_are_not() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    for control in ["no-store", "max-age=60"] {
        let fields = format!(
            "cache-control: {control}\r\nconnection: x-listed, close\r\nx-listed: 1\r\n\
             keep-alive: timeout=5\r\nproxy-authenticate: Basic\r\nupgrade: h2c\r\n\
             x-any: one\r\nx-any: two\r\nserver: origin\r\nvia: 1.0 behind\r\n\
             set-cookie: a=1\r\nratelimit-limit: 5\r\netag: \"one\"\r\n"
        );
        let target = format!("/{control}");
        upstream.always(Reply::with(200, &fields, "body").close());
        for _ in 0..2 {
            let answer = gateway.get(&target).await;
            for gone in "x-listed keep-alive proxy-authenticate upgrade connection".split(' ') {
                assert_eq!(answer.field(gone), None, "{control}");
            }
            assert_eq!(answer.all("x-any"), ["one", "two"]);
            assert_eq!(answer.must("server"), "origin");
            assert_eq!(answer.all("via"), ["1.0 behind", "1.1 ordgate"]);
            assert_eq!(answer.must("set-cookie"), "a=1");
            assert_eq!(answer.must("ratelimit-limit"), "5");
            assert_eq!(answer.must("etag"), "\"one\"");
            assert_eq!(answer.field("access-control-allow-origin"), None);
            assert_eq!(answer.text(), "body");
        }
    }
}

#[tokio::test]
async fn the_configured_key_replaces_the_clients() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).keys("our-own-key").start();
    let fields = [("X-API-Key", "theirs")];
    gateway.request("POST", "/v", &fields).await;
    assert_eq!(
        upstream.seen()[0].field("x-api-key").unwrap(),
        "our-own-key"
    );
    assert!(!upstream.seen()[0].text().contains("theirs"));
}

#[tokio::test]
async fn no_upgrade_is_forwarded() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    upstream.once("/v", Reply::raw(switching));
    let fields = [("connection", "upgrade"), ("upgrade", "websocket")];
    let answer = gateway.client().await.request("GET", "/v", &fields).await;
    assert_eq!(answer.status, 501, "{answer:?}");
    assert_eq!(upstream.count(), 0);
    // Nor where the origin does so unasked, or an offer of h2c is ignored.
    let fields = [("connection", "upgrade"), ("upgrade", "h2c")];
    let answer = gateway.client().await.request("GET", "/v", &fields).await;
    assert!(is_refused(&answer), "{answer:?}");
    assert_eq!(upstream.seen()[0].field("upgrade"), None);
    assert_eq!(gateway.get("/v").await.status, 200);
    for method in ["CONNECT", "TRACE"] {
        let answer = gateway.client().await.request(method, "/v", &[]).await;
        assert_eq!(answer.status, 405, "{method}");
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn of_listed_fields_only_these_go_up() {
    let upstream = Upstream::start();
    upstream.always(crate::respect::ok(
        &["cache-control: max-age=60", "vary: accept, x-own"],
        "body",
    ));
    let route = crate::respect::ALL.replace(
        "headers = \"all\"",
        "headers = [\"Accept\", \"x-forwarded-host\"]",
    );
    let gateway = crate::support::Setup::before(&upstream)
        .config(&route)
        .start();
    let fields = |own| {
        [
            ("accept", "a/b"),
            ("x-own", own),
            ("x-forwarded-host", "c.example"),
        ]
    };
    gateway.request("GET", "/v", &fields("1")).await;
    let address = ["forwarded", "x-forwarded-for", "x-real-ip"];
    let expected = [&["accept", address[0], "host", "via"][..], &address[1..]].concat();
    assert_eq!(upstream.seen()[0].names(), expected);
    // What does not go up cannot vary the answer.
    gateway.request("GET", "/v", &fields("2")).await;
    assert_eq!(upstream.count(), 1);
}
