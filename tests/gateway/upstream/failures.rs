//! How each failure of the upstream appears to a client.

use std::time::Duration;

use crate::support::upstream::{refusing, usual_body};
use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, token, until, within};

const JSON: &str = "content-type: application/json\r\n";

/// Short time-outs.
pub(super) const IMPATIENT: &str = r#"
    upstream.first_byte_timeout = "80ms"
    upstream.timeout = "160ms"
    upstream.connect_timeout = "80ms"
"#;

#[tokio::test]
async fn every_failure_has_its_status() {
    let upstream = Upstream::start();
    let telling = r#"{"telling":"connect ECONNREFUSED 10.9.8.7:5432"}"#;
    let own = |status| Reply::status(status, telling);
    let page = "<html>telling</html>";
    let html = |status| Reply::with(status, "content-type: text/html\r\n", page);
    let raw = |head: &str| Reply::raw(format!("HTTP/1.1 {head}"));
    let to = |status, location| Reply::with(status, &format!("location: {location}\r\n"), telling);
    let text = Reply::with(200, "content-type: text/plain\r\n", telling);
    let gzip = format!("{JSON}content-encoding: gzip\r\n");
    let gzip = Reply::with(200, &gzip, b"\x1f\x8b\x08\0\0\0\0\0");
    let frames = b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\r\n\r\n";
    let lengths = raw("200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}");
    let truncated = raw("200 OK\r\ncontent-length: 100\r\n\r\n{\"telling\":1}");
    let chunk = raw("200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n");
    let no_chunk = raw("200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n{}");
    let endless = raw("200 OK\r\ncontent-length: 9000000000000000000\r\n\r\n{}");
    let large = format!("\"{}\"", "x".repeat(2000));
    let latin = b"{\"telling\":\"\xe9\"}";
    // With the status that `proxy-status` reports, and the number of attempts: two if
    // the connection ended, or the upstream may recover in between.
    let statuses = [
        (500, 1, own(500)),
        (503, 2, own(503)),
        (401, 1, own(401)),
        (403, 1, own(403)),
        (410, 1, own(410)),
        (302, 1, to(302, "http://telling.example/")),
        (301, 1, to(301, "/telling")),
        (304, 1, raw("304 Not Modified\r\netag: \"x\"\r\n\r\n")),
        (204, 1, raw("204 No Content\r\n\r\n")),
        (206, 1, Reply::with(206, JSON, telling)),
    ];
    let protocol = [
        ("HTML", html(200)),
        ("HTML with 404", html(404)),
        ("HTML that is called JSON", Reply::with(200, JSON, page)),
        ("JSON that is called text", text),
        ("no body", Reply::with(200, JSON, "")),
        (
            "half of a JSON value",
            Reply::with(200, JSON, &telling[..20]),
        ),
        ("JSON that is not UTF-8", Reply::with(200, JSON, latin)),
        ("unrequested gzip", gzip),
        ("garbage", Reply::raw("telling garbage\r\n\r\n").close()),
        ("HTTP/2 frames", Reply::raw(frames).close()),
        ("an invalid status", raw("20 OK\r\n\r\n").close()),
        ("lengths that differ", lengths.close()),
    ];
    let incomplete = [
        ("an invalid chunk", no_chunk.close()),
        ("truncated", truncated.clone().close()),
        ("truncated in chunks", chunk.close()),
        ("reset in mid-body", truncated.reset()),
    ];
    let too_large = [
        ("a large content-length", Reply::with(200, JSON, &large)),
        ("a large body in chunks", Reply::chunked(&large, 100)),
        ("a content-length beyond all memory", endless.hang()),
    ];
    let terminated = [
        ("closed without an answer", Reply::nothing().close()),
        ("reset without an answer", Reply::nothing().reset()),
    ];
    let rows = statuses.map(|(status, attempts, reply)| {
        let error = format!("http_protocol_error; received-status={status}");
        (format!("{status}"), reply, error, attempts)
    });
    let row = |error: &'static str, attempts| {
        move |(name, reply): (&str, Reply)| (name.to_owned(), reply, error.to_owned(), attempts)
    };
    let rows = rows
        .into_iter()
        .chain(protocol.map(row("http_protocol_error", 1)));
    let rows = rows.chain(incomplete.map(row("http_response_incomplete", 2)));
    let rows = rows.chain(too_large.map(row("http_response_body_size", 1)));
    let rows = rows.chain(terminated.map(row("connection_terminated", 2)));
    let gateway = Gateway::with(&upstream, "upstream.max_body_bytes = \"1KiB\"");
    for (number, (name, reply, error, attempts)) in rows.enumerate() {
        let target = token(number);
        upstream.always(reply);
        let before = upstream.count();
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, 502, "{name}");
        answer.problem();
        let status = answer.must("proxy-status");
        assert_eq!(status, format!("ordgate; error={error}"), "{name}");
        assert!(
            answer
                .must("cache-status")
                .starts_with("ordgate; fwd=uri-miss"),
            "{name}"
        );
        let all = String::from_utf8_lossy(&answer.bytes()).into_owned();
        for secret in [
            "telling",
            "ECONN",
            "10.9.8.7",
            &upstream.address().to_string(),
        ] {
            assert!(!all.contains(secret), "{name}: {secret} in {all}");
        }
        assert_eq!(upstream.count() - before, attempts, "{name}");
        assert_eq!(answer.field("retry-after"), None, "{name}");
        // Nothing of it was stored.
        upstream.usually(|seen| Reply::json(usual_body(&seen.target())));
        assert_eq!(gateway.get(&target).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn retry_after_of_the_upstream_is_passed_on_within_bounds() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).manual().start();
    for (retry_after, seconds) in [("60", 60), ("86400", 3600)] {
        let fields = format!("retry-after: {retry_after}\r\n");
        upstream.once(TOKEN, Reply::with(503, &fields, r#"{"telling":"why"}"#));
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 503, "{retry_after}");
        assert_eq!(answer.number("retry-after"), seconds, "{retry_after}");
        assert_eq!(
            answer.must("proxy-status"),
            "ordgate; error=http_protocol_error; received-status=503",
        );
        assert!(
            !answer.problem().to_string().contains("telling"),
            "{retry_after}"
        );
    }
    // What cannot be read is a pause for all.
    gateway.advance(10_000);
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 200, "nothing was stored: {answer:?}");
}

