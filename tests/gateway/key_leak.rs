//! A key leaves the process only in the upstream request's field: every other byte
//! that the binary sends is collected and searched.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use crate::support::process::LOG_ALL;
use crate::support::{BLOCK, Client, Process, Reply, TOKEN, TX, Upstream, token};

/// Long enough that no part of it comes about by chance.
const KEY: &str = "k9Zq-ordgate-s3cret-7Xw2";
const OTHER: &str = "second-S3cret-key_4Yv8";

/// What would give a key away: itself, in any case, half of it, or what it
/// encodes to.
fn forms(key: &str) -> Vec<String> {
    let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
    let half = key.len() / 2;
    let bytes: Vec<_> = key.bytes().map(|byte| byte.to_string()).collect();
    let mut forms = vec![
        key.to_lowercase(),
        key[..half].to_lowercase(),
        key[half..].to_lowercase(),
        hex,
        bytes.join(", "),
        bytes.join(","),
    ];
    // Base64 of a text depends on where in a triple it begins.
    for lead in 0..3 {
        let padded = "\0".repeat(lead) + key;
        let text = base64(padded.as_bytes());
        let (from, to) = (4, text.len() - 4);
        forms.push(text[from..to].to_lowercase());
        let url_safe = text[from..to].replace('+', "-").replace('/', "_");
        forms.push(url_safe.to_lowercase());
    }
    forms
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for triple in bytes.chunks(3) {
        let bits = triple
            .iter()
            .fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte))
            << (8 * (3 - triple.len()));
        for at in 0..4 {
            match at <= triple.len() {
                true => text.push(char::from(DIGITS[bits >> (18 - 6 * at) & 63])),
                false => text.push('='),
            }
        }
    }
    text
}

/// Fails where a text gives a key away.
fn search(what: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text).to_lowercase();
    for key in [KEY, OTHER] {
        for form in forms(key) {
            if let Some(at) = text.find(&form) {
                let from = text.floor_char_boundary(at.saturating_sub(200));
                panic!("{what} has {form}: {}", &text[from..at]);
            }
        }
    }
}

