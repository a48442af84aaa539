//! What a file takes from elsewhere, before it is read: flags take precedence over it, the
//! built-in routes and tips are there beside its own, with `api = "all"` also those for the rest
//! of the API, and each `[upstreams.NAME]` has what it
//! does not set from `[upstream]`.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::SHIPPED;

/// The routes of `api = "all"`.
const REST: &str = include_str!("rest.toml");

/// A file's table below the overrides and above what is built in.
pub(super) fn merged<'a>(overrides: DeTable<'a>, file: DeTable<'a>) -> DeTable<'a> {
    let mut root = overrides;
    add_missing(&mut root, file);
    let has_builtin = root
        .get("builtin_routes")
        .is_none_or(|value| value.get_ref().as_bool() != Some(false));
    let has_all = (root.get("api")).is_some_and(|api| api.get_ref().as_str() == Some("all"));
    // The shipped routes are the first then.
    for (builtin, has_routes) in [(REST, has_all), (SHIPPED, has_builtin)] {
        if let Ok(builtin) = DeTable::parse(builtin) {
            let builtin = builtin.into_inner().into_iter().filter(|(key, _)| {
                let key = &**key.get_ref();
                key == "chain" || (key == "route" && has_routes)
            });
            add_missing(&mut root, builtin.collect());
        }
    }
    let default = root.get("upstream").and_then(as_table).cloned();
    let named = root.get_mut("upstreams").and_then(as_table_mut);
    if let (Some(default), Some(named)) = (default, named) {
        for own in named.iter_mut().filter_map(|(_, own)| as_table_mut(own)) {
            let mut default = default.clone();
            if own.contains_key("requests_per_minute") {
                // The budget is its own then, also for a second.
                default.remove("requests_per_second");
            }
            add_missing(own, default);
        }
    }
    root
}

/// Adds the keys that a table does not have, also to its inner tables, and to the routes of the
/// same name.
fn add_missing<'a>(to: &mut DeTable<'a>, from: DeTable<'a>) {
    for (key, value) in from {
        let Some(own) = to.get_mut(&**key.get_ref()) else {
            to.insert(key, value);
            continue;
        };
        let is_routes = &**key.get_ref() == "route";
        match (own.get_mut(), value.into_inner()) {
            (DeValue::Table(own), DeValue::Table(from)) if !has_other_mode(own, &from) => {
                add_missing(own, from);
            }
            (DeValue::Array(own), DeValue::Array(from)) if is_routes => add_routes(own, from),
            (_, _) => {}
        }
    }
}

/// Whether a table has another cache mode than the one below it, which has keys of its own.
fn has_other_mode(own: &DeTable<'_>, from: &DeTable<'_>) -> bool {
    let mode = |table: &DeTable<'_>| {
        let mode = table.get("mode")?.get_ref().as_str()?;
        Some(mode.to_owned())
    };
    mode(own).is_some_and(|own| mode(from) != Some(own))
}

/// Puts routes before others; of one that is there already, the keys that are missing.
fn add_routes<'a>(own: &mut DeArray<'a>, from: DeArray<'a>) {
    let name = |route: &Spanned<DeValue<'_>>| {
        let name = as_table(route)?.get("name")?.get_ref().as_str()?;
        Some(name.to_owned())
    };
    let mut kept: Vec<_> = std::mem::replace(own, [].into_iter().collect())
        .into_iter()
        .collect();
    for (at, route) in from.into_iter().enumerate() {
        let same = kept.iter().position(|known| name(known) == name(&route));
        match (same.and_then(|same| as_table_mut(&mut kept[same])), route) {
            (None, route) => kept.insert(at, route),
            (Some(known), route) => {
                if let DeValue::Table(builtin) = route.into_inner() {
                    add_missing(known, builtin);
                }
            }
        }
    }
    *own = kept.into_iter().collect();
}

fn as_table<'v, 'a>(value: &'v Spanned<DeValue<'a>>) -> Option<&'v DeTable<'a>> {
    value.get_ref().as_table()
}

fn as_table_mut<'v, 'a>(value: &'v mut Spanned<DeValue<'a>>) -> Option<&'v mut DeTable<'a>> {
    if let DeValue::Table(table) = value.get_mut() {
        return Some(table);
    }
    None
}

/// An error of the file's syntax or types, with line and column (in characters, from 1). Not the
/// text of the line, which may have a secret.
pub(super) fn located(name: &str, text: &str, error: &toml::de::Error) -> String {
    let message = in_words(error.message());
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return format!("{name}: {message}");
    };
    let line = before.matches('\n').count() + 1;
    let last = before.rsplit('\n').next().unwrap_or_default();
    let column = last.chars().count() + 1;
    format!("{name}:{line}:{column}: {message}")
}

/// An error of serde's without the names of Rust's types.
fn in_words(message: &str) -> String {
    // What came in place of a table may be a URL with a password.
    if message.contains("expected struct ") {
        return "allowed is a table".to_owned();
    }
    let mut text = message.to_owned();
    for (rust, words) in [
        ("a nonzero u32", "a whole number from 1 to 4294967295"),
        ("a nonzero u64", "a whole number of at least 1"),
        ("expected u16", "expected a whole number from 0 to 65535"),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("a sequence", "a list"),
        ("a boolean", "true or false"),
        ("path string", "a string"),
        ("wanted string or table", "allowed is a string"),
        ("expected socket address", SOCKET_ADDRESS),
        ("invalid socket address syntax", SOCKET_ADDRESS),
    ] {
        text = text.replace(rust, words);
    }
    text
}

const SOCKET_ADDRESS: &str = "allowed is an IP address and a port, such as \"127.0.0.1:9090\"";
