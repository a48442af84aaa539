//! Writes proxy.toml from the declared tables and the values of their keys.

use toml::{Table as Values, Value};

use super::file::File;
use super::key::{DeclaredKey, DeclaredTable, Inner, KeyTable as _};
use super::kinds::quoted;

/// The file with these values. With `is_whole`, it has the documentation of every
/// key, and keys without a value as comments.
pub(super) fn file(values: &Values, is_whole: bool) -> String {
    let mut text = String::new();
    for key in &File::table().keys {
        let value = values.get(key.name);
        if is_whole && !key.about.is_empty() {
            paragraphs(&mut text, &key.about);
            text.push('\n');
        }
        inner(&mut text, key, key.name, value, is_whole);
    }
    text
}

/// A key that leads to tables.
fn inner(text: &mut String, key: &DeclaredKey, path: &str, value: Option<&Value>, is_whole: bool) {
    match (key.inner, value) {
        (Inner::Table(declared), value) if value.is_some() || is_whole => {
            let empty = Values::new();
            let values = value.and_then(Value::as_table).unwrap_or(&empty);
            table(
                text,
                declared(),
                &format!("[{path}]"),
                path,
                values,
                is_whole,
            );
        }
        (Inner::Named(declared), Some(Value::Table(tables))) => {
            for (number, (name, values)) in tables.iter().enumerate() {
                let path = format!("{path}.{}", bare_or_quoted(name));
                let header = format!("[{path}]");
                // The first of them documents them all.
                let is_whole = is_whole && number == 0 && key.name != "upstreams";
                if let Some(values) = values.as_table() {
                    table(text, declared(), &header, &path, values, is_whole);
                }
            }
        }
        (Inner::List(declared), Some(Value::Array(tables))) => {
            for (number, values) in tables.iter().enumerate() {
                let is_whole = is_whole && number == 0;
                if let Some(values) = values.as_table() {
                    table(
                        text,
                        declared(),
                        &format!("[[{path}]]"),
                        path,
                        values,
                        is_whole,
                    );
                }
            }
        }
        (Inner::Optional(declared), Some(Value::Table(values))) => {
            let header = format!("[{path}]");
            table(text, declared(), &header, path, values, is_whole);
        }
        // None of them: their keys as comments.
        (Inner::List(declared), None) if is_whole => {
            as_comments(text, declared(), &format!("[[{path}]]"), path);
        }
        (Inner::Optional(declared), None) if is_whole => {
            as_comments(text, declared(), &format!("[{path}]"), path);
        }
        _ => {}
    }
}

/// The keys of a table that is not there.
fn as_comments(text: &mut String, declared: &DeclaredTable, header: &str, path: &str) {
    let mut keys = String::new();
    table(&mut keys, declared, header, path, &Values::new(), true);
    for line in keys.lines() {
        let is_text = line.is_empty() || line.starts_with('#');
        text.push_str(if is_text { "" } else { "# " });
        text.push_str(&format!("{line}\n"));
    }
}

/// A table: its keys with values, then its tables.
fn table(
    text: &mut String,
    declared: &DeclaredTable,
    header: &str,
    path: &str,
    values: &Values,
    is_whole: bool,
) {
    let is_table = |key: &DeclaredKey, value: Option<&Value>| {
        let holds_tables = !matches!(key.inner, Inner::Value);
        holds_tables && !value.is_some_and(Value::is_str)
    };
    if is_whole {
        paragraphs(text, &declared.about);
    }
    text.push_str(&format!("{header}\n"));
    for key in &declared.keys {
        let value = values.get(key.name);
        if is_table(key, value) {
            continue;
        }
        if is_whole {
            text.push('\n');
            paragraphs(text, &key.about);
        }
        match value {
            Some(value) => text.push_str(&format!("{} = {value}\n", key.name)),
            None if is_whole => unset(text, key),
            None => {}
        }
    }
    text.push('\n');
    for key in &declared.keys {
        let value = values.get(key.name);
        if is_table(key, value) {
            if is_whole && !key.about.is_empty() {
                paragraphs(text, &key.about);
                text.push('\n');
            }
            inner(text, key, &format!("{path}.{}", key.name), value, is_whole);
        }
    }
}

/// A key without a value, as a comment.
pub(super) fn unset(text: &mut String, key: &DeclaredKey) {
    let shown = key.example.or(key.default.as_deref());
    text.push_str(&format!("# {} = {}\n", key.name, shown.unwrap_or("...")));
}

/// Paragraphs of documentation, as comments.
fn paragraphs(text: &mut String, about: &[String]) {
    for (number, paragraph) in about.iter().enumerate() {
        if number > 0 {
            text.push_str("#\n");
        }
        comment(text, paragraph);
    }
}

/// A paragraph as comment lines of at most 80 characters.
pub(super) fn comment(text: &mut String, paragraph: &str) {
    const WIDTH: usize = 80;
    let mut line = String::from("#");
    for word in paragraph.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            text.push_str(&format!("{line}\n"));
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&format!("{line}\n"));
}

/// The name of a table, quoted where TOML wants that.
fn bare_or_quoted(name: &str) -> String {
    let is_bare = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    match !name.is_empty() && name.bytes().all(is_bare) {
        true => name.to_owned(),
        false => quoted(name),
    }
}
