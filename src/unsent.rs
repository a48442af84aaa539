//! Answers that clients have not taken yet: a bound on the memory that they
//! hold, in total and per client.
//!
//! A connection registers here only once the kernel takes no more bytes of its
//! answer, so an answer that is written at once costs nothing. What a connection
//! holds is the whole buffer, not the part that is still unsent: the buffer is
//! freed as a whole. A buffer that several connections are sending, as stored
//! responses are, is counted once; its end address tells that it is the same.
//!
//! Over a bound, connections are closed: over a client's share, that client's;
//! over the total, those of the client that holds the most for longest. Of its
//! connections the one goes first whose client has taken nothing for longest. So
//! what a client that reads holds for a moment does not count for much.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::clock::Moment;
use crate::identify::{Client, Trust};
use crate::wire::activity::Activity;

/// Bounds on the bytes of answers that clients have not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// In total.
    pub total: u64,
    /// Per client; `None` without a bound. One answer alone may exceed it.
    pub per_client: Option<u64>,
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// A client's.
    Client(Client),
    /// A trusted proxy's: each of its connections counts by itself, since it
    /// serves many clients.
    Proxy(u64),
}

impl Holder {
    /// The holder of a connection from an address.
    fn of(trust: &Trust, peer: IpAddr, connection: u64) -> Self {
        match trust.holds(peer) {
            true => Self::Proxy(connection),
            false => Self::Client(peer.into()),
        }
    }
}

/// One connection, as the ledger knows it.
pub(crate) struct Account {
    ledger: Arc<Unsent>,
    connection: u64,
    holder: Holder,
}

impl Account {
    /// That of a connection from an address.
    pub(crate) fn new(ledger: &Arc<Unsent>, trust: &Trust, peer: IpAddr, connection: u64) -> Self {
        Self {
            ledger: ledger.clone(),
            connection,
            holder: Holder::of(trust, peer, connection),
        }
    }

    /// The connection is stuck. Closes connections, perhaps this one, until the
    /// bounds hold.
    pub(crate) fn hold(&self, buffer: Buffer, now: Moment, pulse: &Arc<Activity>, waker: &Waker) {
        let stuck = Stuck {
            holder: self.holder,
            buffer,
            pulse: pulse.clone(),
            waker: waker.clone(),
        };
        self.ledger.hold(self.connection, stuck, now);
    }

    /// The connection is no longer stuck, or has ended.
    pub(crate) fn release(&self) {
        self.ledger.release(self.connection);
    }
}

/// The buffer that a connection is sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// The address where it ends.
    pub(crate) end: usize,
    /// Its length.
    pub(crate) bytes: u64,
}

/// A connection that is stuck.
struct Stuck {
    holder: Holder,
    buffer: Buffer,
    /// Says since when its client has taken nothing.
    pulse: Arc<Activity>,
    /// Wakes the task of the connection, so that it ends.
    waker: Waker,
}

