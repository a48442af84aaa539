//! The binary: how it begins, what it prints, and how it ends.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;

use ordgate::config::Config;
use rustix::process::Signal;

use crate::support::{BLOCK, Client, Gate, Process, ROUTES, Reply, TOKEN, Upstream, token, until};

fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

#[tokio::test]
async fn it_says_where_it_serves_and_serves_there() {
    let upstream = Upstream::start();
    let (process, public, admin) = Process::before(&upstream, &[], &[]);
    assert!(public.port() != 0 && admin.port() != 0 && public != admin);
    assert_eq!(Client::connect(public).await.get(TOKEN).await.status, 200);
    let lives = Client::connect(admin).await.get("/healthz").await;
    assert_eq!(lives.status, 200);
    let version = env!("CARGO_PKG_VERSION");
    let agent = upstream.seen()[0].field("user-agent");
    assert_eq!(agent, Some(format!("ordgate/{version}")));
    process.signal(Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert_eq!(left.out.lines().count(), 1, "{}", left.out);
}

#[tokio::test]
async fn flags_override_the_file() {
    let upstream = Upstream::start();
    let (_held, path) = file(
        "[server]\nlisten = \"192.0.2.1:1\"\n[admin]\nlisten = \"127.0.0.1:1\"\n\
         [upstream]\nurl = \"http://127.0.0.1:1\"\n[limit]\nrequests_per_minute = 60\nburst = 2\n",
    );
    let (_process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut client = Client::connect(public).await;
    let statuses = [
        client.get(TOKEN).await.status,
        client.get(TOKEN).await.status,
        client.get(TOKEN).await.status,
    ];
    assert_eq!(statuses, [200, 200, 429], "and the rest of the file holds");
}

#[tokio::test]
async fn the_sandbox_says_what_to_try_and_it_works() {
    let (process, public, _) = Process::serve(&["--sandbox"], &[]);
    assert!(process.line().contains("sandbox"));
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let line = process.line();
        let url = line
            .trim()
            .strip_prefix("curl -i '")
            .and_then(|rest| rest.strip_suffix('\''))
            .unwrap_or_else(|| panic!("{line}"));
        let path = url.strip_prefix(&format!("http://{public}")).unwrap();
        let answer = Client::connect(public).await.get(path).await;
        assert_eq!(answer.status, 200, "{url}");
        let body = answer.json();
        let shown = body["token"].is_object()
            || body["results"]
                .as_array()
                .is_some_and(|list| !list.is_empty());
        assert!(shown, "{url} shows {body}");
        kinds.push(path.split('/').nth(3).unwrap().to_owned());
    }
    assert_eq!(kinds, ["brc-20", "transactions", "blocks"]);
}

#[tokio::test]
async fn the_sandbox_alone_serves_what_it_says() {
    let process = Process::start(&["sandbox", "--listen", "127.0.0.1:0"], &[]);
    let line = process.line();
    let (_, rest) = line.split_once("http://").unwrap();
    let address = rest.split(';').next().unwrap().parse().unwrap();
    let mut client = Client::connect(address).await;
    assert_eq!(client.get("/runes/v1/").await.status, 200);
    assert_eq!(client.get("/sandbox/examples").await.status, 200);
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn the_sandbox_in_two_says_which_is_which() {
    let arguments = ["sandbox", "--split", "--listen", "127.0.0.1:0"];
    let process = Process::start(&arguments, &[]);
    let line = process.line();
    let mut addresses = line.split("http://").skip(1).map(|rest| {
        let address = rest.split(' ').next().unwrap();
        address.parse::<SocketAddr>().unwrap()
    });
    let (ordinals, runes) = (addresses.next().unwrap(), addresses.next().unwrap());
    assert!(line.contains(&format!("{ordinals} (ordinals) and http://{runes} (runes)")));
    for (address, path, status) in [
        (ordinals, "/ordinals/v1/", 200),
        (ordinals, "/runes/v1/", 404),
        (ordinals, "/sandbox/counts", 200),
        (runes, "/runes/v1/", 200),
        (runes, "/ordinals/v1/", 404),
        (runes, "/sandbox/counts", 200),
    ] {
        let answer = Client::connect(address).await.get(path).await;
        assert_eq!(answer.status, status, "{path} at {address}");
    }
    for _ in 0..3 {
        let line = process.line();
        let url = line
            .trim()
            .strip_prefix("curl -i 'http://")
            .and_then(|rest| rest.strip_suffix('\''))
            .unwrap_or_else(|| panic!("{line}"));
        let (address, path) = url.split_once('/').unwrap();
        let mut client = Client::connect(address.parse().unwrap()).await;
        assert_eq!(client.get(&format!("/{path}")).await.status, 200, "{url}");
    }
    assert_eq!(process.line(), "A gateway before both:");
    let line = process.line();
    let flags = line.trim().strip_prefix("ordgate serve ").unwrap();
    let flags: Vec<_> = flags.split(' ').collect();
    let (_before, public, _) = Process::serve(&flags, &[]);
    for path in [TOKEN, BLOCK] {
        assert_eq!(Client::connect(public).await.get(path).await.status, 200);
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn a_bad_file_is_told_with_all_its_places() {
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
fn other_mistakes_are_told() {
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
        (&["dance"], "dance"),
        (&[], "Usage"),
    ] {
        let left = Process::run(arguments, &[]);
        assert_eq!(left.code(), Some(2), "{arguments:?}: {}", left.errors);
        assert!(left.errors.contains(word), "{arguments:?}: {}", left.errors);
        assert!(!left.errors.contains("panicked"), "{}", left.errors);
    }
    for command in ["serve", "sandbox", "check", "purge", "openapi"] {
        let left = Process::run(&[command, "--help"], &[]);
        assert_eq!(left.code(), Some(0));
        assert!(left.out.contains("Usage"), "{}", left.out);
    }
}

#[test]
fn what_is_not_to_be_logged_is_told() {
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
    let left = Process::run(&["check", "--config", &path], &[]);
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
            let left = Process::run(&["check", "--config", &path], &[]);
            let allowed = mode == 0o600 || mode == 0o440;
            assert_eq!(left.code() == Some(0), allowed, "{}", left.errors);
            assert!(!left.errors.contains("s3cret"), "{}", left.errors);
        }
        let left = Process::run(&["serve", "--sandbox", "--config", &path], &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        let expected = format!(
            "ordgate: {section}.{key} {secret} has mode 0660, and so its group can change it; \
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

#[tokio::test]
async fn sighup_ends_nothing() {
    let (process, public, admin) = Process::serve(&["--sandbox"], &[]);
    for times in 1..=2 {
        process.signal(Signal::HUP);
        until("it says so", || {
            process.errors().matches("(built in)").count() == times
        })
        .await;
    }
    let mut client = Client::connect(public).await;
    assert_eq!(client.get("/openapi.json").await.status, 200);
    let lives = Client::connect(admin).await.get("/healthz").await;
    assert_eq!(lives.status, 200);
    drop(client);
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[test]
fn a_port_in_use_is_told() {
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
fn an_address_of_another_machine_is_told() {
    // Of the range for documentation (RFC 5737): nobody's.
    let arguments = ["serve", "--sandbox", "--listen", "192.0.2.1:8080"];
    let left = Process::run(&arguments, &[]);
    assert_eq!(left.code(), Some(2), "{}", left.errors);
    assert!(
        left.errors.contains("none of this machine's"),
        "{}",
        left.errors
    );
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
        (&["check"][..], &[][..]),
        (&["check"], &variables),
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
    let left = Process::run(&["check", "--config", &path], &variables);
    assert!(
        left.out.contains("# API keys: 2 [redacted]"),
        "{}",
        left.out
    );
    assert!(
        left.out.contains("# admin token: [redacted]"),
        "{}",
        left.out
    );
}

#[test]
fn check_refuses_what_serve_refuses() {
    let (_held, remote) = file("[upstream]\nurl = \"http://api.example\"\n");
    let (_held, named) = file(
        "[upstream]\nurl = \"http://127.0.0.1:1\"\n[upstreams.runes]\nurl = \"http://api.example\"\n",
    );
    let (_held, authorities) = file(
        "[upstream]\nurl = \"http://127.0.0.1:1\"\n[upstreams.runes]\nca_file = \"/no/such/file\"\n",
    );
    let (_held, unreadable) = file(
        "[upstream]\nurl = \"http://127.0.0.1:1\"\n[upstreams.runes]\napi_keys_file = \"/no/such/file\"\n",
    );
    let key = [("ORDGATE_API_KEYS", "s3cret-key")];
    let own = [("ORDGATE_API_KEYS_RUNES", "s3cret-key")];
    let none: [(&str, &str); 0] = [];
    let config = "--config";
    for (arguments, variables, expected) in [
        (
            vec!["--sandbox", "--admin", "0.0.0.0:0"],
            &none[..],
            Some("the admin side is on 0.0.0.0"),
        ),
        (
            vec![config, &*remote],
            &key,
            Some("or set upstream.allow_plain_http = true"),
        ),
        (
            vec![config, &*named],
            &key,
            Some("the upstream \"runes\": http://api.example/ is plain http off this machine"),
        ),
        (
            vec![config, &*named],
            &own,
            Some("or set upstreams.runes.allow_plain_http = true"),
        ),
        (
            vec![config, &*authorities],
            &none,
            Some("upstreams.runes.ca_file /no/such/file"),
        ),
        (
            vec![config, &*unreadable],
            &none,
            Some("upstreams.runes.api_keys_file /no/such/file"),
        ),
        // A sandbox is asked in place of them.
        (vec!["--sandbox", config, &*remote], &key, None),
        (vec!["--sandbox", config, &*named], &own, None),
        (vec!["--sandbox"], &none, None),
    ] {
        let left = Process::run(&[&["check"], &arguments[..]].concat(), variables);
        let mut start = vec!["serve", "--listen", "127.0.0.1:0"];
        start.extend(&arguments);
        if !arguments.contains(&"--admin") {
            start.extend(["--admin", "127.0.0.1:0"]);
        }
        let serve = Process::start(&start, variables);
        match expected {
            Some(expected) => {
                let served = serve.wait();
                assert_eq!(served.code(), Some(2), "{arguments:?}: {}", served.errors);
                assert!(served.errors.contains(expected), "{}", served.errors);
                assert_eq!(left.code(), Some(2), "{arguments:?}: {}", left.errors);
                assert!(left.errors.contains(expected), "{}", left.errors);
            }
            None => {
                assert!(serve.line().contains("ordgate is ready"), "{arguments:?}");
                assert_eq!(left.code(), Some(0), "{arguments:?}: {}", left.errors);
                assert!(!left.out.contains("# warning"), "{}", left.out);
            }
        }
        assert!(!left.errors.contains("s3cret"), "{}", left.errors);
        assert!(!left.out.contains("s3cret"), "{}", left.out);
    }
}

#[tokio::test]
async fn variables_stand_in_for_flags() {
    // One that is empty is as if it were not set.
    let empty = [
        ("ORDGATE_CONFIG", ""),
        ("ORDGATE_LISTEN", ""),
        ("ORDGATE_ADMIN", " "),
        ("ORDGATE_UPSTREAM", ""),
        ("ORDGATE_API_KEYS", ""),
        ("ORDGATE_API_KEYS_RUNES", ""),
    ];
    let (_held, path) = file("[limit]\nburst = 77\n");
    let none: [(&str, &str); 0] = [];
    for (arguments, variables, expected) in [
        (
            &[][..],
            &empty[..],
            &["# proxy.toml (built in)", "127.0.0.1:8080", "burst = 3000"][..],
        ),
        (&[], &[("ORDGATE_CONFIG", &*path)], &["burst = 77"]),
        (
            &["--config", &path],
            &[("ORDGATE_CONFIG", "/no/such/file")],
            &["burst = 77"],
        ),
        (
            &[],
            &[
                ("ORDGATE_LISTEN", "127.0.0.1:1"),
                ("ORDGATE_ADMIN", "127.0.0.1:2"),
            ],
            &["listen = \"127.0.0.1:1\"", "listen = \"127.0.0.1:2\""],
        ),
        (
            &["--listen", "127.0.0.1:3", "--admin", "127.0.0.1:4"],
            &[
                ("ORDGATE_LISTEN", "nonsense"),
                ("ORDGATE_ADMIN", "nonsense"),
            ],
            &["listen = \"127.0.0.1:3\"", "listen = \"127.0.0.1:4\""],
        ),
        (
            &[],
            &[(
                "ORDGATE_UPSTREAM",
                "http://127.0.0.1:5, runes=http://127.0.0.1:6,",
            )],
            &[
                "url = \"http://127.0.0.1:5/\"",
                "[upstreams.runes]",
                "url = \"http://127.0.0.1:6/\"",
            ],
        ),
        (
            &["--upstream", "http://127.0.0.1:7"],
            &[("ORDGATE_UPSTREAM", "nonsense")],
            &["url = \"http://127.0.0.1:7/\""],
        ),
        (
            &["--sandbox"],
            &[("ORDGATE_UPSTREAM", "nonsense")],
            &["is valid"],
        ),
        (
            &["--upstream", "http://127.0.0.1:7"],
            &[("ORDGATE_API_KEYS_RUNE", "s3cret-key")],
            &[
                "# warning: ORDGATE_API_KEYS_RUNE has no effect: no route asks an upstream of that name",
            ],
        ),
        (
            &[
                "--upstream",
                "http://127.0.0.1:7",
                "--upstream",
                "runes=http://127.0.0.1:8",
            ],
            &[("ORDGATE_API_KEYS_RUNES", "s3cret-key")],
            &["# API keys: none\n# API keys of the upstream runes: 1 [redacted]\n# admin"],
        ),
    ] {
        let left = Process::run(&[&["check"], arguments].concat(), variables);
        assert_eq!(left.code(), Some(0), "{variables:?}: {}", left.errors);
        for part in expected {
            assert!(left.out.contains(part), "{part} in {}", left.out);
        }
        let warned = expected[0].starts_with("# warning: ORD");
        assert_eq!(left.out.contains("has no effect"), warned, "{}", left.out);
        assert!(!left.out.contains("s3cret"), "{}", left.out);
    }
    for (name, expected) in [
        (
            "ORDGATE_LISTEN",
            "ORDGATE_LISTEN is \"nonsense\"; allowed is an address and a port",
        ),
        (
            "ORDGATE_ADMIN",
            "ORDGATE_ADMIN is \"nonsense\"; allowed is an address and a port",
        ),
        (
            "ORDGATE_UPSTREAM",
            "ORDGATE_UPSTREAM: \"nonsense\" came; allowed is",
        ),
        ("ORDGATE_CONFIG", "cannot read nonsense"),
    ] {
        let left = Process::run(&["check"], &[(name, "nonsense")]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert!(left.errors.contains(expected), "{}", left.errors);
    }
    // A purge goes where the same variables have the server listen.
    let (_process, _, admin) = Process::serve(&["--sandbox"], &none);
    let admin = [
        ("ORDGATE_ADMIN", &*admin.to_string()),
        ("ORDGATE_CONFIG", &path),
    ];
    let left = Process::run(&["purge", "--all"], &admin);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let (_held, other) = file("[[route]]\nname = \"another\"\npath = \"/another\"\n");
    let left = Process::run(&["openapi"], &[("ORDGATE_CONFIG", &other)]);
    assert!(left.out.contains("/another"), "{}", left.out);
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

#[tokio::test]
async fn sigterm_lets_what_is_under_way_finish() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let (_held, path) = file(ROUTES);
    let (process, public, admin) = Process::before(&upstream, &["--config", &path], &[]);
    let mut idle = Client::connect(public).await;
    assert_eq!(idle.get(&token(1)).await.status, 200);
    let mut silent = Client::connect(public).await;
    let mut slow = Client::connect(public).await;
    slow.ask("GET", TOKEN, &[]).await;
    upstream.asked(2).await;

    process.signal(Signal::TERM);
    assert_eq!(idle.rest().await, b"", "idle connections are closed");
    assert_eq!(silent.rest().await, b"", "and those that have never asked");
    // No new ones are taken. The listening socket goes with its last handle.
    until("new connections are refused", || {
        std::net::TcpStream::connect(public).is_err()
    })
    .await;
    let ready = Client::connect(admin).await.get("/readyz").await;
    assert_eq!(ready.status, 503);

    gate.open();
    let answer = slow.answer("GET").await;
    assert_eq!((answer.status, answer.text()), (200, "{}"));
    assert_eq!(slow.rest().await, b"");
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.errors.contains("draining"), "{}", left.errors);
}

#[tokio::test]
async fn draining_has_an_end() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let (_held, path) = file(&format!("[server]\ndrain_timeout = \"100ms\"\n{ROUTES}"));
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut slow = Client::connect(public).await;
    slow.ask("GET", BLOCK, &[]).await;
    upstream.asked(1).await;
    process.signal(Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(left.errors.contains("drain_timeout"), "{}", left.errors);
    assert_eq!(slow.rest().await, b"");
}

#[tokio::test]
async fn a_second_sigint_means_now() {
    for (first, second) in [(Signal::INT, Signal::INT), (Signal::TERM, Signal::INT)] {
        let upstream = Upstream::start();
        upstream.always(Reply::nothing().hang());
        let (_held, path) = file(ROUTES);
        let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
        let mut slow = Client::connect(public).await;
        slow.ask("GET", TOKEN, &[]).await;
        upstream.asked(1).await;
        process.signal(first);
        until("it drains", || process.errors().contains("draining")).await;
        process.signal(second);
        let left = process.wait();
        assert_eq!(left.code(), Some(130), "{}", left.errors);
        assert_eq!(slow.rest().await, b"");
    }
}

#[tokio::test]
async fn a_line_for_each_request_where_it_is_wanted() {
    let upstream = Upstream::start();
    let (_held, path) = file("[log]\nformat = \"json\"\n[log.access]\nenabled = true\n");
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut client = Client::connect(public).await;
    let mut ids = Vec::new();
    for target in [TOKEN, TOKEN, "/nowhere"] {
        ids.push(client.get(target).await.must("x-request-id").to_owned());
    }
    drop(client);
    process.signal(Signal::TERM);
    let left = process.wait();
    let lines: Vec<serde_json::Value> = left
        .errors
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .filter(|line: &serde_json::Value| line["target"] == "ordgate::access")
        .collect();
    assert_eq!(lines.len(), 3, "{}", left.errors);
    let outcomes: Vec<_> = lines.iter().map(|line| line["cache"].clone()).collect();
    assert_eq!(outcomes, ["miss", "hit", "refused"]);
    for (line, id) in lines.iter().zip(ids) {
        assert_eq!(line["request_id"], *id, "{line}");
        assert_eq!(line["client"], "127.0.0.1", "{line}");
        assert!(line["duration_ms"].is_number(), "{line}");
        assert!(line["bytes"].as_u64().unwrap() > 0, "{line}");
    }
    assert_eq!(lines[0]["key"], lines[1]["key"]);
    assert_eq!(lines[0]["route"], "brc20-token");
    assert_eq!(lines[2]["status"], 404);
}
