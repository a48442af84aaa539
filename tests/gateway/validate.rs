//! Routes and parameters, end to end: invalid requests never reach the upstream,
//! and valid ones reach it in one spelling.

mod methods;

use crate::support::client::request;
use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, Setup, TOKEN, TX, Upstream};

const HASH: &str = "0000000000000000000320283a032748cef8227873ff4872689bf23f1cda83a5";

/// Sends a request as raw bytes, since some targets are nothing that a client
/// library would send.
async fn get(gateway: &Gateway, target: &str) -> crate::support::Answer {
    let mut client = gateway.client().await;
    client.send(request("GET", target, &[])).await;
    client.answer("GET").await
}

#[tokio::test]
async fn an_invalid_parameter_is_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let tx = |id: &str| format!("/runes/v1/transactions/{id}/activity");
    let block = |id: &str| format!("/runes/v1/blocks/{id}/activity");
    let ticker = |text: &str| format!("/ordinals/v1/brc-20/tokens/{text}");
    let page = |query: &str| format!("{BLOCK}?{query}");
    let g_in_hash = HASH.replace('3', "g");
    let seven_zeros = format!("{:0>64}", "a".repeat(57));
    let digits = "1".repeat(64);
    let long = "x".repeat(101);
    let rows: Vec<(&str, String)> = vec![
        // Integers: digits alone, within their bounds.
        ("limit", page("limit=0")),
        ("limit", page("limit=61")),
        ("limit", page("limit=-1")),
        ("limit", page("limit=1e1")),
        ("limit", page("limit=0x10")),
        ("limit", page("limit=010")),
        ("limit", page("limit=+5")),
        ("limit", page("limit=%2B5")),
        ("limit", page("limit=%205")),
        ("limit", page("limit=5%20")),
        ("limit", page("limit=5.0")),
        ("limit", page("limit=")),
        ("limit", page("limit")),
        ("limit", page("limit=ten")),
        ("limit", page("limit=5%00")),
        ("limit", page("limit=%zz")),
        ("limit", page("limit=5,6")),
        ("limit", page("limit=%EF%BC%95")),
        ("limit", page("limit=99999999999999999999999")),
        ("offset", page("offset=-1")),
        ("offset", page("offset=9007199254740992")),
        ("offset", page("offset=9223372036854775808")),
        ("offset", page("offset=18446744073709551616")),
        ("offset", page("offset=00")),
        ("offset", page("offset=")),
        // A parameter twice, however it is spelt.
        ("limit", page("limit=5&limit=5")),
        ("limit", page("limit=5&limit=6")),
        ("limit", page("limit=5&%6Cimit=5")),
        ("offset", page("offset=1&x=y&offset=2")),
        // Enumerations.
        ("operation_type", page("operation_type=transfer")),
        ("operation_type", page("operation_type=MINT")),
        ("operation_type", page("operation_type=")),
        (
            "operation_type",
            page("operation_type=mint&operation_type=burn"),
        ),
        // Transactions.
        ("tx_id", tx("abc")),
        ("tx_id", tx(&HASH[..63])),
        ("tx_id", tx(&format!("{HASH}0"))),
        ("tx_id", tx(&g_in_hash)),
        ("tx_id", tx("840000")),
        ("tx_id", tx(&format!("{}%2F{}", &HASH[..30], &HASH[..33]))),
        ("limit", format!("{TX}?limit=61")),
        ("offset", format!("{TX}?offset=x")),
        // Blocks.
        ("block", block("x")),
        ("block", block("-1")),
        ("block", block("1.5")),
        ("block", block("1e5")),
        ("block", block("0x1")),
        ("block", block("%20840000")),
        ("block", block("4294967296")),
        ("block", block("00000840000")),
        ("block", block("99999999999")),
        ("block", block(&HASH[..63])),
        ("block", block(&g_in_hash)),
        // A block's hash begins with eight zeros at the least.
        ("block", block(&seven_zeros)),
        ("block", block(&digits)),
        ("block", block("latest")),
        // Tickers.
        ("ticker", ticker(&long)),
        // The reference counts as UTF-16 does: each of these is two.
        ("ticker", ticker(&"%F0%9F%8D%95".repeat(51))),
        ("ticker", ticker("%00")),
        ("ticker", ticker("or%0Adi")),
        ("ticker", ticker("%7F")),
        ("ticker", ticker("%C2%85")),
        ("ticker", ticker("%FF")),
        ("ticker", ticker("%C3")),
        ("ticker", ticker("%ED%A0%80")),
        ("ticker", ticker("or%2")),
        ("ticker", ticker("or%")),
        ("ticker", ticker("or%gg")),
    ];
    for (parameter, target) in rows {
        let answer = get(&gateway, &target).await;
        assert_eq!(answer.status, 400, "{target}: {}", answer.text());
        let problem = answer.problem();
        assert_eq!(problem["parameter"], parameter, "{target}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with(&format!("{parameter} must be ")),
            "{detail}"
        );
        assert!(problem["received"].is_string(), "{problem}");
        assert!(
            !problem["allowed"].as_str().unwrap().is_empty(),
            "{problem}"
        );
        assert_eq!(problem["error"], problem["detail"]);
    }
    assert_eq!(upstream.targets(), Vec::<String>::new());
}

