//! The reference of proxy.toml's keys, from the declared tables: for the man page, and for
//! docs/configuration.md.

use super::file::File;
use super::key::{DeclaredKey, DeclaredTable, Inner, KeyTable as _};

const INTRODUCTION: &str = "\
# Configuration

All keys of proxy.toml. This page is made from the program: `ordgate man DIR` writes the same as
proxy.toml(5), `ordgate check --all` prints it with the values that take effect, and `ordgate schema`
as a JSON Schema.

Anything may be left out. Durations are a whole number with ms, s, m, h or d; sizes with B, KiB,
MiB or GiB. Flags and environment variables (`ordgate help`) take precedence over the file. API keys
are never in it: they come from `ORDGATE_API_KEYS` or from the file that `upstream.api_keys_file`
names.
";

/// A table of the file, as the reference has it.
pub struct ReferenceTable {
    /// Its header, such as `[upstream.retry]` or `[[route]]`.
    pub header: String,
    /// Paragraphs, without line breaks.
    pub about: Vec<String>,
    /// Its keys that are values. Tables follow as tables of their own.
    pub keys: Vec<ReferenceKey>,
}

/// A key of a table.
pub struct ReferenceKey {
    /// The name in the file.
    pub name: &'static str,
    /// What is allowed, in words.
    pub allowed: String,
    /// The default as it is written in the file, if there is one.
    pub default: Option<String>,
    /// How it may be set, for a key without a default.
    pub example: Option<&'static str>,
    /// Whether its table must have it.
    pub is_required: bool,
    /// Paragraphs, without line breaks.
    pub about: Vec<String>,
}

/// All tables of the file, in its order.
pub fn reference() -> Vec<ReferenceTable> {
    let mut tables = Vec::new();
    for key in &File::table().keys {
        add_inner(&mut tables, key, key.name);
    }
    tables
}

/// Adds the tables that a key leads to.
fn add_inner(tables: &mut Vec<ReferenceTable>, key: &DeclaredKey, path: &str) {
    match key.inner {
        Inner::Value => {}
        Inner::Table(declared) | Inner::Optional(declared) => {
            add_table(tables, key, declared(), &format!("[{path}]"), path);
        }
        Inner::List(declared) => {
            add_table(tables, key, declared(), &format!("[[{path}]]"), path);
        }
        Inner::Named(_) if key.name == "upstreams" => tables.push(ReferenceTable {
            // Its keys are those of [upstream].
            header: format!("[{path}.NAME]"),
            about: key.about.clone(),
            keys: Vec::new(),
        }),
        Inner::Named(declared) => {
            let path = format!("{path}.NAME");
            add_table(tables, key, declared(), &format!("[{path}]"), &path);
        }
    }
}

fn add_table(
    tables: &mut Vec<ReferenceTable>,
    key: &DeclaredKey,
    declared: &DeclaredTable,
    header: &str,
    path: &str,
) {
    let (values, inner): (Vec<_>, Vec<_>) =
        (declared.keys.iter()).partition(|key| matches!(key.inner, Inner::Value));
    tables.push(ReferenceTable {
        header: header.to_owned(),
        about: [&key.about[..], &declared.about].concat(),
        keys: values.into_iter().map(reference_key).collect(),
    });
    for key in inner {
        add_inner(tables, key, &format!("{path}.{}", key.name));
    }
}

fn reference_key(key: &DeclaredKey) -> ReferenceKey {
    ReferenceKey {
        name: key.name,
        allowed: key.allowed.clone(),
        default: key.default.clone(),
        example: key.example,
        is_required: key.is_required,
        about: key.about.clone(),
    }
}

/// The reference as a page in Markdown: docs/configuration.md. A test compares the file with
/// it.
pub fn reference_page() -> String {
    let mut text = INTRODUCTION.to_owned();
    for table in reference() {
        text.push_str(&format!("\n## `{}`\n", table.header));
        for paragraph in &table.about {
            text.push_str(&format!("\n{}\n", escaped(paragraph)));
        }
        for key in &table.keys {
            let otherwise = match (&key.default, key.example) {
                (Some(default), _) => format!(" Default: `{default}`."),
                (None, _) if key.is_required => " Required.".to_owned(),
                (None, Some(example)) => format!(" Example: `{example}`."),
                (None, None) => String::new(),
            };
            let allowed = escaped(&key.allowed);
            text.push_str(&format!(
                "\n### `{}`\n\n_{allowed}._{otherwise}\n",
                key.name
            ));
            for paragraph in &key.about {
                text.push_str(&format!("\n{}\n", escaped(paragraph)));
            }
        }
    }
    text
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
