//! Requests that were given up: how long they count in the budget.

use super::*;
use crate::upstream::admission::budget::{ARRIVAL_LIMIT, SECOND_WINDOW};
use crate::upstream::admission::budgets::REMEMBERED;
use crate::upstream::admission::queue::NotAdmitted;
use crate::upstream::connection::given_up::GivenUpRequests;
use crate::upstream::connection::{Connection, SendPath};

const MINUTE: Duration = Duration::from_millis(60_050);
/// Far longer than any window.
const FREEZE: Duration = Duration::from_secs(75);

/// An upstream with one endpoint and one key. A rate of 0 is unlimited.
struct SingleKeyUpstream {
    keys: Arc<Keys>,
    given_up: Arc<GivenUpRequests>,
    clock: Clock,
}

impl SingleKeyUpstream {
    fn new(per_minute: u32, per_second: u32) -> Self {
        Self::sharing(&Budgets::new(), &Clock::manual(), per_minute, per_second)
    }

    fn sharing(budgets: &Arc<Budgets>, clock: &Clock, per_minute: u32, per_second: u32) -> Self {
        let rates = Rates::of(per_minute, per_second);
        Self {
            keys: upstream("a-key", server(), rates, budgets, clock),
            given_up: Arc::default(),
            clock: clock.clone(),
        }
    }

    /// Sends a request on a connection of its own, if the budget permits one.
    fn send(&self) -> Option<(BudgetPermit, Connection)> {
        let mut permit = self.keys.take(Priority::Probe).ok()?;
        let connection = Connection::default();
        permit.mark_sent(SendPath::known(connection.clone()), &self.given_up);
        Some((permit, connection))
    }

    /// Uses the whole budget, and gives all these requests up.
    fn give_up_all(&self) -> Vec<Connection> {
        let sent: Vec<_> = std::iter::from_fn(|| self.send()).collect();
        self.clock.advance(Duration::from_secs(2));
        sent.into_iter().map(|(_given_up, on)| on).collect()
    }

    /// The number of requests that the budget permits now. All are answered at once.
    fn send_answered(&self) -> usize {
        let sent = std::iter::from_fn(|| self.send());
        let answered = sent.map(|(mut permit, _)| {
            permit.mark_answered();
            permit
        });
        answered.collect::<Vec<_>>().len()
    }
}

#[test]
fn a_request_given_up_counts_until_its_connection_ends() {
    let upstream = SingleKeyUpstream::new(30, 3);
    let connections = upstream.give_up_all();
    assert_eq!((connections.len(), upstream.given_up.len()), (3, 3));
    upstream.clock.advance(FREEZE);
    assert!(upstream.send().is_none(), "all may still arrive");
    connections[0].ended();
    assert_eq!(upstream.given_up.len(), 2);
    upstream.clock.advance(SECOND_WINDOW);
    let one = upstream
        .send()
        .expect("a second after the last moment it could arrive");
    assert!(upstream.send().is_none(), "the others may still arrive");
    for connection in connections.iter().chain([&one.1]) {
        connection.ended();
    }
    drop(one);
    upstream.clock.advance(SECOND_WINDOW);
    assert_eq!((upstream.send_answered(), upstream.given_up.len()), (3, 0));
    assert_eq!(upstream.keys.left(), Some(30 - 3 - 4));
    upstream.clock.advance(MINUTE);
    assert_eq!(upstream.keys.left(), Some(30));
}

#[test]
fn an_answer_to_a_later_request_ends_the_wait() {
    let upstream = SingleKeyUpstream::new(30, 3);
    let (before, _) = upstream.send().unwrap();
    let connections = {
        let (given_up, connection) = upstream.send().unwrap();
        drop(given_up);
        upstream.clock.advance(Duration::from_secs(1));
        connection
    };
    let mut before = before;
    before.mark_answered();
    drop(before);
    assert_eq!(
        upstream.given_up.len(),
        1,
        "the answered request was sent before"
    );
    upstream.clock.advance(SECOND_WINDOW);
    assert_eq!(upstream.send_answered(), 2);
    assert_eq!(
        upstream.given_up.len(),
        0,
        "the answered requests were sent later"
    );
    // The server may need a moment to read what it has received.
    upstream.clock.advance(SECOND_WINDOW);
    assert_eq!(upstream.send_answered(), 2);
    upstream.clock.advance(ARRIVAL_LIMIT);
    upstream.clock.advance(SECOND_WINDOW);
    assert_eq!(upstream.send_answered(), 3);
    connections.ended();
    assert_eq!(upstream.send_answered(), 0, "it is not ended twice");
}

