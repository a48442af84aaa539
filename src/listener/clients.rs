//! How many connections each client has open.
//!
//! The table has an entry for a client only as long as it has a connection, so
//! `server.max_connections` bounds it. It is looked at when a connection begins
//! and when it ends, never for a request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;

use crate::identify::Client;

/// The open connections of every client.
#[derive(Default)]
pub(super) struct Clients(Mutex<HashMap<Client, u32, RandomState>>);

/// A connection of a client, counted until this is dropped.
pub(super) struct Counted {
    clients: Arc<Clients>,
    client: Client,
}

impl Clients {
    /// Counts one more connection of a client; `None` where it has as many as it
    /// may.
    pub(super) fn admit(self: &Arc<Self>, client: Client, most: u32) -> Option<Counted> {
        let mut open = self.open();
        let count = open.get(&client).copied().unwrap_or(0);
        if count >= most {
            return None;
        }
        open.insert(client, count + 1);
        drop(open);
        Some(Counted {
            clients: self.clone(),
            client,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Client, u32, RandomState>> {
        // It is whole after each of its operations.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
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
    fn each_client_has_its_own_connections_and_the_table_forgets() {
        let clients = Arc::new(Clients::default());
        let (one, other) = (Client::V4(1), Client::V6(2));
        let first = clients.admit(one, 2);
        let second = clients.admit(one, 2);
        assert!(first.is_some() && second.is_some());
        assert!(clients.admit(one, 2).is_none(), "one more than it may have");
        let third = clients.admit(one, 3);
        assert!(third.is_some(), "a reload allows more");
        let others = clients.admit(other, 2);
        assert!(others.is_some(), "another client");
        drop((first, third));
        let again = clients.admit(one, 2);
        assert!(again.is_some(), "two have ended");
        assert_eq!(clients.open().len(), 2);
        drop((second, again, others));
        assert!(clients.open().is_empty());
        assert!(clients.admit(one, 0).is_none());
        assert!(clients.open().is_empty(), "who is refused leaves nothing");
    }
}
