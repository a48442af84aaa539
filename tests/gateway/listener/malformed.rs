//! Requests that are not HTTP, or that can be read in two ways.

use crate::support::client::request;
use crate::support::wire::rows;
use crate::support::{BLOCK, Gate, Gateway, Reply, TOKEN, Upstream};

/// A head's end and a Host, for rows that are about something else.
const REST: &str = "host: a\r\n\r\n";

/// The status, the name, and what is sent. `{smuggled}` is a second request.
const AMBIGUOUS: &str = r"
    400 | LF after the request line | GET {TOKEN} HTTP/1.1\n{REST}
    400 | LF after a field | GET {TOKEN} HTTP/1.1\r\nhost: a\n\r\n
    400 | LF at the head's end | GET {TOKEN} HTTP/1.1\r\nhost: a\r\n\n
    400 | CR within a field | GET {TOKEN} HTTP/1.1\r\nx: a\rb\r\n{REST}
    400 | both framings, length first | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n{REST}0\r\n\r\n{smuggled}
    400 | both framings, encoding first | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n{REST}0\r\n\r\n{smuggled}
    400 | differing lengths | GET {TOKEN} HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 5\r\n{REST}{smuggled}
    400 | the same length twice | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n{REST}12345
    400 | a list of lengths | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5, 5\r\n{REST}12345
    400 | a signed length | GET {TOKEN} HTTP/1.1\r\ncontent-length: +5\r\n{REST}12345
    400 | a hexadecimal length | GET {TOKEN} HTTP/1.1\r\ncontent-length: 0x5\r\n{REST}12345
    400 | a length without a number | GET {TOKEN} HTTP/1.1\r\ncontent-length:\r\n{REST}
    400 | a length beyond 64 bits | GET {TOKEN} HTTP/1.1\r\ncontent-length: 18446744073709551616\r\n{REST}
    400 | an encoding that is not chunked | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n{REST}
    400 | an encoding that only looks like chunked | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: xchunked\r\n{REST}{smuggled}
    400 | two encodings | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n{REST}
    400 | an encoding in HTTP/1.0 | POST {TOKEN} HTTP/1.0\r\ntransfer-encoding: chunked\r\n{REST}
    400 | a blank before the colon | GET {TOKEN} HTTP/1.1\r\ncontent-length : 5\r\n{REST}{smuggled}
    400 | a folded field | GET {TOKEN} HTTP/1.1\r\nx: a\r\n b\r\n{REST}
    400 | a folded first field | GET {TOKEN} HTTP/1.1\r\n x: a\r\n{REST}
    400 | a field without a colon | GET {TOKEN} HTTP/1.1\r\nx\r\n{REST}
    400 | a field without a name | GET {TOKEN} HTTP/1.1\r\n: x\r\n{REST}
    400 | no Host | GET {TOKEN} HTTP/1.1\r\n\r\n
    400 | two Hosts | GET {TOKEN} HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n
    400 | one Host twice | GET {TOKEN} HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n
    400 | a Host that is none | GET {TOKEN} HTTP/1.1\r\nhost: a/b@c\r\n\r\n
    400 | absolute form with userinfo | GET http://user@a{TOKEN} HTTP/1.1\r\n{REST}
    400 | absolute form of another scheme | GET ftp://a{TOKEN} HTTP/1.1\r\n{REST}
    400 | authority form | CONNECT upstream.example:443 HTTP/1.1\r\n{REST}
    400 | asterisk form | OPTIONS * HTTP/1.1\r\n{REST}
    400 | two blanks in the request line | GET  {TOKEN} HTTP/1.1\r\n{REST}
    400 | a blank in the target | GET {TOKEN} x HTTP/1.1\r\n{REST}
    400 | no version | GET {TOKEN}\r\n{REST}
    505 | a version in small letters | GET {TOKEN} http/1.1\r\n{REST}
    505 | HTTP/2 after a request line of GET | GET {TOKEN} HTTP/2.0\r\n{REST}
    505 | a version to come | GET {TOKEN} HTTP/3.0\r\n{REST}
    400 | a body on GET | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345
    400 | a body in chunks on GET | GET {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}5\r\n12345\r\n0\r\n\r\n
    400 | a body on GET that never comes | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}
    400 | a request within a body on GET | GET {TOKEN} HTTP/1.1\r\ncontent-length: {length of smuggled}\r\n{REST}{smuggled}
    405 | a body on POST | POST {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345
    405 | a body on POST that waits for leave | POST {TOKEN} HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n{REST}
    405 | a bad chunk on POST | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}xyz\r\n{smuggled}
    405 | a chunk with a sign on POST | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}+5\r\n12345\r\n0\r\n\r\n
    404 | a body to nowhere | POST /nowhere HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345