#[tokio::test]
async fn a_closed_port_gets_502() {
    let (_held, address) = refusing();
    let gateway = Setup::at(&format!("http://{address}")).start();
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=connection_refused"
    );
    let problem = answer.problem();
    assert!(!problem.to_string().contains(&address.port().to_string()));
}

#[tokio::test]
async fn an_upstream_without_an_address_gets_502() {
    let gateway = Setup::at("http://upstream.invalid:1")
        .config(IMPATIENT)
        .start();
    let answer = within("a name that does not resolve", gateway.get(TOKEN)).await;
    assert!(matches!(answer.status, 502 | 504), "{answer:?}");
    assert!(!answer.problem().to_string().contains("invalid"));
}

#[tokio::test]
async fn an_upstream_that_is_too_slow_gets_504() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, IMPATIENT);
    let every = Duration::from_millis(5);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n";
    let rows = [
        ("no first byte", Reply::nothing().hang()),
        ("half a head", Reply::raw(&head[..20]).hang()),
        (
            "a head that drips",
            Reply::nothing().drip(
                "HTTP/1.1 200 OK\r\nx: ".to_owned() + &"y".repeat(9000),
                every,
            ),
        ),
        ("no body", Reply::raw(head).hang()),
        ("half a body", Reply::raw(format!("{head}{{")).hang()),
        (
            "a body that drips",
            Reply::raw(head).drip(" ".repeat(5000), every),
        ),
    ];
    for (name, reply) in rows {
        upstream.once(TOKEN, reply);
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 504, "{name}");
        assert_eq!(
            answer.must("proxy-status"),
            "ordgate; error=http_response_timeout",
            "{name}"
        );
        answer.problem();
    }
    upstream.close_connections();
    until("none is in flight", || gateway.in_flight() == 0).await;
}

#[tokio::test]
async fn a_closed_idle_connection_is_replaced() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    // The first answer keeps the connection; the second request on it finds it
    // closed, or reset, before an answer.
    for (number, end) in [Reply::nothing().close(), Reply::nothing().reset()]
        .into_iter()
        .enumerate()
    {
        let (one, other) = (token(10 * number), token(10 * number + 1));
        assert_eq!(gateway.get(&one).await.status, 200);
        upstream.once(&other, end);
        let before = upstream.count();
        let answer = gateway.get(&other).await;
        assert_eq!((answer.status, answer.text()), (200, &*usual_body(&other)));
        assert_eq!(upstream.count() - before, 2, "asked, and asked again");
        let seen = upstream.seen();
        let [.., first, again] = &seen[..] else {
            panic!("{seen:?}")
        };
        assert_eq!(first.raw, again.raw);
        assert_ne!(first.connection, again.connection);
    }
}
