//! Bodies of any size, both ways.

use super::{before, text};
use crate::support::{Reply, Upstream};

const METHODS: [&str; 5] = ["POST", "DELETE", "OPTIONS", "PUT", "UNHEARD-OF"];

#[tokio::test]
async fn get_and_head_have_no_transfer_coding() {
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    for method in ["GET", "HEAD"] {
        let mut client = gateway.client().await;
        let chunked = [("transfer-encoding", "chunked")];
        client.send_request(method, "/v", &chunked).await;
        assert_eq!(client.answer(method).await.status, 400, "{method}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn bodies_go_up_with_their_length() {
    let long = "x".repeat(100_000);
    let upstream = Upstream::start();
    let gateway = before(&upstream);
    let mut client = gateway.client().await;
    let (five, chunked) = (("content-length", "5"), ("transfer-encoding", "chunked"));
    let rows = [
        (five, "hello".to_owned(), 5),
        (
            chunked,
            "3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n".to_owned(),
            5,
        ),
        (chunked, format!("186a0\r\n{long}\r\n0\r\n\r\n"), 100_000),
    ];
    for method in METHODS {
        for (framing, body, length) in &rows {
            client.send_request(method, "/v", &[*framing]).await;
            client.send(body).await;
            assert_eq!(client.answer(method).await.status, 200, "{method}");
            let seen = upstream.seen().pop().unwrap();
            assert_eq!(
                (seen.method(), seen.length, seen.whole),
                (method.to_owned(), *length, true)
            );
            assert!(*length > 5 || seen.body == b"hello", "{method}");
            assert_eq!(seen.field("content-length"), Some(length.to_string()));
            assert_eq!(seen.field("transfer-encoding"), None);
        }
        gateway.request(method, "/v", &[]).await;
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.field("transfer-encoding"), None, "{method}");
        let length = seen.field("content-length");
        assert!(length.is_none_or(|length| length == "0"), "{method}");
    }
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
