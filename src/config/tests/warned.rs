//! Warnings about valid configurations.

use super::{keys, read, warnings};
use crate::client_tokens::TokenFile;
use crate::config::Config;
use crate::upstream::ProviderKeys;

#[test]
fn a_route_that_passes_all_with_a_key_is_warned_of() {
    let text = "[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nheaders = \"all\"\n";
    assert_eq!(warnings(text), [""; 0]);
    let warnings = read(text).warnings(&keys());
    assert!(warnings[0].contains("\"all\""), "{warnings:?}");
    assert_eq!(Config::shipped().unwrap().warnings(&keys()), [""; 0]);
}

#[test]
fn a_budget_that_is_too_small_for_the_tips_is_warned_of() {
    let warnings = |text: &str| read(text).warnings(&keys());
    let small = warnings("upstream.requests_per_minute = 60\n");
    assert!(small[0].contains("24 times a minute"), "{small:?}");
    let seldom = "upstream.requests_per_minute = 60\nchain.tip.ordinals.every = \"10s\"\nchain.tip.runes.every = \"10s\"\n";
    assert_eq!(warnings(seldom), [""; 0]);
}

/// Probes take at most about a quarter of a budget.
#[test]
fn tips_are_read_less_often_with_a_small_budget() {
    let two = "upstream.url = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\"]\n";
    let apart = "upstreams.runes.url = \"http://127.0.0.1:2\"\n";
    let limit = |limit: u32| format!("upstream.requests_per_minute = {limit}\n");
    // The seconds between probes of each tip.
    for (text, with_keys, expected) in [
        (String::new(), true, [5, 5]),
        (limit(96), true, [5, 5]),
        (limit(95), true, [6, 6]),
        (limit(60), true, [8, 8]),
        (limit(30), true, [16, 16]),
        (limit(30), false, [5, 5]),
        (limit(1), true, [480, 480]),
        (
            limit(30) + "chain.tip.runes.every = \"1m\"\n",
            true,
            [9, 104],
        ),
        (
            limit(30) + "chain.tip.runes.every = \"1h\"\nchain.tip.ordinals.every = \"1h\"\n",
            true,
            [3600, 3600],
        ),
        // A standby gets eight more.
        (format!("{}{two}", limit(120)), true, [6, 6]),
        // Upstreams share the budget of their keys.
        (format!("{}{apart}", limit(60)), true, [8, 8]),
        (format!("{}{apart}", limit(60)), false, [5, 5]),
        (
            format!("{}shared.replicas = 2\n", limit(60)),
            true,
            [16, 16],
        ),
    ] {
        let mut config = read(&text);
        let keys = if with_keys {
            keys()
        } else {
            ProviderKeys::default()
        };
        config.fit_probes(&keys);
        let every = |name: &str| {
            let mut tips = config.chain.tips.iter();
            tips.find(|tip| &*tip.name == name).unwrap().every.as_secs()
        };
        assert_eq!([every("ordinals"), every("runes")], expected, "{text}");
        // What is left is not more.
        assert!(
            config
                .warnings(&keys)
                .iter()
                .all(|text| !text.contains("the tips")),
            "{text}"
        );
    }
}

#[test]
fn slots_too_few_to_share_are_warned_of() {
    for (text, warned) in [
        ("upstream.max_in_flight = 3\n", true),
        ("upstream.max_in_flight = 4\n", false),
        ("", false),
    ] {
        let warnings = warnings(text);
        let mut each = warnings.iter();
        let found = each.any(|text| text.contains("max_in_flight is 3"));
        assert_eq!(found, warned, "{warnings:?}");
    }
}

