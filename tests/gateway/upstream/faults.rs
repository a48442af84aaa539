//! The table of faults: whatever the upstream does, each client gets a clear answer
//! within the time-outs, the upstream gets no useless requests, nothing stays under
//! way, and the next request for another key is answered correctly.

mod outcomes;

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::until_idle;
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token};

/// Time-outs that are soon over.
const TIMES: &str = r#"
    upstream.connect_timeout = "400ms"
    upstream.first_byte_timeout = "400ms"
    upstream.timeout = "800ms"
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
    received: Option<u16>,
    retry_after: Option<u64>,
    /// What the upstream gets: so many requests.
    asked: usize,
    /// How long that takes at the least: until some time-out.
    least: Duration,
}

/// A fault that is requested once, and is a 502.
fn fault(name: &'static str, error: &'static str, reply: Reply) -> Fault {
    Fault {
        name,
        reply,
        status: 502,
        error,
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
        let problem = answer.problem().to_string();
        assert!(!problem.contains("telling"), "{name}: {problem}");
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\n";

const JSON: &str = "content-type: application/json\r\n";

/// What is over at once.
fn quick() -> Vec<Fault> {
    let broken = |name, reply| fault(name, "http_response_incomplete", reply).again();
    let ended = |name, reply| fault(name, "connection_terminated", reply).again();
    let wrong = |name, reply| fault(name, "http_protocol_error", reply);
    let large = |name, reply| fault(name, "http_response_body_size", reply);
    let telling = r#"{"telling":"why"}"#;
    let html = "content-type: text/html\r\n";
    let chunked = format!("{OK}{JSON}transfer-encoding: chunked\r\n\r\n");
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
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
        large("a body without end", Reply::raw(chunked).endless(chunk)),
        large(
            "a body without length or end",
            Reply::raw(format!("{OK}{JSON}\r\n")).endless([b' '; 1024]),
        ),
        large(
            "a body that is said to be endless",
            Reply::raw(format!("{OK}content-length: 9000000000000000000\r\n\r\n")).hang(),
        ),
        wrong(
            "a head without end",
            Reply::raw(OK).endless(format!("x: {}\r\n", "y".repeat(1000))),
        ),
        wrong(
            "101 that nobody asked for",
            Reply::raw(
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            ),
        )
        .received(101),
        wrong("garbage", Reply::raw("telling garbage\r\n\r\n").close()),
        wrong("HTML with 200", Reply::with(200, html, "<html>telling")),
        wrong(
            "HTML that is called JSON",
            Reply::with(200, JSON, "<html>telling"),
        ),
        wrong("500", Reply::status(500, telling)).received(500),
        wrong("HTML with 500", Reply::with(500, html, "<html>telling")).received(500),
        wrong("502", Reply::status(502, telling))
            .received(502)
            .again(),
        wrong("503", Reply::status(503, telling))
            .received(503)
            .again(),
        wrong(
            "503 for a while",
            Reply::with(503, "retry-after: 9\r\n", telling),
        )
        .received(503)
        .lasts(9),
        wrong("401", Reply::status(401, telling))
            .received(401)
            .checked(),
        wrong("403", Reply::status(403, telling))
            .received(403)
            .checked(),
        wrong("410", Reply::status(410, telling)).received(410),
        wrong("429", Reply::with(429, "retry-after: 7\r\n", telling))
            .received(429)
            .lasts(7),
        wrong("429 without a time", Reply::with(429, "", telling))
            .received(429)
            .lasts(1),
        wrong(
            "429 with nonsense",
            Reply::with(429, "retry-after: soon\r\n", telling),
        )
        .received(429)
        .lasts(1),
        wrong(
            "429 until long ago",
            Reply::with(
                429,
                "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
                telling,
            ),
        )
        .received(429)
        .lasts(1),
        wrong(
            "429 for ever",
            Reply::with(429, "retry-after: 99999999999999999999\r\n", telling),
        )
        .received(429)
        .lasts(3600),
    ]
}

/// What is over when a time-out says so.
fn slow() -> Vec<Fault> {
    let late = |name, reply| fault(name, "http_response_timeout", reply);
    let long = format!("{OK}content-length: 60000\r\n\r\n{{");
    let every = Duration::from_millis(5);
    vec![
        late("a black hole", Reply::nothing().hang()).until(400),
        late("half of a head", Reply::raw(OK).hang()).until(400),
        late(
            "a head that drips",
            Reply::raw(OK).drip(format!("x: {}", "y".repeat(60_000)), every),
        )
        .until(400),
        late(
            "a first byte that comes too late",
            Reply::json(r#"{"late":"1"}"#).behind(&Gate::new()),
        )
        .until(400),
        late(
            "hints and no answer",
            Reply::nothing().drip("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(2000), every),
        )
        .until(400),
        late("a body that does not come", Reply::raw(&long).hang()).until(800),
        late(
            "a body that drips",
            Reply::raw(long).drip(" ".repeat(60_000), every),
        )
        .until(800),
    ]
}

/// Bodies that begin and do not go on, or too slowly.
fn stalled() -> Vec<Fault> {
    let stalled = |name, reply| fault(name, "connection_read_timeout", reply).until(300);
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
