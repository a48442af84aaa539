//! The tables of a file before they are read: what named upstreams and built-in routes take
//! from others, and where an error is.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::SHIPPED;
use crate::upstream::Rate;

/// The file's table in which each `[upstreams.NAME]` has what it takes from `[upstream]`, and
/// the built-in routes are there, changed as the file says.
pub(super) fn merged<'a>(
    mut table: Spanned<DeTable<'a>>,
    is_shipped: bool,
) -> Spanned<DeTable<'a>> {
    let root = table.get_mut();
    let default = root.get("upstream").and_then(as_table).cloned();
    let named = root.get_mut("upstreams").and_then(as_table_mut);
    if let (Some(default), Some(named)) = (default, named) {
        for own in named.iter_mut().filter_map(|(_, own)| as_table_mut(own)) {
            let is_unlimited = own
                .get("requests_per_minute")
                .is_some_and(|rate| rate.get_ref().as_str() == Some(Rate::UNLIMITED));
            let mut default = default.clone();
            if is_unlimited {
                // The default upstream's limit per second does not apply to an unlimited minute.
                default.remove("requests_per_second");
            }
            add_missing(own, default);
        }
    }
    let leaves_out = root
        .get("builtin_routes")
        .is_some_and(|value| value.get_ref().as_bool() == Some(false));
    if !is_shipped && !leaves_out {
        add_builtin_routes(root);
    }
    table
}

/// Adds the routes of the shipped file; one of the same name keeps what it sets.
fn add_builtin_routes(root: &mut DeTable<'_>) {
    let Ok(shipped) = DeTable::parse(SHIPPED) else {
        return;
    };
    let Some(DeValue::Array(builtin)) = shipped
        .into_inner()
        .remove("route")
        .map(Spanned::into_inner)
    else {
        return;
    };
    let key = Spanned::new(0..0, "route".into());
    let mut own = match root.remove("route").map(Spanned::into_inner) {
        None => Vec::new(),
        Some(DeValue::Array(own)) => own.into_iter().collect(),
        Some(other) => {
            // Not a list: it is reported when it is read.
            drop(root.insert(key, Spanned::new(0..0, other)));
            return;
        }
    };
    let name = |route: &Spanned<DeValue<'_>>| {
        let name = as_table(route)?.get("name")?.get_ref().as_str()?;
        Some(name.to_owned())
    };
    for (at, route) in builtin.into_iter().enumerate() {
        let same = own.iter().position(|known| name(known) == name(&route));
        let Some(same) = same else {
            own.insert(at, route);
            continue;
        };
        if let (Some(known), DeValue::Table(builtin)) =
            (as_table_mut(&mut own[same]), route.into_inner())
        {
            add_missing(known, builtin);
        }
    }
    drop(root.insert(
        key,
        Spanned::new(0..0, DeValue::Array(own.into_iter().collect())),
    ));
}

/// Adds the keys that a table does not have, also to its inner tables.
fn add_missing<'a>(to: &mut DeTable<'a>, from: DeTable<'a>) {
    for (key, value) in from {
        match to.get_mut(&**key.get_ref()) {
            None => drop(to.insert(key, value)),
            // Another mode has keys of its own.
            Some(own) if as_table(own).is_some_and(|own| own.contains_key("mode")) => {}
            Some(own) => {
                if let (Some(own), DeValue::Table(from)) = (as_table_mut(own), value.into_inner()) {
                    add_missing(own, from);
                }
            }
        }
    }
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

/// Whether a value is anything but empty tables.
pub(super) fn has_value(value: &Spanned<DeValue<'_>>) -> bool {
    as_table(value).is_none_or(|table| table.values().any(has_value))
}

/// An error of the file's syntax or types, with line and column (in characters, from 1) and
/// the key that it is about. Not the text of the line, which may have a secret.
pub(super) fn located(name: &str, text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let Some(span) = error.span().filter(|span| span.start <= text.len()) else {
        return format!("{name}: {message}");
    };
    let before = text.get(..span.start).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |last| last.chars().count())
        + 1;
    let key = DeTable::parse(text)
        .ok()
        .and_then(|table| key_at(table.get_ref(), span.start));
    let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
    format!("{name}:{line}:{column}: {key}{message}")
}

/// The path of the key whose value begins at an offset.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let inner = as_table(value)
            .and_then(|inner| key_at(inner, at))
            .or_else(|| {
                let list = value.get_ref().as_array().into_iter().flatten();
                list.filter_map(as_table).find_map(|one| key_at(one, at))
            });
        match inner {
            Some(inner) => Some(format!("{}.{inner}", key.get_ref())),
            None => (value.span().start == at).then(|| key.get_ref().to_string()),
        }
    })
}
