//! Which client a request is from, and the limit of each client. How the fields of proxies
//! are read is in `identify`, how a limit counts in `limit`.

use crate::support::{Gateway, Setup, TOKEN, Upstream};

/// Three at once, then one a second.
fn limited(upstream: &Upstream) -> Setup {
    let limit = "limit.requests_per_minute = 60\nlimit.burst = 3";
    Setup::before(upstream).config(limit).manual()
}

async fn from(gateway: &Gateway, fields: &[(&str, &str)]) -> u16 {
    gateway.request("GET", TOKEN, fields).await.status
}

/// Uses up the burst of whoever sends these fields.
async fn spend(gateway: &Gateway, fields: &[(&str, &str)]) {
    for expected in [200, 200, 200, 429] {
        assert_eq!(from(gateway, fields).await, expected, "{fields:?}");
    }
}

#[tokio::test]
async fn a_request_over_the_limit_gets_429_with_retry_after() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream).start();
    let origin = [("origin", "https://a.example")];
    for (status, left, reset) in [(200, 2, 1), (200, 1, 2), (200, 0, 3), (429, 0, 1)] {
        let answer = gateway.request("GET", TOKEN, &origin).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=3;w=3");
        let limit = format!("\"default\";r={left};t={reset}");
        assert_eq!(answer.must("ratelimit"), limit);
        if status == 429 {
            assert_eq!(answer.must("retry-after"), "1");
            let error = answer.problem()["error"].to_string();
            assert!(error.contains("again in 1 s"), "{error}");
        }
    }
    for (passed, status) in [(999, 429), (1, 200), (0, 429)] {
        gateway.advance(passed);
        assert_eq!(gateway.get(TOKEN).await.status, status);
    }
    gateway.advance(60_000);
    spend(&gateway, &[]).await;
}

/// Each counts against its client's own limit only.
#[tokio::test]
async fn refused_requests_count() {
    let upstream = Upstream::start();
    let rows = [
        ("GET /nowhere HTTP/1.1", 404),
        ("GET /runes/v1/blocks/x/activity HTTP/1.1", 400),
        ("GET /openapi.json HTTP/1.1", 200),
        ("OPTIONS /openapi.json HTTP/1.1", 204),
        ("DELETE /ordinals/v1/brc-20/tokens/a HTTP/1.1", 405),
        ("GET ftp://a/b HTTP/1.1", 400),
        ("GET /malformed HTTP/1.1\r\nhost: b", 400),
    ];
    for (line, status) in rows {
        let gateway = limited(&upstream).start();
        for expected in [status, status, status, 429] {
            let mut client = gateway.client().await;
            client.send(format!("{line}\r\nhost: a\r\n\r\n")).await;
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, expected, "{line}");
        }
        assert_eq!(gateway.get(TOKEN).await.status, 429, "{line}");
        let mut honest = gateway.client_from([127, 0, 0, 2]).await;
        assert_eq!(honest.get("/nowhere").await.status, 404, "{line}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn forwarding_fields_of_untrusted_clients_are_ignored() {
    let upstream = Upstream::start();
    let proxies = "clients.trusted_proxies = [\"10.0.0.0/8\"]";
    let gateway = limited(&upstream).config(proxies).start();
    spend(&gateway, &[]).await;
    for fields in [
        ("x-forwarded-for", "203.0.113.1"),
        ("forwarded", "for=203.0.113.1"),
        ("x-real-ip", "203.0.113.1"),
        ("cf-connecting-ip", "203.0.113.1"),
        ("x-api-key", "another"),
    ] {
        assert_eq!(from(&gateway, &[fields]).await, 429, "{fields:?}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client_in_the_field_that_it_writes() {
    let upstream = Upstream::start();
    let forwarded_for = [
        "x-forwarded-for",
        "203.0.113.1",
        "9.9.9.9, 203.0.113.2",
        "unknown",
    ];
    let forwarded = [
        "forwarded",
        "for=203.0.113.1",
        "for=9.9.9.9, for=203.0.113.2",
        "for=_hidden",
    ];
    for ([field, one, two, unknown], other) in
        [(forwarded_for, forwarded), (forwarded, forwarded_for)]
    {
        let gateway = limited(&upstream)
            .config("clients.trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]")
            .config(&format!("clients.proxy_field = \"{field}\""))
            .start();
        // What the other field says moves nobody.
        let other = (other[0], other[1]);
        for client in [one, two] {
            spend(&gateway, &[(field, client)]).await;
            assert_eq!(from(&gateway, &[(field, client), other]).await, 429);
        }
        // Where the proxy says nothing that can be believed, it is the client.
        spend(&gateway, &[]).await;
        for fields in [(field, unknown), (field, ""), other] {
            assert_eq!(from(&gateway, &[fields]).await, 429, "{fields:?}");
        }
    }
}
