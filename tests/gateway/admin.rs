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
    gateway.server().drain(std::time::Duration::ZERO);
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
    for target in [TOKEN, TOKEN, "/nowhere"] {
        gateway.get(target).await;
    }
    let answer = gateway.admin("/metrics").await;
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(answer.must("content-type"), media);
    let text = answer.text().strip_suffix("# EOF\n").unwrap();
    let mut name = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (kind, rest) = rest.split_once(' ').unwrap();
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            name = rest.split(' ').next().unwrap();
            assert!(
                name.starts_with("ordgate_") || name.starts_with("process_"),
                "{line}"
            );
            continue;
        }
        assert!(line.starts_with(name), "{line} has no type");
        let (_series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for labels in [
        ["outcome=\"miss\"", "class=\"2xx\"", "route=\"brc20-token\""],
        ["outcome=\"hit\"", "class=\"2xx\"", "route=\"brc20-token\""],
        ["outcome=\"refused\"", "class=\"4xx\"", "route=\"none\""],
    ] {
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with("ordgate_requests_total{"));
        let is_one = |line: &str| line.ends_with(" 1") && labels.iter().all(|l| line.contains(l));
        assert!(lines.any(is_one), "{labels:?} in\n{text}");
    }
}

#[tokio::test]
async fn the_status_has_the_state_of_each_part() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).keys("one,other");
    let gateway = setup.config("upstream.requests_per_minute = 10").start();
    gateway.get(TOKEN).await;
    let status = gateway.admin("/status").await;
    assert_eq!(status.must("content-type"), "application/json");
    let status = status.json();
    assert_eq!(status["state"], "ready");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["listen"], gateway.public.to_string());
    assert_eq!(status["upstream"]["sent"], 1);
    let results = ["answered", "failed"].map(|name| &status["upstream"]["results"][name]);
    assert_eq!(results, [1, 0]);
    let keys = [0, 1].map(|at| &status["upstream"]["keys"][at]);
    assert_eq!(keys.map(|key| &key["budget_left"]), [9, 10]);
    assert_eq!(keys.map(|key| &key["budget"]), [10, 10]);
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
    // Probes and the dashboard's files need none, and learn nothing.
    for path in ["/healthz", "/readyz", "/", "/dashboard/main.js"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/metrics",
        "/status",
        "/nowhere",
        "/dashboard/",
        "/history",
        "/explain",
        "/purge",
        "/reload",
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
