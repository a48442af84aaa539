//! The request path in HTTP/2: the answers are those of HTTP/1.1.

use crate::respect;
use crate::support::polite::PoliteClient;
use crate::support::{Answer, BLOCK, Gate, Gateway, Reply, Setup, TOKEN, Upstream, until, within};
use crate::tls::tools::run;

/// What two answers must share: all but what differs between any two.
pub(crate) fn comparable(answer: &Answer) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut fields = answer.fields.clone();
    let own = ["date", "x-request-id", "connection", "transfer-encoding"];
    // HTTP/2 need not say that a body is empty.
    fields.retain(|(name, value)| {
        !own.contains(&&**name) && (&**name, &**value) != ("content-length", "0")
    });
    fields.sort_unstable();
    let body = match answer.field("x-request-id") {
        // Problem documents repeat it.
        Some(id) => answer.text().replace(id, "-").into_bytes(),
        None => answer.body.clone(),
    };
    (answer.status, fields, body)
}

#[tokio::test]
async fn answers_are_those_of_http_1_1() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "limit.enabled = false");
    let etag = gateway.get(TOKEN).await.must("etag").to_owned();
    let known = [("if-none-match", &*etag)];
    let origin = [("origin", "https://a.example")];
    let page = format!("{BLOCK}?limit=5&offset=1");
    type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);
    let rows: [Row<'_>; 12] = [
        ("GET", TOKEN, &[], 200),
        ("GET", TOKEN, &origin, 200),
        ("GET", TOKEN, &known, 304),
        ("HEAD", TOKEN, &[], 200),
        ("HEAD", "/nowhere", &[], 404),
        ("OPTIONS", TOKEN, &origin, 204),
        ("GET", &page, &[], 200),
        ("GET", "/nowhere", &[], 404),
        ("GET", "/runes/v1/blocks/x/activity", &[], 400),
        ("POST", TOKEN, &[], 405),
        ("GET", "/openapi.json", &[], 200),
        ("ORDGATE-REFUSED", "/", &[], 404),
    ];
    let mut http2 = PoliteClient::connect(gateway.public).await;
    for (method, target, fields, status) in rows {
        // Once, so that both are hits.
        gateway.request(method, target, fields).await;
        let one = gateway.request(method, target, fields).await;
        let two = http2.request(method, target, fields).await;
        assert_eq!(comparable(&one), comparable(&two), "{method} {target}");
        assert_eq!(two.status, status, "{method} {target}");
        assert_eq!(two.version, "HTTP/2.0");
        assert_eq!(two.field("connection"), None);
        if method == "HEAD" {
            assert_eq!(two.body, b"");
        }
    }
    let count = rows.len();
    let status = gateway.admin("/status").await.json();
    let counts = &status["connections"]["http2"];
    assert_eq!(
        (&counts["open"], &counts["accepted"]),
        (&1.into(), &1.into())
    );
    assert_eq!(counts["requests"], count);
    let metrics = gateway.admin("/metrics").await;
    for line in [
        format!("ordgate_requests_by_version_total{{version=\"2\"}} {count}\n"),
        format!(
            "ordgate_requests_by_version_total{{version=\"1.1\"}} {}\n",
            2 * count + 1
        ),
    ] {
        assert!(
            metrics.text().contains(&line),
            "{line} in {}",
            metrics.text()
        );
    }
}