#[test]
fn a_listener_that_nobody_may_connect_to_is_warned_of() {
    let listener = "[[listener]]\naddress = \"127.0.0.1:8443\"\n";
    let proxies = "[clients]\ntrusted_proxies = [\"10.0.0.1\"]\n";
    for (text, warned) in [
        (format!("{listener}proxy_protocol = true\n"), true),
        (format!("{listener}proxy_protocol = true\n{proxies}"), false),
        (listener.to_owned(), false),
    ] {
        let warnings = warnings(&text);
        let says = "the listener on 127.0.0.1:8443 has proxy_protocol = true";
        let found = warnings.iter().any(|warning| warning.contains(says));
        assert_eq!(
            (found, warnings.len()),
            (warned, usize::from(warned)),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_client_that_may_hold_all_is_warned_of() {
    assert_eq!(warnings(""), [""; 0]);
    let all = warnings("[server]\nmax_connections = 512\nmax_unsent_bytes = \"32MiB\"\n");
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("limit.connections"), "{all:?}");
    assert!(all[1].contains("limit.unsent_bytes"), "{all:?}");
    let off = warnings("[server]\nmax_connections = 2\n[limit]\nenabled = false\n");
    assert_eq!(off, [""; 0]);
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
        let config = read(&format!("{two}{text}"));
        let warnings = config.warnings(&keys).join("\n");
        let said = "upstream and upstreams.runes share API keys, and their requests_per_minute";
        assert_eq!(warnings.contains(said), warned, "{text}: {warnings}");
    }
    // A limit of the second is not inherited by a minute that has none.
    for (minute, second) in [("\"unlimited\"", "\"unlimited\""), ("300", "9")] {
        let text =
            format!("upstream.requests_per_second = 9\n{two}requests_per_minute = {minute}\n");
        let config = read(&text);
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
        let config = read(text);
        let text = config.print(&keys).unwrap();
        assert!(text.contains(printed), "{printed}: {text}");
    }
}

#[test]
fn a_required_token_without_any_is_warned_of() {
    let text = "clients.token_file = \"/a\"\n";
    assert_eq!(warnings(text), [""; 0]);
    let text = format!("{text}clients.require_token = true\n");
    let found = warnings(&text);
    assert!(found[0].contains("every request gets 401"), "{found:?}");
    let mut config = read(&text);
    let line = format!("web {:064}", 0);
    config.tokens.tokens = TokenFile::parse(&line).unwrap().into();
    assert_eq!(config.warnings(&ProviderKeys::default()), [""; 0]);
}

#[test]
fn routes_that_pass_all_are_warned_of_where_a_token_is_required() {
    let with = |required: bool, methods: &str| {
        let text = format!(
            "clients = {{ token_file = \"/a\", require_token = {required} }}\n[[route]]\nname = \"open\"\npath = \"/{{rest:*}}\"\nmethods = [{methods}]\nheaders = \"all\"\n"
        );
        let mut config = read(&text);
        let line = format!("web {:064}", 0);
        config.tokens.tokens = TokenFile::parse(&line).unwrap().into();
        config.warnings(&ProviderKeys::default())
    };
    assert_eq!(with(false, "\"*\""), [""; 0]);
    let listed = with(true, "\"GET\"");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].contains("\"open\" keep the origin's cache-control"));
    let any = with(true, "\"*\"");
    assert_eq!(any.len(), 2, "{any:?}");
    assert!(any[1].contains("\"open\" passes OPTIONS on"), "{any:?}");
}

#[test]
fn what_replicas_lose_is_warned_of() {
    let replicas = "shared.replicas = ";
    for (text, expected) in [
        (format!("{replicas}2\n"), vec![]),
        (
            format!("{replicas}3\nupstream.requests_per_second = 5\n"),
            vec!["requests_per_second is 5, and each of the 3 replicas has 1: 2 are not used"],
        ),
        // A part of the budget has fewer requests for the probes of the tips.
        (
            format!("{replicas}4\nupstream.requests_per_minute = 320\n"),
            vec![
                "24 times a minute, and at most a quarter of a replica's part of upstream.requests_per_minute (320 by 4), 80, is for that",
            ],
        ),
    ] {
        let warnings = warnings(&text);
        assert_eq!(warnings.len(), expected.len(), "{text} {warnings:?}");
        for (warning, part) in warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{warning}");
        }
    }
}
