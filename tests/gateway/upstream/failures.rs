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
    // Status, `proxy-status`' error, its `received-status`, how often it is
    // asked: once more where the connection ended, or the upstream may be well
    // again by then.
    let telling = r#"{"telling":"connect ECONNREFUSED 10.9.8.7:5432"}"#;
    let rows: Vec<(&str, Reply, &str, Option<u16>, usize)> = vec![
        (
            "500",
            Reply::status(500, telling),
            "http_protocol_error",
            Some(500),
            1,
        ),
        (
            "503",
            Reply::status(503, telling),
            "http_protocol_error",
            Some(503),
            2,
        ),
        (
            "401",
            Reply::status(401, telling),
            "http_protocol_error",
            Some(401),
            1,
        ),
        (
            "403",
            Reply::status(403, telling),
            "http_protocol_error",
            Some(403),
            1,
        ),
        (
            "410",
            Reply::status(410, telling),
            "http_protocol_error",
            Some(410),
            1,
        ),
        (
            "redirect",
            Reply::with(302, "location: http://telling.example/\r\n", telling),
            "http_protocol_error",
            Some(302),
            1,
        ),
        (
            "redirect to itself",
            Reply::with(301, "location: /telling\r\n", ""),
            "http_protocol_error",
            Some(301),
            1,
        ),
        (
            "304 that nobody asked for",
            Reply::raw("HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n"),
            "http_protocol_error",
            Some(304),
            1,
        ),
        (
            "204",
            Reply::raw("HTTP/1.1 204 No Content\r\n\r\n"),
            "http_protocol_error",
            Some(204),
            1,
        ),
        (
            "206",
            Reply::with(206, JSON, telling),
            "http_protocol_error",
            Some(206),
            1,
        ),
        (
            "HTML",
            Reply::with(200, "content-type: text/html\r\n", "<html>telling</html>"),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "HTML with 404",
            Reply::with(404, "content-type: text/html\r\n", "<html>telling</html>"),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "HTML that is called JSON",
            Reply::with(200, JSON, "<html>telling</html>"),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "JSON that is called text",
            Reply::with(200, "content-type: text/plain\r\n", telling),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "no body",
            Reply::with(200, JSON, ""),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "half of a JSON value",
            Reply::with(200, JSON, &telling[..20]),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "JSON that is not UTF-8",
            Reply::with(200, JSON, b"{\"telling\":\"\xe9\"}"),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "gzip though nobody asked",
            Reply::with(
                200,
                &format!("{JSON}content-encoding: gzip\r\n"),
                b"\x1f\x8b\x08\0\0\0\0\0",
            ),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "garbage",
            Reply::raw("telling garbage\r\n\r\n").close(),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "HTTP/2 frames",
            Reply::raw(b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\r\n\r\n").close(),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "a status that is none",
            Reply::raw("HTTP/1.1 20 OK\r\n\r\n").close(),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "lengths that differ",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")
                .close(),
            "http_protocol_error",
            None,
            1,
        ),
        (
            "a chunk that is none",
            Reply::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n{}").close(),
            "http_response_incomplete",
            None,
            2,
        ),
        (
            "truncated",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"telling\":1}").close(),
            "http_response_incomplete",
            None,
            2,
        ),
        (
            "truncated in chunks",
            Reply::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n").close(),
            "http_response_incomplete",
            None,
            2,
        ),
        (
            "reset in mid-body",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").reset(),
            "http_response_incomplete",
            None,
            2,
        ),
        (
            "more than is accepted, and it says so",
            Reply::with(200, JSON, format!("\"{}\"", "x".repeat(2000))),
            "http_response_body_size",
            None,
            1,
        ),
        (
            "more than is accepted, without a word",
            Reply::chunked(format!("\"{}\"", "x".repeat(2000)), 100),
            "http_response_body_size",
            None,
            1,
        ),
        (
            "it says that there is more than a machine has",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9000000000000000000\r\n\r\n{}").hang(),
            "http_response_body_size",
            None,
            1,
        ),
        (
            "closed without an answer",
            Reply::nothing().close(),
            "connection_terminated",
            None,
            2,
        ),
        (
            "reset without an answer",
            Reply::nothing().reset(),
            "connection_terminated",
            None,
            2,
        ),
    ];
    let gateway = Setup::before(&upstream)
        .config("upstream.max_body_bytes = \"1KiB\"\nupstream.retry.share = 100")
        .start();
    for (number, (name, reply, error, received, asked)) in rows.into_iter().enumerate() {
        let target = token(number);
        upstream.always(reply);
        let before = upstream.count();
        let answer = gateway.get(&target).await;
        assert_eq!(answer.status, 502, "{name}");
        answer.problem();
        let received = received.map_or(String::new(), |code| format!("; received-status={code}"));
        let status = answer.must("proxy-status");
        assert_eq!(
            status,
            format!("ordgate; error={error}{received}"),
            "{name}"
        );
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
        assert_eq!(upstream.count() - before, asked, "{name}");
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
    for (retry_after, seconds) in [("60", 60), ("86400", 3600), ("soon", 10)] {
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
    let gateway = Setup::before(&upstream).config(IMPATIENT).start();
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
