//! Forwarded fields in both directions.

use super::{before, is_refused, text};
use crate::respect::plain;
use crate::support::{Client, Gateway, Reply, Upstream, token};

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
    let expected = [
        "accept",
        "cookie",
        "forwarded",
        "host",
        "user-agent",
        "via",
        "via",
        "x-any",
        "x-any",
        "x-forwarded-for",
        "x-real-ip",
    ];
    assert_eq!(seen.names(), expected, "{}", seen.text());
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
            for gone in [
                "x-listed",
                "keep-alive",
                "proxy-authenticate",
                "upgrade",
                "connection",
            ] {
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
async fn statuses_and_bodies_are_unchanged() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let mut client = gateway.client().await;
    for status in [
        200, 201, 206, 299, 301, 302, 307, 400, 401, 403, 404, 410, 418, 429, 451, 500, 502, 503,
        504, 599, 999,
    ] {
        let body = format!("as it is: {status}");
        upstream.once("/v", Reply::with(status, "location: /w\r\n", &body));
        let answer = client.request("POST", "/v", &[]).await;
        assert_eq!((answer.status, answer.text()), (status, &*body));
        assert_eq!(answer.must("location"), "/w");
    }
    for status in [204, 304] {
        let head = format!(
            "HTTP/1.1 {status} Telling\r\ncache-control: no-store\r\nx-f: 1\r\netag: \"one\"\r\n\r\n"
        );
        upstream.once("/v", Reply::raw(head));
        let fields = [("if-none-match", "\"one\"")];
        let answer = client.request("GET", "/v", &fields).await;
        assert_eq!((answer.status, answer.must("x-f")), (status, "1"));
        assert_eq!(answer.field("transfer-encoding"), None);
    }
    assert_eq!(
        client.get("/v").await.status,
        200,
        "and the connection lives"
    );
}

#[tokio::test]
async fn head_has_the_content_length_of_get() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let mut client = gateway.client().await;
    for (field, length) in [
        ("content-length: 12345\r\n", Some("12345")),
        ("content-length: 0\r\n", Some("0")),
        ("transfer-encoding: chunked\r\n", None),
        ("", None),
    ] {
        upstream.once("/v", Reply::raw(format!("HTTP/1.1 200 OK\r\n{field}\r\n")));
        let answer = client.request("HEAD", "/v", &[]).await;
        assert_eq!(
            (answer.status, answer.field("content-length")),
            (200, length)
        );
    }
    assert_eq!(client.get("/v").await.status, 200);
    assert_eq!(upstream.seen()[0].method(), "HEAD");
}

#[tokio::test]
async fn interim_answers_are_skipped() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let raw = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
               HTTP/1.1 102 Processing\r\n\r\n\
               HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 4\r\n\r\nbody";
    upstream.once("/v", Reply::raw(raw));
    let mut client = gateway.client().await;
    for _ in 0..2 {
        let mut answer = client.get("/v").await;
        while answer.status < 200 {
            answer = client.answer("GET").await;
        }
        assert_eq!((answer.status, answer.text()), (200, "body"));
        assert_eq!(answer.field("link"), None);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn http_1_0_clients_get_no_chunked_answers() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let chunked = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    upstream.always(Reply::raw(chunked));
    let mut client = Client::connect(gateway.public).await;
    client.send("GET /v HTTP/1.0\r\nhost: a\r\n\r\n").await;
    let received = text(&client.rest().await);
    let (head, body) = received.split_once("\r\n\r\n").unwrap();
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(body, "body");
    let via = upstream.seen()[0].field("via").unwrap();
    assert!(via.starts_with("1.0 ordgate-"), "{via}");
}

#[tokio::test]
async fn answers_of_http_1_0_origins_end_with_the_connection() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    for control in ["no-store", "max-age=60"] {
        let raw = format!("HTTP/1.0 200 OK\r\ncache-control: {control}\r\n\r\nall of it");
        upstream.always(Reply::raw(raw).close());
        let target = format!("/{control}");
        let mut client = gateway.client().await;
        for _ in 0..2 {
            let answer = client.get(&target).await;
            assert_eq!((answer.status, answer.text()), (200, "all of it"));
            assert_eq!(answer.version, "HTTP/1.1");
            assert_eq!(answer.must("via"), "1.0 ordgate");
        }
    }
    assert_eq!(upstream.count(), 3);
}

/// A head is bounded by its bytes; hyper alone would take 100 fields.
#[tokio::test]
async fn a_head_may_have_hundreds_of_fields() {
    let upstream = Upstream::start();
    let [passing, typed] = [before(&upstream), Gateway::before(&upstream)];
    for (fields, status) in [(150, 200), (900, 200), (1100, 502)] {
        let many = |number| format!("x-field-{number}: {number}\r\n");
        let head: String = (0..fields).map(many).collect();
        let head = format!("content-type: application/json\r\n{head}");
        upstream.always(Reply::with(200, &head, "{}"));
        let answer = passing.get(&format!("/v?{fields}")).await;
        assert_eq!(answer.status, status, "{fields}");
        if status == 200 {
            let last = fields - 1;
            let field = answer.must(&format!("x-field-{last}"));
            assert_eq!(field, last.to_string());
        }
        let answer = typed.get(&token(fields)).await;
        assert_eq!(answer.status, status, "{fields}");
    }
}
