//! Upstreams: their URLs, budgets and inheritance.

use std::time::Duration;

use super::{asked, printed, read, warnings};
use crate::cache::policy::Mode;
use crate::config::{Config, ReplicaOverrides, base_url};

#[test]
fn base_urls_may_be_one_or_a_list() {
    let one = read("upstream.url = \"https://a.example\"\n");
    let two = "upstream.url = [\"https://a.example\", \"https://b.example/api\"]\n";
    let both = read(two);
    let urls = |config: &Config| {
        let urls = config.upstreams[0].endpoints.urls.iter();
        urls.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(urls(&one), ["https://a.example/"]);
    assert_eq!(urls(&both), ["https://a.example/", "https://b.example/api"]);
    for config in [&one, &both] {
        let again = read(&printed(config));
        assert_eq!(urls(&again), urls(config));
    }
}

#[test]
fn a_budget_may_be_unlimited() {
    for (text, [minute, second]) in [
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
        let warnings = warnings(text);
        assert_eq!(warnings.len(), usize::from(minute == "7"), "{warnings:?}");
        let once = printed(&read(text));
        let lines = format!("requests_per_minute = {minute}\nrequests_per_second = {second}\n");
        assert!(once.contains(&lines), "{lines} in {once}");
        assert_eq!(printed(&read(&once)), once);
    }
}

#[test]
fn routes_and_tips_find_their_upstream() {
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
        assert_eq!(asked(&read(&text)), expected, "{text}");
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
        let config = read(&text);
        let (_, upstream) = asked(&config).pop().unwrap();
        assert_eq!(upstream, expected, "{text}");
        // What nobody asks is not there.
        assert_eq!(config.upstreams.len(), 1, "{text}");
        if config.routes.routes()[0].cache.mode == Mode::Chain {
            let tip = usize::from(config.routes.routes()[0].cache.tip);
            let tip = &config.chain.tips[tip];
            assert_eq!((tip.upstream, &*tip.upstream_name), (0, expected), "{text}");
        }
        let again = read(&printed(&config));
        assert_eq!(asked(&again).pop(), asked(&config).pop(), "{text}");
    }
}

#[test]
fn an_upstream_that_no_route_uses_is_warned_of() {
    let unused = warnings("[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n");
    let message = "no route uses the upstream \"a\"";
    assert!(unused[0].contains(message), "{unused:?}");
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
    let config = read(text);
    let [ordinals, runes] = ["ordinals", "runes"].map(|name| {
        let mut named = config.upstreams.iter();
        named.find(|settings| *settings.name == *name).unwrap()
    });
    assert_eq!(config.upstreams.len(), 2, "nothing asks the default one");
    assert_eq!(runes.endpoints.urls[0], "http://127.0.0.1:1/");
    assert_eq!(runes.timeouts.whole, Duration::from_secs(7));
    assert_eq!(runes.admission.max_in_flight.get(), 3);
    assert_eq!(runes.breaker.failures.get(), 3);
    assert_eq!(runes.breaker.pause, Duration::from_secs(3));
    assert!(!runes.keys.has_own_file);
    assert_eq!(ordinals.endpoints.urls.len(), 2);
    assert!(ordinals.keys.has_own_file);
    assert_eq!(ordinals.keys.file.as_deref(), Some("others".as_ref()));
    // What the command line says goes before, and is inherited as well.
    let url = |port: u16| base_url(&format!("http://127.0.0.1:{port}")).unwrap();
    let overrides = [
        ("default".into(), vec![url(7)]),
        ("ordinals".into(), vec![url(8)]),
    ];
    let config = Config::parse_with("p", text, &overrides, &ReplicaOverrides::default()).unwrap();
    let urls = config
        .upstreams
        .iter()
        .map(|one| (&*one.name, &one.endpoints.urls[0]));
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
    let config = Config::parse_with(
        "p",
        "upstream.url = \"http://127.0.0.1:1\"\n",
        &overrides,
        &ReplicaOverrides::default(),
    );
    let config = config.unwrap();
    assert_eq!(
        config.upstream_name(config.routes.routes()[1].upstream.number),
        "runes"
    );
    assert_eq!(config.upstreams[1].endpoints.urls, [url(9)]);
}

/// A key of `[upstream]`, two values of it that differ from the default one.
const UPSTREAM_KEYS: [(&str, &str, &str); 35] = [
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
    ("response_body.min_rate", "\"2KiB\"", "\"3KiB\""),
    ("response_body.grace", "\"3s\"", "\"4s\""),
    ("retry.limit", "2", "3"),
    ("retry.share", "30", "40"),
    ("breaker.enabled", "false", "true"),
    ("breaker.failures", "3", "4"),
    ("breaker.share", "30", "40"),
    ("breaker.window", "\"3s\"", "\"4s\""),
    ("breaker.pause", "\"3s\"", "\"4s\""),
];

#[test]
fn a_named_upstream_inherits_each_key_and_may_set_it() {
    let of = |text: &str, key: &str| {
        let config = read(text);
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
    let config = read(&text);
    let printed = toml::Table::try_from(&config.upstreams[0]).unwrap();
    let keys = printed
        .values()
        .map(|value| value.as_table().map_or(1, toml::Table::len));
    assert_eq!(keys.sum::<usize>(), UPSTREAM_KEYS.len() + 1, "{printed}");
}
