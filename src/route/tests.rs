//! Which route a table finds, and the canonical form of requests.

use super::*;
use crate::cache::policy::{Lifetime, Mode};

fn parameter(name: &str, kind: ParameterType, default: Option<&str>) -> Parameter {
    Parameter {
        name: name.into(),
        kind,
        default: default.map(Into::into),
        description: None,
    }
}

fn route(name: &str, path: &str, params: Vec<Parameter>, query: Vec<Parameter>) -> Route {
    let names = parameter_names(path).unwrap();
    Route {
        number: 0,
        name: name.into(),
        request: RequestRules {
            path: path.into(),
            methods: Methods::Listed(vec![Method::GET, Method::HEAD]),
            params,
            query,
            any_query: false,
        },
        upstream: UpstreamTarget {
            number: 0,
            path: PathTemplate::new(path, &names).unwrap(),
        },
        headers: HeaderMode::Typed,
        passed: None,
        is_untrusted: false,
        cache: Policy::default(),
        chain: ChainRules::default(),
        docs: RouteDocs::default(),
    }
}

fn table() -> RouteTable {
    let page = || {
        vec![
            parameter(
                "limit",
                ParameterType::Integer { min: 1, max: 60 },
                Some("20"),
            ),
            parameter(
                "offset",
                ParameterType::Integer {
                    min: 0,
                    max: (1 << 53) - 1,
                },
                Some("0"),
            ),
            parameter(
                "operation_type",
                ParameterType::Enumeration(["mint".into()].into()),
                None,
            ),
        ]
    };
    let mut moved = route(
        "moved",
        "/a/{one}/b/{two}",
        vec![
            parameter("one", ParameterType::Hex64, None),
            parameter("two", ParameterType::Block, None),
        ],
        vec![],
    );
    moved.upstream.path = PathTemplate::new("/{two}/x/{one}", &["one", "two"]).unwrap();
    RouteTable::new(vec![
        route(
            "token",
            "/tokens/{ticker}",
            vec![parameter("ticker", ParameterType::Ticker, None)],
            vec![],
        ),
        route(
            "block",
            "/blocks/{block}/activity",
            vec![parameter("block", ParameterType::Block, None)],
            page(),
        ),
        moved,
    ])
    .unwrap()
}

fn key(target: &str) -> Result<String, String> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let table = table();
    let found = table.find(path).ok_or("no route")?;
    let key = found.route.canonical(&found.captures, query);
    key.map(|key| key.target().to_owned())
        .map_err(|why| why.to_string())
}

#[test]
fn equivalent_requests_have_one_canonical_form() {
    let hash = "ab".repeat(32);
    let upper = hash.to_uppercase();
    let rows = [
        ("/tokens/ORDI?x=1", "/tokens/ordi".to_owned()),
        (
            "/blocks/00840000/activity",
            "/blocks/840000/activity?limit=20&offset=0".to_owned(),
        ),
        (
            "/blocks/840000/activity?offset=0&limit=20",
            "/blocks/840000/activity?limit=20&offset=0".to_owned(),
        ),
        (
            "/blocks/840000/activity?&limit=20&&x=y&x=z",
            "/blocks/840000/activity?limit=20&offset=0".to_owned(),
        ),
        (
            "/blocks/840000/activity?%6Cimit=7",
            "/blocks/840000/activity?limit=7&offset=0".to_owned(),
        ),
        (
            "/blocks/1/activity?Limit=7&limit[]=9",
            "/blocks/1/activity?limit=20&offset=0".to_owned(),
        ),
        (
            "/blocks/1/activity?operation_type=mint",
            "/blocks/1/activity?limit=20&offset=0&operation_type=mint".to_owned(),
        ),
        (&format!("/a/{upper}/b/007"), format!("/7/x/{hash}")),
    ];
    for (target, canonical) in rows {
        assert_eq!(key(target), Ok(canonical), "{target}");
    }
}

#[test]
fn invalid_requests() {
    for (target, part) in [
        ("/blocks/1/activity?limit=1&limit=1", "given once"),
        ("/blocks/1/activity?limit=1&%6Cimit=2", "given once"),
        ("/blocks/1/activity?limit", "an integer from 1 to 60"),
        ("/blocks/1/activity?limit=%zz", "an integer from 1 to 60"),
        ("/blocks/1/activity?operation_type=x", "one of mint"),
        ("/blocks/latest/activity", "a block height"),
    ] {
        let why = key(target).unwrap_err();
        assert!(why.contains(part), "{target}: {why}");
    }
}

#[test]
fn paths_without_a_route() {
    for path in [
        "/",
        "/nope",
        "/tokens",
        "/tokens/",
        "/tokens/a/",
        "/tokens/a/b",
        "//tokens/a",
        "/Tokens/a",
        "/tokens/.",
        "/tokens/..",
        "/blocks/../activity",
        "/blocks%2F1/activity",
    ] {
        assert!(table().find(path).is_none(), "{path}");
    }
}

#[test]
fn a_tail_matches_the_rest_of_the_path_unchanged() {
    let mut all = route("all", "/{rest:*}", vec![], vec![]);
    all.request.any_query = true;
    let files = route("files", "/files/{rest:*}", vec![], vec![]);
    let table = RouteTable::new(vec![all, files]).unwrap();
    assert!(table.find("/files/a/%2e%2E/b").is_none());
    for (path, query, name, target) in [
        ("/", None, "all", "/"),
        (
            "/a//b/..c/c%2f/",
            Some("x=1&&y/../z"),
            "all",
            "/a//b/..c/c%2f/?x=1&&y/../z",
        ),
        ("/a", Some(""), "all", "/a?"),
        ("/files/", None, "files", "/files/"),
        ("/files/a/b", Some("x"), "files", "/files/a/b"),
    ] {
        let found = table.find(path).unwrap();
        assert_eq!(&*found.route.name, name, "{path}");
        let key = found.route.canonical(&found.captures, query).unwrap();
        assert_eq!(key.target(), target);
    }
}

