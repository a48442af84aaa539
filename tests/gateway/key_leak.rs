//! A key leaves the process only in the upstream request's field: every other byte
//! that the binary sends is collected and searched.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::support::process::LOG_ALL;
use crate::support::{BLOCK, Client, Process, Reply, TOKEN, TX, Upstream, token};

/// Long enough that no part of it comes about by chance.
const KEY: &str = "k9Zq-ordgate-s3cret-7Xw2";
const OTHER: &str = "second-S3cret-key_4Yv8";

/// What would give a key away: itself, in any case, half of it, or its bytes.
fn forms(key: &str) -> [String; 5] {
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    let (lower, half) = (key.to_lowercase(), key.len() / 2);
    let quoted = format!("{:?}", key.as_bytes());
    let bytes = quoted.trim_matches(['[', ']']).to_owned();
    [
        lower[..half].to_owned(),
        lower[half..].to_owned(),
        hex,
        bytes.replace(' ', ""),
        bytes,
    ]
}

/// Fails where a text gives a key away.
fn search(what: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text).to_lowercase();
    for form in [KEY, OTHER].iter().flat_map(|key| forms(key)) {
        if let Some(at) = text.find(&form) {
            let from = text.floor_char_boundary(at.saturating_sub(200));
            panic!("{what} has {form}: {}", &text[from..at]);
        }
    }
}

#[test]
fn the_search_finds_what_it_looks_for() {
    let hex: String = KEY.bytes().map(|byte| format!("{byte:02X}")).collect();
    for text in [
        KEY,
        &KEY.to_uppercase(),
        &hex,
        &format!("{:?}", KEY.as_bytes()),
    ] {
        let found = std::panic::catch_unwind(|| search("it", text.as_bytes()));
        assert!(found.is_err(), "{text}");
    }
    search("it", b"x-api-key: [redacted]");
}

/// Ends a process, and searches what it has written; returns that.
fn ended(process: Process) -> String {
    process.signal(rustix::process::Signal::TERM);
    let left = process.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    search("standard output", left.out.as_bytes());
    search("standard error", left.errors.as_bytes());
    left.out + &left.errors
}

/// A file in a folder, which only its owner may read.
fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, private).unwrap();
    path
}

const CONFIG: &str = r#"
    upstream = { first_byte_timeout = "500ms", timeout = "600ms", max_body_bytes = "1KiB" }
    answers = { server_timing = true }
    log = { level = "trace", format = "FORMAT", access.format = "log" }
"#;

