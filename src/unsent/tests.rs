//! Tables of stalled connections, and a property of the counts.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::*;

/// A stalled connection: its number, its client, its buffer's end address and
/// length.
type Row = (u64, u32, usize, u64);

struct Fixture {
    unsent: Arc<UnsentBytes>,
    activities: HashMap<u64, Arc<Activity>>,
    seconds: u64,
    entries: Vec<UnsentConnection>,
}

impl Fixture {
    fn new(total: u64, per_client: Option<u64>) -> Self {
        let unsent = Arc::new(UnsentBytes::default());
        unsent.set(UnsentBounds { total, per_client });
        Self {
            unsent,
            activities: HashMap::new(),
            seconds: 0,
            entries: Vec::new(),
        }
    }

    /// Each connection stalls a second after the one before.
    fn stall(&mut self, (connection, client, end, bytes): Row) {
        let owner = BufferOwner::Client(Client::V4(client));
        self.stall_as(owner, connection, SendBuffer { end, bytes });
    }

    fn stall_as(&mut self, owner: BufferOwner, connection: u64, buffer: SendBuffer) {
        self.seconds += 1;
        let at = Moment::from_nanos(1 << 50) + Duration::from_secs(self.seconds);
        let activity = self.activities.entry(connection);
        let activity = activity.or_insert_with(|| Arc::new(Activity::new(at)));
        activity.set_stalled(at, at);
        let mut entry = UnsentConnection {
            unsent: self.unsent.clone(),
            connection,
            owner,
            is_stalled: false,
        };
        entry.set_stalled(&[buffer], at, activity, Waker::noop());
        self.entries.push(entry);
    }

    /// The connections that were reset.
    fn reset(&self) -> Vec<u64> {
        let reset = self
            .activities
            .iter()
            .filter(|(_, activity)| activity.is_reset_requested());
        let mut reset: Vec<_> = reset.map(|(connection, _)| *connection).collect();
        reset.sort_unstable();
        assert_eq!(self.unsent.closed(), reset.len() as u64);
        reset
    }
}

#[test]
fn connections_of_the_owner_with_the_most_are_reset_the_longest_stalled_first() {
    let rows: &[(&str, &[Row], &[u64], u64)] = &[
        ("within", &[(1, 1, 100, 40), (2, 2, 200, 40)], &[], 80),
        (
            "the client with the most, its longest stalled first, until an eighth is free",
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
            "among equals the longest stalled",
            &[(1, 1, 100, 50), (2, 2, 200, 50), (3, 3, 300, 10)],
            &[1],
            60,
        ),
        (
            "many connections of one client that have just stalled",
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
            "the client with the most, though another has stalled for longer",
            &[(1, 1, 100, 10), (2, 2, 200, 95)],
            &[2],
            10,
        ),
        (
            "a single answer above the bound",
            &[(1, 1, 100, 101)],
            &[1],
            0,
        ),
    ];
    for (name, stalled, reset, held) in rows {
        let mut fixture = Fixture::new(100, None);
        for row in *stalled {
            fixture.stall(*row);
        }
        assert_eq!(fixture.reset(), *reset, "{name}");
        assert_eq!(fixture.unsent.held(), *held, "{name}");
    }
}

#[test]
fn a_client_that_reads_is_not_reset_for_those_that_do_not() {
    let mut fixture = Fixture::new(100, None);
    fixture.stall((1, 1, 100, 26));
    for connection in 2..10 {
        fixture.stall((connection, connection as u32, connection as usize * 100, 25));
        // It reads some, and stalls again; its answer is slightly the largest.
        fixture.stall((1, 1, 100, 26));
    }
    assert_eq!(fixture.reset(), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn the_bound_per_client_counts_its_own_bytes_and_one_answer_may_exceed_it() {
    let mut fixture = Fixture::new(1000, Some(50));
    fixture.stall((1, 1, 100, 80));
    assert_eq!(
        fixture.reset(),
        [0_u64; 0],
        "a single answer above the bound"
    );
    fixture.stall((2, 2, 200, 40));
    fixture.stall((3, 1, 300, 10));
    assert_eq!(
        fixture.reset(),
        [1],
        "the longest stalled of the client above it"
    );
    fixture.stall((4, 1, 400, 40));
    assert_eq!(fixture.reset(), [1], "exactly the bound");
    fixture.stall((5, 1, 400, 40));
    assert_eq!(fixture.reset(), [1], "the same buffer again");
    assert_eq!(fixture.unsent.held(), 90);
}

#[test]
fn a_trusted_proxy_has_no_bound_of_its_own() {
    let mut fixture = Fixture::new(100, Some(50));
    for connection in 1..=3 {
        let buffer = SendBuffer {
            end: connection as usize * 100,
            bytes: 30,
        };
        fixture.stall_as(BufferOwner::ProxyConnection(connection), connection, buffer);
    }
    assert_eq!(fixture.reset(), [0_u64; 0]);
    fixture.stall((4, 1, 900, 20));
    assert_eq!(fixture.reset(), [1], "the total includes it");
}

#[test]
fn a_connection_counts_until_it_is_removed() {
    let mut fixture = Fixture::new(100, None);
    fixture.stall((1, 1, 100, 60));
    fixture.stall((2, 2, 100, 30));
    assert_eq!(fixture.unsent.held(), 60);
    fixture.unsent.remove(1);
    assert_eq!(
        fixture.unsent.held(),
        60,
        "the other connection still holds all of it"
    );
    fixture.stall((2, 2, 300, 10));
    assert_eq!(
        fixture.unsent.held(),
        10,
        "another buffer of the same connection"
    );
    fixture.unsent.remove(2);
    fixture.unsent.remove(2);
    assert_eq!(fixture.unsent.held(), 0);
    assert_eq!(fixture.reset(), [0_u64; 0]);
}

proptest! {
    /// Whichever connections stall, continue or are reset: all counts agree with
    /// the list of connections, and the bounds hold.
    #[test]
    fn the_counts_agree_and_the_bounds_hold(
        steps in proptest::collection::vec((0_u64..40, 0_u32..4, 1_usize..12, 0_u8..4), 1..200),
    ) {
        let (total, bound) = (300, 120);
        let mut fixture = Fixture::new(total, Some(bound));
        for (connection, client, end, act) in steps {
            // A connection keeps its client.
            let connection = connection * 4 + u64::from(client);
            match act {
                0 => fixture.unsent.remove(connection),
                _ => fixture.stall((connection, client, end, end as u64 * 10)),
            }
            let table = fixture.unsent.table();
            let ends: HashSet<_> = table.connections.values().map(|stalled| stalled.buffers[0].end).collect();
            prop_assert_eq!(table.held(), ends.iter().map(|end| *end as u64 * 10).sum::<u64>());
            prop_assert!(table.held() <= total);
            prop_assert_eq!(table.buffers.len(), ends.len());
            let listed: usize = table.owners.values().map(HashSet::len).sum();
            prop_assert_eq!(listed, table.connections.len());
            for (owner, own) in &table.owners {
                prop_assert!(!own.is_empty());
                prop_assert!(own.iter().all(|number| table.connections[number].owner == *owner));
            }
        }
    }
}
