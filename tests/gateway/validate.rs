//! Routes and parameters, end to end: invalid requests never reach the upstream,
//! and valid ones reach it in one spelling. All that is invalid stands in `route::tests` and
//! `validate::tests`.

mod methods;

use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, TOKEN, TX, Upstream};

const HASH: &str = "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5";

#[tokio::test]
async fn an_invalid_parameter_is_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let page = |query: &str| format!("{BLOCK}?{query}");
    let tx = |id: &str| format!("/runes/v1/transactions/{id}/activity");
    let block = |id: &str| format!("/runes/v1/blocks/{id}/activity");
    let ticker = |text: &str| format!("/ordinals/v1/brc-20/tokens/{text}");
    let rows = [
        ("limit", page("limit=0")),
        ("limit", page("limit=61")),
        ("limit", page("limit=%2B5")),
        ("limit", page("limit")),
        ("limit", page("limit=5&%6Cimit=5")),
        ("limit", format!("{TX}?limit=61")),
        ("offset", page("offset=9007199254740992")),
        ("offset", page("offset=1&x=y&offset=2")),
        ("operation_type", page("operation_type=MINT")),
        ("tx_id", tx(&HASH[..63])),
        ("tx_id", tx(&HASH.replace('3', "g"))),
        ("block", block("x")),
        ("block", block("4294967296")),
        ("block", block(&"1".repeat(64))),
        ("ticker", ticker(&"x".repeat(101))),
        ("ticker", ticker("%00")),
        ("ticker", ticker("%ED%A0%80")),
        ("ticker", ticker("or%2")),
    ];
    for (parameter, target) in rows {
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        let problem = answer.problem();
        assert_eq!(problem["parameter"], parameter, "{target}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        let start = format!("{parameter} must be ");
        assert!(detail.starts_with(&start), "{detail}");
        assert!(problem["received"].is_string(), "{problem}");
        assert_ne!(problem["allowed"], "", "{problem}");
        assert_eq!(problem["error"], problem["detail"]);
    }
    assert_eq!(upstream.targets(), Vec::<String>::new());
}

#[tokio::test]
async fn unknown_paths_get_404() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let unknown = "
        / /nowhere // /runes/v1/ /runes/v1/blocks /runes/v1/blocks/840000/activity/
        //runes/v1/blocks/840000/activity /runes/v1/../v1/blocks/840000/activity
        /runes/v1/%2e%2e/v1/blocks/840000/activity /Runes/v1/blocks/840000/activity
        /runes/v1/blocks/840000%2Factivity /ordinals/v1/brc-20/tokens/
        /ordinals/v1/brc-20/tokens/or/di /ordinals/v1/brc-20/tokens/.%2e
        /metrics /healthz /readyz /status /history /explain /purge /sandbox/examples";
    for target in unknown.split_whitespace() {
        let answer = gateway.get(target).await;
        assert_eq!(answer.status, 404, "{target}");
        let problem = answer.problem();
        assert!(problem["error"].as_str().unwrap().contains("/openapi.json"));
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn spellings_of_one_request_share_a_stored_response() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let upper = HASH.to_uppercase();
    // Canonical requests, each with its spellings.
    let table = format!(
        r#"
{BLOCK_CANONICAL}
  /runes/v1/blocks/840000/activity
  /runes/v1/blocks/840000/activity?offset=0&limit=20
  /runes/v1/blocks/840000/activity?limit=%32%30
  /runes/v1/blocks/840000/activity?x=y&x=z&limit=20&utm_source=a
  /runes/v1/blocks/840000/activity?LIMIT=7
  /runes/v1/blocks/0000840000/activity
  /runes/v1/blocks/%38%34%30%30%30%30/activity
/runes/v1/blocks/840000/activity?limit=1&offset=7&operation_type=mint
  /runes/v1/blocks/840000/activity?operation_type=mint&offset=7&limit=1
/runes/v1/blocks/{HASH}/activity?limit=20&offset=0
  /runes/v1/blocks/{HASH}/activity
  /runes/v1/blocks/{upper}/activity
/runes/v1/transactions/{HASH}/activity?limit=20&offset=0
  /runes/v1/transactions/{upper}/activity?operation_type=mint
{TOKEN}
  {TOKEN}
  /ordinals/v1/brc-20/tokens/oRdI?limit=5
  /ordinals/v1/brc-20/tokens/%6F%72%44%49
/ordinals/v1/brc-20/tokens/a%2Fb%3Fc%23d
  /ordinals/v1/brc-20/tokens/A%2fB%3fC%23D
# Beyond ASCII the database's locale folds, and only it knows how.
/ordinals/v1/brc-20/tokens/%C3%84%F0%9F%8D%95
  /ordinals/v1/brc-20/tokens/%c3%84%f0%9f%8d%95
# Decoded once: what this decodes to is a ticker, not an escape.
/ordinals/v1/brc-20/tokens/%252f
  /ordinals/v1/brc-20/tokens/%252F
# A semicolon is one of the ticker's characters, and goes up encoded:
# the reference cuts a path at a plain one.
/ordinals/v1/brc-20/tokens/a%3Bb
  /ordinals/v1/brc-20/tokens/A;B
"#
    );
    let mut expected: Vec<String> = Vec::new();
    for line in table.lines().filter(|line| line.contains("/v1/")) {
        let Some(spelling) = line.strip_prefix("  ") else {
            expected.push(line.to_owned());
            continue;
        };
        let answer = gateway.get(spelling).await;
        assert_eq!(answer.status, 200, "{spelling}: {}", answer.text());
        assert_eq!(
            answer.json()["asked"],
            *expected[expected.len() - 1],
            "{spelling}"
        );
        assert_eq!(upstream.targets(), expected, "{spelling}");
    }
    assert_eq!(expected.len(), 9);
}

#[tokio::test]
async fn a_route_of_ones_own_has_typed_parameters() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        r#"
            [[route]]
            name = "own"
            path = "/a/{x}"
            upstream_path = "/b/{x}/c"
            methods = ["GET"]
            params.x = { type = "string", pattern = "[a-z]{1,5}" }
            query.n = { type = "integer", min = 2, max = 7 }
            cache = { mode = "override", times = { 2xx = "5s" } }
            "#,
    );
    assert_eq!(gateway.get("/a/abc").await.json()["asked"], "/b/abc/c");
    assert_eq!(
        gateway.get("/a/abc?n=3").await.json()["asked"],
        "/b/abc/c?n=3"
    );
    for (target, parameter) in [
        ("/a/abc?n=8", "n"),
        ("/a/abcdef", "x"),
        ("/a/ab1", "x"),
        ("/a/AB", "x"),
    ] {
        let answer = gateway.get(target).await;
        assert_eq!(answer.status, 400, "{target}");
        assert_eq!(answer.problem()["parameter"], parameter, "{target}");
    }
    let head = gateway.request("HEAD", "/a/abc", &[]).await;
    assert_eq!(head.status, 405);
    assert_eq!(head.must("allow"), "GET, OPTIONS");
    assert_eq!(gateway.get(TOKEN).await.status, 404);
    assert_eq!(upstream.targets(), ["/b/abc/c", "/b/abc/c?n=3"]);
}
