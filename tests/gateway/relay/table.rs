//! Route tables with plain routes: which settings exclude each other.

use ordgate::config::Config;

use crate::respect::ALL;

/// The problems of a configuration, as text.
fn problems(text: &str) -> String {
    match Config::parse("test.toml", text) {
        Ok(_) => String::new(),
        Err(problems) => format!("{problems:?}"),
    }
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let fixed = "mode = \"override\", times = { 200 = \"1s\" }";
    for (from, to, problem) in [
        ("respect", "respect", ""),
        ("respect", "off", ""),
        ("mode = \"respect\"", fixed, "the other modes ignore Vary"),
        (
            "headers = \"all\"",
            "headers = \"typed\"",
            "goes with headers",
        ),
        ("headers = \"all\"", "", "goes with headers"),
        ("headers = \"all\"", "headers = \"some\"", "headers"),
        ("query = \"any\"", "query = \"all\"", "query"),
        ("/{rest:*}", "/{rest:*}/more", "last"),
        ("[\"*\"]", "[\"*\", \"GET\"]", ""),
    ] {
        let found = problems(&ALL.replace(from, to));
        let what = format!("{from} -> {to}: {found}");
        assert_eq!(found.is_empty(), problem.is_empty(), "{what}");
        assert!(found.contains(problem), "{what}");
    }
}
