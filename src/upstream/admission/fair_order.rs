//! The admission queue: in what order requests go to the upstream that have to
//! wait. Pure: `now` is an argument.
//!
//! Probes of the tip go first. Then the client goes that has had the least of
//! the budget of late; of two that have had as much, the one that has waited
//! longer. Priority counts within a client: its misses go before its
//! revalidations, but not before another client's.
//!
//! What a client has had counts half as much after [`HALF_LIFE`]. So a client
//! whose requests come seldom goes at once, however many others ask for more
//! than they can get, and those others share what is left evenly.
//!
//! A client may hold several slots (requests in flight) only while slots are
//! left for clients that hold none ([`Queue::may_hold`]). One that may not is
//! passed over, and holds up nobody.
//!
//! The queue is bounded: where it is full, the client with the most requests in
//! it loses its last.
//!
//! Deliberately absent: what is waited for, for how long, and waking; those are
//! `upstream::line`'s.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use foldhash::quality::RandomState;

use super::{Priority, RequestPriority};
use crate::clock::Moment;
use crate::identify::Client;

/// After so long, what a client has had counts half as much.
pub const HALF_LIFE: Duration = Duration::from_secs(30);
/// A client that has had at most this share of what another has had comes before
/// it in the budget as well.
const LIGHT: f64 = 0.75;
/// How often clients are forgotten that have had next to nothing of late: those
/// with a single request that is as old as this.
const FORGET: Duration = Duration::from_secs(60);
/// Clients that are told apart. Further ones count as one client, until some of
/// these are forgotten.
const MOST_CLIENTS: usize = 16_384;
/// With fewer slots than this, none is kept for clients that hold none.
pub const LEAST_SHARED: u32 = 4;

/// The requests that wait, and what their clients have had.
#[derive(Debug)]
pub struct FairOrder {
    probes: VecDeque<Ticket>,
    clients: HashMap<Option<Client>, ClientRecord, RandomState>,
    /// The clients that wait, in the order in which they go.
    order: BTreeMap<ClientRank, Option<Client>>,
    /// Requests that wait, probes among them.
    waiting: usize,
    capacity: usize,
    /// The next number, of a request or of a rank.
    next: u64,
    /// Slots held, and clients that hold or wait for some.
    slots_in_use: u32,
    competing: u32,
    /// The moment at which a request counts as one; a later one counts as more,
    /// so that nothing has to be lowered as time goes by.
    base: Moment,
    /// The most that a client has had.
    highest_usage: f64,
}

/// A number that no other request in the queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// A waiting client's position: by what it has had, then by how long it has
/// waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientRank {
    /// The bits of a number that is not negative, which sort as it does.
    usage: u64,
    sequence: u64,
}

#[derive(Debug, Default)]
struct ClientRecord {
    /// Its waiting requests by priority.
    waiting: [VecDeque<Ticket>; Priority::ALL.len()],
    /// Its position, while it waits.
    rank: Option<ClientRank>,
    /// What it has had of the budget, in requests as of [`Queue::since`].
    usage: f64,
    /// Slots that it holds.
    slots: u32,
}

/// What a client has and wants, for `/status`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientUsage {
    /// The client; `None` for ordgate itself, and for all clients beyond those
    /// that are told apart.
    pub client: Option<Client>,
    /// Its requests of late; each counts half as much after [`HALF_LIFE`].
    pub recent: f64,
    /// Its requests that wait.
    pub waiting: usize,
    /// Its requests in flight.
    pub in_flight: u32,
}

impl ClientRecord {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn competes(&self) -> bool {
        self.rank.is_some() || self.slots > 0
    }

    fn first(&self) -> Option<Ticket> {
        self.waiting.iter().find_map(|line| line.front().copied())
    }
}

impl FairOrder {
    /// An empty queue with room for so many requests.
    pub fn new(most: usize) -> Self {
        Self {
            probes: VecDeque::new(),
            clients: HashMap::default(),
            order: BTreeMap::new(),
            waiting: 0,
            capacity: most,
            next: 0,
            slots_in_use: 0,
            competing: 0,
            base: Moment::default(),
            highest_usage: 0.0,
        }
    }

    /// Holds so many from now on; requests that wait already stay.
    pub fn set_capacity(&mut self, most: usize) {
        self.capacity = most;
    }

    /// The client under which a request counts: the one that sent it or, where
    /// too many are told apart already, one that stands for all others.
    pub fn tracked(&self, caller: Option<Client>) -> Option<Client> {
        let is_known = self.clients.len() < MOST_CLIENTS || self.clients.contains_key(&caller);
        caller.filter(|_| is_known)
    }

