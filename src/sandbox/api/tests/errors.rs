//! Error answers, as recorded.

use super::{get, model, text};

const NO_BLOCK: &str = "params/block must match pattern \\\"^[0-9]+$\\\", params/block must match pattern \
                        \\\"^[0]{8}[a-fA-F0-9]{56}$\\\", params/block must match a schema in anyOf";
const NO_TX: &str = "params/tx_id must match pattern \\\"^[a-fA-F0-9]{64}$\\\"";

#[test]
fn validation_errors_have_the_recorded_messages() {
    let model = model();
    let check = |target: &str, message: &str| {
        let answer = get(&model, target);
        let expected =
            format!("{{\"statusCode\":400,\"error\":\"Bad Request\",\"message\":\"{message}\"}}");
        let found = (answer.status.as_u16(), text(&answer));
        assert_eq!(found, (400, expected), "{target}");
        assert!(!answer.database);
    };
    for (query, message) in [
        ("limit=0", "limit must be >= 1"),
        ("limit=-1", "limit must be >= 1"),
        ("limit=%20", "limit must be >= 1"),
        ("limit=61", "limit must be <= 60"),
        ("limit=Infinity", "limit must be <= 60"),
        ("limit=abc", "limit must be integer"),
        ("limit=1.5", "limit must be integer"),
        ("limit=", "limit must be integer"),
        ("limit", "limit must be integer"),
        ("limit=null", "limit must be integer"),
        ("limit=1&limit=1", "limit must be integer"),
        ("limit=1&limit=2", "limit must be integer"),
        ("limit=1;offset=3", "limit must be integer"),
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
    let hash = format!("{}/activity?limit=0", "f".repeat(64));
    for rest in ["latest/activity", "-1/activity", "%00/activity", &hash] {
        check(&format!("/runes/v1/blocks/{rest}"), NO_BLOCK);
    }
    for id in ["xyz", &"a".repeat(63), &format!("0x{}", "a".repeat(64))] {
        check(&format!("/runes/v1/transactions/{id}/activity"), NO_TX);
    }
}

#[test]
fn other_errors_have_the_recorded_bodies() {
    let model = model();
    let check = |target: &str, status: u16, body: &str| {
        let answer = get(&model, target);
        let found = (answer.status.as_u16(), text(&answer));
        assert_eq!(found, (status, body.to_owned()), "{target}");
    };
    let token = |ticker: &str| format!("/ordinals/v1/brc-20/tokens/{ticker}");
    let tx = "/runes/v1/transactions/".to_owned() + &"a".repeat(64);
    for target in [
        "/nope",
        "/nope?a=1",
        "//runes/v1/",
        "/Runes/v1/",
        "/runes/v1/blocks/../blocks/1/activity",
        &tx,
        &format!("{tx}/activity/"),
        &(tx.replacen("ns/", "ns%2F", 1) + "/activity"),
        &token(&"a".repeat(101)),
        &token("ordi/"),
        &token("a/b%3F"),
    ] {
        let body = format!(
            "{{\"message\":\"Route GET:{target} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        );
        check(target, 404, &body);
    }
    for ticker in [&*"a".repeat(100), "", "ordi%20", "%256Frdi", "%2E%2E"] {
        check(&token(ticker), 404, "{\"error\":\"Not found\"}");
    }
    for target in [token("%zz"), token("%FF%FE")] {
        let body = format!(
            "{{\"error\":\"Bad Request\",\"message\":\"'{target}' is not a valid url component\",\"statusCode\":400}}"
        );
        check(&target, 400, &body);
    }
    for target in [token("🐸"), format!("/runes/v1/?x={}", "a".repeat(20_000))] {
        let body = "{\"error\":\"Bad Request\",\"message\":\"Client Error\",\"statusCode\":400}";
        check(&target, 400, body);
    }
    let database = |code: &str, message: &str| {
        format!(
            "{{\"statusCode\":500,\"code\":\"{code}\",\"error\":\"Internal Server Error\",\"message\":\"{message}\"}}"
        )
    };
    let zero = "invalid byte sequence for encoding \\\"UTF8\\\": 0x00";
    check(&token("%00"), 500, &database("22021", zero));
    for (offset, text) in [
        ("9223372036854775807", "9223372036854776000"),
        ("9223372036854775808", "9223372036854776000"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("Infinity", "Infinity"),
    ] {
        let target = format!("/runes/v1/blocks/840001/activity?limit=1&offset={offset}");
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let (code, message) = match is_plain {
            true => (
                "22003",
                format!("value \\\"{text}\\\" is out of range for type bigint"),
            ),
            false => (
                "22P02",
                format!("invalid input syntax for type bigint: \\\"{text}\\\""),
            ),
        };
        check(&target, 500, &database(code, &message));
    }
    let timed_out = |with_tag| model.timed_out("/runes/v1/blocks/1/activity", with_tag);
    assert_eq!(
        text(&timed_out(true)),
        database("57014", "canceling statement due to statement timeout")
    );
    let status = get(&model, "/runes/v1/");
    assert_eq!(timed_out(true).headers["etag"], status.headers["etag"]);
    assert!(!timed_out(false).headers.contains_key("cache-control"));
}
