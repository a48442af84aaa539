//! Browser origins: those that the configuration lists, and those of a token.

use http::Method;

use super::{line, new, ways};
use crate::support::{Answer, Gateway, Setup, TOKEN, Upstream};

const A: &str = "https://a.example";
const B: &str = "https://b.example";
const PREVIEW: &str = "https://pr-1.previews.c.example";

fn allowed(answer: &Answer) -> Option<&str> {
    answer.field("access-control-allow-origin")
}

fn varies_by_origin(answer: &Answer) -> bool {
    let lines = answer.all("vary").join(", ");
    lines.split(", ").any(|name| name == "origin")
}

#[tokio::test]
async fn a_token_with_origins_is_for_their_pages() {
    let upstream = Upstream::start();
    let (listed, free) = (new(), new());
    let lines = line(
        "listed",
        &listed,
        ", origins = [\"https://a.example\", \"https://*.c.example\"]",
    ) + &line("free", &free, "");
    // The origins of the configuration; origin; token; status; allowed origin
    let rows = [
        ("", Some(A), &listed, 200, Some(A)),
        // The refusal does not depend on the token's origins, as for an invalid token.
        ("", Some(B), &listed, 403, Some("*")),
        ("", Some("null"), &listed, 403, Some("*")),
        ("", Some(PREVIEW), &listed, 200, Some(PREVIEW)),
        ("", Some("https://c.example"), &listed, 403, Some("*")),
        ("", None, &listed, 200, None),
        ("", Some(B), &free, 200, Some("*")),
        // Both lists must have it.
        ("\"https://a.example\"", Some(A), &listed, 200, Some(A)),
        ("\"https://a.example\"", Some(PREVIEW), &listed, 200, None),
        (
            "\"https://*.c.example\"",
            Some(PREVIEW),
            &listed,
            200,
            Some(PREVIEW),
        ),
        (
            "\"https://*.c.example\"",
            Some(PREVIEW),
            &free,
            200,
            Some(PREVIEW),
        ),
        ("\"https://*.c.example\"", Some(A), &free, 200, None),
        ("\"*\"", Some(B), &free, 200, Some("*")),
        (
            "\"https://a.example\", \"*\"",
            Some(A),
            &listed,
            200,
            Some(A),
        ),
        ("\"https://a.example\"", Some(B), &free, 200, None),
        ("\"https://a.example\"", Some(B), &listed, 403, None),
        ("\"https://a.example\"", Some(A), &free, 200, Some(A)),
    ];
    for (global, origin, token, status, expected) in rows {
        let config = format!("answers.cors_origins = [{global}]");
        let setup = Setup::before(&upstream).config(&config);
        let gateway = setup.client_tokens(&lines).start();
        let [(name, value), _] = ways(token);
        let mut fields = vec![(name, &*value)];
        fields.extend(origin.map(|origin| ("origin", origin)));
        // A miss, then a hit.
        for _ in 0..2 {
            let answer = gateway.request("GET", TOKEN, &fields).await;
            assert_eq!(answer.status, status, "{global} {origin:?}");
            assert_eq!(allowed(&answer), expected, "{global} {origin:?}");
            let is_listed = !global.is_empty() && !global.contains("\"*\"")
                || status == 200 && std::ptr::eq(token, &listed);
            assert_eq!(varies_by_origin(&answer), is_listed, "{global} {origin:?}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_origin_reaches_no_upstream() {
    let upstream = Upstream::start();
    let token = new();
    let routes = "[[route]]\nname = \"any\"\npath = \"/{rest:*}\"\nmethods = [\"*\"]\nheaders = \"all\"\ncache.mode = \"off\"\n";
    let setup = Setup::before(&upstream).config(routes);
    let gateway: Gateway = setup
        .client_tokens(&line("web", &token, ", origins = [\"https://a.example\"]"))
        .start();
    let [(name, value), _] = ways(&token);
    for method in [Method::GET, Method::POST, Method::OPTIONS] {
        let fields = [(name, &*value), ("origin", B)];
        let answer = gateway.request(method.as_str(), "/a", &fields).await;
        assert_eq!(answer.status, 403, "{method}");
        assert_eq!(answer.must("content-type"), "application/problem+json");
    }
    assert_eq!(upstream.count(), 0);
}