";

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let smuggled = format!("GET {TOKEN} HTTP/1.1\r\n{REST}");
    let fill_in = |text: String| {
        let length = smuggled.len().to_string();
        let text = text.replace("{length of smuggled}", &length);
        let text = text.replace("{smuggled}", &smuggled);
        text.replace("{TOKEN}", TOKEN).replace("{REST}", REST)
    };
    let long = |name: &str, status, start: &str, end: &str, filler: &str, times| {
        let text = [start, &filler.repeat(times), end].concat();
        (name.to_owned(), fill_in(text), status)
    };
    let (target, field) = ("GET {TOKEN}?", "GET {TOKEN} HTTP/1.1\r\nx: ");
    let version = " HTTP/1.1\r\n{REST}";
    let fields = "GET {TOKEN} HTTP/1.1\r\n";
    let rows = rows(AMBIGUOUS).map(|[status, name, bytes]| {
        let status: u16 = status.parse().unwrap();
        (name, fill_in(bytes), status)
    });
    let rows = rows.chain([
        long("a long target", 414, target, version, "x", 8192),
        long("a target without end", 414, target, "", "x", 16_000),
        long("a long field", 431, field, "\r\n{REST}", "y", 16_384),
        long("a head without end", 431, field, "", "y", 20_000),
        long("too many fields", 431, fields, "{REST}", "x: y\r\n", 100),
    ]);
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
async fn a_refused_head_request_gets_no_content() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.header_timeout = \"60ms\"");
    let rows = [
        ("400", "HEAD / HTTP/1.1\r\nhost: a\n\r\n"),
        ("400", "\r\nHEAD / HTTP/1.1\r\n\r\n"),
        (
            "501",
            "HEAD / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ),
        ("408", "HEAD / HTTP/1.1\r\nhost: a\r\n"),
        (
            "400",
            "HEAD * HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        ),
    ];
    for (status, bytes) in rows {
        let mut client = gateway.client().await;
        client.send(bytes).await;
        let all = String::from_utf8(client.rest().await).unwrap();
        assert!(all.starts_with(&format!("HTTP/1.1 {status} ")), "{all}");
        assert!(
            all.contains("content-type: application/problem+json\r\n"),
            "{all}"
        );
        assert!(all.contains("connection: close\r\n"), "{all}");
        let (_, length) = all.split_once("content-length: ").unwrap();
        assert!(
            !length.starts_with('0'),
            "the length that GET would have: {all}"
        );
        assert!(all.ends_with("\r\n\r\n"), "{all}");
        assert_eq!(all.matches("\r\n\r\n").count(), 1, "{all}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_http_are_refused_or_cut_off() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.header_timeout = \"60ms\"");
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
    let gateway = Gateway::with(
        &upstream,
        "server.idle_timeout = \"250ms\"\nserver.header_timeout = \"250ms\"",
    );
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = gateway.start_get(TOKEN).await;
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

/// A regression: pages of listed origins could not read these answers.
#[tokio::test]
async fn the_answer_to_a_malformed_head_allows_a_listed_origin() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        "answers.cors_origins = [\"https://a.example\"]\nserver.header_timeout = \"50ms\"",
    );
    let a = "Origin: https://a.example\r\n";
    for (status, head, allowed) in [
        (400, format!("GET / HTTP/1.1\n{a}\r\n"), true),
        (400, format!("GET / HTTP/1.1\r\n{a}\r\n"), true),
        (400, format!("GET / HTTP/1.1\r\nx y: z\r\n{a}{REST}"), true),
        (408, format!("GET / HTTP/1.1\r\n{a}x: "), true),
        (400, format!("GET / HTTP/1.1\r\n{a}{a}\r\n"), false),
        (
            400,
            "GET / HTTP/1.1\r\norigin: https://b.example\r\n\r\n".to_owned(),
            false,
        ),
    ] {
        let mut client = gateway.client().await;
        client.send(&head).await;
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, status, "{head:?}");
        let origin = answer.field("access-control-allow-origin");
        assert_eq!(origin, allowed.then_some("https://a.example"), "{head:?}");
        assert_eq!(answer.must("vary"), "origin");
    }
}
