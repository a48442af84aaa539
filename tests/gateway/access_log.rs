//! The access log from outside: what has a line, what a line says, and that nobody waits
//! for whoever reads it.

use std::io::Read;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BLOCK, Client, Process, Reply, TOKEN, Upstream, token, within};

/// A file with these keys of the access log, and others after them.
fn file(keys: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy.toml");
    let builtin = !keys.contains("[[route]]");
    let text =
        format!("builtin_routes = {builtin}\n[log]\nformat = \"json\"\n[log.access]\n{keys}\n");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

/// The lines of the log with this target.
fn lines(errors: &str, target: &str) -> Vec<Value> {
    let lines = errors
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|line: &Value| line["target"] == target)
        .collect()
}

const ACCESS: &str = "ordgate::access";

#[tokio::test]
async fn lines_have_the_reason_and_the_trace_id() {
    let upstream = Upstream::start();
    let (_held, path) = file(
        r#"
        format = "log"
        [upstream]
        retry = false
        [[route]]
        name = "token"
        path = "/ordinals/v1/brc-20/tokens/{ticker}"
        params.ticker = { type = "ticker" }
        cache = { mode = "override", times = { 200 = "1ms" }, stale_if_error = "5m" }
        "#,
    );
    let flags = ["--config", &path];
    let (process, public, admin) = Process::before(&upstream, &flags, &[]);
    let mut client = Client::connect(public).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let fields = [("traceparent", &*parent)];
    let fetched = client.request("GET", TOKEN, &fields).await;
    assert_eq!(fetched.status, 200);
    upstream.always(Reply::status(500, "{}"));
    let answer = client.request("GET", &token(2), &fields).await;
    assert_eq!(answer.problem()["reason"], "server_error");
    within("the stored response is stale", async {
        loop {
            let answer = client.get(TOKEN).await;
            assert_eq!(answer.status, 200);
            if answer.must("cache-status").contains("stale-if-error") {
                return;
            }
        }
    })
    .await;
    drop(client);
    let status = Client::connect(admin).await.get("/status").await.json();
    let only = serde_json::json!({ "server_error": 1 });
    assert_eq!(status["refused"], only, "a stale answer is no refusal");
    process.signal(Signal::TERM);
    let left = process.wait();
    let failures = lines(&left.errors, "ordgate::upstream::endpoint");
    let of_trace = failures.iter().filter(|line| line["trace_id"] == trace);
    assert_eq!(of_trace.count(), 1, "{}", left.errors);
    let lines = lines(&left.errors, ACCESS);
    assert_eq!(lines[0]["reason"], Value::Null);
    assert!(lines[0]["upstream_us"].is_u64(), "{}", lines[0]);
    assert_eq!(lines[0]["trace_id"], trace);
    assert_eq!(lines[1]["reason"], "server_error", "{}", lines[1]);
    assert_eq!(lines[1]["status"], 502);
    let last = lines.last().unwrap();
    assert_eq!(last["trace_id"], Value::Null, "{last}");
    assert_eq!(last["cache"], "stale", "{last}");
    assert_eq!(last["reason"], "server_error", "{last}");
}

/// Its form stands in `access_log::tests`.
#[tokio::test]
async fn the_combined_format_goes_to_standard_output() {
    let upstream = Upstream::start();
    let (_held, path) = file("format = \"combined\"");
    let (process, public, _) = Process::before(&upstream, &["--config", &path], &[]);
    for target in [BLOCK, "/nowhere"] {
        Client::connect(public).await.get(target).await;
    }
    process.signal(Signal::TERM);
    let left = process.wait();
    assert!(lines(&left.errors, ACCESS).is_empty(), "{}", left.errors);
    let found = left
        .out
        .lines()
        .filter(|line| line.starts_with("127.0.0.1 - - ["));
    assert_eq!(found.count(), 2, "{}", left.out);
    left.printed(&format!("\"GET {BLOCK} HTTP/1.1\" 200 "));
    left.printed("\"GET /nowhere HTTP/1.1\" 404 ");
}

#[tokio::test]
async fn a_standard_error_that_nobody_reads_delays_no_request() {
    let upstream = Upstream::start();
    let (_held, path) = file("format = \"log\"\n[limit]\nenabled = false");
    let (mut errors, pipe) = std::io::pipe().unwrap();
    let flags = upstream.flags();
    let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    arguments.extend(["--config", &path]);
    arguments.extend(flags.iter().map(String::as_str));
    let process = Process::start_writing_to(pipe, &arguments);
    let (public, admin) = process.ready();
    // Longer than what the pipe and the queue take.
    let mut client = Client::connect(public).await;
    let target = format!("{TOKEN}?x={}", "y".repeat(1500));
    for _ in 0..5000 {
        assert_eq!(client.get(&target).await.status, 200);
    }
    let mut operator = Client::connect(admin).await;
    let dropped = operator.get("/status").await.json()["log_lines_dropped"].clone();
    assert!(dropped["stderr"].as_u64().unwrap() > 0, "{dropped}");
    assert_eq!(dropped["stdout"], 0);
    let metrics = operator.get("/metrics").await;
    let series = "ordgate_log_lines_dropped_total{output=\"stderr\"} ";
    let mut metrics = metrics.text().lines();
    let line = metrics.find(|line| line.starts_with(series)).unwrap();
    assert!(!line.ends_with(" 0"), "{line}");
    drop((client, operator));
    // It ends all the same.
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
    let mut text = String::new();
    errors.read_to_string(&mut text).unwrap();
    assert!(text.starts_with('{'), "{text}");
}
