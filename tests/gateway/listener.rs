//! The door: what is not one clear request is refused or cut off, and never
//! reaches the upstream; who is slow is not waited for.

use crate::respect;
use crate::support::client::request;
use crate::support::{
    BLOCK, Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until, within,
};

/// A head's end and a Host, for rows that are about something else.
const REST: &str = "host: a\r\n\r\n";

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused() {
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
async fn what_is_no_http_at_all_is_refused_or_cut_off() {
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
    client.ask("GET", TOKEN, &[]).await;
    upstream.asked(1).await;
    client.send("GET / HTTP/1.1\nhost: a\r\n\r\n").await;
    // The time of three others to be closed for idleness passes.
    for _ in 0..3 {
        gateway.client().await.rest().await;
    }
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.answer("GET").await.status, 400);
}

#[tokio::test]
async fn http_10_closes_unless_asked_to_stay() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    client.send(format!("GET {TOKEN} HTTP/1.0\r\n\r\n")).await;
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(client.rest().await, b"");

    let mut client = gateway.client().await;
    for _ in 0..3 {
        client
            .send(format!(
                "GET {TOKEN} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"
            ))
            .await;
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, &*answer.version), (200, "HTTP/1.0"));
        assert_eq!(answer.field("connection"), Some("keep-alive"));
        assert_eq!(answer.field("transfer-encoding"), None);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn http_11_stays_unless_asked_to_close() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    for _ in 0..3 {
        assert_eq!(client.get(TOKEN).await.status, 200);
        assert_eq!(client.get("/nowhere").await.status, 404);
        assert_eq!(client.get("/runes/v1/blocks/x/activity").await.status, 400);
    }
    let answer = client
        .request("GET", TOKEN, &[("connection", "close")])
        .await;
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    let asked: Vec<_> = (0..20).map(token).collect();
    let all: String = asked.iter().map(|t| request("GET", t, &[])).collect();
    client.send(all).await;
    for target in &asked {
        let answer = client.answer("GET").await;
        assert_eq!(answer.json()["asked"], **target);
    }
    assert_eq!(upstream.targets(), asked);
}

#[tokio::test]
async fn a_head_may_come_byte_by_byte() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    for byte in request("GET", TOKEN, &[("x", "y")]).bytes() {
        client.send([byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer("GET").await.status, 200);
    // Two heads, the cut within the second.
    let both = request("GET", TOKEN, &[]) + &request("GET", BLOCK, &[]);
    let (one, other) = both.split_at(both.len() - 7);
    client.send(one).await;
    assert_eq!(client.answer("GET").await.status, 200);
    client.send(other).await;
    assert_eq!(client.answer("GET").await.status, 200);
}

#[tokio::test]
async fn a_head_that_is_too_slow_gets_408() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.header_timeout = \"60ms\"")
        .start();
    // One that stalls, and one that never stops to send a little more.
    let mut stalled = gateway.client().await;
    stalled.send(format!("GET {TOKEN} HTTP/1.1\r\nhos")).await;
    let mut dribbling = gateway.client().await;
    dribbling.send("GET / HTTP/1.1\r\nhost: a\r\nx: ").await;
    let dribble = async {
        loop {
            dribbling.send("y").await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            if gateway.connections() == 0 {
                break;
            }
        }
        dribbling.try_answer("GET").await
    };
    let stall = async {
        let answer = stalled.answer("GET").await;
        assert_eq!(answer.status, 408);
        answer.problem();
        assert_eq!(answer.field("connection"), Some("close"));
        stalled.rest().await;
        drop(stalled);
    };
    let ((), dribbled) = within("both are cut off", async { tokio::join!(stall, dribble) }).await;
    // Bytes that came too late may have reset the connection under the answer.
    assert!(dribbled.is_none_or(|answer| answer.status == 408));
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.idle_timeout = \"250ms\"")
        .start();
    let mut silent = gateway.client().await;
    assert_eq!(silent.rest().await, b"", "one that has never asked");
    let mut used = gateway.client().await;
    assert_eq!(used.get(TOKEN).await.status, 200);
    assert_eq!(used.rest().await, b"", "one that asks no more");
}

