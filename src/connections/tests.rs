//! Who makes room, and what counts.

use std::time::Duration;

use super::*;

const BOUNDS: Bounds = Bounds {
    connections: 6,
    unread: 100,
    per_client: Some(PerClient {
        connections: 4,
        unread: 60,
    }),
};

struct Harness {
    table: Arc<Connections>,
    clock: Clock,
    trust: TrustedProxies,
    next: u64,
}

impl Harness {
    fn new() -> Self {
        let table = Arc::<Connections>::default();
        table.set(BOUNDS);
        let trust = TrustedProxies {
            networks: vec!["10.9.0.0/16".parse().unwrap()],
            write_forwarded: false,
        };
        Self {
            table,
            clock: Clock::manual(),
            trust,
            next: 1,
        }
    }

    /// Opens a connection from this client, a second after the one before.
    fn open(&mut self, client: [u8; 4]) -> Option<OpenConnection> {
        self.clock.advance(Duration::from_secs(1));
        self.next += 1;
        let client = client.into();
        self.table.open(client, &self.trust, self.next, &self.clock)
    }

    fn opened(&mut self, client: [u8; 4]) -> OpenConnection {
        let opened = self.open(client);
        opened.unwrap_or_else(|| panic!("there is no room for {client:?}"))
    }

    /// How many were turned away: of all, of one client.
    fn turned_away(&self) -> (u64, u64) {
        let table = &self.table;
        let [all, own] = [&table.turned_away, &table.turned_away_client];
        (all.load(Relaxed), own.load(Relaxed))
    }

    fn unread(&self) -> u64 {
        self.table.unread.load(Relaxed)
    }
}

/// Which of them must close.
fn closed<const N: usize>(all: [&OpenConnection; N]) -> [bool; N] {
    all.map(|one| one.activity().is_closed())
}

const ONE: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const PROXY: [u8; 4] = [10, 9, 0, 1];

#[test]
fn at_the_limit_the_client_with_most_loses_the_connection_that_is_idle_longest() {
    let mut harness = Harness::new();
    let first = harness.opened(ONE);
    let second = harness.opened(ONE);
    let third = harness.opened(ONE);
    let others = [OTHER, [10, 0, 0, 3], [10, 0, 0, 4]].map(|client| harness.opened(client));
    let busy = first.activity().busy();
    let next = harness.opened([10, 0, 0, 5]);
    assert_eq!(
        closed([&first, &second, &third, &next]),
        [false, true, false, false]
    );
    assert!(others.iter().all(|other| !other.activity().is_closed()));
    assert_eq!(harness.table.open.load(Relaxed), 6);
    // A connection that has made progress since is not the one.
    drop((busy, next));
    first.activity().record(harness.clock.now());
    let _next = [harness.opened([10, 0, 0, 6]), harness.opened([10, 0, 0, 7])];
    assert_eq!(closed([&first, &third]), [false, true]);
    drop(others);
    assert_eq!(harness.table.open.load(Relaxed), 3);
}

#[test]
fn connections_at_work_make_room_only_for_a_client_with_fewer() {
    let mut harness = Harness::new();
    let clients = [ONE, OTHER, [10, 0, 0, 3], [10, 0, 0, 4], [10, 0, 0, 5]];
    let mut open: Vec<_> = clients.map(|client| harness.opened(client)).into();
    open.push(harness.opened(ONE));
    let busy: Vec<_> = open.iter().map(|one| one.activity().busy()).collect();
    assert!(harness.open(OTHER).is_none());
    assert_eq!(harness.turned_away(), (1, 0));
    let _next = harness.opened([10, 0, 0, 6]);
    assert_eq!(closed([&open[0], &open[5]]), [true, false]);
    drop(busy);
}

