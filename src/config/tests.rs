//! What a file may say, and what is said of one that says something else.

use super::*;
use crate::cache::policy::Mode;
use crate::upstream::ProviderKeys;
use crate::upstream::keys::ApiKey;

fn problems(text: &str) -> Vec<String> {
    let problems = Config::parse("p.toml", text).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn the_shipped_file_says_what_the_defaults_are() {
    let shipped = Config::shipped()
        .map_err(|problems| format!("{problems:?}"))
        .unwrap();
    let empty = Config::parse("empty", "")
        .map_err(|problems| format!("{problems:?}"))
        .unwrap();
    assert_eq!(
        shipped.print(&ProviderKeys::default()).unwrap(),
        empty.print(&ProviderKeys::default()).unwrap()
    );
    assert_eq!(shipped.routes.routes().len(), 3);
}

#[test]
fn what_is_printed_can_be_read_again() {
    let text = r#"
        [server]
        listen = "[::1]:0"
        workers = 3
        [clients]
        trusted_proxies = ["10.0.0.0/8", "::1"]
        [upstream]
        url = "https://api.example/base"
        max_body_bytes = "1MiB"
        request_body = { buffer = "3KiB", min_rate = "77B", grace = "7s", timeout = "17m", max_bytes = "5GiB" }
        breaker = { failures = 5, share = 70, window = "11s", pause = "3s", max_pause = "13s" }
        [[route]]
        name = "other"
        path = "/a/{x}/{y}"
        upstream_path = "/b/{y}/{x}"
        params.x = { type = "string", pattern = "[a-z]+", max_length = 5 }
        params.y = { type = "hex64", description = "what it is" }
        query.kind = { type = "enum", values = ["a", "b"], default = "b" }
        query.n = { type = "integer", min = 2, max = 7, default = 3 }
        cache = { mode = "override", times = { "2xx" = "10s", 404 = "1s", empty = "500ms" } }
    "#;
    let read = |text: &str| {
        Config::parse("p", text)
            .map_err(|p| format!("{p:?}"))
            .unwrap()
    };
    let once = read(text).print(&ProviderKeys::default()).unwrap();
    assert_eq!(read(&once).print(&ProviderKeys::default()).unwrap(), once);
    for part in [
        "/b/{y}/{x}",
        "\"1MiB\"",
        "share = 70",
        "buffer = \"3KiB\"",
        "min_rate = \"77B\"",
        "\"17m\"",
        "\"5GiB\"",
        "\"13s\"",
        "::1/128",
        "500ms",
        "default = 3",
        "[a-z]+",
    ] {
        assert!(once.contains(part), "{part} in {once}");
    }
}

#[test]
fn every_problem_is_told_with_its_place() {
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
        "p.toml:3:1: unknown key server.wokers; allowed are listen, workers,",
        "p.toml:4:17: server.drain_timeout is \"ten seconds\"; allowed is a whole number with a unit",
        "p.toml:7:7: upstream.url is \"ftp://x\"; allowed is an http or https URL",
        "p.toml:8:23: upstream.requests_per_minute is 0; allowed is a whole number from 1 to",
        "p.toml:9:1: unknown key upstream.api_keys;",
        "p.toml:12:9: log.level is \"loud\"; allowed is a level (error, warn, info,",
        "p.toml:14:2: unknown key sevrer; allowed are",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nwhere\n{expected}");
        assert!(!found.contains("do-not-show"), "{found}");
    }
    assert!(found[5].contains("ORDGATE_API_KEYS"), "{}", found[5]);
}

