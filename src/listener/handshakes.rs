//! Limits on TLS handshakes: how many are under way, in total and per client, and how
//! many a client may begin per second. A handshake takes a hundred times the CPU time of
//! a stored answer.
//!
//! A slot is taken only once a whole ClientHello has come, so silent connections hold
//! none. Where none is free, the handshake waits for one, within its deadline: many
//! clients may connect at once after a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::OverLimit;
use crate::clock::Moment;
use crate::identify::Client;
use crate::sync::lock;

/// Handshakes under way for each worker.
const PER_WORKER: usize = 64;
/// The part of all slots that one client may hold, or wait for.
const CLIENT_SHARE: usize = 8;
/// Clients that are counted separately. Further ones are bounded by the slots alone.
const MAX_CLIENTS: usize = 16_384;
const SECOND: Duration = Duration::from_secs(1);

/// The handshakes that are under way, and who began some recently.
pub(super) struct Handshakes {
    free: Arc<Semaphore>,
    slots: usize,
    clients: Mutex<ClientTable>,
}

#[derive(Default)]
struct ClientTable {
    clients: HashMap<Client, ClientHandshakes, RandomState>,
    /// When entries that are no longer needed may be looked for again.
    next_prune: Moment,
}

struct ClientHandshakes {
    /// Those that wait for a slot included.
    under_way: usize,
    /// When the ones begun so far would all be allowed at the rate (GCRA).
    paid_until: Moment,
}

/// A handshake under way, until it is dropped.
pub(super) struct HandshakeSlot {
    all: Arc<Handshakes>,
    /// None if it is not counted for a client.
    client: Option<Client>,
    /// None while it waits.
    permit: Option<OwnedSemaphorePermit>,
}

impl Handshakes {
    pub(super) fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(PER_WORKER * workers)),
            slots: PER_WORKER * workers,
            clients: Mutex::default(),
        })
    }

    /// Begins a handshake once there is a slot for it. `limit` is the client and how many
    /// it may begin per second; none for a client without limits.
    pub(super) async fn begin(
        self: &Arc<Self>,
        limit: Option<(Client, u32)>,
        now: Moment,
    ) -> Result<HandshakeSlot, OverLimit> {
        let mut slot = HandshakeSlot {
            all: self.clone(),
            client: None,
            permit: None,
        };
        if let Some((client, per_second)) = limit {
            let most = (self.slots / CLIENT_SHARE).max(1);
            let is_counted = self.lock().begin(client, per_second, most, now)?;
            slot.client = is_counted.then_some(client);
        }
        // The semaphore is never closed.
        let permit = self.free.clone().acquire_owned().await;
        slot.permit = Some(permit.map_err(|_closed| OverLimit::Total)?);
        Ok(slot)
    }

    fn lock(&self) -> MutexGuard<'_, ClientTable> {
        lock(&self.clients)
    }
}

impl ClientTable {
    /// Counts a handshake of a client; `false` if the table is full of others.
    fn begin(
        &mut self,
        client: Client,
        per_second: u32,
        most: usize,
        now: Moment,
    ) -> Result<bool, OverLimit> {
        if !self.clients.contains_key(&client) && self.clients.len() >= MAX_CLIENTS {
            self.prune(now);
            if self.clients.len() >= MAX_CLIENTS {
                return Ok(false);
            }
        }
        let entry = self.clients.entry(client).or_insert(ClientHandshakes {
            under_way: 0,
            paid_until: now,
        });
        let begins = entry.paid_until.max(now);
        let paid_until = begins + SECOND / per_second.max(1);
        // A second's worth may come at once.
        if entry.under_way >= most || paid_until.since(now) > SECOND {
            return Err(OverLimit::Client);
        }
        entry.under_way += 1;
        entry.paid_until = paid_until;
        Ok(true)
    }

    /// Removes entries without effect, at most once a second: it looks at all.
    fn prune(&mut self, now: Moment) {
        if now >= self.next_prune {
            self.next_prune = now + SECOND;
            self.clients
                .retain(|_, entry| entry.under_way > 0 || entry.paid_until > now);
        }
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        drop(self.permit.take());
        if let Some(client) = self.client
            && let Some(entry) = self.all.lock().clients.get_mut(&client)
        {
            entry.under_way = entry.under_way.saturating_sub(1);
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
        all: &Arc<Handshakes>,
        limit: Option<(Client, u32)>,
        now: Moment,
    ) -> Option<Result<HandshakeSlot, OverLimit>> {
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
    fn slots_are_bounded_in_total_and_for_each_client() {
        let all = Handshakes::new(2);
        let many = |n| {
            let limit = Some((Client::V4(n), 1_000));
            let begun = (0..20).map_while(|_| begin(&all, limit, NOW)?.ok());
            begun.collect::<Vec<_>>()
        };
        let mut first = many(0);
        assert_eq!(first.len(), 16, "an eighth");
        let others: Vec<_> = (1..8).flat_map(many).collect();
        assert_eq!(others.len(), 7 * 16);
        // The next ones wait, in their order.
        let mut waiting = [client(9), None].map(|limit| Box::pin(all.begin(limit, NOW)));
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        drop(first.pop());
        let [one, other] = &mut waiting;
        assert!(other.as_mut().now_or_never().is_none());
        let slot = one.as_mut().now_or_never().unwrap();
        assert!(slot.is_ok());
        drop((slot, first, others, waiting));
        assert_eq!(all.free.available_permits(), 2 * PER_WORKER);
    }

    #[test]
    fn a_client_that_waits_is_bounded_too_and_may_give_up() {
        let all = Handshakes::new(1);
        let held: Vec<_> = (0..PER_WORKER)
            .map(|_| begin(&all, None, NOW).unwrap())
            .collect();
        let limit = Some((Client::V4(1), 1_000));
        let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(all.begin(limit, NOW))).collect();
        for one in &mut waiting {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let refused = begin(&all, limit, NOW).unwrap();
        assert!(matches!(refused, Err(OverLimit::Client)));
        drop(waiting);
        assert!(begin(&all, limit, NOW).is_none(), "it waits again");
        drop(held);
        assert!(begin(&all, limit, NOW).unwrap().is_ok());
        assert_eq!(all.free.available_permits(), PER_WORKER);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_clients() {
        let all = Handshakes::new(1);
        let clients = u32::try_from(MAX_CLIENTS).unwrap();
        for n in 0..clients + 100 {
            assert!(begin(&all, client(n), NOW).unwrap().is_ok(), "{n}");
        }
        assert_eq!(all.lock().clients.len(), MAX_CLIENTS);
        let later = NOW + SECOND * 2;
        let held = begin(&all, client(0), later);
        assert!(begin(&all, client(clients + 1), later).unwrap().is_ok());
        assert_eq!(all.lock().clients.len(), 2, "one is under way, one is new");
        drop(held);
    }
}
