//! What an operator wants to know: what the budget is used for, why requests go to another
//! endpoint, and which errors clients got.

use serde_json::json;

use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token};

/// A sample of `/metrics`, or 0.
async fn sample(gateway: &Gateway, name: &str) -> u64 {
    let metrics = gateway.admin("/metrics").await;
    let mut lines = metrics.text().lines();
    let value = lines.find_map(|line| line.strip_prefix(name));
    value.map_or(0, |value| value.trim().parse().unwrap())
}

#[tokio::test]
async fn what_the_budget_is_used_for_is_known_by_route_reason_and_client() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("upstream.retry = true")
        .manual()
        .start();
    // One client's misses, of which one is repeated, and another's single miss.
    let mut heavy = gateway.client_from([127, 0, 0, 5]).await;
    for number in 0..4 {
        assert_eq!(heavy.get(&token(number)).await.status, 200);
    }
    // A hit costs no budget.
    assert_eq!(heavy.get(&token(0)).await.status, 200);
    upstream.once(&token(9), Reply::nothing().close());
    assert_eq!(heavy.get(&token(9)).await.status, 200);
    let mut light = gateway.client_from([127, 0, 0, 6]).await;
    assert_eq!(light.get(&token(5)).await.status, 200);

    let status = gateway.admin("/status").await.json();
    let status = &status["upstream"];
    let heaviest = status["heaviest_clients"].as_array().unwrap().iter();
    let heaviest: Vec<_> = heaviest
        .map(|row| json!([row["client"], row["recent"]]))
        .collect();
    let expected = [json!(["127.0.0.5", 6.0]), json!(["127.0.0.6", 1.0])];
    assert_eq!(heaviest, expected, "the heaviest is first");
    let row = |reason: &str, requests: u64| json!({ "route": "brc20-token", "reason": reason, "requests": requests });
    assert_eq!(status["sent_for"], json!([row("miss", 6), row("retry", 1)]));
    assert_eq!(status["sent"], 7);
    for (reason, sent) in [("miss", 6), ("retry", 1)] {
        let name = format!(
            "ordgate_upstream_requests_total{{upstream=\"default\",route=\"brc20-token\",reason=\"{reason}\"}}"
        );
        assert_eq!(sample(&gateway, &name).await, sent, "{reason}");
    }
    // No client and no path is in the metrics.
    let metrics = gateway.admin("/metrics").await;
    for name in ["127.0.0.5", "127.0.0.6", &*token(9)] {
        assert!(!metrics.text().contains(name), "{name}");
    }
    // What a client has used counts half after half a minute.
    gateway.advance(30_000);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["upstream"]["heaviest_clients"][0]["recent"], 3.0);
}

#[tokio::test]
async fn status_has_the_last_errors_that_clients_got() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .manual()
        .config("upstream.retry = false")
        .start();
    let errors = || async { gateway.admin("/status").await.json()["errors"].clone() };
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    // A client's mistake is no error of ordgate's, and neither is the API's own 404.
    assert_eq!(gateway.get("/nowhere").await.status, 404);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    assert_eq!(errors().await, json!([]));

    upstream.always(Reply::status(500, "{}"));
    let target = token(2);
    let failed = gateway.get(&target).await;
    assert_eq!(failed.status, 502);
    gateway.advance(7000);
    let all = errors().await;
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    let row = &all[0];
    assert_eq!(row["method"], "GET");
    assert_eq!(row["path"], target);
    assert_eq!(row["status"], 502);
    assert_eq!(row["ago_seconds"], 7);
    assert_eq!(row["request_id"], failed.must("x-request-id"));
    assert_eq!(row["cause"], failed.problem()["detail"]);
    assert!(row["reason"].is_string());
    // The link explains that URL.
    let url = row["url"].as_str().unwrap();
    let explained = gateway.admin(url).await;
    assert_eq!(explained.status, 200, "{}", explained.text());
    assert_eq!(explained.json()["url"], target);

    let all = errors().await;
    // A reload forgets none.
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    assert_eq!(errors().await, all);
}
