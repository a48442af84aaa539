//! A client token ends at ordgate: it is in no upstream request, answer, page, log or
//! file.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use ordgate::client_tokens::token::NewToken;

use super::{line, new, ways};
use crate::support::process::LOG_ALL;
use crate::support::respect::{ALL, ok, plain};
use crate::support::{
    Client, Collector, Endpoint, Process, Reply, Setup, Transport, Upstream, until,
};

#[tokio::test]
async fn a_token_reaches_no_origin_and_other_credentials_do() {
    let upstream = Upstream::start();
    let (known, unknown) = (new(), new());
    let gateway = plain(&upstream)
        .client_tokens(&line("known", &known, ""))
        .start();
    let rows = [
        (ways(&known)[0].clone(), ("x-other-key", "the-origins"), 200),
        (
            ways(&known)[1].clone(),
            ("authorization", "Bearer the-origins"),
            200,
        ),
        (
            ways(&known)[1].clone(),
            ("authorization", "Basic dGhlOm9yaWdpbnM="),
            200,
        ),
        (ways(&unknown)[0].clone(), ("x-api-key", "the-origins"), 401),
    ];
    for (n, (token, own, status)) in rows.iter().enumerate() {
        let before = upstream.count();
        let fields = [(token.0, &*token.1), *own];
        let answer = gateway.request("GET", &format!("/{n}"), &fields).await;
        assert_eq!(answer.status, *status, "{own:?}");
        let seen = upstream.seen();
        assert_eq!(seen.len() - before, usize::from(*status == 200));
        if let Some(seen) = seen.get(before) {
            assert!(!seen.text().contains("og_"), "{}", seen.text());
            assert_eq!(seen.field(own.0).as_deref(), Some(own.1));
        }
    }
}

/// Fields with a token in a form that ordgate does not take.
fn misplaced(token: &NewToken) -> Vec<(&'static str, String)> {
    let text = &**token.text;
    let base64 = |text: &str| {
        let digits: Vec<_> = ('A'..='Z').chain('a'..='z').chain('0'..='9').collect();
        let bits = |chunk: &[u8]| {
            chunk
                .iter()
                .fold(0, |bits, byte| bits << 8 | usize::from(*byte))
        };
        // Of a multiple of three bytes, without `+` and `/`: a token is ASCII, and 6 bits
        // of it that are 62 or 63 would need a byte above 127 or `>`, `?`, `~`.
        let quads = text.as_bytes().chunks(3).flat_map(|chunk| {
            let bits = bits(chunk);
            [18, 12, 6, 0].map(|by| digits[bits >> by & 63])
        });
        quads.collect::<String>()
    };
    vec![
        ("authorization", text.to_owned()),
        ("authorization", format!("Token {text}")),
        ("authorization", format!("Bearer\t{text}")),
        ("authorization", format!("Bearer \"{text}\"")),
        ("authorization", format!("Basic {text}")),
        (
            "authorization",
            format!("Basic {}", base64(&format!("{text}::"))),
        ),
        (
            "authorization",
            format!("basic  {}", base64(&format!("u:{text}"))),
        ),
        ("x-api-key", format!("Bearer {text}")),
        ("x-api-key", format!("key={text}")),
    ]
}

