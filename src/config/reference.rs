//! The schema of proxy.toml, and the reference of its keys that is made from it: for the man
//! page, and for docs/configuration.md.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::File;

const INTRODUCTION: &str = "\
# Configuration

All keys of proxy.toml. This page is made from the program: `ordgate man DIR` writes the same as
proxy.toml(5), and `ordgate schema` prints a JSON Schema. `ordgate check` prints the values that
take effect.

Anything may be left out. Durations are a whole number with ms, s, m, h or d; sizes with B, KiB,
MiB or GiB. Flags and environment variables (`ordgate help`) take precedence over the file. API keys
are never in it: they come from `ORDGATE_API_KEYS` or from the file that `upstream.api_keys_file`
names.
";

/// The JSON Schema of the file.
pub fn schema() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<File>();
    schema.insert("title".to_owned(), "proxy.toml of ordgate".into());
    schema.into()
}

/// The reference of all keys as a page in Markdown: docs/configuration.md. A test compares the
/// file with it.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## The file itself\n");
    add_keys(&mut page, "", &schema());
    page
}

/// Adds the keys of the table of a path, and then the tables within.
fn add_keys(page: &mut String, path: &str, table: &Value) {
    let mut inner = Vec::new();
    for (name, key) in table["properties"].as_object().into_iter().flatten() {
        let Some((keys, before, after)) = table_of(key) else {
            let (allowed, about) = (escaped(&allowed(key)), escaped(text(key)));
            let otherwise = otherwise(name, key, table);
            page.push_str(&format!(
                "\n### `{name}`\n\n_{allowed}._{otherwise}\n\n{about}\n"
            ));
            continue;
        };
        let path = format!("{path}{name}");
        let header = format!("{before}{path}{after}");
        inner.push((path, header, keys, key));
    }
    for (path, header, keys, key) in inner {
        let about = [text(key), text(keys)]
            .into_iter()
            .find(|about| !about.is_empty());
        let about = escaped(about.unwrap_or_default());
        page.push_str(&format!("\n## `{header}`\n\n{about}\n"));
        match &*path {
            // Its keys are those of [upstream].
            "upstreams" => {}
            "route.query" => page.push_str("\nIts keys are those of `[route.params.NAME]`.\n"),
            path => add_keys(page, &format!("{path}."), keys),
        }
    }
}

/// The table that a key leads to, if it does, and what goes around its path in a header.
fn table_of(key: &Value) -> Option<(&Value, &'static str, &'static str)> {
    if let Some(each) = key["anyOf"].as_array() {
        return each.iter().find_map(table_of);
    }
    let is_table = |schema: &Value| schema["properties"].is_object();
    let (list, named) = (&key["items"], &key["additionalProperties"]);
    if is_table(key) {
        return Some((key, "[", "]"));
    }
    if is_table(list) {
        return Some((list, "[[", "]]"));
    }
    is_table(named).then_some((named, "[", ".NAME]"))
}

fn text(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// The default as it is written in the file, or that there must be a value.
fn otherwise(name: &str, key: &Value, table: &Value) -> String {
    let required = table["required"].as_array();
    let is_required = required.is_some_and(|all| all.contains(&name.into()));
    let default = table["default"].get(name).or(key.get("default"));
    let default = default.and_then(|value| toml::Value::try_from(value).ok());
    match default {
        Some(default) => format!(" Default: `{default}`."),
        None if is_required => " Required.".to_owned(),
        None => String::new(),
    }
}

/// What a value may be, in words.
fn allowed(schema: &Value) -> String {
    if let Some(allowed) = schema["x-allowed"].as_str() {
        return allowed.to_owned();
    }
    let each = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    let constant = |one: &Value| one["const"].as_str().map(|text| format!("\"{text}\""));
    if let Some(each) = each {
        let each = each.iter().filter(|one| one["type"] != "null");
        let each = each.map(|one| constant(one).unwrap_or_else(|| allowed(one)));
        return each.collect::<Vec<_>>().join(" or ");
    }
    if let Some(names) = schema["enum"].as_array() {
        let names = names
            .iter()
            .filter(|name| !name.is_null())
            .map(Value::to_string);
        return names.collect::<Vec<_>>().join(" or ");
    }
    let kind = &schema["type"];
    let kind = kind.as_str().or_else(|| kind[0].as_str());
    match kind {
        Some("boolean") => "true or false".to_owned(),
        Some("array") => format!("a list, each {}", allowed(&schema["items"])),
        Some("object") => {
            format!(
                "a table, each value {}",
                allowed(&schema["additionalProperties"])
            )
        }
        Some("integer") if schema["minimum"] == 1 => "a whole number of at least 1".to_owned(),
        Some("integer") => "a whole number".to_owned(),
        Some("number") => "a number".to_owned(),
        _ => "a string".to_owned(),
    }
}

/// A text without what Markdown would take for markup, outside of code.
fn escaped(text: &str) -> String {
    let parts = text
        .split('`')
        .enumerate()
        .map(|(number, part)| match number % 2 {
            0 => part
                .replace('_', "\\_")
                .replace('*', "\\*")
                .replace('<', "&lt;")
                .replace('[', "\\["),
            _ => part.to_owned(),
        });
    parts.collect::<Vec<_>>().join("`")
}
