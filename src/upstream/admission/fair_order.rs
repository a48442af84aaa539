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
pub struct Queue {
    probes: VecDeque<Number>,
    clients: HashMap<Option<Client>, QueuedClient, RandomState>,
    /// The clients that wait, in the order in which they go.
    order: BTreeMap<Rank, Option<Client>>,
    /// Requests that wait, probes among them.
    waiting: usize,
    most: usize,
    /// The next number, of a request or of a rank.
    next: u64,
    /// Slots held, and clients that hold or wait for some.
    held: u32,
    wanting: u32,
    /// The moment at which a request counts as one; a later one counts as more,
    /// so that nothing has to be lowered as time goes by.
    since: Moment,
    /// The most that a client has had.
    heaviest: f64,
}

/// A number that no other request in the queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number(u64);

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A waiting client's position: by what it has had, then by how long it has
/// waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The bits of a number that is not negative, which sort as it does.
    had: u64,
    turn: u64,
}

#[derive(Debug, Default)]
struct QueuedClient {
    /// Its waiting requests by priority.
    lines: [VecDeque<Number>; Priority::ALL.len()],
    /// Its position, while it waits.
    rank: Option<Rank>,
    /// What it has had of the budget, in requests as of [`Queue::since`].
    had: f64,
    /// Slots that it holds.
    held: u32,
}

/// What a client has and wants, for `/status`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientShare {
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

impl QueuedClient {
    fn waiting(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }

    fn wants(&self) -> bool {
        self.rank.is_some() || self.held > 0
    }

    fn first(&self) -> Option<Number> {
        self.lines.iter().find_map(|line| line.front().copied())
    }
}

impl Queue {
    /// An empty queue with room for so many requests.
    pub fn new(most: usize) -> Self {
        Self {
            probes: VecDeque::new(),
            clients: HashMap::default(),
            order: BTreeMap::new(),
            waiting: 0,
            most,
            next: 0,
            held: 0,
            wanting: 0,
            since: Moment::default(),
            heaviest: 0.0,
        }
    }

    /// Holds so many from now on; requests that wait already stay.
    pub fn bound(&mut self, most: usize) {
        self.most = most;
    }

    /// The client under which a request counts: the one that sent it or, where
    /// too many are told apart already, one that stands for all others.
    pub fn account(&self, caller: Option<Client>) -> Option<Client> {
        let is_known = self.clients.len() < MOST_CLIENTS || self.clients.contains_key(&caller);
        caller.filter(|_| is_known)
    }

    /// Takes one more in; and says which has to go for it, if any.
    ///
    /// # Errors
    /// Where there is no room, and none that would have to go before this one.
    pub fn enter(&mut self, wish: RequestPriority) -> Result<(Number, Option<Number>), Full> {
        let out = match self.waiting < self.most {
            true => None,
            false => Some(self.drop_last(wish)?),
        };
        let number = Number(self.number());
        self.waiting += 1;
        if wish.priority == Priority::Probe {
            self.probes.push_back(number);
            return Ok((number, out));
        }
        let turn = self.number();
        self.change(wish.caller, |client, order| {
            client.lines[wish.priority.rank()].push_back(number);
            if client.rank.is_none() {
                client.place(wish.caller, turn, order);
            }
        });
        Ok((number, out))
    }

    /// The request that goes next, given how many slots there are.
    pub fn first(&self, slots: u32) -> Option<Number> {
        let probe = self.probes.front().copied();
        probe.or_else(|| self.clients.get(&self.first_client(slots)?)?.first())
    }

    fn first_client(&self, slots: u32) -> Option<Option<Client>> {
        let mut order = self.order.values();
        order.find(|client| self.may_hold(**client, slots)).copied()
    }

    /// Whether a request that has just come goes before all that wait.
    pub fn goes_first(&self, wish: RequestPriority, slots: u32) -> bool {
        match wish.priority {
            Priority::Probe => self.probes.is_empty(),
            Priority::LookAhead => self.waiting == 0 && self.may_hold(wish.caller, slots),
            Priority::Miss | Priority::Revalidation => {
                self.probes.is_empty()
                    && self.may_hold(wish.caller, slots)
                    && match self.first_client(slots) {
                        None => true,
                        Some(first) if first == wish.caller => self.is_urgent(wish),
                        Some(first) => self.had(wish.caller) < self.had(first),
                    }
            }
        }
    }

    /// Whether its own client has nothing as urgent that waits.
    fn is_urgent(&self, wish: RequestPriority) -> bool {
        let own = self.clients.get(&wish.caller);
        own.is_none_or(|client| {
            let mut before = client.lines[..=wish.priority.rank()].iter();
            before.all(VecDeque::is_empty)
        })
    }

