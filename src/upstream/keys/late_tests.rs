//! What a request counts that was given up and may still arrive.

use std::num::NonZeroU32;

use super::*;
use crate::upstream::admission::budget::{ARRIVAL_LIMIT, SECOND_WINDOW};
use crate::upstream::admission::budgets::REMEMBERED;
use crate::upstream::client::connection::{Connection, SendPath};
use crate::upstream::endpoint::given_up::GivenUpRequests;
use crate::upstream::{Failure, Rate, admit::hold};

const MINUTE: Duration = Duration::from_millis(60_050);
/// Far longer than any window.
const FREEZE: Duration = Duration::from_secs(75);

/// An upstream with one endpoint and one key. 0 is any number.
struct At {
    keys: Arc<Keys>,
    line: Arc<AdmissionQueue>,
    lates: Arc<GivenUpRequests>,
    clock: Clock,
}

impl At {
    fn new(per_minute: u32, per_second: u32) -> Self {
        Self::sharing(&Budgets::new(), &Clock::manual(), per_minute, per_second)
    }

    fn sharing(budgets: &Arc<Budgets>, clock: &Clock, per_minute: u32, per_second: u32) -> Self {
        let rate = |n| NonZeroU32::new(n).map_or(Rate::Unlimited, Rate::Limited);
        let rates = Rates {
            per_minute: rate(per_minute),
            per_second: rate(per_second),
        };
        let line = AdmissionQueue::new(10, clock.clone());
        let server = BudgetOwner::Server("server:80".into());
        let keys = ApiKey::list("a-key").unwrap();
        let (budgets, clock) = (budgets.clone(), clock.clone());
        let keys = Keys::new(
            "default",
            keys,
            server,
            rates,
            budgets,
            line.clone(),
            clock.clone(),
        );
        Self {
            keys,
            line,
            lates: Arc::default(),
            clock,
        }
    }

    /// A request that is sent on a connection of its own.
    fn sent(&self) -> Option<(BudgetPermit, Connection)> {
        let mut grant = self.keys.take(Priority::Probe).ok()?;
        let connection = Connection::default();
        grant.mark_sent(SendPath::known(connection.clone()), &self.lates);
        Some((grant, connection))
    }

    /// Sends what there is, and gives all of it up.
    fn give_up_all(&self) -> Vec<Connection> {
        let sent: Vec<_> = std::iter::from_fn(|| self.sent()).collect();
        self.clock.advance(Duration::from_secs(2));
        sent.into_iter().map(|(_given_up, on)| on).collect()
    }

    /// How many can be sent now, all of which are answered at once.
    fn answered(&self) -> usize {
        let sent = std::iter::from_fn(|| self.sent());
        let grants = sent.map(|(mut grant, _)| {
            grant.mark_answered();
            grant
        });
        grants.collect::<Vec<_>>().len()
    }
}

#[test]
fn what_was_given_up_counts_until_its_connection_has_ended() {
    let at = At::new(30, 3);
    let connections = at.give_up_all();
    assert_eq!((connections.len(), at.lates.len()), (3, 3));
    at.clock.advance(FREEZE);
    assert!(at.sent().is_none(), "they may all arrive now");
    connections[0].ended();
    assert_eq!(at.lates.len(), 2);
    at.clock.advance(SECOND_WINDOW);
    let one = at.sent().expect("a second after it can have arrived");
    assert!(at.sent().is_none(), "the others may arrive yet");
    for connection in connections.iter().chain([&one.1]) {
        connection.ended();
    }
    drop(one);
    at.clock.advance(SECOND_WINDOW);
    assert_eq!((at.answered(), at.lates.len()), (3, 0));
    assert_eq!(at.keys.snapshots()[0].remaining, Some(30 - 3 - 4));
    at.clock.advance(MINUTE);
    assert_eq!(at.keys.snapshots()[0].remaining, Some(30));
}

