//! Requests that are not HTTP, or that can be read in two ways.

use crate::support::client::request;
use crate::support::{BLOCK, Gate, Gateway, Reply, Setup, TOKEN, Upstream};

/// A head's end and a Host, for rows that are about something else.
const REST: &str = "host: a\r\n\r\n";

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let smuggled = format!("GET {TOKEN} HTTP/1.1\r\n{REST}");
    let rows: Vec<(&str, String, u16)> = vec![
        (
            "LF after the request line",
            format!("GET {TOKEN} HTTP/1.1\n{REST}"),
            400,
        ),
        (
            "LF after a field",
            format!("GET {TOKEN} HTTP/1.1\r\nhost: a\n\r\n"),
            400,
        ),
        (
            "LF at the head's end",
            format!("GET {TOKEN} HTTP/1.1\r\nhost: a\r\n\n"),
            400,
        ),
        (
            "CR within a field",
            format!("GET {TOKEN} HTTP/1.1\r\nx: a\rb\r\n{REST}"),
            400,
        ),
        (
            "both framings, length first",
            format!(
                "GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n{REST}0\r\n\r\n{smuggled}"
            ),
            400,
        ),
        (
            "both framings, encoding first",
            format!(
                "POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n{REST}0\r\n\r\n{smuggled}"
            ),
            400,
        ),
        (
            "differing lengths",
            format!(
                "GET {TOKEN} HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 5\r\n{REST}{smuggled}"
            ),
            400,
        ),
        (
            "the same length twice",
            format!(
                "GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n{REST}12345"
            ),
            400,
        ),
        (
            "a list of lengths",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: 5, 5\r\n{REST}12345"),
            400,
        ),
        (
            "a signed length",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: +5\r\n{REST}12345"),
            400,
        ),
        (
            "a hexadecimal length",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: 0x5\r\n{REST}12345"),
            400,
        ),
        (
            "a length without a number",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length:\r\n{REST}"),
            400,
        ),
        (
            "a length beyond 64 bits",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n{REST}"),
            400,
        ),
        (
            "an encoding that is not chunked",
            format!("POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n{REST}"),
            400,
        ),
        (
            "an encoding that only looks like chunked",
            format!("POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: xchunked\r\n{REST}{smuggled}"),
            400,
        ),
        (
            "two encodings",
            format!(
                "POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n{REST}"
            ),
            400,
        ),
        (
            "an encoding in HTTP/1.0",
            format!("POST {TOKEN} HTTP/1.0\r\ntransfer-encoding: chunked\r\n{REST}"),
            400,
        ),
        (
            "a blank before the colon",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length : 5\r\n{REST}{smuggled}"),
            400,
        ),
        (
            "a folded field",
            format!("GET {TOKEN} HTTP/1.1\r\nx: a\r\n b\r\n{REST}"),
            400,
        ),
        (
            "a folded first field",
            format!("GET {TOKEN} HTTP/1.1\r\n x: a\r\n{REST}"),
            400,
        ),
        (
            "a field without a colon",
            format!("GET {TOKEN} HTTP/1.1\r\nx\r\n{REST}"),
            400,
        ),
        (
            "a field without a name",
            format!("GET {TOKEN} HTTP/1.1\r\n: x\r\n{REST}"),
            400,
        ),
        ("no Host", format!("GET {TOKEN} HTTP/1.1\r\n\r\n"), 400),
        (
            "two Hosts",
            format!("GET {TOKEN} HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
            400,
        ),
        (
            "one Host twice",
            format!("GET {TOKEN} HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n"),
            400,
        ),
        (
            "a Host that is none",
            format!("GET {TOKEN} HTTP/1.1\r\nhost: a/b@c\r\n\r\n"),
            400,
        ),
        (
            "absolute form with userinfo",
            format!("GET http://user@a{TOKEN} HTTP/1.1\r\n{REST}"),
            400,
        ),
        (
            "absolute form of another scheme",
            format!("GET ftp://a{TOKEN} HTTP/1.1\r\n{REST}"),
            400,
        ),
        (
            "authority form",
            format!("CONNECT upstream.example:443 HTTP/1.1\r\n{REST}"),
            400,
        ),
        (
            "asterisk form",
            format!("OPTIONS * HTTP/1.1\r\n{REST}"),
            400,
        ),
        (
            "two blanks in the request line",
            format!("GET  {TOKEN} HTTP/1.1\r\n{REST}"),
            400,
        ),
        (
            "a blank in the target",
            format!("GET {TOKEN} x HTTP/1.1\r\n{REST}"),
            400,
        ),
        ("no version", format!("GET {TOKEN}\r\n{REST}"), 400),
        (
            "a version in small letters",
            format!("GET {TOKEN} http/1.1\r\n{REST}"),
            505,
        ),
        (
            "HTTP/2's preface",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            505,
        ),
        (
            "a version to come",
            format!("GET {TOKEN} HTTP/3.0\r\n{REST}"),
            505,
        ),
        (
            "a long target",
            format!("GET {TOKEN}?{} HTTP/1.1\r\n{REST}", "x".repeat(8192)),
            414,
        ),
        (
            "a target without end",
            format!("GET {TOKEN}?{}", "x".repeat(16_000)),
            414,
        ),
        (
            "a long field",
            format!(
                "GET {TOKEN} HTTP/1.1\r\nx: {}\r\n{REST}",
                "y".repeat(16_384)
            ),
            431,
        ),
        (
            "a head without end",
            format!("GET {TOKEN} HTTP/1.1\r\nx: {}", "y".repeat(20_000)),
            431,
        ),
        (
            "too many fields",
            format!("GET {TOKEN} HTTP/1.1\r\n{}{REST}", "x: y\r\n".repeat(100)),
            431,
        ),
        (
            "a body on GET",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345"),
            400,
        ),
        (
            "a body in chunks on GET",
            format!(
                "GET {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}5\r\n12345\r\n0\r\n\r\n"
            ),
            400,
        ),
        (
            "a body on GET that never comes",
            format!("GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}"),
            400,
        ),
        (
            "a request within a body on GET",
            format!(
                "GET {TOKEN} HTTP/1.1\r\ncontent-length: {}\r\n{REST}{smuggled}",
                smuggled.len()
            ),
            400,
        ),
        (
            "a body on POST",
            format!("POST {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345"),
            405,
        ),
        (
            "a body on POST that waits for leave",
            format!("POST {TOKEN} HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n{REST}"),
            405,
        ),
        (
            "a bad chunk on POST",
            format!(
                "POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}xyz\r\n{smuggled}"
            ),
            405,
        ),
        (
            "a chunk with a sign on POST",
            format!(
                "POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}+5\r\n12345\r\n0\r\n\r\n"
            ),
            405,
        ),
        (
            "a body to nowhere",
            format!("POST /nowhere HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345"),
            404,
        ),
    ];
    for (name, bytes, status) in rows {
        let mut client = gateway.client().await;
        client.send(&bytes).await;
        let answer = client.try_answer("GET").await;
        let answer = answer.unwrap_or_else(|| panic!("{name}: no answer"));
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        answer.problem();
        if name.contains("form") {
            // The request is clear enough; the connection may live on.
            continue;
        }
        assert_eq!(answer.field("connection"), Some("close"), "{name}");
        let rest = client.rest().await;
        assert!(
            rest.is_empty(),
            "{name}: then {:?}",
            String::from_utf8_lossy(&rest)
        );
    }
    assert_eq!(upstream.targets(), Vec::<String>::new());
    assert_eq!(gateway.get(TOKEN).await.status, 200, "others are served");
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused_or_cut_off() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.header_timeout = \"60ms\"")
        .start();
    let rows: &[&[u8]] = &[
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x00",
        b"\r\n\r\n\r\n",
        b"GET /\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx y: b\r\n\r\n",
        b"G(T / HTTP/1.1\r\nhost: a\r\n\r\n",
    ];
    for bytes in rows {
        let mut client = gateway.client().await;
        client.send(bytes).await;
        if let Some(answer) = client.try_answer("GET").await {
            assert!((400..500).contains(&answer.status), "{bytes:?}: {answer:?}");
        }
        client.rest().await;
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn good_requests_before_a_bad_one_are_answered() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    let good = request("GET", TOKEN, &[]);
    client
        .send(format!("{good}GET {BLOCK} HTTP/1.1\nhost: a\r\n\r\n{good}"))
        .await;
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.answer("GET").await.status, 400);
    assert_eq!(client.rest().await, b"");
    assert_eq!(upstream.targets(), [TOKEN]);
}

#[tokio::test]
async fn a_bad_request_waits_for_a_good_one_before_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.idle_timeout = \"250ms\"\nserver.header_timeout = \"250ms\"")
        .start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = gateway.client().await;
    client.send_request("GET", TOKEN, &[]).await;
    upstream.until_requests(1).await;
    client.send("GET / HTTP/1.1\nhost: a\r\n\r\n").await;
    // The time of three others to be closed for idleness passes.
    for _ in 0..3 {
        gateway.client().await.rest().await;
    }
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.answer("GET").await.status, 400);
}
