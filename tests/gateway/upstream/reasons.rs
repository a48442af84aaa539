//! How `/status` and the log report an endpoint that fails: why, since when, and
//! the error's own text; no key and no request is in it.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use super::metric;
use crate::support::tls::vouching;
use crate::support::{Client, Gateway, Process, ROUTES, Reply, Setup, Upstream, token, within};

const KEY: &str = "a-key-of-ours";

/// What `/status` says of an endpoint's last failure.
async fn last_failure(gateway: &Gateway, at: usize) -> Value {
    let status = gateway.admin("/status").await.json();
    status["upstream"]["endpoints"][at]["last_failure"].clone()
}

fn says_expired(failure: &Value) {
    assert_eq!(failure["reason"], "tls_certificate", "{failure}");
    let cause = failure["cause"].as_str().unwrap();
    assert!(cause.contains("certificate expired"), "{failure}");
    assert!(failure["at"].as_str().unwrap().ends_with(" GMT"));
    for secret in [KEY, "/tokens/"] {
        assert!(!failure.to_string().contains(secret), "{failure}");
    }
}

/// A file with this in it.
fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// A gateway before these URLs that trusts this authority.
fn trusting(urls: &[String], authority: &str) -> Gateway {
    let setup = Setup::alone()
        .keys(KEY)
        .manual()
        .config(&format!("upstream.url = {urls:?}"))
        .config("upstream.retry = false");
    let file = file(authority);
    let config = format!("upstream.ca_file = \"{}\"", file.path().display());
    setup.config(&config).start()
}

fn https(upstream: &Upstream) -> String {
    format!("https://localhost:{}", upstream.address().port())
}

#[tokio::test]
async fn an_expired_certificate_at_one_endpoint_is_reported() {
    let (authority, acceptor) =
        vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let expired = Upstream::start_tls(acceptor);
    let well = Upstream::start();
    let gateway = trusting(&[https(&expired), well.url()], &authority);
    for number in 0..2 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    gateway.advance(7000);
    let failure = last_failure(&gateway, 0).await;
    says_expired(&failure);
    assert_eq!(failure["ago_seconds"], 7);
    assert_eq!(failure["in_a_row"], 2);
    assert_eq!(last_failure(&gateway, 1).await, Value::Null);
    let name = |endpoint: &str| {
        format!(
            "ordgate_upstream_failures_total{{upstream=\"default\",endpoint=\"{endpoint}\",\
             reason=\"tls_certificate\"}}"
        )
    };
    assert_eq!(metric(&gateway, &name(&https(&expired))).await, "2");

    // A standby is only probed.
    let gateway = trusting(&[well.url(), https(&expired)], &authority);
    let known = async {
        while last_failure(&gateway, 1).await.is_null() {
            tokio::task::yield_now().await;
        }
    };
    within("the standby is probed", known).await;
    let failure = last_failure(&gateway, 1).await;
    says_expired(&failure);
    assert_eq!(metric(&gateway, &name(&https(&expired))).await, "1");
}

#[tokio::test]
async fn the_log_has_each_reason_once_in_ten_seconds() {
    let (authority, acceptor) =
        vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let expired = Upstream::start_tls(acceptor);
    let (authority, other) = (file(&authority), Upstream::start());
    let urls = [https(&expired), other.url()];
    let config = format!(
        "upstream.url = {urls:?}\nupstream.ca_file = \"{}\"\nupstream.retry = false\n{ROUTES}",
        authority.path().display()
    );
    let config = file(&config);
    let path = config.path().display().to_string();
    let variables = [("ORDGATE_API_KEYS", KEY)];
    let (process, public, _admin) = Process::serve(&["--config", &path], &variables);
    let mut client = Client::connect(public).await;
    for number in 0..3 {
        assert_eq!(client.get(&token(number)).await.status, 200);
    }
    other.once(&token(3), Reply::status(503, "{}"));
    client.get(&token(3)).await;
    assert_eq!(client.get(&token(4)).await.status, 200);
    process.signal(rustix::process::Signal::TERM);
    drop(client);
    let left = process.wait();
    let lines = left.errors.lines();
    let lines = lines.filter(|line| line.contains("a request to the upstream failed"));
    let mut failures: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for line in &failures {
        assert_eq!(line["route"], "brc20-token", "{line}");
        assert_eq!(line["request_id"].as_str().unwrap().len(), 16, "{line}");
        assert_eq!(
            (&line["level"], &line["is_of_endpoint"]),
            (&"WARN".into(), &true.into())
        );
    }
    // On a slow machine one is logged again after ten seconds.
    failures.dedup_by_key(|line| line["reason"].clone());
    let expected = [
        (https(&expired), "tls_certificate"),
        (other.url(), "server_error"),
    ];
    assert_eq!(failures.len(), expected.len(), "{}", left.errors);
    for (line, (url, reason)) in failures.iter().zip(expected) {
        assert_eq!(
            (&line["endpoint"], &line["reason"]),
            (&url.into(), &reason.into())
        );
    }
    let cause = failures[0]["cause"].as_str().unwrap();
    assert!(cause.contains("certificate expired"), "{cause}");
    let hint = failures[0]["hint"].as_str().unwrap();
    assert!(hint.contains("ca_file"), "{hint}");
    for secret in [KEY, "/tokens/"] {
        assert!(!format!("{failures:?}").contains(secret), "{secret}");
    }
}
