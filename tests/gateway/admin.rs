//! The admin listener, which the public side does not reach.

use crate::support::{Client, Gateway, Reply, Setup, TOKEN, Upstream};

const PATHS: [&str; 5] = ["/healthz", "/readyz", "/metrics", "/status", "/history"];

#[tokio::test]
async fn healthz_and_readyz_are_200_while_it_serves() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for (path, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let answer = gateway.admin(path).await;
        assert_eq!((answer.status, answer.text()), (200, text));
        assert_eq!(answer.must("cache-control"), "no-store");
    }
    assert_eq!(upstream.count(), 0, "pending costs the upstream nothing");
}

#[tokio::test]
async fn it_is_not_ready_while_it_drains() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.drain_timeout = \"10s\"");
    // One request under way keeps it from ending.
    upstream.always(Reply::nothing().hang());
    let client = gateway.start_get(TOKEN).await;
    upstream.until_requests(1).await;
    gateway.server().drain();
    let ready = gateway.admin("/readyz").await;
    assert_eq!((ready.status, ready.text()), (503, "draining\n"));
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    assert_eq!(gateway.admin("/status").await.json()["state"], "draining");
    upstream.always(Reply::json("{}"));
    drop(client);
}

#[tokio::test]
async fn metrics_are_named_and_typed() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    gateway.get(TOKEN).await;
    gateway.get(TOKEN).await;
    gateway.get("/nowhere").await;
    let answer = gateway.admin("/metrics").await;
    assert_eq!(answer.status, 200);
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.must("content-type"), media);
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"));
    let mut names = Vec::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.split(' ');
            let kind = words.next().unwrap();
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            let name = words.next().unwrap();
            let is_known = ["ordgate_", "process_"]
                .iter()
                .any(|all| name.starts_with(all));
            assert!(is_known, "{line}");
            names.push(name.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = series.split('{').next().unwrap();
        assert!(
            names.iter().any(|known| name.starts_with(&**known)),
            "{line} has no type"
        );
    }
    for (outcome, class, route) in [
        ("miss", "2xx", "brc20-token"),
        ("hit", "2xx", "brc20-token"),
        ("refused", "4xx", "none"),
    ] {
        let found = text.lines().any(|line| {
            line.starts_with("ordgate_requests_total{")
                && line.contains(&format!("outcome=\"{outcome}\""))
                && line.contains(&format!("class=\"{class}\""))
                && line.contains(&format!("route=\"{route}\""))
                && line.ends_with(" 1")
        });
        assert!(found, "{outcome} in\n{text}");
    }
}

#[tokio::test]
async fn the_status_has_the_state_of_each_part() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one,other")
        .config("upstream.requests_per_minute = 10")
        .start();
    gateway.get(TOKEN).await;
    let answer = gateway.admin("/status").await;
    assert_eq!(answer.must("content-type"), "application/json");
    let status = answer.json();
    assert_eq!(status["state"], "ready");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["listen"], gateway.public.to_string());
    assert_eq!(status["upstream"]["sent"], 1);
    assert_eq!(status["upstream"]["answered"], 1);
    assert_eq!(status["upstream"]["failed"], 0);
    let keys = status["upstream"]["keys"].as_array().unwrap();
    let left: Vec<_> = keys.iter().map(|key| key["budget_left"].clone()).collect();
    assert_eq!(left, [9, 10]);
    assert!(keys.iter().all(|key| key["budget"] == 10), "{keys:?}");
    assert_eq!(status["requests"][0]["outcome"], "miss");
}

#[tokio::test]
async fn other_admin_paths_get_404_and_other_methods_405() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = Client::connect(gateway.admin).await;
    for path in [
        "/nowhere",
        "/dashboard",
        TOKEN,
        "/openapi.json",
        "/metrics/",
    ] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    for path in PATHS {
        let answer = client.request("POST", path, &[]).await;
        assert_eq!(answer.status, 405, "{path}");
        assert_eq!(answer.must("allow"), "GET, HEAD");
        assert_eq!(client.request("HEAD", path, &[]).await.status, 200);
    }
    let explain = client.request("POST", "/explain", &[]).await;
    assert_eq!((explain.status, explain.must("allow")), (405, "GET, HEAD"));
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let purge = client.request(method, "/purge?all", &[]).await;
        assert_eq!((purge.status, purge.must("allow")), (405, "POST"));
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn off_loopback_it_needs_a_token() {
    let upstream = Upstream::start();
    let open = Setup::before(&upstream).config("admin.listen = \"0.0.0.0:0\"");
    let refused = open.try_start().err().unwrap().to_string();
    assert!(refused.contains("ORDGATE_ADMIN_TOKEN"), "{refused}");
    let closed = Setup::before(&upstream)
        .config("admin.listen = \"0.0.0.0:0\"")
        .token("secret");
    assert!(closed.try_start().is_ok());
}

#[tokio::test]
async fn a_configured_token_is_required() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).token("secret").start();
    let mut client = Client::connect(gateway.admin).await;
    // Probes need none, and learn nothing.
    for path in ["/healthz", "/readyz"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/metrics", "/status", "/nowhere", "/explain", "/purge", "/reload",
    ] {
        for value in [
            None,
            Some(""),
            Some("secret"),
            Some("Bearer"),
            Some("Bearer wrong"),
            Some("Bearer Secret"),
            Some("Basic secret"),
        ] {
            let fields: Vec<_> = value
                .iter()
                .map(|value| ("authorization", *value))
                .collect();
            let answer = client.request("GET", path, &fields).await;
            assert_eq!(answer.status, 401, "{path} {value:?}");
            assert!(answer.must("www-authenticate").starts_with("Bearer"));
            assert!(!answer.text().contains("secret"));
        }
    }
    for value in ["Bearer secret", "bearer secret"] {
        let fields = [("authorization", value)];
        assert_eq!(client.request("GET", "/status", &fields).await.status, 200);
    }
}
