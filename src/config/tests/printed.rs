//! The effective configuration, as it is printed and read again.

use super::{asked, keys, problems};
use crate::config::Config;
use crate::upstream::ProviderKeys;

#[test]
fn the_shipped_file_means_the_defaults() {
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
        response_body = { min_rate = "78B", grace = "8s" }
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
fn limits_of_what_clients_may_hold_are_read_and_printed() {
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
                    let file = one.keys.file.clone();
                    (one.name.clone(), one.keys.has_own_file, file)
                });
                each.collect::<Vec<_>>()
            };
            assert_eq!(files(&again), files(&once), "{name}");
        }
    }
}
