//! Routes and parameters, end to end: invalid requests never reach the upstream,
//! and valid ones reach it in one spelling.

mod methods;

use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, TOKEN, TX, Upstream};

const HASH: &str = "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5";

#[tokio::test]
async fn an_invalid_parameter_is_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let hash_of = |digit: &str, rest: &str| HASH.replace(digit, rest);
    let rows = format!(
        r"
        limit {BLOCK}?limit= 0 61 -1 1e1 0x10 010 +5 %2B5 %205 5%20 5.0 _ ten 5%00 %zz 5,6 %EF%BC%95 99999999999999999999999
        limit {BLOCK}? limit
        limit {TX}?limit= 61
        offset {BLOCK}?offset= -1 9007199254740992 9223372036854775808 18446744073709551616 00 _
        offset {TX}?offset= x
        limit {BLOCK}? limit=5&limit=5 limit=5&limit=6 limit=5&%6Cimit=5
        offset {BLOCK}? offset=1&x=y&offset=2
        operation_type {BLOCK}?operation_type= transfer MINT _ mint&operation_type=burn
        tx_id /runes/v1/transactions/*/activity abc {short} {HASH}0 {no_hex} 840000 00%2F00
        block /runes/v1/blocks/*/activity x -1 1.5 1e5 0x1 %20840000 4294967296 00000840000 99999999999 latest
        block /runes/v1/blocks/*/activity {short} {no_hex} {seven_zeros} {digits}
        ticker /ordinals/v1/brc-20/tokens/ %00 or%0Adi %7F %C2%85 %FF %C3 %ED%A0%80 or%2 or% or%gg
        ticker /ordinals/v1/brc-20/tokens/ {long} {pizzas}
        ",
        short = &HASH[..63],
        no_hex = hash_of("3", "g"),
        // A block's hash begins with eight zeros at the least.
        seven_zeros = format!("{:0>64}", "a".repeat(57)),
        digits = "1".repeat(64),
        long = "x".repeat(101),
        // The reference counts as UTF-16 does: each of these is two.
        pizzas = "%F0%9F%8D%95".repeat(51),
    );
    // A parameter, where its values stand, and values, of which `_` is empty.
    let rows = rows
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|words| !words.is_empty()).flat_map(|words| {
        let fill = |value: &&str| match words[1].contains('*') {
            true => words[1].replace('*', value),
            false => format!("{}{}", words[1], value.replace('_', "")),
        };
        let keep = |value: &&str| value.contains("operation_type") || value.contains("limit");
        let target = |value: &&str| {
            if keep(value) {
                format!("{}{value}", words[1])
            } else {
                fill(value)
            }
        };
        words[2..]
            .iter()
            .map(|value| (words[0].to_owned(), target(value)))
            .collect::<Vec<_>>()
    });
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
        / /nowhere // /runes/v1 /runes/v1/ /runes/v1/blocks /runes/v1/blocks/840000
        /runes/v1/blocks/840000/ /runes/v1/blocks//activity /runes/v1/blocks/840000/activity/
        /runes/v1/blocks/840000/activity/x //runes/v1/blocks/840000/activity
        /runes//v1/blocks/840000/activity /runes/v1/../v1/blocks/840000/activity
        /runes/v1/./blocks/840000/activity /runes/v1/%2e%2e/v1/blocks/840000/activity
        /Runes/v1/blocks/840000/activity /runes/v1/blocks/840000/Activity
        /runes/v1/blocks/840000%2Factivity /runes/v1/blocks/840000/activity%2F
        /runes%2Fv1/blocks/840000/activity /blocks/840000/activity /brc-20/tokens/ordi
        /ordinals/v1/brc-20/tokens /ordinals/v1/brc-20/tokens/ /ordinals/v1/brc-20/tokens/or/di
        /ordinals/v1/brc-20/tokens/ordi/ /ordinals/v1/brc-20/tokens/. /ordinals/v1/brc-20/tokens/..
        /ordinals/v1/brc-20/tokens/%2E /ordinals/v1/brc-20/tokens/%2e%2E
        /ordinals/v1/brc-20/tokens/.%2e /runes/v1/blocks/../activity
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
    let zeros = format!("{:0>64}", "1".repeat(56));
    let (pizzas, accents) = ("%F0%9F%8D%95".repeat(50), "%C3%A9".repeat(100));
    let (lower_pizzas, lower_accents) = (pizzas.to_lowercase(), accents.to_lowercase());
    // Canonical requests, each with its spellings.
    let table = format!(
        r#"
{BLOCK_CANONICAL}
  /runes/v1/blocks/840000/activity
  /runes/v1/blocks/840000/activity?
  /runes/v1/blocks/840000/activity?&&
  /runes/v1/blocks/840000/activity?limit=20
  /runes/v1/blocks/840000/activity?offset=0
  /runes/v1/blocks/840000/activity?offset=0&limit=20
  /runes/v1/blocks/840000/activity?%6Cimit=20
  /runes/v1/blocks/840000/activity?limit=%32%30
  /runes/v1/blocks/840000/activity?x=y
  /runes/v1/blocks/840000/activity?x=y&x=z&limit=20&utm_source=a
  /runes/v1/blocks/840000/activity?LIMIT=7
  /runes/v1/blocks/840000/activity?limit%5B%5D=7
  /runes/v1/blocks/0840000/activity
  /runes/v1/blocks/0000840000/activity
  /runes/v1/blocks/%38%34%30%30%30%30/activity
/runes/v1/blocks/0/activity?limit=20&offset=0
  /runes/v1/blocks/0/activity
  /runes/v1/blocks/0000000000/activity
/runes/v1/blocks/4294967295/activity?limit=60&offset=9007199254740991
  /runes/v1/blocks/4294967295/activity?offset=9007199254740991&limit=60
/runes/v1/blocks/840000/activity?limit=1&offset=7&operation_type=mint
  /runes/v1/blocks/840000/activity?operation_type=mint&offset=7&limit=1
  /runes/v1/blocks/840000/activity?limit=1&offset=7&operation_type=%6Dint
/runes/v1/blocks/{HASH}/activity?limit=20&offset=0
  /runes/v1/blocks/{HASH}/activity
  /runes/v1/blocks/{upper}/activity
# 64 digits are a hash, not a height.
/runes/v1/blocks/{zeros}/activity?limit=20&offset=0
  /runes/v1/blocks/{zeros}/activity
/runes/v1/transactions/{HASH}/activity?limit=20&offset=0
  /runes/v1/transactions/{HASH}/activity
  /runes/v1/transactions/{upper}/activity
# Declared on blocks alone, so it is an unknown one here.
  /runes/v1/transactions/{upper}/activity?operation_type=mint
{TOKEN}
  {TOKEN}
  /ordinals/v1/brc-20/tokens/ORDI
  /ordinals/v1/brc-20/tokens/oRdI?limit=5
  /ordinals/v1/brc-20/tokens/%6F%72%44%49
/ordinals/v1/brc-20/tokens/a%2Fb%3Fc%23d
  /ordinals/v1/brc-20/tokens/a%2Fb%3Fc%23d
  /ordinals/v1/brc-20/tokens/A%2fB%3fC%23D
# Beyond ASCII the database's locale folds, and only it knows how.
/ordinals/v1/brc-20/tokens/%C3%84%F0%9F%8D%95
  /ordinals/v1/brc-20/tokens/%c3%84%f0%9f%8d%95
/ordinals/v1/brc-20/tokens/%C3%A4
  /ordinals/v1/brc-20/tokens/%C3%A4
# Decoded once: what this decodes to is a ticker, not an escape.
/ordinals/v1/brc-20/tokens/%252f
  /ordinals/v1/brc-20/tokens/%252F
/ordinals/v1/brc-20/tokens/a%2Bb%20c
  /ordinals/v1/brc-20/tokens/a+b%20c
  /ordinals/v1/brc-20/tokens/a%2bb%20c
# A semicolon is one of the ticker's characters, and goes up encoded:
# the reference cuts a path at a plain one.
/ordinals/v1/brc-20/tokens/a%3Bb
  /ordinals/v1/brc-20/tokens/a;b
  /ordinals/v1/brc-20/tokens/A;B
  /ordinals/v1/brc-20/tokens/a%3bb
  /ordinals/v1/brc-20/tokens/a%3Bb
/ordinals/v1/brc-20/tokens/%3B
  /ordinals/v1/brc-20/tokens/;
/ordinals/v1/brc-20/tokens/{pizzas}
  /ordinals/v1/brc-20/tokens/{lower_pizzas}
/ordinals/v1/brc-20/tokens/{accents}
  /ordinals/v1/brc-20/tokens/{lower_accents}
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
    assert_eq!(expected.len(), 17);
}

#[tokio::test]
async fn a_route_may_refuse_unknown_parameters() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        r#"
            [[route]]
            name = "strict"
            path = "/a/{x}"
            upstream_path = "/b/{x}/c"
            methods = ["GET"]
            strict_query = true
            params.x = { type = "string", max_length = 5, pattern = "[a-z]+" }
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
        ("/a/abc?m=3", "query"),
        ("/a/abc?n=3&x", "query"),
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
