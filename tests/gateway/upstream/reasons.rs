//! How `/status` and the log report an endpoint that fails: why, since when, and
//! the error's own text; no key and no request is in it.

use std::io::Write;

use rustls::version::{TLS12, TLS13};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::metric;
use crate::support::tls::{self, self_signed, vouching};
use crate::support::upstream::refusing;
use crate::support::{
    Client, Gateway, Process, ROUTES, Reply, Setup, TOKEN, Upstream, token, within,
};

const KEY: &str = "a-key-of-ours";

/// What `/status` says of an endpoint's last failure.
async fn last_failure(gateway: &Gateway, at: usize) -> Value {
    let status = gateway.admin("/status").await.json();
    status["upstream"]["endpoints"][at]["last_failure"].clone()
}

fn says(failure: &Value, reason: &str, kind: &str, part: &str, name: &str) {
    assert_eq!(failure["reason"], reason, "{name}: {failure}");
    assert_eq!(failure["kind"], kind, "{name}: {failure}");
    let causes = failure["causes"].to_string();
    assert!(causes.contains(part), "{name}: {failure}");
    assert!(failure["at"].as_str().unwrap().ends_with(" GMT"), "{name}");
    for secret in [KEY, TOKEN] {
        assert!(!failure.to_string().contains(secret), "{name}: {failure}");
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
    if authority.is_empty() {
        return setup.start();
    }
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
    let (reason, kind) = ("tls_certificate_error", "certificate_expired");
    says(&failure, reason, kind, "expired", "preferred");
    assert_eq!(failure["ago_seconds"], 7);
    assert_eq!(failure["in_a_row"], 2);
    assert_eq!(last_failure(&gateway, 1).await, Value::Null);
    let name = |endpoint: &str| {
        format!(
            "ordgate_upstream_failures_total{{upstream=\"default\",endpoint=\"{endpoint}\",\
             reason=\"{reason}\",kind=\"{kind}\"}}"
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
    says(&failure, reason, kind, "expired", "standby");
    assert_eq!(metric(&gateway, &name(&https(&expired))).await, "1");
}

#[tokio::test]
async fn each_tls_failure_is_reported_with_its_reason() {
    let (certificate, alert) = ("tls_certificate_error", "tls_alert_received");
    let named = |name: &'static str| {
        vouching(move |params: &mut rcgen::CertificateParams| {
            let name = rcgen::SanType::DnsName(name.try_into().unwrap());
            params.subject_alt_names = vec![name];
        })
    };
    let rows = [
        (
            vouching(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1)),
            certificate,
            "certificate_not_yet_valid",
            "not valid yet",
        ),
        (
            named("other.example"),
            certificate,
            "certificate_name_mismatch",
            "other.example",
        ),
        (
            named(KEY),
            certificate,
            "certificate_name_mismatch",
            "withheld",
        ),
        (
            (String::new(), self_signed()),
            certificate,
            "certificate_unknown_issuer",
            "UnknownIssuer",
        ),
        (
            vouching(|params| {
                let server = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
                params.is_ca = server;
            }),
            certificate,
            "certificate_is_authority",
            "CaUsedAsEndEntity",
        ),
        (
            vouching(|params| {
                params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            }),
            certificate,
            "certificate_wrong_purpose",
            "client",
        ),
        (
            tls::demanding(&TLS12),
            alert,
            "client_certificate_required",
            "",
        ),
        (
            tls::demanding(&TLS13),
            alert,
            "client_certificate_required",
            "",
        ),
    ];
    for ((authority, acceptor), reason, kind, part) in rows {
        let upstream = Upstream::start_tls(acceptor);
        let gateway = trusting(&[https(&upstream)], &authority);
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 502, "{kind}");
        let proxy_status = format!("ordgate; error={reason}");
        assert_eq!(answer.must("proxy-status"), proxy_status, "{kind}");
        says(&last_failure(&gateway, 0).await, reason, kind, part, kind);
        let detail = answer.json()["detail"].to_string();
        let demands = detail.contains("requires a TLS client certificate");
        assert_eq!(demands, kind == "client_certificate_required", "{detail}");
        assert_eq!(upstream.count(), 0, "{kind}");
    }
}

/// nginx takes the connection for made, and answers with a page.
#[tokio::test]
async fn a_demand_for_a_client_certificate_is_the_reported_reason() {
    let html = "content-type: text/html\r\n";
    let page = "<html>\r\n<head><title>400 No required SSL certificate was sent</title></head>\r\n\
                <body>\r\n<center><h1>400 Bad Request</h1></center>\r\n</html>";
    let demand = ("tls_alert_received", "client_certificate_required");
    let other = ("http_protocol_error", "not_json");
    for (reply, (reason, kind)) in [
        (Reply::with(400, html, page), demand),
        (Reply::with(400, html, "<html>No</html>"), other),
        (
            Reply::raw("HTTP/1.1 400 No\r\ncontent-type: text/html\r\ncontent-length: 9\r\n\r\n")
                .close(),
            other,
        ),
        (Reply::with(404, html, page), other),
    ] {
        let upstream = Upstream::start();
        let gateway = trusting(&[upstream.url()], "");
        upstream.always(reply);
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 502, "{kind}");
        let detail = answer.json()["detail"].to_string();
        let demands = detail.contains("requires a TLS client certificate");
        assert_eq!(demands, kind == demand.1, "{detail}");
        let failure = last_failure(&gateway, 0).await;
        says(&failure, reason, kind, "status 40", kind);
        assert!(!failure.to_string().contains("html"), "{failure}");
    }
}

