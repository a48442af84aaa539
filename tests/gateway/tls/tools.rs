//! The tools that users have: curl and openssl.

use std::process::{Command, Stdio};

use super::{https, started};
use crate::support::https::Certificates;
use crate::support::{Gateway, Process, TOKEN, Upstream, within};

/// Runs a tool; what it printed, errors included. `None` where it is not installed,
/// which is an error in CI.
pub(crate) async fn run(tool: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(tool);
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = match within(tool, output).await.unwrap() {
        Ok(output) => output,
        Err(error) => {
            assert!(std::env::var_os("ORDGATE_CI").is_none(), "{tool}: {error}");
            eprintln!("skipped: {tool}: {error}");
            return None;
        }
    };
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Requests [`TOKEN`] so many times with one call of curl, which trusts the gateway's
/// authority.
async fn curl(
    certificates: &Certificates,
    gateway: &Gateway,
    flags: &[&str],
    times: usize,
) -> Option<String> {
    let port = https(gateway).port();
    let url = format!("https://localhost:{port}{TOKEN}");
    let resolve = format!("localhost:{port}:127.0.0.1");
    let ca = certificates.path("ca.pem").display().to_string();
    let fixed = ["-sv", "--cacert", &ca, "--resolve", &resolve];
    run("curl", &[flags, &fixed, &vec![&*url; times]].concat()).await
}

#[tokio::test]
async fn curl_gets_http2_by_alpn() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    for version in ["1.2", "1.3"] {
        let flags = ["--http2", "--tls-max", version];
        let Some(text) = curl(&certificates, &gateway, &flags, 2).await else {
            return;
        };
        assert!(text.contains("ALPN: server accepted h2"), "{text}");
        assert_eq!(text.matches("< HTTP/2 200").count(), 2, "{text}");
    }
    let connections = gateway.figure("/connections/accepted");
    assert_eq!(connections, 2, "both requests on one");
}

#[test]
fn check_refuses_what_serve_refuses() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificates = [\n  { chain = \"/nowhere/a.pem\", key = \"/nowhere/a.key\" },\n  { chain = \"/nowhere/b.pem\", key = \"/nowhere/b.key\" },\n]\n";
    std::fs::write(file.path(), listener).unwrap();
    let config = file.path().display().to_string();
    for command in ["check", "serve"] {
        let url = "http://127.0.0.1:1";
        let refused = Process::run(&[command, "--config", &config, "--upstream", url], &[]);
        assert_eq!(refused.code(), Some(2), "{command}: {}", refused.errors);
        for name in ["a", "b"] {
            let expected = format!(
                "listener.tls.certificates: cannot read /nowhere/{name}.pem: No such file or directory"
            );
            assert!(
                refused.errors.contains(&expected),
                "{command}: {}",
                refused.errors
            );
        }
    }
}
