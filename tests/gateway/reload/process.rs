//! Reloads of a process: by signal, of its files.

use std::io::Write;

use rustix::process::Signal;

use super::route;
use crate::support::upstream::usual_body;
use crate::support::{Client, Process, ROUTES, TOKEN, Upstream, until};

fn write(file: &tempfile::NamedTempFile, text: &str) {
    std::fs::write(file.path(), text).unwrap();
}

#[tokio::test]
async fn sighup_reloads_a_process() {
    let upstream = Upstream::start();
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    keys.write_all(b"first-s3cret\n").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let config = |more: &str| {
        let keys = keys.path().display();
        format!(
            "builtin_routes = {}\n[upstream]\napi_keys_file = \"{keys}\"\nurl = \"http://127.0.0.1:1\"\n{more}",
            more.is_empty()
        )
    };
    write(&file, &config(""));
    let (process, public, admin) = Process::before(&upstream, &["--config", &path], &[]);
    let mut client = Client::connect(public).await;
    assert_eq!(client.get(TOKEN).await.status, 200);
    let logged = async |text: &str, times: usize| {
        let what = format!("the log says \"{text}\"");
        until(&what, || process.errors().matches(text).count() >= times).await;
    };
    write(
        &file,
        &config(&(ROUTES.to_owned() + &route("a", "/one", ""))),
    );
    write(&keys, "second-s3cret\n");
    process.signal(Signal::HUP);
    logged("reloaded: the new", 1).await;
    let answer = client.get("/a").await;
    assert_eq!(answer.text(), usual_body("/one"), "flags override yet");
    let key = upstream.seen().last().unwrap().field("x-api-key");
    assert_eq!(key.as_deref(), Some("second-s3cret"));
    write(&file, &config("retries = 3\n"));
    process.signal(Signal::HUP);
    logged(&format!("{path}:5:1: unknown field `retries`"), 1).await;
    write(&file, &config(""));
    write(&keys, "n\u{f6}\n");
    process.signal(Signal::HUP);
    logged("API key number 1 is not allowed", 1).await;
    std::fs::remove_file(file.path()).unwrap();
    process.signal(Signal::HUP);
    logged(&format!("cannot read {path}"), 1).await;
    let status = Client::connect(admin).await.get("/status").await.json();
    assert_eq!(
        (&status["reload"]["done"], &status["reload"]["refused"]),
        (&1.into(), &3.into())
    );
    assert_eq!(
        client.get("/a").await.status,
        200,
        "the last good one goes on"
    );
    assert!(!process.errors().contains("s3cret"));
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn the_admin_token_is_read_again() {
    let token = tempfile::NamedTempFile::new().unwrap();
    write(&token, "first-token\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    write(
        &file,
        &format!("[admin]\ntoken_file = \"{}\"\n", token.path().display()),
    );
    let path = file.path().display().to_string();
    let (_process, _, admin) = Process::serve(&["--sandbox", "--config", &path], &[]);
    let ask = async |method: &str, target: &str, token: &str| {
        let value = format!("Bearer {token}");
        let mut client = Client::connect(admin).await;
        let fields = [("authorization", &*value)];
        client.request(method, target, &fields).await.status
    };
    assert_eq!(ask("POST", "/reload", "second-token").await, 401);
    write(&token, "second-token\n");
    assert_eq!(ask("POST", "/reload", "first-token").await, 200);
    assert_eq!(ask("GET", "/status", "first-token").await, 401);
    assert_eq!(ask("GET", "/status", "second-token").await, 200);
    write(&token, "\n");
    assert_eq!(ask("POST", "/reload", "second-token").await, 422);
    assert_eq!(ask("GET", "/status", "second-token").await, 200);
}

/// Off loopback it needs a token, at the start and after each reload.
#[tokio::test]
async fn no_reload_takes_the_token_of_an_admin_listener_off_loopback() {
    let token = tempfile::NamedTempFile::new().unwrap();
    write(&token, "a-token\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let with = |line: &str| write(&file, &format!("server.workers = 1\n{line}"));
    with(&format!(
        "admin.token_file = \"{}\"\n",
        token.path().display()
    ));
    let addresses = ["--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"];
    let arguments = [&["serve", "--sandbox", "--config", &path][..], &addresses].concat();
    let process = Process::start(&arguments, &[]);
    let (_, admin) = process.ready();
    let mut client = Client::connect(([127, 0, 0, 1], admin.port()).into()).await;
    let fields = [("authorization", "Bearer a-token")];
    with("");
    let refused = client.request("POST", "/reload", &fields).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(client.request("GET", "/status", &[]).await.status, 401);
}
