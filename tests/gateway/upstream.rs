//! The upstream: what it is asked, with what, how often; and what each of its
//! ways to fail means to a client.

use std::io::Write;
use std::time::Duration;

use ordgate::serve::StartError;
use ordgate::upstream::SetupError;

use crate::support::upstream::{refusing, usual_body};
use crate::support::{
    BLOCK, BLOCK_CANONICAL, Client, Gateway, Reply, Setup, TOKEN, Upstream, tls, token, within,
};

const JSON: &str = "content-type: application/json\r\n";

/// Short patience with the upstream, for those that test it.
const IMPATIENT: &str = r#"
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
async fn an_upstream_that_is_away_says_for_how_long() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).manual().start();
    for (said, seconds) in [("60", 60), ("86400", 3600), ("soon", 10)] {
        let fields = format!("retry-after: {said}\r\n");
        upstream.once(TOKEN, Reply::with(503, &fields, r#"{"telling":"why"}"#));
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 503, "{said}");
        assert_eq!(answer.number("retry-after"), seconds, "{said}");
        assert_eq!(
            answer.must("proxy-status"),
            "ordgate; error=http_protocol_error; received-status=503",
        );
        assert!(!answer.problem().to_string().contains("telling"), "{said}");
    }
    // What cannot be read is a pause for all.
    gateway.advance(10_000);
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 200, "nothing was stored: {answer:?}");
}

#[tokio::test]
async fn a_throttled_key_rests_until_the_date_that_is_named() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .manual()
        .config("upstream.queue_timeout = \"20ms\"")
        .start();
    let clock = &gateway.server().first_gateway().clock;
    let date = clock.wall(clock.now()) + Duration::from_secs(90);
    let fields = format!("retry-after: {}\r\n", httpdate::fmt_http_date(date));
    upstream.once(TOKEN, Reply::with(429, &fields, "{}"));
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 503);
    // A date has no fraction of a second.
    let said = answer.number("retry-after");
    assert!((89..=90).contains(&said), "{said}");
    gateway.advance(88_000);
    assert_eq!(gateway.get(TOKEN).await.status, 503);
    gateway.advance(2_000);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn an_upstream_that_is_not_there() {
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
async fn an_upstream_without_an_address() {
    let gateway = Setup::at("http://upstream.invalid:1")
        .config(IMPATIENT)
        .start();
    let answer = within("a name that does not resolve", gateway.get(TOKEN)).await;
    assert!(matches!(answer.status, 502 | 504), "{answer:?}");
    assert!(!answer.problem().to_string().contains("invalid"));
}

#[tokio::test]
async fn an_upstream_that_is_too_slow() {
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
    let places = || {
        gateway
            .server()
            .first_gateway()
            .upstreams
            .first()
            .in_flight()
    };
    crate::support::until("none is under way any more", || places() == 0).await;
}

#[tokio::test]
async fn a_connection_that_ended_meanwhile_is_made_anew() {
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

#[tokio::test]
async fn connections_are_kept_and_used_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for number in 0..10 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn exactly_this_is_forwarded() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).keys("a-key-of-ours").start();
    let fields = [
        ("x-api-key", "the-clients-own"),
        ("X-API-Key", "another"),
        ("cookie", "a=b"),
        ("authorization", "Bearer x"),
        ("accept", "text/html"),
        ("user-agent", "some client"),
        ("accept-encoding", "gzip, br"),
        ("forwarded", "for=1.2.3.4"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
        ("via", "1.1 somewhere"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("connection", "keep-alive, x-api-key"),
        ("if-none-match", "\"x\""),
        ("if-modified-since", "Fri, 20 Nov 2026 16:00:00 GMT"),
        ("range", "bytes=0-3"),
        ("cache-control", "no-cache"),
        ("referer", "https://a.example/"),
        ("origin", "https://a.example"),
    ];
    let target = "/runes/v1/blocks/0840000/activity?x=y&offset=0&limit=20";
    let answer = gateway.request("GET", target, &fields).await;
    assert_eq!(answer.status, 200);
    let host = upstream.address();
    let version = env!("CARGO_PKG_VERSION");
    let mut lines: Vec<_> = upstream.seen()[0]
        .text()
        .trim_end()
        .split("\r\n")
        .map(str::to_owned)
        .collect();
    lines[1..].sort();
    // Its own name in `via` is the process's.
    let via = lines.iter().position(|line| line.starts_with("via: "));
    let via = lines.remove(via.unwrap());
    assert!(
        via.starts_with("via: 1.1 ordgate-") && via.len() == 33,
        "{via}"
    );
    assert_eq!(
        lines,
        [
            format!("GET {BLOCK_CANONICAL} HTTP/1.1"),
            "accept-encoding: identity".to_owned(),
            "accept: application/json".to_owned(),
            format!("host: {host}"),
            format!("user-agent: ordgate/{version}"),
            "x-api-key: a-key-of-ours".to_owned(),
        ]
    );
}

#[tokio::test]
async fn an_answer_that_says_a_key_back_goes_no_further() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).keys("a-key-of-ours,short").start();
    let body = r#"{"you sent":"a-key-of-ours"}"#;
    let typed = "content-type: application/json; key=a-key-of-ours\r\n";
    for reply in [
        Reply::json(body),
        Reply::status(404, body),
        Reply::with(200, typed, "{}"),
    ] {
        upstream.once(TOKEN, reply);
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 502);
        answer.problem();
        let all = String::from_utf8_lossy(&answer.bytes()).into_owned();
        assert!(!all.contains("a-key-of-ours"), "{all}");
    }
    // It was not stored. A key that is too short is met by chance.
    upstream.once(TOKEN, Reply::json(r#"{"short":"a-key-of-others"}"#));
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), 4);
}

