//! What providers have asked for outlives the process: a key in cooldown, or whose quota is
//! spent, is not used after a kill and a restart.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::faults::started;
use crate::support::upstream::Reply;
use crate::support::{Client, Upstream, until};

/// Whether the journal has something beside what was spent: the end of some page.
fn has_restrictions(directory: &Path) -> bool {
    let bytes = fs::read(directory.join("spent")).unwrap_or_default();
    let mut pages = bytes.chunks_exact(4096).skip(1);
    pages.any(|page| page[2640..3920].iter().any(|byte| *byte != 0))
}

#[tokio::test]
async fn a_key_that_is_not_to_be_used_is_not_used_after_a_kill_and_a_restart() {
    let rows = [
        (429, "retry-after: 50\r\n", "cooling"),
        (429, "retry-after: 7200\r\n", "quota-spent"),
        (
            200,
            "ratelimit-remaining: 0\r\nratelimit-reset: 50\r\n",
            "ready",
        ),
    ];
    for (status, fields, state) in rows {
        let upstream = Upstream::start();
        upstream.always(Reply::with(status, fields, "{}"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        let (process, public, _, _file) = started(&upstream, &path, None);
        Client::connect(public).await.get("/any").await;
        let sent = upstream.count();
        assert!(sent > 0);
        until("it is written", || has_restrictions(directory.path())).await;
        process.signal(Signal::KILL);
        process.wait();
        // Twice: the next process tells the one after it.
        for _ in 0..2 {
            let (process, public, admin, _file) = started(&upstream, &path, None);
            let answer = Client::connect(public).await.get("/any").await;
            assert_eq!(answer.status, 503, "{fields}");
            let told = Client::connect(admin).await.get("/status").await.json();
            let key = &told["upstream"]["keys"][0];
            assert_eq!(key["state"], state, "{fields} {key}");
            process.signal(Signal::KILL);
            process.wait();
        }
        assert_eq!(upstream.count(), sent, "{fields}");
    }
}