#[tokio::test]
async fn who_waits_for_an_answer_is_not_idle() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.idle_timeout = \"250ms\"\nserver.header_timeout = \"250ms\"")
        .start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut waiting = gateway.client().await;
    waiting.ask("GET", TOKEN, &[]).await;
    upstream.asked(1).await;
    // The time of three others to be closed for idleness passes.
    for _ in 0..3 {
        let mut idle = gateway.client().await;
        assert_eq!(idle.rest().await, b"");
    }
    gate.open();
    assert_eq!(waiting.answer("GET").await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let upstream = Upstream::start();
    let body = format!("\"{}\"", "x".repeat(12 << 20));
    let length = body.len();
    upstream.always(Reply::json(body));
    let gateway = Setup::before(&upstream)
        .config("server.write_timeout = \"500ms\"")
        .start();
    let mut client = Client::connect_narrow(gateway.public).await;
    client.ask("GET", TOKEN, &[]).await;
    upstream.asked(1).await;
    until("the connection is cut", || gateway.connections() == 0).await;
    let got = client.rest().await.len();
    assert!(got < length, "{got} of {length}");
    assert_eq!(
        gateway.get(BLOCK).await.body.len(),
        length,
        "others are served"
    );
}

#[tokio::test]
async fn a_connection_too_many_is_turned_away() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.max_connections = 2")
        .start();
    let mut one = gateway.client().await;
    let mut other = gateway.client().await;
    assert_eq!(one.get(TOKEN).await.status, 200);
    assert_eq!(other.get(TOKEN).await.status, 200);
    let mut third = gateway.client().await;
    third.ask("GET", TOKEN, &[]).await;
    let answer = third.answer("GET").await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(
        answer
            .must("access-control-expose-headers")
            .contains("retry-after")
    );
    assert!(answer.field("access-control-allow-origin").is_some());
    answer.problem();
    assert_eq!(third.rest().await, b"");
    assert_eq!(one.get(TOKEN).await.status, 200, "those within are served");
    drop(other);
    until("a place is free", || gateway.connections() == 1).await;
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn idle_connections_disturb_nobody() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.workers = 2")
        .start();
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(gateway.client().await);
    }
    until("all are accepted", || gateway.connections() >= 300).await;
    for number in 0..20 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    for client in &mut idle {
        assert_eq!(client.get(TOKEN).await.status, 200);
    }
}

#[tokio::test]
async fn who_has_said_all_may_still_listen() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for _miss_then_hit in 0..2 {
        let mut client = gateway.client().await;
        client.ask("GET", TOKEN, &[]).await;
        client.finish().await;
        assert_eq!(client.answer("GET").await.status, 200);
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: hyper was not woken to learn that the client had said all, so
/// that the connection of an answered client lasted for `half_closed_timeout`.
#[tokio::test]
async fn who_has_said_all_is_let_go_when_answered() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.half_closed_timeout = \"1d\"")
        .start();
    for _miss_then_hit in 0..2 {
        let gate = Gate::new();
        upstream.always(Reply::json("{}").behind(&gate));
        let mut client = gateway.client().await;
        client.ask("GET", TOKEN, &[]).await;
        client.finish().await;
        gate.open();
        assert_eq!(client.answer("GET").await.status, 200);
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: once an answer was made, the client's end was told to hyper,
/// which broke off what was not written yet.
#[tokio::test]
async fn who_has_said_all_may_take_its_time() {
    let upstream = Upstream::start();
    let body = format!("{{\"long\":\"{}\"}}", "x".repeat(8 << 20));
    upstream.always(Reply::json(&body));
    let gateway = Setup::before(&upstream)
        .config("server.half_closed_timeout = \"1d\"")
        .start();
    for _miss_then_hit in 0..2 {
        let mut client = Client::connect_narrow(gateway.public).await;
        client.ask("GET", TOKEN, &[]).await;
        client.finish().await;
        let answer = client.try_answer("GET").await;
        let answer = answer.expect("the answer breaks off");
        assert!(answer.body == body.as_bytes(), "{}", answer.body.len());
        assert_eq!(client.rest().await, b"");
    }
}

/// Half of an answer, of which the other half waits for a gate.
const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\ncache-control: no-store\r\n\r\nhalf";

/// That both halves have come.
fn is_whole(answer: &[u8]) {
    let shown = answer.escape_ascii();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"), "{shown}");
}

/// The same where the answer comes in pieces.
#[tokio::test]
async fn who_has_said_all_may_wait_for_the_rest() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.half_closed_timeout = \"1d\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.always(Reply::raw(HALF).then(&gate, "half"));
    let mut client = gateway.client().await;
    client.ask("GET", "/x", &[]).await;
    client.finish().await;
    let begun = client.some(20).await;
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
}