#[tokio::test]
async fn a_token_in_another_form_is_refused() {
    let upstream = Upstream::start();
    let (known, unknown) = (new(), new());
    for required in [false, true] {
        let setup = plain(&upstream).config(&format!("clients.require_token = {required}"));
        let gateway = setup.client_tokens(&line("known", &known, "")).start();
        for (name, value) in misplaced(&known).into_iter().chain(misplaced(&unknown)) {
            for own in [("accept", "*/*"), ("x-api-key", "the-origins")] {
                let fields = [(name, &*value), own];
                let answer = gateway.request("POST", "/a", &fields).await;
                assert_eq!(answer.status, 401, "{name}: {value}");
                let why = answer.must("www-authenticate");
                assert!(why.contains("The token is malformed"), "{name}: {value}");
            }
            // Beside a valid one too.
            let mut fields = vec![(name, &*value)];
            let valid = ways(&known);
            let other = valid.iter().find(|way| way.0 != name).unwrap();
            fields.push((other.0, &*other.1));
            assert_eq!(gateway.request("GET", "/a", &fields).await.status, 401);
        }
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_token_in_a_requests_trailers_reaches_no_origin() {
    let upstream = Upstream::start();
    let known = new();
    let gateway = plain(&upstream)
        .client_tokens(&line("known", &known, ""))
        .start();
    for (name, value) in ways(&known).into_iter().chain(misplaced(&known)) {
        let mut client = gateway.client().await;
        client
            .send(format!(
                "POST /a HTTP/1.1\r\nhost: a\r\ntrailer: {name}\r\ntransfer-encoding: chunked\r\n\r\n\
                 4\r\nbody\r\n0\r\n{name}: {value}\r\n\r\n"
            ))
            .await;
        assert_eq!(client.answer("POST").await.status, 200, "{name}: {value}");
    }
    let seen = upstream.seen();
    assert_eq!(seen.len(), 11);
    for seen in seen {
        assert!(seen.whole && seen.length == 4, "{}", seen.text());
        for bytes in [&seen.raw, &seen.body] {
            let text = String::from_utf8_lossy(bytes);
            assert!(!text.contains(&known.text[3..20]), "{text}");
        }
    }
}

#[tokio::test]
async fn a_token_does_not_keep_an_answer_out_of_the_cache_and_an_origins_credentials_do() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=60"], "x"));
    let (one, other) = (new(), new());
    let lines = line("one", &one, "") + &line("other", &other, "");
    let gateway = plain(&upstream).client_tokens(&lines).start();
    for way in ways(&one).into_iter().chain(ways(&other)) {
        let answer = gateway.request("GET", "/shared", &[(way.0, &way.1)]).await;
        assert_eq!((answer.status, answer.text()), (200, "x"));
    }
    assert_eq!(upstream.count(), 1, "one answer for all");
    assert_eq!(gateway.get("/shared").await.status, 200);
    assert_eq!(upstream.count(), 1);
    // RFC 9111 §3.5: with the origin's own credentials nothing is stored.
    let [_, (name, value)] = ways(&one);
    for _ in 0..2 {
        let fields = [(name, &*value), ("authorization", "Bearer own")];
        assert_eq!(gateway.request("GET", "/own", &fields).await.status, 200);
    }
    assert_eq!(upstream.count(), 3);
}

/// A valid and an unknown token, and what must be found nowhere.
struct Secrets {
    known: NewToken,
    unknown: NewToken,
}

impl Secrets {
    fn new() -> Self {
        let (known, unknown) = (new(), new());
        Self { known, unknown }
    }

    /// Fails where a text has a part of a token, or of the digest.
    fn search(&self, what: &str, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        for token in [&self.known, &self.unknown] {
            for part in [&token.text[3..20], &token.text[20..40], &token.text[35..]] {
                assert!(!text.contains(part), "{what} has {part}");
            }
            let digest = &token.digest[..16];
            assert!(!text.contains(digest), "{what} has {digest}");
        }
    }

    /// Sends the tokens in every way, and returns all that comes back.
    async fn send(&self, endpoint: Endpoint) -> Vec<u8> {
        let mut sent = Vec::new();
        let mut client = endpoint.client().await;
        for token in [&self.known, &self.unknown] {
            for (name, value) in ways(token).into_iter().chain(misplaced(token)) {
                for method in ["GET", "HEAD", "POST", "OPTIONS"] {
                    let fields = [(name, &*value), ("origin", "https://a.example")];
                    sent.extend(client.request(method, "/a", &fields).await.bytes());
                }
            }
        }
        let ([one, _], [_, other]) = (ways(&self.known), ways(&self.unknown));
        let both = [(one.0, &*one.1), (other.0, &*other.1)];
        sent.extend(client.request("GET", "/a", &both).await.bytes());
        sent.extend(client.request("GET", "/bad", &both[..1]).await.bytes());
        let (name, value) = &one;
        let long = [(*name, &**value), ("x-long", &*"x".repeat(40_000))];
        if endpoint.transport != Transport::Http1 {
            sent.extend(client.request("GET", "/a", &long).await.bytes());
            return sent;
        }
        // A malformed head, and one that is too large.
        for more in ["bad field", &format!("x-long: {}", "x".repeat(70_000))] {
            let mut client = endpoint.client().await;
            let head = format!("GET /a HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n{more}\r\n\r\n");
            client.send(head).await;
            sent.extend(client.rest().await);
        }
        sent
    }
}

#[tokio::test]
async fn a_token_is_in_no_answer_page_log_or_file() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=600"], "x"));
    let secrets = Secrets::new();
    let mut tokens = tempfile::NamedTempFile::new().unwrap();
    let known = line("known", &secrets.known, "");
    tokens.write_all(known.as_bytes()).unwrap();
    let path = tokens.path().display();
    for format in ["text", "json"] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "clients.token_file = \"{path}\"\nanswers.cache_status_key = true\n[log]\nlevel = \"trace\"\nformat = \"{format}\"\naccess.enabled = true\n{ALL}"
        );
        file.write_all(text.as_bytes()).unwrap();
        let config = file.path().display().to_string();
        let before = upstream.count();
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("state").display().to_string();
        let arguments = ["--config", &config, "--state", &path];
        let (process, public, admin) =
            Process::before(&upstream, &arguments, &[("ORDGATE_LOG", LOG_ALL)]);
        upstream.once("/bad", Reply::raw("garbage\r\n\r\n").close());
        let mut sent = Vec::new();
        for transport in [Transport::Http1, Transport::H2c] {
            let address = public;
            sent.extend(secrets.send(Endpoint { address, transport }).await);
        }
        for target in ["/metrics", "/status", "/healthz", "/explain?url=/a", "/no"] {
            sent.extend(Client::connect(admin).await.get(target).await.bytes());
        }
        process.signal(rustix::process::Signal::TERM);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        secrets.search("an answer", &sent);
        secrets.search("standard output", left.out.as_bytes());
        secrets.search("standard error", left.errors.as_bytes());
        let mut files = 0;
        let mut directories = vec![state.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                secrets.search("a name on disk", path.as_os_str().as_encoded_bytes());
                match path.is_dir() {
                    true => directories.push(path),
                    false => {
                        secrets.search(&path.display().to_string(), &std::fs::read(&path).unwrap());
                        files += 1;
                    }
                }
            }
        }
        assert!(files > 2, "{files} files");
        let log = left.errors.to_lowercase();
        assert!(log.contains("trace"), "the log says all");
        assert!(log.contains("token:known"), "the access log has the name");
        let seen = &upstream.seen()[before..];
        assert!(seen.len() >= 3, "{}", seen.len());
        for seen in seen {
            secrets.search("an upstream request", seen.text().as_bytes());
        }
    }
}

