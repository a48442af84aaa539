//! The binary: start, output and exit.

mod command_line;
mod equal_refusals;
mod health;
mod load_target;
mod log_lines;
mod mistakes;
mod signals;

use std::io::Write;
use std::net::SocketAddr;

use rustix::process::Signal;

use crate::support::frames::{FrameClient, Outcome, request};
use crate::support::{BLOCK, Client, Process, TOKEN, Upstream};

/// In the documentation of a key, which `check --all` prints.
const DOCUMENTATION: &str = "# The most requests that a client may send at once";

fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    (file, path)
}

#[tokio::test]
async fn the_log_has_the_addresses_that_are_served() {
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
async fn the_urls_that_the_sandbox_prints_work() {
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
async fn the_sandbox_alone_serves_the_url_it_prints() {
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
async fn a_split_sandbox_prints_both_urls() {
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
    assert_eq!(process.line(), "A gateway in front of both:");
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

#[tokio::test]
async fn environment_variables_set_flags() {
    // One that is empty is as if it were not set.
    let empty = [
        ("ORDGATE_CONFIG", " "),
        ("ORDGATE_STATE", " "),
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
                "# warning: ORDGATE_API_KEYS_RUNE has no effect: no route uses an upstream of that name",
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
        let code = if left.out.contains("lacks the URL of an upstream") {
            2
        } else {
            0
        };
        assert_eq!(left.code(), Some(code), "{variables:?}: {}", left.errors);
        for part in expected {
            assert!(left.out.contains(part), "{part} in {}", left.out);
        }
        let warned = expected[0].starts_with("# warning: ORD");
        assert_eq!(left.out.contains("has no effect"), warned, "{}", left.out);
        assert!(!left.out.contains("s3cret"), "{}", left.out);
        assert!(!left.out.contains("path = \" \""), "{}", left.out);
    }
    for (name, expected) in [
        (
            "ORDGATE_LISTEN",
            "ORDGATE_LISTEN has \"nonsense\", as one of several separated by commas; allowed is an address and a port",
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

#[test]
fn the_schema_has_the_documentation_and_the_default_of_each_key() {
    let left = Process::run(&["schema"], &[]);
    assert_eq!(left.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_str(&left.out).unwrap();
    let file = schema["properties"].as_object().unwrap();
    assert!(file.len() > 8, "{:?}", file.keys());
    let mut defaults = 0;
    for (table, schema) in file {
        let keys = schema["properties"].as_object().into_iter().flatten();
        for (key, schema) in keys.filter(|(_, schema)| schema.is_object()) {
            assert!(schema["description"].is_string(), "{table}.{key}");
            defaults += usize::from(!schema["default"].is_null());
        }
    }
    assert!(defaults > 30, "{defaults}");
    let burst = &file["limit"]["properties"]["burst"];
    assert_eq!(burst["default"], 3000);
}

#[tokio::test]
async fn the_access_log_has_a_line_for_each_request() {
    let upstream = Upstream::start();
    let (_held, path) = file("[log]\nformat = \"json\"\n[log.access]\nenabled = true\n");
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    let mut client = Client::connect(public).await;
    let mut ids = Vec::new();
    for target in [TOKEN, TOKEN, "/nowhere"] {
        ids.push(client.get(target).await.must("x-request-id").to_owned());
    }
    client.send(format!("GET {TOKEN} HTTP/1.0\r\n\r\n")).await;
    ids.push(client.answer("GET").await.must("x-request-id").to_owned());
    drop(client);
    let mut http2 = FrameClient::connect(public).await;
    // h2 drops a fragment, which HTTP/1.1 refuses: nothing else sees it.
    for (stream, target) in [(1, TOKEN), (3, BLOCK)] {
        let target = format!("{target}#fragment");
        http2.send(&request(stream, &target, &[])).await;
        let outcome = http2.outcome(stream).await;
        assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
    }
    drop(http2);
    process.signal(Signal::TERM);
    let left = process.wait();
    let lines: Vec<serde_json::Value> = left
        .errors
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .filter(|line: &serde_json::Value| line["target"] == "ordgate::access")
        .collect();
    assert_eq!(lines.len(), 6, "{}", left.errors);
    assert!(!left.errors.contains("fragment"), "{}", left.errors);
    let targets = upstream.targets().concat();
    assert!(!targets.contains('#'), "{targets}");
    let all = |field: &str| -> Vec<_> { lines.iter().map(|line| line[field].clone()).collect() };
    assert_eq!(
        all("cache"),
        ["miss", "hit", "refused", "hit", "hit", "miss"]
    );
    assert_eq!(all("version"), ["1.1", "1.1", "1.1", "1.0", "2", "2"]);
    for (line, id) in lines.iter().zip(ids) {
        assert_eq!(line["request_id"], *id, "{line}");
        assert_eq!(line["client"], "127.0.0.1", "{line}");
        assert!(line["duration_us"].is_u64(), "{line}");
        assert!(line["bytes"].as_u64().unwrap() > 0, "{line}");
    }
    assert_eq!(lines[0]["key"], lines[1]["key"]);
    assert_eq!(lines[0]["route"], "brc20-token");
    assert_eq!(lines[2]["status"], 404);
    assert_eq!(lines[2]["reason"], "no_route");
    let paths = [TOKEN, TOKEN, "/nowhere", TOKEN, TOKEN, BLOCK];
    for (line, path) in lines.iter().zip(paths) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        assert_eq!(line["path"], path, "{line}");
        assert_eq!(line["query"].as_str().unwrap_or(""), query, "{line}");
    }
}
