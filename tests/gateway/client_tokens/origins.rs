//! Browser origins: those that the configuration lists, and those of a token.

use super::{line, new, ways};
use crate::support::{Setup, TOKEN, Upstream};

const A: &str = "https://a.example";
const B: &str = "https://b.example";
const PREVIEW: &str = "https://pr-1.previews.c.example";

#[tokio::test]
async fn a_token_with_origins_is_for_their_pages() {
    let upstream = Upstream::start();
    let (listed, free) = (new(), new());
    let origins = ", origins = [\"https://a.example\", \"https://*.c.example\"]";
    let lines = line("listed", &listed, origins) + &line("free", &free, "");
    let (only_a, only_c) = ("\"https://a.example\"", "\"https://*.c.example\"");
    // The origins of the configuration; the request's; whether its token has some; status;
    // allowed origin
    let rows = [
        ("", Some(A), true, 200, Some(A)),
        // The refusal does not depend on the token's origins, as for an invalid token.
        ("", Some(B), true, 403, Some("*")),
        ("", Some("null"), true, 403, Some("*")),
        ("", Some(PREVIEW), true, 200, Some(PREVIEW)),
        ("", Some("https://c.example"), true, 403, Some("*")),
        ("", None, true, 200, None),
        ("", Some(B), false, 200, Some("*")),
        // Both lists must have it.
        (only_a, Some(A), true, 200, Some(A)),
        (only_a, Some(PREVIEW), true, 200, None),
        (only_a, Some(B), true, 403, None),
        (only_c, Some(PREVIEW), true, 200, Some(PREVIEW)),
        (only_c, Some(PREVIEW), false, 200, Some(PREVIEW)),
        (only_c, Some(A), false, 200, None),
        ("\"*\"", Some(B), false, 200, Some("*")),
        ("\"https://a.example\", \"*\"", Some(A), true, 200, Some(A)),
    ];
    for (global, origin, is_listed, status, expected) in rows {
        let config = format!("answers.cors_origins = [{global}]");
        let setup = Setup::before(&upstream).config(&config);
        let gateway = setup.client_tokens(&lines).start();
        let [(name, value), _] = ways(if is_listed { &listed } else { &free });
        let mut fields = vec![(name, &*value)];
        fields.extend(origin.map(|origin| ("origin", origin)));
        // A miss, then a hit.
        for _ in 0..2 {
            let answer = gateway.request("GET", TOKEN, &fields).await;
            assert_eq!(answer.status, status, "{global} {origin:?}");
            let allowed = answer.field("access-control-allow-origin");
            assert_eq!(allowed, expected, "{global} {origin:?}");
            let varies = answer.all("vary").join(", ").contains("origin");
            let depends =
                !global.is_empty() && !global.contains("\"*\"") || status == 200 && is_listed;
            assert_eq!(varies, depends, "{global} {origin:?}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_origin_reaches_no_upstream() {
    let upstream = Upstream::start();
    let token = new();
    let setup = Setup::before(&upstream).config(crate::support::respect::ALL);
    let line = line("web", &token, ", origins = [\"https://a.example\"]");
    let gateway = setup.client_tokens(&line).start();
    let [(name, value), _] = ways(&token);
    for method in ["GET", "POST", "OPTIONS"] {
        let fields = [(name, &*value), ("origin", B)];
        let answer = gateway.request(method, "/a", &fields).await;
        assert_eq!(answer.status, 403, "{method}");
        assert_eq!(answer.must("content-type"), "application/problem+json");
    }
    assert_eq!(upstream.count(), 0);
}