#[tokio::test]
async fn without_a_key_none_is_sent_not_even_the_clients() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let fields = [("x-api-key", "the-clients-own")];
    assert_eq!(gateway.request("GET", TOKEN, &fields).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("x-api-key"), None);
    assert!(!seen.text().contains("the-clients-own"));
}

#[tokio::test]
async fn the_keys_field_can_have_another_name() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("ours")
        .config("upstream.api_key_header = \"X-Other\"")
        .start();
    let fields = [("x-other", "theirs")];
    assert_eq!(gateway.request("GET", TOKEN, &fields).await.status, 200);
    let seen = &upstream.seen()[0];
    assert_eq!(seen.field("x-other").as_deref(), Some("ours"));
    assert_eq!(seen.field("x-api-key"), None);
}

#[tokio::test]
async fn a_path_of_the_base_url_stands_before_every_target() {
    let upstream = Upstream::start();
    for (number, prefix) in ["/api", "/api/", "/a/b/c"].into_iter().enumerate() {
        let gateway = Setup::at(&format!("{}{prefix}", upstream.url())).start();
        assert_eq!(gateway.get(BLOCK).await.status, 200);
        let expected = format!("{}{BLOCK_CANONICAL}", prefix.trim_end_matches('/'));
        assert_eq!(upstream.targets()[number], expected);
        // What the cache knows it by has no such prefix.
        let hit = gateway.get(BLOCK).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
    }
}

#[tokio::test]
async fn a_throttled_key_rests() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .manual()
        .config("upstream.queue_timeout = \"20ms\"")
        .start();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    upstream.once(
        BLOCK_CANONICAL,
        Reply::with(429, "retry-after: 30\r\n", r#"{"telling":"quota"}"#),
    );
    let answer = gateway.get(BLOCK).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.field("retry-after"), Some("30"));
    assert!(!answer.problem().to_string().contains("telling"));

    // The limit was on us: until it is over nobody asks, and hits are served.
    for passed in [0, 15_000, 14_900] {
        gateway.advance(passed);
        let answer = gateway.get(BLOCK).await;
        assert_eq!(answer.status, 503);
        assert!(answer.number("retry-after") <= 30);
        answer.problem();
        assert_eq!(upstream.count(), 2);
    }
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(100);
    assert_eq!(gateway.get(BLOCK).await.status, 200);
}

#[tokio::test]
async fn a_throttled_key_rests_and_another_goes_on() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.field("x-api-key").as_deref() {
        Some("one") => Reply::with(429, "retry-after: 30\r\n", "{}"),
        _ => Reply::json("{}"),
    });
    let gateway = Setup::before(&upstream).keys("one,other").manual().start();
    let statuses = [
        gateway.get(&token(1)).await.status,
        gateway.get(&token(2)).await.status,
        gateway.get(&token(3)).await.status,
        gateway.get(&token(4)).await.status,
    ];
    assert_eq!(statuses, [200; 4]);
    let used: Vec<_> = upstream
        .seen()
        .iter()
        .map(|s| s.field("x-api-key"))
        .collect();
    assert_eq!(used.iter().flatten().filter(|key| *key == "one").count(), 1);
}