#[tokio::test]
async fn the_bounds_of_heads_are_those_of_http_1_1() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        "server.max_target_bytes = 1000\nserver.max_fields = 20\nserver.max_head_bytes = 4096",
    );
    let mut client = PoliteClient::connect(gateway.public).await;
    let long = format!("{TOKEN}?{}", "x".repeat(1000));
    let answer = client.get(&long).await;
    assert_eq!(answer.status, 414);
    answer.problem();
    let names: Vec<_> = (0..30).map(|nth| format!("x{nth}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (&**name, "1")).collect();
    let answer = client.request("GET", TOKEN, &fields).await;
    assert_eq!(answer.status, 431);
    answer.problem();
    let large = "x".repeat(6000);
    // h2 refuses this one itself.
    let answer = client.request("GET", TOKEN, &[("x", &large)]).await;
    assert_eq!(answer.status, 431);
    assert_eq!(client.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn bodies_pass_and_what_belongs_to_the_connection_does_not() {
    let upstream = Upstream::start();
    upstream.always(respect::ok(&["keep-alive: timeout=5", "x: y"], "{}"));
    let gateway = respect::plain(&upstream).start();
    let mut client = PoliteClient::connect(gateway.public).await;
    let fields = [
        ("te", "trailers"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("y", "z"),
    ];
    let answer = client.start("POST", "/upload", &fields, "0123456789").await;
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    assert_eq!(
        (answer.field("x"), answer.field("keep-alive")),
        (Some("y"), None)
    );
    let seen = upstream.seen();
    let [seen] = &*seen else {
        panic!("{seen:?}");
    };
    assert_eq!(seen.body, b"0123456789");
    assert_eq!(seen.field("te"), None);
    assert_eq!(seen.field("cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!(seen.field("y").as_deref(), Some("z"));
    assert!(seen.field("host").is_some());
    assert!(
        seen.field("via").is_some_and(|via| via.starts_with("2")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_typed_route_takes_no_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = PoliteClient::connect(gateway.public).await;
    let answer = client.start("GET", TOKEN, &[], "body").await;
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!(answer.status, 400);
    answer.problem();
    assert_eq!(answer.field("connection"), None);
    assert_eq!(client.get(TOKEN).await.status, 200, "other streams go on");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_slow_answer_does_not_delay_another_stream() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let gateway = Gateway::before(&upstream);
    let mut client = PoliteClient::connect(gateway.public).await;
    assert_eq!(client.get(TOKEN).await.status, 200);
    upstream.once(BLOCK, Reply::json("{}").behind(&gate));
    let slow = client.start("GET", BLOCK, &[], "").await;
    upstream.until_requests(2).await;
    for _ in 0..20 {
        assert_eq!(client.get(TOKEN).await.status, 200);
    }
    gate.open();
    assert_eq!(within("the slow one", slow).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_response_longer_than_all_windows_is_whole() {
    let upstream = Upstream::start();
    let body = format!("\"{}\"", "x".repeat(3 << 20));
    upstream.always(Reply::chunked(&body, 10_000));
    let gateway = respect::plain(&upstream).start();
    let mut client = PoliteClient::connect(gateway.public).await;
    for _ in 0..2 {
        assert_eq!(client.get("/x").await.body.len(), body.len());
    }
}

#[tokio::test]
async fn draining_says_goaway_and_answers_what_is_under_way() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"60s\"")
        .start();
    let idle = PoliteClient::connect(gateway.public).await;
    let mut client = PoliteClient::connect(gateway.public).await;
    let answer = client.start("GET", TOKEN, &[], "").await;
    upstream.until_requests(1).await;
    until("both are let in", || gateway.connections() == 2).await;
    gateway.server().drain();
    assert!(idle.end().await.is_ok());
    gate.open();
    assert_eq!(within("the answer", answer).await.unwrap().status, 200);
    assert!(client.end().await.is_ok());
    until("both have ended", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn curl_and_h2load_speak_it_by_prior_knowledge() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "limit.enabled = false");
    let url = format!("http://{}{TOKEN}", gateway.public);
    if let Some(text) = run("curl", &["-sv", "--http2-prior-knowledge", &url]).await {
        assert!(text.contains("HTTP/2 200"), "{text}");
    }
    // Without it curl offers h2c by Upgrade, which is ignored.
    if let Some(text) = run("curl", &["-sv", "--http2", &url]).await {
        assert!(text.contains("HTTP/1.1 200"), "{text}");
    }
    if let Some(text) = run("h2load", &["-n2000", "-c4", "-m50", &url]).await {
        assert!(text.contains("2000 succeeded, 0 failed"), "{text}");
    }
    assert_eq!(upstream.count(), 1);
}
