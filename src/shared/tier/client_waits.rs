//! How many requests wait at once, in all and of each client.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::identify::Client;
use crate::sync::lock;

/// Whose request waits; `None` for a request of ordgate's own.
pub(super) type Waiting = Option<Client>;

/// The requests that wait for one thing.
#[derive(Debug)]
pub(super) struct ClientWaits {
    /// The most in all.
    most: usize,
    /// The most of each client.
    most_of_client: usize,
    counts: Mutex<WaitCounts>,
}

#[derive(Debug, Default)]
struct WaitCounts {
    all: usize,
    /// Only of those that wait: it is no longer than `most`.
    by_client: HashMap<Waiting, usize>,
}

/// A request that waits, for as long as this exists.
#[derive(Debug)]
pub(super) struct ClientWait<'w> {
    waits: &'w ClientWaits,
    client: Waiting,
}

impl ClientWaits {
    /// With these bounds, in all and of each client.
    pub(super) fn new(most: usize, most_of_client: usize) -> Self {
        Self {
            most,
            most_of_client,
            counts: Mutex::default(),
        }
    }

    /// Adds a request of a client; `None` if too many wait.
    pub(super) fn begin(&self, client: Waiting) -> Option<ClientWait<'_>> {
        let mut counts = lock(&self.counts);
        let own = counts.by_client.get(&client).copied().unwrap_or(0);
        if counts.all >= self.most || own >= self.most_of_client {
            return None;
        }
        counts.all += 1;
        counts.by_client.insert(client, own + 1);
        drop(counts);
        Some(ClientWait {
            waits: self,
            client,
        })
    }
}

impl Drop for ClientWait<'_> {
    fn drop(&mut self) {
        let counts = &mut *lock(&self.waits.counts);
        counts.all -= 1;
        if let Some(own) = counts.by_client.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                counts.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_for_others_and_all_together_are_bounded() {
        let waits = ClientWaits::new(5, 2);
        let client = |number| Some(Client::V4(number));
        let begin = |number| waits.begin(client(number));
        let hostile: Vec<_> = (0..9).filter_map(|_| begin(1)).collect();
        assert_eq!(hostile.len(), 2, "of each client");
        let honest = [begin(2), begin(2), waits.begin(None)];
        assert!(honest.iter().all(Option::is_some));
        assert!(begin(3).is_none(), "in all");
        drop(hostile);
        assert!(begin(3).is_some() && begin(1).is_some());
        drop(honest);
        let counts = lock(&waits.counts);
        assert!(counts.all == 0 && counts.by_client.is_empty(), "{counts:?}");
    }
}
