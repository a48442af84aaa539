//! Relayed exchanges over HTTP/2: the same is forwarded as over HTTP/1.1, and
//! uploads may end early.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::support::http2::{Act, Asked, Frames, NO_ERROR, Polite, Request};
use crate::support::respect::ALL;
use crate::support::{Client, Gateway, Setup, until};

fn before(url: &str) -> Setup {
    let setup = Setup::at(url).config(ALL);
    setup.config("upstream.http2 = true")
}

type Requests = Arc<Mutex<Vec<String>>>;

/// Says how a request has come, and answers it by its path.
async fn answer(mut request: Request, seen: Requests) {
    let mut length = 0;
    while let Some(Ok(data)) = request.body.data().await {
        let _gone = request.body.flow_control().release_capacity(data.len());
        length += data.len();
    }
    let trailers = request.body.trailers().await.unwrap();
    let (head, mut respond) = (request.head, request.respond);
    let mut names: Vec<_> = head.headers.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    let trailers = trailers.map_or(0, |trailers| trailers.len());
    let line = format!("{} {:?} {names:?}", head.method, (length, trailers));
    seen.lock().unwrap().push(line);

    let response = |status: u16| Response::builder().status(status);
    let bare = response(200).body(()).unwrap();
    match request.path.as_str() {
        "/head" => {
            let head = response(200).header("content-length", "1000");
            let _gone = respond.send_response(head.body(()).unwrap(), true);
        }
        "/204" | "/304" => {
            let status = request.path[1..].parse().unwrap();
            let _gone = respond.send_response(response(status).body(()).unwrap(), true);
        }
        path => {
            if path == "/early" {
                let early = response(103).body(()).unwrap();
                respond.send_informational(early).unwrap();
            }
            let mut body = respond.send_response(bare, false).unwrap();
            body.send_data(Bytes::from_static(b"ok"), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from_static("17"));
            body.send_trailers(trailers).unwrap();
        }
    }
}

#[tokio::test]
async fn http_2_upstreams_get_and_send_the_same_as_http_1_1() {
    const OURS: [&str; 6] = [
        "accept-encoding",
        "forwarded",
        "via",
        "x-api-key",
        "x-forwarded-for",
        "x-real-ip",
    ];
    let seen = Requests::default();
    let saw = seen.clone();
    let upstream = Polite::start(move |request| answer(request, saw.clone()));
    let gateway = before(&upstream.url()).keys("a-key").start();
    let hops = "te: trailers\r\nconnection: x-hop, te\r\nx-hop: 1\r\nkeep-alive: 5\r\nupgrade: h2c\r\n\r\n";
    let chunks = "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n";
    let large = format!("content-length: 1000000\r\n\r\n{}", "x".repeat(1_000_000));
    let large_chunk = format!(
        "transfer-encoding: chunked\r\n\r\nf4240\r\n{}\r\n0\r\nx-t: 1\r\n\r\n",
        "x".repeat(1_000_000)
    );
    for (method, path, rest, status, body, sent, more) in [
        ("GET", "/", hops, 200, "ok", (0, 0), ""),
        ("HEAD", "/head", "\r\n", 200, "", (0, 0), ""),
        ("GET", "/204", "\r\n", 204, "", (0, 0), ""),
        ("GET", "/304", "etag: 1\r\n\r\n", 304, "", (0, 0), "etag"),
        ("GET", "/early", "\r\n", 200, "ok", (0, 0), ""),
        ("POST", "/", chunks, 200, "ok", (3, 1), "content-length"),
        (
            "PUT",
            "/",
            &large,
            200,
            "ok",
            (1_000_000, 0),
            "content-length",
        ),
        ("PUT", "/", &large_chunk, 200, "ok", (1_000_000, 1), ""),
    ] {
        let name = format!("{method} {path} {more}");
        let mut client = gateway.client().await;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{rest}");
        client.send(request).await;
        let answer = client.answer(method).await;
        assert_eq!((answer.status, answer.text()), (status, body), "{name}");
        assert_eq!(answer.must("via"), "2 ordgate", "{name}");
        let mut names = OURS.to_vec();
        names.extend(Some(more).filter(|more| !more.is_empty()));
        names.sort_unstable();
        let expected = format!("{method} {sent:?} {names:?}");
        let request = seen.lock().unwrap().pop();
        assert_eq!(request.as_deref(), Some(&*expected), "{name}");
    }
    assert_eq!(upstream.connections(), 1);
}

/// A request whose body is more than is buffered, and comes but for one byte.
const UPLOAD: usize = 100_000;

async fn upload(gateway: &Gateway) -> Client {
    let mut client = gateway.client().await;
    let length = (UPLOAD + 1).to_string();
    client
        .send_request("POST", "/v", &[("content-length", &length)])
        .await;
    client.send("x".repeat(UPLOAD)).await;
    client
}

#[tokio::test]
async fn an_upload_may_be_answered_before_its_end() {
    // RFC 9113 section 8.1: the server asks for no more of it.
    let upstream = Frames::start(None, |asked| match asked.number {
        0 => vec![Act::Answer, Act::Reset(NO_ERROR)],
        _ => vec![Act::Answer],
    });
    let gateway = before(&upstream.url()).start();
    let answer = upload(&gateway).await.answer("POST").await;
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    assert_eq!(gateway.get("/").await.status, 200);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["upstream"]["endpoints"][0]["failed"], 0, "{status}");
}

#[tokio::test]
async fn an_upstream_that_waits_for_an_upload_has_not_stalled() {
    let wait = |asked: Asked| match asked.number {
        0..3 => vec![Act::Part(Some(9))],
        _ => vec![Act::Answer],
    };
    let upstream = Frames::start(None, wait);
    let gateway = before(&upstream.url())
        .config("upstream.response_body.grace = \"300ms\"")
        .config("upstream.breaker.failures = 3")
        .start();
    for _ in 0..3 {
        let mut client = upload(&gateway).await;
        let received = client.received().await;
        let is_begun = received.status() == Some(200) && received.text.ends_with("{}");
        assert!(is_begun && !received.is_whole, "{received:?}");
    }
    until("nothing is under way", || gateway.in_flight() == 0).await;
    assert_eq!(gateway.get("/").await.status, 200, "the breaker is closed");
}

#[tokio::test]
async fn a_reload_does_not_end_exchanges_under_way() {
    const LARGE: usize = 12 << 20;
    let upstream = Polite::start(|request| request.answer(Bytes::from(vec![b' '; LARGE])));
    let gateway = before(&upstream.url()).start();
    let mut client = Client::connect_narrow(gateway.public).await;
    client
        .send_request("GET", "/", &[("connection", "close")])
        .await;
    let begun = client.some(1).await.len();
    for windows in [16, 32] {
        let config = format!(
            "upstream.url = \"{}\"\nupstream.http2 = true\nupstream.max_in_flight = {windows}\n{ALL}",
            upstream.url()
        );
        assert_eq!(gateway.reload(&config).await.status, 200);
    }
    let rest = client.rest().await.len();
    assert!(begun + rest > LARGE, "{begun} {rest}");
}
