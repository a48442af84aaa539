//! Configurations, flags and files with mistakes in them.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use ordgate::config::Config;

use super::{DOCUMENTATION, file};
use crate::support::{Client, Process};

const SANDBOX: &[&str] = &["--sandbox"];

#[test]
fn a_bad_file_is_reported_with_every_problem() {
    let (_held, path) = file("[server]\nlisten = 8080\nwokers = 3\n[limit]\nburst = 0\n");
    for command in ["check", "serve"] {
        let left = Process::run(&[command, "--config", &path], &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert_eq!(left.out, "");
        for place in [
            "2:10: server.listen is 8080",
            "3:1: unknown key server.wokers",
            "5:9: limit.burst is 0",
        ] {
            let expected = format!("{path}:{place}");
            assert!(
                left.errors.contains(&expected),
                "{expected} in {}",
                left.errors
            );
        }
        assert!(!left.errors.contains("panicked"));
    }
    let (_held, path) = file("[server\nlisten = \"x\n");
    let left = Process::run(&["check", "--config", &path], &[]);
    assert_eq!(left.code(), Some(2));
    assert!(
        left.errors.contains(&format!("{path}:1:")),
        "{}",
        left.errors
    );
}

#[test]
fn other_mistakes_are_reported() {
    for (arguments, word) in [
        (&["serve"][..], "--upstream"),
        (&["serve", "--config", "/no/such/file"], "/no/such/file"),
        (&["serve", "--upstream", "ftp://x"], "--upstream"),
        (&["serve", "--listen", "nonsense"], "--listen"),
        (
            &["serve", "--sandbox", "--upstream", "http://x"],
            "--sandbox",
        ),
        (
            &["serve", "--sandbox", "--admin", "0.0.0.0:0"],
            "ORDGATE_ADMIN_TOKEN",
        ),
        (&["serve", "--upstream", "https://x:65536"], "65535"),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:99",
                "--admin",
                "127.0.0.1:99",
            ],
            "port of its own",
        ),
        (&["sandbox", "--runes-listen", "127.0.0.1:0"], "--split"),
        (
            &["sandbox", "--split", "--listen", "127.0.0.1:65535"],
            "--runes-listen",
        ),
        (
            &["serve", "--upstream", "http://x", "--seed", "1"],
            "'--seed <N>'",
        ),
        (
            &["check", "--upstream", "http://x", "--rpm", "9"],
            "'--rpm <N>'",
        ),
        (
            &[
                "check",
                "--upstream",
                "http://x",
                "--sandbox-listen",
                "127.0.0.1:0",
            ],
            "'--sandbox-listen <ADDR>'",
        ),
        (&["check", "--seed", "1"], "--sandbox"),
        (&["serve", "--sandbox", "--require-key", ""], "a key"),
        (&["sandbox", "--require-key", " , "], "a key"),
        (&["check", "--listen", "::1:8080"], "write [::1]:8080"),
        (
            &["check", "--upstream", "https://a..b"],
            "a..b, is neither a DNS name",
        ),
        (
            &["serve", "--config", "/dev/stdin"],
            "cannot read /dev/stdin: it is a device; allowed is a regular file",
        ),
        (&["check", "--config", "/"], "it is a directory; allowed is"),
        (&["dance"], "dance"),
        (&[], "Usage"),
    ] {
        // Otherwise what else runs on the machine decides which mistake is found.
        let free_ports = [
            ("ORDGATE_LISTEN", "127.0.0.1:0"),
            ("ORDGATE_ADMIN", "127.0.0.1:0"),
        ];
        let left = Process::run(arguments, &free_ports);
        assert_eq!(left.code(), Some(2), "{arguments:?}: {}", left.errors);
        assert!(left.errors.contains(word), "{arguments:?}: {}", left.errors);
        assert!(!left.errors.contains("panicked"), "{}", left.errors);
    }
}

