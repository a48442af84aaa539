//! What is reported of a file that is not valid.

use std::time::Duration;

use super::problems;
use crate::config::{Config, base_url};

#[test]
fn every_problem_has_its_line_and_column() {
    let text = "\
[server]
listen = 8080
wokers = 3
drain_timeout = \"ten seconds\"

[upstream]
url = \"ftp://x\"
requests_per_minute = 0
api_keys = \"do-not-show\"

[log]
level = \"loud\"

[sevrer]
";
    let found = problems(text);
    let expected = [
        "p.toml:2:10: server.listen is 8080; allowed is an address and a port",
        "p.toml:3:1: unknown key server.wokers; did you mean server.workers?",
        "p.toml:4:17: server.drain_timeout is \"ten seconds\"; allowed is a whole number with a unit",
        "p.toml:7:7: upstream.url is \"ftp://x\"; allowed is an http or https URL",
        "p.toml:8:23: upstream.requests_per_minute is 0; allowed is a whole number from 1 to",
        "p.toml:9:1: unknown key upstream.api_keys;",
        "p.toml:12:9: log.level is \"loud\"; allowed is a level (error, warn, info,",
        "p.toml:14:2: unknown key sevrer; did you mean server?",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nwhere\n{expected}");
        assert!(!found.contains("do-not-show"), "{found}");
    }
    assert!(found[5].contains("ORDGATE_API_KEYS"), "{}", found[5]);
}