    /// Takes one more in; and says which has to go for it, if any.
    ///
    /// # Errors
    /// Where there is no room, and none that would have to go before this one.
    pub fn push(&mut self, wish: RequestPriority) -> Result<(Ticket, Option<Ticket>), QueueFull> {
        let out = match self.waiting < self.capacity {
            true => None,
            false => Some(self.displace(wish)?),
        };
        let number = Ticket(self.next_number());
        self.waiting += 1;
        if wish.priority == Priority::Probe {
            self.probes.push_back(number);
            return Ok((number, out));
        }
        let turn = self.next_number();
        self.update_client(wish.client, |client, order| {
            client.waiting[wish.priority.index()].push_back(number);
            if client.rank.is_none() {
                client.place(wish.client, turn, order);
            }
        });
        Ok((number, out))
    }

    /// The request that goes next, given how many slots there are.
    pub fn first(&self, slots: u32) -> Option<Ticket> {
        let probe = self.probes.front().copied();
        probe.or_else(|| self.clients.get(&self.first_client(slots)?)?.first())
    }

    fn first_client(&self, slots: u32) -> Option<Option<Client>> {
        let mut order = self.order.values();
        order
            .find(|client| self.may_take_slot(**client, slots))
            .copied()
    }

    /// Whether a request that has just come goes before all that wait.
    pub fn goes_first(&self, wish: RequestPriority, slots: u32) -> bool {
        match wish.priority {
            Priority::Probe => self.probes.is_empty(),
            Priority::LookAhead => self.waiting == 0 && self.may_take_slot(wish.client, slots),
            Priority::Miss | Priority::Revalidation => {
                self.probes.is_empty()
                    && self.may_take_slot(wish.client, slots)
                    && match self.first_client(slots) {
                        None => true,
                        Some(first) if first == wish.client => self.is_urgent(wish),
                        Some(first) => self.usage(wish.client) < self.usage(first),
                    }
            }
        }
    }

    /// Whether its own client has nothing as urgent that waits.
    fn is_urgent(&self, wish: RequestPriority) -> bool {
        let own = self.clients.get(&wish.client);
        own.is_none_or(|client| {
            let mut before = client.waiting[..=wish.priority.index()].iter();
            before.all(VecDeque::is_empty)
        })
    }

    /// Removes a request that has waited: served, so that it is the next
    /// client's turn, or given up.
    pub fn remove(&mut self, wish: RequestPriority, number: Ticket, served: bool) {
        if wish.priority == Priority::Probe {
            let before = self.probes.len();
            self.probes.retain(|other| *other != number);
            self.waiting -= before - self.probes.len();
            return;
        }
        let turn = self.next_number();
        let mut left = 0;
        self.update_client(wish.client, |client, order| {
            let line = &mut client.waiting[wish.priority.index()];
            let before = line.len();
            line.retain(|other| *other != number);
            left = before - line.len();
            if client.first().is_none() {
                client.withdraw(order);
            } else if served && left > 0 {
                client.place(wish.client, turn, order);
            }
        });
        self.waiting -= left;
    }

