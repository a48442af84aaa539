//! How much waits at once, in all and of each client: requests, or the bytes that they hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::identify::Client;
use crate::sync::lock;

/// Whose request waits; `None` for a request of ordgate's own.
pub(super) type Waiting = Option<Client>;

/// The requests that wait for one thing. Each has a size: 1, or its bytes.
#[derive(Debug)]
pub(super) struct ClientWaits {
    /// The largest sum in all.
    most: usize,
    /// The largest sum of each client.
    most_of_client: usize,
    counts: Mutex<WaitCounts>,
}

#[derive(Debug, Default)]
struct WaitCounts {
    all: usize,
    /// Only of those that wait: it has no more entries than `most`.
    by_client: HashMap<Waiting, usize>,
}

/// A request that waits, for as long as this exists.
#[derive(Debug)]
pub(super) struct ClientWait {
    waits: Arc<ClientWaits>,
    client: Waiting,
    size: usize,
}

impl ClientWaits {
    /// With these bounds, in all and of each client.
    pub(super) fn new(most: usize, most_of_client: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_client,
            counts: Mutex::default(),
        })
    }

    /// Adds a request of a client; `None` if too much waits.
    pub(super) fn begin(self: &Arc<Self>, client: Waiting, size: usize) -> Option<ClientWait> {
        let mut counts = lock(&self.counts);
        let own = counts.by_client.get(&client).copied().unwrap_or(0);
        let (all, own) = (counts.all + size, own + size);
        if all > self.most || own > self.most_of_client {
            return None;
        }
        counts.all = all;
        counts.by_client.insert(client, own);
        drop(counts);
        Some(ClientWait {
            waits: self.clone(),
            client,
            size,
        })
    }
}

impl Drop for ClientWait {
    fn drop(&mut self) {
        let counts = &mut *lock(&self.waits.counts);
        counts.all -= self.size;
        if let Some(own) = counts.by_client.get_mut(&self.client) {
            *own -= self.size;
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
        let begin = |number| waits.begin(client(number), 1);
        let hostile: Vec<_> = (0..9).filter_map(|_| begin(1)).collect();
        assert_eq!(hostile.len(), 2, "of each client");
        let honest = [begin(2), begin(2), waits.begin(None, 1)];
        assert!(honest.iter().all(Option::is_some));
        assert!(begin(3).is_none(), "in all");
        drop(hostile);
        assert!(begin(3).is_some() && begin(1).is_some());
        drop(honest);
        let counts = lock(&waits.counts);
        assert!(counts.all == 0 && counts.by_client.is_empty(), "{counts:?}");
    }

    #[test]
    fn what_requests_hold_is_bounded_by_its_bytes() {
        let waits = ClientWaits::new(100, 40);
        let begin = |number, size| waits.begin(Some(Client::V4(number)), size);
        let hostile = [begin(1, 30), begin(1, 10)];
        assert!(hostile.iter().all(Option::is_some));
        assert!(begin(1, 1).is_none(), "of each client");
        let honest = [begin(2, 40), begin(3, 20)];
        assert!(honest.iter().all(Option::is_some));
        assert!(begin(4, 1).is_none(), "in all");
        drop(hostile);
        assert!(begin(4, 40).is_some() && begin(1, 40).is_some());
        drop(honest);
        let counts = lock(&waits.counts);
        assert!(counts.all == 0 && counts.by_client.is_empty(), "{counts:?}");
    }
}
