//! What is warned of, and how often tips are read with a small budget.

use crate::config::Config;
use crate::config::tests::read;
use crate::upstream::ProviderKeys;
use crate::upstream::keys::ApiKey;

/// The warnings without API keys.
fn warnings(text: &str) -> Vec<String> {
    read(text).warnings(&ProviderKeys::default())
}

fn keys() -> ProviderKeys {
    shared("a-key-of-a-test")
}

/// The keys of a list, for all upstreams.
fn shared(list: &str) -> ProviderKeys {
    ProviderKeys {
        shared: ApiKey::list(list).unwrap(),
        ..ProviderKeys::default()
    }
}

/// Probes take at most about a quarter of a budget.
#[test]
fn tips_are_read_less_often_with_a_small_budget() {
    let two = "upstream.url = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\"]\n";
    let apart = "upstreams.runes.url = \"http://127.0.0.1:2\"\n";
    let limit = |limit: u32| format!("upstream.requests_per_minute = {limit}\n");
    let every = |tip: &str, time: &str| format!("chain.tip.{tip}.every = \"{time}\"\n");
    // The seconds between probes of each tip.
    for (text, with_keys, expected) in [
        (String::new(), true, [5, 5]),
        (limit(96), true, [5, 5]),
        (limit(95), true, [6, 6]),
        (limit(30), true, [16, 16]),
        (limit(30), false, [5, 5]),
        (limit(1), true, [480, 480]),
        (limit(30) + &every("runes", "1m"), true, [9, 104]),
        // A standby gets eight more.
        (format!("{}{two}", limit(120)), true, [6, 6]),
        // Upstreams share the budget of their keys.
        (format!("{}{apart}", limit(60)), true, [8, 8]),
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
        let warned = |config: &Config| {
            config
                .warnings(&keys)
                .iter()
                .any(|text| text.contains("the tips"))
        };
        assert_eq!(warned(&config), expected != [5, 5], "{text}");
        config.fit_probes(&keys);
        let seconds = |name: &str| {
            let mut tips = config.chain.tips.iter();
            tips.find(|tip| &*tip.name == name).unwrap().every.as_secs()
        };
        assert_eq!([seconds("ordinals"), seconds("runes")], expected, "{text}");
        assert!(!warned(&config), "{text}: what is left is not more");
    }
}

#[test]
fn what_is_probably_not_intended_is_warned_of() {
    for (text, has) in [
        ("upstream.requests_per_minute = 7", "no API key"),
        ("[upstreams.x]", "no route uses the upstream \"x\""),
    ] {
        let found = warnings(text);
        assert!(
            found.len() == 1 && found[0].contains(has),
            "{text}: {found:?}"
        );
    }
    let odd = shared("a-usual-key,a/key-with/slashes");
    let found = read("").warnings(&odd);
    assert!(
        found[0].starts_with("the API key key-2 of upstream has characters other than "),
        "{found:?}"
    );
}
