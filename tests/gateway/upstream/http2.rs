//! HTTP/2 to the upstream (`upstream.http2`): slow readers, silent and lost
//! connections, and requests that the server has not processed.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use tempfile::NamedTempFile;

use super::until_idle;
use crate::support::http2::{
    Act, Asked, ENHANCE_YOUR_CALM, Frames, INTERNAL_ERROR, NO_ERROR, Polite, REFUSED_STREAM,
};
use crate::support::respect::ALL;
use crate::support::{Answer, Client, Gateway, ROUTES, Setup, Upstream, tls, token};

/// One client may have many requests under way, and time plays no part.
const CONFIG: &str = r#"
    upstream.http2 = true
    upstream.max_in_flight = 100
    upstream.breaker.failures = 3
"#;

fn at(url: &str) -> Setup {
    Setup::at(url).config(CONFIG)
}

/// The statuses of this many concurrent requests.
async fn together(gateway: &Gateway, numbers: std::ops::Range<usize>) -> Vec<Answer> {
    join_all(numbers.map(|number| async move { gateway.get(&token(number)).await })).await
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

/// What the operator learns of the upstream.
async fn upstream_status(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["upstream"].clone()
}

/// Checks that the breaker is closed, and how many requests were sent again.
async fn is_well(gateway: &Gateway, retried: usize, name: &str) -> Value {
    let status = upstream_status(gateway).await;
    let endpoint = &status["endpoints"][0];
    assert_eq!(endpoint["breaker"]["state"], "closed", "{name}: {status}");
    assert_eq!(status["sent_for"]["retry"], retried, "{name}: {status}");
    until_idle(gateway, name).await;
    status
}

/// Whether all streams of a connection have come, of so many.
fn is_last(asked: Asked, all: usize) -> bool {
    asked.number + 1 == all
}

#[tokio::test]
async fn http_1_1_is_the_default_even_if_http_2_is_offered() {
    let (authority, acceptor) = tls::offering(&["h2", "http/1.1"]);
    let upstream = Upstream::start_tls(acceptor);
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let setup = Setup::at(&format!("https://localhost:{}", upstream.address().port()));
    let config = format!("upstream.ca_file = \"{}\"", file.path().display());
    let gateway = setup.config(&config).start();
    assert_eq!(gateway.get(&token(0)).await.status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn http_2_is_used_if_configured_and_negotiated() {
    let (authority, acceptor) = tls::offering(&["h2", "http/1.1"]);
    let agreeing = Frames::start_with(Some(acceptor), None, |_| vec![Act::Answer]);
    let (other, acceptor) = tls::offering(&["http/1.1"]);
    let declining = Upstream::start_tls(acceptor);
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    file.write_all(other.as_bytes()).unwrap();
    let config = format!("upstream.ca_file = \"{}\"", file.path().display());
    let gateway = at(&agreeing.https()).config(&config).start();
    for number in 0..3 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!((agreeing.seen().len(), agreeing.connections()), (3, 1));

    let url = format!("https://localhost:{}", declining.address().port());
    let gateway = at(&url).config(&config).start();
    assert_eq!(gateway.get(&token(0)).await.status, 200);
    assert_eq!(declining.count(), 1);
}

#[tokio::test]
async fn a_reload_can_change_the_scheme() {
    let (authority, acceptor) = tls::offering(&["h2"]);
    let secure = Frames::start_with(Some(acceptor), None, |_| vec![Act::Abort]);
    let plain = Frames::start(None, |_| vec![Act::Answer]);
    let old = Upstream::start();
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let urls = [secure.https(), plain.url()];
    let gateway = Setup::alone()
        .config(CONFIG)
        .config(&format!("upstream.url = {urls:?}"))
        .config(&format!("upstream.ca_file = \"{}\"", file.path().display()))
        .start();
    assert_eq!(gateway.get(&token(0)).await.status, 200);
    assert_eq!(secure.seen().len(), 1);
    assert!(!plain.seen().is_empty());
    let config = format!("upstream.url = \"{}\"\nupstream.http2 = false", old.url());
    assert_eq!(gateway.reload(&config).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    assert_eq!(old.count(), 1);
}

/// Beside the API's routes.
const LARGE_ROUTE: &str = r#"
    [[route]]
    name = "large"
    path = "/large"
    headers = "all"
    cache = { mode = "off" }
"#;

#[tokio::test]
async fn clients_that_do_not_read_stall_no_other_request() {
    const LARGE: usize = 12 << 20;
    let upstream = Polite::start(|request| async move {
        let body = match request.path.as_str() {
            "/large" => Bytes::from(vec![b' '; LARGE]),
            _ => Bytes::from_static(b"{}"),
        };
        request.answer(body).await;
    });
    let gateway = at(&upstream.url())
        .config("upstream.max_in_flight = 8")
        .config(&format!("{ROUTES}{LARGE_ROUTE}"))
        .start();
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect_narrow(gateway.public).await;
        client.send_request("GET", "/large", &[]).await;
        // It has begun to come.
        client.some(1).await;
        slow.push(client);
    }
    for number in 0..50 {
        assert_eq!(gateway.get(&token(number)).await.status, 200, "{number}");
    }
    let seen = upstream.seen();
    let of = |large: bool| {
        let own = seen.iter().filter(|(_, path)| (path == "/large") == large);
        let mut own: Vec<_> = own.map(|(connection, _)| *connection).collect();
        own.dedup();
        own
    };
    assert_eq!(of(true).len(), 4, "each on its own: {seen:?}");
    assert_eq!(of(false).len(), 1, "one for all: {seen:?}");
    assert!(!of(true).contains(&of(false)[0]), "{seen:?}");
    drop(slow);
}

#[tokio::test]
async fn connections_of_relayed_exchanges_are_used_again() {
    let upstream = Polite::start(|request| request.answer(Bytes::from_static(b"{}")));
    let gateway = at(&upstream.url()).config(ALL).start();
    for number in 0..5 {
        assert_eq!(gateway.get(&format!("/{number}")).await.status, 200);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let upstream = Frames::start(None, |asked| match (asked.connection, asked.number) {
        (0, 3) => vec![Act::FallSilent],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url())
        .config("upstream.first_byte_timeout = \"300ms\"")
        .start();
    for number in 0..3 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    // One of these falls silent; the others are behind it on the connection.
    let answers = together(&gateway, 3..23).await;
    let lost = answers.iter().filter(|answer| answer.status == 504).count();
    let well = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(lost + well, 20, "{:?}", statuses(&answers));
    assert!(lost >= 1);
    assert_eq!(statuses(&together(&gateway, 30..50).await), [200; 20]);
    let status = upstream_status(&gateway).await;
    assert_eq!(
        status["endpoints"][0]["breaker"]["state"], "closed",
        "{status}"
    );
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn one_slow_answer_does_not_close_the_connection() {
    let upstream = Frames::start(None, |asked| match asked.number {
        0 => vec![],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url())
        .config("upstream.first_byte_timeout = \"2s\"")
        .start();
    let mut client = gateway.start_get(&token(0)).await;
    upstream.until_requests(1).await;
    let over = AtomicBool::new(false);
    let slow = async {
        assert_eq!(client.answer("GET").await.status, 504);
        over.store(true, SeqCst);
    };
    let others = async {
        // Fewer than the limit of one client.
        for number in 1..1_000 {
            if over.load(SeqCst) {
                break;
            }
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
    };
    tokio::join!(slow, others);
    assert_eq!(gateway.get(&token(1_000_000)).await.status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_never_answers_is_closed() {
    let upstream = Frames::start(None, |asked| match asked.connection {
        0 => vec![],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url())
        .config("upstream.first_byte_timeout = \"300ms\"")
        .start();
    assert_eq!(gateway.get(&token(0)).await.status, 504);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test]
async fn the_end_of_a_connection_is_one_failure() {
    const ALL_AT_ONCE: usize = 30;
    for end in [Act::Abort, Act::Close] {
        let name = format!("{end:?}");
        let upstream = Frames::start(None, move |asked| match asked.connection {
            0 if is_last(asked, ALL_AT_ONCE) => vec![end.clone()],
            0 => vec![],
            _ => vec![Act::Answer],
        });
        let gateway = at(&upstream.url()).start();
        let answers = together(&gateway, 0..ALL_AT_ONCE).await;
        assert_eq!(statuses(&answers), [200; ALL_AT_ONCE], "{name}");
        assert_eq!(upstream.connections(), 2, "{name}");
        let status = is_well(&gateway, ALL_AT_ONCE, &name).await;
        assert_eq!(status["endpoints"][0]["failed"], 1, "{name}: {status}");
    }
}

#[tokio::test]
async fn bodies_that_end_with_their_connection_are_one_failure() {
    let upstream = Frames::start(None, |asked| match asked.connection {
        0 if is_last(asked, 30) => vec![Act::Begin, Act::Abort],
        0 => vec![Act::Begin],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url()).start();
    assert_eq!(statuses(&together(&gateway, 0..30).await), [200; 30]);
    is_well(&gateway, 30, "bodies").await;
}

#[tokio::test]
async fn each_connection_that_ends_is_a_failure_of_its_own() {
    let upstream = Frames::start(None, |_| vec![Act::Abort]);
    let gateway = at(&upstream.url())
        .config("upstream.retry.limit = 0")
        .start();
    for number in 0..3 {
        let answer = gateway.get(&token(number)).await;
        assert_eq!(answer.status, 502);
        assert_eq!(
            answer.must("proxy-status"),
            "ordgate; error=connection_terminated"
        );
    }
    let status = upstream_status(&gateway).await;
    assert_eq!(
        status["endpoints"][0]["breaker"]["state"], "open",
        "{status}"
    );
}

#[tokio::test]
async fn goaway_after_every_fifty_requests_fails_no_request() {
    // As nginx has it, the connection stays until the client closes it; or the
    // server closes it; or it resets it, so that GOAWAY is lost with it.
    for (end, retries) in [(None, 0), (Some(Act::Close), 0), (Some(Act::Abort), 1)] {
        let name = format!("{end:?}");
        let upstream = Frames::start(None, move |asked| match asked.number {
            0..49 => vec![Act::Answer],
            49 => {
                let goaway = [Act::Answer, Act::Goaway(asked.stream, NO_ERROR)];
                goaway.into_iter().chain(end.clone()).collect()
            }
            // What comes after GOAWAY is ignored.
            _ => vec![],
        });
        let gateway = at(&upstream.url())
            .config(&format!("upstream.retry.limit = {retries}"))
            .start();
        for round in 0..20 {
            let answers = together(&gateway, round * 30..round * 30 + 30).await;
            assert_eq!(statuses(&answers), [200; 30], "{name} {round}");
        }
        let status = upstream_status(&gateway).await;
        let endpoint = &status["endpoints"][0];
        assert_eq!(endpoint["breaker"]["state"], "closed", "{name}: {status}");
        // Whether a reset overtakes an answer depends on when each is read.
        let may_fail = retries > 0;
        assert!(may_fail || endpoint["failed"] == 0, "{name}: {status}");
        assert!(upstream.connections() >= 12, "{name}");
    }
}

#[tokio::test]
async fn streams_up_to_the_last_of_goaway_are_lost_with_the_connection() {
    // Streams above it were not processed; those below may have been.
    let upstream = Frames::start(None, |asked| match asked.connection {
        0 if is_last(asked, 30) => vec![Act::Goaway(19, NO_ERROR), Act::Close],
        0 => vec![],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url())
        .config("upstream.retry.limit = 0")
        .start();
    let answers = together(&gateway, 0..30).await;
    let lost = answers.iter().filter(|answer| answer.status == 502).count();
    // Streams 1, 3, ... 19.
    assert_eq!(lost, 10, "{:?}", statuses(&answers));
    let status = is_well(&gateway, 20, "goaway").await;
    assert_eq!(status["endpoints"][0]["failed"], 1, "{status}");
}

#[tokio::test]
async fn refused_streams_are_sent_again_without_counting_as_failures() {
    let refuse = |asked: Asked| match asked.number {
        0..30 => vec![Act::Reset(REFUSED_STREAM)],
        _ => vec![Act::Answer],
    };
    let upstream = Frames::start(None, refuse);
    let gateway = at(&upstream.url())
        .config("upstream.retry.limit = 0")
        .start();
    assert_eq!(statuses(&together(&gateway, 0..30).await), [200; 30]);
    let status = is_well(&gateway, 30, "refused").await;
    assert_eq!(status["endpoints"][0]["failed"], 0, "{status}");
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn unprocessed_requests_are_sent_again_with_any_method() {
    let upstream = Frames::start(None, |asked| match asked.number % 2 {
        0 => vec![Act::Reset(REFUSED_STREAM)],
        _ => vec![Act::Answer],
    });
    let gateway = at(&upstream.url()).config(ALL).start();
    let mut client = gateway.client().await;
    client
        .send_request("POST", "/x", &[("content-length", "3")])
        .await;
    client.send("abc").await;
    assert_eq!(client.answer("POST").await.status, 200);
    assert_eq!(gateway.request("DELETE", "/y", &[]).await.status, 200);
    assert_eq!(upstream.seen().len(), 4);
}

#[tokio::test]
async fn streams_that_are_always_refused_get_502() {
    let upstream = Frames::start(None, |_| vec![Act::Reset(REFUSED_STREAM)]);
    let gateway = at(&upstream.url())
        .config("upstream.retry.limit = 0")
        .start();
    for number in 1..=3 {
        let answer = gateway.get(&token(number)).await;
        assert_eq!(answer.status, 502);
        assert_eq!(
            answer.must("proxy-status"),
            "ordgate; error=connection_terminated"
        );
        assert_eq!(
            upstream.seen().len(),
            6 * number,
            "once, and five times more"
        );
    }
    let status = upstream_status(&gateway).await;
    let endpoint = &status["endpoints"][0];
    assert_eq!(endpoint["breaker"]["state"], "open", "{status}");
    assert_eq!(
        endpoint["last_failure"]["kind"], "refused_stream",
        "{status}"
    );
    until_idle(&gateway, "refused for ever").await;
}

#[tokio::test]
async fn other_error_codes_are_failures() {
    for (act, kind) in [
        (Act::Reset(INTERNAL_ERROR), "stream_reset"),
        (Act::Reset(ENHANCE_YOUR_CALM), "enhance_your_calm"),
        (Act::Goaway(0, ENHANCE_YOUR_CALM), "enhance_your_calm"),
    ] {
        let given = act.clone();
        let upstream = Frames::start(None, move |_| vec![given.clone()]);
        let gateway = at(&upstream.url())
            .config("upstream.retry.limit = 0")
            .start();
        for number in 1..=3 {
            assert_eq!(gateway.get(&token(number)).await.status, 502, "{act:?}");
            assert_eq!(upstream.seen().len(), number, "{act:?}");
        }
        let status = upstream_status(&gateway).await;
        let endpoint = &status["endpoints"][0];
        assert_eq!(endpoint["breaker"]["state"], "open", "{status}");
        assert_eq!(endpoint["last_failure"]["kind"], kind, "{status}");
    }
}

#[tokio::test]
async fn a_body_without_end_stream_is_incomplete() {
    // Of NO_ERROR the HTTP client makes an end like any other.
    for end in [Act::Reset(NO_ERROR), Act::Goaway(0, NO_ERROR)] {
        let name = format!("{end:?}");
        let given = end.clone();
        let upstream = Frames::start(None, move |asked| match asked.connection + asked.number {
            0 => vec![Act::Part(None), given.clone()],
            _ => vec![Act::Answer],
        });
        let gateway = at(&upstream.url()).config(ALL).start();
        let mut client = gateway.client().await;
        client
            .send_request("GET", "/x", &[("connection", "close")])
            .await;
        let received = client.received().await;
        let passes = received.status() == Some(200) && received.is_whole;
        assert!(!passes, "{name}: {received:?}");
        let next = gateway.get("/x").await;
        assert_eq!(next.status, 200, "{name}");
        assert_eq!(upstream.seen().len(), 2, "{name}: it is not stored");

        // What is read whole is asked for again.
        let given = end.clone();
        let upstream = Frames::start(None, move |asked| match asked.connection + asked.number {
            0 => vec![Act::Part(None), given.clone()],
            _ => vec![Act::Answer],
        });
        let gateway = at(&upstream.url()).start();
        assert_eq!(gateway.get(&token(0)).await.status, 200, "{name}");
        let status = is_well(&gateway, 1, &name).await;
        assert_eq!(status["endpoints"][0]["failed"], 1, "{name}: {status}");
    }
}

#[tokio::test]
async fn a_limit_of_one_stream_is_kept() {
    let upstream = Frames::start(Some(1), |_| vec![Act::Answer]);
    let gateway = at(&upstream.url()).start();
    for round in 0..3 {
        let answers = together(&gateway, round * 30..round * 30 + 30).await;
        assert_eq!(statuses(&answers), [200; 30]);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn many_requests_to_a_closed_port_open_the_breaker() {
    let (_held, address) = crate::support::upstream::refusing();
    let gateway = at(&format!("http://{address}")).start();
    let answers = together(&gateway, 0..30).await;
    for answer in &answers {
        assert!([502, 503].contains(&answer.status), "{answer:?}");
    }
    let status = upstream_status(&gateway).await;
    assert_eq!(
        status["endpoints"][0]["breaker"]["state"], "open",
        "{status}"
    );
    until_idle(&gateway, "refused").await;
}
