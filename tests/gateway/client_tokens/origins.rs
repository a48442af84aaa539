//! Browser origins: those that the configuration lists, and those of a token.

use http::Method;

use super::{line, manual, new, ways};
use crate::support::{Answer, Gateway, Reply, Setup, TOKEN, Upstream, token as ticker};

const A: &str = "https://a.example";
const B: &str = "https://b.example";

fn allowed(answer: &Answer) -> Option<&str> {
    answer.field("access-control-allow-origin")
}

fn varies_by_origin(answer: &Answer) -> bool {
    let lines = answer.all("vary").join(", ");
    lines.split(", ").any(|name| name == "origin")
}

#[tokio::test]
async fn every_answer_of_a_route_with_an_allow_list_varies_by_origin() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.target().as_str() {
        "/r/two" => Reply::with(200, "vary: accept\r\nvary: accept-language\r\ncache-control: max-age=9\r\ncontent-type: application/json\r\n", "{}"),
        target if target.ends_with("bad") => Reply::raw("garbage\r\n\r\n").close(),
        _ => Reply::json("{}"),
    });
    let config = "answers.cors_origins = [\"https://a.example\"]\n\
        [[route]]\nname = \"token\"\npath = \"/ordinals/v1/brc-20/tokens/{ticker}\"\nparams.ticker.type = \"ticker\"\ncache = { mode = \"override\", times = { 200 = \"1m\" } }\n\
        [[route]]\nname = \"r\"\npath = \"/r/{x}\"\nparams.x.type = \"string\"\ncache.mode = \"respect\"\n";
    let setup = Setup::before(&upstream).config(config);
    let known = new();
    let gateway = setup.client_tokens(&line("known", &known, "")).start();
    let etag = gateway.get(TOKEN).await.must("etag").to_owned();
    let unknown = &ways(&new())[1].1;
    let preflight = ("access-control-request-method", "GET");
    let rows = [
        ("GET", TOKEN, vec![], 200),
        ("HEAD", TOKEN, vec![], 200),
        ("GET", &ticker(7), vec![], 200),
        ("GET", TOKEN, vec![("if-none-match", &*etag)], 304),
        ("GET", "/r/one", vec![], 200),
        ("GET", "/r/two", vec![], 200),
        ("GET", "/r/two", vec![], 200),
        ("GET", "/r/bad", vec![], 502),
        ("GET", &ticker(0).replace("t0", "bad"), vec![], 200),
        ("GET", "/ordinals/v1/brc-20/tokens/%00", vec![], 400),
        ("DELETE", TOKEN, vec![], 405),
        ("OPTIONS", TOKEN, vec![preflight], 204),
        ("OPTIONS", TOKEN, vec![], 204),
        ("GET", "/nowhere", vec![], 404),
        ("GET", "/openapi.json", vec![], 200),
        ("GET", TOKEN, vec![("x-api-key", unknown)], 401),
    ];
    for (method, target, fields, status) in rows {
        for (origin, expected) in [(Some(A), Some(A)), (Some(B), None), (None, None)] {
            let mut fields = fields.clone();
            fields.extend(origin.map(|origin| ("origin", origin)));
            let answer = gateway.request(method, target, &fields).await;
            if !target.contains("bad") {
                assert_eq!(answer.status, status, "{method} {target}");
            }
            assert_eq!(allowed(&answer), expected, "{method} {target} {origin:?}");
            assert!(
                varies_by_origin(&answer),
                "{method} {target} {origin:?}: {answer:?}"
            );
            if target == "/r/two" {
                let vary = answer.all("vary").join(", ");
                assert_eq!(
                    vary, "origin, accept-encoding, accept, accept-language",
                    "the origin's own stay"
                );
            }
            let methods = answer.field("access-control-allow-methods");
            let is_preflight = fields.contains(&preflight) && expected.is_some();
            assert_eq!(
                methods.is_some(),
                is_preflight,
                "{method} {target} {origin:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_token_with_origins_is_for_their_pages() {
    let upstream = Upstream::start();
    let (listed, free) = (new(), new());
    let lines = line(
        "listed",
        &listed,
        "origins=https://a.example,https://c.example",
    ) + &line("free", &free, "");
    // The origins of the configuration; origin; token; status; allowed origin
    let rows = [
        ("", Some(A), &listed, 200, Some(A)),
        // The refusal does not depend on the token's origins, as for an invalid token.
        ("", Some(B), &listed, 403, Some("*")),
        ("", Some("null"), &listed, 403, Some("*")),
        ("", None, &listed, 200, None),
        ("", Some(B), &free, 200, Some("*")),
        // Both lists must have it.
        ("\"https://a.example\"", Some(A), &listed, 200, Some(A)),
        (
            "\"https://a.example\"",
            Some("https://c.example"),
            &listed,
            200,
            None,
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
            let is_listed = !global.is_empty() || status == 200 && std::ptr::eq(token, &listed);
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
        .client_tokens(&line("web", &token, "origins=https://a.example"))
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

#[tokio::test]
async fn a_page_of_another_origin_spends_nothing_of_the_tokens() {
    let upstream = Upstream::start();
    let token = new();
    let lines = line("web", &token, "origins=https://a.example");
    let gateway = manual(&upstream).client_tokens(&lines).start();
    let [(name, value), _] = ways(&token);
    // A visitor of another site, whose page has the token from this one's source.
    let mut visitor = gateway.client_from([127, 0, 0, 2]).await;
    for status in [403, 403, 403, 429] {
        let fields = [(name, &*value), ("origin", B)];
        let answer = visitor.request("GET", TOKEN, &fields).await;
        assert_eq!(answer.status, status);
    }
    let fields = [(name, &*value), ("origin", A)];
    let answer = visitor.request("GET", TOKEN, &fields).await;
    assert_eq!(answer.must("ratelimit"), "\"default\";r=2;t=1");
    assert_eq!(gateway.figure("/client_tokens/busiest/0/requests"), 1);
}
