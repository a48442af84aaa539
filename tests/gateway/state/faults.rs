//! Faults of the state directory while ordgate runs: answers go on, and the operator
//! sees the fault in the log and in metrics.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Client, Process, Upstream, within};

/// Waits until a metric has a value.
async fn until(admin: SocketAddr, line: &str) {
    let mut client = Client::connect(admin).await;
    let seen = async {
        loop {
            let metrics = client.get("/metrics").await;
            if metrics.text().lines().any(|known| known == line) {
                return;
            }
        }
    };
    within(line, seen).await;
}

/// A route whose answers are not stored, so that each request goes to the upstream.
const CONFIG: &str = r#"
    admin.ready_needs_tips = false
    [[route]]
    name = "all"
    path = "/{rest:*}"
    params = {}
    query = "any"
    cache = { mode = "off" }
"#;

/// Starts the binary before an upstream, with this state directory.
pub(super) fn started(
    upstream: &Upstream,
    state: &str,
    before: Option<&str>,
) -> (Process, SocketAddr, SocketAddr, tempfile::NamedTempFile) {
    started_with(upstream, state, before, "")
}

/// The same with more settings of the upstream.
fn started_with(
    upstream: &Upstream,
    state: &str,
    before: Option<&str>,
    settings: &str,
) -> (Process, SocketAddr, SocketAddr, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = upstream.url();
    let config = format!("{CONFIG}\n[upstream]\nurl = \"{url}\"\n{settings}");
    fs::write(file.path(), config).unwrap();
    let path = file.path().display().to_string();
    let arguments = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--config",
        &path,
        "--state",
        state,
    ];
    let keys = [("ORDGATE_API_KEYS", "one-key")];
    let process = match before {
        None => Process::start(&arguments, &keys),
        Some(script) => Process::start_mounted(script, &arguments, &keys),
    };
    let (public, admin) = process.ready();
    (process, public, admin, file)
}

async fn answers(public: SocketAddr) {
    let answer = Client::connect(public).await.get("/any").await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn a_directory_removed_while_in_use_is_reported_and_answers_go_on() {
    let upstream = Upstream::start();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state");
    let state = path.display().to_string();
    let (process, public, admin, _file) = started(&upstream, &state, None);
    answers(public).await;
    until(admin, "ordgate_spend_journal_failing{} 0.0").await;
    // The file alone: it is written anew.
    fs::remove_file(path.join("spent")).unwrap();
    until(
        admin,
        "ordgate_spend_journal_failures_total{kind=\"error\"} 1",
    )
    .await;
    until(admin, "ordgate_spend_journal_failing{} 0.0").await;
    assert!(path.join("spent").exists());
    answers(public).await;
    let errors = process.errors();
    assert!(
        errors.contains("the spend journal cannot be written"),
        "{errors}"
    );
    assert!(
        errors.contains("the file was removed or replaced"),
        "{errors}"
    );
    assert!(
        errors.contains("is written again, and complete"),
        "{errors}"
    );
    // All of it: that is for the operator.
    fs::remove_dir_all(&path).unwrap();
    until(admin, "ordgate_spend_journal_failing{} 1.0").await;
    answers(public).await;
    let status = Client::connect(admin).await.get("/status").await.json();
    let journal = &status["state_directory"]["spend_journal"];
    assert_eq!(journal["status"], "failing", "{journal}");
    assert!(!path.exists());
}

/// Whether this machine lets a test mount a file system of its own.
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-rm", "true"]).status();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("not run: it needs `unshare -rm`");
    }
    can
}

#[tokio::test]
async fn a_full_disk_is_reported_and_answers_go_on() {
    if !can_mount() {
        return;
    }
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let script = format!("mount -t tmpfs -o size=64k,mode=700 none {state}");
    let (process, public, admin, _file) = started(&upstream, &state, Some(&script));
    until(admin, "ordgate_spend_journal_failing{} 1.0").await;
    for _ in 0..3 {
        answers(public).await;
    }
    let errors = process.errors();
    let line = "the spend journal cannot be written: requests are answered and sent as before";
    assert_eq!(errors.matches(line).count(), 1, "{errors}");
    assert!(errors.contains("No space left on device"), "{errors}");
    until(admin, "ordgate_spend_journal_unjournalled_total{} 3").await;
}