#[test]
fn overlapping_routes_are_refused() {
    let twice = vec![
        route(
            "first",
            "/a/{x}",
            vec![parameter("x", ParameterType::Hex64, None)],
            vec![],
        ),
        route(
            "second",
            "/a/{y}",
            vec![parameter("y", ParameterType::Block, None)],
            vec![],
        ),
    ];
    let errors = RouteTable::new(twice).err().unwrap();
    let [(1, why)] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert_eq!(why, "it overlaps the route of /a/{x}");
    // A literal segment is more specific than a parameter: no overlap.
    let beside = vec![
        route(
            "any",
            "/a/{x}",
            vec![parameter("x", ParameterType::Ticker, None)],
            vec![],
        ),
        route("one", "/a/b", vec![], vec![]),
    ];
    assert_eq!(
        RouteTable::new(beside).unwrap().find("/a/b").unwrap().index,
        1
    );
}

#[test]
fn invalid_templates() {
    assert_eq!(parameter_names("/a/{b}/c/{d_1}"), Ok(vec!["b", "d_1"]));
    for (path, error) in [
        ("a", "begins with /"),
        ("/a//b", "no empty"),
        ("/a/", "no empty"),
        ("/a/../b", "no empty, . or .."),
        ("/a/x{b}", "a whole segment"),
        ("/a/{}", "a whole segment"),
        ("/a/:b", "is written {name}"),
        ("/a/*", "a tail {name:*}"),
        ("/a b", "without blanks"),
        ("/a?b", "without blanks"),
        ("/{rest:*}/b", "is the last segment"),
    ] {
        let why = parameter_names(path).unwrap_err();
        assert!(why.contains(error), "{path}: {why}");
    }
    assert_eq!(
        PathTemplate::new("/a/{b}", &["c"]),
        Err("there is no parameter {b} in the route's path".to_owned())
    );
}

#[test]
fn a_number_is_given_once() {
    let simple = |name: &str| route(name, &format!("/{name}"), vec![], vec![]);
    let table =
        |names: &[&str]| RouteTable::new(names.iter().map(|name| simple(name)).collect()).unwrap();
    let numbers = |table: &RouteTable| {
        let routes = table.routes().iter();
        routes.map(|route| route.number).collect::<Vec<_>>()
    };
    let first = table(&["a", "b", "c"]);
    assert_eq!(numbers(&first), [0, 1, 2]);
    let keep_c = |route: &Route| (*route.name == *"c").then_some(2);
    let mut second = table(&["c", "d", "b"]);
    second.renumber(&first, keep_c).unwrap();
    assert_eq!(numbers(&second), [2, 3, 4]);
    let names = [0, 2, 3, 5].map(|number| second.get(number).map(|route| &*route.name));
    assert_eq!(names, [None, Some("c"), Some("d"), None]);
    let found = second.find("/c").unwrap();
    assert_eq!((found.index, found.route.number), (0, 2));
    let mut third = table(&["a"]);
    third.renumber(&second, |_| None).unwrap();
    assert_eq!(numbers(&third), [5]);
    while third.renumber(&third.clone(), |_| None).is_some() {}
    assert_eq!(numbers(&third), [u16::MAX]);
}

#[test]
fn changes_that_keep_stored_responses() {
    let page = |max| {
        vec![parameter(
            "limit",
            ParameterType::Integer { min: 1, max },
            Some("20"),
        )]
    };
    let before = route("a", "/a", vec![], page(60));
    let same = |change: fn(&mut Route)| {
        let mut after = before.clone();
        change(&mut after);
        after.meaning() == before.meaning()
    };
    for (what, change, expected) in [
        ("nothing", (|_| {}) as fn(&mut Route), true),
        (
            "its description",
            |r| r.docs.summary = Some("new".into()),
            true,
        ),
        (
            "a bound",
            |r| r.request.query[0].kind = ParameterType::Integer { min: 1, max: 100 },
            true,
        ),
        (
            "a default",
            |r| r.request.query[0].default = Some("50".into()),
            true,
        ),
        (
            "how long it may be stale",
            |r| r.cache.stale_if_error = std::time::Duration::from_secs(9),
            true,
        ),
        ("its name", |r| r.name = "b".into(), false),
        ("its path", |r| r.request.path = "/b".into(), false),
        (
            "its upstream path",
            |r| r.upstream.path = PathTemplate::new("/b", &[]).unwrap(),
            false,
        ),
        (
            "a type",
            |r| r.request.query[0].kind = ParameterType::Block,
            false,
        ),
        ("a parameter", |r| r.request.query.clear(), false),
        ("its query", |r| r.request.any_query = true, false),
        ("its header fields", |r| r.headers = HeaderMode::All, false),
        ("its mode", |r| r.cache.mode = Mode::Respect, false),
        (
            "its times",
            |r| {
                r.cache.times.0 = [("empty".to_owned(), Lifetime(std::time::Duration::ZERO))].into()
            },
            false,
        ),
        (
            "its treatment of cookies",
            |r| r.cache.set_cookie = crate::cache::storable::SetCookie::Never,
            false,
        ),
        (
            "its window",
            |r| r.chain.window = NonZeroU32::new(60),
            false,
        ),
    ] {
        assert_eq!(same(change), expected, "{what}");
    }
}
