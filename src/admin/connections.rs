//! The connections of the admin listener: how many may be open, and which one is
//! closed for a new one.
//!
//! A new connection is always accepted, so that a probe of `/healthz` or a purge
//! is served whatever other clients do. If there are too many, one of the client
//! with the most connections is closed: the least recently used.

mod timed;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) use timed::Timed;
use tokio::task::AbortHandle;

use crate::identify::Client;

/// When a connection was last used, as a position among all uses of all
/// connections.
#[derive(Clone)]
pub(super) struct Use {
    last: Arc<AtomicU64>,
    uses: Arc<AtomicU64>,
}

impl Use {
    /// Notes that a request of it begins, or has been answered.
    pub(super) fn touch(&self) {
        self.last.store(self.uses.fetch_add(1, Relaxed), Relaxed);
    }
}

/// The open connections.
pub(super) struct Connections {
    most: usize,
    open: Vec<Open>,
    uses: Arc<AtomicU64>,
}

struct Open {
    client: Client,
    last: Arc<AtomicU64>,
    task: Option<AbortHandle>,
}

impl Connections {
    /// No connections yet, and at most `most`.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Vec::with_capacity(most),
            uses: Arc::default(),
        }
    }

    /// Adds a new connection of a client. Where the limit is reached, another one
    /// is closed.
    pub(super) fn admit(&mut self, client: Client) -> Use {
        let is_open = |open: &Open| open.task.as_ref().is_none_or(|task| !task.is_finished());
        self.open.retain(is_open);
        if self.open.len() >= self.most
            && let Some(place) = self.victim(client)
        {
            let victim = self.open.swap_remove(place);
            if let Some(task) = victim.task {
                task.abort();
            }
        }
        let now = self.uses.fetch_add(1, Relaxed);
        let last = Arc::new(AtomicU64::new(now));
        self.open.push(Open {
            client,
            last: last.clone(),
            task: None,
        });
        Use {
            last,
            uses: self.uses.clone(),
        }
    }

    /// Sets the task that serves the connection added last.
    pub(super) fn serves(&mut self, task: AbortHandle) {
        if let Some(open) = self.open.last_mut() {
            open.task = Some(task);
        }
    }

    /// The connection to close for a new one of a client.
    fn victim(&self, new: Client) -> Option<usize> {
        let of = |client: Client| {
            let own = self.open.iter().filter(|open| open.client == client);
            own.count() + usize::from(client == new)
        };
        let ranked = self.open.iter().enumerate().map(|(place, open)| {
            let most_first = Reverse(of(open.client));
            (most_first, open.last.load(Relaxed), place)
        });
        ranked.min().map(|(_, _, place)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Client = Client::V4(1);
    const OTHER: Client = Client::V4(2);

    /// How many connections each client has.
    fn clients(connections: &Connections) -> [usize; 2] {
        [ONE, OTHER].map(|client| {
            let own = connections.open.iter().filter(|open| open.client == client);
            own.count()
        })
    }

    #[test]
    fn a_connection_of_the_client_with_the_most_is_closed() {
        let mut connections = Connections::new(4);
        let honest = connections.admit(OTHER);
        for _ in 0..100 {
            connections.admit(ONE);
        }
        assert_eq!(clients(&connections), [3, 1]);
        honest.touch();
        for _ in 0..100 {
            connections.admit(OTHER);
        }
        assert_eq!(clients(&connections), [2, 2]);
    }

    #[test]
    fn the_least_recently_used_connection_is_closed() {
        let mut connections = Connections::new(3);
        let used: Vec<_> = (0..3).map(|_| connections.admit(ONE)).collect();
        let is_open = |connections: &Connections, of: &Use| {
            let mut open = connections.open.iter();
            open.any(|open| Arc::ptr_eq(&open.last, &of.last))
        };
        used[0].touch();
        for place in [1, 2, 0] {
            assert!(is_open(&connections, &used[place]), "{place}");
            let new = connections.admit(ONE);
            assert!(!is_open(&connections, &used[place]), "{place}");
            assert!(is_open(&connections, &new), "a new one is always accepted");
        }
        assert_eq!(connections.open.len(), 3);
    }
}
