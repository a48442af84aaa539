//! Spellings of limits, the clock that dates are relative to, and unreadable
//! values.

use std::time::{Duration, UNIX_EPOCH};

use super::super::{key, keyed, must_wait};
use super::{limits, must_leave};
use crate::support::{Client, Process, Upstream, token};

/// The table of them all is `upstream::reported`'s; this is one of each kind.
#[tokio::test]
async fn all_spellings_of_reported_limits_are_read() {
    for (fields, left, seconds) in [
        ("ratelimit: limit=100, remaining=2, reset=5\r\n", 2, 5),
        // What ordgate itself sends.
        (
            "ratelimit-policy: \"default\";q=300;w=60\r\nratelimit: \"default\";r=2;t=30\r\n",
            2,
            30,
        ),
        (
            "ratelimit: \"burst\";r=9;t=2, \"default\";r=1;t=40\r\n",
            1,
            40,
        ),
        (
            "x-rate-limit-limit: 40\r\nx-rate-limit-remaining: 1\r\nx-rate-limit-reset: 8\r\n",
            1,
            8,
        ),
        ("x-ratelimit-remaining-bitcoin-minute: 1\r\n", 1, 60),
        (
            "x-ratelimit-remaining-requests: 1\r\nx-ratelimit-reset-requests: 6m0s\r\n",
            1,
            360,
        ),
        ("ratelimit-remaining: 1\r\nratelimit-reset: 20s\r\n", 1, 20),
        ("ratelimit-remaining: 1.0\r\nratelimit-reset: 1.5\r\n", 1, 2),
        (
            "x-ratelimit-remaining: 1\r\nx-ratelimit-reset: 2026-11-20T16:00:45Z\r\n\
             date: Fri, 20 Nov 2026 16:00:00 GMT\r\n",
            1,
            45,
        ),
        (
            "x-ratelimit-remaining: 1\r\nx-ratelimit-reset: 1795190445000\r\n\
             date: Fri, 20 Nov 2026 16:00:00 GMT\r\n",
            1,
            45,
        ),
        // A number that is 0 counts, however its end is spelt.
        ("ratelimit-remaining: 0\r\nratelimit-reset: soon\r\n", 0, 10),
        ("x-shopify-shop-api-call-limit: 40/40\r\n", 0, 1),
    ] {
        must_leave(200, fields, left, seconds).await;
    }
}

/// An upstream's dates are read by the upstream's clock, as far as it says what
/// that is.
#[tokio::test]
async fn dates_are_read_by_the_clock_of_the_answer() {
    const HOUR: u64 = 3600;
    for (ahead, behind) in [(5 * HOUR, 0), (0, 5 * HOUR), (300 * 24 * HOUR, 0)] {
        for (status, field) in [
            (429, "retry-after: {date}"),
            (429, "retry-after: {unix}"),
            (429, "x-ratelimit-reset: {unix}"),
            (200, "ratelimit-remaining: 0\r\nratelimit-reset: {unix}"),
            (200, "ratelimit-remaining: 0\r\nratelimit-reset: {unix}000"),
            (200, "ratelimit-remaining: 0\r\nratelimit-reset: {date}"),
        ] {
            let upstream = Upstream::start();
            upstream.always(limits(200, ""));
            let gateway = keyed(&upstream, "one");
            let own = gateway.wall();
            let theirs = own + Duration::from_secs(ahead) - Duration::from_secs(behind);
            let end = theirs + Duration::from_secs(5);
            let unix = end.duration_since(UNIX_EPOCH).unwrap().as_secs();
            let field = field.replace("{unix}", &unix.to_string());
            let field = field.replace("{date}", &httpdate::fmt_http_date(end));
            let date = httpdate::fmt_http_date(theirs);
            let fields = format!("date: {date}\r\n{field}\r\n");
            upstream.once(&token(0), limits(status, &fields));
            let first = gateway.get(&token(0)).await;
            assert_eq!(first.status, if status == 429 { 503 } else { 200 });
            must_wait(&gateway.get(&token(1)).await, 5);
            assert_ne!(key(&gateway, 0).await["state"], "quota-spent", "{fields}");
            gateway.advance(5_000);
            assert_eq!(gateway.get(&token(1)).await.status, 200, "{fields}");
        }
    }
}

