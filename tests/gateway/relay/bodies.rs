//! Bodies of any size, both ways.

use std::io::Write;

use super::{before, text};
use crate::respect::ALL;
use crate::support::{Client, Process, Reply, Upstream};

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
async fn bodies_go_up_with_their_length_or_in_chunks() {
    // More than is buffered, so that its length is not known when it is sent.
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
        assert_eq!(seen.field("transfer-encoding").as_deref(), Some("chunked"));
        assert_eq!(seen.field("content-length"), None);
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

/// Forwarded bodies are not held in memory, in either direction.
#[tokio::test]
async fn large_bodies_pass_in_constant_memory() {
    const SIZE: usize = 50 << 20;
    const MOST: u64 = 30 << 20;
    let upstream = Upstream::start();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(ALL.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    let arguments = ["--config", &path, "--upstream", &upstream.url()];
    let (process, public, _) = Process::serve(&arguments, &[]);
    let mut client = Client::connect(public).await;
    assert_eq!(client.get("/warm").await.status, 200);
    let before = process.most_memory();

    let length = SIZE.to_string();
    client
        .send_request("PUT", "/up", &[("content-length", &length)])
        .await;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..SIZE / piece.len() {
        client.send(&piece).await;
    }
    assert_eq!(client.answer("PUT").await.status, 200);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!((seen.length, seen.whole), (SIZE as u64, true));

    for fields in [
        "cache-control: no-store\r\n",
        "cache-control: max-age=60\r\n",
    ] {
        upstream.once("/down", Reply::with(200, fields, vec![b'x'; SIZE]));
        client.send_request("GET", "/down", &[]).await;
        let mut came = 0;
        // The answer's head is small beside its body.
        while came < SIZE {
            came += client.some(1).await.len();
        }
        drop(std::mem::replace(
            &mut client,
            Client::connect(public).await,
        ));
    }
    let grown = process.most_memory() - before;
    assert!(grown < MOST, "grown by {grown} bytes");
}

/// Requests on one connection, sent before the first is answered: their bodies
/// end where they say, and answers come in their order.
#[tokio::test]
async fn pipelined_requests_with_bodies_are_answered_in_order() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    upstream.usually(|seen| Reply::with(200, "", format!("{} {}", seen.method(), seen.target())));
    let mut client = gateway.client().await;
    client
        .send(
            "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 18\r\n\r\nGET /not HTTP/1.1\n\
             PUT /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n\
             GET /c HTTP/1.1\r\nhost: x\r\n\r\n",
        )
        .await;
    for request in ["POST /a", "PUT /b", "GET /c"] {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, request));
    }
    let seen = upstream.seen();
    let bodies: Vec<_> = seen.iter().map(|seen| text(&seen.body)).collect();
    assert_eq!(bodies, ["GET /not HTTP/1.1\n", "one", ""]);
}