#[tokio::test]
async fn unknown_paths_get_404() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for target in [
        "/",
        "/nowhere",
        "//",
        "/runes/v1",
        "/runes/v1/",
        "/runes/v1/blocks",
        "/runes/v1/blocks/840000",
        "/runes/v1/blocks/840000/",
        "/runes/v1/blocks//activity",
        "/runes/v1/blocks/840000/activity/",
        "/runes/v1/blocks/840000/activity/x",
        "//runes/v1/blocks/840000/activity",
        "/runes//v1/blocks/840000/activity",
        "/runes/v1/../v1/blocks/840000/activity",
        "/runes/v1/./blocks/840000/activity",
        "/runes/v1/%2e%2e/v1/blocks/840000/activity",
        "/Runes/v1/blocks/840000/activity",
        "/runes/v1/blocks/840000/Activity",
        "/runes/v1/blocks/840000%2Factivity",
        "/runes/v1/blocks/840000/activity%2F",
        "/runes%2Fv1/blocks/840000/activity",
        "/blocks/840000/activity",
        "/brc-20/tokens/ordi",
        "/ordinals/v1/brc-20/tokens",
        "/ordinals/v1/brc-20/tokens/",
        "/ordinals/v1/brc-20/tokens/or/di",
        "/ordinals/v1/brc-20/tokens/ordi/",
        "/ordinals/v1/brc-20/tokens/.",
        "/ordinals/v1/brc-20/tokens/..",
        "/ordinals/v1/brc-20/tokens/%2E",
        "/ordinals/v1/brc-20/tokens/%2e%2E",
        "/ordinals/v1/brc-20/tokens/.%2e",
        "/runes/v1/blocks/../activity",
        "/metrics",
        "/healthz",
        "/readyz",
        "/status",
        "/purge",
        "/sandbox/examples",
    ] {
        let answer = get(&gateway, target).await;
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
    let by_hash = format!("/runes/v1/blocks/{HASH}/activity?limit=20&offset=0");
    let of_tx = format!("/runes/v1/transactions/{HASH}/activity?limit=20&offset=0");
    let eight_zeros = format!("{:0>64}", "1".repeat(56));
    let pages = |query: &str| format!("/runes/v1/blocks/840000/activity{query}");
    let rows: Vec<(String, Vec<String>)> = vec![
        (
            BLOCK_CANONICAL.to_owned(),
            vec![
                pages(""),
                pages("?"),
                pages("?&&"),
                pages("?limit=20"),
                pages("?offset=0"),
                pages("?offset=0&limit=20"),
                pages("?%6Cimit=20"),
                pages("?limit=%32%30"),
                pages("?x=y"),
                pages("?x=y&x=z&limit=20&utm_source=a"),
                pages("?LIMIT=7"),
                pages("?limit%5B%5D=7"),
                "/runes/v1/blocks/0840000/activity".to_owned(),
                "/runes/v1/blocks/0000840000/activity".to_owned(),
                "/runes/v1/blocks/%38%34%30%30%30%30/activity".to_owned(),
            ],
        ),
        (
            "/runes/v1/blocks/0/activity?limit=20&offset=0".to_owned(),
            vec![
                "/runes/v1/blocks/0/activity".to_owned(),
                "/runes/v1/blocks/0000000000/activity".to_owned(),
            ],
        ),
        (
            "/runes/v1/blocks/4294967295/activity?limit=60&offset=9007199254740991".to_owned(),
            vec![
                "/runes/v1/blocks/4294967295/activity?offset=9007199254740991&limit=60".to_owned(),
            ],
        ),
        (
            "/runes/v1/blocks/840000/activity?limit=1&offset=7&operation_type=mint".to_owned(),
            vec![
                pages("?operation_type=mint&offset=7&limit=1"),
                pages("?limit=1&offset=7&operation_type=%6Dint"),
            ],
        ),
        (
            by_hash,
            vec![
                format!("/runes/v1/blocks/{HASH}/activity"),
                format!("/runes/v1/blocks/{upper}/activity"),
            ],
        ),
        (
            // 64 digits are a hash, not a height.
            format!("/runes/v1/blocks/{eight_zeros}/activity?limit=20&offset=0"),
            vec![format!("/runes/v1/blocks/{eight_zeros}/activity")],
        ),
        (
            of_tx,
            vec![
                format!("/runes/v1/transactions/{HASH}/activity"),
                format!("/runes/v1/transactions/{upper}/activity"),
                // Declared on blocks alone, so it is an unknown one here.
                format!("/runes/v1/transactions/{upper}/activity?operation_type=mint"),
            ],
        ),
        (
            TOKEN.to_owned(),
            vec![
                TOKEN.to_owned(),
                "/ordinals/v1/brc-20/tokens/ORDI".to_owned(),
                "/ordinals/v1/brc-20/tokens/oRdI?limit=5".to_owned(),
                "/ordinals/v1/brc-20/tokens/%6F%72%44%49".to_owned(),
            ],
        ),
        (
            "/ordinals/v1/brc-20/tokens/a%2Fb%3Fc%23d".to_owned(),
            vec![
                "/ordinals/v1/brc-20/tokens/a%2Fb%3Fc%23d".to_owned(),
                "/ordinals/v1/brc-20/tokens/A%2fB%3fC%23D".to_owned(),
            ],
        ),
        (
            // Beyond ASCII the database's locale folds, and only it knows how.
            "/ordinals/v1/brc-20/tokens/%C3%84%F0%9F%8D%95".to_owned(),
            vec!["/ordinals/v1/brc-20/tokens/%c3%84%f0%9f%8d%95".to_owned()],
        ),
        (
            "/ordinals/v1/brc-20/tokens/%C3%A4".to_owned(),
            vec!["/ordinals/v1/brc-20/tokens/%C3%A4".to_owned()],
        ),
        (
            // Decoded once: what this decodes to is a ticker, not an escape.
            "/ordinals/v1/brc-20/tokens/%252f".to_owned(),
            vec!["/ordinals/v1/brc-20/tokens/%252F".to_owned()],
        ),
        (
            "/ordinals/v1/brc-20/tokens/a%2Bb%20c".to_owned(),
            vec![
                "/ordinals/v1/brc-20/tokens/a+b%20c".to_owned(),
                "/ordinals/v1/brc-20/tokens/a%2bb%20c".to_owned(),
            ],
        ),
        (
            // A semicolon is one of the ticker's characters, and goes up encoded:
            // the reference cuts a path at a plain one.
            "/ordinals/v1/brc-20/tokens/a%3Bb".to_owned(),
            vec![
                "/ordinals/v1/brc-20/tokens/a;b".to_owned(),
                "/ordinals/v1/brc-20/tokens/A;B".to_owned(),
                "/ordinals/v1/brc-20/tokens/a%3bb".to_owned(),
                "/ordinals/v1/brc-20/tokens/a%3Bb".to_owned(),
            ],
        ),
        (
            "/ordinals/v1/brc-20/tokens/%3B".to_owned(),
            vec!["/ordinals/v1/brc-20/tokens/;".to_owned()],
        ),
        (
            format!("/ordinals/v1/brc-20/tokens/{}", "%F0%9F%8D%95".repeat(50)),
            vec![format!(
                "/ordinals/v1/brc-20/tokens/{}",
                "%f0%9f%8d%95".repeat(50)
            )],
        ),
        (
            format!("/ordinals/v1/brc-20/tokens/{}", "%C3%A9".repeat(100)),
            vec![format!(
                "/ordinals/v1/brc-20/tokens/{}",
                "%c3%a9".repeat(100)
            )],
        ),
    ];
    let mut expected = Vec::new();
    for (canonical, spellings) in rows {
        expected.push(canonical.clone());
        for spelling in spellings {
            let answer = get(&gateway, &spelling).await;
            assert_eq!(answer.status, 200, "{spelling}: {}", answer.text());
            assert_eq!(answer.json()["asked"], *canonical, "{spelling}");
            assert_eq!(upstream.targets(), expected, "{spelling}");
        }
    }
}

