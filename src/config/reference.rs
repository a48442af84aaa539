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

/// A table of the file, as the reference has it.
pub struct TableReference {
    /// Its header, such as `[upstream]` or `[[route]]`.
    pub header: String,
    /// Its documentation.
    pub about: String,
    /// Its keys that are values. Tables follow as tables of their own.
    pub keys: Vec<KeyReference>,
}

/// A key of a table.
pub struct KeyReference {
    /// The name in the file.
    pub name: String,
    /// What is allowed, in words.
    pub allowed: String,
    /// The default as it is written in the file; or that there is none, or that it is required.
    pub otherwise: String,
    /// Its documentation.
    pub about: String,
}

/// The JSON Schema of the file.
pub fn schema() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<File>();
    schema.insert("title".to_owned(), "proxy.toml of ordgate".into());
    schema.into()
}

/// All tables of the file, in its order.
pub fn tables() -> Vec<TableReference> {
    let mut tables = Vec::new();
    let schema = schema();
    let root = TableReference {
        header: "The file itself".to_owned(),
        about: String::new(),
        keys: Vec::new(),
    };
    add(&mut tables, root, "", &schema);
    tables
}

/// Adds a table, and the ones within.
fn add(tables: &mut Vec<TableReference>, mut table: TableReference, path: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let mut inner = Vec::new();
    for (name, key) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match table_of(key) {
            Some((of, header)) => {
                let (before, after) = header;
                inner.push((
                    of,
                    format!("{before}{path}{after}"),
                    path,
                    text(key, "description"),
                ));
            }
            None => table.keys.push(KeyReference::of(name, key, schema)),
        }
    }
    tables.push(table);
    for (of, header, path, about) in inner {
        let own = text(of, "description");
        let mut table = TableReference {
            header,
            about,
            keys: Vec::new(),
        };
        if path == "upstreams" {
            // Its keys are those of [upstream].
            tables.push(table);
            continue;
        }
        if table.about != own {
            table.about = format!("{}\n\n{own}", table.about).trim().to_owned();
        }
        add(tables, table, &path, of);
    }
}

/// The table that a key leads to, if it does, and what goes around its path in a header.
fn table_of(key: &Value) -> Option<(&Value, (&'static str, &'static str))> {
    if let Some(each) = key["anyOf"].as_array() {
        return each.iter().find_map(table_of);
    }
    let is_table = |schema: &Value| schema["properties"].is_object();
    if is_table(key) {
        return Some((key, ("[", "]")));
    }
    if is_table(&key["items"]) {
        return Some((&key["items"], ("[[", "]]")));
    }
    let named = &key["additionalProperties"];
    is_table(named).then_some((named, ("[", ".NAME]")))
}

fn text(schema: &Value, member: &str) -> String {
    schema[member].as_str().unwrap_or_default().to_owned()
}

impl KeyReference {
    fn of(name: &str, key: &Value, table: &Value) -> Self {
        let is_required = table["required"]
            .as_array()
            .is_some_and(|all| all.contains(&name.into()));
        let default = table["default"].get(name).or(key.get("default"));
        let default = default.filter(|value| !value.is_null());
        let default = default.and_then(|value| toml::Value::try_from(value).ok());
        Self {
            name: name.to_owned(),
            allowed: allowed(key),
            otherwise: match default {
                Some(default) => format!("Default: `{default}`."),
                None if is_required => "Required.".to_owned(),
                None => String::new(),
            },
            about: text(key, "description"),
        }
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
        Some("integer") => "a whole number".to_owned(),
        Some("number") => "a number".to_owned(),
        _ => "a string".to_owned(),
    }
}

/// The reference as a page in Markdown: docs/configuration.md. A test compares the file with it.
pub fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for table in tables() {
        page.push_str(&match table.header.starts_with('[') {
            true => format!("\n## `{}`\n", table.header),
            false => format!("\n## {}\n", table.header),
        });
        if !table.about.is_empty() {
            page.push_str(&format!("\n{}\n", escaped(&table.about)));
        }
        for key in &table.keys {
            let (allowed, about) = (escaped(&key.allowed), escaped(&key.about));
            let head = format!("_{allowed}._ {}", key.otherwise);
            page.push_str(&format!(
                "\n### `{}`\n\n{}\n\n{about}\n",
                key.name,
                head.trim_end()
            ));
        }
    }
    page
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