/// All requests under way hang on connections that the server never closes.
#[test]
fn budget_is_left_for_another_connection() {
    for (per_second, left) in [(3, 1), (20, 2)] {
        let upstream = SingleKeyUpstream::new(500, per_second);
        upstream.keys.set_shares_connections(true);
        let mut sent: Vec<_> = std::iter::from_fn(|| upstream.send()).collect();
        assert_eq!(sent.len(), per_second as usize - left);
        upstream.clock.advance(Duration::from_secs(10));
        let (probe, _silent) = sent.pop().unwrap();
        drop(probe);
        assert!(
            upstream.send().is_none(),
            "the others may be on that connection"
        );
        let _silent: Vec<_> = sent.into_iter().map(|(_given_up, on)| on).collect();
        assert_eq!(upstream.given_up.len(), per_second as usize - left);
        upstream.clock.advance(FREEZE);
        for _ in 1..left {
            let (probe, _) = upstream.send().unwrap();
            assert!(upstream.send().is_none(), "one at a time");
            drop(probe);
            upstream.clock.advance(Duration::from_millis(1));
        }
        assert_eq!(upstream.send_answered(), 1, "of {per_second}");
        assert_eq!(upstream.given_up.len(), 0, "the server runs");
    }
}

/// A handler that hangs uses one request of each second, until another request is
/// answered.
#[test]
fn an_answer_frees_the_budget_of_hanging_requests() {
    let upstream = SingleKeyUpstream::new(0, 3);
    for _ in 0..20 {
        let (given_up, _hangs) = upstream.send().unwrap();
        upstream.clock.advance(Duration::from_secs(2));
        drop(given_up);
        upstream.clock.advance(Duration::from_millis(1));
        assert_eq!(upstream.send_answered(), 2, "besides the one that hangs");
        upstream.clock.advance(ARRIVAL_LIMIT);
        upstream.clock.advance(SECOND_WINDOW);
    }
    assert_eq!(upstream.given_up.len(), 0);
}

#[test]
fn a_request_that_was_never_sent_ends_at_once() {
    let upstream = SingleKeyUpstream::new(30, 3);
    upstream.keys.free_permits();
    upstream.clock.advance(SECOND_WINDOW);
    // The server reads nothing more of a connection that has ended.
    let (given_up, connection) = upstream.send().unwrap();
    connection.ended();
    drop(given_up);
    assert_eq!(upstream.given_up.len(), 0);
    upstream.clock.advance(SECOND_WINDOW);
    assert_eq!(upstream.send_answered(), 3);
}

#[test]
fn without_limits_no_request_is_tracked() {
    let upstream = SingleKeyUpstream::new(0, 0);
    for _ in 0..1000 {
        upstream.send().unwrap();
    }
    assert_eq!(upstream.given_up.len(), 0);
}

#[test]
fn a_connection_without_a_watcher_counts_for_a_limited_time() {
    let upstream = SingleKeyUpstream::new(30, 3);
    let connections = upstream.give_up_all();
    for connection in &connections {
        connection.unwatched();
    }
    upstream.clock.advance(SECOND_WINDOW);
    assert!(upstream.send().is_none());
    upstream.clock.advance(ARRIVAL_LIMIT);
    assert_eq!(upstream.send_answered(), 3);
}

