//! Tables of what was recorded of the reference upstream, asked of the model.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use super::{Answer, Model, Settings};

/// A small block, the block of a thousand transactions, and one without items.
const SMALL: u32 = 840_000;
const HUGE: u32 = 840_023;
const EMPTY: u32 = 840_003;

const NO_BLOCK: &str = "params/block must match pattern \\\"^[0-9]+$\\\", params/block must match pattern \
                        \\\"^[0]{8}[a-fA-F0-9]{56}$\\\", params/block must match a schema in anyOf";
const NO_TX: &str = "params/tx_id must match pattern \\\"^[a-fA-F0-9]{64}$\\\"";

fn sized(blocks: u32, max_limit: u32) -> Model {
    Model::new(&Settings {
        blocks,
        max_limit,
        ..Settings::default()
    })
}

fn model() -> Model {
    sized(100, 60)
}

fn get(model: &Model, target: &str) -> Answer {
    model.answer(&Method::GET, target, &HeaderMap::new())
}

fn conditional(model: &Model, target: &str, tag: &str) -> Answer {
    let tag = HeaderValue::from_str(tag).expect("a field value");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("if-none-match"), tag)]);
    model.answer(&Method::GET, target, &headers)
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).expect("UTF-8")
}

fn json(model: &Model, target: &str) -> Value {
    let answer = get(model, target);
    assert_eq!(answer.status, 200, "{target}: {}", text(&answer));
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn names(answer: &Answer) -> Vec<&str> {
    answer.headers.keys().map(HeaderName::as_str).collect()
}

fn some_tx(model: &Model, height: u32) -> String {
    let block = model.chain.at(height).expect("a block");
    model.chain.tx_id(model.chain.placements(block)[0].key)
}

#[test]
fn header_fields_come_in_the_recorded_order() {
    let model = model();
    let tag = model.chain.hash(model.chain.tip().expect("a tip"));
    let full = [
        "vary",
        "access-control-allow-origin",
        "cache-control",
        "etag",
        "content-type",
        "content-length",
    ];
    let untagged = [
        "vary",
        "access-control-allow-origin",
        "content-type",
        "content-length",
    ];
    for (target, status, fields) in [
        ("/runes/v1/", 200, &full[..]),
        ("/runes/v1/blocks/840000/activity", 200, &full),
        ("/ordinals/v1/brc-20/tokens/nope", 404, &full),
        ("/ordinals/v1/brc-20/tokens/%00", 500, &full),
        ("/runes/v1/blocks/latest/activity", 400, &untagged),
        ("/nope", 404, &untagged),
        ("/%zz", 400, &["content-type", "content-length"]),
    ] {
        let answer = get(&model, target);
        assert_eq!(
            (answer.status.as_u16(), names(&answer)),
            (status, fields.to_vec()),
            "{target}"
        );
        assert_eq!(
            answer.headers["content-length"],
            answer.body.len().to_string()
        );
    }
    let matched = conditional(&model, "/runes/v1/", &tag);
    assert_eq!(
        (matched.status.as_u16(), names(&matched)),
        (304, full[..3].to_vec())
    );
    assert_eq!(
        get(&model, "/runes/v1/").headers["cache-control"],
        "public, no-cache, must-revalidate"
    );
    assert_eq!(
        get(&model, "/runes/v1/").headers["content-type"],
        "application/json; charset=utf-8"
    );
}

#[test]
fn what_is_wrong_is_said_in_the_recorded_words() {
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

#[test]
fn unknown_things_are_empty_lists() {
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
fn spellings_of_one_page_agree() {
    let model = model();
    let tx = some_tx(&model, SMALL);
    let first = tx.as_bytes()[0];
    let hash = model.chain.hash(model.chain.at(HUGE).expect("a block"));
    for (one, other) in [
        (
            format!("/runes/v1/blocks/{HUGE}/activity"),
            format!("/runes/v1/blocks/{hash}/activity"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity"),
            format!("/runes/blocks/00{HUGE}/activity?foo=bar&Limit=1&limit[]=1"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=10"),
            format!("/runes/v1/blocks/{HUGE}/activity?limit=1e1"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=10"),
            format!("/runes/v1/blocks/{HUGE}/activity?limit=010"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=16"),
            format!("/runes/v1/blocks/{HUGE}/activity?limit=0x10"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=5"),
            format!("/runes/v1/blocks/{HUGE}/activity?limit=+5"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=5"),
            format!("/runes/v1/blocks/{HUGE}/activity?limit=5%C2%A0"),
        ),
        (
            format!("/runes/v1/blocks/{HUGE}/activity?limit=1"),
            format!("/runes/v1/blocks/{HUGE}/activity?%6Cimit=1&offset=-0"),
        ),
        (
            format!("/runes/v1/transactions/{tx}/activity"),
            format!(
                "/runes/v1/transactions/%{first:02x}{}/activity?operation_type=nonsense",
                &tx[1..]
            ),
        ),
        (
            "/ordinals/v1/brc-20/tokens/ordi".to_owned(),
            "/ordinals/brc-20/tokens/%6FRDI?x=1".to_owned(),
        ),
        (
            "/ordinals/v1/brc-20/tokens/%C3%A0%C3%A9".to_owned(),
            "/ordinals/v1/brc-20/tokens/%C3%80%c3%89".to_owned(),
        ),
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
    for ticker in ["a%2Fb%3F", "a%20b%25", "%F0%9F%90%B8", "%f0%9f%90%b8"] {
        assert_eq!(
            get(&model, &format!("/ordinals/v1/brc-20/tokens/{ticker}")).status,
            200,
            "{ticker}"
        );
    }
    assert_eq!(
        get(&model, "/ordinals/v1/brc-20/tokens/a+b%25").status,
        404,
        "a plus is no blank in a path"
    );
}

#[test]
fn status_tells_version_and_height() {
    let model = model();
    assert_eq!(
        text(&get(&model, "/runes/v1/")),
        "{\"server_version\":\"bitcoin-indexer-runes-api v3.0.2 (develop:c7585f4d)\",\"status\":\"ready\",\
         \"block_height\":840099}"
    );
    assert!(text(&get(&model, "/ordinals/v1/")).contains("bitcoin-indexer-ordinals-api"));
    // An index that is still empty has neither tag nor height.
    let empty = sized(0, 60);
    let answer = get(&empty, "/runes/v1/");
    assert!(text(&answer).ends_with("\"status\":\"ready\"}"));
    assert!(!answer.headers.contains_key("etag") && !answer.headers.contains_key("cache-control"));
    assert!(text(&get(&empty, "/runes/v1/blocks/840000/activity")).contains("\"total\":0"));
}

#[test]
fn pages_cut_one_list() {
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
        "transactions descend and lie together"
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
    for operation in super::Operation::ALL {
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

#[test]
fn the_tip_decides_every_tag() {
    let mut model = model();
    let hash = model.chain.hash(model.chain.tip().expect("a tip"));
    let unknown = format!("/runes/v1/transactions/{}/activity", "f".repeat(64));
    for (target, tag, status) in [
        (
            "/runes/v1/blocks/840001/activity?limit=1",
            format!("\"{hash}\""),
            304,
        ),
        (unknown.as_str(), format!("\"{hash}\""), 304),
        ("/runes/v1/", format!("W/\"{hash}\""), 304),
        ("/runes/v1/", hash.clone(), 304),
        ("/runes/v1/", format!("\"abc\", W/\"{hash}\""), 304),
        ("/runes/v1/", "*".to_owned(), 200),
        ("/runes/v1/", "\"1\"".to_owned(), 200),
        (
            "/runes/v1/transactions/xyz/activity",
            format!("\"{hash}\""),
            400,
        ),
        ("/ordinals/v1/", format!("\"{hash}\""), 200),
        (
            "/runes/v1/blocks/1/activity?offset=Infinity",
            format!("\"{hash}\""),
            304,
        ),
    ] {
        assert_eq!(
            conditional(&model, target, &tag).status,
            status,
            "{target} {tag}"
        );
    }
    // A block with an earlier timestamp than its parent: body and height move, the tag does not.
    while model
        .chain
        .tip()
        .expect("a tip")
        .height
        .wrapping_sub(840_000)
        % 11
        != 4
    {
        model.chain.push();
    }
    let token = "/ordinals/v1/brc-20/tokens/pepe";
    let (before, status) = (get(&model, token), get(&model, "/ordinals/v1/"));
    let tag = before.headers["etag"].to_str().expect("a tag").to_owned();
    model.chain.push();
    let after = get(&model, token);
    assert_eq!(after.headers["etag"], tag);
    assert_ne!(after.body, before.body);
    assert_ne!(get(&model, "/ordinals/v1/").body, status.body);
    assert_eq!(
        conditional(&model, token, &tag).status,
        304,
        "the recorded false 304"
    );
    assert_eq!(
        conditional(&model, "/ordinals/v1/brc-20/tokens/nope", &tag).status,
        304
    );
    // The token indexer commits first: the body moves, everything else waits.
    model.chain.push();
    let before = get(&model, token);
    model.tokens_ahead = true;
    assert_ne!(get(&model, token).body, before.body);
    assert_eq!(get(&model, token).headers, before.headers);
}

#[test]
fn a_reorg_moves_transactions_and_empties_the_orphan() {
    let mut model = model();
    let tip = *model.chain.tip().expect("a tip");
    let orphan = model.chain.hash(&tip);
    let parent = model
        .chain
        .hash(model.chain.at(tip.height - 1).expect("a parent"));
    let tx = some_tx(&model, tip.height);
    let by_tx = format!("/runes/v1/transactions/{tx}/activity");
    let by_height = format!("/runes/v1/blocks/{}/activity", tip.height);
    let before = json(&model, &by_tx);
    model.chain.rollback(1);
    for target in [&by_tx, &by_height] {
        assert_eq!(json(&model, target)["total"], 0);
        assert_eq!(get(&model, target).headers["etag"], format!("\"{parent}\""));
    }
    model.chain.apply();
    model.chain.push();
    assert_eq!(
        json(&model, &format!("/runes/v1/blocks/{orphan}/activity"))["total"],
        0
    );
    let after = json(&model, &by_tx);
    assert_eq!(after["total"], before["total"]);
    for member in ["block_hash", "tx_index", "timestamp"] {
        let at = |body: &Value| body["results"][0]["location"][member].clone();
        assert_ne!(at(&after), at(&before), "{member}");
    }
}

#[test]
fn other_methods_are_no_routes_and_options_is_a_preflight() {
    let model = model();
    let target = "/ordinals/v1/brc-20/tokens/ordi";
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::TRACE,
    ] {
        let answer = model.answer(&method, target, &HeaderMap::new());
        let body = format!(
            "{{\"message\":\"Route {method}:{target} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        );
        assert_eq!((answer.status.as_u16(), text(&answer)), (404, body));
    }
    for (target, status, length) in [
        (target, 200, true),
        ("/runes/v1/transactions/xyz/activity", 400, true),
    ] {
        let head = model.answer(&Method::HEAD, target, &HeaderMap::new());
        let whole = get(&model, target);
        assert_eq!(head.status, status);
        assert_eq!(head.body.is_empty(), length);
        assert_eq!(head.headers, whole.headers);
    }
    let asked = |fields: &[(&'static str, &'static str)]| {
        let field = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        model.answer(
            &Method::OPTIONS,
            "/nope",
            &fields.iter().map(field).collect(),
        )
    };
    let origin = ("origin", "https://app.example");
    let wanted = ("access-control-request-method", "GET");
    let fields = ("access-control-request-headers", "x-api-key");
    for refused in [asked(&[]), asked(&[origin])] {
        assert_eq!(
            (refused.status.as_u16(), text(&refused).as_str()),
            (400, "Invalid Preflight Request")
        );
        assert_eq!(refused.headers["content-type"], "text/plain");
    }
    let granted = asked(&[origin, wanted, fields]);
    assert_eq!(granted.status, 204);
    let mut expected = vec![
        "vary",
        "access-control-allow-origin",
        "access-control-allow-methods",
        "access-control-allow-headers",
        "content-length",
    ];
    assert_eq!(names(&granted), expected);
    assert_eq!(
        granted.headers["vary"],
        "Origin, Access-Control-Request-Headers"
    );
    expected.remove(3);
    assert_eq!(names(&asked(&[origin, wanted])), expected);
}
