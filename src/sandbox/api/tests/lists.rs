//! Lists of rune activity: pages, filters, and equal spellings of a target.

use super::super::Operation;
use super::{SMALL, get, json, model, some_tx, text};

/// The block of a thousand transactions, and one without any.
const HUGE: u32 = 840_023;
const EMPTY: u32 = 840_003;

#[test]
fn unknown_objects_are_empty_lists() {
    let model = model();
    for target in [
        "/runes/v1/blocks/999999/activity".to_owned(),
        "/runes/v1/blocks/9999999999999999999999999999999999999999/activity".to_owned(),
        format!("/runes/v1/blocks/{}/activity", "1".repeat(90)),
        format!("/runes/v1/blocks/{}/activity", "0".repeat(64)),
        format!("/runes/v1/blocks/00000000{}/activity", "f".repeat(56)),
        format!(
            "/runes/v1/blocks/{}/activity",
            model
                .chain
                .hash(model.chain.tip().expect("a tip"))
                .to_uppercase()
        ),
        format!("/runes/v1/transactions/{}/activity", "f".repeat(64)),
        format!(
            "/runes/v1/transactions/{}/activity",
            some_tx(&model, SMALL).to_uppercase()
        ),
        format!("/runes/v1/blocks/{EMPTY}/activity"),
    ] {
        let answer = get(&model, &target);
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(
            text(&answer),
            "{\"limit\":20,\"offset\":0,\"total\":0,\"results\":[]}",
            "{target}"
        );
    }
}

#[test]
fn equal_spellings_of_a_target_give_one_page() {
    let model = model();
    let tx = some_tx(&model, SMALL);
    let first = tx.as_bytes()[0];
    let hash = model.chain.hash(model.chain.at(HUGE).expect("a block"));
    let block = |query: &str| format!("/runes/v1/blocks/{HUGE}/activity{query}");
    let token = |rest: &str| format!("/ordinals/v1/brc-20/tokens/{rest}");
    let (head, tail) = ("/runes/v1/transactions/", "/activity");
    let odd = format!(
        "{head}%{first:02x}{}{tail}?operation_type=nonsense",
        &tx[1..]
    );
    for (one, other) in [
        (block(""), block("").replace(&HUGE.to_string(), &hash)),
        (
            block(""),
            format!("/runes/blocks/00{HUGE}/activity?foo=bar&Limit=1&limit[]=1"),
        ),
        (block("?limit=10"), block("?limit=1e1")),
        (block("?limit=10"), block("?limit=010")),
        (block("?limit=16"), block("?limit=0x10")),
        (block("?limit=5"), block("?limit=+5")),
        (block("?limit=5"), block("?limit=5%C2%A0")),
        (block("?limit=1"), block("?%6Cimit=1&offset=-0")),
        (format!("{head}{tx}{tail}"), odd),
        (token("ordi"), token("%6FRDI?x=1").replace("/v1", "")),
        (token("%C3%A0%C3%A9"), token("%C3%80%c3%89")),
        ("/runes/v1/".to_owned(), "/runes/v1".to_owned()),
        ("/runes/v1/".to_owned(), "/runes/".to_owned()),
        ("/ordinals/v1/".to_owned(), "/ordinals/v1".to_owned()),
    ] {
        assert_eq!(
            text(&get(&model, &one)),
            text(&get(&model, &other)),
            "{one} and {other}"
        );
        assert_eq!(get(&model, &other).status, 200, "{other}");
    }
    // A plus is not a space in a path.
    for (ticker, status) in [
        ("a%2Fb%3F", 200),
        ("a%20b%25", 200),
        ("%F0%9F%90%B8", 200),
        ("%f0%9f%90%b8", 200),
        ("a+b%25", 404),
    ] {
        assert_eq!(get(&model, &token(ticker)).status, status, "{ticker}");
    }
}

#[test]
fn a_filter_changes_the_total_on_blocks_only() {
    let model = model();
    let all = json(&model, &format!("/runes/v1/blocks/{HUGE}/activity"))["total"].as_u64();
    let mut sum = 0;
    for operation in Operation::ALL {
        let name = operation.as_str();
        let page = json(
            &model,
            &format!("/runes/v1/blocks/{HUGE}/activity?operation_type={name}&limit=60"),
        );
        sum += page["total"].as_u64().expect("a total");
        assert!(
            page["results"]
                .as_array()
                .expect("a list")
                .iter()
                .all(|item| item["operation"] == name)
        );
    }
    assert_eq!(Some(sum), all);
    let tx = some_tx(&model, HUGE);
    let plain = json(&model, &format!("/runes/v1/transactions/{tx}/activity"));
    assert_eq!(
        json(
            &model,
            &format!("/runes/v1/transactions/{tx}/activity?operation_type=etching")
        ),
        plain
    );
    assert!(
        plain["total"].as_u64().expect("a total") > 60,
        "the first transaction here is a wide one"
    );
}
