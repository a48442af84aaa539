//! Requests that are not HTTP, which get hyper's own answer, and those that can be read in
//! two ways.

use crate::support::client::request;
use crate::support::wire::rows;
use crate::support::{BLOCK, Gateway, TOKEN, Upstream};

/// A head's end and a Host, for rows that are about something else.
const REST: &str = "host: a\r\n\r\n";

/// The status, the name (`hyper:` where that refuses it), and what is sent. `{smuggled}` is a second request.
const AMBIGUOUS: &str = r"
    400 | both framings, length first | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n{REST}0\r\n\r\n{smuggled}
    405 | both framings, encoding first | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n{REST}0\r\n\r\n{smuggled}
    400 | hyper: differing lengths | GET {TOKEN} HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 5\r\n{REST}{smuggled}
    400 | the same length twice | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 5\r\n{REST}12345
    400 | hyper: a hexadecimal length | GET {TOKEN} HTTP/1.1\r\ncontent-length: 0x5\r\n{REST}12345
    400 | an encoding that is not chunked | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n{REST}
    400 | hyper: an encoding in HTTP/1.0 | POST {TOKEN} HTTP/1.0\r\ntransfer-encoding: chunked\r\n{REST}
    400 | hyper: a blank before the colon | GET {TOKEN} HTTP/1.1\r\ncontent-length : 5\r\n{REST}{smuggled}
    400 | hyper: a folded field | GET {TOKEN} HTTP/1.1\r\nx: a\r\n b\r\n{REST}
    400 | hyper: a field without a colon | GET {TOKEN} HTTP/1.1\r\nx\r\n{REST}
    400 | no Host | GET {TOKEN} HTTP/1.1\r\n\r\n
    400 | two Hosts | GET {TOKEN} HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n
    400 | a Host that is none | GET {TOKEN} HTTP/1.1\r\nhost: a/b@c\r\n\r\n
    400 | absolute form with userinfo | GET http://user@a{TOKEN} HTTP/1.1\r\n{REST}
    400 | authority form | CONNECT upstream.example:443 HTTP/1.1\r\n{REST}
    400 | asterisk form | OPTIONS * HTTP/1.1\r\n{REST}
    400 | hyper: no version | GET {TOKEN}\r\n{REST}
    400 | hyper: a version in small letters | GET {TOKEN} http/1.1\r\n{REST}
    400 | a body on GET | GET {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345
    400 | a request within a body on GET | GET {TOKEN} HTTP/1.1\r\ncontent-length: {length of smuggled}\r\n{REST}{smuggled}
    405 | a body on POST | POST {TOKEN} HTTP/1.1\r\ncontent-length: 5\r\n{REST}12345
    405 | a body on POST that waits for leave | POST {TOKEN} HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n{REST}
    405 | a bad chunk on POST | POST {TOKEN} HTTP/1.1\r\ntransfer-encoding: chunked\r\n{REST}xyz\r\n{smuggled}
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
        long("hyper: a target without end", 431, target, "", "x", 17_000),
        long("hyper: a long field", 431, field, "\r\n{REST}", "y", 16_384),
        long("hyper: a head without end", 431, field, "", "y", 20_000),
        long(
            "hyper: too many fields",
            431,
            fields,
            "{REST}",
            "x: y\r\n",
            100,
        ),
    ]);
    for (name, bytes, status) in rows {
        let mut client = gateway.client().await;
        client.send(&bytes).await;
        let answer = client.try_answer("GET").await;
        let answer = answer.unwrap_or_else(|| panic!("{name}: no answer"));
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
        if name.starts_with("hyper") {
            assert_eq!(answer.body, b"", "{name}");
        } else {
            answer.problem();
        }
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
async fn good_requests_before_a_bad_one_are_answered() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    let good = request("GET", TOKEN, &[]);
    client
        .send(format!(
            "{good}GET {BLOCK} HTTP/1.1\r\nhost : a\r\n\r\n{good}"
        ))
        .await;
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.answer("GET").await.status, 400);
    assert_eq!(client.rest().await, b"");
    assert_eq!(upstream.targets(), [TOKEN]);
}
