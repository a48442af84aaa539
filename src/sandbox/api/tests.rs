//! The model against recorded answers of the reference upstream.

use http::Request;
use serde_json::Value;

use super::{Answer, Api, Model, OPERATIONS};
use crate::sandbox::Settings;

/// A small block, the one of a thousand transactions, and one without any.
const SMALL: u32 = 840_000;
const HUGE: u32 = 840_023;
const EMPTY: u32 = 840_003;

fn sized(blocks: u32) -> Model {
    Model::new(&Settings {
        blocks,
        ..Settings::default()
    })
}

fn model() -> Model {
    sized(100)
}

fn ask(model: &Model, method: &str, target: &str, tag: Option<&str>) -> Answer {
    let mut request = Request::builder().method(method).uri(target);
    if let Some(tag) = tag {
        request = request.header("if-none-match", tag);
    }
    let request = request.body(()).unwrap();
    model.answer(Api::Both, &request.into_parts().0)
}

fn get(model: &Model, target: &str) -> Answer {
    ask(model, "GET", target, None)
}

fn conditional(model: &Model, target: &str, tag: &str) -> u16 {
    ask(model, "GET", target, Some(tag)).status.as_u16()
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

fn json(model: &Model, target: &str) -> Value {
    let answer = get(model, target);
    assert_eq!(answer.status, 200, "{target}: {}", text(&answer));
    serde_json::from_slice(&answer.body).unwrap()
}

fn tip_hash(model: &Model) -> String {
    model.chain.hash(model.chain.tip().unwrap())
}

fn some_tx(model: &Model, height: u32) -> String {
    let block = model.chain.at(height).unwrap();
    model.chain.tx_id(model.chain.transactions(block)[0].0)
}

#[test]
fn status_has_version_and_height() {
    let model = model();
    assert_eq!(
        text(&get(&model, "/runes/v1/")),
        "{\"server_version\":\"bitcoin-indexer-runes-api v3.0.2 (develop:c7585f4d)\",\"status\":\"ready\",\
         \"block_height\":840099}"
    );
    assert!(text(&get(&model, "/ordinals/v1/")).contains("bitcoin-indexer-ordinals-api"));
    // An index that is still empty has neither tag nor height.
    let empty = sized(0);
    let answer = get(&empty, "/runes/v1/");
    assert!(text(&answer).ends_with("\"status\":\"ready\"}"));
    assert!(!answer.headers.contains_key("etag") && !answer.headers.contains_key("cache-control"));
    assert!(text(&get(&empty, "/runes/v1/blocks/840000/activity")).contains("\"total\":0"));
}

#[test]
fn validation_errors_have_the_recorded_messages() {
    let model = model();
    let check = |target: &str, message: &str| {
        let answer = get(&model, target);
        let message = Value::from(message);
        let expected =
            format!("{{\"statusCode\":400,\"error\":\"Bad Request\",\"message\":{message}}}");
        let found = (answer.status.as_u16(), text(&answer));
        assert_eq!(found, (400, expected), "{target}");
        assert!(!answer.headers.contains_key("etag"), "{target}");
    };
    for (query, message) in [
        ("limit=0", "limit must be >= 1"),
        ("limit=-1", "limit must be >= 1"),
        ("limit=61", "limit must be <= 60"),
        ("limit=abc", "limit must be integer"),
        ("limit=1.5", "limit must be integer"),
        ("limit=", "limit must be integer"),
        ("limit", "limit must be integer"),
        ("limit=1&limit=1", "limit must be integer"),
        ("offset=abc", "offset must be integer"),
        ("offset=-1", "offset must be >= 0"),
        ("limit=0&offset=-1", "offset must be >= 0"),
    ] {
        let target = format!("/runes/v1/blocks/840000/activity?{query}");
        check(&target, &format!("querystring/{message}"));
    }
    let constants = "querystring/operation_type must be equal to constant, ".repeat(5)
        + "querystring/operation_type must match a schema in anyOf";
    for query in ["foo", "", "burn&operation_type=burn"] {
        let target = format!("/runes/v1/blocks/840000/activity?operation_type={query}");
        check(&target, &constants);
    }
    let no_block = "params/block must match pattern \"^[0-9]+$\", params/block must match pattern \
                    \"^[0]{8}[a-fA-F0-9]{56}$\", params/block must match a schema in anyOf";
    let hash = format!("{}/activity?limit=0", "f".repeat(64));
    for rest in ["latest/activity", "-1/activity", "%00/activity", &hash] {
        check(&format!("/runes/v1/blocks/{rest}"), no_block);
    }
    let no_tx = "params/tx_id must match pattern \"^[a-fA-F0-9]{64}$\"";
    for id in ["xyz", &"a".repeat(63), &format!("0x{}", "a".repeat(64))] {
        check(&format!("/runes/v1/transactions/{id}/activity"), no_tx);
    }
}

#[test]
fn other_errors_have_the_recorded_bodies() {
    let model = model();
    let token = |ticker: &str| format!("/ordinals/v1/brc-20/tokens/{ticker}");
    let beyond = "/runes/v1/blocks/840001/activity?offset=9223372036854775808";
    for (method, target, status, body) in [
        (
            "GET",
            "/nope?a=1",
            404,
            "{\"message\":\"Route GET:/nope?a=1 not found\",\"error\":\"Not Found\",\"statusCode\":404}",
        ),
        (
            "POST",
            "/runes/v1/",
            404,
            "{\"message\":\"Route POST:/runes/v1/ not found\",\"error\":\"Not Found\",\"statusCode\":404}",
        ),
        ("GET", "//runes/v1/", 404, "{\"message\":\"Route GET:"),
        ("GET", "/Runes/v1/", 404, "{\"message\":\"Route GET:"),
        ("GET", &token("a/b%3F"), 404, "{\"message\":\"Route GET:"),
        ("GET", &token("nope"), 404, "{\"error\":\"Not found\"}"),
        ("GET", &token("%256Frdi"), 404, "{\"error\":\"Not found\"}"),
        ("GET", &token("a+b%25"), 404, "{\"error\":\"Not found\"}"),
        (
            "GET",
            beyond,
            500,
            "{\"statusCode\":500,\"code\":\"22003\",\"error\":\"Internal Server Error\",\"message\":\"value \\\"9223372036854775808\\\" is out of range for type bigint\"}",
        ),
    ] {
        let answer = ask(&model, method, target, None);
        assert_eq!(answer.status, status, "{target}");
        assert!(
            text(&answer).starts_with(body),
            "{target}: {}",
            text(&answer)
        );
    }
}

#[test]
fn unknown_objects_are_empty_lists() {
    let model = model();
    let of_block = |name: &str| format!("/runes/v1/blocks/{name}/activity");
    let of_transaction = |id: &str| format!("/runes/v1/transactions/{id}/activity");
    for target in [
        of_block("999999"),
        of_block(&"1".repeat(90)),
        of_block(&"0".repeat(64)),
        of_block(&format!("00000000{}", "f".repeat(56))),
        of_block(&tip_hash(&model).to_uppercase()),
        of_block(&EMPTY.to_string()),
        of_transaction(&"f".repeat(64)),
        of_transaction(&some_tx(&model, SMALL).to_uppercase()),
    ] {
        let empty = "{\"limit\":20,\"offset\":0,\"total\":0,\"results\":[]}";
        let answer = get(&model, &target);
        assert_eq!(
            (answer.status.as_u16(), &*text(&answer)),
            (200, empty),
            "{target}"
        );
    }
}

#[test]
fn equal_spellings_of_a_target_give_one_page() {
    let model = model();
    let tx = some_tx(&model, SMALL);
    let hash = model.chain.hash(model.chain.at(HUGE).unwrap());
    let block = |query: &str| format!("/runes/v1/blocks/{HUGE}/activity{query}");
    let token = |rest: &str| format!("/ordinals/v1/brc-20/tokens/{rest}");
    let transaction = format!("/runes/v1/transactions/{tx}/activity");
    for (one, other) in [
        (block(""), block("").replace(&HUGE.to_string(), &hash)),
        (
            block(""),
            format!("/runes/blocks/00{HUGE}/activity?foo=bar&Limit=1&limit[]=1"),
        ),
        (block("?limit=10"), block("?limit=010")),
        (block("?limit=1"), block("?%6Cimit=1&offset=-0")),
        (
            transaction.clone(),
            transaction + "?operation_type=nonsense",
        ),
        (token("ordi"), token("%6FRDI?x=1").replace("/v1", "")),
        (token("%C3%A0%C3%A9"), token("%C3%80%c3%89")),
        (token("a%2Fb%3F"), token("%61%2fb%3f")),
        ("/runes/v1/".to_owned(), "/runes/v1".to_owned()),
        ("/runes/v1/".to_owned(), "/runes/".to_owned()),
        ("/ordinals/v1/".to_owned(), "/ordinals/v1".to_owned()),
    ] {
        let (first, second) = (get(&model, &one), get(&model, &other));
        assert_eq!(text(&first), text(&second), "{one} and {other}");
        assert_eq!(second.status, 200, "{other}");
    }
}

#[test]
fn a_filter_changes_the_total_on_blocks_only() {
    let model = model();
    let of = |query: &str| json(&model, &format!("/runes/v1/blocks/{HUGE}/activity{query}"));
    let mut sum = 0;
    for operation in OPERATIONS {
        let page = of(&format!("?operation_type={operation}&limit=60"));
        sum += page["total"].as_u64().unwrap();
        let mut items = page["results"].as_array().unwrap().iter();
        assert!(items.all(|item| item["operation"] == operation));
    }
    assert_eq!(Some(sum), of("")["total"].as_u64());
    assert_eq!(of("?offset=100000")["total"], 0, "a page past the end");
    let target = format!("/runes/v1/transactions/{}/activity", some_tx(&model, HUGE));
    let plain = json(&model, &target);
    assert_eq!(json(&model, &(target + "?operation_type=etching")), plain);
    assert!(
        plain["total"].as_u64() > Some(60),
        "the first transaction here is a wide one"
    );
}

#[test]
fn the_tip_decides_the_entity_tag() {
    let mut model = model();
    let hash = tip_hash(&model);
    let quoted = format!("\"{hash}\"");
    let unknown = format!("/runes/v1/transactions/{}/activity", "f".repeat(64));
    for (target, tag, status) in [
        ("/runes/v1/blocks/840001/activity?limit=1", &*quoted, 304),
        (&unknown, &quoted, 304),
        ("/runes/v1/", &format!("W/{quoted}"), 304),
        ("/runes/v1/", &hash, 304),
        ("/runes/v1/", &format!("\"abc\", W/{quoted}"), 304),
        ("/runes/v1/", "*", 200),
        ("/runes/v1/", "\"1\"", 200),
        ("/runes/v1/transactions/xyz/activity", &quoted, 400),
        ("/ordinals/v1/", &quoted, 200),
    ] {
        assert_eq!(conditional(&model, target, tag), status, "{target} {tag}");
    }
    // After a block with an earlier timestamp than its parent, body and height change and the tag does not.
    while (model.chain.tip().unwrap().height - SMALL) % 11 != 4 {
        model.chain.push();
    }
    let token = "/ordinals/v1/brc-20/tokens/pepe";
    let before = get(&model, token);
    let tag = before.headers["etag"].to_str().unwrap();
    model.chain.push();
    let after = get(&model, token);
    assert_eq!(after.headers["etag"], tag);
    assert_ne!(after.body, before.body);
    assert_eq!(
        conditional(&model, token, tag),
        304,
        "a false 304, as recorded"
    );
    assert_eq!(
        conditional(&model, "/ordinals/v1/brc-20/tokens/nope", tag),
        304
    );
}

#[test]
fn a_reorg_moves_transactions_and_empties_the_orphan() {
    let mut model = model();
    let orphan = tip_hash(&model);
    let height = model.chain.tip().unwrap().height;
    let parent = model.chain.hash(model.chain.at(height - 1).unwrap());
    let by_tx = format!(
        "/runes/v1/transactions/{}/activity",
        some_tx(&model, height)
    );
    let by_height = format!("/runes/v1/blocks/{height}/activity");
    let before = json(&model, &by_tx);
    model.chain.rollback(1);
    for target in [&by_tx, &by_height] {
        assert_eq!(json(&model, target)["total"], 0);
        assert_eq!(get(&model, target).headers["etag"], format!("\"{parent}\""));
    }
    model.chain.apply();
    model.chain.push();
    let of_orphan = json(&model, &format!("/runes/v1/blocks/{orphan}/activity"));
    assert_eq!(of_orphan["total"], 0);
    let after = json(&model, &by_tx);
    assert_eq!(after["total"], before["total"]);
    for member in ["block_hash", "tx_index", "timestamp"] {
        let at = |body: &Value| body["results"][0]["location"][member].clone();
        assert_ne!(at(&after), at(&before), "{member}");
    }
}

#[test]
fn the_rest_of_the_api_follows_the_tip_and_an_inscription_its_block() {
    let mut model = model();
    let inscription = format!("/ordinals/v1/inscriptions/{}i0", some_tx(&model, SMALL));
    let rest = [
        "/runes/v1/etchings?limit=5",
        "/runes/v1/etchings/SLOWTRAINNORTH",
        "/runes/v1/etchings/UNCOMMONGOODS/holders?offset=5",
        "/ordinals/v1/brc-20/balances/bc1q",
        &inscription,
        &format!("{inscription}/content"),
    ];
    let of = |model: &Model| {
        let answers = rest.iter().map(|target| get(model, target));
        answers.collect::<Vec<_>>()
    };
    let before = of(&model);
    model.chain.push();
    let after = of(&model);
    for (target, (before, after)) in rest.iter().zip(before.iter().zip(&after)) {
        assert_eq!(before.status, 200, "{target}");
        let is_inscription = target.contains("inscriptions");
        assert_eq!(before.body == after.body, is_inscription, "{target}");
        let tags = [before, after].map(|answer| &answer.headers["etag"]);
        assert_eq!(tags[0] == tags[1], is_inscription, "{target}");
        if target.starts_with("/runes") {
            assert_eq!(tags[1], &format!("\"{}\"", tip_hash(&model)), "{target}");
        }
        let media = before.headers["content-type"].to_str().unwrap();
        assert_eq!(media.starts_with("image/"), target.ends_with("content"));
    }
    assert_eq!(
        json(&model, rest[0])["results"].as_array().unwrap().len(),
        5
    );
    assert_eq!(json(&model, rest[2])["offset"], 5);
    for unknown in ["/runes/v1/etchings/NONE", "/ordinals/v1/inscriptions/0i0"] {
        assert_eq!(get(&model, unknown).status, 404, "{unknown}");
    }
    let request = Request::get(rest[0]).body(()).unwrap().into_parts().0;
    assert_eq!(model.answer(Api::Ordinals, &request).status, 404);
}