#[tokio::test]
async fn a_semicolon_in_a_string_is_encoded_and_in_a_tail_stays_as_it_is() {
    let upstream = Upstream::start();
    let routes = r#"
        [[route]]
        name = "string"
        path = "/names/{name}"
        params.name = { type = "string" }
        cache = { mode = "override", times = { 200 = "10s" } }
        [[route]]
        name = "tail"
        path = "/files/{rest:*}"
        cache = { mode = "override", times = { 200 = "10s" } }
    "#;
    let gateway = Setup::before(&upstream).config(routes).start();
    let mut expected = Vec::new();
    for (canonical, spellings) in [
        ("/names/a%3BB", &["/names/a;B", "/names/a%3bB"][..]),
        // All that is left of a path goes up as it came: these are two keys.
        ("/files/a;b/c", &["/files/a;b/c"]),
        ("/files/a%3Bb/c", &["/files/a%3Bb/c"]),
        ("/files/a%3bb/c", &["/files/a%3bb/c"]),
    ] {
        expected.push(canonical);
        for spelling in spellings {
            let answer = get(&gateway, spelling).await;
            assert_eq!(answer.json()["asked"], canonical, "{spelling}");
            assert_eq!(upstream.targets(), expected, "{spelling}");
        }
    }
    for dots in ["/names/..;a", "/files/..;a/b", "/files/a/..%3b/b"] {
        assert_eq!(get(&gateway, dots).await.status, 400, "{dots}");
    }
    assert_eq!(upstream.targets(), expected);
}

