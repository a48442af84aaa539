//! Bodies of any size, both ways.

use super::{before, text};
use crate::support::{Reply, Upstream};

const METHODS: [&str; 8] = [
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "M-SEARCH",
    "OPTIONS",
    "GET",
    "UNHEARD-OF",
];

#[tokio::test]
async fn bodies_go_up_with_their_length() {
    let long = "x".repeat(100_000);
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let mut client = gateway.client().await;
    for (at, method) in METHODS.into_iter().enumerate() {
        client
            .send_request(method, "/v", &[("content-length", "5")])
            .await;
        client.send("hello").await;
        assert_eq!(client.answer(method).await.status, 200, "{method}");
        let seen = &upstream.seen()[3 * at];
        assert_eq!(
            (&*seen.method(), text(&seen.body)),
            (method, "hello".to_owned())
        );
        assert_eq!(seen.field("content-length").as_deref(), Some("5"));
        assert_eq!(seen.field("transfer-encoding"), None);

        let chunked = [("transfer-encoding", "chunked")];
        client.send_request(method, "/v", &chunked).await;
        client.send("3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n").await;
        assert_eq!(client.answer(method).await.status, 200, "{method}");
        let seen = &upstream.seen()[3 * at + 1];
        assert_eq!(
            (&*seen.method(), text(&seen.body)),
            (method, "hello".to_owned())
        );
        assert_eq!(seen.field("content-length").as_deref(), Some("5"));
        assert_eq!(seen.field("transfer-encoding"), None);

        client.send_request(method, "/v", &chunked).await;
        client.send(format!("186a0\r\n{long}\r\n0\r\n\r\n")).await;
        assert_eq!(client.answer(method).await.status, 200, "{method}");
        let seen = &upstream.seen()[3 * at + 2];
        assert_eq!((seen.length, seen.whole), (100_000, true));
        assert_eq!(seen.field("content-length").as_deref(), Some("100000"));
        assert_eq!(seen.field("transfer-encoding"), None);
    }
}

#[tokio::test]
async fn a_request_without_a_body_goes_up_without_one() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    for method in METHODS {
        gateway.request(method, "/v", &[]).await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.field("transfer-encoding"), None, "{method}");
        let length = seen.field("content-length");
        assert!(
            length.is_none() || length.as_deref() == Some("0"),
            "{method}"
        );
    }
    gateway
        .request("POST", "/v", &[("content-length", "0")])
        .await;
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.field("content-length").as_deref(), Some("0"));
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let mut client = gateway.client().await;
    let fields = [("expect", "100-continue"), ("content-length", "5")];
    client.send_request("PUT", "/v", &fields).await;
    assert_eq!(client.answer("PUT").await.status, 100);
    client.send("hello").await;
    assert_eq!(client.answer("PUT").await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(text(&seen.body), "hello");
    assert_eq!(seen.field("expect"), None);
}

#[tokio::test]
async fn trailers_are_sent_to_clients_that_accept_them() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let chunked = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ntrailer: x-sum\r\n\
                   transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nx-sum: 9\r\n\r\n";
    upstream.always(Reply::raw(chunked));
    for (fields, comes) in [
        (&[("te", "trailers"), ("connection", "te, close")][..], true),
        (&[("connection", "close")], false),
    ] {
        let mut client = gateway.client().await;
        client.send_request("GET", "/v", fields).await;
        let received = text(&client.rest().await).to_ascii_lowercase();
        let (head, body) = received.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        let trailer = if comes { "x-sum: 9\r\n" } else { "" };
        assert_eq!(body, format!("4\r\nbody\r\n0\r\n{trailer}\r\n"));
    }
}

#[tokio::test]
async fn an_answer_is_streamed() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let begun = "HTTP/1.1 200 OK\r\ncache-control: no-store\r\ncontent-length: 9\r\n\r\nhalf";
    upstream.once("/v", Reply::raw(begun).hang());
    let mut client = gateway.start_get("/v").await;
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\nhalf") {
        received.extend(client.some(1).await);
    }
}
