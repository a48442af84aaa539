//! The binary: start, output and exit.

mod command_line;
mod health;
mod load_target;
mod mistakes;
mod signals;

use std::io::Write;

use rustix::process::Signal;

use crate::support::{Client, Process};

fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

#[tokio::test]
async fn the_sandbox_alone_serves_the_url_it_prints() {
    let process = Process::start(&["sandbox", "--listen", "127.0.0.1:0"], &[]);
    let line = process.line();
    let (_, rest) = line.split_once("http://").unwrap();
    let address = rest.split(';').next().unwrap().parse().unwrap();
    for target in ["/runes/v1/", "/sandbox/examples"] {
        assert_eq!(Client::connect(address).await.get(target).await.status, 200);
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn flags_override_environment_variables_which_override_the_file() {
    // One that is empty is as if it were not set.
    let empty = [
        ("ORDGATE_CONFIG", " "),
        ("ORDGATE_STATE", " "),
        ("ORDGATE_LISTEN", ""),
        ("ORDGATE_ADMIN", " "),
        ("ORDGATE_UPSTREAM", ""),
        ("ORDGATE_API_KEYS", ""),
        ("ORDGATE_API_KEYS_RUNES", ""),
    ];
    let (_held, path) = file("[server]\nlisten = \"127.0.0.1:9\"\n[limit]\nburst = 77\n");
    let one = ["--upstream", "http://127.0.0.1:7"];
    let two = [&one[..], &["--upstream", "runes=http://127.0.0.1:8"]].concat();
    let config = ["--config", &path];
    let of_file = "listen = \"127.0.0.1:9\"\n";
    #[rustfmt::skip]
    let rows: [(&[&str], &[(&str, &str)], &[&str]); 9] = [
        (&[], &empty, &["# proxy.toml (built in)", "127.0.0.1:8080", "burst = 3000"]),
        (&[], &[("ORDGATE_CONFIG", &*path)], &["burst = 77", of_file]),
        (&config, &[("ORDGATE_CONFIG", "/no/such/file")], &["burst = 77", of_file]),
        (&config, &[("ORDGATE_LISTEN", "127.0.0.1:1"), ("ORDGATE_ADMIN", "127.0.0.1:2")], &["listen = \"127.0.0.1:1\"", "listen = \"127.0.0.1:2\""]),
        (&["--listen", "127.0.0.1:3", "--admin", "127.0.0.1:4"], &[("ORDGATE_LISTEN", "nonsense"), ("ORDGATE_ADMIN", "nonsense")], &["listen = \"127.0.0.1:3\"", "listen = \"127.0.0.1:4\""]),
        (&[], &[("ORDGATE_UPSTREAM", "http://127.0.0.1:5, runes=http://127.0.0.1:6,")], &["url = \"http://127.0.0.1:5/\"", "[upstreams.runes]", "url = \"http://127.0.0.1:6/\""]),
        (&one, &[("ORDGATE_UPSTREAM", "nonsense")], &["url = \"http://127.0.0.1:7/\""]),
        (&["--sandbox"], &[("ORDGATE_UPSTREAM", "http://127.0.0.1:5")], &["is valid"]),
        (&two, &[("ORDGATE_API_KEYS_RUNES", "s3cret-key")], &["# API keys: none\n# API keys of the upstream runes: 1 [redacted]\n# admin"]),
    ];
    for (arguments, variables, expected) in rows {
        let left = Process::run(&[&["check"], arguments].concat(), variables);
        let lacks_upstream = left.out.contains("lacks the URL of an upstream");
        assert_eq!(
            left.code(),
            Some(if lacks_upstream { 2 } else { 0 }),
            "{}",
            left.errors
        );
        for part in expected {
            left.printed(part);
        }
        assert!(!left.out.contains("s3cret"), "{}", left.out);
        assert!(!left.out.contains("path = \" \""), "{}", left.out);
    }
    #[rustfmt::skip]
    let rows = [
        ("ORDGATE_LISTEN", "'--listen <ADDR>': \"nonsense\" came; allowed is an IP address and a port"),
        ("ORDGATE_ADMIN", "'--admin <ADDR>': allowed is an IP address and a port"),
        ("ORDGATE_UPSTREAM", "--upstream nonsense: allowed is"),
        ("ORDGATE_CONFIG", "cannot read nonsense"),
    ];
    for (name, expected) in rows {
        let left = Process::run(&["check"], &[(name, "nonsense")]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert!(left.errors.contains(expected), "{}", left.errors);
    }
    let (_held, other) = file("[[route]]\nname = \"another\"\npath = \"/another\"\n");
    let left = Process::run(&["openapi"], &[("ORDGATE_CONFIG", &other)]);
    left.printed("/another");
}

#[tokio::test]
async fn the_document_is_the_same_from_both_sides() {
    let left = Process::run(&["openapi"], &[]);
    assert_eq!(left.code(), Some(0));
    let printed: serde_json::Value = serde_json::from_str(&left.out).unwrap();
    let (_process, public, _) = Process::serve(&["--sandbox"], &[]);
    let served = Client::connect(public).await.get("/openapi.json").await;
    assert_eq!(served.json(), printed);
}