#[test]
fn a_token_file_that_cannot_be_used_is_not_shown() {
    let secrets = Secrets::new();
    let tokens = tempfile::NamedTempFile::new().unwrap();
    let path = tokens.path().display().to_string();
    let (text, digest) = (&*secrets.known.text, &*secrets.known.digest);
    for (mode, content, expected) in [
        (0o600, format!("web {text}\n"), ":1:5: this is a token"),
        (
            0o600,
            format!("{text} {digest}\n"),
            ":1:1: a line begins with",
        ),
        (
            0o600,
            format!("web {digest} {text}\n"),
            ":1:70: allowed here is",
        ),
        (0o644, format!("web {digest}\n"), "has mode 0644"),
    ] {
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "clients.token_file = \"{path}\"").unwrap();
        let config = file.path().display().to_string();
        for command in ["check", "serve"] {
            let left = Process::run(&[command, "--config", &config], &[]);
            assert_eq!(left.code(), Some(2));
            assert!(left.errors.contains(expected), "{}", left.errors);
            secrets.search("standard error", left.errors.as_bytes());
            secrets.search("standard output", left.out.as_bytes());
        }
    }
}

#[tokio::test]
async fn a_token_in_a_query_is_none() {
    // ordgate takes tokens from fields alone: a target is logged by others.
    let upstream = Upstream::start();
    let known = new();
    let setup = Setup::before(&upstream).config("clients.require_token = true");
    let gateway = setup.client_tokens(&line("known", &known, "")).start();
    let target = format!("{}?access_token={}", crate::support::TOKEN, *known.text);
    assert_eq!(gateway.get(&target).await.status, 401);
}

#[tokio::test]
async fn a_token_in_a_target_is_neither_in_the_status_nor_in_a_span() {
    let (upstream, collector) = (Upstream::start(), Collector::start());
    upstream.always(Reply::status(503, "not today"));
    let setup = collector.of(plain(&upstream));
    let gateway = setup.config("telemetry.sample = 1.0").start();
    let token = new();
    let text: &str = &token.text;
    // The second one goes on where texts are cut.
    let targets = [
        format!("/{text}?k=secret-query"),
        format!("/{}{text}", "x".repeat(230)),
    ];
    for target in &targets {
        assert_eq!(gateway.get(target).await.status, 503);
    }
    until("both are exported", || {
        collector.requests().len() >= targets.len()
    })
    .await;
    let status = gateway.admin("/status").await;
    assert!(status.json()["errors"][1].is_object(), "{}", status.text());
    let spans = collector.bodies().concat();
    for (what, shown) in [("the status", status.text()), ("a span", &*spans)] {
        assert!(shown.contains("og_[redacted]"), "{what}: {shown}");
        for part in [&text[3..20], &text[20..40], &text[35..], "secret-query"] {
            assert!(!shown.contains(part), "{what} has {part}: {shown}");
        }
    }
}
