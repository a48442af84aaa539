//! The table of faults: whatever the upstream does, each client gets a clear answer
//! within the time-outs, with the word for it that `/status` has too; the upstream gets no
//! useless requests, nothing stays under way, and the next request for another key is
//! answered correctly. Which bodies are JSON and which heads are failures stands in
//! `upstream::answer`.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use super::{endpoint, key, keyed, metric, until_idle};
use crate::support::upstream::{refusing, usual_body};
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token};

/// Time-outs that are soon over.
const TIMES: &str = r#"
    upstream.first_byte_timeout = "700ms"
    upstream.timeout = "1400ms"
    upstream.silence_timeout = "1s"
"#;

const OK: &str = "HTTP/1.1 200 OK\r\n";
const JSON: &str = "content-type: application/json\r\n";
/// What no client may see.
const TELLING: &str = r#"{"telling":"connect ECONNREFUSED 10.9.8.7:5432"}"#;

/// A fault, and what comes of it.
struct Fault {
    name: String,
    reply: Reply,
    status: u16,
    proxy_status: String,
    reason: String,
    retry_after: Option<u64>,
    /// What the upstream gets: so many requests.
    asked: usize,
    /// How long that takes at the least: until some time-out.
    least: Duration,
}

/// Reads what comes of a fault: its name, status, type (RFC 9209), reason, then what is
/// unusual.
fn fault((text, reply): (&str, Reply)) -> Fault {
    let (name, rest) = text.split_once(": ").unwrap();
    let mut words = rest.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    let mut fault = Fault {
        name: name.to_owned(),
        reply,
        status: next().parse().unwrap(),
        proxy_status: format!("ordgate; error={}", next()),
        reason: next(),
        retry_after: None,
        asked: 1,
        least: Duration::ZERO,
    };
    for word in words {
        match word.split_once('=') {
            // It may have gone by the next time, or the status path is requested as well.
            None if word == "twice" => fault.asked = 2,
            Some(("received", status)) => {
                fault.proxy_status += &format!("; received-status={status}");
            }
            Some(("wait", seconds)) => fault.retry_after = Some(seconds.parse().unwrap()),
            Some(("after", millis)) => fault.least = Duration::from_millis(millis.parse().unwrap()),
            _ => panic!("{word}"),
        }
    }
    fault
}

/// What is over at once.
#[rustfmt::skip]
fn quick(elsewhere: &str) -> Vec<(&'static str, Reply)> {
    let raw = |text: &str| Reply::raw(format!("{OK}{text}"));
    let chunked = format!("{JSON}transfer-encoding: chunked\r\n\r\n");
    let to = format!("location: {elsewhere}/\r\n");
    let of = |status, fields: &str| Reply::with(status, fields, TELLING);
    vec![
        ("reset before the head: 502 connection_terminated connection_closed twice", Reply::nothing().reset()),
        ("closed within the head: 502 connection_terminated connection_closed twice", Reply::raw(OK).close()),
        ("reset in mid-body: 502 http_response_incomplete truncated twice", raw("content-length: 9\r\n\r\n{").reset()),
        ("truncated between chunks: 502 http_response_incomplete truncated twice", raw(&format!("{chunked}2\r\n{{}}\r\n")).close()),
        ("an invalid chunk: 502 http_response_incomplete truncated twice", raw(&format!("{chunked}xyz\r\n{{}}")).close()),
        ("a body without end: 502 http_response_body_size answer_too_large", raw(&chunked).endless("400\r\n".to_owned() + &" ".repeat(1024) + "\r\n")),
        ("a body without length: 502 http_response_body_size answer_too_large", raw("\r\n").endless([b' '; 1024])),
        ("an endless length: 502 http_response_body_size answer_too_large", raw("content-length: 9000000000000000000\r\n\r\n").hang()),
        ("a head without end: 502 http_protocol_error not_http", Reply::raw(OK).endless(format!("x: {}\r\n", "y".repeat(1000)))),
        ("lengths that differ: 502 http_protocol_error not_http", raw("content-length: 2\r\ncontent-length: 3\r\n\r\n{}").close()),
        ("garbage: 502 http_protocol_error not_http", Reply::raw("telling garbage\r\n\r\n").close()),
        ("HTML: 502 http_protocol_error not_json", Reply::with(200, JSON, "<html>telling</html>")),
        ("gzip: 502 http_protocol_error not_json received=200", Reply::with(200, &format!("{JSON}content-encoding: gzip\r\n"), b"\x1f\x8b\x08\0\0\0\0\0")),
        ("101: 502 http_protocol_error unexpected_status received=101", Reply::raw("HTTP/1.1 101 OK\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")),
        ("304: 502 http_protocol_error unexpected_status received=304", Reply::raw("HTTP/1.1 304 OK\r\netag: \"x\"\r\n\r\n")),
        ("500: 502 http_protocol_error server_error received=500", of(500, JSON)),
        ("503: 502 http_protocol_error server_error received=503 twice", of(503, JSON)),
        ("503 for a while: 503 http_protocol_error server_error received=503 wait=9", of(503, "retry-after: 9\r\n")),
        ("302: 502 http_protocol_error redirect received=302", of(302, &to)),
        ("401: 502 http_protocol_error key_refused received=401 twice", of(401, JSON)),
        ("410: 502 http_protocol_error retired received=410", of(410, JSON)),
        ("429: 503 http_protocol_error throttled received=429 wait=7", of(429, "retry-after: 7\r\n")),
    ]
}

