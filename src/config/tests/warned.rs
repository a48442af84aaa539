//! Warnings about valid configurations.

use super::{keys, read, warnings};
use crate::api_key::ApiKey;
use crate::client_tokens::TokenFile;
use crate::upstream::ProviderKeys;

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
fn a_required_token_without_any_is_warned_of() {
    let text = "clients.token_file = \"/a\"\n";
    assert_eq!(warnings(text), [""; 0]);
    let text = format!("{text}clients.require_token = true\n");
    let found = warnings(&text);
    assert!(found[0].contains("every request gets 401"), "{found:?}");
    let mut config = read(&text);
    let line = format!("web = {{ sha256 = [\"{:064}\"] }}", 0);
    config.tokens.tokens = TokenFile::parse("t", &line).unwrap().into();
    assert_eq!(config.warnings(&ProviderKeys::default()), [""; 0]);
}

#[test]
fn keys_that_are_not_searched_for_in_every_form_are_warned_of() {
    let mut keys = ProviderKeys::from(ApiKey::list("a-usual-key,a/key-with/slashes").unwrap());
    let own = ApiKey::list("short").unwrap();
    keys.own.insert("other".into(), own);
    let found = read("").warnings(&keys);
    let [slashes, short] = &found[..] else {
        panic!("{found:?}");
    };
    let expected = "the API key key-2 of upstream has characters other than ";
    assert!(slashes.starts_with(expected), "{slashes}");
    let expected = "the API key key-1 of upstreams.other is shorter than 8 characters: ";
    assert!(short.starts_with(expected), "{short}");
}
