//! The command that makes tokens, and curl with what it prints.

use std::io::Write;
use std::process::Command;

use crate::support::{Process, TOKEN, Upstream};

/// A token, and its line for the file.
fn made(name: &str) -> (String, String) {
    let left = Process::run(&["token", "new", name], &[]);
    assert_eq!((left.code(), &*left.errors), (Some(0), ""));
    let (token, rest) = left.out.split_once('\n').unwrap();
    let line = rest.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n') && !line.contains(token), "{line}");
    (token.to_owned(), line.to_owned())
}

/// The status that curl gets.
fn curl(url: &str, arguments: &[&str]) -> String {
    let format = ["-s", "-o", "/dev/null", "-w", "%{http_code}"];
    let done = Command::new("curl")
        .args(format)
        .args(arguments)
        .arg(url)
        .output();
    let done = done.expect("curl is installed");
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test]
async fn curl_uses_a_token_until_a_signal_removes_it() {
    let upstream = Upstream::start();
    let (token, line) = made("front-end");
    assert_eq!((token.len(), &token[..3]), (51, "og_"));
    let digest = Command::new("sh")
        .args(["-c", &format!("printf %s {token} | sha256sum")])
        .output();
    let digest = String::from_utf8(digest.unwrap().stdout).unwrap();
    assert_eq!(
        line,
        format!("front-end = {{ sha256 = [\"{}\"] }}", &digest[..64])
    );
    let mut tokens = tempfile::NamedTempFile::new().unwrap();
    writeln!(tokens, "{line}").unwrap();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let path = tokens.path().display();
    writeln!(
        config,
        "clients.token_file = \"{path}\"\nclients.require_token = true"
    )
    .unwrap();
    let config = config.path().display().to_string();
    let checked = Process::run(&["check", "--config", &config], &[]);
    assert!(
        checked.out.contains("# client tokens: 1 of 1 names\n"),
        "{}",
        checked.out
    );
    assert!(
        checked.out.contains(&format!("token_file = \"{path}\"\n")),
        "{}",
        checked.out
    );
    assert!(!checked.out.contains(&digest[..16]));
    let (process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
    let url = format!("http://{public}{TOKEN}");
    let bearer = format!("authorization: Bearer {token}");
    let key = format!("x-api-key: {token}");
    assert_eq!(curl(&url, &[]), "401");
    assert_eq!(curl(&url, &["-H", &bearer]), "200");
    assert_eq!(curl(&url, &["-H", &key]), "200");
    assert_eq!(curl(&url, &["--oauth2-bearer", &token]), "200");
    std::fs::write(tokens.path(), "").unwrap();
    let reload = format!("http://{admin}/reload");
    assert_eq!(curl(&reload, &["-X", "POST"]), "200");
    assert_eq!(curl(&url, &["-H", &bearer]), "401");
    process.signal(rustix::process::Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}
