//! Jobs that wait for a thread: bounded, and fair between clients.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::cache::Attached;
use crate::cache::coding::Coding;
use crate::cache::encodings::EncodingSlots;
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::identify::Client;

use super::encode::Effort;

/// The most bodies that wait to be compressed.
pub(super) const BODIES: Bounds = Bounds {
    all: 256,
    of_client: 32,
};

/// A body to be compressed. It is found again by its key when its turn comes, so that
/// what was evicted meanwhile is not kept in memory.
pub(super) struct Job {
    pub(super) key: Key,
    /// Where the result goes.
    pub(super) slots: Arc<EncodingSlots>,
    pub(super) coding: Coding,
    pub(super) effort: Effort,
    pub(super) store: Store<Attached>,
}

/// The coding is marked as being made for as long as there is a job for it.
impl Drop for Job {
    fn drop(&mut self) {
        self.slots.end(self.coding);
    }
}

/// Waiting jobs. Clients take turns.
pub(crate) struct Queue<J> {
    bounds: Bounds,
    of_clients: HashMap<Client, VecDeque<J>>,
    /// The clients that have jobs here, the next one first.
    turns: VecDeque<Client>,
    len: usize,
}

/// The most jobs that wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Of all clients.
    pub(crate) all: usize,
    /// Of one client.
    pub(crate) of_client: usize,
}

impl<J> Queue<J> {
    /// An empty queue.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            of_clients: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }

    /// Adds a job, or returns it if there is no room for it.
    pub(crate) fn push(&mut self, client: Client, job: J) -> Result<(), J> {
        let of_client = self.of_clients.get(&client).map_or(0, VecDeque::len);
        if self.len >= self.bounds.all || of_client >= self.bounds.of_client {
            return Err(job);
        }
        if of_client == 0 {
            self.turns.push_back(client);
        }
        self.of_clients.entry(client).or_default().push_back(job);
        self.len += 1;
        Ok(())
    }

    /// The next job: the oldest of the client whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<J> {
        let client = self.turns.pop_front()?;
        let jobs = self.of_clients.get_mut(&client)?;
        let job = jobs.pop_front()?;
        match jobs.is_empty() {
            true => drop(self.of_clients.remove(&client)),
            false => self.turns.push_back(client),
        }
        self.len -= 1;
        Some(job)
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_and_none_fills_the_queue() {
        let (greedy, honest) = (Client::V4(1), Client::V4(2));
        let mut queue = Queue::new(BODIES);
        let taken = (0..1000).filter(|n| queue.push(greedy, *n).is_ok()).count();
        assert_eq!(taken, BODIES.of_client);
        assert_eq!(queue.push(honest, 5000), Ok(()));
        assert_eq!(queue.push(honest, 5001), Ok(()));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order[..4], [0, 5000, 1, 5001]);
        assert_eq!(order.len(), BODIES.of_client + 2);
        assert_eq!((queue.len(), queue.of_clients.len()), (0, 0));
    }

    #[test]
    fn the_queue_is_bounded_for_all_clients_together() {
        let mut queue = Queue::new(BODIES);
        let clients = (0..1000).map(Client::V4);
        let taken = clients.filter(|client| queue.push(*client, ()).is_ok());
        assert_eq!(taken.count(), BODIES.all);
        assert_eq!(queue.push(Client::V4(0), ()), Err(()));
        assert!(queue.pop().is_some());
        assert_eq!(queue.push(Client::V4(0), ()), Ok(()));
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), BODIES.all);
    }
}