    /// Whether a client may have one more request in flight, given how many
    /// slots there are; whether one is free is the endpoint's to say.
    ///
    /// A client that has none in flight may. One that has some may as long as it
    /// has fewer than are free (so that one alone has half of them at the most,
    /// and two a third each), more than a quarter is free for clients that have
    /// none, and it has less than an even share of the slots if others wait.
    pub fn may_take_slot(&self, client: Option<Client>, slots: u32) -> bool {
        let (own, waits) = match self.clients.get(&client) {
            Some(client) => (client.slots, usize::from(client.rank.is_some())),
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
        slots < LEAST_SHARED || own < free && free > slots / 4
    }

    /// Whether the client that would go first may not, since it holds its share
    /// of the slots.
    pub fn is_first_over_its_share(&self, slots: u32) -> bool {
        let mut order = self.order.values();
        order
            .next()
            .is_some_and(|client| !self.may_take_slot(*client, slots))
    }

    /// A client's request takes a slot.
    pub fn take_slot(&mut self, client: Option<Client>) {
        self.slots_in_use += 1;
        self.update_client(client, |client, _order| client.slots += 1);
    }

    /// It gives the slot back.
    pub fn release_slot(&mut self, client: Option<Client>) {
        self.slots_in_use = self.slots_in_use.saturating_sub(1);
        self.update_client(client, |client, _order| {
            client.slots = client.slots.saturating_sub(1);
        });
    }

    /// Counts a request that is paid from the budget for a client.
    pub fn charge(&mut self, caller: Option<Client>, now: Moment) {
        let (caller, weight) = (self.tracked(caller), self.weight(now));
        let mut had = 0.0;
        self.update_client(caller, |client, order| {
            client.usage += weight;
            had = client.usage;
            if let Some(rank) = client.rank {
                client.place(caller, rank.sequence, order);
            }
        });
        // What ordgate asks for itself takes nothing from any client's share.
        if caller.is_some() {
            self.highest_usage = self.highest_usage.max(had);
        }
    }

    /// Whether a client has had at most `LIGHT` of what the one has had that has
    /// had the most: a reserve is kept for such clients.
    pub fn is_light(&self, caller: Option<Client>) -> bool {
        self.usage(self.tracked(caller)) <= self.highest_usage * LIGHT
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many clients have had some of the budget of late, or want some.
    pub fn active_clients(&self) -> usize {
        self.clients.len()
    }

    /// The clients that have had the most of late, so many of them.
    pub fn busiest_clients(&self, most: usize, now: Moment) -> Vec<ClientUsage> {
        let scale = weight(self.base, now);
        let shares = self.clients.iter().map(|(client, share)| ClientUsage {
            client: *client,
            recent: share.usage / scale,
            waiting: share.waiting(),
            in_flight: share.slots,
        });
        let mut shares: Vec<_> = shares.collect();
        shares.sort_by(|one, other| other.recent.total_cmp(&one.recent));
        shares.truncate(most);
        shares
    }

    fn usage(&self, client: Option<Client>) -> f64 {
        self.clients.get(&client).map_or(0.0, |client| client.usage)
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What a request counts now. Forgets clients now and then, which keeps this
    /// from growing without bound.
    fn weight(&mut self, now: Moment) -> f64 {
        if now.since(self.base) < FORGET {
            return weight(self.base, now);
        }
        let scale = weight(self.base, now);
        self.base = now;
        self.highest_usage = 0.0;
        let least = 1.0 / weight(now, now + FORGET);
        self.order.clear();
        let mut gone = 0;
        self.clients.retain(|_, client| {
            client.usage /= scale;
            let stays = client.competes() || client.usage >= least;
            gone += usize::from(!stays);
            stays
        });
        for (caller, client) in &mut self.clients {
            if let Some(rank) = client.rank.take() {
                client.place(*caller, rank.sequence, &mut self.order);
            }
            if caller.is_some() {
                self.highest_usage = self.highest_usage.max(client.usage);
            }
        }
        if gone > self.clients.len() {
            self.clients.shrink_to_fit();
        }
        1.0
    }

    /// Changes what is known of a client.
    fn update_client(
        &mut self,
        caller: Option<Client>,
        change: impl FnOnce(&mut ClientRecord, &mut BTreeMap<ClientRank, Option<Client>>),
    ) {
        let client = self.clients.entry(caller).or_default();
        let wanted = client.competes();
        change(client, &mut self.order);
        let wants = client.competes();
        let is_unknown = !wants && client.usage <= 0.0;
        self.competing = self.competing + u32::from(wants) - u32::from(wanted);
        if is_unknown {
            self.clients.remove(&caller);
        }
    }

    /// Makes room for a request: the client with the most in the queue loses its
    /// last, and of that the least urgent. A client that would have the most
    /// itself makes room with its own less urgent ones, or not at all.
    fn displace(&mut self, wish: RequestPriority) -> Result<Ticket, QueueFull> {
        let is_probe = wish.priority == Priority::Probe;
        let own = match is_probe {
            true => None,
            false => self.clients.get(&wish.client),
        };
        let own = own.map_or(0, ClientRecord::waiting);
        let waiting =
            |caller: &Option<Client>| self.clients.get(caller).map_or(0, ClientRecord::waiting);
        let most = self.order.values().max_by_key(|caller| waiting(caller));
        let most = most.copied().ok_or(QueueFull)?;
        let (caller, least) = match is_probe || waiting(&most) > own + 1 {
            true => (most, Priority::Probe.index()),
            false => (wish.client, wish.priority.index()),
        };
        let client = self.clients.get(&caller).ok_or(QueueFull)?;
        let mut less_urgent = Priority::ALL[least + 1..].iter().rev();
        let found = less_urgent.find_map(|priority| {
            let last = client.waiting[priority.index()].back().copied()?;
            Some((*priority, last))
        });
        let (priority, last) = found.ok_or(QueueFull)?;
        self.remove(
            RequestPriority {
                priority,
                client: caller,
            },
            last,
            false,
        );
        Ok(last)
    }
}

impl ClientRecord {
    /// Puts it where it belongs in the order.
    fn place(
        &mut self,
        caller: Option<Client>,
        turn: u64,
        order: &mut BTreeMap<ClientRank, Option<Client>>,
    ) {
        self.withdraw(order);
        let rank = ClientRank {
            usage: self.usage.to_bits(),
            sequence: turn,
        };
        self.rank = Some(rank);
        order.insert(rank, caller);
    }

    fn withdraw(&mut self, order: &mut BTreeMap<ClientRank, Option<Client>>) {
        if let Some(rank) = self.rank.take() {
            order.remove(&rank);
        }
    }
}

/// What a request counts that is paid at `now`, in requests as of `since`.
fn weight(since: Moment, now: Moment) -> f64 {
    (now.since(since).as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
}
#[cfg(test)]
mod tests;
