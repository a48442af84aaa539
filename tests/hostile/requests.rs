//! Requests that try to poison the cache, to escape the base URL, or to loop: other
//! clients' answers are unaffected.

use crate::support::respect::ALL;
use crate::support::{Answer, Gateway, Reply, Setup, Upstream};

const FRESH: &str = "cache-control: max-age=60\r\n";

fn plain(upstream: &Upstream) -> Setup {
    Setup::before(upstream).config(ALL)
}

fn is_hit(answer: &Answer) -> bool {
    let cache_status = answer.all("cache-status");
    cache_status
        .last()
        .is_some_and(|cache_status| cache_status.contains("; hit"))
}

/// An origin that answers with the value of one field, and varies by it.
fn echoing(upstream: &Upstream, name: &'static str) {
    upstream.usually(move |seen| {
        let value = seen.field(name).unwrap_or_else(|| "nothing".to_owned());
        Reply::with(200, &format!("{FRESH}vary: {name}\r\n"), value)
    });
}

#[tokio::test]
async fn a_field_that_the_request_nominates_is_in_no_secondary_key() {
    for name in ["origin", "accept-language", "cookie", "x-any"] {
        let upstream = Upstream::start();
        echoing(&upstream, name);
        let gateway = plain(&upstream).manual().start();
        // The origin does not receive the field, and answers accordingly.
        let nominated = [("connection", name), (name, "honest")];
        let attack = gateway.request("GET", "/v", &nominated).await;
        assert_eq!(attack.text(), "nothing", "{name}");
        let honest = gateway.request("GET", "/v", &[(name, "honest")]).await;
        assert_eq!(honest.text(), "honest", "{name}");
        // What was stored answers those whose request says the same upstream.
        let without = gateway.get("/v").await;
        assert_eq!((without.text(), is_hit(&without)), ("nothing", true));
        let again = gateway.request("GET", "/v", &nominated).await;
        assert_eq!((again.text(), is_hit(&again)), ("nothing", true));
        let honest = gateway.request("GET", "/v", &[(name, "honest")]).await;
        assert_eq!((honest.text(), is_hit(&honest)), ("honest", true));
        assert_eq!(upstream.count(), 2, "{name}");
    }
}

#[tokio::test]
async fn fields_that_end_at_ordgate_are_in_no_secondary_key() {
    for name in ["x-api-key", "te", "proxy-authorization"] {
        let upstream = Upstream::start();
        echoing(&upstream, name);
        let gateway = plain(&upstream).manual().start();
        for is_stored in [false, true] {
            let answer = gateway.request("GET", "/v", &[(name, "trailers")]).await;
            assert_eq!((answer.text(), is_hit(&answer)), ("nothing", is_stored));
        }
        assert!(is_hit(&gateway.get("/v").await), "{name}");
    }
}

#[tokio::test]
async fn forwarding_fields_are_ordgates_own() {
    let forged = [
        ("x-forwarded-for", "198.51.100.1, 203.0.113.9"),
        ("forwarded", "for=203.0.113.9;host=evil.example;proto=https"),
        ("x-real-ip", "203.0.113.9"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "444"),
        ("x-forwarded-prefix", "/evil"),
        ("x-forwarded-server", "evil.example"),
        ("true-client-ip", "203.0.113.9"),
    ];
    let alone = ["for=127.0.0.1", "127.0.0.1", "127.0.0.1"];
    // A trusted proxy is believed, as far as it has seen it itself.
    let trusting = "clients.trusted_proxies = [\"127.0.0.0/8\"]";
    let through = [
        "for=203.0.113.9, for=127.0.0.1",
        "203.0.113.9, 127.0.0.1",
        "203.0.113.9",
    ];
    for (mode, config, expected) in [
        ("respect", "", alone),
        ("off", "", alone),
        ("respect", trusting, through),
    ] {
        let upstream = Upstream::start();
        let route = ALL.replace("respect", mode);
        let gateway = Gateway::with(&upstream, &format!("{config}\n{route}"));
        for method in ["GET", "POST"] {
            gateway.request(method, "/v", &forged).await;
            let seen = upstream.seen().pop().unwrap();
            let mut names = seen.names();
            names.retain(|name| name.contains("forward") || name.contains("ip"));
            assert_eq!(
                names,
                ["forwarded", "x-forwarded-for", "x-real-ip"],
                "{mode}"
            );
            for (name, value) in names.iter().zip(expected) {
                assert_eq!(seen.field(name).as_deref(), Some(value), "{mode} {method}");
            }
        }
    }
}

#[tokio::test]
async fn a_looping_request_gets_508() {
    let upstream = Upstream::start();
    upstream.always(Reply::with(200, FRESH, "body"));
    let gateway = plain(&upstream).start();
    gateway.get("/v").await;
    let via = upstream.seen()[0].field("via").unwrap();
    for (method, target) in [("GET", "/w"), ("POST", "/w"), ("HEAD", "/w")] {
        for via in [&*via, &format!("1.0 fred, {via}, 1.1 other")] {
            let answer = gateway.request(method, target, &[("via", via)]).await;
            assert_eq!(answer.status, 508, "{method} {via}");
            if method != "HEAD" {
                let detail = answer.json()["detail"].to_string();
                assert!(detail.contains("via"), "{detail}");
            }
        }
    }
    assert_eq!(upstream.count(), 1);
    // What is stored answers it all the same, and others are not concerned.
    assert!(is_hit(
        &gateway.request("GET", "/v", &[("via", &via)]).await
    ));
    let other = [("via", "1.1 ordgate, 1.1 ordgate-0000000000000000")];
    assert_eq!(gateway.request("GET", "/w", &other).await.status, 200);
}

