//! Which files are accepted, what is reported of others, and which settings follow.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Config, SHIPPED, page, schema};
use crate::upstream::base_url;

pub(super) fn read(text: &str) -> Config {
    Config::parse("p", text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}

fn problems(text: &str) -> Vec<String> {
    Config::parse("p", text).err().unwrap_or_default()
}

const BLOCKS: &str = "[[route]]\nname = \"b\"\npath = \"/runes/v1/b/{block}\"\nparams.block.type = \"block\"\ncache.mode = \"chain\"\n";
const PAGES: &str = "pages = true\nquery.limit = { type = \"integer\", default = 20, max = 60 }\nquery.offset = { type = \"integer\", default = 0 }\n";

/// Each row: a file, and how its problem begins; then what the problem has.
#[test]
fn problems_say_where_or_which_keys_and_what_is_allowed() {
    let route = |keys: &str| format!("[[route]]\nname = \"a\"\npath = \"/x\"\n{keys}");
    #[rustfmt::skip]
    let rows = [
        ("[server\n", "p:1:8: ", "unclosed"),
        ("limit.burst = 1\nlimit.burst = 2", "p:2:7: ", "duplicate key"),
        ("[limit]\nburst = \"many\"", "p:2:9: invalid type: string \"many\"", "a whole number from 1 to 4294967295"),
        ("limit.burst = 0", "p:1:15: invalid value: integer `0`", "a whole number from 1 to 4294967295"),
        ("server.drain_delay = 3", "p:1:22: \"3\" came", "with a unit"),
        ("limit.enabled = 3", "p:1:17: ", "expected true or false"),
        ("upstream.timeout = \"2y\"", "p:1:20: \"2y\" came", "from 1ms to 365d"),
        ("cache.max_bytes = \"1KiB\"", "p:1:19: ", "from 1MiB to"),
        ("upstream.requests_per_second = 1.5", "p:1:32: ", "or \"unlimited\""),
        ("[upstreams.a]\nmax_lags = 2", "p:2:1: ", "unknown field `max_lags`, expected one of `url`"),
        ("server.listen = \"localhost:80\"", "p:1:17: ", "not a name, which may have several"),
        ("upstream.url = [\"https://a\", \"ftp://b\"]", "p:1:16: ", "http or https URL"),
        ("upstream.url = \"https://me:secret@a\"", "p:1:16: ", "without user, query and fragment"),
        ("clients.trusted_proxies = [\"a\"]", "p:1:27: ", "an address or a network"),
        ("answers.cors_origins = [\"https://A.example\"]", "p:1:24: ", "an origin as browsers send it"),
        ("log.format = \"xml\"", "p:1:14: ", "`auto`, `text`, `json`"),
        (&route("cache.mode = \"overide\""), "p:4:14: ", "`override`"),
        (&route("params.y = \"hex64\""), "p:4:12: ", "allowed is a table"),
        ("[[route]]\nname = \"a\"", "p:1:1: ", "missing field `path`"),
        ("[shared]", "p:1:1: ", "missing field `replicas`"),
        ("upstream.requests_per_second = 5\nshared.replicas = 6", "p: shared.replicas is 6, and upstream.requests_per_second is 5", "part would be 0"),
        ("upstream.api_key_header = \"host\"", "p:1:27: allowed is", "for the key alone"),
        ("upstream.url = [\"http://a\", \"http://a/\"]", "p: upstream.url has a URL twice", ""),
        ("[upstreams.\"a b\"]", "p: [upstreams.a b]", "1 to 32 of a-z"),
        ("clients.require_token = true", "p: clients.require_token is true", "clients.token_file"),
        ("admin.listen = \"127.0.0.1:8080\"", "p: server.listen or an unnamed [[listener]] and admin.listen are both 127.0.0.1:8080", "an address of its own"),
        ("admin.hosts = [\"a:1\"]", "p: admin.hosts has \"a:1\"", "without a port"),
        ("log.level = \"loud\"", "p: log.level is \"loud\"", "error, warn"),
        ("[[listener]]\naddress = \"unix:/a\"\nmode = \"0999\"", "p:3:8: ", "octal digits"),
        ("[[listener]]\naddress = \"127.0.0.1:1\"\nproxy_protocol = true", "p: the listener on 127.0.0.1:1 has proxy_protocol", "list the proxies"),
        ("chain.tip.other.every = \"1s\"", "p:1:11: ", "missing field `path`"),
        ("chain.tip.runes.upstream = \"nobody\"", "p: chain.tip.runes.upstream is \"nobody\"", "[upstreams.NAME]"),
        ("[[route]]\nname = \"A b\"\npath = \"/x\"", "p: route \"A b\": name", "a-z"),
        (&route("path2 = 1"), "p:4:1: ", "unknown field `path2`"),
        (&route("params.y.type = \"hex64\""), "p: route \"a\": params.y is not in the path", ""),
        ("[[route]]\nname = \"a\"\npath = \"/{x}\"", "p: route \"a\": path has {x}, and params.x is missing", ""),
        ("[[route]]\nname = \"a\"\npath = \"a\"", "p: route \"a\": path is \"a\"; ", "begins with /"),
        (&route("query.n = { type = \"enum\" }"), "p: route \"a\": query.n.values must", ""),
        (&route("query.n = { type = \"integer\", max = 5, default = 6 }"), "p: route \"a\": query.n.default: ", "from 0 to 5"),
        (&route("query.n = { type = \"block\", min = 3 }"), "p: route \"a\": query.n.min goes with type = \"integer\"", ""),
        (&route("query.n = { type = \"string\", pattern = \"(\" }"), "p: route \"a\": query.n.pattern is \"(\"", "open group"),
        (&route("cache.mode = \"override\""), "p: route \"a\": cache.times is missing", ""),
        (&route("cache = { mode = \"override\", times = { 500 = \"1s\" } }"), "p: route \"a\": cache.times.500", "2xx, 4xx"),
        (&route("cache = { mode = \"off\", times = { 200 = \"1s\" } }"), "p: route \"a\": cache.times goes with", "override"),
        (&route("headers = \"all\"\ncache = { mode = \"chain\" }"), "p: route \"a\": headers = \"all\" goes with", "Vary"),
        (&route("methods = [\"*\"]"), "p: route \"a\": methods = [\"*\"] goes with headers = \"all\"", ""),
        (&route("pages = true"), "p: route \"a\": pages = true needs", "limit and offset"),
        (&format!("{BLOCKS}cache.tip = \"rune\""), "p: route \"b\": cache.tip is \"rune\"", "ordinals, runes"),
        (&format!("[upstreams.a]\n[chain.tip.runes]\nupstream = \"default\"\n{BLOCKS}upstream = \"a\""), "p: route \"b\": it uses the upstream \"a\", and its tip", "a tip of its own"),
        ("[[route]]\nname = \"t\"\npath = \"/ordinals/v1/brc-20/tokens/{a}\"\nparams.a.type = \"hex64\"", "p: route \"t\": it overlaps", "brc-20/tokens/{ticker}"),
        (&format!("{}{}", route(""), route("")), "p: route \"a\": another route has this name", ""),
    ];
    for (file, begins, has) in rows {
        let found = problems(file);
        let first = found.first().cloned().unwrap_or_default();
        assert!(
            first.starts_with(begins) && first.contains(has),
            "{file}\n{found:#?}"
        );
        assert!(!first.contains("secret"), "{first}");
    }
}

#[test]
fn the_shipped_file_has_the_defaults_and_what_is_printed_means_the_same() {
    let rich = format!(
        "{PLAIN}[[listener]]\nname = \"edge\"\naddress = \"unix:/run/o.sock\"\nmode = \"0600\"\n[[listener]]\naddress = \"127.0.0.1:8443\"\ntls.certificates = [{{ chain = \"c\", key = \"k\" }}]\n[upstreams.runes]\nurl = [\"http://a\", \"http://b\"]\nrequests_per_minute = \"unlimited\"\n[shared]\nreplicas = 3\n"
    );
    const PLAIN: &str = "route = [{ name = \"all\", path = \"/all/{rest:*}\", headers = \"all\", query = \"any\", cache.mode = \"respect\" }]\n";
    let print = |config: &Config| toml::to_string(&config.file).unwrap();
    let shipped = print(&read(""));
    assert_eq!(print(&Config::parse("p", SHIPPED).unwrap()), shipped);
    for text in ["", SHIPPED, &rich, "api = \"all\""] {
        let once = print(&read(text));
        assert_eq!(print(&read(&once)), once);
    }
}

#[test]
fn the_builtin_routes_are_there_unless_they_are_left_out() {
    let names = |config: &Config| {
        let routes = config.routes.routes().iter();
        routes
            .map(|route| route.name.to_string())
            .collect::<Vec<_>>()
    };
    let builtin = [
        "brc20-token",
        "rune-transaction-activity",
        "rune-block-activity",
    ];
    assert_eq!(names(&read("")), builtin);
    assert_eq!(names(&read(BLOCKS))[..3], builtin);
    assert_eq!(
        names(&read(&format!("builtin_routes = false\n{BLOCKS}"))),
        ["b"]
    );
    for (text, before, count) in [
        ("api = \"all\"", &builtin[..], 10),
        ("api = \"all\"\nbuiltin_routes = false", &[], 7),
    ] {
        let routes = names(&read(text));
        assert_eq!(routes[..before.len()], *before);
        assert_eq!(routes.len(), count, "{routes:?}");
    }
    let changed = read("[[route]]\nname = \"brc20-token\"\ncache.stale_if_error = \"1h\"\n");
    assert_eq!(names(&changed), builtin);
    let cache = |config: &Config| config.routes.routes()[0].cache.clone();
    let [one, other] = [&changed, &read("")].map(cache);
    assert_eq!(one.stale_if_error, Duration::from_secs(3600));
    assert_eq!(one.mode, other.mode);
    // The same mode has the other keys too; another has none of them.
    for (mode, expected) in [
        ("mode = \"chain\"", other.stale_if_error),
        ("mode = \"off\"", Duration::ZERO),
    ] {
        let text = format!("[[route]]\nname = \"brc20-token\"\ncache = {{ {mode} }}\n");
        assert_eq!(cache(&read(&text)).stale_if_error, expected, "{mode}");
    }
}

#[test]
fn a_named_upstream_takes_what_it_does_not_set() {
    let text = "[upstream]\nurl = \"http://127.0.0.1:1\"\napi_keys_file = \"keys\"\nrequests_per_second = 9\ntimeout = \"70s\"\nsilence_timeout = \"2s\"\n[upstreams.runes]\nmax_in_flight = 3\nsilence_timeout = \"3s\"\n[upstreams.ordinals]\nurl = \"http://127.0.0.1:2\"\napi_keys_file = \"others\"\nrequests_per_minute = \"unlimited\"\n";
    let config = read(text);
    let named: BTreeMap<_, _> = config
        .upstreams
        .iter()
        .map(|one| (&*one.name, one))
        .collect();
    let (ordinals, runes) = (named["ordinals"], named["runes"]);
    assert_eq!(config.upstreams.len(), 2, "nothing asks the default one");
    assert_eq!(runes.urls[0], "http://127.0.0.1:1/");
    assert_eq!(runes.timeout, Duration::from_secs(70));
    assert_eq!(runes.max_in_flight.get(), 3);
    assert_eq!(runes.silence_timeout, Duration::from_secs(3));
    assert!(!runes.has_own_file && ordinals.has_own_file);
    assert_eq!(runes.limits(true).per_second, Some(9));
    assert_eq!(ordinals.limits(true).per_second, None);
    // What the command line says goes before, and is taken over as well.
    let urls = |text: &str, of: &[(&str, u16)]| {
        let lines = of
            .iter()
            .map(|(key, port)| format!("{key} = \"http://127.0.0.1:{port}\"\n"));
        let config = Config::parse_with("p", text, &lines.collect::<String>()).unwrap();
        let each = config.upstreams.iter();
        each.map(|one| (one.name.to_string(), one.urls[0].port_u16().unwrap()))
            .collect::<Vec<_>>()
    };
    let named = |name: &str, port| (name.to_owned(), port);
    assert_eq!(
        urls(text, &[("upstream.url", 7), ("upstreams.ordinals.url", 8)]),
        [named("ordinals", 8), named("runes", 7)]
    );
    // An upstream that only it names.
    let one = "upstream.url = \"http://127.0.0.1:1\"\n";
    assert_eq!(
        urls(one, &[("upstreams.runes.url", 9)]),
        [named("default", 1), named("runes", 9)]
    );
}

/// A route of the prefix of an API goes to that API's upstream.
#[test]
fn routes_and_tips_find_their_upstream() {
    let plain = "[[route]]\nname = \"all\"\npath = \"/x/{rest:*}\"\nheaders = \"all\"\n";
    let runes = "[upstreams.runes]\nurl = \"http://127.0.0.1:2\"\n";
    let ours = "[upstreams.ours]\nurl = \"http://127.0.0.1:2\"\n";
    let tip = |upstream: &str| format!("[chain.tip.runes]\nupstream = \"{upstream}\"\n");
    let named = |route: &str| {
        format!("{route}upstream = \"ours\"\n").replacen("cache", "upstream = \"ours\"\ncache", 0)
    };
    let block = BLOCKS.replace("cache", "upstream = \"ours\"\ncache");
    for (text, expected) in [
        (String::new(), ["default", "default", "default"]),
        (runes.to_owned(), ["default", "runes", "runes"]),
        (
            format!("{ours}{}", tip("ours")),
            ["default", "ours", "ours"],
        ),
        (
            format!("{runes}{}", tip("default")),
            ["default", "default", "default"],
        ),
        (format!("{runes}{BLOCKS}"), ["default", "runes", "runes"]),
        (format!("{ours}{block}"), ["default", "ours", "ours"]),
        (format!("{runes}{ours}{block}"), ["default", "ours", "ours"]),
        (format!("{runes}{plain}"), ["default", "runes", "default"]),
        (
            format!("{ours}{}", named(plain)),
            ["default", "default", "ours"],
        ),
    ] {
        let config = read(&text);
        let routes = config.routes.routes();
        let name = |number: u16| &*config.upstreams[usize::from(number)].name;
        let runes = config
            .chain
            .tips
            .iter()
            .find(|tip| &*tip.name == "runes")
            .unwrap();
        let last = routes.last().unwrap();
        let found = [&routes[0], last].map(|route| name(route.upstream.number));
        assert_eq!(
            [found[0], name(runes.upstream), found[1]],
            expected,
            "{text}"
        );
    }
}

/// Of one tip and upstream, where both have pages of rune activity.
#[test]
fn a_transaction_is_derived_from_its_block() {
    let shape = "response = \"rune-activity\"\n";
    let transactions = |keys: &str| {
        format!(
            "builtin_routes = false\n[upstreams.a]\n{BLOCKS}{PAGES}{shape}[[route]]\nname = \"t\"\npath = \"/runes/v1/t/{{x}}\"\nparams.x.type = \"hex64\"\ncache.mode = \"chain\"\n{keys}"
        )
    };
    let apart =
        format!("{PAGES}{shape}upstream = \"a\"\ncache.tip = \"a\"\n[chain.tip.a]\npath = \"/\"");
    for (keys, expected) in [
        (&*format!("{PAGES}{shape}"), Some(0)),
        (PAGES, None),
        (shape, None),
        (&apart, None),
    ] {
        let config = read(&transactions(keys));
        let found = config
            .routes
            .routes()
            .iter()
            .map(|route| route.chain.derived_from);
        assert_eq!(found.collect::<Vec<_>>(), [None, expected], "{keys}");
    }
}

#[test]
fn base_urls_are_http_without_user_query_and_fragment() {
    for (text, good) in [
        ("https://api.example", true),
        ("http://127.0.0.1:3999/", true),
        ("https://api.example/base/path", true),
        ("https://user:pass@api.example", false),
        ("https://api.example/?key=1", false),
        ("https://api.example/#a", false),
        ("api.example", false),
        ("ws://api.example", false),
        ("https://[::1]:65535/x", true),
        ("https://api.example:0", false),
        ("https://api.example:65536", false),
        ("https://api.example:", false),
        ("https://a..b", false),
        ("https://a_b.example.", true),
        ("http://indexer", true),
        ("https://256.1.1.1", false),
        ("https://[fe80::1%25lo]:1/", false),
    ] {
        assert_eq!(base_url(text).is_ok(), good, "{text}");
    }
}

/// Write it with `UPDATE_DOCS=1 cargo test --lib config`.
#[test]
fn the_documented_keys_are_those_that_there_are() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap() == page(),
        "UPDATE_DOCS=1 writes {path}"
    );
    let schema = schema();
    let server = &schema["properties"]["server"]["properties"];
    assert_eq!(server["drain_timeout"]["default"], "30s");
}
