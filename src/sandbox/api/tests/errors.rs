//! Error answers, as recorded.

use super::{get, model, text};

const NO_BLOCK: &str = "params/block must match pattern \\\"^[0-9]+$\\\", params/block must match pattern \
                        \\\"^[0]{8}[a-fA-F0-9]{56}$\\\", params/block must match a schema in anyOf";
const NO_TX: &str = "params/tx_id must match pattern \\\"^[a-fA-F0-9]{64}$\\\"";

#[test]
fn validation_errors_have_the_recorded_messages() {
    let model = model();
    let block = |query: &str| format!("/runes/v1/blocks/840000/activity?{query}");
    let one = |name: &str, what: &str| format!("querystring/{name} must be {what}");
    let constants = "querystring/operation_type must be equal to constant, ".repeat(5)
        + "querystring/operation_type must match a schema in anyOf";
    for (target, message) in [
        (block("limit=0"), one("limit", ">= 1")),
        (block("limit=-1"), one("limit", ">= 1")),
        (block("limit=%20"), one("limit", ">= 1")),
        (block("limit=61"), one("limit", "<= 60")),
        (block("limit=Infinity"), one("limit", "<= 60")),
        (block("limit=abc"), one("limit", "integer")),
        (block("limit=1.5"), one("limit", "integer")),
        (block("limit="), one("limit", "integer")),
        (block("limit"), one("limit", "integer")),
        (block("limit=null"), one("limit", "integer")),
        (block("limit=1&limit=1"), one("limit", "integer")),
        (block("limit=1&limit=2"), one("limit", "integer")),
        (block("limit=1;offset=3"), one("limit", "integer")),
        (block("offset=abc"), one("offset", "integer")),
        (block("offset=-1"), one("offset", ">= 0")),
        (block("limit=0&offset=-1"), one("offset", ">= 0")),
        (block("operation_type=foo"), constants.clone()),
        (block("operation_type="), constants.clone()),
        (block("operation_type=burn&operation_type=burn"), constants),
        (
            "/runes/v1/blocks/latest/activity".to_owned(),
            NO_BLOCK.to_owned(),
        ),
        (
            "/runes/v1/blocks/-1/activity".to_owned(),
            NO_BLOCK.to_owned(),
        ),
        (
            "/runes/v1/blocks/%00/activity".to_owned(),
            NO_BLOCK.to_owned(),
        ),
        (
            format!("/runes/v1/blocks/{}/activity?limit=0", "f".repeat(64)),
            NO_BLOCK.to_owned(),
        ),
        (
            "/runes/v1/transactions/xyz/activity".to_owned(),
            NO_TX.to_owned(),
        ),
        (
            format!("/runes/v1/transactions/{}/activity", "a".repeat(63)),
            NO_TX.to_owned(),
        ),
        (
            format!("/runes/v1/transactions/0x{}/activity", "a".repeat(64)),
            NO_TX.to_owned(),
        ),
    ] {
        let answer = get(&model, &target);
        let expected =
            format!("{{\"statusCode\":400,\"error\":\"Bad Request\",\"message\":\"{message}\"}}");
        assert_eq!(
            (answer.status.as_u16(), text(&answer)),
            (400, expected),
            "{target}"
        );
        assert!(!answer.database);
    }
}