/// A frozen server has the whole budget, and is killed and started again: the request
/// that waits is admitted.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_is_woken_when_the_connections_end() {
    let clock = Clock::manual();
    let budgets = Budgets::new();
    let upstream = SingleKeyUpstream::sharing(&budgets, &clock, 0, 2);
    // Another upstream with the same key has half of the two requests a second.
    let other = SingleKeyUpstream::sharing(&budgets, &clock, 0, 2);
    let (given_up, connection) = upstream.send().unwrap();
    drop(given_up);
    clock.advance(FREEZE);
    assert_eq!(
        upstream.keys.take(Priority::Probe).err(),
        Some(Denied::SpentUntilRequestEnds)
    );
    let keys = upstream.keys.clone();
    let priority = RequestPriority::own(Priority::Probe);
    let waiting = tokio::spawn(async move {
        let admitted = keys
            .queue
            .admit(priority, Duration::from_secs(30), |_slot| {
                keys.take(priority).map_err(NotAdmitted::from)
            });
        admitted.await.map(|_permit| tokio::time::Instant::now())
    });
    while upstream.keys.queue.is_empty() {
        tokio::task::yield_now().await;
    }
    // The other upstream is not delayed.
    for _ in 0..3 {
        assert_eq!(other.send_answered(), 1);
        clock.advance(SECOND_WINDOW);
    }
    let begun = tokio::time::Instant::now();
    connection.ended();
    clock.advance(ARRIVAL_LIMIT + SECOND_WINDOW);
    upstream.keys.queue.wake();
    let admitted = waiting.await.unwrap();
    assert_eq!(admitted, Ok(begun));
}

/// A request given up counts for its key, even if a reload removes key or upstream.
#[test]
fn a_request_given_up_counts_across_reloads() {
    let (clock, budgets) = (Clock::manual(), Budgets::new());
    let upstream = SingleKeyUpstream::sharing(&budgets, &clock, 30, 3);
    let connections = upstream.give_up_all();
    upstream.keys.replace_with("another-key", Rates::of(30, 3));
    clock.advance(2 * REMEMBERED);
    upstream.keys.replace_with("a-key", Rates::of(30, 3));
    assert!(
        upstream.send().is_none(),
        "the key was removed and configured again"
    );
    let SingleKeyUpstream { keys, given_up, .. } = upstream;
    keys.retire();
    drop((keys, given_up));
    clock.advance(2 * REMEMBERED);
    let next = SingleKeyUpstream::sharing(&budgets, &clock, 30, 3);
    assert!(next.send().is_none(), "at an upstream that is added later");
    for connection in connections {
        connection.ended();
    }
    clock.advance(SECOND_WINDOW);
    assert_eq!(next.send_answered(), 3);
}

/// Unanswered requests to one of several hosts leave a part of each second to the
/// others. A host alone may use all of it.
#[test]
fn a_host_that_hangs_leaves_budget_to_others() {
    for (per_second, parts) in [(3, [2, 1, 0]), (20, [15, 3, 1]), (1, [1, 0, 0])] {
        let upstream = SingleKeyUpstream::new(0, per_second);
        upstream.keys.set_several_hosts(true);
        let mut given_up = Vec::new();
        for (host, part) in ["http://a", "http://b", "http://c"].iter().zip(parts) {
            let host: Host = (*host).into();
            let take = || upstream.keys.take_at(&host, Priority::Probe);
            let sent: Vec<_> = std::iter::from_fn(|| take().ok()).collect();
            assert_eq!(sent.len(), part, "{host} of {per_second}");
            let is_full = take().err() == Some(Denied::SpentUntilRequestEnds);
            assert_eq!(is_full, part > 0, "{host} of {per_second}");
            assert!(
                !upstream.keys.all_unusable_at(&host, Duration::ZERO),
                "they are under way"
            );
            for mut permit in sent {
                let connection = Connection::default();
                permit.mark_sent(SendPath::known(connection.clone()), &upstream.given_up);
                given_up.push(connection);
            }
            let is_full = upstream.keys.all_unusable_at(&host, Duration::ZERO);
            assert_eq!(is_full, part > 0, "{host} of {per_second}");
        }
        for connection in given_up {
            connection.ended();
        }
        upstream.clock.advance(SECOND_WINDOW);
        assert!(
            !upstream
                .keys
                .all_unusable_at(&"http://a".into(), Duration::ZERO)
        );
        assert_eq!(upstream.send_answered(), per_second as usize);
    }
    let alone = SingleKeyUpstream::new(0, 3);
    assert_eq!(alone.send_answered(), 3);
}
