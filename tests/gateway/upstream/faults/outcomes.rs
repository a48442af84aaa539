//! After a fault: no wrong state remains, and nothing stays allocated.

use std::io::Write;

use futures_util::future::join_all;

use super::super::{key, until_idle};
use super::{CONFIG, Fault, JSON, OK, TIMES, fault, happens, keyed, quick, slow};
use crate::support::upstream::{refusing, usual_body};
use crate::support::{
    Client, Gate, Gateway, Process, ROUTES, Reply, Setup, TOKEN, Upstream, token, until,
};

#[tokio::test]
async fn the_date_in_a_429_is_obeyed() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "upstream.queue_timeout = \"20ms\"");
    let fields = format!("retry-after: {}\r\n", gateway.date(9));
    upstream.once(TOKEN, Reply::with(429, &fields, "{}"));
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 503);
    // A date has no fraction of a second.
    assert!(
        (8..=9).contains(&answer.number("retry-after")),
        "{answer:?}"
    );
    gateway.advance(7_900);
    assert_eq!(gateway.get(&token(1)).await.status, 503);
    assert_eq!(upstream.count(), 1);
    gateway.advance(1_200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    until_idle(&gateway, "429").await;
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Upstream::start();
    for status in [300, 301, 302, 303, 307, 308] {
        for to in [
            other.url(),
            format!("//{}/", other.address()),
            "/else".to_owned(),
        ] {
            let upstream = Upstream::start();
            let reply = Reply::with(status, &format!("location: {to}\r\n"), "{}");
            let fault = fault("redirect", "http_protocol_error", "redirect", reply);
            let fault = fault.received(status);
            happens(&fault, &upstream, &keyed(&upstream, "")).await;
        }
    }
    assert_eq!((other.count(), other.connections()), (0, 0));
}

#[tokio::test]
async fn a_closed_port_gets_502_until_a_server_listens() {
    let (socket, address) = refusing();
    let gateway = Setup::at(&format!("http://{address}")).keys("one").start();
    let refused = "connection_refused";
    let fault = fault("refused", refused, refused, Reply::nothing());
    let answer = gateway.get(TOKEN).await;
    fault.is_reported(&answer);
    let port = address.port().to_string();
    assert!(!answer.problem().to_string().contains(&port));
    let status = gateway.admin("/status").await.json();
    let endpoint = &status["upstream"]["endpoints"][0];
    assert_eq!(endpoint["failed"], 2, "and once more");
    assert_eq!(endpoint["last_failure"]["reason"], refused);
    let left = &status["upstream"]["keys"][0];
    assert_eq!(
        (&status["upstream"]["sent"], &left["budget_left"]),
        (&0.into(), &left["budget"])
    );
    until_idle(&gateway, "refused").await;
    let upstream = Upstream::start_on(socket);
    let other = token(1);
    assert_eq!(gateway.get(&other).await.text(), usual_body(&other));
    assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN));
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn bytes_beyond_content_length_are_dropped() {
    let body = r#"{"poison":1}"#;
    let second = format!("{OK}content-length: {}\r\n\r\n{body}", body.len());
    for (name, more) in [
        ("garbage", "garbage\r\n\r\n"),
        ("more of the body", "more of it"),
        ("another answer", &*second),
        (
            "the beginning of another answer",
            &second[..second.len() - 1],
        ),
    ] {
        let upstream = Upstream::start();
        let gateway = keyed(&upstream, "");
        for number in 0..20 {
            let (wrong, next) = (token(2 * number), token(2 * number + 1));
            let reply = format!("{OK}{JSON}content-length: 2\r\n\r\n{{}}{more}");
            upstream.once(&wrong, Reply::raw(reply));
            let answer = gateway.get(&wrong).await;
            assert_eq!((answer.status, answer.text()), (200, "{}"), "{name}");
            let answer = gateway.get(&next).await;
            assert_eq!(answer.text(), usual_body(&next), "{name}, {number}");
        }
        until_idle(&gateway, name).await;
    }
}

#[tokio::test]
async fn a_late_answer_reaches_no_client() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, TIMES);
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json(r#"{"late":1}"#).behind(&gate));
    assert_eq!(gateway.get(TOKEN).await.status, 504);
    gate.open();
    for number in 0..5 {
        let next = token(number);
        assert_eq!(gateway.get(&next).await.text(), usual_body(&next));
    }
    assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN));
    until_idle(&gateway, "late").await;
}