#[test]
fn other_errors_have_the_recorded_bodies() {
    let model = model();
    let long = |count: usize| format!("/ordinals/v1/brc-20/tokens/{}", "a".repeat(count));
    let no_route = |target: &str| {
        format!(
            "{{\"message\":\"Route GET:{target} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        )
    };
    let undecodable = |target: &str| {
        format!(
            "{{\"error\":\"Bad Request\",\"message\":\"'{target}' is not a valid url component\",\"statusCode\":400}}"
        )
    };
    let database = |code: &str, message: &str| {
        format!(
            "{{\"statusCode\":500,\"code\":\"{code}\",\"error\":\"Internal Server Error\",\"message\":\"{message}\"}}"
        )
    };
    let far = |offset: &str| format!("/runes/v1/blocks/840001/activity?limit=1&offset={offset}");
    let range = |text: &str| {
        database(
            "22003",
            &format!("value \\\"{text}\\\" is out of range for type bigint"),
        )
    };
    let syntax = |text: &str| {
        database(
            "22P02",
            &format!("invalid input syntax for type bigint: \\\"{text}\\\""),
        )
    };
    let tx = "/runes/v1/transactions/".to_owned() + &"a".repeat(64);
    let unreadable = "{\"error\":\"Bad Request\",\"message\":\"Client Error\",\"statusCode\":400}";
    let not_found = "{\"error\":\"Not found\"}";
    for (target, status, body) in [
        ("/nope".to_owned(), 404, no_route("/nope")),
        ("/nope?a=1".to_owned(), 404, no_route("/nope?a=1")),
        ("//runes/v1/".to_owned(), 404, no_route("//runes/v1/")),
        ("/Runes/v1/".to_owned(), 404, no_route("/Runes/v1/")),
        (
            "/runes/v1/blocks/../blocks/1/activity".to_owned(),
            404,
            no_route("/runes/v1/blocks/../blocks/1/activity"),
        ),
        (tx.clone(), 404, no_route(&tx)),
        (
            format!("{tx}/activity/"),
            404,
            no_route(&format!("{tx}/activity/")),
        ),
        (
            tx.replacen("ns/", "ns%2F", 1) + "/activity",
            404,
            no_route(&(tx.replacen("ns/", "ns%2F", 1) + "/activity")),
        ),
        (long(101), 404, no_route(&long(101))),
        (long(100), 404, not_found.to_owned()),
        (
            "/ordinals/v1/brc-20/tokens/".to_owned(),
            404,
            not_found.to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/ordi%20".to_owned(),
            404,
            not_found.to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%256Frdi".to_owned(),
            404,
            not_found.to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%2E%2E".to_owned(),
            404,
            not_found.to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/ordi/".to_owned(),
            404,
            no_route("/ordinals/v1/brc-20/tokens/ordi/"),
        ),
        (
            "/ordinals/v1/brc-20/tokens/a/b%3F".to_owned(),
            404,
            no_route("/ordinals/v1/brc-20/tokens/a/b%3F"),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%zz".to_owned(),
            400,
            undecodable("/ordinals/v1/brc-20/tokens/%zz"),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%FF%FE".to_owned(),
            400,
            undecodable("/ordinals/v1/brc-20/tokens/%FF%FE"),
        ),
        (
            "/ordinals/v1/brc-20/tokens/🐸".to_owned(),
            400,
            unreadable.to_owned(),
        ),
        (
            format!("/runes/v1/?x={}", "a".repeat(20_000)),
            400,
            unreadable.to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%00".to_owned(),
            500,
            database(
                "22021",
                "invalid byte sequence for encoding \\\"UTF8\\\": 0x00",
            ),
        ),
        (
            far("9223372036854775807"),
            500,
            range("9223372036854776000"),
        ),
        (
            far("9223372036854775808"),
            500,
            range("9223372036854776000"),
        ),
        (far("1e20"), 500, range("100000000000000000000")),
        (far("1e21"), 500, syntax("1e+21")),
        (far("Infinity"), 500, syntax("Infinity")),
    ] {
        let answer = get(&model, &target);
        assert_eq!(
            (answer.status.as_u16(), text(&answer)),
            (status, body),
            "{target}"
        );
    }
    let timed_out = model.timed_out("/runes/v1/blocks/1/activity", true);
    assert_eq!(
        text(&timed_out),
        database("57014", "canceling statement due to statement timeout")
    );
    assert_eq!(
        timed_out.headers["etag"],
        get(&model, "/runes/v1/").headers["etag"]
    );
    assert!(
        !model
            .timed_out("/runes/v1/blocks/1/activity", false)
            .headers
            .contains_key("cache-control")
    );
}