/// What an upstream says that says back what it was sent, or fails.
fn replies() -> Vec<Reply> {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{";
    let typed = format!("content-type: application/json; key={KEY}\r\n");
    vec![
        Reply::status(500, format!("{{\"x-api-key\":\"{KEY} {OTHER}\"}}")),
        Reply::status(404, format!("{{\"error\":\"no such {OTHER}\"}}")),
        Reply::json(format!("{{\"you sent\":\"{KEY}\"}}")),
        Reply::with(200, &typed, "{}"),
        Reply::with(302, &format!("location: /?key={KEY}\r\n"), "{}"),
        Reply::with(200, "content-type: text/html\r\n", KEY),
        Reply::raw("garbage\r\n\r\n").close(),
        Reply::raw(cut).close(),
        Reply::nothing().reset(),
        Reply::nothing().hang(),
        Reply::raw(cut).hang(),
        Reply::with(200, "", "x".repeat(2000)),
        Reply::with(410, "", "{}"),
        Reply::with(429, "retry-after: 3\r\n", "{}"),
        Reply::status(401, format!("{{\"error\":\"bad key {KEY} {OTHER}\"}}")),
        Reply::status(403, format!("{{\"error\":\"bad key {KEY} {OTHER}\"}}")),
    ]
}

#[tokio::test]
async fn keys_are_only_in_upstream_requests() {
    let folder = tempfile::tempdir().unwrap();
    let keys = format!("{KEY},{OTHER}");
    let variables = [("ORDGATE_API_KEYS", &*keys), ("ORDGATE_LOG", LOG_ALL)];
    for format in ["text", "json"] {
        let upstream = Upstream::start();
        let config = file(
            folder.path(),
            "proxy.toml",
            &CONFIG.replace("FORMAT", format),
        );
        let arguments = ["--config", config.to_str().unwrap()];
        let (process, public, admin) = Process::before(&upstream, &arguments, &variables);
        let mut sent = Vec::new();
        let mut client = Client::connect(public).await;
        let own = [("x-api-key", "the-clients-own"), ("cookie", "a=b")];
        for method in ["GET", "HEAD", "OPTIONS", "POST"] {
            for target in [TOKEN, TX, BLOCK, "/nowhere", "/openapi.json"] {
                sent.extend(client.request(method, target, &own).await.bytes());
            }
        }
        for (number, reply) in replies().into_iter().enumerate() {
            upstream.always(reply);
            let answer = client.get(&token(number)).await;
            assert!(answer.status >= 500, "{answer:?}");
            sent.extend(answer.bytes());
        }
        let spent = client.get(&token(99)).await;
        assert_eq!(
            spent.status, 503,
            "one key rests, the other is in quarantine"
        );
        sent.extend(spent.bytes());
        for target in ["/metrics", "/status", "/readyz", "/nowhere"] {
            sent.extend(Client::connect(admin).await.get(target).await.bytes());
        }
        drop(client);
        let log = ended(process);
        search("an answer", &sent);
        assert!(log.to_lowercase().contains("trace"), "the log says all");
        assert!(log.contains("ordgate::access"), "{log}");

        // The upstream got one of them each time, in its field only.
        let seen = upstream.seen();
        assert!(seen.len() > 10, "{}", seen.len());
        for seen in seen {
            let key = seen.field("x-api-key").unwrap();
            assert!([KEY, OTHER].contains(&&*key));
            let rest = seen.text().replace(&key, "");
            search("the rest of an upstream request", rest.as_bytes());
            assert!(!rest.contains("the-clients-own"));
        }
    }
    let config = folder.path().join("proxy.toml").display().to_string();
    for arguments in [
        &["check", "--config", &config][..],
        &["openapi"],
        &["check", "--config", "/no/such/file"],
        &["serve", "--upstream", "http://api.example"],
        &["serve", "--upstream", "nonsense"],
    ] {
        let left = Process::run(arguments, &variables);
        search("standard output", left.out.as_bytes());
        search("standard error", left.errors.as_bytes());
    }
}

/// Percent-encoded whole, with digits in either case.
fn percent_encoded(text: &str) -> String {
    let bytes = text.bytes().enumerate();
    let digits = bytes.map(|(at, byte)| match at % 2 {
        0 => format!("%{byte:02x}"),
        _ => format!("%{byte:02X}"),
    });
    digits.collect()
}

/// With a second key after a reload.
#[tokio::test]
async fn a_key_that_a_client_sends_in_a_url_is_not_shown() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let keys = file(folder.path(), "keys", KEY);
    for format in ["log", "combined"] {
        file(folder.path(), "keys", KEY);
        let config = format!(
            "upstream.api_keys_file = {keys:?}\n[log]\nformat = \"json\"\n\
             [log.access]\nformat = \"{format}\"\n\
             [[route]]\nname = \"plain\"\npath = \"/plain/{{rest:*}}\"\nquery = \"any\"\nheaders = \"all\"\ncache = {{ mode = \"respect\" }}\n\
             [[route]]\nname = \"token\"\npath = \"/tokens/{{ticker}}\"\nparams.ticker = {{ type = \"ticker\" }}\ncache = {{ mode = \"off\" }}\n"
        );
        let config = file(folder.path(), "proxy.toml", &config);
        let arguments = ["--config", config.to_str().unwrap()];
        let (process, public, admin) = Process::before(&upstream, &arguments, &[]);
        let mut shown = Vec::new();
        let mut control = Client::connect(admin).await;
        for key in [KEY, OTHER] {
            file(folder.path(), "keys", key);
            let reloaded = control.request("POST", "/reload", &[]).await;
            assert_eq!(reloaded.status, 200, "{}", reloaded.text());
            let encoded = percent_encoded(key);
            for reply in [Reply::json("{}"), Reply::status(500, "{}")] {
                upstream.always(reply);
                for target in [
                    format!("/nowhere/{key}"),
                    format!("/tokens/{key}"),
                    format!("/tokens/a?api_key={key}"),
                    format!("/plain/{encoded}/b"),
                    format!("/plain/a?api_key={encoded}&b={key}"),
                ] {
                    let fields = [("referer", &*target), ("user-agent", key)];
                    let mut client = Client::connect(public).await;
                    client.request("GET", &target, &fields).await;
                    client.request(key, "/plain/a", &fields).await;
                }
            }
        }
        for target in ["/status", "/metrics", "/history"] {
            shown.extend(control.get(target).await.bytes());
        }
        search("/status, /metrics or /history", &shown);
        assert!(String::from_utf8_lossy(&shown).contains("/tokens/[key]"));
        drop(control);
        let log = ended(process);
        assert!(log.matches("[key]").count() >= 30, "{log}");
    }
}

#[test]
fn keys_that_cannot_be_used_are_not_shown() {
    let refuses = |left: crate::support::process::Left, part: &str| {
        assert_eq!(left.code(), Some(2));
        assert!(left.errors.contains(part), "{}", left.errors);
        search("standard error", left.errors.as_bytes());
    };
    for bad in [format!("{KEY}\u{f6}"), format!("{KEY}\u{7f},{OTHER}")] {
        let variables = [("ORDGATE_API_KEYS", &*bad)];
        for command in ["check", "serve"] {
            refuses(Process::run(&[command], &variables), "ORDGATE_API_KEYS");
        }
    }
    // Nor where they are not even text, which is not to be without a key.
    let bytes = [KEY.as_bytes(), b"\xff"].concat();
    for name in ["ORDGATE_API_KEYS", "ORDGATE_ADMIN_TOKEN"] {
        let left = Process::start_with(&["check"], &[(name, OsStr::from_bytes(&bytes))]).wait();
        refuses(left, &format!("{name} is not UTF-8"));
    }
    // A key in the file is refused, and not repeated.
    let folder = tempfile::tempdir().unwrap();
    let config = file(
        folder.path(),
        "proxy.toml",
        &format!("upstream.api_keys = \"{KEY}\"\n"),
    );
    refuses(
        Process::run(&["check", "--config", config.to_str().unwrap()], &[]),
        "api_keys",
    );
}
