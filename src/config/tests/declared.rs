//! The declared keys, the reader and the printer agree.

use super::problems;
use crate::config::Config;
use crate::config::file::File;
use crate::config::key::{DeclaredKey, DeclaredTable, Inner, KeyTable as _};
use crate::upstream::ProviderKeys;

/// Calls `with` for the path of each key that has a value, as it is written in a
/// file. Tables with names of the user's choice are called `name`.
fn each_key(
    table: &'static DeclaredTable,
    path: &str,
    with: &mut impl FnMut(&str, &'static DeclaredKey),
) {
    for key in &table.keys {
        let path = match path {
            "" => key.name.to_owned(),
            path => format!("{path}.{}", key.name),
        };
        match key.inner {
            Inner::Value => with(&path, key),
            Inner::Table(table) | Inner::Optional(table) | Inner::List(table) => {
                each_key(table(), &path, with)
            }
            Inner::Named(table) => each_key(table(), &format!("{path}.name"), with),
        }
    }
}

/// A file with a certificate that has these keys.
fn certificates(keys: &str) -> String {
    format!("[[listener]]\naddress = \"unix:a\"\ntls.certificates = [{{ {keys} }}]\n")
}

/// A file with one key set to a value.
fn file_with(path: &str, value: &str) -> String {
    match path.split_once('.') {
        Some(("route", path)) => format!("[[route]]\n{path} = {value}\n"),
        Some(("listener", "address")) => format!("[[listener]]\naddress = {value}\n"),
        Some(("listener", "tls.certificates.chain")) => {
            certificates(&format!("chain = {value}, key = 'k'"))
        }
        Some(("listener", "tls.certificates.key")) => {
            certificates(&format!("chain = 'c', key = {value}"))
        }
        Some(("listener", path)) => {
            format!("[[listener]]\naddress = \"unix:a\"\n{path} = {value}\n")
        }
        _ => format!("{path} = {value}\n"),
    }
}

#[test]
fn every_declared_key_is_read() {
    let mut count = 0;
    each_key(File::table(), "", &mut |path, _| {
        if path.starts_with("route.params") && path.ends_with(".default") {
            return;
        }
        count += 1;
        // No key may be a date.
        let found = problems(&file_with(path, "1979-05-27"));
        let at_key: Vec<_> = found
            .iter()
            .filter(|problem| problem.contains(&format!(" {path} is a date; allowed is ")))
            .collect();
        assert_eq!(at_key.len(), 1, "{path}: {found:#?}");
        let others = found
            .iter()
            .filter(|problem| problem.contains(" is a date"));
        assert_eq!(others.count(), 1, "{path}: {found:#?}");
    });
    assert!(count > 150, "{count}");
}

#[test]
fn every_declared_key_is_documented_and_has_a_default_or_an_example() {
    each_key(File::table(), "", &mut |path, key| {
        assert!(!key.about.is_empty(), "{path}");
        let sentence = key.about.join(" ");
        assert!(sentence.ends_with('.'), "{path}: {sentence}");
        if let Some(default) = &key.default {
            let value: Result<toml::Table, _> = format!("v = {default}").parse();
            assert!(value.is_ok(), "{path} = {default}");
            if !path.starts_with("route.") {
                let set = problems(&file_with(path, default));
                let is_about = |problem: &&String| problem.contains(&format!(" {path} "));
                assert_eq!(set.iter().find(is_about), None, "{path}");
            }
        }
        // A tip of another name needs a path, and [shared] the number of replicas.
        let needs_another = [("chain.tip.name.", ".path"), ("shared.", ".replicas")];
        let mut needs_another = needs_another.iter();
        let stands_alone =
            !needs_another.any(|(table, key)| path.starts_with(table) && !path.ends_with(key));
        if let Some(example) = key.example
            && stands_alone
        {
            assert_eq!(problems(&file_with(path, example)), [""; 0], "{path}");
        }
    });
}

const RICH: &str = r#"
    [[listener]]
    name = "edge"
    address = "unix:/run/ordgate.sock"
    mode = "0600"
    proxy_protocol = true
    [[listener]]
    address = "127.0.0.1:8443"
    [listener.tls]
    min_version = "1.3"
    certificates = [{ chain = "c.pem", key = "k.pem" }, { chain = "d.pem", key = "d.pem" }]
    [cache]
    targeted_field = "x-cache-control"
    [upstream]
    url = "https://api.example"
    ca_file = "ca.pem"
    api_keys_file = "keys"
    [upstreams.runes]
    max_lag = 3
    [[route]]
    name = "all"
    path = "/all/{rest:*}"
    headers = "all"
    query = "any"
    cache = { mode = "respect" }
    [[route]]
    name = "other"
    path = "/a/{x}"
    upstream = "runes"
    params.x = { type = "string", pattern = "[a-z]+" }
    query."k.d" = { type = "enum", values = ["a", "b"], default = "b" }
    cache = { mode = "override", times = { "2xx" = "10s", 404 = "1s", empty = "500ms" } }
"#;

#[test]
fn what_is_printed_with_documentation_means_the_same() {
    let none = ProviderKeys::default();
    for text in ["", RICH] {
        let config = Config::parse("p", text).unwrap();
        let whole = config.print_all(&none).unwrap();
        let again = Config::parse("printed", &whole);
        let again = again.unwrap_or_else(|problems| panic!("{problems:?}\n{whole}"));
        assert_eq!(again.print(&none).unwrap(), config.print(&none).unwrap());
        each_key(File::table(), "", &mut |path, key| {
            let line = format!("{} = ", key.name);
            let named = path.starts_with("upstreams.") || path.starts_with("route.");
            let is_there = whole
                .lines()
                .any(|text| text.trim_start_matches("# ").starts_with(&line));
            assert!(named || is_there, "{path} in {whole}");
        });
        let longest = whole.lines().filter(|line| line.starts_with('#'));
        let longest = longest.map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|longest| longest <= 80), "{longest:?}");
    }
}
