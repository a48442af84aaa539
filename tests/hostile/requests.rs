//! Requests that try to poison the cache, to escape the base URL, or to loop: other
//! clients' answers are unaffected.

mod cookies;

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
    for (name, value) in [
        ("x-api-key", "the client's"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic x"),
    ] {
        let upstream = Upstream::start();
        echoing(&upstream, name);
        let gateway = plain(&upstream).manual().start();
        for at in 0..2 {
            let answer = gateway.request("GET", "/v", &[(name, value)]).await;
            assert_eq!((answer.text(), is_hit(&answer)), ("nothing", at > 0));
        }
        assert!(is_hit(&gateway.get("/v").await), "{name}");
    }
}

/// The forwarding fields that the upstream received last, in the order of names.
fn forwarding(upstream: &Upstream) -> Vec<(String, String)> {
    let seen = upstream.seen();
    let text = seen.last().unwrap().text();
    let lines = text.split("\r\n").skip(1);
    let fields = lines.filter_map(|line| line.split_once(':'));
    let own = |name: &str| name.contains("forward") || name.contains("ip");
    let mut found: Vec<_> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .filter(|(name, _)| own(name))
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn forwarding_fields_are_ordgates_own() {
    let forged = [
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9;host=evil.example;proto=https"),
        ("x-real-ip", "203.0.113.9"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-port", "444"),
        ("x-forwarded-prefix", "/evil"),
        ("x-forwarded-server", "evil.example"),
        ("true-client-ip", "203.0.113.9"),
    ];
    let reported = |list: &str, elements: &str, client: &str| {
        vec![
            ("forwarded".to_owned(), elements.to_owned()),
            ("x-forwarded-for".to_owned(), list.to_owned()),
            ("x-real-ip".to_owned(), client.to_owned()),
        ]
    };
    let alone = reported("127.0.0.1", "for=127.0.0.1", "127.0.0.1");
    for mode in ["respect", "off"] {
        let upstream = Upstream::start();
        let route = ALL.replace("respect", mode);
        let gateway = Gateway::with(&upstream, &route);
        for method in ["GET", "POST"] {
            gateway.request(method, "/v", &forged).await;
            assert_eq!(forwarding(&upstream), alone, "{mode} {method}");
            gateway.request(method, "/w", &[]).await;
            assert_eq!(forwarding(&upstream), alone, "{mode} {method}");
        }
    }
    // A trusted proxy is believed, as far as it has seen it itself.
    let upstream = Upstream::start();
    let trusting = "clients.trusted_proxies = [\"127.0.0.0/8\"]";
    let gateway = plain(&upstream).config(trusting).start();
    let fields = [
        ("x-forwarded-for", "198.51.100.1, 203.0.113.9"),
        ("x-forwarded-host", "evil.example"),
    ];
    gateway.request("GET", "/v", &fields).await;
    let through = reported(
        "203.0.113.9, 127.0.0.1",
        "for=203.0.113.9, for=127.0.0.1",
        "203.0.113.9",
    );
    assert_eq!(forwarding(&upstream), through);
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
    for (route, prefix) in [(ALL, "/"), (&*within, "/files/")] {
        let gateway = Setup::at(&base).config(route).start();
        let before = upstream.count();
        let mut client = gateway.client().await;
        for tail in [
            "../x",
            "..",
            "a/../../x",
            "a/%2e%2e/%2e%2e/x",
            "%2E%2e/x",
            ".%2e/x",
            "a/..%2fx",
            "a/..%5cx",
            "a%2f..%2fx",
            "..;/x",
            "..;a=b/x",
            "./x",
            "a/%2e",
        ] {
            for method in ["GET", "POST", "HEAD"] {
                let target = format!("{prefix}{tail}");
                let answer = client.request(method, &target, &[]).await;
                assert_eq!(answer.status, 400, "{method} {target}");
            }
        }
        let answer = client.get(&format!("{prefix}../x")).await;
        assert_eq!(answer.problem()["parameter"], "path");
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
        let overridden = seen
            .names()
            .iter()
            .any(|name| name.starts_with("x-") && name.contains("original"));
        let overridden = overridden
            || seen
                .names()
                .iter()
                .any(|name| name.contains("method") || name.contains("rewrite"));
        Reply::with(200, FRESH, if overridden { "poison" } else { "honest" })
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
    }
}