#[test]
fn what_only_the_start_refuses_is_reported_with_its_place() {
    let remote = "[upstream]\nurl = \"http://api.example\"\n";
    for (text, flags, place) in [
        (
            "[admin]\nlisten = \"0.0.0.0:0\"\n",
            SANDBOX,
            ":2:10: the admin listener is on 0.0.0.0:0",
        ),
        (
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\nmin_version = \"1.3\"\n",
            &["--upstream", "http://127.0.0.1:1"],
            ":3:1: listener.tls.certificates is missing",
        ),
        (
            remote,
            &[],
            ":2:7: http://api.example/ is plain http off this machine",
        ),
        (
            "[upstream]\nurl = \"http://[::1]:1\"\n[upstreams.runes]\nurl = \"http://api.example\"\n",
            &[],
            ":4:7: the upstream \"runes\": http://api.example/ is plain http",
        ),
        (
            "[upstream]\nurl = \"https://[::1]:1\"\nca_file = \"/no/such\"\n",
            &[],
            ":3:11: upstream.ca_file /no/such: ",
        ),
        (
            "[upstreams.runes]\napi_keys_file = \"/no/such\"\n",
            SANDBOX,
            ":2:17: cannot read upstreams.runes.api_keys_file /no/such: ",
        ),
        (
            "[clients]\ntoken_file = \"/no/such\"\n",
            SANDBOX,
            ":2:14: cannot read clients.token_file /no/such: ",
        ),
        (
            "[admin]\ntoken_file = \"/no/such\"\n",
            SANDBOX,
            ":2:14: cannot read admin.token_file /no/such: ",
        ),
        (
            "[state]\npath = \"/dev/null\"\n",
            SANDBOX,
            ":2:8: state.path /dev/null: it is ",
        ),
    ] {
        let (_held, path) = file(text);
        for command in ["check", "serve"] {
            let arguments = [&[command, "--config", &path], flags].concat();
            let left = Process::run(&arguments, &[("ORDGATE_API_KEYS", "k")]);
            assert_eq!(left.code(), Some(2), "{}", left.errors);
            let expected = format!("ordgate: {path}{place}");
            assert!(left.errors.contains(&expected), "{}", left.errors);
        }
    }
    // What flags and variables have set has no place in the file.
    for (text, flags, variable, expected) in [
        (
            "[admin]\nlisten = \"0.0.0.0:0\"\n",
            SANDBOX,
            ("ORDGATE_ADMIN", "0.0.0.0:1"),
            "ordgate: the admin listener is on 0.0.0.0:1",
        ),
        (
            remote,
            &["--upstream", "http://other.example"],
            ("ORDGATE_API_KEYS", "k"),
            "ordgate: http://other.example/ is plain http",
        ),
        (
            "[state]\npath = \"/tmp\"\n",
            SANDBOX,
            ("ORDGATE_STATE", "/dev/null"),
            "ordgate: state.path /dev/null: it is ",
        ),
    ] {
        let (_held, path) = file(text);
        let arguments = [&["check", "--config", &path], flags].concat();
        let left = Process::run(&arguments, &[variable]);
        assert!(left.errors.contains(expected), "{}", left.errors);
    }
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    let bad = OsStr::from_bytes(b"/tmp/\xff");
    for name in ["ORDGATE_STATE", "ORDGATE_LISTEN", "STATE_DIRECTORY"] {
        for command in ["check", "serve"] {
            let left = Process::start_with(&[command, "--sandbox"], &[(name, bad)]).wait();
            assert_eq!(left.code(), Some(2), "{name}: {}", left.errors);
            let expected = format!("{name} is not UTF-8");
            assert!(left.errors.contains(&expected), "{}", left.errors);
        }
    }
}

#[test]
fn a_bad_log_filter_is_reported() {
    for bad in ["loud", "info,loud", "ordgate=loud"] {
        let left = Process::run(&["serve", "--sandbox"], &[("ORDGATE_LOG", bad)]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        let expected = format!("ORDGATE_LOG is \"{bad}\"; allowed is a level (error, warn");
        assert!(left.errors.contains(&expected), "{}", left.errors);
    }
}

#[tokio::test]
async fn a_file_of_secrets_may_begin_with_a_byte_order_mark() {
    let (_keys, keys) = file("\u{feff}one-key\r\nanother-key\r\n");
    let (_token, token) = file("\u{feff}a-token\r\n");
    let (_held, path) = file(&format!(
        "[upstream]\napi_keys_file = \"{keys}\"\n[admin]\ntoken_file = \"{token}\"\n"
    ));
    let left = Process::run(&["check", "--sandbox", "--config", &path], &[]);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.out.contains("# API keys: 2 "), "{}", left.out);
    let (_process, _, admin) = Process::serve(&["--sandbox", "--config", &path], &[]);
    let token = [("authorization", "Bearer a-token")];
    let answer = Client::connect(admin)
        .await
        .request("GET", "/status", &token)
        .await;
    assert_eq!(answer.status, 200);
}

