//! Which client a request is from, and the limit of each client.

use crate::support::{Gateway, Setup, TOKEN, Upstream};

/// Three at once, then one a second.
const LIMIT: &str = "limit.requests_per_minute = 60\nlimit.burst = 3";

fn limited(upstream: &Upstream) -> Setup {
    Setup::before(upstream).config(LIMIT).manual()
}

async fn from(gateway: &Gateway, fields: &[(&str, &str)]) -> u16 {
    gateway.request("GET", TOKEN, fields).await.status
}

/// Uses up the burst of whoever sends these fields.
async fn spend(gateway: &Gateway, fields: &[(&str, &str)]) {
    for _ in 0..3 {
        assert_eq!(from(gateway, fields).await, 200, "{fields:?}");
    }
    assert_eq!(from(gateway, fields).await, 429, "{fields:?}");
}

#[tokio::test]
async fn a_request_over_the_limit_gets_429_with_retry_after() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream).start();
    for left in [2, 1, 0] {
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=3;w=3");
        let reset = 3 - left;
        assert_eq!(
            answer.must("ratelimit"),
            format!("\"default\";r={left};t={reset}")
        );
    }
    let answer = gateway
        .request("GET", TOKEN, &[("origin", "https://a.example")])
        .await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.must("retry-after"), "1");
    assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=3;w=3");
    assert_eq!(answer.must("ratelimit"), "\"default\";r=0;t=1");
    assert_eq!(answer.must("access-control-allow-origin"), "*");
    let problem = answer.problem();
    assert!(problem["error"].as_str().unwrap().contains("again in 1 s"));

    gateway.advance(999);
    assert_eq!(gateway.get(TOKEN).await.status, 429);
    gateway.advance(1);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(gateway.get(TOKEN).await.status, 429);
    gateway.advance(60_000);
    spend(&gateway, &[]).await;
}

#[tokio::test]
async fn refused_requests_count() {
    let upstream = Upstream::start();
    let rows = [
        ("GET", "/nowhere", 404),
        ("GET", "/runes/v1/blocks/x/activity", 400),
        ("GET", "/openapi.json", 200),
        ("OPTIONS", TOKEN, 204),
        ("DELETE", TOKEN, 405),
        ("GET", "ftp://a/b", 400),
    ];
    for (method, target, status) in rows {
        let gateway = limited(&upstream).start();
        // HTTP/2 has no absolute form.
        let mut client = match target.starts_with('/') {
            true => gateway.client().await,
            false => gateway.client().await,
        };
        for left in [2, 1, 0] {
            let answer = client.request(method, target, &[]).await;
            assert_eq!(answer.status, status, "{method} {target}");
            let field = answer.must("ratelimit");
            assert!(field.contains(&format!(";r={left};")), "{field}");
        }
        let answer = client.request(method, target, &[]).await;
        assert_eq!(answer.status, 429, "{method} {target}");
        answer.problem();
        assert_eq!(gateway.get(TOKEN).await.status, 429, "{method} {target}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn forwarding_fields_of_untrusted_clients_are_ignored() {
    let upstream = Upstream::start();
    let gateway = limited(&upstream)
        .config("clients.trusted_proxies = [\"10.0.0.0/8\"]")
        .start();
    spend(&gateway, &[]).await;
    for fields in [
        ("x-forwarded-for", "203.0.113.1"),
        ("x-forwarded-for", "10.0.0.1"),
        ("forwarded", "for=203.0.113.1"),
        ("x-real-ip", "203.0.113.1"),
        ("true-client-ip", "203.0.113.1"),
        ("cf-connecting-ip", "203.0.113.1"),
        ("x-api-key", "another"),
    ] {
        assert_eq!(from(&gateway, &[fields]).await, 429, "{fields:?}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client_in_the_field_that_it_writes() {
    let upstream = Upstream::start();
    // The field; what is in it for each client; what moves none of them.
    for (field, one, two, unknown, other) in [
        (
            "x-forwarded-for",
            "203.0.113.1",
            "9.9.9.9, 203.0.113.2",
            "unknown",
            ("forwarded", "for=203.0.113.7"),
        ),
        (
            "forwarded",
            "for=203.0.113.1",
            "for=9.9.9.9, for=203.0.113.2",
            "for=_hidden",
            ("x-forwarded-for", "203.0.113.7"),
        ),
    ] {
        let gateway = limited(&upstream)
            .config("clients.trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]")
            .config(&format!("clients.proxy_field = \"{field}\""))
            .start();
        for client in [one, two] {
            spend(&gateway, &[(field, client)]).await;
            assert_eq!(
                from(&gateway, &[(field, client), other]).await,
                429,
                "{client}"
            );
        }
        // Where the proxy says nothing that can be believed, it is the client.
        spend(&gateway, &[]).await;
        for fields in [(field, unknown), (field, ""), other] {
            assert_eq!(from(&gateway, &[fields]).await, 429, "{fields:?}");
        }
    }
}
