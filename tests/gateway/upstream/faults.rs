//! The table of faults: whatever the upstream does, each client gets a clear answer
//! within the time-outs, with the word for it that `/status` has too; the upstream gets no
//! useless requests, nothing stays under way, and the next request for another key is
//! answered correctly.

mod outcomes;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::until_idle;
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token};

/// Time-outs that are soon over.
const TIMES: &str = r#"
    upstream.connect_timeout = "700ms"
    upstream.first_byte_timeout = "700ms"
    upstream.timeout = "1400ms"
    upstream.queue_timeout = "100ms"
"#;

/// What most rows have in common.
const CONFIG: &str = r#"
    upstream.max_body_bytes = "64KiB"
"#;

/// A fault, and what comes of it.
struct Fault {
    name: &'static str,
    reply: Reply,
    /// What the client gets.
    status: u16,
    error: &'static str,
    reason: &'static str,
    received: Option<u16>,
    retry_after: Option<u64>,
    /// What the upstream gets: so many requests.
    asked: usize,
    /// How long that takes at the least: until some time-out.
    least: Duration,
}

/// A fault that is requested once, and is a 502.
fn fault(name: &'static str, error: &'static str, reason: &'static str, reply: Reply) -> Fault {
    Fault {
        name,
        reply,
        status: 502,
        error,
        reason,
        received: None,
        retry_after: None,
        asked: 1,
        least: Duration::ZERO,
    }
}

impl Fault {
    fn received(mut self, status: u16) -> Self {
        self.received = Some(status);
        self
    }

    /// It may have gone by the next time.
    fn again(mut self) -> Self {
        self.asked = 2;
        self
    }

    /// The status path is requested as well.
    fn checked(self) -> Self {
        self.again()
    }

    /// It says for how long it will last.
    fn lasts(mut self, seconds: u64) -> Self {
        (self.status, self.retry_after) = (503, Some(seconds));
        self
    }

    /// It lasts until a time-out.
    fn until(mut self, millis: u64) -> Self {
        (self.status, self.least) = (504, Duration::from_millis(millis));
        self
    }

    fn proxy_status(&self) -> String {
        let received = self.received.map(|n| format!("; received-status={n}"));
        format!(
            "ordgate; error={}{}",
            self.error,
            received.unwrap_or_default()
        )
    }

    /// That a client has got what it should.
    fn is_reported(&self, answer: &Answer) {
        let name = self.name;
        assert_eq!(answer.status, self.status, "{name}: {answer:?}");
        assert_eq!(answer.must("proxy-status"), self.proxy_status(), "{name}");
        let wait = answer.field("retry-after").map(|n| n.parse().unwrap());
        assert_eq!(wait, self.retry_after, "{name}");
        assert_eq!(answer.problem()["reason"], self.reason, "{name}");
        let detail = format!("; detail={}", self.reason);
        assert!(answer.must("cache-status").ends_with(&detail), "{name}");
        let all = String::from_utf8_lossy(&answer.bytes()).into_owned();
        assert!(!all.contains("telling"), "{name}: {all}");
    }

