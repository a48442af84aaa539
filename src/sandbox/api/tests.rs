//! The model against recorded answers of the reference upstream: header fields, statuses and methods.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;

use super::{Answer, Api, Model, Settings};

mod errors;
mod lists;
mod tags;

/// A small block.
const SMALL: u32 = 840_000;

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
    model.answer(Api::Both, &Method::GET, target, &HeaderMap::new())
}

fn conditional(model: &Model, target: &str, tag: &str) -> Answer {
    let tag = HeaderValue::from_str(tag).expect("a field value");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("if-none-match"), tag)]);
    model.answer(Api::Both, &Method::GET, target, &headers)
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
fn status_has_version_and_height() {
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
fn other_methods_get_404_and_options_a_preflight_answer() {
    let model = model();
    let target = "/ordinals/v1/brc-20/tokens/ordi";
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::TRACE,
    ] {
        let answer = model.answer(Api::Both, &method, target, &HeaderMap::new());
        let body = format!(
            "{{\"message\":\"Route {method}:{target} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        );
        assert_eq!((answer.status.as_u16(), text(&answer)), (404, body));
    }
    for (target, status) in [(target, 200), ("/runes/v1/transactions/xyz/activity", 400)] {
        let head = model.answer(Api::Both, &Method::HEAD, target, &HeaderMap::new());
        let whole = get(&model, target);
        assert_eq!(head.status, status);
        assert!(head.body.is_empty());
        assert_eq!(head.headers, whole.headers);
    }
    let preflight = |fields: &[(&'static str, &'static str)]| {
        let field = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        model.answer(
            Api::Both,
            &Method::OPTIONS,
            "/nope",
            &fields.iter().map(field).collect(),
        )
    };
    let origin = ("origin", "https://app.example");
    let wanted = ("access-control-request-method", "GET");
    let fields = ("access-control-request-headers", "x-api-key");
    for refused in [preflight(&[]), preflight(&[origin])] {
        assert_eq!(
            (refused.status.as_u16(), text(&refused).as_str()),
            (400, "Invalid Preflight Request")
        );
        assert_eq!(refused.headers["content-type"], "text/plain");
    }
    let granted = preflight(&[origin, wanted, fields]);
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
    assert_eq!(names(&preflight(&[origin, wanted])), expected);
}