#[tokio::test]
async fn the_budget_is_never_exceeded() {
    const MINUTE: usize = 12;
    const SECOND: usize = 5;
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .config(&format!(
            "server.workers = 2\n\
             upstream.requests_per_minute = {MINUTE}\n\
             upstream.requests_per_second = {SECOND}\n\
             upstream.queue_timeout = \"5s\""
        ))
        .start();
    let asking: Vec<_> = (0..100)
        .map(|number| {
            let public = gateway.public;
            tokio::spawn(async move { Client::connect(public).await.get(&token(number)).await })
        })
        .collect();
    let mut served = 0;
    for task in asking {
        let answer = task.await.unwrap();
        match answer.status {
            200 => served += 1,
            503 => {
                assert!((1..=61).contains(&answer.number("retry-after")));
                answer.problem();
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    // The rest is spread over the minute.
    assert!(
        (MINUTE / 2..=MINUTE).contains(&served),
        "{served}: much of what there is goes at once"
    );
    let times: Vec<_> = upstream.seen().iter().map(|seen| seen.at).collect();
    assert_eq!(times.len(), served, "and no more");
    for window in times.windows(SECOND + 1) {
        let span = window[SECOND].since(window[0]);
        assert!(span >= Duration::from_secs(1), "{span:?} holds {window:?}");
    }
}

#[tokio::test]
async fn a_spent_budget_leaves_hits_alone() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .manual()
        .config("upstream.requests_per_minute = 2\nupstream.queue_timeout = \"20ms\"")
        .start();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    let answer = gateway.get(&token(2)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.number("retry-after"), 61);
    assert_eq!(
        answer.must("cache-status"),
        "ordgate; fwd=uri-miss; detail=budget-spent"
    );
    answer.problem();
    assert_eq!(
        gateway.get(TOKEN).await.must("cache-status"),
        "ordgate; hit; ttl=10"
    );
    // Stale is better than nothing.
    gateway.advance(11_000);
    let stale = gateway.get(TOKEN).await;
    assert_eq!(stale.status, 200);
    assert_eq!(
        stale.must("cache-status"),
        "ordgate; fwd=stale; ttl=-1; detail=stale-if-error"
    );
    assert_eq!(upstream.count(), 2);
    gateway.advance(49_051);
    assert_eq!(gateway.get(&token(2)).await.status, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn retries_are_paid_for() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().close());
    let gateway = Setup::before(&upstream)
        .manual()
        .config("upstream.requests_per_minute = 3\nupstream.queue_timeout = \"20ms\"")
        .start();
    assert_eq!(gateway.get(&token(1)).await.status, 502);
    assert_eq!(upstream.count(), 2);
    // One is left: the retry of this one has none.
    let answer = gateway.get(&token(2)).await;
    assert!(matches!(answer.status, 502 | 503), "{answer:?}");
    assert_eq!(upstream.count(), 3);
    assert_eq!(gateway.get(&token(3)).await.status, 503);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn no_more_are_under_way_than_may_be() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let gateway = Setup::before(&upstream)
        .config("upstream.max_in_flight = 2\nupstream.queue_timeout = \"50ms\"\nserver.workers = 2")
        .start();
    let mut asking = Vec::new();
    for number in 0..2 {
        let mut client = gateway.client().await;
        client.ask("GET", &token(number), &[]).await;
        asking.push(client);
    }
    upstream.asked(2).await;
    let answer = gateway.get(&token(2)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.field("retry-after"), Some("1"));
    answer.problem();
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn https_with_an_authority_of_the_operators() {
    let (authority, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{}", upstream.address().port());
        let gateway = Setup::at(&url).keys("a-key").config(&ca_file).start();
        let answer = gateway.get(TOKEN).await;
        assert_eq!((answer.status, answer.text()), (200, &*usual_body(TOKEN)));
        let seen = upstream.seen();
        let key = seen.last().unwrap().field("x-api-key");
        assert_eq!(key.as_deref(), Some("a-key"));
    }
}

#[tokio::test]
async fn https_that_nobody_vouches_for() {
    let (_unknown, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys("a-key").start();
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=tls_certificate_error"
    );
    answer.problem();
    assert_eq!(upstream.count(), 0, "nothing was said to it");
}

#[tokio::test]
async fn https_where_there_is_none() {
    let upstream = Upstream::start();
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys("a-key").config(IMPATIENT).start();
    let answer = gateway.get(TOKEN).await;
    assert!(matches!(answer.status, 502 | 504), "{answer:?}");
    assert_eq!(upstream.count(), 0, "the key was not sent in the clear");
}

#[tokio::test]
async fn https_that_is_never_agreed_on() {
    // It accepts, and says nothing: connecting is not over before TLS is.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let gateway = Setup::at(&url)
        .keys("a-key")
        .config("upstream.connect_timeout = \"80ms\"")
        .start();
    let answer = within("the handshake", gateway.get(TOKEN)).await;
    assert_eq!(answer.status, 504);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=connection_timeout"
    );
    answer.problem();
}

#[tokio::test]
async fn a_key_does_not_travel_in_the_clear() {
    let start = |url: &str, keys: bool, more: &str| {
        let setup = Setup::at(url).config(more);
        let setup = if keys { setup.keys("a-key") } else { setup };
        setup.try_start()
    };
    for url in ["http://api.example", "http://192.0.2.1:80/api"] {
        let refused = start(url, true, "").err();
        let Some(StartError::Upstream(SetupError::PlainHttp(_))) = &refused else {
            panic!("{url}: {refused:?}")
        };
        let message = refused.unwrap().to_string();
        assert!(message.contains("allow_plain_http"), "{message}");
        assert!(!message.contains("a-key"), "{message}");
        assert!(start(url, false, "").is_ok(), "without a key it may");
        assert!(start(url, true, "upstream.allow_plain_http = true").is_ok());
    }
    for url in [
        "https://api.example",
        "http://127.0.0.1:1",
        "http://localhost:1",
    ] {
        assert!(start(url, true, "").is_ok(), "{url}");
    }
}

#[tokio::test]
async fn a_gateway_needs_an_upstream() {
    let refused = Setup::alone().try_start().err().unwrap();
    assert!(refused.to_string().contains("--upstream"), "{refused}");
}
