//! The effective configuration, as it is printed and read again.

use super::{asked, keys, printed, read};
use crate::config::Config;
use crate::upstream::ProviderKeys;

#[test]
fn the_shipped_file_means_the_defaults() {
    let shipped = Config::shipped().unwrap();
    assert_eq!(printed(&shipped), printed(&read("")));
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
    let once = printed(&read(text));
    assert_eq!(printed(&read(&once)), once);
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
        let config = read(text);
        assert_eq!(config.limit.misses_per_minute, expected);
        let line = format!("misses_per_minute = {expected}\n");
        assert!(printed(&config).contains(&line));
    }
}

#[test]
fn limits_of_what_clients_may_hold_are_read_and_printed() {
    let config = read("");
    let connections = config.server.connections;
    assert_eq!(connections.max_unsent_bytes, 128 << 20);
    assert_eq!(connections.times.min_send_rate, 1024);
    assert_eq!(connections.per_client, Some(config.per_client));
    assert_eq!(config.per_client.connections, 512);
    assert_eq!(config.per_client.unsent_bytes, 32 << 20);
    assert_eq!(config.admin.hosts, [""; 0]);
    let off = read("[limit]\nenabled = false\nconnections = 7\n");
    assert_eq!(off.server.connections.per_client, None);
    let printed = printed(&off);
    for part in [
        "max_unsent_bytes = \"128MiB\"",
        "min_send_rate = \"1KiB\"",
        "connections = 7",
        "unsent_bytes = \"32MiB\"",
        "hosts = []",
    ] {
        assert!(printed.contains(part), "{part} in {printed}");
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

#[test]
fn store_set_cookie_is_printed() {
    let route = |cache: &str| {
        format!(
            "[[route]]\nname = \"a\"\npath = \"/{{rest:*}}\"\nheaders = \"all\"\ncache = {cache}\n"
        )
    };
    for (cache, line) in [
        ("{ mode = \"respect\" }", "store_set_cookie = \"explicit\""),
        (
            "{ mode = \"respect\", store_set_cookie = \"never\" }",
            "store_set_cookie = \"never\"",
        ),
    ] {
        let once = printed(&read(&route(cache)));
        assert!(once.contains(line), "{once}");
        assert_eq!(printed(&read(&once)), once);
    }
}

const CHAIN: &str = r#"
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

#[test]
fn chain_mode_is_printed_so_that_it_can_be_read() {
    let config = read(CHAIN);
    let once = printed(&config);
    let again = read(&once);
    assert_eq!(printed(&again), once);
    for (one, other) in config.routes.routes().iter().zip(again.routes.routes()) {
        assert_eq!(one.cache, other.cache, "{}", one.name);
        assert_eq!(
            (one.chain.window, one.chain.derived_from),
            (other.chain.window, other.chain.derived_from)
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