/// A `date` that cannot be read, or several, say nothing; nor does one of
/// another age of the world.
#[tokio::test]
async fn with_a_broken_date_the_local_clock_counts() {
    for date in [
        "",
        "date: soon\r\n",
        "date: Fri, 20 Nov 2026 16:00:00 GMT\r\ndate: Fri, 20 Nov 2026 17:00:00 GMT\r\n",
        "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
        "date: Fri, 31 Dec 9999 23:59:59 GMT\r\n",
    ] {
        let upstream = Upstream::start();
        upstream.always(limits(200, ""));
        let gateway = keyed(&upstream, "one");
        let end = gateway.wall() + Duration::from_secs(45);
        let end = httpdate::fmt_http_date(end);
        upstream.once(
            &token(0),
            limits(429, &format!("{date}retry-after: {end}\r\n")),
        );
        let wait = gateway.get(&token(0)).await.number("retry-after");
        assert!((44..=45).contains(&wait), "{wait} {date}");
        gateway.advance(45_000);
        assert_eq!(gateway.get(&token(1)).await.status, 200, "{date}");
    }
}

#[tokio::test]
async fn unreadable_limits_cause_a_pause_only_after_a_429() {
    let unreadable = "ratelimit-remaining: many\r\nx-ratelimit-remaining-minute: -1\r\n\
                      ratelimit: remaining\r\nratelimit-reset: soon\r\n";
    for (status, fields) in [
        (429, unreadable),
        (503, unreadable),
        (429, "retry-after: soon\r\n"),
        (429, "ratelimit: &\r\n"),
    ] {
        let upstream = Upstream::start();
        upstream.always(limits(200, ""));
        upstream.once(&token(0), limits(status, fields));
        let gateway = keyed(&upstream, "one");
        assert!(gateway.get(&token(0)).await.status >= 500);
        must_wait(&gateway.get(&token(1)).await, 10);
        assert_eq!(upstream.count(), 1, "{status} {fields}");
        gateway.advance(10_000);
        assert_eq!(gateway.get(&token(1)).await.status, 200, "{fields}");
    }
    let upstream = Upstream::start();
    upstream.always(limits(200, unreadable));
    let gateway = keyed(&upstream, "one");
    for number in 0..5 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
}

#[tokio::test]
async fn unreadable_limits_are_logged_once() {
    let upstream = Upstream::start();
    upstream.always(limits(
        200,
        "ratelimit-remaining: plenty\r\nratelimit: &\r\nx-ratelimit-reset: a-key-of-ours\r\n",
    ));
    let variables = [("ORDGATE_API_KEYS", "a-key-of-ours")];
    let (process, public, _admin) = Process::before(&upstream, &[], &variables);
    let mut client = Client::connect(public).await;
    for number in 0..3 {
        assert_eq!(client.get(&token(number)).await.status, 200);
    }
    process.signal(rustix::process::Signal::TERM);
    drop(client);
    let left = process.wait();
    let lines = left.errors.lines();
    let url = format!("\"{}\"", upstream.url());
    let lines = lines.filter(|line| line.contains("\"field\":") && line.contains(&url));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 3, "{}", left.errors);
    for (field, value) in [
        ("ratelimit-remaining", "plenty"),
        ("ratelimit", "&"),
        ("x-ratelimit-reset", "withheld"),
    ] {
        let named = |line: &&&str| line.contains(&format!("\"field\":\"{field}\""));
        let line = lines.iter().find(named);
        let line = line.unwrap_or_else(|| panic!("{field}: {}", left.errors));
        assert!(line.contains("WARN") && line.contains(value), "{line}");
    }
    assert!(!left.errors.contains("a-key-of-ours"));
}

/// An upstream that says it takes more than our budget loosens nothing.
#[tokio::test]
async fn a_reported_limit_above_the_configured_one_is_ignored() {
    let upstream = Upstream::start();
    upstream.always(limits(
        200,
        "ratelimit-limit: 9000\r\nratelimit-remaining: 8999\r\nratelimit-reset: 60\r\n\
         ratelimit-policy: \"default\";q=9000;w=60\r\nratelimit: \"default\";r=8999;t=60\r\n\
         x-rate-limit-limit: 9000\r\nx-rate-limit-remaining: 8999\r\nx-rate-limit-reset: 60\r\n",
    ));
    let gateway = keyed(&upstream, "one");
    let limited = "upstream.requests_per_minute = 5\nupstream.requests_per_second = 5";
    assert_eq!(gateway.reload(limited).await.status, 200);
    for number in 0..20 {
        gateway.get(&token(number)).await;
    }
    assert!(upstream.count() <= 5, "{}", upstream.count());
}
