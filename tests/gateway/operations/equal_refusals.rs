//! `check` refuses what `serve` refuses, with the same words.

use std::os::unix::fs::PermissionsExt;

use super::{DOCUMENTATION, file};
use crate::support::Process;

/// A row of a table; nothing is expected where both accept it.
struct Case<'c> {
    config: &'c str,
    variables: &'c [(&'c str, &'c str)],
    arguments: &'c [&'c str],
    expected: Option<&'c str>,
}

impl Case<'_> {
    fn check(&self) {
        let (_held, path) = file(self.config);
        let mut arguments = self.arguments.to_vec();
        if !self.config.is_empty() {
            arguments.extend(["--config", &path]);
        }
        let said = format!("{:?} {arguments:?} {:?}", self.config, self.variables);
        // Otherwise what else runs on the machine decides which mistake is found.
        let free = |flag: &'static str, variable: &str| {
            let is_given = arguments.contains(&flag)
                || self.variables.iter().any(|(name, _)| *name == variable)
                || self.config.contains("[admin]") && flag == "--admin"
                || self.config.contains("[server]") && flag == "--listen";
            (!is_given).then_some([flag, "127.0.0.1:0"])
        };
        let free = [
            free("--listen", "ORDGATE_LISTEN"),
            free("--admin", "ORDGATE_ADMIN"),
        ];
        let free = free.into_iter().flatten().flatten();
        let free: Vec<_> = free.collect();
        let run = |command| {
            Process::start(
                &[&[command], &arguments[..], &free].concat(),
                self.variables,
            )
        };
        let checked = run("check").wait();
        let serve = run("serve");
        match self.expected {
            Some(expected) => {
                let served = serve.wait();
                assert_eq!(served.code(), Some(2), "{said}: {}", served.errors);
                assert_eq!(checked.code(), Some(2), "{said}: {}", checked.errors);
                assert!(!served.errors.contains("s3cret"), "{said}");
                assert!(
                    checked.errors.contains(expected),
                    "{said}: {}",
                    checked.errors
                );
                assert!(
                    served.errors.ends_with(&checked.errors),
                    "{said}: serve says {:?}, check says {:?}",
                    served.errors,
                    checked.errors
                );
            }
            None => {
                assert!(serve.line().contains("ordgate is ready"), "{said}");
                assert_eq!(checked.code(), Some(0), "{said}: {}", checked.errors);
                assert_eq!(warnings(&checked.out), NOTHING, "{}", checked.out);
            }
        }
        for text in [&checked.errors, &checked.out] {
            assert!(!text.contains("s3cret"), "{said}: {text}");
        }
    }
}

/// The warnings that `check` prints, without those about the machine's limit of open files.
fn warnings(out: &str) -> Vec<&str> {
    let lines = out.lines().filter(|line| line.starts_with("# warning"));
    lines
        .filter(|line| !line.contains("the limit of open files"))
        .collect()
}

/// Shorthands for the table.
const NOTHING: [&str; 0] = [];
const KEY: &[(&str, &str)] = &[("ORDGATE_API_KEYS", "s3cret-key")];
const OWN: &[(&str, &str)] = &[("ORDGATE_API_KEYS_RUNES", "s3cret-key")];
const NONE: &[(&str, &str)] = &[];
const REMOTE: &str = "[upstream]\nurl = \"http://api.example\"\n";
const NAMED: &str =
    "[upstream]\nurl = \"http://127.0.0.1:1\"\n[upstreams.runes]\nurl = \"http://api.example\"\n";

/// A configuration, variables and arguments, and words of the refusal.
type Row<'r> = (
    &'r str,
    &'r [(&'r str, &'r str)],
    &'r [&'r str],
    Option<&'r str>,
);

