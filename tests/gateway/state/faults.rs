//! A full disk. A kill, and what a directory must be like is in `state::tests`.

use rustix::process::Signal;

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
