//! Purge requests that are refused purge nothing.

use super::post;
use crate::support::{Client, Gateway, Setup, Upstream};

#[tokio::test]
async fn an_invalid_purge_purges_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().start();
    let many = "tag=height:1&".repeat(101);
    for (query, words) in [
        ("", "nothing"),
        ("url=", "url must be"),
        ("url=%ff", "percent-encoded"),
        ("url=nowhere", "\"nowhere\" came"),
        ("url=/nowhere", "/runes/v1/blocks/{block}/activity"),
        ("url=ftp://x/runes/v1/blocks/1/activity", "http"),
        ("url=/runes/v1/blocks/x/activity", "\"x\" came"),
        ("url=/runes/v1/blocks/1/activity?limit=99", "\"99\" came"),
        (
            "url=/runes/v1/blocks/1/activity?limit=5&offset=3",
            "offset=3",
        ),
        ("url=/openapi.json", "/openapi.json"),
        ("route=", "route must be"),
        ("route=nobody", "brc20-token, rune-transaction-activity"),
        ("tag=nothing", "block:HASH"),
        ("tag=what:1", "\"what:1\" came"),
        ("tag=block:840000", "64 hexadecimal digits"),
        ("tag=tx:840000", "64 hexadecimal digits"),
        ("tag=height:", "height:N+"),
        ("tag=height:-1", "height:N+"),
        ("tag=height:%2B1", "height:N+"),
        ("tag=height:1%2B%2B", "height:N+"),
        // A plus that is not encoded is a blank.
        ("tag=height:1+", "height:N+"),
        ("tag=height:4294967296", "height:N+"),
        ("tag=ticker:", "a ticker"),
        ("tag=ticker:%0a", "a ticker"),
        ("all=false", "\"false\" came"),
        ("every", "url=URL, route=NAME, tag=TAG or all"),
        ("URL=/x", "url=URL, route=NAME, tag=TAG or all"),
        ("all&tag=height:1", "all and tag"),
        ("tag=height:1&route=brc20-token", "tag and route"),
        ("tag=height:1&tag=what:1", "\"what:1\" came"),
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
    for (target, body, words) in [
        ("/purge", "all", "JSON object"),
        ("/purge", "[]", "JSON object"),
        ("/purge", "{}", "nothing"),
        ("/purge", "{\"url\":[]}", "nothing"),
        ("/purge", "{\"all\":false}", "\"false\" came"),
        ("/purge", "{\"tag\":1}", "a text or a list of texts"),
        ("/purge", "{\"every\":true}", "unknown field `every`"),
        (
            "/purge",
            "{\"tag\":\"a\",\"tag\":\"height:1\"}",
            "duplicate",
        ),
        (
            "/purge",
            "{\"all\":true,\"tag\":\"height:1\"}",
            "tag and all",
        ),
        ("/purge", "{\"url\":\"/nowhere\"}", "\"/nowhere\" came"),
        ("/purge?all", "{\"all\":true}", "a query and a body"),
    ] {
        let answer = post(&gateway, target, body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{body}: {detail}");
    }
    let long = format!("{{\"url\":\"{}\"}}", "x".repeat(70_000));
    let answer = post(&gateway, "/purge", &long).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(gateway.figure("/chain/purges"), 0);
}

#[tokio::test]
async fn a_page_in_a_browser_can_neither_purge_nor_reload() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let own = format!("http://{}", gateway.admin);
    let mut client = Client::connect(gateway.admin).await;
    for fields in [
        &[("origin", "https://elsewhere.example")][..],
        &[("origin", "null")],
        &[("origin", &own), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "")],
    ] {
        let answer = client.request("POST", "/reload", fields).await;
        assert_eq!(answer.status, 403, "{fields:?}");
        let answer = client.request("POST", "/purge?all", fields).await;
        assert_eq!(answer.status, 403, "{fields:?}");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains(fields[0].0) || detail.contains("origin"),
            "{detail}"
        );
    }
    assert_eq!(gateway.figure("/chain/purges"), 0);
    assert_eq!(gateway.figure("/reload/done"), 0);
    for site in ["same-origin", "none"] {
        let fields = [("sec-fetch-site", site)];
        let answer = client.request("POST", "/purge?all", &fields).await;
        assert_eq!(answer.status, 200, "{site}");
    }
}

#[tokio::test]
async fn without_the_token_nothing_is_purged() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).token("secret").start();
    for fields in [&[][..], &[("authorization", "Bearer wrong")]] {
        let mut client = Client::connect(gateway.admin).await;
        let answer = client.request("POST", "/purge?all", fields).await;
        assert_eq!(answer.status, 401);
    }
    let mut client = Client::connect(gateway.admin).await;
    let fields = [("authorization", "Bearer secret")];
    let answer = client.request("POST", "/purge?all", &fields).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["number"], 1, "no purge came before");
}
