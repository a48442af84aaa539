//! Response bodies that continue after their request has given back its slot
//! among the upstream's requests in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::identify::Client;
use crate::sync::lock;

/// The lingering bodies of one upstream, by client.
pub(super) struct Lingering {
    max: AtomicUsize,
    clients: Mutex<HashMap<Client, usize>>,
}

/// One lingering body. It is over when this is dropped.
pub(super) struct LingeringBody {
    list: Arc<Lingering>,
    client: Client,
}

/// How many bodies may linger for each request that may be in flight. The
/// upstream has already done their work.
const FOR_EACH_SLOT: usize = 8;

impl Lingering {
    /// None yet, for an upstream with a limit on requests in flight.
    pub(super) fn beside(in_flight: u32) -> Arc<Self> {
        Self::new(in_flight as usize * FOR_EACH_SLOT)
    }

    fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            clients: Mutex::default(),
        })
    }

    /// Adopts a new limit on requests in flight.
    pub(super) fn bound(&self, in_flight: u32) {
        self.max.store(in_flight as usize * FOR_EACH_SLOT, Relaxed);
    }

    /// Adds a body of a client, unless there is no room. One client may have a
    /// quarter of all, and at least one.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Option<LingeringBody> {
        let mut clients = lock(&self.clients);
        let all: usize = clients.values().sum();
        let own = clients.entry(client).or_default();
        let max = self.max.load(Relaxed);
        if all >= max || *own >= (max / 4).max(1) {
            if *own == 0 {
                clients.remove(&client);
            }
            return None;
        }
        *own += 1;
        Some(LingeringBody {
            list: self.clone(),
            client,
        })
    }
}

impl Drop for LingeringBody {
    fn drop(&mut self) {
        let clients = &self.list.clients;
        let mut clients = lock(clients);
        if let Some(own) = clients.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_at_most_a_quarter_of_the_lingering_bodies() {
        let lingering = Lingering::new(8);
        let enter = |client| lingering.enter(Client::V4(client));
        let mut held: Vec<_> = (0..2).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_none());
        for client in 2..=4 {
            held.extend([enter(client).unwrap(), enter(client).unwrap()]);
        }
        assert!(enter(5).is_none(), "all places are taken");
        held.remove(0);
        held.push(enter(5).unwrap());
        lingering.bound(2);
        held.push(enter(1).unwrap());
        lingering.bound(1);
        held.truncate(2);
        assert_eq!(lingering.clients.lock().unwrap().values().sum::<usize>(), 2);
        drop(held);
        assert!(lingering.clients.lock().unwrap().is_empty());
        let one = Lingering::new(1);
        assert!(one.enter(Client::V4(1)).is_some());
    }
}
