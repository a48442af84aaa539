//! Purge requests that are refused purge nothing.

use super::post;
use crate::support::{Setup, Upstream};

#[tokio::test]
async fn an_invalid_purge_purges_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().start();
    let many = "tag=height:1&".repeat(101);
    for (query, words) in [
        ("", "nothing"),
        ("url=%ff", "percent-encoded"),
        ("url=/nowhere", "/runes/v1/blocks/{block}/activity"),
        ("url=/runes/v1/blocks/x/activity", "\"x\" came"),
        (
            "url=/runes/v1/blocks/1/activity?limit=5&offset=3",
            "offset=3",
        ),
        ("url=/openapi.json", "/openapi.json"),
        ("route=nobody", "brc20-token, rune-transaction-activity"),
        ("tag=what:1", "\"what:1\" came"),
        ("tag=block:840000", "64 hexadecimal digits"),
        ("tag=height:4294967296", "height:N+"),
        // A plus that is not encoded is a blank.
        ("tag=height:1+", "height:N+"),
        ("tag=ticker:%0a", "a ticker"),
        ("all=false", "\"false\" came"),
        ("every", "url=URL, route=NAME, tag=TAG or all"),
        ("all&tag=height:1", "tag and all"),
        ("tag=height:1&route=brc20-token", "route and tag"),
        (&many, "at most 100"),
    ] {
        let answer = gateway.purge(query).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert_eq!(answer.must("content-type"), "application/problem+json");
        let problem = answer.json();
        assert_eq!(problem["status"], 400);
        assert_eq!(problem["error"], problem["detail"]);
        for member in ["parameter", "received", "allowed"] {
            assert!(problem[member].is_string(), "{query}: {problem}");
        }
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
    #[rustfmt::skip]
    let rows = [
        ("/purge", "all", "JSON object"),
        ("/purge", "{}", "nothing"),
        ("/purge", "{\"all\":false}", "nothing"),
        ("/purge", "{\"tag\":1}", "a list of texts"),
        ("/purge", "{\"every\":true}", "unknown field `every`"),
        ("/purge", "{\"tag\":[],\"tag\":[\"height:1\"]}", "duplicate"),
        ("/purge", "{\"all\":true,\"tag\":[\"height:1\"]}", "tag and all"),
        ("/purge?all", "{\"all\":true}", "a query and a body"),
    ];
    for (target, body, words) in rows {
        let answer = post(&gateway, target, body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{body}: {detail}");
    }
    let long = format!("{{\"url\":[\"{}\"]}}", "x".repeat(70_000));
    let answer = post(&gateway, "/purge", &long).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(gateway.figure("/chain/purges"), 0);
}