    /// Whether a target's own answer says nothing of the endpoint.
    fn is_of_endpoint(&self) -> bool {
        let others = [
            "answer_too_large",
            "key_refused",
            "target_refused",
            "throttled",
        ];
        !others.contains(&self.reason)
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\n";

const JSON: &str = "content-type: application/json\r\n";

/// What is over at once.
fn quick() -> Vec<Fault> {
    let broken = |name, reply| fault(name, "http_response_incomplete", "truncated", reply).again();
    let ended =
        |name, reply| fault(name, "connection_terminated", "connection_closed", reply).again();
    let wrong = |name, reason, reply| fault(name, "http_protocol_error", reason, reply);
    let no_http = |name, reply| wrong(name, "not_http", reply);
    let no_json = |name, reply| wrong(name, "not_json", reply);
    let large = |name, reply| fault(name, "http_response_body_size", "answer_too_large", reply);
    let status = |name, status: u16, reason, fields, body: &str| {
        wrong(name, reason, Reply::with(status, fields, body)).received(status)
    };
    let telling = r#"{"telling":"connect ECONNREFUSED 10.9.8.7:5432"}"#;
    let (html, page) = ("content-type: text/html\r\n", "<html>telling</html>");
    let raw = |head: &str| Reply::raw(format!("HTTP/1.1 {head}"));
    let chunked = format!("{OK}{JSON}transfer-encoding: chunked\r\n\r\n");
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    let zip = format!("{JSON}content-encoding: gzip\r\n");
    let frames = b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80\0\r\n\r\n";
    let throttled = |name, fields| status(name, 429, "throttled", fields, telling);
    vec![
        ended("reset before the head", Reply::nothing().reset()),
        ended("closed before the head", Reply::nothing().close()),
        ended("reset within the head", Reply::raw(OK).reset()),
        ended("closed within the head", Reply::raw(OK).close()),
        broken(
            "reset in mid-body",
            Reply::raw(format!("{OK}content-length: 100\r\n\r\n{{")).reset(),
        ),
        broken(
            "shorter than it says",
            Reply::raw(format!("{OK}content-length: 100\r\n\r\n{{}}")).close(),
        ),
        broken(
            "truncated between chunks",
            Reply::raw(format!("{chunked}2\r\n{{}}\r\n")).close(),
        ),
        broken(
            "truncated within a chunk",
            Reply::raw(format!("{chunked}9\r\n{{}}")).close(),
        ),
        broken(
            "an invalid chunk",
            Reply::raw(format!("{chunked}xyz\r\n{{}}")).close(),
        ),
        large("a body without end", Reply::raw(chunked).endless(chunk)),
        large(
            "a body without length or end",
            Reply::raw(format!("{OK}{JSON}\r\n")).endless([b' '; 1024]),
        ),
        large(
            "a body that is said to be endless",
            Reply::raw(format!("{OK}content-length: 9000000000000000000\r\n\r\n")).hang(),
        ),
        no_http(
            "a head without end",
            Reply::raw(OK).endless(format!("x: {}\r\n", "y".repeat(1000))),
        ),
        no_http(
            "lengths that differ",
            raw("200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}").close(),
        ),
        no_http("garbage", Reply::raw("telling garbage\r\n\r\n").close()),
        no_http("HTTP/2 frames", Reply::raw(frames).close()),
        no_http("an invalid status", raw("20 OK\r\n\r\n").close()),
        no_json("HTML with 200", Reply::with(200, html, page)),
        no_json("HTML with 404", Reply::with(404, html, page)),
        no_json("HTML that is called JSON", Reply::with(200, JSON, page)),
        no_json(
            "JSON that is called text",
            Reply::with(200, "content-type: text/plain\r\n", telling),
        ),
        no_json("no body", Reply::with(200, JSON, "")),
        no_json("half of a value", Reply::with(200, JSON, &telling[..20])),
        no_json(
            "JSON that is not UTF-8",
            Reply::with(200, JSON, b"{\"telling\":\"\xe9\"}"),
        ),
        no_json(
            "unrequested gzip",
            Reply::with(200, &zip, b"\x1f\x8b\x08\0\0\0\0\0"),
        ),
        wrong(
            "101 that nobody asked for",
            "unexpected_status",
            raw("101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
        )
        .received(101),
        wrong("204", "unexpected_status", raw("204 No Content\r\n\r\n")).received(204),
        status("206", 206, "unexpected_status", JSON, telling),
        wrong(
            "304 that nobody asked for",
            "unexpected_status",
            raw("304 Not Modified\r\netag: \"x\"\r\n\r\n"),
        )
        .received(304),
        status("500", 500, "server_error", JSON, telling),
        status("HTML with 500", 500, "server_error", html, page),
        status("502", 502, "server_error", JSON, telling).again(),
        status("503", 503, "server_error", JSON, telling).again(),
        status(
            "503 for a while",
            503,
            "server_error",
            "retry-after: 9\r\n",
            telling,
        )
        .lasts(9),
        status(
            "503 for a day",
            503,
            "server_error",
            "retry-after: 86400\r\n",
            telling,
        )
        .lasts(3600),
        status("401", 401, "key_refused", JSON, telling).checked(),
        status("403", 403, "key_refused", JSON, telling).checked(),
        status("410", 410, "retired", JSON, telling),
        throttled("429", "retry-after: 7\r\n").lasts(7),
        throttled("429 without a time", "").lasts(1),
        throttled("429 with nonsense", "retry-after: soon\r\n").lasts(1),
        throttled(
            "429 until long ago",
            "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        )
        .lasts(1),
        throttled("429 for ever", "retry-after: 99999999999999999999\r\n").lasts(3600),
    ]
}

/// What is over when a time-out says so.
fn slow() -> Vec<Fault> {
    let late = |name, reply| fault(name, "http_response_timeout", "upstream_timeout", reply);
    let long = format!("{OK}content-length: 60000\r\n\r\n{{");
    let every = Duration::from_millis(5);
    vec![
        late("a black hole", Reply::nothing().hang()).until(700),
        late("half of a head", Reply::raw(OK).hang()).until(700),
        late(
            "a head that drips",
            Reply::raw(OK).drip(format!("x: {}", "y".repeat(60_000)), every),
        )
        .until(700),
        late(
            "a first byte that comes too late",
            Reply::json(r#"{"late":"1"}"#).behind(&Gate::new()),
        )
        .until(700),
        late(
            "hints and no answer",
            Reply::nothing().drip("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(2000), every),
        )
        .until(700),
        late("a body that does not come", Reply::raw(&long).hang()).until(1400),
        late(
            "a body that drips",
            Reply::raw(long).drip(" ".repeat(60_000), every),
        )
        .until(1400),
    ]
}

/// Bodies that begin and do not go on, or too slowly.
fn stalled() -> Vec<Fault> {
    let (error, reason) = ("connection_read_timeout", "upstream_body_timeout");
    let stalled = |name, reply| fault(name, error, reason, reply).until(300);
    let long = format!("{OK}content-length: 60000\r\n\r\n");
    let chunked = format!("{OK}{JSON}transfer-encoding: chunked\r\n\r\n");
    let every = Duration::from_millis(5);
    vec![
        stalled("a body that does not begin", Reply::raw(&long).hang()),
        stalled(
            "silence in mid-body",
            Reply::raw(format!("{long}{{")).hang(),
        ),
        stalled(
            "silence within a chunk",
            Reply::raw(format!("{chunked}9\r\n{{")).hang(),
        ),
        stalled(
            "silence between chunks",
            Reply::raw(format!("{chunked}1\r\n{{\r\n")).hang(),
        ),
        stalled(
            "a body below the minimum rate",
            Reply::raw(&long).drip(" ".repeat(60_000), every),
        ),
        stalled(
            "chunks below the minimum rate",
            Reply::raw(chunked).drip("1\r\n \r\n".repeat(10_000), every),
        ),
    ]
}

/// Lets a fault happen to one request, and looks at all that comes of it.
async fn happens(fault: &Fault, upstream: &Upstream, gateway: &Gateway) {
    let name = fault.name;
    let asked = upstream.count();
    upstream.always(fault.reply.clone());
    let began = Instant::now();
    let answer = gateway.get(TOKEN).await;
    let took = began.elapsed();
    fault.is_reported(&answer);
    assert!(took >= fault.least, "{name}: {took:?}");
    upstream.close_connections();
    until_idle(gateway, name).await;
    assert_eq!(upstream.count() - asked, fault.asked, "{name}");
    let endpoint = &gateway.status()["upstream"]["endpoints"][0];
    let last = &endpoint["last_failure"];
    match fault.is_of_endpoint() {
        true => {
            assert_eq!(last["reason"], fault.reason, "{name}");
            assert!(!last.to_string().contains(TOKEN), "{name}: {last}");
            assert_ne!(endpoint["failed"], 0, "{name}");
        }
        false => assert!(last.is_null() && endpoint["failed"] == 0, "{name}: {last}"),
    }
    let known = |target: &String| [TOKEN, "/ordinals/v1/"].contains(&&**target);
    assert!(upstream.targets().iter().all(known), "{name}");

    upstream.usually(|seen| Reply::json(usual_body(&seen.target())));
    // However long a key is to rest.
    gateway.advance(3_601_000);
    let other = token(1);
    let answer = gateway.get(&other).await;
    assert_eq!(
        (answer.status, answer.text()),
        (200, &*usual_body(&other)),
        "{name}"
    );
    // Nothing of the fault was stored.
    assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN), "{name}");
}

fn keyed(upstream: &Upstream, config: &str) -> Gateway {
    let setup = Setup::before(upstream).keys("one").manual();
    setup.config(CONFIG).config(config).start()
}

#[tokio::test]
async fn quick_faults_are_reported_and_leave_nothing_behind() {
    for fault in quick() {
        let upstream = Upstream::start();
        happens(&fault, &upstream, &keyed(&upstream, "")).await;
    }
}

#[tokio::test]
async fn slow_faults_are_reported_and_leave_nothing_behind() {
    let faults = slow();
    join_all(faults.iter().map(async |fault| {
        let upstream = Upstream::start();
        happens(fault, &upstream, &keyed(&upstream, TIMES)).await;
    }))
    .await;
}

#[tokio::test]
async fn stalled_bodies_are_reported_and_leave_nothing_behind() {
    let faults = stalled();
    join_all(faults.iter().map(async |fault| {
        let upstream = Upstream::start();
        let config = "upstream.response_body.grace = \"300ms\"";
        happens(fault, &upstream, &keyed(&upstream, config)).await;
    }))
    .await;
}
