//! How long files and functions may be.

use super::source::{is_word, places, sources};

/// Longest file, and longest function without its tables, in lines.
const LONGEST_FILE: usize = 600;

const LONGEST_FUNCTION: usize = 80;

/// The functions of a text with their lengths. Lines of array literals and of
/// raw strings do not count: tables may be long.
pub(super) fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some(name) = places(line, "fn").find_map(|at| {
            let is_item = line[..at].split_whitespace().all(|word| {
                word.starts_with("pub") || ["async", "const", "extern"].contains(&word)
            });
            let name = line[at + 2..].trim_start();
            let end = name.find(|c| !is_word(c))?;
            is_item.then(|| name[..end].to_owned())
        }) else {
            continue;
        };
        // Of one without a body, the signature's last line is the end.
        let is_end = |line: &&str| {
            let rest = line.strip_prefix(indent).unwrap_or(" ");
            rest == "}" || rest.ends_with(';') && !rest.starts_with(' ')
        };
        let Some(end) = lines[start..].iter().position(is_end) else {
            continue;
        };
        let (mut length, mut table) = (0, None::<String>);
        for line in &lines[start..=start + end] {
            let own = line.len() - line.trim_start().len();
            match &table {
                Some(close) => {
                    if line.starts_with(&**close) || close == "\"#" && line.contains("\"#") {
                        table = None;
                        length += 1;
                    }
                }
                None => {
                    length += 1;
                    if line.ends_with('[') {
                        table = Some(format!("{}]", &line[..own]));
                    } else if line.contains("r#\"") && !line.contains("\"#") {
                        table = Some("\"#".to_owned());
                    }
                }
            }
        }
        found.push((name, length));
    }
    found
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for source in ["src", "tests", "benches", "fuzz"]
        .map(sources)
        .into_iter()
        .flatten()
    {
        if source.name.contains("/target/") {
            continue;
        }
        let lines = source.whole.lines().count();
        if lines > LONGEST_FILE {
            long.push(format!("{}: {lines} lines", source.name));
        }
        for (name, lines) in functions(&source.whole) {
            if lines > LONGEST_FUNCTION {
                long.push(format!("{}: {name} has {lines} lines", source.name));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
