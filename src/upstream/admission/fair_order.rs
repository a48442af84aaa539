//! The order in which waiting requests go to an upstream. Pure: `now` is an
//! argument.
//!
//! Tip probes go first. Then comes the client that has used the least of the budget
//! recently; of two with equal usage, the one that has waited longer. Priority
//! counts within a client: its misses go before its revalidations, but not before
//! another client's requests.
//!
//! Usage decays by half every [`HALF_LIFE`]. So a client with few requests goes at
//! once, however many others want more than they can get, and those share the rest
//! evenly.
//!
//! A client may use several slots (requests in flight) only while slots are left for
//! clients that use none ([`FairOrder::may_take_slot`]). A client that may not is
//! skipped, and delays no other.
//!
//! The number of waiting requests is bounded. Beyond it, the client with the most
//! waiting requests loses its last.
//!
//! Deliberately absent: deadlines and wake-ups, which are the queue's
//! (`upstream::admission::queue`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use foldhash::quality::RandomState;

use super::{Priority, RequestPriority};
use crate::clock::Moment;
use crate::identify::Client;

/// The half-life of a client's usage.
pub(crate) const HALF_LIFE: Duration = Duration::from_secs(30);
/// How often clients with next to no usage are forgotten: those with less than a
/// single request of this age.
const FORGET: Duration = Duration::from_secs(60);
/// At most this many clients are tracked. Further ones count as one client, until
/// some are forgotten.
const MAX_CLIENTS: usize = 16_384;
/// With fewer slots than this, none is reserved for clients that use none.
pub(crate) const MIN_SHARED_SLOTS: u32 = 4;

/// The waiting requests, and the usage of their clients.
#[derive(Debug)]
pub(crate) struct FairOrder {
    probes: VecDeque<Ticket>,
    clients: HashMap<Option<Client>, ClientRecord, RandomState>,
    /// The waiting clients, in the order in which they go.
    order: BTreeMap<ClientRank, Option<Client>>,
    /// Waiting requests, probes included.
    waiting: usize,
    capacity: usize,
    /// The next ticket or sequence number.
    next: u64,
    slots_in_use: u32,
    /// Clients that use slots or wait for some.
    competing: u32,
    /// A request at this moment counts 1, a later one more, so that usage need not
    /// be lowered as time passes.
    base: Moment,
}

/// Identifies a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The position of a waiting client: by usage, then by how long it has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientRank {
    /// The bits of a non-negative float, which sort like the float.
    usage: u64,
    sequence: u64,
}

#[derive(Debug, Default)]
struct ClientRecord {
    waiting: [VecDeque<Ticket>; Priority::ALL.len()],
    /// Its position, while it waits.
    rank: Option<ClientRank>,
    /// The requests it was charged, as of [`FairOrder::base`].
    usage: f64,
    slots: u32,
}

/// What a client uses and waits for, for `/status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientUsage {
    /// The client; `None` for ordgate itself, and for all clients beyond the tracked
    /// ones.
    pub(crate) client: Option<Client>,
    /// Its recent requests, each weighted by age ([`HALF_LIFE`]).
    pub(crate) recent: f64,
    pub(crate) waiting: usize,
    pub(crate) in_flight: u32,
}

impl ClientRecord {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn competes(&self) -> bool {
        self.rank.is_some() || self.slots > 0
    }

    fn first(&self) -> Option<Ticket> {
        self.waiting.iter().find_map(|queue| queue.front().copied())
    }

    /// Inserts the client into the order, by its usage.
    fn enqueue(
        &mut self,
        client: Option<Client>,
        sequence: u64,
        order: &mut BTreeMap<ClientRank, Option<Client>>,
    ) {
        self.dequeue(order);
        let rank = ClientRank {
            usage: self.usage.to_bits(),
            sequence,
        };
        self.rank = Some(rank);
        order.insert(rank, client);
    }

    fn dequeue(&mut self, order: &mut BTreeMap<ClientRank, Option<Client>>) {
        if let Some(rank) = self.rank.take() {
            order.remove(&rank);
        }
    }
}

