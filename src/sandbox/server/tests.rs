//! The served sandbox over loopback. Raw TCP shows the bytes as sent.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::sandbox::{Api, Sandbox, Settings};

mod faults;
mod two_servers;

struct Running {
    sandbox: Sandbox,
    address: std::net::SocketAddr,
}

async fn start(settings: Settings) -> Running {
    serve(&Sandbox::new(settings), Api::Both).await
}

async fn serve(sandbox: &Sandbox, api: Api) -> Running {
    let sandbox = sandbox.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = sandbox.clone().serve(api, listener, std::future::pending());
    tokio::spawn(serving);
    Running { sandbox, address }
}

impl Running {
    /// Sends one request on a connection of its own and reads until it closes.
    async fn ask(&self, request_line: &str, fields: &str) -> String {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        let request =
            format!("{request_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        // A closed connection may end in an error; the bytes before it are the response.
        let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes))
            .await
            .expect("an end");
        String::from_utf8(bytes).expect("UTF-8")
    }

    async fn get(&self, target: &str) -> String {
        self.ask(&format!("GET {target}"), "").await
    }

    /// The status of the answer to a GET.
    async fn status(&self, target: &str) -> String {
        self.get(target).await[9..12].to_owned()
    }
}

fn field_names(response: &str) -> Vec<&str> {
    let (head, _) = response.split_once("\r\n\r\n").expect("a head");
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .collect()
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a head").1
}

#[tokio::test]
async fn answers_are_sent_with_the_recorded_fields() {
    let running = start(Settings::default()).await;
    let full = [
        "vary",
        "access-control-allow-origin",
        "cache-control",
        "etag",
        "content-type",
        "content-length",
    ];
    let tip = running.sandbox.tip().hash;
    let matching = format!("if-none-match: \"{tip}\"\r\n");
    let preflight = "origin: https://a.example\r\naccess-control-request-method: GET\r\n";
    // The reference sends content-length: 0 with a 204, which RFC 9110, section 8.6, forbids; hyper omits it.
    let granted = [
        "vary",
        "access-control-allow-origin",
        "access-control-allow-methods",
    ];
    for (line, fields, status, expected) in [
        ("GET /runes/v1/", "", "200 OK", &full[..]),
        ("GET http://127.0.0.1/runes/v1/", "", "200 OK", &full),
        ("HEAD /runes/v1/", "", "200 OK", &full),
        ("GET /runes/v1/", &matching, "304 Not Modified", &full[..3]),
        (
            "HEAD /runes/v1/",
            &matching,
            "304 Not Modified",
            &["vary", full[1], full[2], "content-length"],
        ),
        (
            "POST /runes/v1/",
            "content-length: 0\r\n",
            "404 Not Found",
            &["vary", full[1], full[4], full[5]],
        ),
        ("OPTIONS /nope", preflight, "204 No Content", &granted),
    ] {
        let response = running.ask(line, fields).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{line}: {response}"
        );
        let names = field_names(&response);
        let sent: Vec<_> = names
            .iter()
            .copied()
            .filter(|name| !matches!(*name, "date" | "connection"))
            .collect();
        assert_eq!(sent, expected, "{line}");
        assert!(names.contains(&"date"));
    }
    let whole = running.get("/runes/v1/").await;
    assert!(body(&whole).ends_with("\"block_height\":840199}"));
    assert!(body(&running.ask("HEAD /runes/v1/", "").await).is_empty());
    let counts = running.sandbox.counts();
    assert_eq!(
        (
            counts.total,
            counts.status,
            counts.other,
            counts.redirection
        ),
        (9, 8, 1, 2)
    );
    assert_eq!(counts.busiest_minute, 9);
}

#[tokio::test]
async fn keys_and_limits_are_checked_but_not_on_control_routes() {
    let settings = Settings {
        require_key: Some("secret".to_owned()),
        requests_per_minute: NonZeroU32::new(2),
        ..Settings::default()
    };
    let running = start(settings).await;
    let refused = running.get("/runes/v1/").await;
    assert!(
        refused.starts_with("HTTP/1.1 401 ") && body(&refused) == "{\"error\":\"Unauthorized\"}"
    );
    let key = "x-api-key: secret\r\n";
    for remaining in ["1", "0"] {
        let response = running.ask("GET /runes/v1/", key).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(
            response.contains("ratelimit-limit: 2\r\n") && response.contains("ratelimit-reset: ")
        );
        assert!(response.contains(&format!("ratelimit-remaining: {remaining}\r\n")));
    }
    let late = running.ask("GET /runes/v1/", key).await;
    assert!(
        late.starts_with("HTTP/1.1 429 ")
            && late.contains("retry-after: ")
            && !late.contains("secret")
    );
    let counts = running.get("/sandbox/counts").await;
    let json: serde_json::Value = serde_json::from_str(body(&counts)).expect("JSON");
    assert_eq!(
        (&json["total"], &json["answers"]["4xx"]),
        (&4.into(), &2.into())
    );
}