#[test]
fn an_answer_to_a_later_request_shows_that_the_server_runs() {
    let at = At::new(30, 3);
    let (before, _) = at.sent().unwrap();
    let connections = {
        let (given_up, connection) = at.sent().unwrap();
        drop(given_up);
        at.clock.advance(Duration::from_secs(1));
        connection
    };
    let mut before = before;
    before.mark_answered();
    drop(before);
    assert_eq!(at.lates.len(), 1, "that was sent before it was given up");
    at.clock.advance(SECOND_WINDOW);
    assert_eq!(at.answered(), 2);
    assert_eq!(at.lates.len(), 0, "those were sent later");
    // It may need a moment to read what it has.
    at.clock.advance(SECOND_WINDOW);
    assert_eq!(at.answered(), 2);
    at.clock.advance(ARRIVAL_LIMIT);
    at.clock.advance(SECOND_WINDOW);
    assert_eq!(at.answered(), 3);
    connections.ended();
    assert_eq!(at.answered(), 0, "it has ended once, and not twice");
}

/// All that is under way hangs with a connection which the server never closes.
#[test]
fn some_are_left_to_be_sent_on_another_connection() {
    for (per_second, left) in [(3, 1), (20, 2)] {
        let at = At::new(500, per_second);
        at.keys.set_shares_connections(true);
        let mut sent: Vec<_> = std::iter::from_fn(|| at.sent()).collect();
        assert_eq!(sent.len(), per_second as usize - left);
        at.clock.advance(Duration::from_secs(10));
        let (probe, _silent) = sent.pop().unwrap();
        drop(probe);
        assert!(at.sent().is_none(), "the others may be on that connection");
        let _silent: Vec<_> = sent.into_iter().map(|(_given_up, on)| on).collect();
        assert_eq!(at.lates.len(), per_second as usize - left);
        at.clock.advance(FREEZE);
        for _ in 1..left {
            let (probe, _) = at.sent().unwrap();
            assert!(at.sent().is_none(), "one at a time");
            drop(probe);
            at.clock.advance(Duration::from_millis(1));
        }
        assert_eq!(at.answered(), 1, "of {per_second}");
        assert_eq!(at.lates.len(), 0, "the server runs");
    }
}

/// A handler that hangs takes one of each second, and no longer than until another
/// request is answered.
#[test]
fn a_server_that_runs_frees_what_hangs_in_it() {
    let at = At::new(0, 3);
    for _ in 0..20 {
        let (given_up, _hangs) = at.sent().unwrap();
        at.clock.advance(Duration::from_secs(2));
        drop(given_up);
        at.clock.advance(Duration::from_millis(1));
        assert_eq!(at.answered(), 2, "beside the one that hangs");
        at.clock.advance(ARRIVAL_LIMIT);
        at.clock.advance(SECOND_WINDOW);
    }
    assert_eq!(at.lates.len(), 0);
}

#[test]
fn what_was_never_sent_has_ended_at_once() {
    let at = At::new(30, 3);
    let permits: Vec<_> = std::iter::from_fn(|| at.keys.take(Priority::Probe).ok()).collect();
    drop(permits);
    at.clock.advance(SECOND_WINDOW);
    // Nor is anything read of a connection that had ended before.
    let (given_up, connection) = at.sent().unwrap();
    connection.ended();
    drop(given_up);
    assert_eq!(at.lates.len(), 0);
    at.clock.advance(SECOND_WINDOW);
    assert_eq!(at.answered(), 3);
}

#[test]
fn nobody_waits_for_what_nothing_limits() {
    let at = At::new(0, 0);
    for _ in 0..1000 {
        at.sent().unwrap();
    }
    assert_eq!(at.lates.len(), 0);
}

#[test]
fn a_connection_that_nobody_watches_counts_for_a_while_longer() {
    let at = At::new(30, 3);
    let connections = at.give_up_all();
    for connection in &connections {
        connection.unwatched();
    }
    at.clock.advance(SECOND_WINDOW);
    assert!(at.sent().is_none());
    at.clock.advance(ARRIVAL_LIMIT);
    assert_eq!(at.answered(), 3);
}

