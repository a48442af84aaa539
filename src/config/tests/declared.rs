//! The declared keys, the reader and the printer agree.

use toml::Value;

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

/// Checks that a printed table has declared keys alone.
fn is_declared(values: &toml::Table, declared: &DeclaredTable, path: &str) {
    for (name, value) in values {
        let key = declared.key(name);
        let key = key.unwrap_or_else(|| panic!("{path}.{name} is printed and not declared"));
        let path = format!("{path}.{name}");
        let each: Vec<&Value> = match (key.inner, value) {
            (Inner::Table(_) | Inner::Optional(_), value) => vec![value],
            (Inner::Named(_), Value::Table(tables)) => {
                tables.iter().map(|(_, value)| value).collect()
            }
            (Inner::List(_), Value::Array(tables)) => tables.iter().collect(),
            _ => continue,
        };
        let (Inner::Table(table)
        | Inner::Optional(table)
        | Inner::Named(table)
        | Inner::List(table)) = key.inner
        else {
            continue;
        };
        for value in each {
            is_declared(value.as_table().unwrap(), table(), &path);
        }
    }
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
fn only_declared_keys_are_printed_and_all_with_a_default() {
    let none = ProviderKeys::default();
    let read = |text: &str| Config::parse("p", text).unwrap();
    for text in ["", RICH] {
        let values = read(text).values(&none).unwrap();
        is_declared(&values, File::table(), "");
    }
    let values = read("").values(&none).unwrap();
    each_key(File::table(), "", &mut |path, key| {
        let is_listed = path.starts_with("route.") || path.starts_with("listener.");
        let is_fixed = !is_listed && !path.contains(".name.");
        if is_fixed && let Some(default) = &key.default {
            let printed = path
                .split('.')
                .try_fold(&Value::Table(values.clone()), |table, key| table.get(key))
                .map(ToString::to_string);
            let is_same = printed.as_ref().is_some_and(|printed| {
                // Sizes may be printed as numbers, and durations in another unit.
                printed == default || key.schema["pattern"].is_string()
            });
            assert!(is_same, "{path}: {printed:?}, {default}");
        }
    });
}

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

#[test]
fn a_key_is_read_by_its_old_name_with_a_warning() {
    let none = ProviderKeys::default();
    let old = "p.toml:2:1: limit.max_callers is now named limit.max_clients; the next release does not accept the old name";
    for (keys, warnings, most) in [
        ("max_callers = 7", vec![old], 7),
        ("max_clients = 7", vec![], 7),
        ("burst = 1", vec![], 100_000),
    ] {
        let config = Config::parse("p.toml", &format!("[limit]\n{keys}\n")).unwrap();
        assert_eq!(config.warnings(&none), warnings, "{keys}");
        assert_eq!(config.limit.max_clients.get(), most, "{keys}");
        let printed = config.print_all(&none).unwrap();
        assert!(
            printed.contains(&format!("max_clients = {most}\n")),
            "{printed}"
        );
        assert!(!printed.contains("max_callers"), "{printed}");
    }
    let schema = crate::config::schema();
    let keys = &schema["properties"]["limit"]["properties"];
    assert_eq!(keys["max_callers"]["deprecated"], true);
    assert_eq!(keys["max_clients"]["deprecated"], serde_json::Value::Null);
    assert_eq!(
        keys["max_callers"]["maximum"],
        keys["max_clients"]["maximum"]
    );
}
