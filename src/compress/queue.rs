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
    fn push(&mut self, client: Client, job: J) -> Result<(), J> {
        let of_client = self.of_client(client);
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

    /// The same where a full queue makes room: the client that has the most jobs loses
    /// its newest one, if it still has as many as this client then. Returns the job for
    /// which there is no room.
    pub(crate) fn push_fairly(&mut self, client: Client, job: J) -> Option<J> {
        let of_client = self.of_client(client);
        let mut displaced = None;
        if self.len >= self.bounds.all && of_client < self.bounds.of_client {
            let longest = self.of_clients.values_mut().max_by_key(|jobs| jobs.len());
            let longest = longest.filter(|jobs| jobs.len() > of_client + 1);
            displaced = longest.and_then(VecDeque::pop_back);
            self.len -= usize::from(displaced.is_some());
        }
        match self.push(client, job) {
            Ok(()) => displaced,
            Err(job) => Some(job),
        }
    }

    fn of_client(&self, client: Client) -> usize {
        self.of_clients.get(&client).map_or(0, VecDeque::len)
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
        let taken = (0..1000)
            .filter(|n| queue.push_fairly(greedy, *n).is_none())
            .count();
        assert_eq!(taken, BODIES.of_client);
        assert_eq!(queue.push_fairly(honest, 5000), None);
        assert_eq!(queue.push_fairly(honest, 5001), None);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order[..4], [0, 5000, 1, 5001]);
        assert_eq!(order.len(), BODIES.of_client + 2);
        assert_eq!((queue.len(), queue.of_clients.len()), (0, 0));
    }

    #[test]
    fn clients_that_fill_the_queue_make_room_for_those_with_fewer_jobs() {
        let mut queue = Queue::new(Bounds {
            all: 12,
            of_client: 4,
        });
        for job in 0..12 {
            assert_eq!(queue.push_fairly(Client::V4(job / 4), job), None);
        }
        let honest = Client::V4(9);
        for job in 100..103 {
            let displaced = queue.push_fairly(honest, job).unwrap();
            assert_eq!(displaced % 4, 3, "the newest of one that has the most");
        }
        // All have three now: the next would only take the place of another.
        for (client, job) in [(honest, 103), (Client::V4(0), 104)] {
            assert_eq!(queue.push_fairly(client, job), Some(job));
        }
        // One more client gets its share, but not that of others.
        let (late, mut displaced) = (Client::V4(10), Vec::new());
        displaced.extend((200..202).map(|job| queue.push_fairly(late, job).unwrap()));
        assert_eq!(queue.push_fairly(late, 202), Some(202));
        assert!(
            displaced.iter().all(|job| *job == 102 || job % 4 == 2),
            "{displaced:?}"
        );
        assert_eq!(queue.len(), 12);
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left.len(), 12);
        for job in [0, 1, 4, 5, 8, 9, 100, 101, 200, 201] {
            assert!(left.contains(&job), "{left:?}");
        }
        assert_eq!((queue.len(), queue.of_clients.len()), (0, 0));
    }
}
