//! Request targets: what is canonical on the shipped routes has one spelling,
//! and a generic route leaves it as it came.

#![no_main]

use std::sync::LazyLock;

use http::Uri;
use ordgate::cache::key::Key;
use ordgate::config::Config;
use ordgate::route::RouteTable;

static SHIPPED: LazyLock<RouteTable> = LazyLock::new(|| match Config::parse("built in", "") {
    Ok(config) => config.routes,
    Err(problems) => panic!("{problems:?}"),
});

static GENERIC: LazyLock<RouteTable> = LazyLock::new(|| {
    let text = "builtin_routes = false\n[[route]]\nname = \"all\"\npath = \"/{rest:*}\"\nmethods = [\"*\"]\nquery = \"any\"\nheaders = \"all\"\ncache.mode = \"respect\"\n";
    match Config::parse("generic", text) {
        Ok(config) => config.routes,
        Err(problems) => panic!("{problems:?}"),
    }
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(uri) = Uri::try_from(input) else {
        return;
    };
    if uri.authority().is_some() || !uri.path().starts_with('/') {
        return;
    }
    if let Some(key) = canonical(&GENERIC, uri.path(), uri.query()) {
        assert_eq!(
            Some(key.target()),
            uri.path_and_query().map(|all| all.as_str())
        );
    }
    let key = canonical(&SHIPPED, uri.path(), uri.query());

    // The order of a query's parameters means nothing, nor do empty ones.
    let pairs: Option<Vec<_>> = uri.query().map(|query| query.split('&').rev().collect());
    let reversed = pairs.map(|pairs| pairs.join("&") + "&");
    assert_eq!(key, canonical(&SHIPPED, uri.path(), reversed.as_deref()));

    let Some(key) = key else { return };
    let target = key.target();
    assert!(
        target.starts_with('/') && !target.starts_with("//"),
        "{target}"
    );
    assert!(
        target.bytes().all(|byte| byte.is_ascii_graphic()),
        "{target}"
    );
    let again: Uri = target.parse().expect("a canonical target is a target");
    for segment in again.path().split('/') {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        assert!(!matches!(&*plain, "." | ".."), "{target}");
    }
    // The shipped routes go upstream under their own paths.
    assert_eq!(
        Some(&key),
        canonical(&SHIPPED, again.path(), again.query()).as_ref()
    );
});

fn canonical(table: &RouteTable, path: &str, query: Option<&str>) -> Option<Key> {
    let found = table.find(path)?;
    let key = found.route.canonical(&found.captures, query);
    match key {
        Ok(key) => {
            assert_eq!(key.route(), found.route.number);
            Some(key)
        }
        Err(invalid) => {
            assert!(!invalid.allowed.is_empty());
            assert!(invalid.received.chars().count() <= 81);
            None
        }
    }
}
