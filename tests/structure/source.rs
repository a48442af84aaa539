//! The source files, and the paths in them.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file without its tests and comments.
pub(super) struct Source {
    /// Relative to the repository.
    pub(super) name: String,
    /// Such as `cache::store`; empty for `lib.rs`.
    pub(super) module: String,
    pub(super) whole: String,
    pub(super) code: String,
}

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

pub(super) fn sources(directory: &str) -> Vec<Source> {
    let directory = root().join(directory);
    let mut found = Vec::new();
    files(&directory, &mut found);
    let source = |path: PathBuf| {
        let whole = fs::read_to_string(&path).unwrap();
        let inner = path.strip_prefix(&directory).unwrap().with_extension("");
        let module = inner.to_str().unwrap().replace('/', "::");
        Source {
            name: path.strip_prefix(root()).unwrap().display().to_string(),
            module: if module == "lib" {
                String::new()
            } else {
                module
            },
            code: code(&whole),
            whole,
        }
    };
    found.into_iter().map(source).collect()
}

/// The files of `src`, without those of tests.
pub(super) fn product() -> Vec<Source> {
    let mut all = sources("src");
    let is_test = |part: &str| part.ends_with("tests") || part.starts_with("tests");
    all.retain(|source| !source.module.split("::").any(is_test));
    assert!(all.len() > 30, "the sources are found");
    all
}

/// A file's text up to its tests, without comments. Strings stay: attributes
/// name functions in them.
fn code(text: &str) -> String {
    let tests = ["mod tests {", "pub(crate) mod tests {"];
    let ends = tests
        .iter()
        .filter_map(|tests| text.find(&format!("#[cfg(test)]\n{tests}")));
    let text = &text[..ends.min().unwrap_or(text.len())];
    let lines = text.lines().map(|line| match line.find("//") {
        // An address in a string is no comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub(super) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The positions of a whole word in a text.
pub(super) fn places<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Every path in a file that begins with `crate` or `super`, such as
/// `cache::key::Key`; groups in braces are expanded.
pub(super) fn paths(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for at in places(&source.code, "crate") {
        let rest = &source.code[at + "crate".len()..];
        // `pub(crate)` names nothing.
        if let Some(rest) = rest.strip_prefix("::") {
            expand("", rest, &mut found);
        }
    }
    for at in places(&source.code, "super") {
        let rest = &source.code[at + "super".len()..];
        // The second of `super::super` is read with the first.
        if source.code[..at].ends_with("super::") {
            continue;
        }
        let mut above = source
            .module
            .rsplit_once("::")
            .map_or("", |(above, _)| above);
        let mut rest = rest;
        while let Some(further) = rest.strip_prefix("::super") {
            above = above.rsplit_once("::").map_or("", |(above, _)| above);
            rest = further;
        }
        if let Some(rest) = rest.strip_prefix("::") {
            expand(above, rest, &mut found);
        }
    }
    found
}

/// Reads a path, or a group of paths in braces; returns where it ends.
fn expand(before: &str, text: &str, found: &mut Vec<String>) -> usize {
    let join = |word: &str| match before.is_empty() {
        true => word.to_owned(),
        false => format!("{before}::{word}"),
    };
    if !text.starts_with('{') {
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        let path = join(&text[..end]);
        return match text[end..].strip_prefix("::") {
            Some(rest) => end + 2 + expand(&path, rest, found),
            None => {
                found.push(path);
                end
            }
        };
    }
    let mut at = 1;
    loop {
        let rest = &text[at..];
        match rest.chars().next() {
            None | Some('}') => return at + 1,
            Some(c) if is_word(c) => {
                at += expand(before, rest, found);
                // A new name for it is no path.
                if let Some(renamed) = text[at..].strip_prefix(" as ") {
                    at += 4 + renamed.find(|c| !is_word(c)).unwrap_or(renamed.len());
                }
            }
            Some(c) => at += c.len_utf8(),
        }
    }
}