#[test]
fn the_search_finds_what_it_looks_for() {
    assert_eq!(base64(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
    let hex: String = KEY.bytes().map(|byte| format!("{byte:02X}")).collect();
    let quoted = format!("{:?}", KEY.as_bytes());
    let encoded = base64(format!("x-api-key: {KEY}\r\n").as_bytes());
    for text in [KEY, &KEY.to_uppercase(), &hex, &quoted, &encoded] {
        let found = std::panic::catch_unwind(|| search("it", text.as_bytes()));
        assert!(found.is_err(), "{text}");
    }
    search("it", b"x-api-key: [redacted]");
}

#[tokio::test]
async fn keys_are_only_in_upstream_requests() {
    let upstream = Upstream::start();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let text = r#"
        [upstream]
        requests_per_second = 1000
        first_byte_timeout = "500ms"
        timeout = "600ms"
        max_body_bytes = "1KiB"
        [answers]
        cache_status_key = true
        server_timing = true
        [log.access]
        enabled = true
    "#;
    config.write_all(text.as_bytes()).unwrap();
    let config = config.path().display().to_string();
    let keys = format!("{KEY},{OTHER}");
    let variables = [("ORDGATE_API_KEYS", &*keys), ("ORDGATE_LOG", LOG_ALL)];

    for format in ["text", "json"] {
        let before = upstream.count();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let more = format!("{text}\n[log]\nlevel = \"trace\"\nformat = \"{format}\"\n");
        file.write_all(more.as_bytes()).unwrap();
        let path = file.path().display().to_string();
        let (process, public, admin) = Process::before(&upstream, &["--config", &path], &variables);

        let mut sent = Vec::new();
        let mut client = Client::connect(public).await;
        let own = [("x-api-key", "the-clients-own"), ("cookie", "a=b")];
        for (method, target) in [
            ("GET", TOKEN),
            ("GET", TOKEN),
            ("GET", TX),
            ("GET", BLOCK),
            ("HEAD", BLOCK),
            ("OPTIONS", BLOCK),
            ("POST", BLOCK),
            ("GET", "/nowhere"),
            ("GET", "/openapi.json"),
            ("GET", "/runes/v1/blocks/x/activity"),
        ] {
            sent.extend(client.request(method, target, &own).await.bytes());
        }
        let failures = [
            // Some upstreams say back what they were sent.
            Reply::status(500, format!("{{\"x-api-key\":\"{KEY} {OTHER}\"}}")),
            Reply::status(404, format!("{{\"error\":\"no such {OTHER}\"}}")),
            Reply::json(format!("{{\"you sent\":\"{KEY}\"}}")),
            Reply::with(
                200,
                &format!("content-type: application/json; key={KEY}\r\n"),
                "{}",
            ),
            Reply::with(302, &format!("location: /?key={KEY}\r\n"), "{}"),
            Reply::with(200, "content-type: text/html\r\n", KEY),
            Reply::raw("garbage\r\n\r\n").close(),
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
            Reply::nothing().close(),
            Reply::nothing().reset(),
            Reply::nothing().hang(),
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").hang(),
            Reply::with(200, "", "x".repeat(2000)),
            Reply::with(410, "", "{}"),
            Reply::with(429, "retry-after: 3\r\n", "{}"),
            Reply::status(401, format!("{{\"error\":\"bad key {KEY} {OTHER}\"}}")),
            Reply::status(403, format!("{{\"error\":\"bad key {KEY} {OTHER}\"}}")),
        ];
        for (number, failure) in failures.into_iter().enumerate() {
            upstream.always(failure);
            let answer = client.get(&token(number)).await;
            assert!(answer.status >= 500, "{answer:?}");
            sent.extend(answer.bytes());
        }
        let spent = client.get(&token(99)).await;
        assert_eq!(
            spent.status, 503,
            "one key is in cooldown, the other in quarantine"
        );
        sent.extend(spent.bytes());
        for target in ["/metrics", "/status", "/healthz", "/readyz", "/nowhere"] {
            sent.extend(Client::connect(admin).await.get(target).await.bytes());
        }
        process.signal(rustix::process::Signal::TERM);
        drop(client);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        search("an answer", &sent);
        search("standard output", left.out.as_bytes());
        search("standard error", left.errors.as_bytes());
        assert!(
            left.errors.to_lowercase().contains("trace"),
            "the log says all: {}",
            left.errors
        );
        assert!(left.errors.contains("ordgate::access"), "{}", left.errors);

        // The upstream got one of them each time, in its field only.
        let seen = &upstream.seen()[before..];
        assert!(seen.len() > 10, "{}", seen.len());
        for seen in seen {
            let key = seen.field("x-api-key").unwrap();
            assert!([KEY, OTHER].contains(&&*key));
            let rest = seen.text().replace(&key, "");
            search("the rest of an upstream request", rest.as_bytes());
            assert!(!rest.contains("the-clients-own"));
        }
        upstream.usually(|seen| Reply::json(format!("{{\"asked\":\"{}\"}}", seen.target())));
    }

    for arguments in [
        &["check"][..],
        &["check", "--config", &config],
        &["openapi"],
        &["check", "--config", "/no/such/file"],
        &["serve", "--upstream", "http://api.example"],
        &["serve", "--upstream", "nonsense"],
        &["--help"],
    ] {
        let left = Process::run(arguments, &variables);
        search("standard output", left.out.as_bytes());
        search("standard error", left.errors.as_bytes());
    }
}

/// Percent-encoded whole, with digits in either case.
fn percent_encoded(text: &str) -> String {
    let bytes = text.bytes().enumerate();
    bytes
        .map(|(at, byte)| match at % 2 {
            0 => format!("%{byte:02x}"),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[tokio::test]
async fn a_key_that_a_client_sends_in_a_url_is_not_shown() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let keys = |text: &str| {
        std::fs::write(path("keys"), text).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(path("keys"), private).unwrap();
    };
    keys(KEY);
    for format in ["log", "combined"] {
        let config = format!(
            "[upstream]\napi_keys_file = {:?}\n[log]\nformat = \"json\"\n\
             [log.access]\nenabled = true\nformat = \"{format}\"\nfields = [\"method\", \"path\", \"query\", \"plain_query\", \"status\"]\n\
             [[route]]\nname = \"plain\"\npath = \"/plain/{{rest:*}}\"\nquery = \"any\"\nheaders = \"all\"\ncache = {{ mode = \"respect\" }}\n\
             [[route]]\nname = \"token\"\npath = \"/tokens/{{ticker}}\"\nparams.ticker = {{ type = \"ticker\" }}\ncache = {{ mode = \"off\" }}\n",
            path("keys")
        );
        std::fs::write(path("proxy.toml"), config).unwrap();
        let file = path("proxy.toml").display().to_string();
        let (process, public, admin) = Process::before(&upstream, &["--config", &file], &[]);
        let mut shown = Vec::new();
        for key in [KEY, OTHER] {
            keys(key);
            let mut control = Client::connect(admin).await;
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
                // What is refused before it is parsed.
                let mut client = Client::connect(public).await;
                client
                    .send(&format!("GET /{key}\u{1} HTTP/1.1\r\n\r\n"))
                    .await;
                client.rest().await;
            }
            for target in ["/status", "/metrics", "/history"] {
                shown.extend(control.get(target).await.bytes());
            }
        }
        process.signal(rustix::process::Signal::TERM);
        let left = process.wait();
        search("/status, /metrics or /history", &shown);
        search("standard output", left.out.as_bytes());
        search("standard error", left.errors.as_bytes());
        let log = left.out + &left.errors;
        assert!(log.matches("[key]").count() >= 40, "{log}");
        assert!(String::from_utf8_lossy(&shown).contains("/tokens/[key]"));
    }
}

#[test]
fn keys_that_cannot_be_used_are_not_shown() {
    for bad in [
        format!("{KEY}\u{f6}"),
        format!("{KEY} {OTHER}"),
        format!("{KEY}\u{7f},{OTHER}"),
    ] {
        let variables = [("ORDGATE_API_KEYS", &*bad)];
        for command in ["check", "serve"] {
            let left = Process::run(&[command], &variables);
            assert_eq!(left.code(), Some(2));
            assert!(left.errors.contains("ORDGATE_API_KEYS"), "{}", left.errors);
            search("standard error", left.errors.as_bytes());
        }
    }
    // Nor where they are not even text, which is not to be without a key.
    let mut bytes = KEY.as_bytes().to_vec();
    bytes.push(0xff);
    let bytes = OsStr::from_bytes(&bytes);
    for name in ["ORDGATE_API_KEYS", "ORDGATE_ADMIN_TOKEN"] {
        for arguments in [&["check"][..], &["serve", "--sandbox"]] {
            let left = Process::start_with(arguments, &[(name, bytes)]).wait();
            assert_eq!(left.code(), Some(2));
            let expected = format!("{name} is not UTF-8");
            assert!(left.errors.contains(&expected), "{}", left.errors);
            search("standard error", left.errors.as_bytes());
        }
    }
    // A key in the file is refused, and not repeated.
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "[upstream]\napi_keys = \"{KEY}\"\n").unwrap();
    let path = file.path().display().to_string();
    let left = Process::run(&["check", "--config", &path], &[]);
    assert_eq!(left.code(), Some(2));
    search("standard error", left.errors.as_bytes());
}
