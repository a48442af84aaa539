//! What this process takes, as Linux says it.

use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// At one moment.
#[derive(Debug)]
pub(crate) struct Process {
    /// Bytes of memory.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Threads that servers have started.
    pub(crate) of_servers: usize,
}

/// How long what is left over may take to go: sockets and threads end a little
/// after what has used them.
const PATIENCE: Duration = Duration::from_secs(15);

impl Process {
    pub(crate) fn now() -> Self {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        let threads = fs::read_dir("/proc/self/task").unwrap();
        // One that has ended meanwhile has no name any more.
        let names: Vec<_> = threads
            .map(|thread| thread.unwrap().path().join("comm"))
            .filter_map(|path| fs::read_to_string(path).ok())
            .collect();
        let of_servers = names.iter().filter(|name| name.starts_with("ordgate-"));
        Self {
            resident: pages * rustix::param::page_size() as u64,
            // The listing itself is one.
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count() - 1,
            threads: names.len(),
            of_servers: of_servers.count(),
        }
    }

    /// Waits until the process takes no more than it did before; answers how it
    /// is after that, or when it has been waited for long enough.
    pub(crate) async fn back_to(before: &Self) -> Self {
        let began = Instant::now();
        loop {
            let now = Self::now();
            let back = now.descriptors <= before.descriptors
                && now.threads <= before.threads
                && now.of_servers == 0;
            if back || began.elapsed() > PATIENCE {
                return now;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