    /// Removes a request that has waited: served, so that it is the next
    /// client's turn, or given up.
    pub fn leave(&mut self, wish: RequestPriority, number: Number, served: bool) {
        if wish.priority == Priority::Probe {
            let before = self.probes.len();
            self.probes.retain(|other| *other != number);
            self.waiting -= before - self.probes.len();
            return;
        }
        let turn = self.number();
        let mut left = 0;
        self.change(wish.caller, |client, order| {
            let line = &mut client.lines[wish.priority.rank()];
            let before = line.len();
            line.retain(|other| *other != number);
            left = before - line.len();
            if client.first().is_none() {
                client.withdraw(order);
            } else if served && left > 0 {
                client.place(wish.caller, turn, order);
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
    pub fn may_hold(&self, client: Option<Client>, slots: u32) -> bool {
        let (own, waits) = match self.clients.get(&client) {
            Some(client) => (client.held, usize::from(client.rank.is_some())),
            None => (0, 0),
        };
        if own == 0 {
            return true;
        }
        let others_wait = self.order.len() > waits;
        if others_wait && own >= (slots / self.wanting.max(1)).max(1) {
            return false;
        }
        let free = slots.saturating_sub(self.held);
        slots < LEAST_SHARED || own < free && free > slots / 4
    }

    /// Whether the client that would go first may not, since it holds its share
    /// of the slots.
    pub fn holds_back(&self, slots: u32) -> bool {
        let mut order = self.order.values();
        order
            .next()
            .is_some_and(|client| !self.may_hold(*client, slots))
    }

    /// A client's request takes a slot.
    pub fn hold(&mut self, client: Option<Client>) {
        self.held += 1;
        self.change(client, |client, _order| client.held += 1);
    }

    /// It gives the slot back.
    pub fn release(&mut self, client: Option<Client>) {
        self.held = self.held.saturating_sub(1);
        self.change(client, |client, _order| {
            client.held = client.held.saturating_sub(1);
        });
    }

    /// Counts a request that is paid from the budget for a client.
    pub fn charge(&mut self, caller: Option<Client>, now: Moment) {
        let (caller, weight) = (self.account(caller), self.weight(now));
        let mut had = 0.0;
        self.change(caller, |client, order| {
            client.had += weight;
            had = client.had;
            if let Some(rank) = client.rank {
                client.place(caller, rank.turn, order);
            }
        });
        // What ordgate asks for itself takes nothing from any client's share.
        if caller.is_some() {
            self.heaviest = self.heaviest.max(had);
        }
    }

    /// Whether a client has had at most `LIGHT` of what the one has had that has
    /// had the most: a reserve is kept for such clients.
    pub fn is_light(&self, caller: Option<Client>) -> bool {
        self.had(self.account(caller)) <= self.heaviest * LIGHT
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
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The clients that have had the most of late, so many of them.
    pub fn heaviest(&self, most: usize, now: Moment) -> Vec<ClientShare> {
        let scale = weight(self.since, now);
        let shares = self.clients.iter().map(|(client, share)| ClientShare {
            client: *client,
            recent: share.had / scale,
            waiting: share.waiting(),
            in_flight: share.held,
        });
        let mut shares: Vec<_> = shares.collect();
        shares.sort_by(|one, other| other.recent.total_cmp(&one.recent));
        shares.truncate(most);
        shares
    }

    fn had(&self, client: Option<Client>) -> f64 {
        self.clients.get(&client).map_or(0.0, |client| client.had)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What a request counts now. Forgets clients now and then, which keeps this
    /// from growing without bound.
    fn weight(&mut self, now: Moment) -> f64 {
        if now.since(self.since) < FORGET {
            return weight(self.since, now);
        }
        let scale = weight(self.since, now);
        self.since = now;
        self.heaviest = 0.0;
        let least = 1.0 / weight(now, now + FORGET);
        self.order.clear();
        let mut gone = 0;
        self.clients.retain(|_, client| {
            client.had /= scale;
            let stays = client.wants() || client.had >= least;
            gone += usize::from(!stays);
            stays
        });
        for (caller, client) in &mut self.clients {
            if let Some(rank) = client.rank.take() {
                client.place(*caller, rank.turn, &mut self.order);
            }
            if caller.is_some() {
                self.heaviest = self.heaviest.max(client.had);
            }
        }
        if gone > self.clients.len() {
            self.clients.shrink_to_fit();
        }
        1.0
    }

    /// Changes what is known of a client.
    fn change(
        &mut self,
        caller: Option<Client>,
        change: impl FnOnce(&mut QueuedClient, &mut BTreeMap<Rank, Option<Client>>),
    ) {
        let client = self.clients.entry(caller).or_default();
        let wanted = client.wants();
        change(client, &mut self.order);
        let wants = client.wants();
        let is_unknown = !wants && client.had <= 0.0;
        self.wanting = self.wanting + u32::from(wants) - u32::from(wanted);
        if is_unknown {
            self.clients.remove(&caller);
        }
    }

    /// Makes room for a request: the client with the most in the queue loses its
    /// last, and of that the least urgent. A client that would have the most
    /// itself makes room with its own less urgent ones, or not at all.
    fn drop_last(&mut self, wish: RequestPriority) -> Result<Number, Full> {
        let is_probe = wish.priority == Priority::Probe;
        let own = match is_probe {
            true => None,
            false => self.clients.get(&wish.caller),
        };
        let own = own.map_or(0, QueuedClient::waiting);
        let waiting =
            |caller: &Option<Client>| self.clients.get(caller).map_or(0, QueuedClient::waiting);
        let most = self.order.values().max_by_key(|caller| waiting(caller));
        let most = most.copied().ok_or(Full)?;
        let (caller, least) = match is_probe || waiting(&most) > own + 1 {
            true => (most, Priority::Probe.rank()),
            false => (wish.caller, wish.priority.rank()),
        };
        let client = self.clients.get(&caller).ok_or(Full)?;
        let mut less_urgent = Priority::ALL[least + 1..].iter().rev();
        let found = less_urgent.find_map(|priority| {
            let last = client.lines[priority.rank()].back().copied()?;
            Some((*priority, last))
        });
        let (priority, last) = found.ok_or(Full)?;
        self.leave(RequestPriority { priority, caller }, last, false);
        Ok(last)
    }
}

impl QueuedClient {
    /// Puts it where it belongs in the order.
    fn place(
        &mut self,
        caller: Option<Client>,
        turn: u64,
        order: &mut BTreeMap<Rank, Option<Client>>,
    ) {
        self.withdraw(order);
        let rank = Rank {
            had: self.had.to_bits(),
            turn,
        };
        self.rank = Some(rank);
        order.insert(rank, caller);
    }

    fn withdraw(&mut self, order: &mut BTreeMap<Rank, Option<Client>>) {
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
