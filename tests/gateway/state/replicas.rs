//! Replicas share one budget: the upstream counts by its own clock, and never more than
//! that, also while replicas are killed and others take their places.

use std::net::SocketAddr;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::kills::{busiest, counting, flood};
use crate::support::{Client, Process, Upstream, until};

const PER_SECOND: usize = 20;

/// A replica under a flood of misses.
struct Replica {
    process: Process,
    admin: SocketAddr,
    clients: Vec<JoinHandle<()>>,
}

impl Replica {
    /// Starts it, perhaps with a state directory. Its requests begin with `prefix`.
    fn start(file: &Path, state: Option<&Path>, prefix: &'static str, seed: u64) -> Self {
        let file = file.display().to_string();
        let state = state.map(|path| path.display().to_string());
        let mut arguments = vec!["--config", &file];
        if let Some(state) = &state {
            arguments.extend(["--state", state]);
        }
        let keys = [("ORDGATE_API_KEYS", "one-key")];
        let (process, public, admin) = Process::serve(&arguments, &keys);
        let clients = (0..4).map(|client| tokio::spawn(flood(public, prefix, seed << 8 | client)));
        Self {
            process,
            admin,
            clients: clients.collect(),
        }
    }

    /// Kills it, and returns what it has logged.
    async fn kill(self) -> String {
        self.process.signal(Signal::KILL);
        let left = self.process.wait();
        for client in self.clients {
            client.await.unwrap();
        }
        left.errors
    }
}

/// Waits until this many more requests with a prefix have arrived.
async fn more(upstream: &Upstream, prefix: &str, requests: usize) {
    let line = format!("GET {prefix}/");
    let count = || {
        let seen = upstream.seen();
        let own = seen
            .iter()
            .filter(|seen| seen.raw.starts_with(line.as_bytes()));
        own.count()
    };
    let before = count();
    until("more requests", || count() >= before + requests).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_killed_and_replaced_hold_one_budget() {
    let upstream = counting(3);
    let directory = tempfile::tempdir().unwrap();
    let [file, one, other] = ["proxy.toml", "one", "other"].map(|name| directory.path().join(name));
    let text = format!(
        r#"
        limit.enabled = false
        admin.ready_needs_tips = false
        upstream.url = "{}"
        upstream.requests_per_minute = "unlimited"
        upstream.requests_per_second = {PER_SECOND}
        upstream.queue_timeout = "500ms"
        shared.replicas = 2
        [[route]]
        name = "all"
        path = "/{{part}}/{{id}}"
        params.part = {{ type = "string" }}
        params.id = {{ type = "string" }}
        cache = {{ mode = "off" }}
        "#,
        upstream.url(),
    );
    std::fs::write(&file, text).unwrap();
    let requests = PER_SECOND;
    let first = Replica::start(&file, Some(&one), "first", 1);
    let second = Replica::start(&file, None, "second", 2);
    more(&upstream, "/first", requests).await;
    more(&upstream, "/second", requests).await;
    let status = Client::connect(first.admin).await.get("/status").await;
    let status: Value = status.json();
    let shared = &status["shared"];
    assert_eq!(shared["replicas"], 2, "{shared}");
    assert_eq!(shared["keys"][0]["floor"]["second"], 10, "{shared}");
    assert_eq!(shared["keys"][0]["budget"]["second"], 20, "{shared}");
    // Again with its directory, which says all since its first start.
    let log = first.kill().await;
    assert!(log.contains("none has used this state directory"), "{log}");
    let first = Replica::start(&file, Some(&one), "first", 3);
    more(&upstream, "/first", requests).await;
    // In a new one, and without one in place of one that had none.
    let log = first.kill().await;
    assert!(log.contains("an earlier start did not know it"), "{log}");
    let first = Replica::start(&file, Some(&other), "first", 4);
    let log = second.kill().await;
    assert!(log.contains("this one has no state directory"), "{log}");
    let second = Replica::start(&file, None, "second", 5);
    more(&upstream, "/first", requests).await;
    more(&upstream, "/second", requests).await;
    let logs = [first.kill().await, second.kill().await];
    assert!(logs.iter().all(|log| log.contains("is not known")));
    let most = busiest(&upstream, 1);
    assert!(most <= PER_SECOND, "{most} in a second");
    // The replicas together use what each has a half of.
    assert!(most > PER_SECOND / 2, "{most} in a second");
}
