//! The proxy.toml that the repository ships, made from the declared tables: the
//! keys that most users set, and the built-in routes.

use super::file::File;
use super::key::{DeclaredTable, Inner, KeyTable as _};
use super::text::{comment, unset};

const INTRODUCTION: &str = "\
# proxy.toml: ordgate's configuration. These are the keys that most users set,
# with their defaults; anything may be left out.
#
#   ordgate check --all      prints every key, its value and its documentation
#   ordgate check            says what is wrong with a file, or prints its effect
#   ordgate schema           prints a JSON Schema for editors
#
# `ordgate serve` uses this file as it is built in; `--config FILE` names another.
# Flags take precedence over the file. Durations are a whole number with ms, s,
# m, h or d; sizes with B, KiB, MiB or GiB.
#
# SIGHUP, or POST /reload on the admin listener, makes a running ordgate read its file
# again, and the files that it names. server.workers, server.runtime,
# admin.listen, state.path, state.max_bytes, log.level and log.format need a
# restart; the rest takes effect at once.
#
# API keys are never in this file: they come from the environment variable
# ORDGATE_API_KEYS (separated by commas) or from `upstream.api_keys_file`.
";

/// The text of the shipped file as it is made from the declared keys, with these
/// routes. A test compares the file with it.
pub fn shipped_text(routes: &str) -> String {
    let mut text = INTRODUCTION.to_owned();
    let root = File::table();
    for key in &root.keys {
        if let Inner::Table(table) = key.inner {
            section(&mut text, table(), key.name);
        }
    }
    if let Some(route) = root.key("route") {
        for (number, paragraph) in route.about.iter().enumerate() {
            text.push_str(if number == 0 { "\n" } else { "#\n" });
            comment(&mut text, paragraph);
        }
    }
    text.push('\n');
    text.push_str(routes);
    text
}

/// The keys of a table that are shown.
fn section(text: &mut String, declared: &DeclaredTable, path: &str) {
    let mut shown = declared.keys.iter().filter(|key| key.is_shown).peekable();
    if shown.peek().is_some() {
        text.push('\n');
        if let Some(first) = declared.about.first() {
            comment(text, first);
        }
        text.push_str(&format!("[{path}]\n"));
    }
    for key in shown {
        if let Some(first) = key.about.first() {
            comment(text, first);
        }
        match &key.default {
            Some(default) => text.push_str(&format!("{} = {default}\n", key.name)),
            None if key.is_shown_set => {
                let example = key.example.unwrap_or_default();
                text.push_str(&format!("{} = {example}\n", key.name));
            }
            None => unset(text, key),
        }
    }
    for key in &declared.keys {
        if let Inner::Table(table) = key.inner {
            section(text, table(), &format!("{path}.{}", key.name));
        }
    }
}