impl FairOrder {
    /// An empty order for up to `capacity` requests.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            probes: VecDeque::new(),
            clients: HashMap::default(),
            order: BTreeMap::new(),
            waiting: 0,
            capacity,
            next: 0,
            slots_in_use: 0,
            competing: 0,
            base: Moment::default(),
        }
    }

    /// Changes the capacity. Requests that wait already stay.
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// The client that a request is accounted to: its own or, where too many are
    /// tracked, `None`, which stands for all others.
    pub(crate) fn tracked(&self, client: Option<Client>) -> Option<Client> {
        let is_tracked = self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client);
        client.filter(|_| is_tracked)
    }

    /// Adds a request; also returns the request that it displaces, if any.
    ///
    /// # Errors
    /// Where the order is full and no request may be displaced for this one.
    pub(crate) fn push(
        &mut self,
        request: RequestPriority,
    ) -> Result<(Ticket, Option<Ticket>), QueueFull> {
        let displaced = match self.waiting < self.capacity {
            true => None,
            false => Some(self.displace(request)?),
        };
        let ticket = Ticket(self.next_number());
        self.waiting += 1;
        if request.priority == Priority::Probe {
            self.probes.push_back(ticket);
            return Ok((ticket, displaced));
        }
        let sequence = self.next_number();
        self.update_client(request.client, |record, order| {
            record.waiting[request.priority.index()].push_back(ticket);
            if record.rank.is_none() {
                record.enqueue(request.client, sequence, order);
            }
        });
        Ok((ticket, displaced))
    }

    /// The request that goes next, of this many shared slots.
    pub(crate) fn first(&self, slots: u32) -> Option<Ticket> {
        let probe = self.probes.front().copied();
        probe.or_else(|| self.clients.get(&self.first_client(slots)?)?.first())
    }

    fn first_client(&self, slots: u32) -> Option<Option<Client>> {
        let mut order = self.order.values();
        order
            .find(|client| self.may_take_slot(**client, slots))
            .copied()
    }

    /// Whether a new request goes before all that wait.
    pub(crate) fn goes_first(&self, request: RequestPriority, slots: u32) -> bool {
        match request.priority {
            Priority::Probe => self.probes.is_empty(),
            Priority::Miss | Priority::Revalidation => {
                self.probes.is_empty()
                    && self.may_take_slot(request.client, slots)
                    && match self.first_client(slots) {
                        None => true,
                        Some(first) if first == request.client => {
                            self.is_most_urgent_of_client(request)
                        }
                        Some(first) => self.usage(request.client) < self.usage(first),
                    }
            }
        }
    }

    /// Whether no request of the same client that is as urgent waits.
    fn is_most_urgent_of_client(&self, request: RequestPriority) -> bool {
        let own = self.clients.get(&request.client);
        own.is_none_or(|record| {
            let mut as_urgent = record.waiting[..=request.priority.index()].iter();
            as_urgent.all(VecDeque::is_empty)
        })
    }

    /// Removes a request, whether served or given up. After a served one, the client
    /// goes behind others with equal usage.
    pub(crate) fn remove(&mut self, request: RequestPriority, ticket: Ticket, was_served: bool) {
        if request.priority == Priority::Probe {
            let before = self.probes.len();
            self.probes.retain(|other| *other != ticket);
            self.waiting -= before - self.probes.len();
            return;
        }
        let sequence = self.next_number();
        let mut removed = 0;
        self.update_client(request.client, |record, order| {
            let queue = &mut record.waiting[request.priority.index()];
            let before = queue.len();
            queue.retain(|other| *other != ticket);
            removed = before - queue.len();
            if record.first().is_none() {
                record.dequeue(order);
            } else if was_served && removed > 0 {
                record.enqueue(request.client, sequence, order);
            }
        });
        self.waiting -= removed;
    }

    /// Whether a client may have one more request in flight, of this many shared
    /// slots. Whether a slot is free is known to the endpoint.
    ///
    /// A client without a request in flight may. One with some may, as long as it has
    /// fewer than are free (so one client alone uses at most half of the slots, and
    /// two a third each), more than a quarter is free for clients that have none, and,
    /// if others wait, it has less than an even share.
    pub(crate) fn may_take_slot(&self, client: Option<Client>, slots: u32) -> bool {
        let (own, waits) = match self.clients.get(&client) {
            Some(record) => (record.slots, usize::from(record.rank.is_some())),
            None => (0, 0),
        };
        if own == 0 {
            return true;
        }
        let others_wait = self.order.len() > waits;
        if others_wait && own >= (slots / self.competing.max(1)).max(1) {
            return false;
        }
        let free = slots.saturating_sub(self.slots_in_use);
        slots < MIN_SHARED_SLOTS || own < free && free > slots / 4
    }

    pub(crate) fn take_slot(&mut self, client: Option<Client>) {
        self.slots_in_use += 1;
        self.update_client(client, |record, _order| record.slots += 1);
    }

    pub(crate) fn release_slot(&mut self, client: Option<Client>) {
        self.slots_in_use = self.slots_in_use.saturating_sub(1);
        self.update_client(client, |record, _order| {
            record.slots = record.slots.saturating_sub(1);
        });
    }

    /// Charges requests against the budget to a client; with a negative number, gives them
    /// back.
    pub(crate) fn charge(&mut self, client: Option<Client>, requests: f64, now: Moment) {
        let (client, weight) = (self.tracked(client), self.weight(now));
        self.update_client(client, |record, order| {
            record.usage = (record.usage + weight * requests).max(0.0);
            if let Some(rank) = record.rank {
                record.enqueue(client, rank.sequence, order);
            }
        });
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// How many clients have used the budget recently, or compete for it.
    pub(crate) fn active_clients(&self) -> usize {
        self.clients.len()
    }

    /// The `count` clients with the highest usage, sorted.
    pub(crate) fn busiest_clients(&self, count: usize, now: Moment) -> Vec<ClientUsage> {
        let scale = weight(self.base, now);
        let clients = self.clients.iter().map(|(client, record)| ClientUsage {
            client: *client,
            recent: record.usage / scale,
            waiting: record.waiting(),
            in_flight: record.slots,
        });
        let mut clients: Vec<_> = clients.collect();
        clients.sort_by(|one, other| other.recent.total_cmp(&one.recent));
        clients.truncate(count);
        clients
    }

    fn usage(&self, client: Option<Client>) -> f64 {
        self.clients.get(&client).map_or(0.0, |record| record.usage)
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What a request counts now. Each [`FORGET`] it moves the base and forgets
    /// clients, which bounds the memory.
    fn weight(&mut self, now: Moment) -> f64 {
        if now.since(self.base) < FORGET {
            return weight(self.base, now);
        }
        let scale = weight(self.base, now);
        self.base = now;
        let least = 1.0 / weight(now, now + FORGET);
        self.order.clear();
        let mut forgotten = 0;
        self.clients.retain(|_, record| {
            record.usage /= scale;
            let stays = record.competes() || record.usage >= least;
            forgotten += usize::from(!stays);
            stays
        });
        for (client, record) in &mut self.clients {
            if let Some(rank) = record.rank.take() {
                record.enqueue(*client, rank.sequence, &mut self.order);
            }
        }
        if forgotten > self.clients.len() {
            self.clients.shrink_to_fit();
        }
        1.0
    }

    /// Changes a client's record, and removes it if nothing of interest is left.
    fn update_client(
        &mut self,
        client: Option<Client>,
        update: impl FnOnce(&mut ClientRecord, &mut BTreeMap<ClientRank, Option<Client>>),
    ) {
        let record = self.clients.entry(client).or_default();
        let competed = record.competes();
        update(record, &mut self.order);
        let competes = record.competes();
        let is_empty = !competes && record.usage <= 0.0;
        self.competing = self.competing + u32::from(competes) - u32::from(competed);
        if is_empty {
            self.clients.remove(&client);
        }
    }

    /// Makes room for a request: the client with the most waiting requests loses the
    /// last of its least urgent ones. A client that would have the most itself loses
    /// only requests less urgent than the new one.
    fn displace(&mut self, request: RequestPriority) -> Result<Ticket, QueueFull> {
        let is_probe = request.priority == Priority::Probe;
        let own = match is_probe {
            true => None,
            false => self.clients.get(&request.client),
        };
        let own = own.map_or(0, ClientRecord::waiting);
        let waiting =
            |client: &Option<Client>| self.clients.get(client).map_or(0, ClientRecord::waiting);
        let most = self.order.values().max_by_key(|client| waiting(client));
        let most = most.copied().ok_or(QueueFull)?;
        let (client, kept) = match is_probe || waiting(&most) > own + 1 {
            true => (most, Priority::Probe.index()),
            false => (request.client, request.priority.index()),
        };
        let record = self.clients.get(&client).ok_or(QueueFull)?;
        let mut less_urgent = Priority::ALL[kept + 1..].iter().rev();
        let found = less_urgent.find_map(|priority| {
            let last = record.waiting[priority.index()].back().copied()?;
            Some((*priority, last))
        });
        let (priority, last) = found.ok_or(QueueFull)?;
        let lost = RequestPriority {
            client,
            ..RequestPriority::own(priority)
        };
        self.remove(lost, last, false);
        Ok(last)
    }
}

/// The weight of a request at `now`, relative to one at `base`.
fn weight(base: Moment, now: Moment) -> f64 {
    (now.since(base).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
}

#[cfg(test)]
mod tests;
