//! Lists of rune activity: pages, filters, and equal spellings of a target.

use serde_json::Value;

use super::super::Operation;
use super::{SMALL, get, json, model, sized, some_tx, text};

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
fn pages_together_are_the_whole_list() {
    let model = model();
    let list = |query: &str| json(&model, &format!("/runes/v1/blocks/{HUGE}/activity?{query}"));
    let total = list("limit=1")["total"].as_u64().expect("a total");
    assert!(total > 3_000, "{total}");
    let mut items = Vec::new();
    for offset in (0..total).step_by(60) {
        let page = list(&format!("limit=60&offset={offset}"));
        assert_eq!(page["total"], total);
        assert_eq!(
            (&page["limit"], &page["offset"]),
            (&Value::from(60), &Value::from(offset))
        );
        items.extend(page["results"].as_array().expect("a list").clone());
    }
    assert_eq!(items.len() as u64, total);
    let indexes: Vec<_> = items
        .iter()
        .map(|item| item["location"]["tx_index"].as_u64().expect("an index"))
        .collect();
    assert!(
        indexes.is_sorted_by(|one, next| one >= next),
        "transactions are contiguous, in descending order"
    );
    for offset in [total, total + 1, 1_000_000, 9_007_199_254_740_993] {
        let page = list(&format!("offset={offset}"));
        assert_eq!(
            (&page["total"], page["results"].as_array().map(Vec::len)),
            (&Value::from(0), Some(0))
        );
    }
    assert_eq!(
        list("offset=9007199254740993")["offset"],
        9_007_199_254_740_992u64
    );
    let answer = get(&model, &format!("/runes/v1/blocks/{HUGE}/activity?limit=1"));
    assert_eq!(answer.items as u64, total, "a page costs the whole block");
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

#[test]
fn both_lists_have_the_same_bytes() {
    let model = sized(100, 50_000);
    let results = |target: String| {
        let body = text(&get(&model, &target));
        let (_, results) = body.split_once("\"results\":[").expect("a list");
        results.strip_suffix("]}").expect("an end").to_owned()
    };
    for height in [SMALL, 840_001, HUGE] {
        let block = results(format!("/runes/v1/blocks/{height}/activity?limit=50000"));
        let placed = model
            .chain
            .placements(model.chain.at(height).expect("a block"));
        let joined: Vec<_> = placed
            .into_iter()
            .rev()
            .map(|placed| {
                results(format!(
                    "/runes/v1/transactions/{}/activity?limit=100",
                    model.chain.tx_id(placed.key)
                ))
            })
            .collect();
        assert_eq!(block, joined.join(","), "{height}");
    }
    assert!(
        text(&get(&model, "/runes/v1/blocks/1/activity?limit=50001"))
            .contains("limit must be <= 50000")
    );
}