/// A frozen server that has all of the budget is killed and started anew: those who
/// wait are let go.
#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_when_the_connections_end() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let at = At::sharing(&budgets, &clock, 0, 2);
    // Another upstream with the same key has one of the second's two.
    let other = At::sharing(&budgets, &clock, 0, 2);
    let (given_up, connection) = at.sent().unwrap();
    drop(given_up);
    clock.advance(FREEZE);
    assert_eq!(
        at.keys.take(Priority::Probe).err(),
        Some(Denied::UntilRequestEnds)
    );
    let keys = at.keys.clone();
    let (line, wish) = (at.line.clone(), RequestPriority::own(Priority::Probe));
    let waiting = tokio::spawn(async move {
        let passed = line.admit(wish, Duration::from_secs(30), |_slot| {
            keys.take(wish).map_err(hold)
        });
        passed.await.map(|_granted| tokio::time::Instant::now())
    });
    while at.line.is_empty() {
        tokio::task::yield_now().await;
    }
    // The other one is not held up.
    for _ in 0..3 {
        assert_eq!(other.answered(), 1);
        clock.advance(SECOND_WINDOW);
    }
    let begun = tokio::time::Instant::now();
    connection.ended();
    clock.advance(ARRIVAL_LIMIT + SECOND_WINDOW);
    at.line.wake();
    let passed = waiting.await.unwrap();
    assert_eq!(passed, Ok::<_, Failure>(begun));
}

/// Whatever a reload makes of key and upstream, the request counts for the key.
#[test]
fn what_was_given_up_outlives_a_reload() {
    let (clock, budgets) = (Clock::manual(), Budgets::new());
    let at = At::sharing(&budgets, &clock, 30, 3);
    let connections = at.give_up_all();
    let other = ApiKey::list("another-key").unwrap();
    let rates = Rates {
        per_minute: Rate::Limited(NonZeroU32::new(30).unwrap()),
        per_second: Rate::Limited(NonZeroU32::new(3).unwrap()),
    };
    let server = || BudgetOwner::Server("server:80".into());
    at.keys.replace(other, server(), rates);
    clock.advance(2 * REMEMBERED);
    at.keys
        .replace(ApiKey::list("a-key").unwrap(), server(), rates);
    assert!(at.sent().is_none(), "withdrawn and back");
    let At { keys, lates, .. } = at;
    keys.retire();
    drop((keys, lates));
    clock.advance(2 * REMEMBERED);
    let next = At::sharing(&budgets, &clock, 30, 3);
    assert!(next.sent().is_none(), "at an upstream that comes after it");
    for connection in connections {
        connection.ended();
    }
    clock.advance(SECOND_WINDOW);
    assert_eq!(next.answered(), 3);
}

/// What one of several hosts has unanswered leaves a part of each second to the
/// others; alone it may have all.
#[test]
fn a_host_that_hangs_leaves_budget_to_another() {
    for (per_second, parts) in [(3, [2, 1, 0]), (20, [15, 3, 1]), (1, [1, 0, 0])] {
        let at = At::new(0, per_second);
        at.keys.set_several_hosts(true);
        let mut given_up = Vec::new();
        for (host, part) in ["http://a", "http://b", "http://c"].iter().zip(parts) {
            let host: Host = (*host).into();
            let take = || at.keys.take_at(&host, Priority::Probe);
            let sent: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
            assert_eq!(sent.len(), part, "{host} of {per_second}");
            let is_full = take().err() == Some(Denied::UntilRequestEnds);
            assert_eq!(is_full, part > 0, "{host} of {per_second}");
            assert!(
                !at.keys.all_unusable_at(&host, Duration::ZERO),
                "they are under way"
            );
            for mut grant in sent {
                let connection = Connection::default();
                grant.mark_sent(SendPath::known(connection.clone()), &at.lates);
                given_up.push(connection);
            }
            let is_full = at.keys.all_unusable_at(&host, Duration::ZERO);
            assert_eq!(is_full, part > 0, "{host} of {per_second}");
        }
        for connection in given_up {
            connection.ended();
        }
        at.clock.advance(SECOND_WINDOW);
        assert!(!at.keys.all_unusable_at(&"http://a".into(), Duration::ZERO));
        assert_eq!(at.answered(), per_second as usize);
    }
    let alone = At::new(0, 3);
    assert_eq!(alone.answered(), 3);
}
