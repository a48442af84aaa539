//! Configurations, flags and files with mistakes in them.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use ordgate::config::Config;

use super::file;
use crate::support::Process;

#[test]
fn a_bad_file_is_reported() {
    for (text, place) in [
        (
            "[limit]\nburst = 0\n",
            "2:9: invalid value: integer `0`, expected a whole number from 1 to 4294967295",
        ),
        ("[server\nlisten = \"x\n", "1:"),
        (
            "clients.require_token = true",
            " clients.require_token is true",
        ),
    ] {
        let (_held, path) = file(text);
        for command in ["check", "serve"] {
            let left = Process::run(&[command, "--config", &path], &[]);
            assert_eq!((left.code(), &*left.out), (Some(2), ""), "{}", left.errors);
            let expected = format!("{path}:{place}");
            assert!(
                left.errors.contains(&expected),
                "{expected}: {}",
                left.errors
            );
            assert!(!left.errors.contains("panicked"));
        }
    }
}

#[test]
fn a_file_of_secrets_that_others_can_read_is_refused() {
    for (section, key) in [("upstream", "api_keys_file"), ("admin", "token_file")] {
        let (held, secret) = file("s3cret-value\n");
        let config = |secret: &str| file(&format!("[{section}]\n{key} = \"{secret}\"\n"));
        let (_config, path) = config(&secret);
        let permissions = std::fs::Permissions::from_mode(0o660);
        std::fs::set_permissions(held.path(), permissions).unwrap();
        for command in ["check", "serve"] {
            let left = Process::run(&[command, "--sandbox", "--config", &path], &[]);
            assert_eq!(left.code(), Some(2), "{}", left.errors);
            let expected = format!("ordgate: {section}.{key} {secret} has mode 0660, and so");
            assert!(left.errors.contains(&expected), "{}", left.errors);
            assert!(!left.errors.contains("s3cret"), "{}", left.errors);
        }
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
    for (flag, other) in [("--listen", "--admin"), ("--admin", "--listen")] {
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
        let again = toml::to_string(&config.file).unwrap();
        assert!(left.out.ends_with(&again), "{}", left.out);
    }
    let left = Process::run(&["check", "--config", &path], &variables);
    left.printed("# API keys: 2 [redacted]");
    left.printed("# admin token: [redacted]");
}
