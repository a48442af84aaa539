//! How the log reports an endpoint that fails: why, with the error's own text; no key and no
//! request is in it. What `/status` says stands in `faults` and `tls`.

use std::io::Write;

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::support::tls::vouching;
use crate::support::{Client, Process, ROUTES, Reply, Upstream, token};

const KEY: &str = "a-key-of-ours";

/// A file with this in it, and its path.
fn file(text: &str) -> (NamedTempFile, String) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

#[tokio::test]
async fn the_log_has_each_reason_once_in_ten_seconds() {
    let (authority, acceptor) =
        vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let (expired, other) = (Upstream::start_tls(acceptor), Upstream::start());
    let url = format!("https://localhost:{}", expired.address().port());
    let (_authority, ca_file) = file(&authority);
    let upstream = format!(
        "url = {:?}, ca_file = {ca_file:?}, retry = false",
        [&url, &other.url()]
    );
    let (_config, path) = file(&format!(
        "builtin_routes = false\nupstream = {{ {upstream} }}\n{ROUTES}"
    ));
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
