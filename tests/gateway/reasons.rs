//! Why a request was refused or failed, and how long requests took: the same words in
//! problem documents, metrics and `/status`.

use serde_json::{Value, json};

use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token};

/// The value of a metric.
async fn metric(gateway: &Gateway, series: &str) -> Option<f64> {
    let metrics = gateway.admin("/metrics").await;
    let mut lines = metrics.text().lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

async fn refused(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["refused"].clone()
}

#[tokio::test]
async fn each_refusal_has_one_word_everywhere() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .manual()
        .config("limit.misses_per_minute = 1")
        .start();
    gateway.get(TOKEN).await;
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: a.example\r\n");
    // request, status, reason
    let rows = [
        (get("/nowhere") + "\r\n", 404, "no_route"),
        (
            get("/ordinals/v1/brc-20/tokens/%00") + "\r\n",
            400,
            "invalid",
        ),
        (get(TOKEN) + "content-length: 1\r\n\r\nx", 400, "body"),
        (get(TOKEN).replace("GET", "PUT") + "\r\n", 405, "method"),
        (get("http://u@a.example/b") + "\r\n", 400, "bad_target"),
        (get(TOKEN) + "host: b.example\r\n\r\n", 400, "bad_host"),
        (get(TOKEN) + "a b: c\r\n\r\n", 400, "malformed_head"),
        (
            get(TOKEN) + "content-length: x\r\n\r\n",
            400,
            "malformed_framing",
        ),
        (get(&token(1)) + "\r\n", 429, "limited_misses"),
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
        assert_eq!(refused(&gateway).await, expected, "{request}");
    }
}

#[tokio::test]
async fn each_failure_has_one_word_everywhere() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("upstream.retry = false\nupstream.max_body_bytes = \"1KiB\"")
        .start();
    let long = format!("\"{}\"", "x".repeat(2000));
    // the upstream's answer, status, reason
    let rows = [
        (Reply::status(500, "{}"), 502, "server_error"),
        (
            Reply::with(503, "retry-after: 9\r\n", "{}"),
            503,
            "server_error",
        ),
        (Reply::status(302, "{}"), 502, "redirect"),
        (Reply::json("{"), 502, "not_json"),
        (Reply::json(long), 502, "answer_too_large"),
        (
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
            502,
            "truncated",
        ),
        (Reply::raw("220 hello\r\n").close(), 502, "not_http"),
    ];
    let mut expected = json!({});
    for (number, (reply, status, reason)) in rows.into_iter().enumerate() {
        let target = token(number);
        upstream.once(&target, reply);
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, status, "{reason}: {answer:?}");
        assert_eq!(answer.problem()["reason"], reason, "{answer:?}");
        let cache_status = format!("ordgate; fwd=uri-miss; detail={reason}");
        let found = answer.must("cache-status").replace("; fwd-status=500", "");
        assert!(
            found.ends_with(&format!("; detail={reason}")),
            "{found} is not {cache_status}"
        );
        let count = expected[reason].as_u64().unwrap_or(0) + 1;
        expected[reason] = count.into();
        assert_eq!(refused(&gateway).await, expected, "{reason}");
    }
    let kinds = gateway.admin("/status").await.json();
    let kinds: Vec<_> = kinds["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["outcome"].clone())
        .collect();
    assert!(kinds.iter().all(|kind| kind == "miss"), "{kinds:?}");
}

#[tokio::test]
async fn a_document_and_a_preflight_are_no_refusals() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for _ in 0..2 {
        assert_eq!(gateway.get("/openapi.json").await.status, 200);
    }
    for target in ["/openapi.json", TOKEN] {
        assert_eq!(gateway.request("OPTIONS", target, &[]).await.status, 204);
    }
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["refused"], json!({}));
    let rows = status["requests"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| json!([row["route"], row["outcome"], row["class"], row["requests"]]))
        .collect();
    let expected = [
        json!([null, "document", "2xx", 2]),
        json!([null, "preflight", "2xx", 1]),
        json!(["brc20-token", "preflight", "2xx", 1]),
    ];
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn latency_is_counted_by_route_and_outcome() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).manual().start();
    let slow = Reply::json("{}");
    upstream.always(slow);
    for target in [TOKEN, TOKEN, TOKEN, "/nowhere"] {
        gateway.get(target).await;
    }
    let status = gateway.admin("/status").await.json();
    let rows = status["latency"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .map(|row| json!([row["route"], row["outcome"], row["count"]]))
        .collect();
    let expected = [
        json!([null, "refused", 1]),
        json!(["brc20-token", "hit", 2]),
        json!(["brc20-token", "miss", 1]),
    ];
    assert_eq!(found, expected);
    assert_eq!(status["latency_total"]["count"], 4);
    for row in rows {
        for name in ["p50_ms", "p90_ms", "p99_ms", "max_ms"] {
            assert!(row[name].is_number(), "{name} in {row}");
        }
    }
    // The clock stands still, so each took no time.
    let labels = "route=\"brc20-token\",outcome=\"hit\"";
    for (series, expected) in [
        (format!("bucket{{le=\"0.0001\",{labels}}}"), 2.0),
        (format!("bucket{{le=\"30.0\",{labels}}}"), 2.0),
        (format!("count{{{labels}}}"), 2.0),
        (format!("sum{{{labels}}}"), 0.0),
    ] {
        let series = format!("ordgate_request_duration_seconds_{series}");
        assert_eq!(metric(&gateway, &series).await, Some(expected), "{series}");
    }
    // A reload keeps them.
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    gateway.get(TOKEN).await;
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["latency"][1]["count"], 3, "{}", status["latency"]);
}
