//! State directories that cannot be used, databases that are damaged, and kills.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use super::{Ground, is_from_disk};
use crate::chain::block;
use crate::support::process::Process;
use crate::support::{Client, until, within};

#[tokio::test]
async fn a_damaged_database_is_no_error_of_a_client() {
    let ground = Ground::timed();
    let mut gateway = ground.start().await;
    for damaged in [64, usize::MAX] {
        gateway.get("/timed/a").await;
        gateway.end().await;
        let path = ground.path().join("answers.db");
        let log = ground.path().join("answers.db-wal");
        until("the database is closed", || !log.exists()).await;
        let mut bytes = fs::read(&path).unwrap();
        let most = bytes.len();
        bytes[..damaged.min(most)].fill(0x55);
        fs::write(&path, &bytes).unwrap();
        gateway = ground.start().await;
        let answer = gateway.get("/timed/a").await;
        assert_eq!(answer.status, 200);
        assert!(!is_from_disk(&answer), "{}", answer.must("cache-status"));
    }
    let gateway = ground.restart(gateway).await;
    assert!(is_from_disk(&gateway.get("/timed/a").await));
}

#[tokio::test]
async fn a_directory_that_others_can_read_or_use_is_refused() {
    let ground = Ground::timed();
    let path = &ground.path();
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let error = ground.setup().try_start().err().unwrap().to_string();
    assert!(error.contains("chmod go="), "{error}");
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    let first = ground.start().await;
    let setup = ground.setup();
    let second = tokio::task::spawn_blocking(|| setup.try_start().err().map(|e| e.to_string()));
    let error = second.await.unwrap().unwrap();
    assert!(error.contains("in use by another process"), "{error}");
    first.end().await;
    let _free = ground.start().await;
}

#[tokio::test]
async fn a_disk_that_is_full_is_no_error_of_a_client() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state").display().to_string();
    let own = ["serve", "--sandbox", "--state", &state];
    let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    // 64 KiB for each file.
    let process = Process::start_on_full_disk(128, &[&own[..], &ports].concat());
    let (public, admin) = process.ready();
    let mut operator = Client::connect(admin).await;
    let mut client = Client::connect(public).await;
    let mut height = 840_150;
    within("the database is given up", async {
        loop {
            let answer = client.get(&block(height)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            height -= 1;
            let status = operator.get("/status").await.json();
            if !status["state_directory"]["answers"]["fault"].is_null() {
                break;
            }
        }
    })
    .await;
    assert_eq!(client.get(&block(840_150)).await.status, 200);
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn what_is_on_disk_survives_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state").display().to_string();
    let arguments = ["--sandbox", "--state", &state];
    let (mut process, public, admin) = Process::serve(&arguments, &[]);
    let target = block(840_100);
    let first = Client::connect(public).await.get(&target).await;
    let mut operator = Client::connect(admin).await;
    let explain = format!("/explain?url={target}");
    within("it is on disk", async {
        while operator.get(&explain).await.json()["on_disk"] != true {}
    })
    .await;
    process.signal(Signal::KILL);
    process.reap();
    let (_process, public, _) = Process::serve(&arguments, &[]);
    let again = Client::connect(public).await.get(&target).await;
    assert_eq!(again.body, first.body);
    assert_eq!(again.field("etag"), first.field("etag"));
    let status = again.must("cache-status");
    assert!(is_from_disk(&again), "{status}");
}
