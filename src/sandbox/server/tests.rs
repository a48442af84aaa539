//! The served sandbox over loopback. Raw TCP shows the bytes as sent.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::sandbox::{Api, Fault, FaultKind, Sandbox, Settings};

async fn serve(sandbox: &Sandbox, api: Api) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(sandbox.clone().serve(api, listener, std::future::pending()));
    address
}

/// Sends one request on a connection of its own and reads until it closes.
async fn ask(address: SocketAddr, request_line: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("{request_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // A closed connection may end in an error; the bytes before it are the response.
    let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes))
        .await
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn answers_are_sent_with_the_recorded_fields() {
    let sandbox = Sandbox::new(Settings::default());
    let address = serve(&sandbox, Api::Both).await;
    let full = [
        "vary",
        "access-control-allow-origin",
        "cache-control",
        "etag",
        "content-type",
        "content-length",
    ];
    let untagged = [full[0], full[1], full[4], full[5]];
    let matching = format!("if-none-match: \"{}\"\r\n", sandbox.tip().hash);
    let empty = "content-length: 0\r\n";
    for (line, fields, status, expected) in [
        ("GET /runes/v1/", "", "200 OK", &full[..]),
        ("GET http://127.0.0.1/runes/v1/", "", "200 OK", &full),
        ("HEAD /runes/v1/", "", "200 OK", &full),
        ("GET /runes/v1/", &matching, "304 Not Modified", &full[..3]),
        ("POST /runes/v1/", empty, "404 Not Found", &untagged),
    ] {
        let response = ask(address, line, fields).await;
        let start = format!("HTTP/1.1 {status}\r\n");
        assert!(response.starts_with(&start), "{line}: {response}");
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let names = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let names = names
            .map(|(name, _)| name)
            .filter(|name| !["date", "connection"].contains(name));
        assert_eq!(names.collect::<Vec<_>>(), expected, "{line}");
        let has_body = matches!(status, "200 OK" | "404 Not Found") && !line.starts_with("HEAD");
        assert_eq!(!body.is_empty(), has_body, "{line}");
    }
    sandbox.fault(Fault::once(FaultKind::Close));
    assert_eq!(ask(address, "GET /runes/v1/", "").await, "");
    let counts = ask(address, "GET /sandbox/counts", "").await;
    assert!(counts.ends_with("\"busiest_minute\":6}"), "{counts}");
}

#[tokio::test]
async fn each_server_has_only_its_own_api() {
    let sandbox = Sandbox::new(Settings::default());
    let ordinals = serve(&sandbox, Api::Ordinals).await;
    let runes = serve(&sandbox, Api::Runes).await;
    let examples = sandbox.examples();
    for (own, other, path) in [
        (ordinals, runes, "/ordinals/v1/"),
        (ordinals, runes, &*examples.tokens[0]),
        (runes, ordinals, "/runes/"),
        (runes, ordinals, &*examples.blocks[0]),
        (runes, ordinals, &*examples.transactions[0]),
    ] {
        let right = ask(own, &format!("GET {path}"), "").await;
        assert!(right.starts_with("HTTP/1.1 200 "), "{path}: {right}");
        let wrong = ask(other, &format!("GET {path}"), "").await;
        let body = format!(
            "{{\"message\":\"Route GET:{path} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        );
        assert!(wrong.ends_with(&body), "{path}: {wrong}");
    }
    let counts = sandbox.counts();
    assert_eq!((counts.total, counts.other, counts.status), (10, 5, 2));
}