#[test]
fn a_file_of_secrets_that_others_can_read_is_refused() {
    for (section, key) in [("upstream", "api_keys_file"), ("admin", "token_file")] {
        let (held, secret) = file("s3cret-value\n");
        let config = |secret: &str| file(&format!("[{section}]\n{key} = \"{secret}\"\n"));
        let (_config, path) = config(&secret);
        for mode in [0o600, 0o440, 0o644, 0o660] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(held.path(), permissions).unwrap();
            let left = Process::run(&["check", "--sandbox", "--config", &path], &[]);
            let allowed = mode == 0o600 || mode == 0o440;
            assert_eq!(left.code() == Some(0), allowed, "{}", left.errors);
            assert!(!left.errors.contains("s3cret"), "{}", left.errors);
        }
        let left = Process::run(&["serve", "--sandbox", "--config", &path], &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        let column = key.len() + " = ".len() + 1;
        let expected = format!(
            "ordgate: {path}:2:{column}: {section}.{key} {secret} has mode 0660, and so its group can change it; \
             allowed is 0600, 0400, 0640 or 0440 (nothing for others, no writing for the group): \
             chmod 600 {secret}\n"
        );
        assert!(left.errors.contains(&expected), "{}", left.errors);
        let directory = tempfile::tempdir().unwrap();
        let (_config, path) = config(&directory.path().display().to_string());
        let left = Process::run(&["serve", "--sandbox", "--config", &path], &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert!(left.errors.contains("is a directory"), "{}", left.errors);
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let other = if flag == "--listen" {
            "--admin"
        } else {
            "--listen"
        };
        let arguments = ["serve", "--sandbox", flag, &address, other, "127.0.0.1:0"];
        let left = Process::run(&arguments, &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert_eq!(left.out, "");
        let expected = format!("cannot listen on {address}");
        assert!(left.errors.contains(&expected), "{}", left.errors);
        assert!(left.errors.contains("another program"), "{}", left.errors);
        assert!(!left.errors.contains("panicked"), "{}", left.errors);
    }
}

#[test]
fn an_address_of_another_machine_is_reported() {
    // From the range for documentation (RFC 5737).
    let arguments = ["serve", "--sandbox", "--listen", "192.0.2.1:8080"];
    let left = Process::run(&arguments, &[]);
    assert_eq!(left.code(), Some(2), "{}", left.errors);
    let reason = "this machine does not have the address";
    assert!(left.errors.contains(reason), "{}", left.errors);
    assert!(!left.errors.contains("another program"), "{}", left.errors);
}

#[test]
fn what_check_prints_is_a_configuration_without_secrets() {
    let (_keys, keys) = file("file-s3cret-key\n");
    let (_token, token) = file("file-s3cret-token\n");
    let (_held, path) = file(&format!(
        "[upstream]\napi_keys_file = \"{keys}\"\nurl = \"https://api.example/x\"\n\
         [admin]\ntoken_file = \"{token}\"\n"
    ));
    let variables = [
        ("ORDGATE_API_KEYS", "environment-s3cret,other-s3cret"),
        ("ORDGATE_ADMIN_TOKEN", "token-s3cret"),
    ];
    for (arguments, variables) in [
        (&["check", "--sandbox"][..], &[][..]),
        (&["check", "--sandbox"], &variables),
        (&["check", "--config", &path], &[]),
        (&["check", "--config", &path], &variables),
    ] {
        let left = Process::run(arguments, variables);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        assert!(!left.out.contains("s3cret"), "{}", left.out);
        let config = Config::parse("printed", &left.out);
        let config = config.unwrap_or_else(|problems| panic!("{problems:#?}"));
        assert_eq!(config.routes.routes().len(), 3);
        let again = config
            .print(&ordgate::upstream::ProviderKeys::default())
            .unwrap();
        assert!(left.out.ends_with(&again), "{}", left.out);
    }
    // With the documentation of each key.
    let all = Process::run(&["check", "--all", "--config", &path], &variables);
    assert_eq!(all.code(), Some(0), "{}", all.errors);
    assert!(!all.out.contains("s3cret"), "{}", all.out);
    all.printed(DOCUMENTATION);
    let left = Process::run(&["check", "--config", &path], &variables);
    left.printed("# API keys: 2 [redacted]");
    left.printed("# admin token: [redacted]");
}
