//! The arrows of the house: which room may name which. The map in `src/lib.rs`
//! is the law; this reads it, reads every path that the code says, and compares.
//!
//! A room may name what stands above it in the map, or to its left. What stands
//! in a file's tests is its own affair: they may look anywhere.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file without its tests and comments.
struct Source {
    /// Relative to the repository.
    name: String,
    /// Such as `cache::store`; empty for `lib.rs`.
    module: String,
    whole: String,
    code: String,
}

fn root() -> &'static Path {
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

fn sources(directory: &str) -> Vec<Source> {
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

/// What the product consists of: files, without those of tests.
fn product() -> Vec<Source> {
    let mut all = sources("src");
    all.retain(|source| !source.module.ends_with("tests"));
    assert!(all.len() > 30, "the sources are found");
    all
}

/// A file's text up to its tests, without comments. Strings stay: attributes
/// name functions in them.
fn code(text: &str) -> String {
    let text = match text.find("#[cfg(test)]\nmod tests") {
        Some(end) => &text[..end],
        None => text,
    };
    let lines = text.lines().map(|line| match line.find("//") {
        // An address in a string is no comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Where a word stands in a text, on its own.
fn places<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Every path that a file says from the crate's root or from above itself, with
/// groups spread out, such as `cache::key::Key`.
fn paths(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for at in places(&source.code, "crate") {
        let rest = &source.code[at + "crate".len()..];
        // `pub(crate)` names nothing.
        if let Some(rest) = rest.strip_prefix("::") {
            spread("", rest, &mut found);
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
            spread(above, rest, &mut found);
        }
    }
    found
}

/// Reads a path, or a group of them in braces; answers where it ends.
fn spread(before: &str, text: &str, found: &mut Vec<String>) -> usize {
    let join = |word: &str| match before.is_empty() {
        true => word.to_owned(),
        false => format!("{before}::{word}"),
    };
    if !text.starts_with('{') {
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        let path = join(&text[..end]);
        return match text[end..].strip_prefix("::") {
            Some(rest) => end + 2 + spread(&path, rest, found),
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
                at += spread(before, rest, found);
                // A new name for it names nothing else.
                if let Some(renamed) = text[at..].strip_prefix(" as ") {
                    at += 4 + renamed.find(|c| !is_word(c)).unwrap_or(renamed.len());
                }
            }
            Some(c) => at += c.len_utf8(),
        }
    }
}

/// The rooms of the map, in its order.
fn map() -> Vec<String> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut rooms = Vec::new();
    for row in ["words", "rules", "keepers", "walk", "doors"] {
        let line = lib
            .lines()
            .find(|line| line.starts_with(&format!("//! | {row} |")));
        let line = line.unwrap_or_else(|| panic!("the map has no row {row}"));
        for part in line.split("[`").skip(1) {
            let (name, rest) = part.split_once("`]").unwrap();
            match rest
                .strip_prefix("`::{")
                .and_then(|rest| rest.split_once('}'))
            {
                None => rooms.push(name.to_owned()),
                Some((inner, _)) => {
                    rooms.extend(inner.split(", ").map(|inner| format!("{name}::{inner}")));
                }
            }
        }
    }
    assert!(rooms.len() > 20, "{rooms:?}");
    rooms
}

/// The room that a path leads to: the longest of the map that it begins with.
fn room<'m>(rooms: &'m [String], path: &str) -> Option<(usize, &'m str)> {
    let leads = |room: &str| path == room || path.starts_with(&format!("{room}::"));
    let all = rooms.iter().enumerate().filter(|(_, room)| leads(room));
    let longest = all.max_by_key(|(_, room)| room.len());
    longest.map(|(at, room)| (at, &**room))
}

#[test]
fn arrows_point_up_the_map_or_to_the_left() {
    let rooms = map();
    let mut arrows = BTreeMap::new();
    let mut faults = Vec::new();
    for source in product() {
        if matches!(&*source.module, "" | "main") {
            // The one declares the rooms; the other stands outside, below all.
            continue;
        }
        let Some((from, here)) = room(&rooms, &source.module) else {
            faults.push(format!("{} belongs to no room of the map", source.name));
            continue;
        };
        for path in paths(&source) {
            let Some((to, there)) = room(&rooms, &path) else {
                faults.push(format!("{} names {path}, which is in no room", source.name));
                continue;
            };
            // A room's own inner rooms are its own, wherever the map has them.
            let inner = there.starts_with(&format!("{here}::"));
            if to > from && !inner {
                faults.push(format!("{} ({here}) names {path} ({there})", source.name));
            }
            *arrows
                .entry((here.to_owned(), there.to_owned()))
                .or_insert(0) += 1;
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    // That the reading works: these are there, and are seen.
    for (from, to) in [
        ("gateway", "cache"),
        ("gateway", "cache::key"),
        ("listener", "wire"),
        ("upstream", "units"),
        ("config", "upstream"),
        ("serve", "config"),
    ] {
        let arrow = (from.to_owned(), to.to_owned());
        assert!(arrows.contains_key(&arrow), "{from} -> {to} in {arrows:#?}");
    }
}

#[test]
fn every_room_is_on_the_map_and_every_entry_is_a_room() {
    let rooms = map();
    let product = product();
    let lib = product
        .iter()
        .find(|source| source.module.is_empty())
        .unwrap();
    let declared: Vec<_> = lib
        .code
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    for name in &declared {
        assert!(
            rooms.iter().any(|room| room == name),
            "{name} is not on the map"
        );
    }
    for room in &rooms {
        assert!(
            product.iter().any(|source| source.module == *room),
            "the map has {room}, the house has not"
        );
    }
    let mut once = rooms.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), rooms.len(), "a room stands once on the map");
}

#[test]
fn the_sandbox_shares_nothing_with_the_rest() {
    for source in product() {
        if source.module != "sandbox" && !source.module.starts_with("sandbox::") {
            continue;
        }
        for path in paths(&source) {
            assert!(path.starts_with("sandbox"), "{} names {path}", source.name);
        }
    }
}

#[test]
fn libraries_are_named_where_they_belong() {
    for (library, allowed) in [
        ("moka", &["cache::store"][..]),
        ("crossbeam_epoch", &["cache::store"]),
        ("governor", &["limit", "clock"]),
        ("anyhow", &["main"]),
        ("clap", &["main"]),
        ("matchit", &["route"]),
        (
            "prometheus_client",
            &["telemetry::metrics", "telemetry::metrics::upstream"],
        ),
        ("tracing_subscriber", &["telemetry"]),
        ("listenfd", &["supervisor::handed"]),
        ("sd_notify", &["supervisor"]),
        ("zeroize", &["secrets", "upstream::keys::api_key"]),
    ] {
        let named = |source: &Source| {
            let mut paths = source.code.lines().filter(|line| {
                places(line, library)
                    .any(|at| line[at + library.len()..].starts_with(['!', ':', ';']))
            });
            paths.next().is_some()
        };
        let by: Vec<_> = product().into_iter().filter(named).collect();
        assert!(!by.is_empty(), "{library} is used");
        for source in by {
            assert!(
                allowed.contains(&&*source.module),
                "{} names {library}",
                source.name
            );
        }
    }
}

#[test]
fn files_say_what_they_are_for() {
    for directory in ["src", "tests", "benches"] {
        for source in sources(directory) {
            assert!(
                source.whole.starts_with("//! "),
                "{} has no //!",
                source.name
            );
            assert!(
                !source.name.ends_with("/mod.rs"),
                "{}: a room's file bears its name",
                source.name
            );
        }
    }
}

#[test]
fn nothing_is_imported_by_a_star() {
    for source in product() {
        for line in source.code.lines() {
            let imports =
                line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub use ");
            assert!(
                !(imports && line.contains("::*")),
                "{}: {line}",
                source.name
            );
        }
    }
    for source in sources("tests/gateway") {
        assert!(!source.code.contains("::*;"), "{}", source.name);
    }
}

#[test]
fn no_merge_has_left_its_marks() {
    let named = [
        "README.md",
        "ARCHITECTURE.md",
        "API.md",
        "CHANGELOG.md",
        "proxy.toml",
        ".ci/run",
    ];
    let texts = named.map(|name| {
        (
            name.to_owned(),
            fs::read_to_string(root().join(name)).unwrap(),
        )
    });
    let sources = product()
        .into_iter()
        .map(|source| (source.name, source.whole));
    for (name, text) in texts.into_iter().chain(sources) {
        let marks = ["<<<<<<< ", ">>>>>>> "];
        let left = text
            .lines()
            .find(|line| marks.iter().any(|mark| line.starts_with(mark)));
        assert_eq!(left, None, "{name}");
    }
}
