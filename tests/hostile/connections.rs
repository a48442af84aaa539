//! Connections: how many one client may hold, and what it sends on them.

use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Client, Gateway, Setup, TOKEN, Upstream, token, until};

/// Where the hostile client comes from, and the honest one.
const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

#[tokio::test]
async fn one_client_holds_no_more_than_its_connections() {
    const MOST: usize = 3;
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        "limit.connections = 3\nserver.max_connections = 6",
    );
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..20 {
        let mut client = Client::connect_from(HOSTILE, gateway.public).await;
        client.send_request("GET", TOKEN, &[]).await;
        let answer = client.answer("GET").await;
        match answer.status {
            200 => held.push(client),
            429 => {
                answer.problem();
                assert_eq!(answer.must("connection"), "close");
                assert_eq!(answer.must("retry-after"), "1");
                assert_eq!(client.rest().await, b"");
                refused += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((held.len(), refused), (MOST, 20 - MOST));
    let mut honest = Vec::new();
    for _ in 0..MOST {
        let mut client = Client::connect_from(HONEST, gateway.public).await;
        assert_eq!(client.get(TOKEN).await.status, 200);
        honest.push(client);
    }
    // Those that the hostile client has are served, and can be replaced.
    assert_eq!(held[0].get(TOKEN).await.status, 200);
    drop(held);
    until("they are closed", || gateway.connections() == MOST as u64).await;
    let mut again = Client::connect_from(HOSTILE, gateway.public).await;
    assert_eq!(again.get(TOKEN).await.status, 200);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["connections"]["turned_away_client"], 20 - MOST);
    assert_eq!(status["connections"]["turned_away"], 0);
    let metrics = gateway.admin("/metrics").await;
    let line = format!(
        "ordgate_connections_turned_away_total{{reason=\"client\"}} {}\n",
        20 - MOST
    );
    assert!(metrics.text().contains(&line), "{}", metrics.text());
}

/// None of these requests reaches the upstream, and each counts against its
/// client's own limit only.
#[tokio::test]
async fn refused_requests_spend_the_limit_of_whoever_sends_them() {
    const BURST: usize = 10;
    let upstream = Upstream::start();
    let malformed = format!("GET {TOKEN} HTTP/1.1\nhost: a\r\n\r\n");
    let rows = [
        (
            "preflights",
            format!("OPTIONS {TOKEN} HTTP/1.1\r\nhost: a\r\n\r\n"),
            204,
        ),
        (
            "unknown paths",
            "GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            404,
        ),
        (
            "parameters",
            "GET /runes/v1/blocks/x/activity HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            400,
        ),
        (
            "methods",
            format!("DELETE {TOKEN} HTTP/1.1\r\nhost: a\r\n\r\n"),
            405,
        ),
        ("malformed heads", malformed, 400),
    ];
    for (name, request, status) in rows {
        let gateway = Setup::before(&upstream)
            .config("limit.requests_per_minute = 60\nlimit.burst = 10")
            .manual()
            .start();
        let mut answered = [0, 0];
        for _ in 0..2 * BURST {
            let mut client = Client::connect_from(HOSTILE, gateway.public).await;
            client.send(&request).await;
            match client.answer("GET").await.status {
                429 => answered[1] += 1,
                other if other == status => answered[0] += 1,
                other => panic!("{name}: {other}"),
            }
        }
        assert_eq!(answered, [BURST, BURST], "{name}");
        let mut honest = Client::connect_from(HONEST, gateway.public).await;
        for _ in 0..BURST {
            assert_eq!(honest.get(TOKEN).await.status, 200, "{name}");
        }
    }
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
    let rows: &[(&[(&str, &str)], u16)] = &[
        (&[("connection", "upgrade"), ("upgrade", "websocket")], 501),
        (
            &[
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", "WebSocket"),
            ],
            501,
        ),
        (&[("connection", "upgrade"), ("upgrade", "TLS/1.3")], 501),
        (
            &[("connection", "upgrade"), ("upgrade", "h2c, websocket")],
            501,
        ),
        (
            &[
                ("connection", "Upgrade, HTTP2-Settings"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
            ],
            200,
        ),
        // Not meant for this connection (RFC 9110 §7.8).
        (&[("upgrade", "websocket")], 200),
        (&[("connection", "upgrade")], 200),
        (&[("upgraded", "x"), ("connection", "upgrade")], 200),
    ];
    for (fields, status) in rows {
        let mut client = gateway.client().await;
        client.send_request("GET", TOKEN, fields).await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, *status, "{fields:?}");
        if *status == 501 {
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
    let held = [
        "",
        "GET /status HTT",
        "POST /purge?all HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{",
        "POST /purge HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    ];
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut client = Client::connect_narrow(admin).await;
        let request = held[number % held.len()];
        // Many answers that it never reads.
        let times = if request.starts_with("GET /m") { 50 } else { 1 };
        client.send(request.repeat(times)).await;
        slow.push(client);
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let churn = {
        let stop = stop.clone();
        tokio::spawn(async move {
            let mut made = 0_u64;
            while !stop.load(SeqCst) {
                drop(Client::connect_from(HOSTILE, admin).await);
                made += 1;
            }
            made
        })
    };
    let mut answered = 0;
    for number in 0..20 {
        for (method, target) in [
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("POST", "/purge?all"),
        ] {
            let mut client = Client::connect_from(HONEST, admin).await;
            let host = [("x-number", &*token(number))];
            let answer = client.request(method, target, &host).await;
            assert_eq!(answer.status, 200, "{method} {target}");
            answered += 1;
        }
    }
    let mut client = Client::connect_from(HONEST, admin).await;
    assert_eq!(client.request("POST", "/reload", &[]).await.status, 200);
    stop.store(true, SeqCst);
    assert!(churn.await.unwrap() > 0);
    assert_eq!(answered, 60);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

/// A page whose name was rebound to this address reaches nothing.
#[tokio::test]
async fn the_admin_listener_answers_only_to_its_own_names() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "admin.hosts = [\"ordgate.internal\"]");
    let port = gateway.admin.port();
    let rows = [
        ("127.0.0.1", 200),
        (&*format!("127.0.0.1:{port}"), 200),
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("ordgate.localhost", 200),
        ("[::1]:9090", 200),
        ("10.1.2.3:9090", 200),
        ("[2001:db8::1]", 200),
        ("ordgate.internal", 200),
        ("Ordgate.Internal.:9090", 200),
        ("rebound.example", 421),
        ("rebound.example:9090", 421),
        ("localhost.rebound.example", 421),
        ("notlocalhost", 421),
        ("127.0.0.1.rebound.example", 421),
        ("x.ordgate.internal", 421),
        ("", 421),
        ("user@127.0.0.1", 400),
    ];
    for (host, status) in rows {
        for target in ["/status", "/metrics", "/explain?url=/a"] {
            let mut client = Client::connect(gateway.admin).await;
            client
                .send(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"))
                .await;
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, status, "{host}: {}", answer.text());
            if status == 421 {
                let problem = answer.json();
                let detail = problem["detail"].as_str().unwrap();
                assert!(detail.contains("admin.hosts"), "{detail}");
            }
        }
    }
    let mut client = Client::connect(gateway.admin).await;
    let twice = "POST /purge?all HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n";
    client.send(twice).await;
    assert_eq!(client.answer("POST").await.status, 400);
    let mut client = Client::connect(gateway.admin).await;
    client.send("GET /status HTTP/1.1\r\n\r\n").await;
    assert_eq!(client.answer("GET").await.status, 400, "no Host at all");
    // For other names they answer only that the process lives.
    for target in ["/healthz", "/readyz"] {
        let mut client = Client::connect(gateway.admin).await;
        let request = format!("GET {target} HTTP/1.1\r\nhost: any.example\r\n\r\n");
        client.send(request).await;
        assert_eq!(client.answer("GET").await.status, 200, "{target}");
    }
    // A reload takes up other names.
    let answer = gateway.reload("admin.hosts = [\"other.example\"]").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (host, status) in [("other.example", 200), ("ordgate.internal", 421)] {
        let mut client = Client::connect(gateway.admin).await;
        let request = format!("GET /status HTTP/1.1\r\nhost: {host}\r\n\r\n");
        client.send(request).await;
        assert_eq!(client.answer("GET").await.status, status, "{host}");
    }
}
