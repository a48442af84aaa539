//! Bounds the lines for refusals, where the access log is sampled: a client could otherwise
//! fill the log with them, since they need nothing of the upstream.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::clock::Moment;
use crate::identify::Client;
use crate::sync::lock;

/// The most lines for the refusals of one client in a second.
const MAX_CLIENT_LINES: u32 = 20;
/// The most lines for the refusals of all clients in a second; so these are also the most
/// clients in the table.
const MAX_LINES: u32 = 1000;
/// From so many lines on, only clients that have had none in that second get one.
const UNRESERVED_LINES: u32 = MAX_LINES / 2;

/// How many lines each client had in the present second.
#[derive(Debug, Default)]
pub(super) struct RefusalLines(Mutex<ThisSecond>);

#[derive(Debug, Default)]
struct ThisSecond {
    /// Since the clock began.
    second: u64,
    by_client: HashMap<Client, u32>,
    /// Of all clients.
    lines: u32,
}

impl RefusalLines {
    /// Whether a client may have one more line. Counts it.
    pub(super) fn admit(&self, client: Client, now: Moment) -> bool {
        let mut this = lock(&self.0);
        let second = now.nanos() / 1_000_000_000;
        // A request that another one has overtaken may come with the second before.
        if second > this.second {
            this.second = second;
            this.by_client.clear();
            this.lines = 0;
        }
        let own = this.by_client.get(&client).copied().unwrap_or(0);
        let most = match this.lines < UNRESERVED_LINES {
            true => MAX_CLIENT_LINES,
            false => 1,
        };
        if this.lines >= MAX_LINES || own >= most {
            return false;
        }
        this.by_client.insert(client, own + 1);
        this.lines += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_flood_leaves_lines_for_others_and_has_a_bound() {
        let clock = Clock::manual();
        let lines = RefusalLines::default();
        let count_at = |now, client, times| {
            let admitted = (0..times).filter(|_| lines.admit(Client::V4(client), now));
            admitted.count()
        };
        let count = |client, times| count_at(clock.now(), client, times);
        let before = clock.now();
        assert_eq!(count(66, 5000), 20, "the hostile client");
        assert_eq!(count(7, 20), 20, "the honest one");
        clock.advance(Duration::from_secs(1));
        assert_eq!(count(66, 5000), 20, "a second later");
        assert_eq!(count_at(before, 66, 1), 0, "a request that was overtaken");
        // So many more clients that half of all lines are used.
        for client in 1000..1024 {
            assert_eq!(count(client, 5000), 20);
        }
        assert_eq!(count(7, 20), 1, "of what is kept for others");
        assert_eq!(count(66, 1), 0);
        let many: usize = (2000..7000).map(|client| count(client, 2)).sum();
        assert_eq!(many, 499, "a bound for all");
        assert!(lock(&lines.0).by_client.len() <= MAX_LINES as usize);
        assert_eq!(count(8, 1), 0);
        clock.advance(Duration::from_secs(1));
        assert_eq!(count(8, 20), 20);
    }
}
