//! Counts the open connections of each client.
//!
//! A client has an entry only while it has a connection, so
//! `server.max_connections` bounds the table. It is locked when a connection is
//! accepted and when it ends, never for a request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::quality::RandomState;

use crate::identify::Client;
use crate::sync::lock;

/// The number of open connections of each client.
#[derive(Default)]
pub(super) struct ClientConnections(Mutex<HashMap<Client, u32, RandomState>>);

/// Counts a connection of a client until it is dropped.
pub(super) struct CountedConnection {
    clients: Arc<ClientConnections>,
    client: Client,
}

impl ClientConnections {
    /// Counts one more connection of a client; `None` where it already has `limit`
    /// of them.
    pub(super) fn admit(self: &Arc<Self>, client: Client, limit: u32) -> Option<CountedConnection> {
        let mut open = self.open();
        let count = open.get(&client).copied().unwrap_or(0);
        if count >= limit {
            return None;
        }
        open.insert(client, count + 1);
        drop(open);
        Some(CountedConnection {
            clients: self.clone(),
            client,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Client, u32, RandomState>> {
        lock(&self.0)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut open = self.clients.open();
        if let Entry::Occupied(mut entry) = open.entry(self.client) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_count_and_unused_entries_are_removed() {
        let clients = Arc::new(ClientConnections::default());
        let (one, other) = (Client::V4(1), Client::V6(2));
        let first = clients.admit(one, 2);
        let second = clients.admit(one, 2);
        assert!(first.is_some() && second.is_some());
        assert!(clients.admit(one, 2).is_none(), "over the limit");
        let third = clients.admit(one, 3);
        assert!(third.is_some(), "the limit after a reload");
        let others = clients.admit(other, 2);
        assert!(others.is_some(), "another client");
        drop((first, third));
        let again = clients.admit(one, 2);
        assert!(again.is_some(), "two connections have ended");
        assert_eq!(clients.open().len(), 2);
        drop((second, again, others));
        assert!(clients.open().is_empty());
        assert!(clients.admit(one, 0).is_none());
        assert!(
            clients.open().is_empty(),
            "a refused client leaves no entry"
        );
    }
}
