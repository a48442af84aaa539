//! One name means one thing, and no helper is left over.

use std::collections::BTreeMap;

use super::source::{is_word, places, product, sources};

/// Names that mean the same in each module that has one.
const SHARED_NAMES: [&str; 10] = [
    "Data", "Error", "Future", "Inner", "Output", "Response", "Settings", "Snapshot", "State",
    "Value",
];

#[test]
fn no_two_types_have_one_name() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in product() {
        // The sandbox stands for the API and shares nothing with the rest, so it
        // may use the same words; a proof is a test.
        if ["tests", "proof", "sandbox"]
            .iter()
            .any(|apart| source.module.contains(apart))
        {
            continue;
        }
        for line in source.code.lines() {
            let words: Vec<_> = line
                .split(|c| !is_word(c))
                .filter(|word| !word.is_empty())
                .collect();
            // Private types may use the words of their module.
            let (["pub", "crate" | "super", words @ ..] | ["pub", words @ ..]) = &words[..] else {
                continue;
            };
            // A type of a trait is indented.
            if let ["struct" | "enum" | "trait" | "type", name, ..] = words
                && !(words[0] == "type" && line.starts_with(' '))
            {
                let by = types.entry((*name).to_owned()).or_default();
                by.push(source.name.clone());
            }
        }
    }
    types.retain(|name, by| by.len() > 1 && !SHARED_NAMES.contains(&&**name));
    assert!(types.is_empty(), "{types:#?}");
}

#[test]
fn every_helper_of_the_harness_is_used() {
    let tests = sources("tests");
    let (harness, others): (Vec<_>, Vec<_>) = tests
        .iter()
        .partition(|source| source.name.starts_with("tests/support/"));
    for source in &harness {
        for line in source.code.lines() {
            let Some((_, rest)) = line.split_once("pub(crate) ") else {
                continue;
            };
            let Some((_, name)) = rest.split_once("fn ") else {
                continue;
            };
            let name = &name[..name.find(|c| !is_word(c)).unwrap()];
            let elsewhere = others
                .iter()
                .any(|other| places(&other.code, name).next().is_some());
            let here = harness
                .iter()
                .map(|other| places(&other.code, name).count())
                .sum::<usize>();
            assert!(elsewhere || here > 1, "{}: nobody uses {name}", source.name);
        }
    }
}
