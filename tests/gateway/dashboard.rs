//! The dashboard and `/history` on the admin listener. What a browser makes of the
//! page is checked by `tests/dashboard/run`.

use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Answer, Client, Gateway, Setup, Upstream, token};

/// The most bytes of all files together, compressed.
const MOST: usize = 120 * 1024;
const GZIP: (&str, &str) = ("accept-encoding", "gzip, deflate, br");

async fn fetched(client: &mut Client, path: &str) -> Answer {
    client.request("GET", path, &[GZIP]).await
}

fn unzipped(answer: &Answer) -> String {
    assert_eq!(answer.must("content-encoding"), "gzip");
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(&answer.body[..]);
    decoder.read_to_string(&mut text).unwrap();
    text
}

/// The files that a text of the page names.
fn named(text: &str) -> Vec<String> {
    let marks = ["href=\"dashboard/", "src=\"dashboard/", "from './"];
    let each = marks.iter().flat_map(|mark| text.split(mark).skip(1));
    let end = |rest: &str| rest.find(['"', '\'']).unwrap();
    each.map(|rest| format!("/dashboard/{}", &rest[..end(rest)]))
        .collect()
}

#[tokio::test]
async fn the_page_has_all_its_files_in_few_bytes_and_nothing_from_elsewhere() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = Client::connect(gateway.admin).await;
    let (mut wanted, mut seen, mut total) = (vec!["/".to_owned()], BTreeSet::new(), 0);
    while let Some(path) = wanted.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let answer = fetched(&mut client, &path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.must("x-content-type-options"), "nosniff");
        assert_eq!(answer.must("referrer-policy"), "no-referrer");
        assert_eq!(answer.must("vary"), "accept-encoding");
        let policy = answer.must("content-security-policy");
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        total += answer.body.len();
        let text = unzipped(&answer);
        if !path.contains("uPlot") {
            let elsewhere = text.lines().find(|line| {
                line.contains("http://") && !line.contains("http://www.w3.org/2000/svg")
                    || line.contains("https://")
            });
            assert_eq!(elsewhere, None, "{path}");
            for sink in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
            ] {
                assert!(!text.contains(sink), "{path} has {sink}");
            }
        }
        wanted.extend(named(&text));
        let plain = client.request("GET", &path, &[]).await;
        assert_eq!(plain.field("content-encoding"), None);
        assert_eq!(plain.text(), text, "{path}");
        for tag in [plain.must("etag"), answer.must("etag")] {
            let fields = [GZIP, ("if-none-match", tag)];
            let again = client.request("GET", &path, &fields).await;
            assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
            assert_eq!(again.must("etag"), answer.must("etag"));
        }
        let wrong = client.request("POST", &path, &[]).await;
        assert_eq!((wrong.status, wrong.must("allow")), (405, "GET, HEAD"));
    }
    assert!(seen.len() >= 10, "{seen:?}");
    assert!(total <= MOST, "{total} bytes");
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_files_need_no_token_and_the_data_do() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).token("secret").start();
    let mut client = Client::connect(gateway.admin).await;
    let right = ("authorization", "Bearer secret");
    for path in ["/", "/dashboard/main.js", "/dashboard/uPlot.iife.min.js"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/status",
        "/history",
        "/explain?url=/",
        "/dashboard",
        "/dashboard/",
    ] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
    for path in ["/status", "/history"] {
        let answer = client.request("GET", path, &[right]).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    // Another site's name that resolves to this address gets nothing.
    client
        .send("GET / HTTP/1.1\r\nhost: rebound.example\r\n\r\n")
        .await;
    assert_eq!(client.answer("GET").await.status, 421);
}

#[tokio::test]
async fn the_history_has_what_happened() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let wrong = gateway.admin("/history?since=yesterday").await;
    assert_eq!(wrong.status, 400);
    assert_eq!(wrong.json()["received"], "since=yesterday");
    // The rates of all points so far, of misses.
    let misses = |history: &Value| -> f64 {
        let points = history["series"]["miss"].as_array().unwrap().iter();
        points.filter_map(Value::as_f64).sum()
    };
    let mut number = 0;
    let until = loop {
        // A request before the first sample is in no interval.
        gateway.get(&token(number)).await;
        number += 1;
        assert!(number < 2000, "no sample has a miss");
        let history = gateway.admin("/history").await.json();
        assert_eq!(history["interval_seconds"], 2);
        if misses(&history) > 0.0 {
            // A point of a time without a sample is null.
            let memory = history["series"]["rss_mib"].as_array().unwrap();
            let last = memory.iter().rev().find_map(Value::as_f64);
            assert!(last.unwrap() > 1.0, "{memory:?}");
            break history["until"].as_u64().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let later = gateway.admin(&format!("/history?since={until}")).await;
    let points = later.json()["series"]["miss"].as_array().unwrap().len();
    assert!(points < 100, "{points}");
    let mut client = Client::connect(gateway.admin).await;
    let whole = fetched(&mut client, "/history").await;
    if whole.field("content-encoding").is_some() {
        assert!(unzipped(&whole).starts_with("{\"interval_seconds\":2"));
    }
}

#[tokio::test]
async fn the_dashboard_may_purge_and_reload_and_no_other_page() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let own = format!("http://{}", gateway.admin);
    let mut client = Client::connect(gateway.admin).await;
    let host = gateway.admin.to_string();
    let mark = "x-ordgate-admin: 1\r\n";
    for (fields, expected) in [
        (
            format!("{mark}origin: {own}\r\nsec-fetch-site: same-origin\r\n"),
            200,
        ),
        (format!("{mark}origin: {own}\r\n"), 200),
        (
            format!("origin: {own}\r\nsec-fetch-site: same-origin\r\n"),
            403,
        ),
        (format!("{mark}origin: http://evil.example\r\n"), 403),
        (
            format!("{mark}origin: {own}\r\nsec-fetch-site: cross-site\r\n"),
            403,
        ),
    ] {
        for target in ["/purge?all", "/reload"] {
            let head = format!("POST {target} HTTP/1.1\r\nhost: {host}\r\n");
            client
                .send(format!("{head}{fields}content-length: 0\r\n\r\n"))
                .await;
            let answer = client.answer("POST").await;
            assert_eq!(answer.status, expected, "{target} {fields}");
        }
    }
    // A browser asks before it sends the field from elsewhere, and gets no permission.
    let fields = [
        ("origin", "http://evil.example"),
        ("access-control-request-method", "POST"),
    ];
    let preflight = client.request("OPTIONS", "/purge", &fields).await;
    assert_eq!(preflight.status, 405);
    assert_eq!(preflight.field("access-control-allow-origin"), None);
}
