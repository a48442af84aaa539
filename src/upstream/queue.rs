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

use super::{Priority, Wish};
use crate::clock::Moment;
use crate::identify::Caller;

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
    clients: HashMap<Option<Caller>, Client, RandomState>,
    /// The clients that wait, in the order in which they go.
    order: BTreeMap<Rank, Option<Caller>>,
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
struct Client {
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
    pub client: Option<Caller>,
    /// Its requests of late; each counts half as much after [`HALF_LIFE`].
    pub recent: f64,
    /// Its requests that wait.
    pub waiting: usize,
    /// Its requests in flight.
    pub in_flight: u32,
}

impl Client {
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
    pub fn account(&self, caller: Option<Caller>) -> Option<Caller> {
        let is_known = self.clients.len() < MOST_CLIENTS || self.clients.contains_key(&caller);
        caller.filter(|_| is_known)
    }

    /// Takes one more in; and says which has to go for it, if any.
    ///
    /// # Errors
    /// Where there is no room, and none that would have to go before this one.
    pub fn enter(&mut self, wish: Wish) -> Result<(Number, Option<Number>), Full> {
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

    fn first_client(&self, slots: u32) -> Option<Option<Caller>> {
        let mut order = self.order.values();
        order.find(|client| self.may_hold(**client, slots)).copied()
    }

    /// Whether a request that has just come goes before all that wait.
    pub fn goes_first(&self, wish: Wish, slots: u32) -> bool {
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
    fn is_urgent(&self, wish: Wish) -> bool {
        let own = self.clients.get(&wish.caller);
        own.is_none_or(|client| {
            let mut before = client.lines[..=wish.priority.rank()].iter();
            before.all(VecDeque::is_empty)
        })
    }

    /// Removes a request that has waited: served, so that it is the next
    /// client's turn, or given up.
    pub fn leave(&mut self, wish: Wish, number: Number, served: bool) {
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
    pub fn may_hold(&self, client: Option<Caller>, slots: u32) -> bool {
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
    pub fn hold(&mut self, client: Option<Caller>) {
        self.held += 1;
        self.change(client, |client, _order| client.held += 1);
    }

    /// It gives the slot back.
    pub fn release(&mut self, client: Option<Caller>) {
        self.held = self.held.saturating_sub(1);
        self.change(client, |client, _order| {
            client.held = client.held.saturating_sub(1);
        });
    }

    /// Counts a request that is paid from the budget for a client.
    pub fn charge(&mut self, caller: Option<Caller>, now: Moment) {
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
    pub fn is_light(&self, caller: Option<Caller>) -> bool {
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

    fn had(&self, client: Option<Caller>) -> f64 {
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
        caller: Option<Caller>,
        change: impl FnOnce(&mut Client, &mut BTreeMap<Rank, Option<Caller>>),
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
    fn drop_last(&mut self, wish: Wish) -> Result<Number, Full> {
        let is_probe = wish.priority == Priority::Probe;
        let own = match is_probe {
            true => None,
            false => self.clients.get(&wish.caller),
        };
        let own = own.map_or(0, Client::waiting);
        let waiting = |caller: &Option<Caller>| self.clients.get(caller).map_or(0, Client::waiting);
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
        self.leave(Wish { priority, caller }, last, false);
        Ok(last)
    }
}

impl Client {
    /// Puts it where it belongs in the order.
    fn place(
        &mut self,
        caller: Option<Caller>,
        turn: u64,
        order: &mut BTreeMap<Rank, Option<Caller>>,
    ) {
        self.withdraw(order);
        let rank = Rank {
            had: self.had.to_bits(),
            turn,
        };
        self.rank = Some(rank);
        order.insert(rank, caller);
    }

    fn withdraw(&mut self, order: &mut BTreeMap<Rank, Option<Caller>>) {
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
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn wish(priority: Priority, caller: u32) -> Wish {
        Wish {
            priority,
            caller: Some(Caller::V4(caller)),
        }
    }

    /// Serves all that wait; answers with their order.
    fn served(queue: &mut Queue, waiting: &mut Vec<(Number, Wish)>) -> Vec<Wish> {
        let mut order = Vec::new();
        while let Some(first) = queue.first(MANY) {
            let at = waiting.iter().position(|(number, _)| *number == first);
            let (number, wish) = waiting.remove(at.unwrap());
            queue.leave(wish, number, true);
            order.push(wish);
        }
        assert!(queue.is_empty());
        order
    }

    const MANY: u32 = 1000;
    const MISS: Priority = Priority::Miss;
    const AGAIN: Priority = Priority::Revalidation;

    fn client(number: u32) -> Option<Caller> {
        Some(Caller::V4(number))
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn clients_take_turns_whatever_the_priority_and_priority_counts_within_a_client() {
        let mut queue = Queue::new(100);
        let mut waiting = Vec::new();
        for wish in [
            wish(AGAIN, 1),
            wish(MISS, 1),
            wish(MISS, 1),
            wish(MISS, 2),
            wish(AGAIN, 3),
            wish(MISS, 2),
            wish(Priority::Probe, 4),
            wish(MISS, 5),
        ] {
            waiting.push((queue.enter(wish).unwrap().0, wish));
        }
        let order = served(&mut queue, &mut waiting);
        let expected = [
            wish(Priority::Probe, 4),
            wish(MISS, 1),
            wish(MISS, 2),
            wish(AGAIN, 3),
            wish(MISS, 5),
            wish(MISS, 1),
            wish(MISS, 2),
            wish(AGAIN, 1),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn the_client_that_has_had_least_goes_first_and_what_it_had_fades() {
        let mut queue = Queue::new(100);
        for _ in 0..8 {
            queue.charge(client(1), at(0));
        }
        queue.charge(client(2), at(0));
        let greedy = queue.enter(wish(MISS, 1)).unwrap().0;
        assert!(queue.goes_first(wish(AGAIN, 2), MANY));
        let modest = queue.enter(wish(AGAIN, 2)).unwrap().0;
        assert_eq!(queue.first(MANY), Some(modest));
        assert!(queue.is_light(client(2)) && queue.is_light(client(3)));
        assert!(!queue.is_light(client(1)));
        // Two half-lives later what the first had counts as two, which is less
        // than three.
        for _ in 0..3 {
            queue.charge(client(2), at(60));
        }
        assert_eq!(queue.first(MANY), Some(greedy));
        let shares = queue.heaviest(1, at(60));
        assert_eq!(shares.len(), 1);
        assert_eq!((shares[0].client, shares[0].waiting), (client(2), 1));
        assert!((shares[0].recent - 3.25).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn clients_that_want_nothing_are_forgotten_in_time() {
        let mut queue = Queue::new(100);
        for number in 0..1000 {
            queue.charge(client(number), at(0));
        }
        let waits = queue.enter(wish(MISS, 7)).unwrap().0;
        queue.hold(client(8));
        assert_eq!(queue.clients(), 1000);
        queue.charge(client(2000), at(130));
        assert_eq!(queue.clients(), 3, "one waits, one holds, one is new");
        queue.release(client(8));
        queue.leave(wish(MISS, 7), waits, false);
        // An age later nothing overflows.
        queue.charge(client(1), at(10_000_000));
        assert_eq!(queue.clients(), 1);
        assert!(!queue.is_light(client(1)) && queue.is_light(client(2)));
    }

    #[test]
    fn clients_beyond_those_that_are_told_apart_count_as_one() {
        let mut queue = Queue::new(100);
        for number in 0..2 * MOST_CLIENTS as u32 {
            queue.charge(client(number), at(0));
        }
        assert_eq!(
            queue.clients(),
            MOST_CLIENTS + 1,
            "and the one for all others"
        );
        assert_eq!(queue.account(client(1)), client(1));
        assert_eq!(queue.account(client(u32::MAX)), None);
    }

    #[test]
    fn a_client_alone_holds_half_of_the_slots_and_the_others_what_is_fair() {
        // Slots; then how many each client gets to hold, one after another, if
        // it takes as many as it may and gives none back.
        for (slots, expected) in [
            (32, &[16, 8, 1, 1, 1, 1, 1, 1, 1, 1, 0][..]),
            (16, &[8, 4, 1, 1, 1, 1, 0]),
            (4, &[2, 1, 1, 0]),
            // There are too few to keep any.
            (3, &[3, 0]),
            (1, &[1, 0]),
        ] {
            let mut queue = Queue::new(100);
            let mut taken = 0;
            for (at, expected) in expected.iter().enumerate() {
                let client = client(at as u32);
                let mut own = 0;
                while taken < slots && queue.may_hold(client, slots) {
                    queue.hold(client);
                    (own, taken) = (own + 1, taken + 1);
                }
                assert_eq!(own, *expected, "client {at} of {slots} slots");
            }
        }
    }

    #[test]
    fn a_client_over_its_share_of_slots_holds_up_nobody() {
        let mut queue = Queue::new(100);
        for _ in 0..16 {
            assert!(queue.goes_first(wish(MISS, 1), 32));
            queue.hold(client(1));
        }
        assert!(!queue.goes_first(wish(MISS, 1), 32));
        let greedy = queue.enter(wish(MISS, 1)).unwrap().0;
        assert_eq!(queue.first(32), None);
        assert!(queue.holds_back(32));
        let modest = queue.enter(wish(MISS, 2)).unwrap().0;
        assert_eq!(queue.first(32), Some(modest), "it is passed over");
        queue.leave(wish(MISS, 2), modest, true);
        queue.hold(client(2));
        // As long as others wait, an even share is the most.
        for _ in 0..6 {
            queue.release(client(1));
        }
        assert_eq!(queue.first(32), Some(greedy));
        let others = [3, 4].map(|number| queue.enter(wish(MISS, number)).unwrap().0);
        queue.charge(client(3), at(0));
        queue.charge(client(4), at(0));
        assert_eq!(queue.first(32), Some(others[0]), "four want some: 8 each");
        queue.leave(wish(MISS, 3), others[0], false);
        queue.leave(wish(MISS, 4), others[1], false);
        assert_eq!(queue.first(32), Some(greedy));
    }

    #[test]
    fn a_request_that_is_given_up_costs_nobody_a_turn() {
        let mut queue = Queue::new(100);
        let numbers = [1, 1, 2].map(|caller| queue.enter(wish(MISS, caller)).unwrap().0);
        queue.leave(wish(MISS, 1), numbers[0], false);
        assert_eq!(queue.first(MANY), Some(numbers[1]));
        queue.leave(wish(MISS, 1), numbers[0], false);
        assert_eq!(queue.len(), 2, "it has gone already");
    }

    #[test]
    fn a_full_queue_drops_the_last_of_the_client_with_the_most() {
        let mut queue = Queue::new(4);
        for _ in 0..3 {
            queue.enter(wish(MISS, 1)).unwrap();
        }
        let again = queue.enter(wish(AGAIN, 1)).unwrap().0;
        assert_eq!(
            queue.enter(wish(AGAIN, 1)),
            Err(Full),
            "its own are the most"
        );
        let (miss, out) = queue.enter(wish(MISS, 1)).unwrap();
        assert_eq!(out, Some(again), "its own that is less urgent");
        assert_eq!(queue.enter(wish(MISS, 1)), Err(Full));
        let (second, out) = queue.enter(wish(AGAIN, 2)).unwrap();
        assert_eq!(out, Some(miss), "whatever the priority");
        let (_, out) = queue.enter(wish(Priority::Probe, 3)).unwrap();
        assert!(out.is_some() && out != Some(second));
        assert_eq!(queue.len(), 4);
        let mut probes = Queue::new(1);
        probes.enter(wish(Priority::Probe, 1)).unwrap();
        assert_eq!(probes.enter(wish(Priority::Probe, 1)), Err(Full));
        assert_eq!(probes.enter(wish(MISS, 1)), Err(Full));
    }

    proptest! {
        /// Whatever comes and goes, the bound holds, probes go first, a client's
        /// misses go before its revalidations, and of two clients that both wait
        /// neither is served twice between two turns of the other.
        #[test]
        fn turns_are_even(
            steps in proptest::collection::vec((0_usize..3, 0_u32..4, 0_u8..4), 1..300),
        ) {
            let mut queue = Queue::new(20);
            let mut waiting: Vec<(Number, Wish)> = Vec::new();
            for (priority, caller, act) in steps {
                let wish = wish(Priority::ALL[priority], caller);
                match act {
                    0 | 1 => match queue.enter(wish) {
                        Ok((number, out)) => {
                            waiting.retain(|(other, _)| Some(*other) != out);
                            waiting.push((number, wish));
                        }
                        Err(Full) => prop_assert_eq!(queue.len(), 20),
                    },
                    2 => {
                        if let Some(at) = waiting.iter().position(|(_, w)| *w == wish) {
                            let (number, wish) = waiting.remove(at);
                            queue.leave(wish, number, false);
                        }
                    }
                    _ => {
                        if let Some(first) = queue.first(MANY) {
                            let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                            let (number, wish) = waiting.remove(at);
                            let is_probe = |w: &Wish| w.priority == Priority::Probe;
                            prop_assert!(
                                is_probe(&wish) || !waiting.iter().any(|(_, w)| is_probe(w))
                            );
                            let own = waiting.iter().filter(|(_, w)| w.caller == wish.caller);
                            let urgent = own.map(|(_, w)| w.priority).min();
                            prop_assert!(urgent.is_none_or(|urgent| wish.priority <= urgent));
                            queue.leave(wish, number, true);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert!(queue.len() <= 20);
            }
            let mut order = served(&mut queue, &mut waiting);
            order.retain(|wish| wish.priority != Priority::Probe);
            for (one, other) in [(0, 1), (1, 2), (2, 3)] {
                let of = |w: &&Wish| [client(one), client(other)].contains(&w.caller);
                let turns: Vec<_> = order.iter().filter(of).map(|w| w.caller).collect();
                // Once one has no more, the rest is the other's.
                let last = |c: u32| turns.iter().rposition(|t| *t == client(c));
                let both = last(one).min(last(other)).unwrap_or(0);
                let even = turns[..both].windows(2).all(|pair| pair[0] != pair[1]);
                prop_assert!(even, "{turns:?}");
            }
        }

        /// What is counted beside the lists agrees with them, whatever happens;
        /// and as long as somebody waits who holds no slot, somebody may go.
        #[test]
        fn the_counts_are_true(
            steps in proptest::collection::vec((0_u32..5, 0_u8..6, 0_u64..40), 1..200),
            slots in 1_u32..12,
        ) {
            let mut queue = Queue::new(50);
            let mut waiting: Vec<(Number, Wish)> = Vec::new();
            let mut held: Vec<Option<Caller>> = Vec::new();
            let mut now = 0;
            for (caller, act, pause) in steps {
                now += pause;
                match act {
                    0 | 1 => {
                        let wish = wish(MISS, caller);
                        waiting.push((queue.enter(wish).unwrap().0, wish));
                        if waiting.len() == 50 {
                            break;
                        }
                    }
                    2 | 3 if (held.len() as u32) < slots => {
                        if let Some(first) = queue.first(slots) {
                            let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                            let (number, wish) = waiting.remove(at);
                            queue.hold(wish.caller);
                            queue.charge(wish.caller, moment(now));
                            held.push(wish.caller);
                            queue.leave(wish, number, true);
                        }
                    }
                    _ => {
                        if let Some(client) = held.pop() {
                            queue.release(client);
                        }
                    }
                }
                let clients = waiting.iter().map(|(_, w)| w.caller);
                let mut wanting: Vec<_> = clients.chain(held.iter().copied()).collect();
                wanting.sort_by_key(|client| format!("{client:?}"));
                wanting.dedup();
                prop_assert_eq!(queue.wanting as usize, wanting.len());
                prop_assert_eq!(queue.held as usize, held.len());
                let holds_none = |(_, w): &(Number, Wish)| !held.contains(&w.caller);
                if waiting.iter().any(holds_none) {
                    prop_assert!(queue.first(slots).is_some());
                }
            }
            for client in held {
                queue.release(client);
            }
            for (number, wish) in waiting {
                queue.leave(wish, number, false);
            }
            prop_assert_eq!((queue.wanting, queue.held, queue.order.len()), (0, 0, 0));
            prop_assert!(queue.is_empty());
        }
    }

    /// [`at`], where that name is a position's.
    fn moment(seconds: u64) -> Moment {
        at(seconds)
    }
}