#[tokio::test]
async fn a_key_refused_under_load_is_replaced_by_the_other() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| {
        let reply = match seen.field("x-api-key").as_deref() {
            Some("one") => Reply::status(401, "{}"),
            _ => Reply::json(usual_body(&seen.target())),
        };
        reply.behind(&held)
    });
    let gateway = Setup::before(&upstream).keys("one,other").manual().start();
    let mut clients = Vec::new();
    for number in 0..8 {
        clients.push(gateway.start_get(&token(number)).await);
    }
    upstream.until_requests(8).await;
    let used = |key: &str| {
        let seen = upstream.seen();
        let keys = seen.iter().filter_map(|seen| seen.field("x-api-key"));
        keys.filter(|used| used == key).count()
    };
    let under_way = used("one");
    assert_eq!(under_way, 4, "they take turns");
    gate.open();
    for (number, client) in clients.iter_mut().enumerate() {
        let answer = client.answer("GET").await;
        assert_eq!(answer.text(), usual_body(&token(number)), "{number}");
    }
    for number in 10..20 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    // With one key check for all four.
    assert_eq!((used("one"), used("other")), (5, 18), "it is used no more");
    assert_eq!(key(&gateway, 0).await["state"], "quarantined");
    assert_eq!(key(&gateway, 1).await["state"], "ready");
    until_idle(&gateway, "401").await;
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

/// All but those after which a key rests or a breaker opens, which would hold up the next round.
fn harmless() -> Vec<Fault> {
    let is_harmless = |fault: &Fault| {
        let is_close = fault.name.ends_with("within the head");
        !matches!(fault.received, Some(401 | 403 | 410 | 429)) && !is_close
    };
    let all = quick().into_iter().chain(slow());
    all.filter(is_harmless).collect()
}

/// A process of its own, whose memory, descriptors and threads are its own.
#[tokio::test]
async fn nothing_is_left_behind() {
    let faults = harmless();
    let upstream = Upstream::start();
    let replies: Vec<_> = faults.iter().map(|fault| fault.reply.clone()).collect();
    upstream.usually(move |seen| {
        let target = seen.target();
        let number = target.rsplit("/f").next().and_then(|n| n.split('x').next());
        let fault = number.and_then(|number| number.parse::<usize>().ok());
        match fault.and_then(|at| replies.get(at)) {
            Some(reply) => reply.clone(),
            None => Reply::json(usual_body(&target)),
        }
    });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // With a place for each: time-outs would take places away.
    let config = format!(
        "{CONFIG}{TIMES}
        upstream.max_in_flight = 64
        upstream.idle_timeout = \"300ms\"
        upstream.requests_per_second = 100000
        upstream.requests_per_minute = 100000
        upstream.url = \"{}\"
        server.workers = 2
        log.level = \"off\"
        {ROUTES}",
        upstream.url()
    );
    file.write_all(config.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    let (process, public, admin) = Process::serve(&["--config", &path], &[]);
    let level = process.descriptors();

    let round = async |round: usize| {
        join_all(faults.iter().enumerate().map(async |(at, fault)| {
            let target = format!("/ordinals/v1/brc-20/tokens/f{at}x{round}");
            let answer = Client::connect(public).await.get(&target).await;
            // Other tests look at what is reported. Here, on a machine that is busy, a time-out
            // may come before a quick fault, and the queue's before a slot.
            let status = answer.status;
            assert!(
                [fault.status, 503, 504].contains(&status),
                "{}: {answer:?}",
                fault.name
            );
        }))
        .await;
        // What nobody waits for any more is still in flight.
        upstream.close_connections();
        let well = token(round);
        let answer = Client::connect(public).await.get(&well).await;
        assert_eq!(answer.text(), usual_body(&well));
    };
    for warm in 0..2 {
        round(warm).await;
    }
    // Connections that nobody uses any more are closed after a while, and
    // nothing else is open that was not at the start.
    let rest = async || {
        upstream.close_connections();
        let descriptors = || process.descriptors() <= level;
        until("descriptors are as at the start", descriptors).await;
    };
    rest().await;
    let (memory, threads) = (process.memory(), process.threads());
    for more in 2..6 {
        round(more).await;
    }
    rest().await;
    until("threads are as before", || process.threads() <= threads).await;
    let grown = process.memory().saturating_sub(memory);
    assert!(grown < 8 << 20, "{grown} bytes more than {memory}");
    let status = Client::connect(admin).await.get("/status").await.json();
    assert_eq!(status["upstream"]["in_flight"], 0);
    assert_eq!(status["upstream"]["queue"], 0);
    assert_eq!(status["collapse"]["keys"], 0);
}