#[tokio::test]
async fn how_many_zeros_a_hash_begins_with_is_configured() {
    let upstream = Upstream::start();
    let block = |hash: &str| format!("/runes/v1/blocks/{hash}/activity");
    let with_zeros = |zeros: usize| format!("{}{}", "0".repeat(zeros), "1".repeat(64 - zeros));
    for (zeros, pattern) in [
        (8, "^([0-9]{1,10}|0{8}[0-9a-fA-F]{56})$"),
        (0, "^([0-9]{1,10}|[0-9a-fA-F]{64})$"),
        (64, "^([0-9]{1,10}|0{64})$"),
    ] {
        let config = match zeros {
            8 => String::new(),
            _ => format!("chain.hash_zeros = {zeros}"),
        };
        let gateway = Setup::before(&upstream).config(&config).start();
        let enough = get(&gateway, &block(&with_zeros(zeros))).await;
        assert_eq!(enough.status, 200, "{zeros}: {}", enough.text());
        if zeros > 0 {
            let few = with_zeros(zeros - 1);
            let asked = upstream.count();
            let refused = get(&gateway, &block(&few)).await;
            assert_eq!(refused.status, 400, "{zeros}");
            let problem = refused.problem();
            assert_eq!(problem["parameter"], "block");
            assert_eq!(problem["received"], *few);
            let allowed = problem["allowed"].as_str().unwrap();
            let zeros = format!("64 hexadecimal digits with at least {zeros} leading zeros");
            assert!(allowed.contains(&zeros), "{allowed}");
            let explained = gateway.explain(&block(&few)).await;
            assert_eq!(explained["validates"], false);
            assert_eq!(explained["next"]["does"], "refuse with 400");
            assert_eq!(upstream.count(), asked);
        }
        let document = get(&gateway, "/openapi.json").await.json();
        let path = &document["paths"]["/runes/v1/blocks/{block}/activity"];
        let schema = &path["get"]["parameters"][0]["schema"]["pattern"];
        assert_eq!(schema, pattern);
    }
}

#[tokio::test]
async fn a_route_may_refuse_unknown_parameters() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config(
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
        )
        .start();
    assert_eq!(get(&gateway, "/a/abc").await.json()["asked"], "/b/abc/c");
    assert_eq!(
        get(&gateway, "/a/abc?n=3").await.json()["asked"],
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
        let answer = get(&gateway, target).await;
        assert_eq!(answer.status, 400, "{target}");
        assert_eq!(answer.problem()["parameter"], parameter, "{target}");
    }
    let head = gateway.request("HEAD", "/a/abc", &[]).await;
    assert_eq!(head.status, 405);
    assert_eq!(head.must("allow"), "GET, OPTIONS");
    assert_eq!(get(&gateway, TOKEN).await.status, 404);
    assert_eq!(upstream.targets(), ["/b/abc/c", "/b/abc/c?n=3"]);
}