#[test]
fn problems_of_the_breaker() {
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
            "unknown key upstream.breaker.falures; allowed are",
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
fn problems_of_routes() {
    let rows = [
        ("name = \"a\"", "a route needs path"),
        ("path = \"/a\"", "a route needs name"),
        (
            "name = \"A b\"\npath = \"/a\"",
            "route.name is \"A b\"; allowed is 1 to 64",
        ),
        ("name = \"a\"\npath = \"a\"", "a path begins with /"),
        ("name = \"a\"\npath = \"/{x}\"", "params.x does not say"),
        (
            "name = \"a\"\npath = \"/x\"\nparams.y = { type = \"hex64\" }",
            "the path has no {y}",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { type = \"hax\" }",
            "allowed is one of hex64, block",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { type = \"block\", min = 3 }",
            "unknown key route.params.x.min",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"integer\", max = 5, default = 6 }",
            "the default: n must be an integer from 0 to 5",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"enum\" }",
            "must list at least one value",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nmethods = [\"POST\"]",
            "route.methods has \"POST\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache.mode = \"overide\"",
            "route.cache.mode is \"overide\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache.mode = \"override\"",
            "there are no times",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache = { mode = \"override\", times = { 200 = \"1y\" } }",
            "route.cache.times.200 is \"1y\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache = { mode = \"override\", times = { 500 = \"1s\" } }",
            "allowed are a status (200, 400 to 499)",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nupstream_path = \"/{y}\"",
            "no parameter {y}",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"string\", pattern = \"(\" }",
            "a regular expression",
        ),
    ];
    for (route, part) in rows {
        let found = problems(&format!("[[route]]\n{route}\n"));
        assert!(
            found.iter().any(|problem| problem.contains(part)),
            "{route}\n{found:#?}"
        );
    }
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
            "4:8: route.params.x.type must say what it is",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = \"hex64\"",
            "4:12: route.params.x is \"hex64\"; allowed is a table",
        ),
        (
            "name = \"a\"\npath = \"/openapi.json\"",
            "3:8: route.path is /openapi.json, where the routes are described; a route needs a path of its own",
        ),
    ];
    for (route, problem) in rows {
        let found = problems(&format!("[[route]]\n{route}\n"));
        assert_eq!(found, [format!("p.toml:{problem}")], "{route}");
    }
}

#[test]
fn lists_are_read_to_their_end() {
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
fn two_sides_two_places() {
    let both = "server.listen and admin.listen are both";
    for (text, place) in [
        (
            "[server]\nlisten = \"[::1]:80\"\n[admin]\nlisten = \"[::1]:80\"",
            Some("4:10"),
        ),
        // Each may meet the other's default.
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
fn fields_that_may_carry_the_key() {
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
fn overlapping_routes() {
    let text = "\
[[route]]
name = \"one\"
path = \"/a/{x}\"
params.x = { type = \"hex64\" }

[[route]]
name = \"two\"
path = \"/a/{y}\"
params.y = { type = \"block\" }

[[route]]
name = \"one\"
path = \"/b\"
";
    let found = problems(text);
    assert_eq!(
        found,
        [
            "p.toml:6:1: this route overlaps the route \"one\" (/a/{x})",
            "p.toml:12:8: there is another route with the name \"one\"",
        ]
    );
}

#[test]
fn what_is_not_toml() {
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
fn base_urls() {
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

fn keys() -> ProviderKeys {
    ApiKey::list("a-key-of-a-test").unwrap().into()
}

#[test]
fn a_route_that_passes_all_with_a_key_is_warned_of() {
    let text = "[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nheaders = \"all\"\n";
    let config = Config::parse("p", text).ok().unwrap();
    assert_eq!(
        config.warnings(&ProviderKeys::default()),
        Vec::<String>::new()
    );
    let warnings = config.warnings(&keys());
    assert!(warnings[0].contains("\"all\""), "{warnings:?}");
    let shipped = Config::shipped().ok().unwrap();
    assert_eq!(shipped.warnings(&keys()), Vec::<String>::new());
}

#[test]
fn several_base_urls() {
    let one = Config::parse("p", "upstream.url = \"https://a.example\"\n").unwrap();
    let two = "upstream.url = [\"https://a.example\", \"https://b.example/api\"]\n";
    let both = Config::parse("p", two).unwrap();
    let urls = |config: &Config| {
        let urls = config.upstreams[0].urls.iter();
        urls.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(urls(&one), ["https://a.example/"]);
    assert_eq!(urls(&both), ["https://a.example/", "https://b.example/api"]);
    for config in [&one, &both] {
        let printed = config.print(&ProviderKeys::default()).unwrap();
        let again = Config::parse("p", &printed).unwrap();
        assert_eq!(urls(&again), urls(config), "{printed}");
    }
    for (url, complaint) in [
        (
            "[\"https://a.example\", \"ftp://b\"]",
            "upstream.url has \"ftp://b\"; allowed is an http or https URL",
        ),
        (
            "[\"https://a.example\", \"https://a.example/\"]",
            "upstream.url has a URL twice",
        ),
        ("7", "upstream.url is 7; allowed is"),
    ] {
        let found = problems(&format!("upstream.url = {url}\n"));
        assert!(found[0].contains(complaint), "{found:?}");
    }
}

#[test]
fn bounds_that_go_together() {
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
    ] {
        let found = problems(&format!("{text}\n"));
        assert!(found[0].contains(complaint), "{found:?}");
    }
    // What is not said fits what is.
    let few = Config::parse("p", "upstream.max_in_flight = 2\n").unwrap();
    assert_eq!(few.upstreams[0].min_in_flight.get(), 2);
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
    assert_eq!(long.lapses.max_error_ttl, Duration::from_secs(300));
}

#[test]
fn a_budget_that_is_too_small_for_the_tips_is_warned_of() {
    let small = Config::parse("p", "upstream.requests_per_minute = 60\n").unwrap();
    let warnings = small.warnings(&ProviderKeys::default());
    assert!(warnings[0].contains("24 times a minute"), "{warnings:?}");
    let seldom = "upstream.requests_per_minute = 60\nchain.tip.ordinals.every = \"10s\"\nchain.tip.runes.every = \"10s\"\n";
    let seldom = Config::parse("p", seldom).unwrap();
    assert_eq!(
        seldom.warnings(&ProviderKeys::default()),
        Vec::<String>::new()
    );
}

#[test]
fn a_budget_without_a_limit() {
    for (text, printed) in [
        ("", ["500", "20"]),
        ("upstream.requests_per_minute = 7\n", ["7", "20"]),
        (
            "upstream.requests_per_minute = \"unlimited\"\n",
            ["\"unlimited\"", "\"unlimited\""],
        ),
        (
            "upstream = { requests_per_minute = \"unlimited\", requests_per_second = 9 }\n",
            ["\"unlimited\"", "9"],
        ),
    ] {
        let config = Config::parse("p", text).unwrap();
        let none = ProviderKeys::default();
        let warnings = config.warnings(&none);
        assert_eq!(
            warnings.len(),
            usize::from(printed[0] == "7"),
            "{warnings:?}"
        );
        let once = config.print(&none).unwrap();
        let [minute, second] = printed;
        let lines = format!("requests_per_minute = {minute}\nrequests_per_second = {second}\n");
        assert!(once.contains(&lines), "{lines} in {once}");
        let again = Config::parse("p", &once).unwrap();
        assert_eq!(again.print(&none).unwrap(), once);
    }
    for (value, came) in [
        ("\"none\"", "\"none\""),
        ("0", "0"),
        ("1000001", "1000001"),
        ("1.5", "1.5"),
        ("[]", "a list"),
    ] {
        let found = problems(&format!("upstream.requests_per_second = {value}\n"));
        let expected = format!(
            "p.toml:1:32: upstream.requests_per_second is {came}; allowed is a whole number from 1 to 1000000, or \"unlimited\""
        );
        assert_eq!(found, [expected]);
    }
}

#[test]
fn slots_too_few_to_share_are_warned_of() {
    for (text, warned) in [
        ("upstream.max_in_flight = 3\n", true),
        ("upstream.max_in_flight = 4\n", false),
        ("", false),
    ] {
        let warnings = Config::parse("p", text)
            .unwrap()
            .warnings(&ProviderKeys::default());
        let found = warnings
            .iter()
            .any(|text| text.contains("max_in_flight is 3"));
        assert_eq!(found, warned, "{warnings:?}");
    }
}

#[test]
fn the_limit_on_misses_is_read_and_printed() {
    for (text, expected) in [
        ("", 1200),
        ("limit.misses_per_minute = 0\n", 0),
        ("limit.misses_per_minute = 77\n", 77),
    ] {
        let config = Config::parse("p", text).unwrap();
        assert_eq!(config.limit.misses_per_minute, expected);
        let line = format!("misses_per_minute = {expected}\n");
        assert!(
            config
                .print(&ProviderKeys::default())
                .unwrap()
                .contains(&line)
        );
    }
}

#[test]
fn routes_that_pass_all_cannot_have_fixed_times() {
    for (route, part) in [
        (
            "headers = \"all\"\ncache = { mode = \"override\", times = { 200 = \"1s\" } }",
            "headers = \"all\" goes with",
        ),
        ("methods = [\"*\"]", "methods = [\"*\"] goes with"),
    ] {
        let text = format!("[[route]]\nname = \"a\"\npath = \"/{{rest:*}}\"\n{route}\n");
        let found = problems(&text);
        assert!(
            found.iter().any(|problem| problem.contains(part)),
            "{found:?}"
        );
    }
}

#[test]
fn which_responses_with_cookies_are_stored() {
    let route = |cache: &str| {
        format!(
            "[[route]]\nname = \"a\"\npath = \"/{{rest:*}}\"\nheaders = \"all\"\ncache = {cache}\n"
        )
    };
    for (cache, printed) in [
        ("{ mode = \"respect\" }", "store_set_cookie = \"explicit\""),
        (
            "{ mode = \"respect\", store_set_cookie = \"never\" }",
            "store_set_cookie = \"never\"",
        ),
    ] {
        let config = Config::parse("p", &route(cache)).unwrap();
        let once = config.print(&ProviderKeys::default()).unwrap();
        assert!(once.contains(printed), "{once}");
        assert_eq!(
            Config::parse("p", &once)
                .unwrap()
                .print(&ProviderKeys::default())
                .unwrap(),
            once
        );
    }
    for (cache, problem) in [
        (
            "{ mode = \"respect\", store_set_cookie = \"always\" }",
            "store_set_cookie is \"always\"; allowed is one of explicit, never",
        ),
        (
            "{ mode = \"off\", store_set_cookie = \"never\" }",
            "store_set_cookie goes with mode = \"respect\"",
        ),
    ] {
        let found = problems(&route(cache));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(problem), "{found:?}");
    }
}

#[test]
fn problems_of_chain_mode() {
    let limit = "query.limit = { type = \"integer\", min = 1, max = 60, default = 20 }";
    let offset = "query.offset = { type = \"integer\", default = 0 }";
    let block = "path = \"/b/{x}\"\nparams.x = { type = \"block\" }";
    let rows = [
        (
            "cache = { mode = \"chain\", tip = \"rune\" }".to_owned(),
            "5:33: route.cache.tip is \"rune\"; allowed are the names of [chain.tip.NAME]: ordinals, runes",
        ),
        (
            // The tip of routes that have none is nobody's to name.
            "cache = { mode = \"chain\", tip = \"none\" }".to_owned(),
            "5:33: route.cache.tip is \"none\"; allowed are",
        ),
        (
            "cache = { mode = \"chain\", tip = 3 }".to_owned(),
            "5:33: route.cache.tip is 3; allowed is a string",
        ),
        (
            "cache = { mode = \"off\", tip = \"runes\" }".to_owned(),
            "5:9: tip goes with mode = \"chain\"",
        ),
        (
            format!("pages = true\n{limit}\ncache.mode = \"chain\""),
            "1:1: pages = true needs the query parameters limit and offset",
        ),
        (
            format!("pages = true\n{limit}\n{offset}\ncache.mode = \"off\""),
            "1:1: pages = true needs the query parameters limit and offset",
        ),
        (
            format!(
                "pages = true\n{}\n{offset}\ncache.mode = \"chain\"",
                limit.replace(", default = 20", "")
            ),
            "1:1: pages = true needs the query parameters limit and offset",
        ),
        (
            "upstream_page = 60\ncache.mode = \"chain\"".to_owned(),
            "1:1: upstream_page goes with pages = true",
        ),
        (
            format!("pages = true\nupstream_page = 0\n{limit}\n{offset}\ncache.mode = \"chain\""),
            "6:17: route.upstream_page is 0; allowed is a whole number from 1 to 1000000",
        ),
        (
            "derived_from = \"blocks\"\ncache.mode = \"chain\"".to_owned(),
            "5:16: derived_from is \"blocks\"; there is no such route",
        ),
        (
            "derived_from = \"a\"\ncache.mode = \"chain\"".to_owned(),
            "5:16: derived_from is \"a\"; both routes need pages = true, the same tip and the same upstream",
        ),
        (
            format!(
                "derived_from = \"a\"\npages = true\n{limit}\n{offset}\ncache.mode = \"chain\""
            ),
            "5:16: derived_from is \"a\"; it is for a route with a hex64 parameter, from one with",
        ),
    ];
    for (route, problem) in rows {
        let found = problems(&format!("[[route]]\nname = \"a\"\n{block}\n{route}\n"));
        let expected = format!("p.toml:{problem}");
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{route}\n{found:#?}\n{expected}"
        );
    }
    let rows = [
        ("final_depth = 0", "2:15: chain.final_depth is 0"),
        ("final_ttl = \"2y\"", "2:13: chain.final_ttl is \"2y\""),
        ("absent_ttl = \"0s\"", "2:14: chain.absent_ttl is \"0s\""),
        ("index_blocks = 1", "2:16: chain.index_blocks is 1"),
        (
            "hash_zeros = 65",
            "2:14: chain.hash_zeros is 65; allowed is a whole number from 0 to 64",
        ),
        ("hash_zeros = -1", "2:14: chain.hash_zeros is -1"),
        ("tips = 3", "2:1: unknown key chain.tips; allowed are"),
        (
            "look_ahead.refresh = true",
            "2:22: chain.look_ahead.refresh is true",
        ),
        (
            "tip.runes.every = \"1ms\"",
            "2:19: chain.tip.runes.every is \"1ms\"",
        ),
        (
            "tip.runes.path = \"runes\"",
            "2:18: chain.tip.runes.path is \"runes\"; allowed is a path",
        ),
        (
            "tip.runes.hight = \"h\"",
            "2:11: unknown key chain.tip.runes.hight",
        ),
        (
            "tip.other.every = \"1s\"",
            "2:5: chain.tip.other.path must say where the tip is",
        ),
    ];
    for (line, problem) in rows {
        let found = problems(&format!("[chain]\n{line}\n"));
        let expected = format!("p.toml:{problem}");
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{line}\n{found:#?}\n{expected}"
        );
    }
}

#[test]
fn chain_mode_as_it_is_printed() {
    let text = r#"
        [chain]
        final_depth = 9
        live_ttl = "12s"
        index_blocks = 100
        hash_zeros = 0
        [chain.look_ahead]
        next_window = true
        refresh = 7
        [chain.tip.runes]
        every = "3s"
        [chain.tip.brc20]
        path = "/brc20/status?full=1"
        height = "chain_tip"
        every = "700ms"
        [[route]]
        name = "balances"
        path = "/brc20/balances/{x}"
        params.x = { type = "ticker" }
        cache = { mode = "chain", tip = "brc20" }
        [[route]]
        name = "txs"
        path = "/runes/v1/txs/{x}"
        params.x = { type = "hex64" }
        query.limit = { type = "integer", min = 1, max = 60, default = 20 }
        query.offset = { type = "integer", default = 0 }
        pages = true
        derived_from = "blocks"
        cache = { mode = "chain", stale_if_error = "1m" }
        [[route]]
        name = "blocks"
        path = "/runes/v1/blocks/{x}"
        params.x = { type = "block" }
        query.limit = { type = "integer", min = 1, max = 60, default = 20 }
        query.offset = { type = "integer", default = 0 }
        pages = true
        upstream_page = 1000
        cache = { mode = "chain" }
        [[route]]
        name = "elsewhere"
        path = "/elsewhere"
        cache = { mode = "chain" }
    "#;
    let read = |text: &str| {
        Config::parse("p", text)
            .map_err(|p| format!("{p:?}"))
            .unwrap()
    };
    let (config, once) = (
        read(text),
        read(text).print(&ProviderKeys::default()).unwrap(),
    );
    let again = read(&once);
    assert_eq!(again.print(&ProviderKeys::default()).unwrap(), once);
    for (one, other) in config.routes.routes().iter().zip(again.routes.routes()) {
        assert_eq!(one.cache, other.cache, "{}", one.name);
        assert_eq!(
            (one.pages, one.derived_from),
            (other.pages, other.derived_from)
        );
    }
    let tips: Vec<_> = config
        .routes
        .routes()
        .iter()
        .map(|route| {
            let tip = &config.chain.tips[usize::from(route.cache.tip)];
            (&*tip.name, tip.path.as_deref())
        })
        .collect();
    // Where none is named it is the one whose status stands nearest above.
    assert_eq!(
        tips,
        [
            ("brc20", Some("/brc20/status?full=1")),
            ("runes", Some("/runes/v1/")),
            ("runes", Some("/runes/v1/")),
            ("none", None),
        ]
    );
    for part in [
        "\"700ms\"",
        "chain_tip",
        "upstream_page = 1000",
        "hash_zeros = 0",
        "refresh = 7",
        "\"12s\"",
    ] {
        assert!(once.contains(part), "{part} in {once}");
    }
}

#[test]
fn what_clients_may_hold() {
    let config = Config::parse("p", "").unwrap();
    let connections = config.server.connections;
    assert_eq!(connections.max_unsent_bytes, 128 << 20);
    assert_eq!(connections.times.min_send_rate, 1024);
    assert_eq!(connections.per_client, Some(config.per_client));
    assert_eq!(config.per_client.connections, 512);
    assert_eq!(config.per_client.unsent_bytes, 32 << 20);
    assert_eq!(config.admin.hosts, [""; 0]);
    let off = Config::parse("p", "[limit]\nenabled = false\nconnections = 7\n").unwrap();
    assert_eq!(off.server.connections.per_client, None);
    let printed = off.print(&ProviderKeys::default()).unwrap();
    for part in [
        "max_unsent_bytes = \"128MiB\"",
        "min_send_rate = \"1KiB\"",
        "connections = 7",
        "unsent_bytes = \"32MiB\"",
        "hosts = []",
    ] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    let rows = [
        (
            "[server]\nmax_unsent_bytes = \"1KiB\"",
            "server.max_unsent_bytes is \"1KiB\"; allowed is",
        ),
        (
            "[server]\nmin_send_rate = \"2GiB\"",
            "server.min_send_rate is \"2GiB\"; allowed is",
        ),
        (
            "[limit]\nconnections = 0",
            "limit.connections is 0; allowed is",
        ),
        (
            "[limit]\nunsent_bytes = \"1B\"",
            "limit.unsent_bytes is \"1B\"; allowed is",
        ),
        (
            "[admin]\nhosts = [\"a:9090\"]",
            "allowed is a host name without a port",
        ),
    ];
    for (text, expected) in rows {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected), "{found:?}");
    }
}

#[test]
fn a_client_that_may_hold_all_is_warned_of() {
    let with = |text: &str| {
        Config::parse("p", text)
            .unwrap()
            .warnings(&ProviderKeys::default())
    };
    assert_eq!(with(""), [""; 0]);
    let all = with("[server]\nmax_connections = 512\nmax_unsent_bytes = \"32MiB\"\n");
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("limit.connections"), "{all:?}");
    assert!(all[1].contains("limit.unsent_bytes"), "{all:?}");
    let off = with("[server]\nmax_connections = 2\n[limit]\nenabled = false\n");
    assert_eq!(off, [""; 0]);
}

/// The upstream of each route and each tip, by name.
fn asked(config: &Config) -> Vec<(String, String)> {
    let name = |number: u16| config.upstream_name(number).to_owned();
    let tips = config.chain.tips.iter().filter(|tip| tip.path.is_some());
    let tips = tips.map(|tip| (format!("tip {}", tip.name), name(tip.upstream)));
    let routes = config.routes.routes().iter();
    let routes = routes.map(|route| (route.name.to_string(), name(route.upstream)));
    tips.chain(routes).collect()
}

#[test]
fn which_upstream_is_asked() {
    let plain = "[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nheaders = \"all\"\n";
    let block = "[[route]]\nname = \"b\"\npath = \"/runes/v1/b/{block}\"\nparams.block = { type = \"block\" }\ncache = { mode = \"chain\" }\n";
    let runes = "[upstreams.runes]\nurl = \"http://127.0.0.1:2\"\n";
    let ours = "[upstreams.ours]\nurl = \"http://127.0.0.1:2\"\n";
    let all = |tips: [&str; 2], routes: [&str; 3]| {
        let names = ["tip ordinals", "tip runes", "brc20-token"];
        let names = names
            .into_iter()
            .chain(["rune-transaction-activity", "rune-block-activity"]);
        let upstreams = tips.into_iter().chain(routes);
        names
            .zip(upstreams)
            .map(|(name, upstream)| (name.to_owned(), upstream.to_owned()))
            .collect::<Vec<_>>()
    };
    // The built-in routes.
    for (text, expected) in [
        (String::new(), all(["default"; 2], ["default"; 3])),
        (
            runes.to_owned(),
            all(["default", "runes"], ["default", "runes", "runes"]),
        ),
        (
            format!("{ours}[chain.tip.runes]\nupstream = \"ours\"\n"),
            all(["default", "ours"], ["default", "ours", "ours"]),
        ),
        (
            format!("{runes}[chain.tip.runes]\nupstream = \"default\"\n"),
            all(["default"; 2], ["default"; 3]),
        ),
    ] {
        let config = Config::parse("p", &text).unwrap();
        assert_eq!(asked(&config), expected, "{text}");
    }
    // Routes that say it, and those that do not.
    for (text, expected) in [
        (format!("{runes}{block}"), "runes"),
        (
            format!(
                "{ours}{}",
                block.replace("cache", "upstream = \"ours\"\ncache")
            ),
            "ours",
        ),
        (
            format!(
                "{runes}{ours}{}",
                block.replace("cache", "upstream = \"ours\"\ncache")
            ),
            "ours",
        ),
        (format!("{runes}{plain}"), "default"),
        (
            format!("{runes}{}", plain.replace("/{rest", "/runes/v1/{rest")),
            "runes",
        ),
        (format!("{ours}{plain}upstream = \"ours\"\n"), "ours"),
    ] {
        let config = Config::parse("p", &text).unwrap();
        let (_, upstream) = asked(&config).pop().unwrap();
        assert_eq!(upstream, expected, "{text}");
        // What nobody asks is not there.
        assert_eq!(config.upstreams.len(), 1, "{text}");
        if config.routes.routes()[0].cache.mode == Mode::Chain {
            let tip = usize::from(config.routes.routes()[0].cache.tip);
            let tip = &config.chain.tips[tip];
            assert_eq!((tip.upstream, &*tip.upstream_name), (0, expected), "{text}");
        }
        let printed =
            Config::parse("printed", &config.print(&ProviderKeys::default()).unwrap()).unwrap();
        assert_eq!(asked(&printed).pop(), asked(&config).pop(), "{text}");
    }
}

#[test]
fn what_is_wrong_with_upstreams() {
    let block = "[[route]]\nname = \"b\"\npath = \"/runes/v1/b/{block}\"\nupstream = \"a\"\nparams.block = { type = \"block\" }\ncache = { mode = \"chain\" }\n";
    for (text, expected) in [
        (
            "[chain.tip.runes]\nupstream = \"nobody\"\n".to_owned(),
            "p.toml:2:12: chain.tip.runes.upstream is \"nobody\"; allowed are \"default\"",
        ),
        (
            block.to_owned(),
            "p.toml:4:12: route.upstream is \"a\"; allowed are",
        ),
        (
            format!("[upstreams.a]\n[upstreams.b]\n[chain.tip.runes]\nupstream = \"b\"\n{block}"),
            "p.toml:8:12: the route \"b\" asks the upstream \"a\", and its tip \"runes\" is asked of \"b\"",
        ),
        (
            "[upstreams.default]\nurl = \"http://127.0.0.1:1\"\n".to_owned(),
            "p.toml:1:12: \"default\" is no name for an upstream",
        ),
        (
            "[upstreams.\"a b\"]\n".to_owned(),
            "p.toml:1:12: \"a b\" is no name for an upstream",
        ),
        (
            "[upstreams.a]\nmax_lags = 2\n".to_owned(),
            "p.toml:2:1: unknown key upstreams.a.max_lags",
        ),
        (
            "[upstreams.a]\nbreaker.share = 101\n".to_owned(),
            "p.toml:2:17: upstreams.a.breaker.share is 101",
        ),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(expected), "{text}: {found:?}");
    }
    let unused = Config::parse("p", "[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n").unwrap();
    let warnings = unused.warnings(&ProviderKeys::default());
    assert!(
        warnings[0].contains("no route asks the upstream \"a\""),
        "{warnings:?}"
    );
}

#[test]
fn a_named_upstream_inherits_what_it_does_not_set() {
    let text = r#"
        [upstream]
        url = "http://127.0.0.1:1"
        api_keys_file = "keys"
        timeout = "7s"
        max_in_flight = 6
        [upstream.breaker]
        failures = 3
        pause = "2s"
        [upstreams.runes]
        max_in_flight = 3
        [upstreams.runes.breaker]
        pause = "3s"
        [upstreams.ordinals]
        url = ["http://127.0.0.1:2", "http://127.0.0.1:3"]
        api_keys_file = "others"
    "#;
    let config = Config::parse("p", text).unwrap();
    let [ordinals, runes] = ["ordinals", "runes"].map(|name| {
        let mut named = config.upstreams.iter();
        named.find(|settings| *settings.name == *name).unwrap()
    });
    assert_eq!(config.upstreams.len(), 2, "nothing asks the default one");
    assert_eq!(runes.urls[0], "http://127.0.0.1:1/");
    assert_eq!(runes.timeout, Duration::from_secs(7));
    assert_eq!(
        (runes.max_in_flight.get(), runes.min_in_flight.get()),
        (3, 3)
    );
    assert_eq!(runes.breaker.failures.get(), 3);
    assert_eq!(runes.breaker.pause, Duration::from_secs(3));
    assert!(!runes.has_own_keys_file);
    assert_eq!(ordinals.urls.len(), 2);
    assert!(ordinals.has_own_keys_file);
    assert_eq!(ordinals.api_keys_file.as_deref(), Some("others".as_ref()));
    // What the command line says goes before, and is inherited as well.
    let url = |port: u16| base_url(&format!("http://127.0.0.1:{port}")).unwrap();
    let overrides = [
        ("default".into(), vec![url(7)]),
        ("ordinals".into(), vec![url(8)]),
    ];
    let config = Config::parse_with("p", text, &overrides).unwrap();
    let urls = config
        .upstreams
        .iter()
        .map(|one| (&*one.name, &one.urls[0]));
    let urls: Vec<_> = urls.map(|(name, url)| (name, url.to_string())).collect();
    assert!(
        urls.contains(&("runes", "http://127.0.0.1:7/".to_owned())),
        "{urls:?}"
    );
    assert!(
        urls.contains(&("ordinals", "http://127.0.0.1:8/".to_owned())),
        "{urls:?}"
    );
    // An upstream that only it names.
    let overrides = [("runes".into(), vec![url(9)])];
    let config = Config::parse_with("p", "upstream.url = \"http://127.0.0.1:1\"\n", &overrides);
    let config = config.unwrap();
    assert_eq!(
        config.upstream_name(config.routes.routes()[1].upstream),
        "runes"
    );
    assert_eq!(config.upstreams[1].urls, [url(9)]);
}

#[test]
fn rates_of_upstreams_are_warned_of_and_printed() {
    let two = "[upstreams.runes]\nurl = \"http://127.0.0.1:1\"\n";
    for (text, keys, warned) in [
        ("requests_per_minute = 100\n", keys(), true),
        ("requests_per_minute = \"unlimited\"\n", keys(), true),
        ("requests_per_minute = 500\n", keys(), false),
        (
            "requests_per_minute = 100\nsend_api_key = false\n",
            keys(),
            false,
        ),
        (
            "requests_per_minute = 100\n",
            ProviderKeys::default(),
            false,
        ),
        (
            "requests_per_minute = 100\n",
            ProviderKeys {
                own: [("runes".into(), keys().shared)].into(),
                ..keys()
            },
            false,
        ),
    ] {
        let config = Config::parse("p", &format!("{two}{text}")).unwrap();
        let warnings = config.warnings(&keys).join("\n");
        let said = "upstream and upstreams.runes share API keys, and their requests_per_minute";
        assert_eq!(warnings.contains(said), warned, "{text}: {warnings}");
    }
    // A limit of the second is not inherited by a minute that has none.
    for (minute, second) in [("\"unlimited\"", "\"unlimited\""), ("300", "9")] {
        let text =
            format!("upstream.requests_per_second = 9\n{two}requests_per_minute = {minute}\n");
        let config = Config::parse("p", &text).unwrap();
        let named = toml::Value::try_from(config.upstreams[1].in_force(true)).unwrap();
        assert_eq!(named["requests_per_second"].to_string(), second);
    }
    // An origin of one's own, that a plain cache is before, is not rationed.
    let plain = "[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nheaders = \"all\"\n";
    for (text, keys, printed) in [
        (
            plain,
            ProviderKeys::default(),
            "requests_per_second = \"unlimited\"",
        ),
        (plain, keys(), "requests_per_second = 20"),
        ("", ProviderKeys::default(), "requests_per_second = 20"),
        (
            "[upstream]\nrequests_per_minute = \"unlimited\"\n",
            keys(),
            "requests_per_second = \"unlimited\"",
        ),
    ] {
        let config = Config::parse("p", text).unwrap();
        let text = config.print(&keys).unwrap();
        assert!(text.contains(printed), "{printed}: {text}");
    }
}

/// A key of `[upstream]`, two values of it that differ from the default one.
const UPSTREAM_KEYS: [(&str, &str, &str); 36] = [
    ("url", "\"http://a.example/\"", "\"http://b.example/\""),
    ("max_lag", "3", "4"),
    ("return_after", "\"31s\"", "\"32s\""),
    ("api_key_header", "\"x-a\"", "\"x-b\""),
    ("api_keys_file", "\"a\"", "\"b\""),
    ("allow_plain_http", "true", "false"),
    ("ca_file", "\"a.pem\"", "\"b.pem\""),
    ("http2", "true", "false"),
    ("send_api_key", "false", "true"),
    ("requests_per_minute", "300", "\"unlimited\""),
    ("requests_per_second", "7", "8"),
    ("max_in_flight", "9", "10"),
    ("min_in_flight", "2", "3"),
    ("queue_timeout", "\"3s\"", "\"4s\""),
    ("max_queue", "7", "8"),
    ("connect_timeout", "\"3s\"", "\"4s\""),
    ("first_byte_timeout", "\"3s\"", "\"4s\""),
    ("timeout", "\"3s\"", "\"4s\""),
    ("idle_timeout", "\"3s\"", "\"4s\""),
    ("max_body_bytes", "2048", "4096"),
    ("request_body.buffer", "\"2KiB\"", "\"3KiB\""),
    ("request_body.max_buffered", "\"8MiB\"", "\"9MiB\""),
    (
        "request_body.max_buffered_per_client",
        "\"1MiB\"",
        "\"3MiB\"",
    ),
    ("request_body.min_rate", "\"2KiB\"", "\"3KiB\""),
    ("request_body.grace", "\"3s\"", "\"4s\""),
    ("request_body.timeout", "\"3s\"", "\"4s\""),
    ("request_body.max_bytes", "\"2KiB\"", "\"3KiB\""),
    ("retry.limit", "2", "3"),
    ("retry.share", "30", "40"),
    ("hedge.enabled", "true", "false"),
    ("hedge.percentile", "80", "90"),
    ("breaker.enabled", "false", "true"),
    ("breaker.failures", "3", "4"),
    ("breaker.share", "30", "40"),
    ("breaker.window", "\"3s\"", "\"4s\""),
    ("breaker.pause", "\"3s\"", "\"4s\""),
];

#[test]
fn a_named_upstream_inherits_each_key_and_may_set_it() {
    let of = |text: &str, key: &str| {
        let config = Config::parse("p", text);
        let config = config.unwrap_or_else(|problems| panic!("{text}{problems:?}"));
        ["default", "runes"].map(|name| {
            let mut named = config.upstreams.iter();
            let settings = named.find(|settings| &*settings.name == name).unwrap();
            let printed = toml::Value::try_from(settings).unwrap();
            key.split('.')
                .try_fold(&printed, |table, key| table.get(key))
                .map(ToString::to_string)
        })
    };
    let last = ("breaker.max_pause", "\"61s\"", "\"62s\"");
    for (key, one, other) in UPSTREAM_KEYS.into_iter().chain([last]) {
        let unset = of("[upstreams.runes]\n", key);
        assert_eq!(unset[0], unset[1], "{key}");
        let (one, other) = (one.to_owned(), other.to_owned());
        let inherits = of(
            &format!("[upstream]\n{key} = {one}\n[upstreams.runes]\n"),
            key,
        );
        assert_eq!(inherits, [Some(one.clone()), Some(one.clone())], "{key}");
        assert_ne!(
            inherits, unset,
            "{key}: the test's value is the default one"
        );
        let both = format!("[upstream]\n{key} = {one}\n[upstreams.runes]\n{key} = {other}\n");
        assert_eq!(of(&both, key), [Some(one), Some(other.clone())], "{key}");
        let named = of(&format!("[upstreams.runes]\n{key} = {other}\n"), key);
        assert_eq!(named, [unset[0].clone(), Some(other)], "{key}");
    }
    // No key is missing in the table.
    let text: String = UPSTREAM_KEYS
        .iter()
        .map(|(key, value, _)| format!("upstream.{key} = {value}\n"))
        .collect();
    let config = Config::parse("p", &text).unwrap();
    let printed = toml::Table::try_from(&config.upstreams[0]).unwrap();
    let keys = printed
        .values()
        .map(|value| value.as_table().map_or(1, toml::Table::len));
    assert_eq!(keys.sum::<usize>(), UPSTREAM_KEYS.len() + 1, "{printed}");
}

#[test]
fn configurations_with_several_upstreams_are_printed_so_that_they_can_be_read() {
    let two = "[upstreams.ordinals]\nurl = \"http://127.0.0.1:1\"\n[upstreams.runes]\nurl = \"http://127.0.0.1:2\"\n";
    let plain = "[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nupstream = \"runes\"\nmethods = [\"*\"]\nquery = \"any\"\nheaders = \"all\"\ncache.mode = \"respect\"\n";
    for (name, text) in [
        ("as shipped", String::new()),
        ("two", two.to_owned()),
        (
            "the keys' file is inherited, and nothing asks the default upstream",
            format!("[upstream]\napi_keys_file = \"shared\"\n{two}"),
        ),
        (
            "one has its own keys' file",
            format!("[upstream]\napi_keys_file = \"shared\"\n{two}api_keys_file = \"own\"\n"),
        ),
        (
            "its own is the same file",
            format!("[upstream]\napi_keys_file = \"shared\"\n{two}api_keys_file = \"shared\"\n"),
        ),
        (
            "only one is asked, with a file of its own",
            format!("{two}api_keys_file = \"own\"\n{plain}"),
        ),
        (
            "unlimited",
            format!(
                "[upstream]\nrequests_per_minute = \"unlimited\"\n{two}requests_per_second = 7\n"
            ),
        ),
        ("a plain cache", format!("{two}{plain}")),
        (
            "a test chain, and the runes at the default upstream",
            format!("[chain]\nhash_zeros = 0\n[chain.tip.runes]\nupstream = \"default\"\n{two}"),
        ),
        ("no key is sent", format!("{two}send_api_key = false\n")),
    ] {
        let once = Config::parse("p", &text);
        let once = once.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        for keys in [ProviderKeys::default(), keys()] {
            let printed = once.print(&keys).unwrap();
            let again = Config::parse("printed", &printed);
            let again = again.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
            assert_eq!(again.print(&keys).unwrap(), printed, "{name}");
            assert_eq!(asked(&again), asked(&once), "{name}");
            let files = |config: &Config| {
                let each = config.upstreams.iter().map(|one| {
                    let file = one.api_keys_file.clone();
                    (one.name.clone(), one.has_own_keys_file, file)
                });
                each.collect::<Vec<_>>()
            };
            assert_eq!(files(&again), files(&once), "{name}");
        }
    }
}

#[test]
fn what_is_derived_comes_from_one_upstream() {
    let list = "pages = true\nquery.limit = { type = \"integer\", default = 20 }\nquery.offset = { type = \"integer\", default = 0 }\ncache.mode = \"chain\"\n";
    let text = |upstream: &str| {
        format!(
            "[upstreams.a]\n[upstreams.b]\n\
             [[route]]\nname = \"blocks\"\nupstream = \"a\"\npath = \"/b/{{x}}\"\nparams.x.type = \"block\"\n{list}\
             [[route]]\nname = \"txs\"\nderived_from = \"blocks\"\nupstream = \"{upstream}\"\npath = \"/t/{{x}}\"\nparams.x.type = \"hex64\"\n{list}"
        )
    };
    assert_eq!(problems(&text("a")), [""; 0]);
    let found = problems(&text("b"));
    let expected = "p.toml:14:16: derived_from is \"blocks\"; both routes need pages = true, the same tip and the same upstream";
    assert!(found[0].starts_with(expected), "{found:?}");
}
