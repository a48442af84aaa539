//! A client token ends at ordgate: it is in no upstream request, answer, page, log or
//! file.

use std::io::Write;

use super::{line, new, ways};
use crate::support::process::LOG_ALL;
use crate::support::respect::{ALL, ok, plain};
use crate::support::{Client, Endpoint, Process, Reply, Transport, Upstream};

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
    known: String,
    unknown: String,
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
            let line = line("", token, "");
            let digest = line.split('"').nth(1).unwrap();
            for part in [&token[3..20], &token[20..40], &token[35..], &digest[..16]] {
                assert!(!text.contains(part), "{what} has {part}");
            }
        }
    }

    /// Sends the tokens in every way, and returns all that comes back.
    async fn send(&self, endpoint: Endpoint) -> Vec<u8> {
        let mut sent = Vec::new();
        let mut client = endpoint.client().await;
        for token in [&self.known, &self.unknown] {
            for (name, value) in ways(token) {
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
