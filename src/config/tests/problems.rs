//! What is reported of a file that is not valid.

use std::time::Duration;

use super::{printed, problems, read};
use crate::config::{Config, base_url};

/// Each case of the table is the lines of a file, and then, indented, its problems.
#[test]
fn files_have_the_problems_that_the_table_lists() {
    let check = |file: &str, expected: &[&str]| {
        let found = problems(file);
        let found: Vec<_> = found.iter().map(|p| &p["p.toml:".len()..]).collect();
        let none = ["no problem"];
        let listed = if found.is_empty() { &none } else { &found[..] };
        assert_eq!(listed, expected, "{file}");
    };
    let (mut file, mut expected) = (String::new(), Vec::new());
    for line in include_str!("problems.txt").lines() {
        if let Some(problem) = line.strip_prefix("    ") {
            expected.push(problem);
            continue;
        }
        if !expected.is_empty() {
            check(&file, &expected);
            (file, expected) = (String::new(), Vec::new());
        }
        let is_between_cases = file.is_empty() && line.is_empty();
        if !is_between_cases && !line.starts_with('#') {
            file.push_str(&format!("{line}\n"));
        }
    }
    check(&file, &expected);
}

#[test]
fn many_problems_are_counted() {
    let file: String = (0..20_000).map(|n| format!("k{n} = 1\n")).collect();
    let found = problems(&file);
    assert_eq!(found.len(), 100);
    assert!(found[99].starts_with("p.toml:100:1: unknown key k99"));
    let rest = "(and 19900 more problems after this one)";
    assert!(found[99].ends_with(rest), "{}", found[99]);
    assert!(!found[98].contains("more problems"));
}

#[test]
fn only_fields_without_another_meaning_may_carry_the_key() {
    for (name, good) in [
        ("x-api-key", true),
        ("Authorization", true),
        ("X-Proxy-Key", true),
        ("a b", false),
        ("", false),
        ("Host", false),
        ("content-length", false),
        ("Connection", false),
        ("transfer-encoding", false),
        ("te", false),
        ("upgrade", false),
        ("trailer", false),
        ("keep-alive", false),
        ("accept", false),
        ("accept-encoding", false),
        ("user-agent", false),
        ("expect", false),
        ("via", false),
        ("proxy-authorization", false),
        ("Proxy-Connection", false),
    ] {
        let found = problems(&format!("[upstream]\napi_key_header = \"{name}\"\n"));
        assert_eq!(found.is_empty(), good, "{name} {found:#?}");
        for problem in found {
            assert!(
                problem.contains("allowed is the name of a field"),
                "{problem}"
            );
        }
    }
}

#[test]
fn syntax_errors_are_reported_alone() {
    let found = problems("[server\nlisten = \"127.0.0.1:1\"\n[limit]\nenabled = yes\n");
    assert!(
        found.iter().any(|problem| problem.starts_with("p.toml:1:")),
        "{found:#?}"
    );
    assert!(
        found.iter().any(|problem| problem.starts_with("p.toml:4:")),
        "{found:#?}"
    );
}

#[test]
fn base_urls_are_http_without_user_query_and_fragment() {
    for (text, good) in [
        ("https://api.example", true),
        ("http://127.0.0.1:3999/", true),
        ("https://api.example/base/path", true),
        ("https://user:pass@api.example", false),
        ("https://api.example/?key=1", false),
        ("api.example", false),
        ("/base", false),
        ("ws://api.example", false),
        ("https://api.example:1", true),
        ("https://[::1]:65535/x", true),
        ("https://api.example:0", false),
        ("https://api.example:65536", false),
        ("https://api.example:99999", false),
        ("https://api.example:", false),
        ("https://user@api.example:1", false),
        ("https://a..b", false),
        ("https://-a.example", false),
        ("https://.example", false),
        ("https://a_b.example.", true),
        ("http://indexer", true),
        ("https://256.1.1.1", false),
        ("https://[fe80::1%25lo]:1/", false),
        ("https://[::g]", false),
    ] {
        assert_eq!(base_url(text).is_some(), good, "{text}");
    }
}

#[test]
fn keys_that_are_not_set_fit_those_that_are() {
    let long = Config::parse("p", "cache.error_ttl = \"5m\"\n").unwrap();
    assert_eq!(long.failure_backoff.max_error_ttl, Duration::from_secs(300));
}

#[test]
fn a_required_token_needs_a_token_file() {
    let found = problems("[clients]\nrequire_token = true");
    let expected =
        "p.toml:2:17: clients.require_token is true; it takes a token_file with the tokens";
    assert_eq!(found, [expected]);
    let with_file = "[clients]\nrequire_token = true\ntoken_file = \"/a\"";
    assert_eq!(problems(with_file), [""; 0]);
    let config = read(with_file);
    let again = read(&printed(&config));
    assert_eq!(again.tokens.file, config.tokens.file);
    assert!(again.tokens.required);
}
