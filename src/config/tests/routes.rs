//! Routes: their problems, and what goes together.

use super::problems;
use crate::config::Config;
use crate::upstream::ProviderKeys;

#[test]
fn wrong_routes_are_reported() {
    let rows = [
        ("name = \"a\"", "route.path is missing"),
        ("path = \"/a\"", "route.name is missing"),
        (
            "name = \"A b\"\npath = \"/a\"",
            "route.name is \"A b\"; allowed is 1 to 64",
        ),
        ("name = \"a\"\npath = \"a\"", "a path begins with /"),
        (
            "name = \"a\"\npath = \"/{x}\"",
            "route.path has {x}, and params.x is missing",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nparams.y = { type = \"hex64\" }",
            "route.params.y is not in the path, which has no {y}",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { type = \"hax\" }",
            "allowed is one of hex64, block",
        ),
        (
            "name = \"a\"\npath = \"/{x}\"\nparams.x = { type = \"block\", min = 3 }",
            "route.params.x.min goes with type = \"integer\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"integer\", max = 5, default = 6 }",
            "route.query.n.default is not valid: n must be an integer from 0 to 5",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"enum\" }",
            "must list at least one value",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nmethods = [\"POST\"]",
            "route.methods has \"POST\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache.mode = \"overide\"",
            "route.cache.mode is \"overide\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache.mode = \"override\"",
            "route.cache.times is missing",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache = { mode = \"override\", times = {} }",
            "route.cache.times is empty",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache = { mode = \"override\", times = { 200 = \"1y\" } }",
            "route.cache.times.200 is \"1y\"",
        ),
        (
            "name = \"a\"\npath = \"/x\"\ncache = { mode = \"override\", times = { 500 = \"1s\" } }",
            "allowed are a status (200, 400 to 499)",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nupstream_path = \"/{y}\"",
            "no parameter {y}",
        ),
        (
            "name = \"a\"\npath = \"/x\"\nquery.n = { type = \"string\", pattern = \"(\" }",
            "a regular expression: ",
        ),
    ];
    for (route, part) in rows {
        let found = problems(&format!("[[route]]\n{route}\n"));
        assert!(
            found.iter().any(|problem| problem.contains(part)),
            "{route}\n{found:#?}"
        );
    }
}

#[test]
fn overlapping_routes_and_names_are_reported() {
    let text = "\
[[route]]
name = \"one\"
path = \"/a/{x}\"
params.x = { type = \"hex64\" }

[[route]]
name = \"two\"
path = \"/a/{y}\"
params.y = { type = \"block\" }

[[route]]
name = \"one\"
path = \"/b\"
";
    let found = problems(text);
    assert_eq!(
        found,
        [
            "p.toml:6:1: this route overlaps the route \"one\" (/a/{x})",
            "p.toml:12:8: route.name is \"one\", which is also the name of another route",
        ]
    );
}

#[test]
fn routes_that_pass_all_cannot_have_fixed_times() {
    for (route, part) in [
        (
            "headers = \"all\"\ncache = { mode = \"override\", times = { 200 = \"1s\" } }",
            "headers = \"all\" goes with",
        ),
        ("methods = [\"*\"]", "methods = [\"*\"] goes with"),
    ] {
        let text = format!("[[route]]\nname = \"a\"\npath = \"/{{rest:*}}\"\n{route}\n");
        let found = problems(&text);
        assert!(
            found.iter().any(|problem| problem.contains(part)),
            "{found:?}"
        );
    }
}

#[test]
fn store_set_cookie_goes_with_respect() {
    let route = |cache: &str| {
        format!(
            "[[route]]\nname = \"a\"\npath = \"/{{rest:*}}\"\nheaders = \"all\"\ncache = {cache}\n"
        )
    };
    for (cache, printed) in [
        ("{ mode = \"respect\" }", "store_set_cookie = \"explicit\""),
        (
            "{ mode = \"respect\", store_set_cookie = \"never\" }",
            "store_set_cookie = \"never\"",
        ),
    ] {
        let config = Config::parse("p", &route(cache)).unwrap();
        let once = config.print(&ProviderKeys::default()).unwrap();
        assert!(once.contains(printed), "{once}");
        assert_eq!(
            Config::parse("p", &once)
                .unwrap()
                .print(&ProviderKeys::default())
                .unwrap(),
            once
        );
    }
    for (cache, problem) in [
        (
            "{ mode = \"respect\", store_set_cookie = \"always\" }",
            "store_set_cookie is \"always\"; allowed is one of explicit, never",
        ),
        (
            "{ mode = \"off\", store_set_cookie = \"never\" }",
            "store_set_cookie goes with mode = \"respect\"",
        ),
    ] {
        let found = problems(&route(cache));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(problem), "{found:?}");
    }
}

#[test]
fn a_derived_route_needs_the_same_upstream() {
    let list = "pages = true\nquery.limit = { type = \"integer\", default = 20 }\nquery.offset = { type = \"integer\", default = 0 }\ncache.mode = \"chain\"\n";
    let text = |upstream: &str| {
        format!(
            "[upstreams.a]\n[upstreams.b]\n\
             [[route]]\nname = \"blocks\"\nupstream = \"a\"\npath = \"/b/{{x}}\"\nparams.x.type = \"block\"\n{list}\
             [[route]]\nname = \"txs\"\nderived_from = \"blocks\"\nupstream = \"{upstream}\"\npath = \"/t/{{x}}\"\nparams.x.type = \"hex64\"\n{list}"
        )
    };
    assert_eq!(problems(&text("a")), [""; 0]);
    let found = problems(&text("b"));
    let expected = "p.toml:14:16: route.derived_from is \"blocks\"; both routes need pages = true, the same tip and the same upstream";
    assert!(found[0].starts_with(expected), "{found:?}");
}