#[test]
fn a_client_at_its_limit_loses_an_idle_connection_of_its_own() {
    let mut harness = Harness::new();
    let open: Vec<_> = (0..4).map(|_| harness.opened(ONE)).collect();
    let _next = harness.opened(ONE);
    assert_eq!(closed([&open[0], &open[1]]), [true, false]);
    let _busy: Vec<_> = open.iter().map(|one| one.activity().busy()).collect();
    let _idle = harness.opened(ONE);
    let one_more = harness.opened(ONE);
    assert_eq!(harness.turned_away(), (0, 0), "the one just opened is idle");
    let _busy = one_more.activity().busy();
    assert!(harness.open(ONE).is_none());
    assert_eq!(harness.turned_away(), (0, 1));
    assert_eq!(closed([&open[1], &open[2], &open[3]]), [false; 3]);
    // A trusted proxy serves many clients.
    let mut harness = Harness::new();
    let proxy: Vec<_> = (0..6).map(|_| harness.opened(PROXY)).collect();
    assert!(proxy.iter().all(|one| !one.activity().is_closed()));
}

#[test]
fn unread_bytes_close_the_connection_that_is_stalled_longest() {
    let mut harness = Harness::new();
    let (first, second) = (harness.opened(ONE), harness.opened(ONE));
    let other = harness.opened(OTHER);
    let held = [
        Held::new(first.activity(), 1, 12),
        Held::new(second.activity(), 2, 12),
        Held::new(other.activity(), 3, 60),
    ];
    assert_eq!(harness.unread(), 84);
    held[2].set(80);
    assert_eq!(
        closed([&first, &second, &other]),
        [false, false, true],
        "it holds most"
    );
    assert_eq!(harness.unread(), 24);
    let more = [45, 40].map(|bytes| Held::new(second.activity(), bytes, bytes as u64));
    assert_eq!(
        closed([&first, &second]),
        [true, false],
        "more than one client may"
    );
    drop((held, more));
    assert_eq!(harness.unread(), 0);
    // One answer may be larger than the bound of its client, but not than that of all.
    let alone = Held::new(second.activity(), 5, 90);
    assert_eq!(closed([&second]), [false]);
    alone.set(101);
    assert_eq!(closed([&second]), [true]);
    assert_eq!(harness.unread(), 0);
}

#[test]
fn a_buffer_that_several_send_counts_once() {
    let mut harness = Harness::new();
    let open: Vec<_> = (0..4).map(|_| harness.opened(ONE)).collect();
    let other = harness.opened(OTHER);
    let mut held: Vec<_> = open
        .iter()
        .map(|one| Held::new(one.activity(), 1, 50))
        .collect();
    held.push(Held::new(other.activity(), 1, 50));
    held.push(Held::new(other.activity(), 1, 50));
    assert_eq!(harness.unread(), 50);
    assert!(open.iter().all(|one| !one.activity().is_closed()));
    // One connection sends it twice.
    held.truncate(5);
    held.drain(..4);
    assert_eq!(harness.unread(), 50);
    drop(held);
    assert_eq!(harness.unread(), 0);
}

/// Many clients with one connection each, and one with a tenth of all.
#[test]
fn with_many_rows_a_sample_makes_room() {
    let harness = Harness::new();
    let many = Bounds {
        connections: 4000,
        per_client: None,
        ..BOUNDS
    };
    harness.table.set(many);
    let Harness {
        table,
        clock,
        trust,
        ..
    } = &harness;
    let open = |nth: u32| {
        let peer = if nth.is_multiple_of(10) {
            ONE.into()
        } else {
            nth.to_be_bytes().into()
        };
        table.open(peer, trust, nth.into(), clock).unwrap()
    };
    let all: Vec<_> = (0..4000).map(open).collect();
    let next: Vec<_> = (4000..4200)
        .filter(|nth: &u32| !nth.is_multiple_of(10))
        .map(open)
        .collect();
    let of_most = all.iter().step_by(10);
    let hostile = of_most.filter(|one| one.activity().is_closed()).count();
    assert!(
        hostile * 10 >= next.len() * 9,
        "{hostile} of {}",
        next.len()
    );
    assert_eq!(table.open.load(Relaxed), 4000);
}