#[tokio::test]
async fn each_failed_exchange_is_reported_with_its_reason() {
    let html = "content-type: text/html\r\n";
    let rows = [
        (
            Reply::nothing().reset(),
            ("connection_terminated", "connection_reset", "reset"),
        ),
        (
            Reply::nothing().close(),
            ("connection_terminated", "connection_closed", "closed"),
        ),
        (
            Reply::raw("garbage\r\n\r\n").close(),
            ("http_protocol_error", "malformed_head", "invalid HTTP"),
        ),
        (
            Reply::status(503, "{}"),
            ("http_protocol_error", "server_error", "503"),
        ),
        (
            Reply::with(200, html, "<html>"),
            ("http_protocol_error", "not_json", "JSON"),
        ),
        (
            Reply::with(302, "location: /\r\n", ""),
            ("http_protocol_error", "redirect", "302"),
        ),
    ];
    for (reply, (reason, kind, part)) in rows {
        let upstream = Upstream::start();
        let gateway = trusting(&[upstream.url()], "");
        upstream.always(reply);
        assert_eq!(gateway.get(TOKEN).await.status, 502, "{kind}");
        let failure = last_failure(&gateway, 0).await;
        says(&failure, reason, kind, part, kind);
        // It stays known when all is well again.
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(1)).await.status, 200, "{kind}");
        let after = last_failure(&gateway, 0).await;
        says(&after, reason, kind, part, kind);
        assert_eq!(
            (&failure["in_a_row"], &after["in_a_row"]),
            (&1.into(), &0.into())
        );
    }
    let (_held, address) = refusing();
    let gateway = trusting(&[format!("http://{address}")], "");
    gateway.get(TOKEN).await;
    let failure = last_failure(&gateway, 0).await;
    says(
        &failure,
        "connection_refused",
        "connection_refused",
        "refused",
        "",
    );
}

#[tokio::test]
async fn an_unresolvable_name_is_reported() {
    let rows = [
        (std::io::ErrorKind::NotFound.into(), "name_unknown"),
        (
            std::io::Error::other("Temporary failure in name resolution"),
            "name_lookup_failed",
        ),
    ];
    for (error, kind) in rows {
        let text = error.to_string();
        let gateway = Setup::at("http://api.example")
            .names(move |_| Err(std::io::Error::other(text.clone())))
            .config("upstream.retry = false")
            .start();
        gateway.get(TOKEN).await;
        let failure = last_failure(&gateway, 0).await;
        says(&failure, "dns_error", kind, "api.example", kind);
    }
}

#[tokio::test]
async fn the_log_has_each_failure_and_each_recovery_once() {
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
    let lines = |part: &str| {
        let lines = left.errors.lines().filter(|line| line.contains(part));
        let lines: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines
    };
    let mut failures = lines("requests to the endpoint fail");
    for line in &failures {
        assert_eq!(line["route"], "brc20-token", "{line}");
        assert_eq!(line["request_id"].as_str().unwrap().len(), 16, "{line}");
    }
    // On a slow machine one is logged again after ten seconds.
    failures.dedup_by_key(|line| line["kind"].clone());
    let expected = [
        (
            https(&expired),
            "tls_certificate_error",
            "certificate_expired",
        ),
        (other.url(), "http_protocol_error", "server_error"),
    ];
    assert_eq!(failures.len(), expected.len(), "{}", left.errors);
    for (line, (url, reason, kind)) in failures.iter().zip(expected) {
        assert_eq!(line["level"], "WARN", "{line}");
        assert_eq!(line["endpoint"], url, "{line}");
        assert_eq!(line["reason"], reason, "{line}");
        assert_eq!(line["kind"], kind, "{line}");
    }
    let error = failures[0]["error"].as_str().unwrap();
    assert!(error.contains("certificate expired"), "{error}");
    let well = lines("the endpoint answers again");
    assert_eq!(well.len(), 1, "{}", left.errors);
    assert_eq!(well[0]["endpoint"], other.url());
    assert_eq!(well[0]["level"], "INFO");
    for secret in [KEY, "/tokens/"] {
        let of_endpoints = [&failures[..], &well[..]].concat();
        assert!(!format!("{of_endpoints:?}").contains(secret), "{secret}");
    }
}
