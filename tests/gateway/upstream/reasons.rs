//! How `/status` and the log report an endpoint that fails: why, since when, and
//! the error's own text; no key and no request is in it.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::{endpoint, metric};
use crate::support::tls::vouching;
use crate::support::{Client, Process, ROUTES, Reply, Setup, Upstream, token, until};

const KEY: &str = "a-key-of-ours";

/// A file with this in it, and its path.
fn file(text: &str) -> (NamedTempFile, String) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

/// An upstream whose certificate has expired, its URL, and a file with its authority.
fn expired() -> (Upstream, String, (NamedTempFile, String)) {
    let (authority, acceptor) =
        vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let upstream = Upstream::start_tls(acceptor);
    let url = format!("https://localhost:{}", upstream.address().port());
    (upstream, url, file(&authority))
}

fn config(urls: [&str; 2], authority: &str) -> String {
    format!("upstream = {{ url = {urls:?}, ca_file = \"{authority}\", retry = false }}\n")
}

#[tokio::test]
async fn an_expired_certificate_at_one_endpoint_is_reported() {
    let (_expired, url, (_file, authority)) = expired();
    let well = Upstream::start();
    // A standby is only probed.
    for (at, urls, times) in [(0, [&*url, &well.url()], 2), (1, [&*well.url(), &url], 1)] {
        let setup = Setup::alone().keys(KEY).manual();
        let gateway = setup.config(&config(urls, &authority)).start();
        for number in 0..2 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        until("it is asked", || {
            !endpoint(&gateway, at)["last_failure"].is_null()
        })
        .await;
        gateway.advance(7000);
        let failure = endpoint(&gateway, at)["last_failure"].clone();
        assert_eq!(failure["reason"], "tls_certificate", "{failure}");
        let cause = failure["cause"].as_str().unwrap();
        assert!(cause.contains("certificate expired"), "{failure}");
        assert!(failure["at"].as_str().unwrap().ends_with(" GMT"));
        for secret in [KEY, "/tokens/"] {
            assert!(!failure.to_string().contains(secret), "{failure}");
        }
        assert_eq!(
            (&failure["ago_seconds"], &failure["in_a_row"]),
            (&7.into(), &times.into())
        );
        assert_eq!(endpoint(&gateway, 1 - at)["last_failure"], Value::Null);
        let labels =
            format!("{{upstream=\"default\",endpoint=\"{url}\",reason=\"tls_certificate\"}}");
        let name = format!("ordgate_upstream_failures_total{labels}");
        assert_eq!(metric(&gateway, &name).await, times.to_string());
    }
}

#[tokio::test]
async fn the_log_has_each_reason_once_in_ten_seconds() {
    let (_expired, url, (_file, authority)) = expired();
    let other = Upstream::start();
    let config = config([&url, &other.url()], &authority) + ROUTES;
    let config = format!("builtin_routes = false\n{config}");
    let (_kept, path) = file(&config);
    let variables = [("ORDGATE_API_KEYS", KEY)];
    let (process, public, _admin) = Process::serve(&["--config", &path], &variables);
    other.once(&token(3), Reply::status(503, "{}"));
    for number in 0..5 {
        let answer = Client::connect(public).await.get(&token(number)).await;
        assert_eq!(answer.status, if number == 3 { 502 } else { 200 });
    }
    process.signal(rustix::process::Signal::TERM);
    let log = process.wait().errors;
    let lines = log
        .lines()
        .filter(|line| line.contains("a request to the upstream failed"));
    let mut failures: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // On a slow machine one is logged again after ten seconds.
    failures.dedup_by_key(|line| line["reason"].clone());
    assert_eq!(failures.len(), 2, "{log}");
    for (line, (url, reason)) in failures
        .iter()
        .zip([(url, "tls_certificate"), (other.url(), "server_error")])
    {
        assert_eq!(
            (&line["endpoint"], &line["reason"]),
            (&url.into(), &reason.into())
        );
        assert_eq!(
            (&line["level"], &line["route"]),
            (&"WARN".into(), &"brc20-token".into())
        );
        assert_eq!(line["is_of_endpoint"], true);
        assert_eq!(line["request_id"].as_str().unwrap().len(), 16, "{line}");
    }
    let text = |name: &str| failures[0][name].as_str().unwrap().to_owned();
    assert!(
        text("cause").contains("certificate expired"),
        "{failures:?}"
    );
    assert!(text("hint").contains("ca_file"), "{failures:?}");
    for secret in [KEY, "/tokens/"] {
        assert!(!format!("{failures:?}").contains(secret), "{secret}");
    }
}