/// A regression: a connection counted as idle while the rest of an answer was
/// on its way through it.
#[tokio::test]
async fn a_connection_is_not_idle_in_the_middle_of_an_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.idle_timeout = \"100ms\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.once("/x", Reply::raw(HALF).then(&gate, "half"));
    let mut idle = gateway.client().await;
    let mut client = gateway.client().await;
    client.ask("GET", "/x", &[]).await;
    let begun = client.some(20).await;
    // One that is idle ends first, though it was heard of later.
    assert_eq!(idle.get("/").await.status, 200);
    assert_eq!(idle.rest().await, b"");
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
}

/// A regression: a drain broke off an answer of which the rest took longer than
/// a connection's last call.
#[tokio::test]
async fn draining_waits_for_the_rest_of_an_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"60s\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.once("/x", Reply::raw(HALF).then(&gate, "half"));
    let mut kept = gateway.client().await;
    let mut client = gateway.client().await;
    client.ask("GET", "/x", &[]).await;
    let begun = client.some(20).await;
    assert_eq!(kept.get("/").await.status, 200);
    gateway.server().drain();
    // One that asks for nothing ends with its last call, so that has passed.
    kept.rest().await;
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
}

#[tokio::test]
async fn who_has_gone_does_not_hold_its_place() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    client.ask("GET", TOKEN, &[]).await;
    upstream.asked(1).await;
    drop(client);
    until("its connection ends", || gateway.connections() == 0).await;
    assert!(
        !gateway.server().first_gateway().fill.collapse.is_empty(),
        "its errand does not"
    );
}

#[tokio::test]
async fn a_client_that_vanishes_harms_nobody() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for number in 0..20 {
        let mut client = gateway.client().await;
        match number % 3 {
            0 => client.send("GET /").await,
            1 => client.ask("GET", &token(number), &[]).await,
            _ => {}
        }
        drop(client);
    }
    until("they are gone", || gateway.connections() == 0).await;
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

/// What was on its way when the gateway was told to stop is answered: a head
/// that had begun, a request that a kept connection sends just then, and what
/// the kernel has let in.
#[tokio::test]
async fn draining_answers_what_was_on_its_way() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"10s\"")
        .start();
    let mut begun = gateway.client().await;
    let whole = request("GET", TOKEN, &[]);
    let (first, last) = whole.split_at(20);
    begun.send(first).await;
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    let mut silent = gateway.client().await;
    until("all are let in", || gateway.connections() == 3).await;
    gateway.server().drain();
    kept.ask("GET", TOKEN, &[]).await;
    silent.ask("GET", TOKEN, &[]).await;
    begun.send(last).await;
    for mut client in [kept, silent, begun] {
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.must("connection"), "close");
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: whom the kernel had let in was turned out where the runtime had
/// not heard of them yet. That is a matter of microseconds, hence the rounds.
#[tokio::test]
async fn draining_answers_whom_the_kernel_has_let_in() {
    let upstream = Upstream::start();
    for round in 0..40 {
        let gateway = Setup::before(&upstream)
            .config("server.drain_timeout = \"60s\"")
            .start();
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = gateway.client().await;
            client.ask("GET", "/openapi.json", &[]).await;
            clients.push(client);
        }
        gateway.server().drain();
        for client in &mut clients {
            let answer = client.try_answer("GET").await;
            assert!(answer.is_some(), "turned out in round {round}");
        }
    }
}

#[tokio::test]
async fn draining_ends_connections_that_ask_for_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"10s\"")
        .start();
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    let mut silent = gateway.client().await;
    until("both are let in", || gateway.connections() == 2).await;
    gateway.server().drain();
    assert_eq!(kept.rest().await, b"");
    assert_eq!(silent.rest().await, b"");
}
