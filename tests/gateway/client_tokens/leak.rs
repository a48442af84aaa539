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
    let setup = plain(&upstream).client_tokens(&line("known", &known, ""));
    let gateway = setup.start();
    let ([bearer, key], [unknown, _]) = (ways(&known), ways(&unknown));
    let rows = [
        (bearer, ("x-other-key", "the-origins"), 200),
        (key.clone(), ("authorization", "Bearer the-origins"), 200),
        (key, ("authorization", "Basic dGhlOm9yaWdpbnM="), 200),
        (unknown, ("x-api-key", "the-origins"), 401),
    ];
    for ((name, value), own, status) in rows {
        let asked = upstream.count();
        let answer = gateway.request("GET", "/", &[(name, &value), own]).await;
        assert_eq!(answer.status, status, "{own:?}");
        let seen = upstream.seen().split_off(asked);
        assert_eq!(seen.len(), usize::from(status == 200));
        for seen in seen {
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
    // RFC 9111 §3.5: with the origin's own credentials nothing is stored.
    let [_, (name, value)] = ways(&one);
    for _ in 0..2 {
        let fields = [(name, &*value), ("authorization", "Bearer own")];
        assert_eq!(gateway.request("GET", "/own", &fields).await.status, 200);
    }
    assert_eq!(upstream.count(), 3);
}

/// Fails where a text has a part of a token, or of its digest.
fn search(tokens: &[String; 2], what: &str, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    for token in tokens {
        let line = line("", token, "");
        let digest = line.split('"').nth(1).unwrap();
        for part in [&token[3..20], &token[20..40], &token[35..], &digest[..16]] {
            assert!(!text.contains(part), "{what} has {part}");
        }
    }
}

/// Sends the tokens in every way, and returns all that comes back.
async fn send(tokens: &[String; 2], endpoint: Endpoint) -> Vec<u8> {
    let mut sent = Vec::new();
    let mut client = endpoint.client().await;
    for (name, value) in tokens.iter().flat_map(|token| ways(token)) {
        for method in ["GET", "HEAD", "POST", "OPTIONS"] {
            let fields = [(name, &*value), ("origin", "https://a.example")];
            sent.extend(client.request(method, "/a", &fields).await.bytes());
        }
    }
    let [(name, value), _] = ways(&tokens[0]);
    let long = "x".repeat(40_000);
    for (target, more) in [
        ("/bad", ("x-api-key", &*tokens[1])),
        ("/a", ("x-long", &long)),
    ] {
        let fields = [(name, &*value), more];
        sent.extend(client.request("GET", target, &fields).await.bytes());
    }
    if endpoint.transport == Transport::Http1 {
        // A malformed head, and one that is too large.
        for more in ["bad field", &format!("x-long: {}", "x".repeat(70_000))] {
            let mut client = endpoint.client().await;
            let head = format!("GET /a HTTP/1.1\r\nhost: a\r\n{name}: {value}\r\n{more}\r\n\r\n");
            client.send(head).await;
            sent.extend(client.rest().await);
        }
    }
    sent
}

#[tokio::test]
async fn a_token_is_in_no_answer_page_log_or_file() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=600"], "x"));
    let secrets = [new(), new()];
    let mut tokens = tempfile::NamedTempFile::new().unwrap();
    tokens
        .write_all(line("known", &secrets[0], "").as_bytes())
        .unwrap();
    let path = tokens.path().display();
    for format in ["text", "json"] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "clients.token_file = \"{path}\"\n[log]\nlevel = \"trace\"\nformat = \"{format}\"\naccess.format = \"log\"\n{ALL}"
        );
        file.write_all(text.as_bytes()).unwrap();
        let config = file.path().display().to_string();
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("state");
        let arguments = ["--config", &config, "--state", path.to_str().unwrap()];
        let variables = [("ORDGATE_LOG", LOG_ALL)];
        let (process, address, admin) = Process::before(&upstream, &arguments, &variables);
        upstream.once("/bad", Reply::raw("garbage\r\n\r\n").close());
        let mut sent = Vec::new();
        for transport in [Transport::Http1, Transport::H2c] {
            sent.extend(send(&secrets, Endpoint { address, transport }).await);
        }
        for target in ["/metrics", "/status", "/explain?url=/a", "/no"] {
            sent.extend(Client::connect(admin).await.get(target).await.bytes());
        }
        process.signal(rustix::process::Signal::TERM);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        search(&secrets, "an answer", &sent);
        search(&secrets, "standard output", left.out.as_bytes());
        search(&secrets, "standard error", left.errors.as_bytes());
        let files: Vec<_> = std::fs::read_dir(&path).unwrap().collect();
        assert!(files.len() >= 2, "{files:?}");
        for file in files {
            let file = file.unwrap();
            search(&secrets, "a file", &std::fs::read(file.path()).unwrap());
        }
        let log = left.errors.to_lowercase();
        assert!(log.contains("trace"), "the log says all");
        assert!(log.contains("token:known"), "the access log has the name");
    }
    let seen = upstream.seen();
    assert!(seen.len() >= 6, "{}", seen.len());
    for seen in seen {
        search(&secrets, "an upstream request", seen.text().as_bytes());
    }
}
