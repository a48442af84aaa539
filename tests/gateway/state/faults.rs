//! A full disk, and a kill. What a directory must be like is in `state::tests`.

use rustix::process::Signal;

use super::is_from_disk;
use crate::chain::block;
use crate::support::process::Process;
use crate::support::{Client, within};

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