#[tokio::test]
async fn a_typed_route_before_itself_is_a_loop_as_well() {
    let upstream = Upstream::start();
    for mode in [
        "mode = \"override\", times = { 200 = \"9s\" }",
        "mode = \"respect\"",
        "mode = \"off\"",
    ] {
        let gateway = Setup::before(&upstream).start();
        let route = format!(
            "upstream.url = \"http://{}\"\n[[route]]\nname = \"loop\"\npath = \"/loop/{{id}}\"\nparams.id = {{ type = \"string\" }}\ncache = {{ {mode} }}",
            gateway.public
        );
        let reloaded = gateway.reload(&route).await;
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        let answer = gateway.get("/loop/1").await;
        assert_eq!(answer.status, 502, "{mode}: {}", answer.text());
        assert!(answer.must("proxy-status").contains("received-status=508"));
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn no_target_escapes_the_base_urls_path() {
    let upstream = Upstream::start();
    let base = format!("{}/base/path", upstream.url());
    let within = ALL.replace("/{rest:*}", "/files/{rest:*}");
    let escaping = "../x .. a/../../x a/%2e%2e/%2e%2e/x %2E%2e/x .%2e/x a/..%2fx a/..%5cx a%2f..%2fx ..;/x ..;a=b/x ./x a/%2e";
    for (route, prefix) in [(ALL, "/"), (&*within, "/files/")] {
        let gateway = Setup::at(&base).config(route).start();
        let before = upstream.count();
        let mut client = gateway.client().await;
        for tail in escaping.split(' ') {
            for method in ["GET", "POST", "HEAD"] {
                let target = format!("{prefix}{tail}");
                let answer = client.request(method, &target, &[]).await;
                assert_eq!(answer.status, 404, "{method} {target}");
            }
        }
        assert_eq!(upstream.count(), before);
        // What only looks like one goes up as it came, and so does the query.
        for tail in ["%252e%252e/x", "a..b/...", ".well-known/x", "x?y=../z"] {
            let target = format!("{prefix}{tail}");
            assert_eq!(client.get(&target).await.status, 200, "{target}");
            let asked = upstream.targets().pop().unwrap();
            assert_eq!(asked, format!("/base/path{target}"));
        }
    }
}

/// Some servers answer for another target, or to another method, than the
/// request line says, which is the cache key.
#[tokio::test]
async fn a_request_that_overrides_its_method_is_not_stored_and_no_target_is_overridden() {
    let upstream = Upstream::start();
    upstream.usually(|seen| {
        let overrides = ["method", "original", "rewrite"];
        let is_override = |name: &String| overrides.iter().any(|word| name.contains(word));
        let is_overridden = seen.names().iter().any(is_override);
        Reply::with(200, FRESH, if is_overridden { "poison" } else { "honest" })
    });
    for (name, value) in [
        ("x-original-url", "/admin"),
        ("x-rewrite-url", "/admin"),
        ("x_rewrite_url", "/admin"),
    ] {
        let gateway = plain(&upstream).start();
        let attack = gateway.request("GET", "/v", &[(name, value)]).await;
        assert_eq!(attack.text(), "honest", "{name}");
    }
    for (name, value) in [
        ("x-http-method-override", "DELETE"),
        ("x-http-method", "PUT"),
        ("x-method-override", "PUT"),
    ] {
        let gateway = plain(&upstream).start();
        let attack = gateway.request("GET", "/v", &[(name, value)]).await;
        assert_eq!(attack.text(), "poison", "{name}");
        let honest = gateway.get("/v").await;
        assert_eq!(
            (honest.text(), is_hit(&honest)),
            ("honest", false),
            "{name}"
        );
        assert!(is_hit(&gateway.get("/v").await), "{name}");
        let passed = gateway.request("GET", "/v", &[(name, value)]).await;
        assert_eq!(
            passed.text(),
            "poison",
            "{name}: it is the origin's to answer"
        );
    }
}

/// A cookie of one client, which no other client gets; unless the origin says for how long
/// the answer is fresh, and nobody has said that no cookie is stored.
#[tokio::test]
async fn a_cookie_is_not_stored_by_heuristic_freshness() {
    const OLD: &str = "last-modified: Sat, 01 Jan 2000 00:00:00 GMT\r\n";
    let never = ALL.replace("\"respect\"", "\"respect\", store_set_cookie = \"never\"");
    for (fields, is_kept) in [
        (OLD, false),
        ("etag: \"one\"\r\ncache-control: no-cache\r\n", false),
        (FRESH, true),
    ] {
        for (route, is_kept) in [(ALL, is_kept), (&never, false)] {
            let upstream = Upstream::start();
            let gateway = Gateway::with(&upstream, route);
            for session in ["session=0", "session=1"] {
                let cookie = format!("{fields}set-cookie: {session}\r\n");
                upstream.always(Reply::with(200, &cookie, "body"));
                let answer = gateway.get("/v").await;
                let expected = if is_kept { "session=0" } else { session };
                assert_eq!(answer.field("set-cookie"), Some(expected), "{fields}");
            }
        }
    }
    // Without a cookie it is stored as before.
    let upstream = Upstream::start();
    upstream.always(Reply::with(200, OLD, "body"));
    let gateway = plain(&upstream).start();
    gateway.get("/v").await;
    assert!(is_hit(&gateway.get("/v").await));
}