#[test]
fn one_mistake_is_one_problem() {
    let rows = [
        (
            "name = \"A b\"\npath = \"/a\"",
            "2:8: route.name is \"A b\"; allowed is 1 to 64 of a-z, 0-9 and -",
        ),
        (
            "name = \"a\"\npath = 3",
            "3:8: route.path is 3; allowed is a string",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { type = \"hax\" }",
            "4:21: route.params.x.type is \"hax\"; allowed is one of hex64, block, ticker, integer, enum, string",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { min = 3 }",
            "4:12: route.params.x.type is missing",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = \"hex64\"",
            "4:12: route.params.x is \"hex64\"; allowed is a table",
        ),
        (
            "name = \"a\"\npath = \"/openapi.json\"",
            "3:8: route.path is /openapi.json, where ordgate describes the routes; a route needs a path of its own",
        ),
    ];
    for (route, problem) in rows {
        let found = problems(&format!("[[route]]\n{route}\n"));
        assert_eq!(found, [format!("p.toml:{problem}")], "{route}");
    }
}

#[test]
fn each_wrong_element_of_a_list_is_a_problem() {
    let found = problems(
        "[clients]\ntrusted_proxies = [\"10.0.0.0/8\", 3, \"::1\",\n  \"junk\", [\"::1\"]]\n",
    );
    let allowed = "; allowed is an address or a network, such as \"10.0.0.0/8\"";
    assert_eq!(
        found,
        [
            format!("p.toml:2:34: clients.trusted_proxies has 3{allowed}"),
            format!("p.toml:3:3: clients.trusted_proxies has \"junk\"{allowed}"),
            format!("p.toml:3:11: clients.trusted_proxies has a list{allowed}"),
        ]
    );
}

#[test]
fn the_two_sides_cannot_listen_at_one_address() {
    let both = "server.listen and admin.listen are both";
    for (text, place) in [
        (
            "[server]\nlisten = \"[::1]:80\"\n[admin]\nlisten = \"[::1]:80\"",
            Some("4:10"),
        ),
        // Each is compared with the other's default, too.
        ("[server]\nlisten = \"127.0.0.1:9090\"", Some("2:10")),
        ("[admin]\nlisten = \"127.0.0.1:8080\"", Some("2:10")),
        (
            "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"",
            None,
        ),
        ("[server]\nlisten = \"127.0.0.2:9090\"", None),
    ] {
        let found = problems(text);
        let [problem] = &found[..] else {
            assert!(found.is_empty() && place.is_none(), "{text}\n{found:#?}");
            continue;
        };
        let expected = format!("p.toml:{}: {both}", place.unwrap_or("nowhere"));
        assert!(problem.starts_with(&expected), "{text}\n{problem}");
    }
}

#[test]
fn only_fields_without_another_meaning_may_carry_the_key() {
    for (name, good) in [
        ("x-api-key", true),
        ("Authorization", true),
        ("X-Proxy-Key", true),
        ("a b", false),
        ("", false),
        ("Host", false),
        ("content-length", false),
        ("Connection", false),
        ("transfer-encoding", false),
        ("te", false),
        ("upgrade", false),
        ("trailer", false),
        ("keep-alive", false),
        ("accept", false),
        ("accept-encoding", false),
        ("user-agent", false),
        ("expect", false),
        ("via", false),
        ("proxy-authorization", false),
        ("Proxy-Connection", false),
    ] {
        let found = problems(&format!("[upstream]\napi_key_header = \"{name}\"\n"));
        assert_eq!(found.is_empty(), good, "{name} {found:#?}");
        for problem in found {
            assert!(
                problem.contains("allowed is the name of a field"),
                "{problem}"
            );
        }
    }
}

#[test]
fn syntax_errors_are_reported_alone() {
    let found = problems("[server\nlisten = \"127.0.0.1:1\"\n[limit]\nenabled = yes\n");
    assert!(
        found.iter().any(|problem| problem.starts_with("p.toml:1:")),
        "{found:#?}"
    );
    assert!(
        found.iter().any(|problem| problem.starts_with("p.toml:4:")),
        "{found:#?}"
    );
}

#[test]
fn base_urls_are_http_without_user_query_and_fragment() {
    for (text, good) in [
        ("https://api.example", true),
        ("http://127.0.0.1:3999/", true),
        ("https://api.example/base/path", true),
        ("https://user:pass@api.example", false),
        ("https://api.example/?key=1", false),
        ("api.example", false),
        ("/base", false),
        ("ws://api.example", false),
        ("https://api.example:1", true),
        ("https://[::1]:65535/x", true),
        ("https://api.example:0", false),
        ("https://api.example:65536", false),
        ("https://api.example:99999", false),
        ("https://api.example:", false),
        ("https://user@api.example:1", false),
    ] {
        assert_eq!(base_url(text).is_some(), good, "{text}");
    }
}

#[test]
fn the_breaker_has_bounds_and_its_longest_pause_follows_the_first() {
    let rows = [
        ("failures = 0", "failures is 0; allowed is a whole number"),
        (
            "share = 101",
            "share is 101; allowed is a whole number from 1 to 100",
        ),
        ("pause = \"0s\"", "pause is \"0s\"; allowed is"),
        ("enabled = 1", "enabled is 1; allowed is true or false"),
        (
            "falures = 3",
            "unknown key upstream.breaker.falures; did you mean upstream.breaker.failures?",
        ),
        (
            "pause = \"9s\"\nmax_pause = \"8s\"",
            "upstream.breaker.max_pause is shorter than upstream.breaker.pause",
        ),
    ];
    for (text, expected) in rows {
        let found = problems(&format!("[upstream.breaker]\n{text}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected), "{found:?}");
    }
    let long = Config::parse("p", "[upstream.breaker]\npause = \"5m\"\n").unwrap();
    let breaker = long.upstreams[0].breaker.clone();
    assert_eq!(breaker.max_pause, breaker.pause, "the default follows");
}

#[test]
fn keys_that_bound_each_other_are_checked_together() {
    for (text, complaint) in [
        (
            "upstream.max_in_flight = 3\nupstream.min_in_flight = 4",
            "upstream.min_in_flight is more than upstream.max_in_flight",
        ),
        (
            "cache.error_ttl = \"1m\"\ncache.max_error_ttl = \"30s\"",
            "cache.max_error_ttl is shorter than cache.error_ttl",
        ),
        (
            "upstream.hedge.percentile = 100",
            "upstream.hedge.percentile is 100; allowed is a whole number from 1 to 99",
        ),
        (
            "limit.misses_per_minute = 60000001",
            "limit.misses_per_minute is 60000001; allowed is a whole number from 0 to 60000000",
        ),
        (
            "upstream.retry.share = 101",
            "upstream.retry.share is 101; allowed is a whole number from 0 to 100",
        ),
        (
            "upstream.request_body = { buffer = \"2KiB\", max_buffered_per_client = \"1KiB\" }",
            "upstream.request_body.buffer is more than upstream.request_body.max_buffered_per_client",
        ),
        (
            "upstream.request_body = { buffer = \"2KiB\", max_buffered = \"1KiB\" }",
            "upstream.request_body.buffer is more than upstream.request_body.max_buffered;",
        ),
        (
            "upstream.request_body = { buffer = \"1KiB\", max_buffered_per_client = \"4KiB\", max_buffered = \"2KiB\" }",
            "upstream.request_body.max_buffered_per_client is more than upstream.request_body.max_buffered",
        ),
        (
            "upstream.request_body.min_rate = \"0B\"",
            "upstream.request_body.min_rate is \"0B\"; allowed is",
        ),
        (
            "upstream.request_body.grace = \"0s\"",
            "upstream.request_body.grace is \"0s\"; allowed is",
        ),
        (
            "upstream.request_body.rate = \"1KiB\"",
            "upstream.request_body.rate",
        ),
        (
            "upstream.response_body.min_rate = \"0B\"",
            "upstream.response_body.min_rate is \"0B\"; allowed is",
        ),
        (
            "upstream.response_body.grace = \"0s\"",
            "upstream.response_body.grace is \"0s\"; allowed is",
        ),
        (
            "upstream.response_body.timeout = \"1s\"",
            "upstream.response_body.timeout",
        ),
    ] {
        let found = problems(&format!("{text}\n"));
        assert!(found[0].contains(complaint), "{found:?}");
    }
}

#[test]
fn keys_that_are_not_set_fit_those_that_are() {
    let few = Config::parse("p", "upstream.max_in_flight = 2\n").unwrap();
    assert_eq!(few.upstreams[0].admission.min_in_flight.get(), 2);
    for (text, expected) in [
        ("max_buffered = \"1KiB\"", [1 << 10, 1 << 10, 1 << 10]),
        (
            "max_buffered_per_client = \"1KiB\"",
            [1 << 10, 1 << 10, 16 << 20],
        ),
        (
            "max_buffered_per_client = \"1GiB\"",
            [64 << 10, 1 << 30, 1 << 30],
        ),
        ("buffer = \"16MiB\"", [16 << 20; 3]),
        (
            "buffer = \"4MiB\"\nupstream.request_body.max_buffered = \"8MiB\"",
            [4 << 20, 4 << 20, 8 << 20],
        ),
        ("grace = \"1s\"", [64 << 10, 2 << 20, 16 << 20]),
    ] {
        let config = Config::parse("p", &format!("upstream.request_body.{text}\n"));
        let limits = config.unwrap().upstreams[0].request_body.clone();
        let bounds = [
            limits.buffer,
            limits.max_buffered_per_client,
            limits.max_buffered,
        ];
        assert_eq!(bounds, expected, "{text}");
    }
    let long = Config::parse("p", "cache.error_ttl = \"5m\"\n").unwrap();
    assert_eq!(long.failure_backoff.max_error_ttl, Duration::from_secs(300));
}
