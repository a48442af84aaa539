//! Upstreams: their URLs, budgets and inheritance.

use std::time::Duration;

use super::{asked, keys, printed, read};
use crate::cache::policy::Mode;
use crate::config::{Config, ReplicaOverrides, base_url};
use crate::upstream::ProviderKeys;

#[test]
fn base_urls_may_be_one_or_a_list() {
    let one = read("upstream.url = \"https://a.example\"\n");
    let two = "upstream.url = [\"https://a.example\", \"https://b.example/api\"]\n";
    let both = read(two);
    let urls = |config: &Config| {
        let urls = config.upstreams[0].urls.iter();
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
        let warnings = read(text).warnings(&keys());
        assert_eq!(warnings.len(), usize::from(minute == "7"), "{warnings:?}");
        let once = read(text).print(&keys()).unwrap();
        let lines = format!("requests_per_minute = {minute}\nrequests_per_second = {second}\n");
        assert!(once.contains(&lines), "{lines} in {once}");
        assert_eq!(read(&once).print(&keys()).unwrap(), once);
    }
    // Without an API key there is none.
    let keyless = read("upstream.requests_per_minute = 7\n");
    assert!(printed(&keyless).contains("requests_per_minute = \"unlimited\"\n"));
    let found = keyless.warnings(&ProviderKeys::default());
    assert!(found[0].contains("no API key"), "{found:?}");
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
fn a_named_upstream_inherits_what_it_does_not_set() {
    let text = r#"
        [upstream]
        url = "http://127.0.0.1:1"
        api_keys_file = "keys"
        timeout = "7s"
        max_in_flight = 6
        [upstream.response_body]
        min_rate = "3KiB"
        grace = "2s"
        [upstreams.runes]
        max_in_flight = 3
        [upstreams.runes.response_body]
        grace = "3s"
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
    assert_eq!(runes.urls[0], "http://127.0.0.1:1/");
    assert_eq!(runes.timeouts.whole, Duration::from_secs(7));
    assert_eq!(runes.admission.max_in_flight.get(), 3);
    assert_eq!(runes.response_body.min_rate, 3 << 10);
    assert_eq!(runes.response_body.grace, Duration::from_secs(3));
    assert!(!runes.has_own_file);
    assert_eq!(ordinals.urls.len(), 2);
    assert!(ordinals.has_own_file);
    assert_eq!(ordinals.api_keys_file.as_deref(), Some("others".as_ref()));
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
    assert_eq!(config.upstreams[1].urls, [url(9)]);
}