#[test]
fn a_directory_mounted_read_only_is_refused() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let script = format!("mount -t tmpfs -o ro,mode=700 none {state}");
    for command in ["check", "serve"] {
        let arguments = [
            command,
            "--sandbox",
            "--state",
            &state,
            "--listen",
            "127.0.0.1:0",
        ];
        let left = Process::start_mounted(&script, &arguments, &[]).wait();
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        let expected = format!(
            "ordgate: state.path {state}: it cannot be written: Read-only file system (os error 30); allowed is a directory in which ordgate can create files: its file system is mounted read-only; mount it writable, or name a directory on another one\n"
        );
        assert_eq!(left.errors, expected, "{command}");
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    // Only root can give a directory away.
    if std::os::unix::fs::chown(directory.path(), Some(54_321), None).is_err() {
        eprintln!("not run: it needs root");
        return;
    }
    let state = directory.path().display().to_string();
    for command in ["check", "serve"] {
        let left = Process::run(&[command, "--sandbox", "--state", &state], &[]);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        assert!(
            left.errors.contains("it belongs to user 54321"),
            "{}",
            left.errors
        );
    }
}

#[tokio::test]
async fn neither_a_process_beside_another_nor_the_next_one_spends_what_it_does_not_know() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let first = started(&upstream, &state, None);
    answers(first.1).await;
    let second = started(&upstream, &state, None);
    let refused = async |public: SocketAddr, because: &str| {
        let answer = Client::connect(public).await.get("/any").await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.text().contains(because), "{}", answer.text());
        let retry_after: u64 = answer.must("retry-after").parse().unwrap();
        assert!((30..=62).contains(&retry_after), "{retry_after}");
    };
    refused(second.1, "another process uses the state directory").await;
    // In this order: the second must not use the directory before its end.
    drop((second, first));
    let third = started(&upstream, &state, None);
    refused(third.1, "another process has spent without the journal").await;
    assert_eq!(upstream.count(), 1);
    drop(third);
    // What the third knows is in the journal.
    let fourth = started(&upstream, &state, None);
    refused(fourth.1, "an earlier start did not know it").await;
}

#[tokio::test]
async fn a_process_beside_another_spends_what_that_has_left_once_that_is_killed() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let few = "requests_per_minute = 5\nqueue_timeout = \"10ms\"\n";
    let start = || started_with(&upstream, &state, None, few);
    let first = start();
    for _ in 0..3 {
        answers(first.1).await;
    }
    let second = start();
    first.0.signal(Signal::KILL);
    drop(first);
    until(second.2, "ordgate_state_directory{status=\"open\"} 1.0").await;
    let statuses = async |public: SocketAddr| {
        let mut client = Client::connect(public).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(client.get("/any").await.status);
        }
        statuses
    };
    assert_eq!(statuses(second.1).await, [200, 200, 503, 503]);
    second.0.signal(Signal::KILL);
    drop(second);
    let third = start();
    assert_eq!(statuses(third.1).await, [503; 4]);
    assert_eq!(upstream.count(), 5);
}

#[tokio::test]
async fn a_damaged_journal_is_waited_out_and_readyz_says_so() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display().to_string();
    let (process, public, admin, file) = started(&upstream, &state, None);
    answers(public).await;
    until(admin, "ordgate_spend_journal_waiting_seconds{} 0.0").await;
    drop((process, file));
    fs::write(directory.path().join("spent"), "torn").unwrap();
    let before = upstream.count();
    let (process, public, admin, _file) = started(&upstream, &state, None);
    let answer = Client::connect(public).await.get("/any").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let retry_after: u64 = answer.must("retry-after").parse().unwrap();
    assert!((30..=62).contains(&retry_after), "{retry_after}");
    assert_eq!(upstream.count(), before);
    let status = Client::connect(admin).await.get("/status").await.json();
    let journal = &status["state_directory"]["spend_journal"];
    assert_eq!(
        journal["unknown_because"], "the journal is torn",
        "{journal}"
    );
    let errors = process.errors();
    let expected =
        "what the API keys had spent before the start is not known, since the journal is torn";
    assert!(errors.contains(expected), "{errors}");
}

#[tokio::test]
async fn a_lost_format_file_is_no_obstacle_to_a_start() {
    let upstream = Upstream::start();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state");
    let state = path.display().to_string();
    let stop = |process: Process| {
        process.signal(Signal::TERM);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        left.errors
    };
    let (process, ..) = started(&upstream, &state, None);
    stop(process);
    // Each of the two shows that the directory is ordgate's.
    for lost in [&["format"][..], &["format", "spent"]] {
        for name in lost {
            fs::remove_file(path.join(name)).unwrap();
        }
        let (process, _, admin, _file) = started(&upstream, &state, None);
        let status = Client::connect(admin).await.get("/status").await.json();
        let state = &status["state_directory"];
        assert_eq!(state["status"], "open", "{state}");
        let errors = stop(process);
        assert!(errors.contains("format file is missing"), "{errors}");
    }
}
