//! Cache mode `chain`: its keys, and tips.

use super::problems;
use crate::config::Config;
use crate::upstream::ProviderKeys;

#[test]
fn what_routes_of_chain_mode_need_is_checked() {
    let limit = "query.limit = { type = \"integer\", min = 1, max = 60, default = 20 }";
    let offset = "query.offset = { type = \"integer\", default = 0 }";
    let block = "path = \"/b/{x}\"\nparams.x = { type = \"block\" }";
    let rows = [
        (
            "cache = { mode = \"chain\", tip = \"rune\" }".to_owned(),
            "5:33: route.cache.tip is \"rune\"; did you mean \"runes\"? Allowed are the names of [chain.tip.NAME]: ordinals, runes",
        ),
        (
            // The tip for routes without one has no name that a file may use.
            "cache = { mode = \"chain\", tip = \"none\" }".to_owned(),
            "5:33: route.cache.tip is \"none\"; allowed are",
        ),
        (
            "cache = { mode = \"chain\", tip = 3 }".to_owned(),
            "5:33: route.cache.tip is 3; allowed is a string",
        ),
        (
            "cache = { mode = \"off\", tip = \"runes\" }".to_owned(),
            "5:31: route.cache.tip goes with mode = \"chain\"",
        ),
        (
            format!("pages = true\n{limit}\ncache.mode = \"chain\""),
            "5:9: route.pages = true needs the query parameters limit and offset",
        ),
        (
            format!("pages = true\n{limit}\n{offset}\ncache.mode = \"off\""),
            "5:9: route.pages = true needs the query parameters limit and offset",
        ),
        (
            format!(
                "pages = true\n{}\n{offset}\ncache.mode = \"chain\"",
                limit.replace(", default = 20", "")
            ),
            "5:9: route.pages = true needs the query parameters limit and offset",
        ),
        (
            "upstream_page = 60\ncache.mode = \"chain\"".to_owned(),
            "5:17: route.upstream_page goes with pages = true",
        ),
        (
            format!("pages = true\nupstream_page = 0\n{limit}\n{offset}\ncache.mode = \"chain\""),
            "6:17: route.upstream_page is 0; allowed is a whole number from 1 to 1000000",
        ),
        (
            "derived_from = \"blocks\"\ncache.mode = \"chain\"".to_owned(),
            "5:16: route.derived_from is \"blocks\"; there is no such route",
        ),
        (
            "derived_from = \"a\"\ncache.mode = \"chain\"".to_owned(),
            "5:16: route.derived_from is \"a\"; both routes need pages = true, the same tip and the same upstream",
        ),
        (
            format!(
                "derived_from = \"a\"\npages = true\n{limit}\n{offset}\ncache.mode = \"chain\""
            ),
            "5:16: route.derived_from is \"a\"; it is for a route with a hex64 parameter, from one with",
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
}

#[test]
fn keys_of_chain_have_bounds() {
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
        (
            "tips = 3",
            "2:1: unknown key chain.tips; did you mean chain.tip?",
        ),
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
            "2:11: unknown key chain.tip.runes.hight; did you mean chain.tip.runes.height?",
        ),
        (
            "tip.other.every = \"1s\"",
            "2:5: chain.tip.other.path is missing",
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
    let read = |text: &str| {
        Config::parse("p", text)
            .map_err(|p| format!("{p:?}"))
            .unwrap()
    };
    let (config, once) = (
        read(CHAIN),
        read(CHAIN).print(&ProviderKeys::default()).unwrap(),
    );
    let again = read(&once);
    assert_eq!(again.print(&ProviderKeys::default()).unwrap(), once);
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