fn check_all(cases: &[Row<'_>]) {
    for (config, variables, arguments, expected) in cases {
        let case = Case {
            config,
            variables,
            arguments,
            expected: *expected,
        };
        case.check();
    }
}

#[test]
fn upstreams_and_addresses() {
    check_all(&[
        (
            "",
            NONE,
            &[],
            Some("there is no upstream: give --upstream URL"),
        ),
        (
            "[cache]\nmax_bytes = \"64MiB\"\n",
            NONE,
            &[],
            Some("there is no upstream"),
        ),
        (
            "[upstream]\nurl = \"http://127.0.0.1:1\"\n",
            NONE,
            &[],
            None,
        ),
        ("", &[("ORDGATE_UPSTREAM", "http://127.0.0.1:1")], &[], None),
        (
            "",
            &[("ORDGATE_UPSTREAM", "http://api.example"), KEY[0]],
            &[],
            Some("plain http"),
        ),
        (
            "",
            KEY,
            &["--upstream", "http://api.example"],
            Some("plain http off this machine"),
        ),
        (
            REMOTE,
            KEY,
            &[],
            Some("or set upstream.allow_plain_http = true"),
        ),
        (
            NAMED,
            KEY,
            &[],
            Some("the upstream \"runes\": http://api.example/ is plain http off this machine"),
        ),
        (
            NAMED,
            OWN,
            &[],
            Some("or set upstreams.runes.allow_plain_http = true"),
        ),
        // A sandbox is used in place of them.
        (REMOTE, KEY, &["--sandbox"], None),
        (NAMED, OWN, &["--sandbox"], None),
        ("", NONE, &["--sandbox"], None),
        (
            "",
            NONE,
            &["--sandbox", "--admin", "0.0.0.0:0"],
            Some("the admin listener is on 0.0.0.0:0, which other machines can reach"),
        ),
        (
            "",
            &[("ORDGATE_ADMIN", "0.0.0.0:0")],
            &["--sandbox"],
            Some("the admin listener is on 0.0.0.0:0"),
        ),
        (
            "",
            &[("ORDGATE_ADMIN", "0.0.0.0:0"), ("ORDGATE_ADMIN_TOKEN", " ")],
            &["--sandbox"],
            Some("the admin token is empty"),
        ),
        (
            "",
            NONE,
            &["--sandbox", "--listen", "localhost:8080"],
            Some("write 127.0.0.1:8080 or [::1]:8080"),
        ),
        (
            "",
            NONE,
            &["--sandbox", "--admin", "localhost:9090"],
            Some("write 127.0.0.1:9090 or [::1]:9090"),
        ),
        (
            "",
            &[("ORDGATE_LISTEN", "localhost:8080")],
            &["--sandbox"],
            Some("write 127.0.0.1:8080 or [::1]:8080"),
        ),
        (
            "",
            &[("ORDGATE_ADMIN", ":9090")],
            &["--sandbox"],
            Some("write 127.0.0.1:9090 for this machine alone"),
        ),
        (
            "[server]\nlisten = \"localhost:8080\"\n",
            NONE,
            &["--sandbox"],
            Some("write 127.0.0.1:8080 or [::1]:8080"),
        ),
        (
            "[admin]\nlisten = \"localhost:9090\"\n",
            NONE,
            &["--sandbox"],
            Some("write 127.0.0.1:9090 or [::1]:9090"),
        ),
        (
            "[upstream]\nfirst_byte_timeout = \"30s\"\ntimeout = \"10s\"\n",
            NONE,
            &["--sandbox"],
            Some("upstream.first_byte_timeout is longer than upstream.timeout"),
        ),
        (
            "",
            &[("ORDGATE_LOG", "loud")],
            &["--sandbox"],
            Some("ORDGATE_LOG is \"loud\""),
        ),
    ]);
}

/// A user and a password in a URL are refused without being shown.
#[test]
fn passwords_in_urls() {
    let shown = "https://[redacted]@api.example\" came; allowed is an http or https URL";
    let url = "https://user:s3cret@api.example";
    check_all(&[
        ("", &[("ORDGATE_UPSTREAM", url)], &[], Some(shown)),
        ("", NONE, &["--upstream", url], Some(shown)),
        (
            "",
            NONE,
            &["--upstream", "runes=https://user:s3cret@api.example"],
            Some("runes=https://[redacted]@api.example\" came"),
        ),
        (
            "",
            NONE,
            &["--upstream", "user:s3cret@api.example"],
            Some("\"[redacted]@api.example\" came"),
        ),
        (
            "",
            NONE,
            &["--upstream", "user:s3cret@https://api.example"],
            Some("\"[redacted]@https://api.example\" came"),
        ),
        // A comma separates URLs, here within a password.
        (
            "",
            &[("ORDGATE_UPSTREAM", "https://user:s3cret,12@api.example")],
            &[],
            Some(shown),
        ),
        (
            "",
            &[("ORDGATE_UPSTREAM", "https://user:12,s3cret@api.example")],
            &[],
            Some("\"[redacted]@api.example\" came"),
        ),
        (
            "[upstream]\nurl = \"https://user:s3cret@api.example\"\n",
            NONE,
            &[],
            Some("\"https://[redacted]@api.example\""),
        ),
        (
            "[upstream]\nurl = \"user:s3cret@api.example\"\n",
            NONE,
            &[],
            Some("\"[redacted]@api.example\""),
        ),
    ]);
}

#[test]
fn the_sandbox_and_a_listener_on_one_address() {
    let says = Some("each needs a port of its own");
    let listener = "[[listener]]\naddress = \"127.0.0.1:19071\"\n";
    let sandbox = ["--sandbox", "--sandbox-listen", "127.0.0.1:19071"];
    let with = |flag, address| [&sandbox[..], &[flag, address]].concat();
    check_all(&[
        ("", NONE, &with("--listen", "127.0.0.1:19071"), says),
        ("", NONE, &with("--listen", "0.0.0.0:19071"), says),
        ("", NONE, &with("--admin", "127.0.0.1:19071"), says),
        (
            "",
            &[("ORDGATE_ADMIN", "127.0.0.1:19071")],
            &sandbox,
            Some("--sandbox-listen is 127.0.0.1:19071, and a listener is on 127.0.0.1:19071"),
        ),
        (listener, NONE, &sandbox, says),
        (
            "",
            NONE,
            &["--sandbox", "--sandbox-listen", "127.0.0.1:0"],
            None,
        ),
    ]);
}

#[test]
fn the_first_state_directory_that_has_a_name() {
    let made = tempfile::tempdir().unwrap();
    let after_colon = format!(":{}", made.path().join("state").display());
    check_all(&[
        (
            "",
            &[("STATE_DIRECTORY", ":/no/such/place/state")],
            &["--sandbox"],
            Some("/no/such/place"),
        ),
        (
            "",
            &[("STATE_DIRECTORY", &after_colon)],
            &["--sandbox"],
            None,
        ),
        ("", &[("STATE_DIRECTORY", ":")], &["--sandbox"], None),
    ]);
}

#[test]
fn unix_sockets_and_links() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("file"), "").unwrap();
    std::os::unix::fs::symlink(path("nothing"), path("link")).unwrap();
    let (file, link) = (format!("unix:{}", path("file")), path("link"));
    let (one, same) = (path("s"), path("./s"));
    let twice = format!("unix:{one},unix:{same}");
    let says = "there is a file of this name that is not a socket";
    check_all(&[
        ("", NONE, &["--sandbox", "--listen", &file], Some(says)),
        (
            "",
            &[("ORDGATE_LISTEN", &twice)],
            &["--sandbox"],
            Some("each needs an address of its own"),
        ),
        (
            "",
            NONE,
            &["--sandbox", "--state", &link],
            Some("it cannot be read"),
        ),
    ]);
}

