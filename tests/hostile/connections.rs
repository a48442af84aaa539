//! Connections: how many one client may hold, and what it sends on them.

use crate::support::{Client, Gateway, TOKEN, Upstream, until};

/// Where the hostile client comes from, and the honest one.
const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

#[tokio::test]
async fn one_client_holds_no_more_than_its_connections() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "limit.connections = 3");
    let mut honest = gateway.client_from(HONEST).await;
    assert_eq!(honest.get(TOKEN).await.status, 200);
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut client = gateway.client_from(HOSTILE).await;
        assert_eq!(client.get(TOKEN).await.status, 200);
        held.push(client);
    }
    // Those that were idle longest have made room for the others.
    for client in &mut held[..7] {
        assert_eq!(client.rest().await, b"");
    }
    for client in &mut held[7..] {
        assert_eq!(client.get(TOKEN).await.status, 200);
    }
    assert_eq!(honest.get(TOKEN).await.status, 200);
    until("it is counted", || gateway.connections() == 4).await;
    assert_eq!(gateway.figure("/connections/closed_for_others"), 7);
    let metrics = gateway.admin("/metrics").await;
    let line = "ordgate_connections_reset_total{reason=\"room\"} 7\n";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

/// Silent connections from many addresses make room for each other, and for the honest
/// client.
#[tokio::test]
async fn whoever_holds_most_connections_makes_room() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.max_connections = 40");
    let mut honest = gateway.client_from(HONEST).await;
    assert_eq!(honest.get(TOKEN).await.status, 200);
    let mut silent = Vec::new();
    for nth in 0..100 {
        silent.push(gateway.client_from([127, 0, 1, nth % 10]).await);
    }
    assert_eq!(honest.get(TOKEN).await.status, 200);
    for _ in 0..10 {
        let mut another = gateway.client_from(HONEST).await;
        assert_eq!(another.get(TOKEN).await.status, 200);
    }
    assert_eq!(honest.get(TOKEN).await.status, 200);
    assert_eq!(gateway.figure("/connections/turned_away"), 0);
}

#[tokio::test]
async fn a_target_in_absolute_form_is_like_one_in_origin_form() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    let rows = [
        (format!("http://gateway.example{TOKEN}"), 200),
        (format!("http://elsewhere.example:81{TOKEN}"), 200),
        (format!("https://gateway.example{TOKEN}"), 200),
        (format!("HTTP://gateway.example{TOKEN}?x=y"), 200),
        ("http://gateway.example".to_owned(), 404),
        ("http://gateway.example?a=b".to_owned(), 404),
        (format!("http://user@gateway.example{TOKEN}"), 400),
        (format!("http://user:secret@gateway.example{TOKEN}"), 400),
        (format!("ws://gateway.example{TOKEN}"), 400),
        ("gateway.example:80".to_owned(), 400),
        ("*".to_owned(), 400),
    ];
    for (target, status) in rows {
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, status, "{target}: {}", answer.text());
        assert!(!answer.text().contains("secret"));
    }
    assert_eq!(upstream.count(), 1, "one stored response answers them all");
    // The admin listener takes it as well; its authority is what counts.
    for (target, status) in [
        ("http://127.0.0.1/healthz", 200),
        ("http://127.0.0.1/status", 200),
        ("http://rebound.example/status", 421),
    ] {
        assert_eq!(gateway.admin(target).await.status, status, "{target}");
    }
}

#[tokio::test]
async fn an_upgrade_is_not_implemented_but_for_an_offer_of_h2c() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for (connection, upgrade, status) in [
        ("upgrade", "websocket", 501),
        ("keep-alive, Upgrade", "WebSocket", 501),
        ("upgrade", "TLS/1.3", 501),
        ("upgrade", "h2c, websocket", 501),
        ("Upgrade, HTTP2-Settings", "h2c", 200),
        // Not meant for this connection (RFC 9110 §7.8).
        ("keep-alive", "websocket", 200),
    ] {
        let mut client = gateway.client().await;
        let fields = [
            ("connection", connection),
            ("upgrade", upgrade),
            ("http2-settings", "AAMAAABk"),
        ];
        let answer = client.request("GET", TOKEN, &fields).await;
        assert_eq!(answer.status, status, "{fields:?}");
        if status == 501 {
            answer.problem();
            assert_eq!(answer.must("connection"), "close");
            assert_eq!(client.rest().await, b"", "{fields:?}");
        }
    }
}

/// Connections to the admin listener come and go as fast as a client can make
/// them, and others are held open in every way there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_survives_churn_and_slow_clients() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let admin = gateway.admin;
    // Many answers that it never reads are the last.
    let pages = "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".repeat(50);
    let held = [
        "",
        "GET /status HTT",
        "POST /purge?all HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{",
        "POST /purge HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n",
        &pages,
    ];
    let mut slow = Vec::new();
    for request in held.iter().cycle().take(200) {
        let mut client = Client::connect_narrow(admin).await;
        client.send(request).await;
        slow.push(client);
    }
    let churn = tokio::spawn(async move {
        loop {
            drop(Client::connect_from(HOSTILE, admin).await);
        }
    });
    for _ in 0..20 {
        for (method, target) in [
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("POST", "/purge?all"),
            ("POST", "/reload"),
        ] {
            let mut client = Client::connect_from(HONEST, admin).await;
            let answer = client.request(method, target, &[]).await;
            assert_eq!(answer.status, 200, "{method} {target}");
        }
    }
    assert!(!churn.is_finished());
    churn.abort();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

/// A page whose name was rebound to this address reaches nothing. Which names are its own
/// stands in `admin::host`.
#[tokio::test]
async fn the_admin_listener_answers_only_to_its_own_names() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "admin.hosts = [\"ordgate.internal\"]");
    let rows = [("Ordgate.Internal.:9090", 200), ("rebound.example", 421)];
    let asked = async |target: &str, fields: &str| {
        let mut client = Client::connect(gateway.admin).await;
        client
            .send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n"))
            .await;
        client.answer("GET").await
    };
    for (host, status) in rows {
        for target in ["/status", "/metrics", "/explain?url=/a"] {
            let answer = asked(target, &format!("host: {host}\r\n")).await;
            assert_eq!(answer.status, status, "{host}: {}", answer.text());
            assert!(status != 421 || answer.text().contains("admin.hosts"));
        }
    }
    // For other names they answer only that the process lives.
    for target in ["/healthz", "/readyz"] {
        assert_eq!(asked(target, "host: any.example\r\n").await.status, 200);
    }
    // A reload takes up other names.
    let answer = gateway.reload("admin.hosts = [\"other.example\"]").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (host, status) in [("other.example", 200), ("ordgate.internal", 421)] {
        let answer = asked("/status", &format!("host: {host}\r\n")).await;
        assert_eq!(answer.status, status, "{host}");
    }
}