/// What is over when a time-out says so.
#[rustfmt::skip]
fn slow() -> Vec<(&'static str, Reply)> {
    let long = format!("{OK}content-length: 60000\r\n\r\n{{");
    let (every, spaces) = (Duration::from_millis(5), " ".repeat(60_000));
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(2000);
    vec![
        ("a black hole: 504 http_response_timeout upstream_timeout after=700", Reply::nothing().hang()),
        ("a head that drips: 504 http_response_timeout upstream_timeout after=700", Reply::raw(OK).drip(format!("x: {spaces}"), every)),
        ("hints and no answer: 504 http_response_timeout upstream_timeout after=700", Reply::nothing().drip(hints, every)),
        ("silence in mid-body: 504 connection_read_timeout upstream_body_timeout after=1000", Reply::raw(&long).hang()),
        ("a body that drips: 504 http_response_timeout upstream_timeout after=1400", Reply::raw(long).drip(spaces, every)),
    ]
}

/// Lets a fault happen to one request, and looks at all that comes of it.
async fn happens(fault: Fault, config: &str) {
    let upstream = Upstream::start();
    let setup = keyed(&upstream, "one").config("upstream.max_body_bytes = \"64KiB\"");
    let gateway = setup.config(config).start();
    let name = &*fault.name;
    upstream.always(fault.reply.clone());
    let began = Instant::now();
    let answer = gateway.get(TOKEN).await;
    assert!(began.elapsed() >= fault.least, "{name}");
    assert_eq!(answer.status, fault.status, "{name}: {answer:?}");
    assert_eq!(answer.must("proxy-status"), fault.proxy_status, "{name}");
    let wait = answer.field("retry-after").map(|n| n.parse().unwrap());
    assert_eq!(wait, fault.retry_after, "{name}");
    assert_eq!(answer.problem()["reason"], *fault.reason, "{name}");
    let detail = format!("; detail={}", fault.reason);
    assert!(answer.must("cache-status").ends_with(&detail), "{name}");
    let all = String::from_utf8_lossy(&answer.bytes()).into_owned();
    assert!(!all.contains("telling"), "{name}: {all}");

    upstream.close_connections();
    until_idle(&gateway, name).await;
    assert_eq!(upstream.count(), fault.asked, "{name}");
    assert_eq!(
        gateway.status()["refused"],
        json!({ &*fault.reason: 1 }),
        "{name}"
    );
    let endpoint = endpoint(&gateway, 0);
    let last = &endpoint["last_failure"];
    match &*fault.reason {
        // A target's own answer says nothing of the endpoint.
        "answer_too_large" | "key_refused" | "target_refused" | "throttled" => {
            assert!(last.is_null() && endpoint["failed"] == 0, "{name}: {last}");
        }
        reason => {
            assert_eq!(last["reason"], reason, "{name}");
            assert!(last["at"].as_str().unwrap().ends_with(" GMT"));
            let labels = format!(
                "{{upstream=\"default\",endpoint=\"{}\",reason=\"{reason}\"}}",
                upstream.url()
            );
            let name_of_metric = format!("ordgate_upstream_failures_total{labels}");
            let counted = metric(&gateway, &name_of_metric).await;
            assert_ne!(counted, "0", "{name}");
            assert!(!last.to_string().contains(TOKEN), "{name}: {last}");
            assert_ne!(endpoint["failed"], 0, "{name}");
        }
    }

    upstream.usually(|seen| Reply::json(usual_body(&seen.target())));
    // However long a key is to rest.
    gateway.advance(3_601_000);
    for target in [&*token(1), TOKEN] {
        let answer = gateway.get(target).await;
        assert_eq!(
            (answer.status, answer.text()),
            (200, &*usual_body(target)),
            "{name}"
        );
    }
}

