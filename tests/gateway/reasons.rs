//! Why a request was refused, and how long requests took: the same words in
//! problem documents, metrics and `/status`. Those of failures are in `upstream::faults`.

use serde_json::json;

use crate::support::{Gateway, Setup, TOKEN, Upstream, token};

/// The value of a metric.
async fn metric(gateway: &Gateway, series: &str) -> Option<f64> {
    let metrics = gateway.admin("/metrics").await;
    let mut lines = metrics.text().lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn each_refusal_has_one_word_everywhere() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).manual();
    let gateway = setup.config("limit.misses_per_minute = 1").start();
    gateway.get(TOKEN).await;
    let get = |target: &str, rest: &str| {
        format!("GET {target} HTTP/1.1\r\nhost: a.example\r\n{rest}\r\n")
    };
    let rows = [
        (get("/nowhere", ""), 404, "no_route"),
        (get("/ordinals/v1/brc-20/tokens/%00", ""), 400, "invalid"),
        (get(TOKEN, "content-length: 1\r\n") + "x", 400, "body"),
        (get(TOKEN, "").replace("GET", "PUT"), 405, "method"),
        (get("http://u@a.example/b", ""), 400, "bad_target"),
        (get(TOKEN, "host: b.example\r\n"), 400, "bad_host"),
        (
            get(TOKEN, "transfer-encoding: chunked\r\n") + "0\r\n\r\n",
            400,
            "malformed_framing",
        ),
        (get(&token(1), ""), 429, "limited_misses"),
    ];
    let mut expected = json!({});
    for (request, status, reason) in rows {
        let mut client = gateway.client().await;
        client.send(&request).await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, status, "{request}");
        assert_eq!(answer.problem()["reason"], reason, "{request}");
        let series = format!("ordgate_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(metric(&gateway, &series).await, Some(1.0), "{request}");
        expected[reason] = 1.into();
        assert_eq!(gateway.status()["refused"], expected, "{request}");
    }
}

#[tokio::test]
async fn a_document_and_a_preflight_are_no_refusals() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for (method, target, status) in [
        ("GET", "/openapi.json", 200),
        ("OPTIONS", "/openapi.json", 204),
        ("OPTIONS", TOKEN, 204),
    ] {
        assert_eq!(gateway.request(method, target, &[]).await.status, status);
    }
    let status = gateway.status();
    assert_eq!(status["refused"], json!({}));
    let rows = status["requests"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| json!([row["route"], row["outcome"], row["class"], row["requests"]]))
        .collect();
    let expected = [
        json!([null, "document", "2xx", 1]),
        json!([null, "preflight", "2xx", 1]),
        json!(["brc20-token", "preflight", "2xx", 1]),
    ];
    assert_eq!(rows, expected);
}

/// Buckets and quantiles stand in `meter::latency`.
#[tokio::test]
async fn latency_is_counted_by_route_and_outcome() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).manual().start();
    for target in [TOKEN, TOKEN, TOKEN, "/nowhere"] {
        gateway.get(target).await;
    }
    // A reload keeps them.
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    let status = gateway.status();
    let rows = status["latency"].as_array().unwrap().iter();
    let found = rows.map(|row| json!([row["route"], row["outcome"], row["count"]]));
    let expected = [
        json!([null, "refused", 1]),
        json!(["brc20-token", "hit", 2]),
        json!(["brc20-token", "miss", 1]),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(status["latency_total"]["count"], 4);
    // The clock stands still, so each took no time.
    let series = "ordgate_request_duration_seconds_bucket";
    let labels = "{route=\"brc20-token\",outcome=\"hit\",le=\"0.0001\"}";
    assert_eq!(
        metric(&gateway, &format!("{series}{labels}")).await,
        Some(2.0)
    );
}
