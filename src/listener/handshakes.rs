//! Limits on TLS handshakes: how many are computed at a time, and how many a client may
//! begin per second. A handshake takes a hundred times the CPU time of a stored answer.
//!
//! A slot is taken only once a whole ClientHello has come, and given back before anything
//! is awaited from the client: no client can keep one. Where none is free, the handshake
//! waits for one, within its deadline: many clients may connect at once after a restart.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::Moment;
use crate::connections::OverLimit;
use crate::identify::Client;
use crate::sync::lock;

/// Handshakes that are computed at a time, for each worker.
const PER_WORKER: usize = 64;
/// Clients that are counted separately. Further ones are bounded by the slots alone.
const MAX_CLIENTS: usize = 16_384;
const SECOND: Duration = Duration::from_secs(1);

/// The slots, and who began handshakes recently.
pub(super) struct Handshakes {
    free: Semaphore,
    clients: Mutex<ClientTable>,
}

#[derive(Default)]
struct ClientTable {
    /// When the handshakes that each has begun would all be allowed at its rate (GCRA).
    paid_until: HashMap<Client, Moment, RandomState>,
    /// When entries that are no longer needed may be looked for again.
    next_prune: Moment,
}

impl Handshakes {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            free: Semaphore::new(PER_WORKER * workers),
            clients: Mutex::default(),
        }
    }

    /// Begins a handshake once there is a slot for it. `limit` is the client and how many
    /// it may begin per second; none for a client without limits.
    pub(super) async fn begin(
        &self,
        limit: Option<(Client, u32)>,
        now: Moment,
    ) -> Result<SemaphorePermit<'_>, OverLimit> {
        if let Some((client, per_second)) = limit {
            lock(&self.clients).begin(client, per_second, now)?;
        }
        // The semaphore is never closed.
        let slot = self.free.acquire().await;
        slot.map_err(|_closed| OverLimit::Total)
    }
}

impl ClientTable {
    /// Counts a handshake of a client, unless the table is full of others.
    fn begin(&mut self, client: Client, per_second: u32, now: Moment) -> Result<(), OverLimit> {
        if !self.paid_until.contains_key(&client) && self.paid_until.len() >= MAX_CLIENTS {
            self.prune(now);
            if self.paid_until.len() >= MAX_CLIENTS {
                return Ok(());
            }
        }
        let before = self.paid_until.entry(client).or_insert(now);
        let paid_until = now.max(*before) + SECOND / per_second.max(1);
        // A second's worth may come at once.
        if paid_until.since(now) > SECOND {
            return Err(OverLimit::Client);
        }
        *before = paid_until;
        Ok(())
    }

    /// Removes entries without effect, at most once a second: it looks at all.
    fn prune(&mut self, now: Moment) {
        if now >= self.next_prune {
            self.next_prune = now + SECOND;
            self.paid_until.retain(|_, paid_until| *paid_until > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn client(n: u32) -> Option<(Client, u32)> {
        Some((Client::V4(n), 10))
    }

    /// Begins a handshake; `None` if it has to wait.
    fn begin(
        all: &Handshakes,
        limit: Option<(Client, u32)>,
        now: Moment,
    ) -> Option<Result<SemaphorePermit<'_>, OverLimit>> {
        all.begin(limit, now).now_or_never()
    }

    #[test]
    fn a_client_may_begin_its_number_per_second() {
        let all = Handshakes::new(1);
        let begun = |after: u64, n| {
            let now = NOW + Duration::from_millis(after);
            begin(&all, client(n), now).unwrap().is_ok()
        };
        let count = |after, n| (0..20).filter(|_| begun(after, n)).count();
        assert_eq!(count(0, 1), 10, "at once");
        assert_eq!(count(0, 2), 10, "another client");
        assert_eq!(count(99, 1), 0);
        assert_eq!(count(100, 1), 1);
        assert_eq!(count(600, 1), 5);
        assert_eq!(count(9_000, 1), 10, "no more than a second's worth");
        let unlimited = (0..100).filter(|_| begin(&all, None, NOW).unwrap().is_ok());
        assert_eq!(unlimited.count(), 100);
        assert_eq!(all.free.available_permits(), PER_WORKER);
    }

    #[test]
    fn handshakes_beyond_the_slots_wait_in_their_order() {
        let all = Handshakes::new(2);
        let mut held: Vec<_> = (0..2 * PER_WORKER)
            .map(|_| begin(&all, None, NOW).unwrap().ok().unwrap())
            .collect();
        let mut waiting = [client(9), None].map(|limit| Box::pin(all.begin(limit, NOW)));
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        drop(held.pop());
        let [one, other] = &mut waiting;
        assert!(other.as_mut().now_or_never().is_none());
        let slot = one.as_mut().now_or_never().unwrap();
        assert!(slot.is_ok());
        drop((slot, held, waiting));
        assert_eq!(all.free.available_permits(), 2 * PER_WORKER);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_clients() {
        let all = Handshakes::new(1);
        let clients = u32::try_from(MAX_CLIENTS).unwrap();
        for n in 0..clients + 100 {
            assert!(begin(&all, client(n), NOW).unwrap().is_ok(), "{n}");
        }
        assert_eq!(lock(&all.clients).paid_until.len(), MAX_CLIENTS);
        let later = NOW + SECOND * 2;
        assert!(begin(&all, client(clients + 1), later).unwrap().is_ok());
        assert_eq!(lock(&all.clients).paid_until.len(), 1, "the new one");
    }
}