#[tokio::test]
async fn quick_faults_are_reported_and_leave_nothing_behind() {
    let elsewhere = Upstream::start();
    for row in quick(&elsewhere.url()) {
        happens(fault(row), "").await;
    }
    assert_eq!(elsewhere.connections(), 0, "redirects are not followed");
}

#[tokio::test]
async fn slow_faults_are_reported_and_leave_nothing_behind() {
    join_all(slow().into_iter().map(|row| happens(fault(row), TIMES))).await;
}

/// It costs no budget either.
#[tokio::test]
async fn a_closed_port_gets_502_until_a_server_listens() {
    let (socket, address) = refusing();
    let setup = Setup::at(&format!("http://{address}")).keys("one");
    let gateway = setup.config("upstream.requests_per_minute = 10").start();
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=connection_refused"
    );
    let problem = answer.problem();
    assert_eq!(problem["reason"], "connection_refused");
    assert!(!problem.to_string().contains(&address.port().to_string()));
    assert_eq!(endpoint(&gateway, 0)["failed"], 2, "and once more");
    assert_eq!(gateway.figure("/upstream/sent"), 0);
    assert_eq!(key(&gateway, 0)["budget_left"], 10);
    let _upstream = Upstream::start_on(socket);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    assert_eq!(key(&gateway, 0)["budget_left"], 9);
}

/// Checks that the next requests get answers of their own.
async fn others_are_answered(gateway: &Gateway) {
    for number in 0..5 {
        let answer: Answer = gateway.get(&token(number)).await;
        assert_eq!(answer.text(), usual_body(&token(number)));
    }
}

#[tokio::test]
async fn bytes_beyond_content_length_are_dropped() {
    let poison = format!("{OK}content-length: 12\r\n\r\n{{\"poison\":1}}");
    for more in ["garbage\r\n\r\n", &poison, &poison[..poison.len() - 1]] {
        let upstream = Upstream::start();
        let gateway = keyed(&upstream, "").start();
        for number in 100..110 {
            let reply = format!("{OK}{JSON}content-length: 2\r\n\r\n{{}}{more}");
            upstream.once(&token(number), Reply::raw(reply));
            assert_eq!(gateway.get(&token(number)).await.text(), "{}", "{more}");
            others_are_answered(&gateway).await;
            gateway.advance(60_000);
        }
    }
}

#[tokio::test]
async fn a_late_answer_reaches_no_client() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one").config(TIMES).start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json(r#"{"late":1}"#).behind(&gate));
    assert_eq!(gateway.get(TOKEN).await.status, 504);
    gate.open();
    others_are_answered(&gateway).await;
    until_idle(&gateway, "late").await;
    assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN));
}

#[tokio::test]
async fn a_closed_idle_connection_is_replaced() {
    for end in [Reply::nothing().close(), Reply::nothing().reset()] {
        let upstream = Upstream::start();
        let gateway = Gateway::before(&upstream);
        assert_eq!(gateway.get(&token(0)).await.status, 200);
        // The request finds its connection closed, or reset, before an answer.
        upstream.once(TOKEN, end);
        assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN));
        let seen = upstream.seen();
        assert_eq!(seen.len(), 3, "asked, and asked again");
        assert_eq!(seen[1].raw, seen[2].raw);
        assert_eq!(seen[0].connection, seen[1].connection);
        assert_ne!(seen[1].connection, seen[2].connection);
    }
}
