//! The effective configuration, as it is printed and read again.

use super::{printed, read};
use crate::config::Config;

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
        max_request_body = "3KiB"
        response_body = { min_rate = "78B", grace = "8s" }
        retry = false
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
        "retry = false",
        "max_request_body = \"3KiB\"",
        "\"8s\"",
        "::1/128",
        "500ms",
        "default = 3",
        "[a-z]+",
    ] {
        assert!(once.contains(part), "{part} in {once}");
    }
}

const CHAIN: &str = r#"
    [chain]
    final_depth = 9
    live_ttl = "12s"
    hash_zeros = 0
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
        "\"12s\"",
    ] {
        assert!(once.contains(part), "{part} in {once}");
    }
}