#[test]
fn files_and_directories() {
    let (held, secret) = file("s3cret-value\n");
    let (_held, text) = file("s3cret, and no certificate\n");
    let (_held, engine) = file("http://:s3cret@127.0.0.1\n");
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().display().to_string();
    std::fs::write(directory.path().join("letter.txt"), "of another program").unwrap();
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(held.path(), open).unwrap();
    let nowhere = "/no/such/file";
    for (config, expected) in [
        (
            format!("[upstream]\nca_file = \"{nowhere}\"\n"),
            "upstream.ca_file /no/such/file",
        ),
        (
            format!("[upstream]\nca_file = \"{text}\"\n"),
            "upstream.ca_file",
        ),
        (
            format!("[upstreams.runes]\nca_file = \"{nowhere}\"\n"),
            "upstreams.runes.ca_file /no/such/file",
        ),
        (
            format!("[upstream]\napi_keys_file = \"{nowhere}\"\n"),
            "api_keys_file /no/such/file",
        ),
        (
            format!("[upstream]\napi_keys_file = \"{secret}\"\n"),
            "chmod 600",
        ),
        (
            format!("[upstreams.runes]\napi_keys_file = \"{nowhere}\"\n"),
            "upstreams.runes.api_keys_file /no/such/file",
        ),
        (
            format!("[clients]\ntoken_file = \"{nowhere}\"\n"),
            "clients.token_file",
        ),
        (
            format!("[clients]\ntoken_file = \"{engine}\"\n"),
            "a line begins with a name",
        ),
        (format!("[state]\npath = \"{foreign}\"\n"), "letter.txt"),
        (
            "[state]\npath = \"/no/such/place/state\"\n".to_owned(),
            "/no/such/place",
        ),
        (
            format!(
                "[server]\nlisten = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:1\"\ntls.certificates = [{{ chain = \"{text}\", key = \"{nowhere}\" }}]\n"
            ),
            "listener.tls.certificates",
        ),
    ] {
        check_all(&[(
            &config,
            NONE,
            &[
                "--upstream",
                "http://127.0.0.1:1",
                "--upstream",
                "runes=http://127.0.0.1:1",
            ],
            Some(expected),
        )]);
    }
}

#[test]
fn without_an_upstream_the_values_are_printed_too() {
    let left = Process::run(&["check", "--all"], &[]);
    assert_eq!(left.code(), Some(2), "{}", left.errors);
    assert!(
        left.errors.contains("there is no upstream"),
        "{}",
        left.errors
    );
    left.printed("lacks the URL of an upstream");
    left.printed(DOCUMENTATION);
}

#[test]
fn a_misspelt_variable_is_warned_of() {
    let variables = [
        ("ORDGATE_UPSTREAMS", "http://s3cret"),
        ("ORDGATE_PORT", "tcp://10.0.0.1:8080"),
        ("ORDGATE_WEB_PORT", "80"),
        ("ORDGATE_WEB_SERVICE_HOST", "10.0.0.1"),
        ("ORDGATE_XYZW_PORT", "s3cret"),
    ];
    let left = Process::run(&["check", "--sandbox"], &variables);
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let expected = [
        "# warning: ORDGATE_UPSTREAMS has no effect: did you mean ORDGATE_UPSTREAM?",
        "# warning: ORDGATE_XYZW_PORT has no effect: `ordgate help` lists the variables",
    ];
    assert_eq!(warnings(&left.out), expected, "{}", left.out);
    assert!(!left.out.contains("s3cret"), "{}", left.out);
}
