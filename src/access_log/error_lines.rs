//! Bounds the lines for one client's errors, where the access log is sampled: they always
//! have a line, so a client could otherwise fill the log with its refusals.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::clock::Moment;
use crate::identify::Client;
use crate::sync::lock;

/// The most lines for the errors of one client in a second.
pub(super) const MOST_LINES: u32 = 20;
/// The most clients that are counted apart in a second. Those that come later share
/// [`MOST_LINES`], so that many addresses take no more memory and few more lines.
const MOST_CLIENTS: usize = 4096;

/// How many lines each client had in the present second.
#[derive(Debug, Default)]
pub(super) struct ErrorLines(Mutex<ThisSecond>);

#[derive(Debug, Default)]
struct ThisSecond {
    /// Since the clock began.
    second: u64,
    lines: HashMap<Client, u32>,
    /// Of the clients that are not counted apart.
    others: u32,
}

impl ErrorLines {
    /// Whether a client may have one more line. Counts it.
    pub(super) fn admit(&self, client: Client, now: Moment) -> bool {
        let mut this = lock(&self.0);
        let second = now.nanos() / 1_000_000_000;
        if second != this.second {
            this.second = second;
            this.lines.clear();
            this.others = 0;
        }
        let is_full = this.lines.len() >= MOST_CLIENTS;
        let lines = match is_full && !this.lines.contains_key(&client) {
            true => &mut this.others,
            false => this.lines.entry(client).or_default(),
        };
        *lines = lines.saturating_add(1);
        *lines <= MOST_LINES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_flood_of_one_client_leaves_the_lines_of_others() {
        let clock = Clock::manual();
        let lines = ErrorLines::default();
        let count = |client, times| {
            let now = clock.now();
            let admitted = (0..times).filter(|_| lines.admit(Client::V4(client), now));
            admitted.count()
        };
        assert_eq!(count(66, 5000), 20, "the hostile client");
        assert_eq!(count(7, 20), 20, "the honest one");
        clock.advance(Duration::from_secs(1));
        assert_eq!(count(66, 1), 1, "a second later");
        // Many addresses, and then one more client: it shares the lines of the rest.
        for client in 1000..6000 {
            count(client, 1);
        }
        assert!(lock(&lines.0).lines.len() <= MOST_CLIENTS);
        assert_eq!(count(7000, 20), 0);
        assert_eq!(count(66, 19), 19, "it was counted before");
        clock.advance(Duration::from_secs(1));
        assert_eq!(count(7000, 20), 20);
    }
}
