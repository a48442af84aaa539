//! The request path in HTTP/2: the answers are those of HTTP/1.1.

use std::time::Duration;

use crate::respect;
use crate::support::polite::PoliteClient;
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, until, within};

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
async fn the_bounds_of_heads_are_those_of_http_1_1() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = PoliteClient::connect(gateway.public).await;
    let long = format!("{TOKEN}?{}", "x".repeat(8 << 10));
    let answer = client.get(&long).await;
    assert_eq!(answer.status, 414);
    answer.problem();
    let large = "x".repeat(20_000);
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
    assert_eq!((answer.must("x"), answer.field("keep-alive")), ("y", None));
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.body, b"0123456789");
    assert_eq!(seen.field("te"), None);
    assert_eq!(seen.field("cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!(seen.field("y").as_deref(), Some("z"));
    assert!(seen.field("host").is_some());
    assert!(seen.field("via").unwrap().starts_with('2'), "{seen:?}");
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
    gateway.server().drain(Duration::ZERO);
    assert!(idle.end().await.is_ok());
    gate.open();
    assert_eq!(within("the answer", answer).await.unwrap().status, 200);
    assert!(client.end().await.is_ok());
    until("both have ended", || gateway.connections() == 0).await;
}