impl Stuck {
    /// For how long its client has taken nothing.
    fn idle(&self, now: Moment) -> Duration {
        let since = self.pulse.stuck_since();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

/// Every connection of the process that is stuck.
pub struct Unsent {
    total: AtomicU64,
    per_client: AtomicU64,
    held: AtomicU64,
    closed: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    stuck: HashMap<u64, Stuck, RandomState>,
    /// The connections of each holder that are stuck.
    holders: HashMap<Holder, HashSet<u64, RandomState>, RandomState>,
    /// Each buffer by its end, with the connections that are sending it.
    buffers: HashMap<usize, Shared, RandomState>,
    held: u64,
}

/// A buffer that one or several connections are sending.
struct Shared {
    readers: u64,
    bytes: u64,
}

/// What each connection counts for beside the time in which its client has taken
/// nothing: so that of two clients that have just got stuck the one counts for
/// more that holds more.
const GRACE: Duration = Duration::from_secs(1);

/// No bound.
const NONE: u64 = u64::MAX;

impl Default for Unsent {
    /// Nothing is stuck, and nothing bounded yet.
    fn default() -> Self {
        Self {
            total: AtomicU64::new(NONE),
            per_client: AtomicU64::new(NONE),
            held: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.held(), self.bound())
    }
}

impl Unsent {
    /// Other bounds, from the next connection that gets stuck on.
    pub fn set(&self, bounds: Bounds) {
        self.total.store(bounds.total, Relaxed);
        self.per_client
            .store(bounds.per_client.unwrap_or(NONE), Relaxed);
    }

    /// Bytes held by answers that clients have not taken.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The bound on them.
    pub fn bound(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Connections closed over a bound, since the start.
    pub fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // It is whole after each of its operations.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections, perhaps this one, until the bounds hold.
    fn hold(&self, connection: u64, stuck: Stuck, now: Moment) {
        let (total, per_client) = (self.total.load(Relaxed), self.per_client.load(Relaxed));
        let holder = stuck.holder;
        let mut cut = Vec::new();
        {
            let mut table = self.table();
            table.insert(connection, stuck);
            if per_client != NONE && matches!(holder, Holder::Client(_)) {
                table.fit_client(holder, per_client, now, &mut cut);
            }
            if table.held > total {
                // An eighth of it is freed at a time: to find who holds the most
                // means to look at every stuck connection.
                table.fit_total(total - total / 8, now, &mut cut);
            }
            self.held.store(table.held, Relaxed);
        }
        self.closed.fetch_add(cut.len() as u64, Relaxed);
        for stuck in cut {
            stuck.pulse.cut();
            stuck.waker.wake();
        }
    }

    fn release(&self, connection: u64) {
        let mut table = self.table();
        table.remove(connection);
        self.held.store(table.held, Relaxed);
    }
}

impl Table {
    fn insert(&mut self, connection: u64, stuck: Stuck) {
        self.remove(connection);
        let Buffer { end, bytes } = stuck.buffer;
        let shared = self.buffers.entry(end).or_insert(Shared {
            readers: 0,
            bytes: 0,
        });
        shared.readers += 1;
        // A connection that joined late may have been offered less of it.
        self.held += bytes.saturating_sub(shared.bytes);
        shared.bytes = shared.bytes.max(bytes);
        let own = self.holders.entry(stuck.holder).or_default();
        own.insert(connection);
        self.stuck.insert(connection, stuck);
    }

    fn remove(&mut self, connection: u64) -> Option<Stuck> {
        let stuck = self.stuck.remove(&connection)?;
        if let Some(own) = self.holders.get_mut(&stuck.holder) {
            own.remove(&connection);
            if own.is_empty() {
                self.holders.remove(&stuck.holder);
            }
        }
        if let Some(shared) = self.buffers.get_mut(&stuck.buffer.end) {
            shared.readers -= 1;
            if shared.readers == 0 {
                self.held -= shared.bytes;
                self.buffers.remove(&stuck.buffer.end);
            }
        }
        Some(stuck)
    }

    /// The bytes that a connection holds: of a shared buffer, its part.
    fn part(&self, stuck: &Stuck) -> u64 {
        let shared = self.buffers.get(&stuck.buffer.end);
        shared.map_or(0, |shared| shared.bytes / shared.readers)
    }

    /// Closes connections of a client that holds more than its share, but not
    /// the last one: a single answer may be larger than the share.
    fn fit_client(&mut self, holder: Holder, share: u64, now: Moment, cut: &mut Vec<Stuck>) {
        let connections = self.holders.get(&holder).into_iter().flatten();
        let stuck = connections.filter_map(|number| Some((*number, self.stuck.get(number)?)));
        let mut own: Vec<_> = stuck
            .map(|(connection, stuck)| (Reverse(stuck.idle(now)), connection, self.part(stuck)))
            .collect();
        let mut held: u64 = own.iter().map(|(_, _, bytes)| bytes).sum();
        if held <= share {
            return;
        }
        own.sort_unstable();
        let last = own.len() - 1;
        for (_, connection, bytes) in own.into_iter().take(last) {
            if held <= share {
                return;
            }
            held -= bytes;
            cut.extend(self.remove(connection));
        }
    }

    /// Closes connections of whoever holds the most for longest, until so many
    /// bytes are held.
    fn fit_total(&mut self, most: u64, now: Moment, cut: &mut Vec<Stuck>) {
        let idle = |connection: &u64| Some((self.stuck.get(connection)?.idle(now), *connection));
        let mut holders: Vec<Burden> = Vec::with_capacity(self.holders.len());
        for connections in self.holders.values() {
            let mut own: Vec<_> = connections.iter().filter_map(idle).collect();
            // The longest idle is taken from the end.
            own.sort_unstable();
            holders.push(Burden {
                total: own.iter().map(|stuck| self.burden(*stuck)).sum(),
                summed: own.len(),
                own,
            });
        }
        let ranked = holders.iter().enumerate();
        let mut ranked: BinaryHeap<_> = ranked.map(|(at, holder)| (holder.total, at)).collect();
        while self.held > most {
            let Some((_, at)) = ranked.pop() else {
                return;
            };
            let holder = &mut holders[at];
            let Some(longest) = holder.own.pop() else {
                continue;
            };
            holder.total = holder.total.saturating_sub(self.burden(longest));
            cut.extend(self.remove(longest.1));
            // The parts of those that send the same buffer have grown. They are
            // looked at again once an eighth has gone, and not each time.
            if holder.own.len() <= holder.summed - holder.summed.div_ceil(8) {
                holder.summed = holder.own.len();
                holder.total = holder.own.iter().map(|stuck| self.burden(*stuck)).sum();
            }
            ranked.push((holder.total, at));
        }
    }

    /// What a connection holds, times how long its client has taken nothing of
    /// it.
    fn burden(&self, (idle, connection): (Duration, u64)) -> u128 {
        let stuck = self.stuck.get(&connection);
        let bytes = stuck.map_or(0, |stuck| self.part(stuck));
        u128::from(bytes) * (idle + GRACE).as_millis()
    }
}

/// What a holder's connections hold, times how long it has taken nothing of it.
struct Burden {
    total: u128,
    /// How many connections it had when that was last added up.
    summed: usize,
    /// How long each has been idle, and its number; the longest last.
    own: Vec<(Duration, u64)>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// One stuck connection: its number, its client's, where its buffer ends,
    /// and how long that is.
    type Row = (u64, u32, usize, u64);

    struct Bench {
        unsent: Arc<Unsent>,
        pulses: HashMap<u64, Arc<Activity>>,
        seconds: u64,
    }

    impl Bench {
        fn new(total: u64, per_client: Option<u64>) -> Self {
            let unsent = Arc::new(Unsent::default());
            unsent.set(Bounds { total, per_client });
            Self {
                unsent,
                pulses: HashMap::new(),
                seconds: 0,
            }
        }

        /// Each gets stuck a second after the one before.
        fn hold(&mut self, (connection, client, end, bytes): Row) {
            let holder = Holder::Client(Client::V4(client));
            self.hold_as(holder, connection, Buffer { end, bytes });
        }

        fn hold_as(&mut self, holder: Holder, connection: u64, buffer: Buffer) {
            self.seconds += 1;
            let at = Moment::from_nanos(1 << 50) + Duration::from_secs(self.seconds);
            let pulse = self.pulses.entry(connection);
            let pulse = pulse.or_insert_with(|| Arc::new(Activity::new(at)));
            pulse.set_stuck(at, at);
            let account = Account {
                ledger: self.unsent.clone(),
                connection,
                holder,
            };
            account.hold(buffer, at, pulse, Waker::noop());
        }

        /// The connections that were closed.
        fn cut(&self) -> Vec<u64> {
            let cut = self.pulses.iter().filter(|(_, pulse)| pulse.is_cut());
            let mut cut: Vec<_> = cut.map(|(connection, _)| *connection).collect();
            cut.sort_unstable();
            assert_eq!(self.unsent.closed(), cut.len() as u64);
            cut
        }
    }

    #[test]
    fn who_holds_the_most_is_closed_the_longest_stuck_first() {
        let rows: &[(&str, &[Row], &[u64], u64)] = &[
            ("within", &[(1, 1, 100, 40), (2, 2, 200, 40)], &[], 80),
            (
                "the client with the most, its longest stuck first, until an eighth is free",
                &[
                    (1, 9, 100, 30),
                    (2, 1, 200, 30),
                    (3, 1, 300, 30),
                    (4, 2, 400, 20),
                ],
                &[2],
                80,
            ),
            (
                "among equals the longest stuck",
                &[(1, 1, 100, 50), (2, 2, 200, 50), (3, 3, 300, 10)],
                &[1],
                60,
            ),
            (
                "many connections that have just got stuck, of one client",
                &[
                    (1, 1, 100, 10),
                    (2, 2, 200, 31),
                    (3, 2, 300, 31),
                    (4, 2, 400, 31),
                ],
                &[2],
                72,
            ),
            (
                "one buffer of three clients counts once, and a third for each",
                &[
                    (4, 4, 400, 30),
                    (1, 1, 100, 60),
                    (2, 2, 100, 60),
                    (3, 3, 100, 60),
                    (5, 5, 500, 25),
                ],
                &[4],
                85,
            ),
            (
                "several connections of one client on one buffer",
                &[(1, 1, 100, 60), (2, 1, 100, 60), (3, 2, 300, 50)],
                &[1, 2],
                50,
            ),
            (
                "a single answer above the bound",
                &[(1, 1, 100, 101)],
                &[1],
                0,
            ),
        ];
        for (name, stuck, cut, held) in rows {
            let mut bench = Bench::new(100, None);
            for row in *stuck {
                bench.hold(*row);
            }
            assert_eq!(bench.cut(), *cut, "{name}");
            assert_eq!(bench.unsent.held(), *held, "{name}");
        }
    }

    #[test]
    fn a_client_that_reads_is_not_closed_for_those_that_do_not() {
        let mut bench = Bench::new(100, None);
        bench.hold((1, 1, 100, 26));
        for connection in 2..10 {
            bench.hold((connection, connection as u32, connection as usize * 100, 25));
            // It takes some, and is stuck again; its answer is the largest by a little.
            bench.hold((1, 1, 100, 26));
        }
        assert_eq!(bench.cut(), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_clients_share_is_its_own_and_one_answer_may_exceed_it() {
        let mut bench = Bench::new(1000, Some(50));
        bench.hold((1, 1, 100, 80));
        assert_eq!(bench.cut(), [0_u64; 0], "a single answer above the share");
        bench.hold((2, 2, 200, 40));
        bench.hold((3, 1, 300, 10));
        assert_eq!(bench.cut(), [1], "the longest stuck of the client above it");
        bench.hold((4, 1, 400, 40));
        assert_eq!(bench.cut(), [1], "exactly the share");
        bench.hold((5, 1, 400, 40));
        assert_eq!(bench.cut(), [1], "the same buffer again");
        assert_eq!(bench.unsent.held(), 90);
    }

    #[test]
    fn a_trusted_proxy_has_no_share() {
        let mut bench = Bench::new(100, Some(50));
        for connection in 1..=3 {
            let buffer = Buffer {
                end: connection as usize * 100,
                bytes: 30,
            };
            bench.hold_as(Holder::Proxy(connection), connection, buffer);
        }
        assert_eq!(bench.cut(), [0_u64; 0]);
        bench.hold((4, 1, 900, 20));
        assert_eq!(bench.cut(), [1], "the total holds for it as well");
    }

    #[test]
    fn what_is_released_is_counted_no_more() {
        let mut bench = Bench::new(100, None);
        bench.hold((1, 1, 100, 60));
        bench.hold((2, 2, 100, 30));
        assert_eq!(bench.unsent.held(), 60);
        bench.unsent.release(1);
        assert_eq!(
            bench.unsent.held(),
            60,
            "the other one still holds all of it"
        );
        bench.hold((2, 2, 300, 10));
        assert_eq!(
            bench.unsent.held(),
            10,
            "another buffer of the same connection"
        );
        bench.unsent.release(2);
        bench.unsent.release(2);
        assert_eq!(bench.unsent.held(), 0);
        assert_eq!(bench.cut(), [0_u64; 0]);
    }

    proptest! {
        /// Whatever gets stuck, goes on or is closed: what is counted beside the
        /// list of connections agrees with it, and the bounds hold.
        #[test]
        fn the_counts_are_true(
            steps in proptest::collection::vec((0_u64..40, 0_u32..4, 1_usize..12, 0_u8..4), 1..200),
        ) {
            let (total, share) = (300, 120);
            let mut bench = Bench::new(total, Some(share));
            for (connection, client, end, act) in steps {
                // A connection is its client's for as long as it lasts.
                let connection = connection * 4 + u64::from(client);
                match act {
                    0 => bench.unsent.release(connection),
                    _ => bench.hold((connection, client, end, end as u64 * 10)),
                }
                let table = bench.unsent.table();
                let ends: HashSet<_> = table.stuck.values().map(|stuck| stuck.buffer.end).collect();
                prop_assert_eq!(table.held, ends.iter().map(|end| *end as u64 * 10).sum::<u64>());
                prop_assert!(table.held <= total);
                prop_assert_eq!(table.buffers.len(), ends.len());
                let listed: usize = table.holders.values().map(HashSet::len).sum();
                prop_assert_eq!(listed, table.stuck.len());
                for (holder, own) in &table.holders {
                    prop_assert!(!own.is_empty());
                    prop_assert!(own.iter().all(|number| table.stuck[number].holder == *holder));
                }
            }
        }
    }
}
