//! The order of requests, and the slots that a client may take.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

fn request(priority: Priority, number: u32) -> RequestPriority {
    RequestPriority::of(Client::V4(number), priority)
}

/// Serves all waiting requests; returns their order.
fn served(
    queue: &mut FairOrder,
    waiting: &mut Vec<(Ticket, RequestPriority)>,
) -> Vec<RequestPriority> {
    let mut order = Vec::new();
    while let Some(first) = queue.first(MANY) {
        let at = waiting.iter().position(|(ticket, _)| *ticket == first);
        let (ticket, request) = waiting.remove(at.unwrap());
        queue.remove(request, ticket, true);
        order.push(request);
    }
    assert_eq!(queue.len(), 0);
    order
}

const MANY: u32 = 1000;
const MISS: Priority = Priority::Miss;
const AGAIN: Priority = Priority::Revalidation;

fn client(number: u32) -> Option<Client> {
    Some(Client::V4(number))
}

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
}

#[test]
fn clients_alternate_and_priority_counts_within_a_client() {
    let mut queue = FairOrder::new(100);
    let mut waiting = Vec::new();
    for request in [
        request(AGAIN, 1),
        request(MISS, 1),
        request(MISS, 1),
        request(MISS, 2),
        request(AGAIN, 3),
        request(MISS, 2),
        request(Priority::Probe, 4),
        request(MISS, 5),
    ] {
        waiting.push((queue.push(request).unwrap().0, request));
    }
    let order = served(&mut queue, &mut waiting);
    let expected = [
        request(Priority::Probe, 4),
        request(MISS, 1),
        request(MISS, 2),
        request(AGAIN, 3),
        request(MISS, 5),
        request(MISS, 1),
        request(MISS, 2),
        request(AGAIN, 1),
    ];
    assert_eq!(order, expected);
}

#[test]
fn the_client_with_the_least_usage_goes_first_and_usage_decays() {
    let mut queue = FairOrder::new(100);
    for _ in 0..8 {
        queue.charge(client(1), 1.0, at(0));
    }
    queue.charge(client(2), 1.0, at(0));
    let greedy = queue.push(request(MISS, 1)).unwrap().0;
    assert!(queue.goes_first(request(AGAIN, 2), MANY));
    let modest = queue.push(request(AGAIN, 2)).unwrap().0;
    assert_eq!(queue.first(MANY), Some(modest));
    // Two half-lives later the usage of the first is two, which is less than
    // three.
    for _ in 0..3 {
        queue.charge(client(2), 1.0, at(60));
    }
    assert_eq!(queue.first(MANY), Some(greedy));
    let usage = queue.busiest_clients(1, at(60));
    assert_eq!(usage.len(), 1);
    assert_eq!((usage[0].client, usage[0].waiting), (client(2), 1));
    assert!((usage[0].recent - 3.25).abs() < 1e-9, "{usage:?}");
}

#[test]
fn idle_clients_are_forgotten() {
    let mut queue = FairOrder::new(100);
    for ticket in 0..1000 {
        queue.charge(client(ticket), 1.0, at(0));
    }
    let waits = queue.push(request(MISS, 7)).unwrap().0;
    queue.take_slot(client(8));
    assert_eq!(queue.active_clients(), 1000);
    queue.charge(client(2000), 1.0, at(130));
    assert_eq!(
        queue.active_clients(),
        3,
        "one waits, one uses a slot, one is new"
    );
    queue.release_slot(client(8));
    queue.remove(request(MISS, 7), waits, false);
    // After a very long time nothing overflows.
    queue.charge(client(1), 1.0, at(10_000_000));
    assert_eq!(queue.active_clients(), 1);
}

#[test]
fn untracked_clients_count_as_one() {
    let mut queue = FairOrder::new(100);
    for ticket in 0..2 * MAX_CLIENTS as u32 {
        queue.charge(client(ticket), 1.0, at(0));
    }
    assert_eq!(
        queue.active_clients(),
        MAX_CLIENTS + 1,
        "and one for all others"
    );
    assert_eq!(queue.tracked(client(1)), client(1));
    assert_eq!(queue.tracked(client(u32::MAX)), None);
}

#[test]
fn one_client_takes_half_of_the_slots_and_others_a_fair_share() {
    // Slots; then how many each client takes, one after another, if it takes as
    // many as it may and releases none.
    for (slots, expected) in [
        (32, &[16, 8, 1, 1, 1, 1, 1, 1, 1, 1, 0][..]),
        (16, &[8, 4, 1, 1, 1, 1, 0]),
        (4, &[2, 1, 1, 0]),
        // Too few to reserve any.
        (3, &[3, 0]),
        (1, &[1, 0]),
    ] {
        let mut queue = FairOrder::new(100);
        let mut taken = 0;
        for (at, expected) in expected.iter().enumerate() {
            let client = client(at as u32);
            let mut own = 0;
            while taken < slots && queue.may_take_slot(client, slots) {
                queue.take_slot(client);
                (own, taken) = (own + 1, taken + 1);
            }
            assert_eq!(own, *expected, "client {at} of {slots} slots");
        }
    }
}

#[test]
fn a_client_over_its_share_of_slots_delays_no_other() {
    let mut queue = FairOrder::new(100);
    for _ in 0..16 {
        assert!(queue.goes_first(request(MISS, 1), 32));
        queue.take_slot(client(1));
    }
    assert!(!queue.goes_first(request(MISS, 1), 32));
    let greedy = queue.push(request(MISS, 1)).unwrap().0;
    assert_eq!(queue.first(32), None);
    let modest = queue.push(request(MISS, 2)).unwrap().0;
    assert_eq!(queue.first(32), Some(modest), "it is skipped");
    queue.remove(request(MISS, 2), modest, true);
    queue.take_slot(client(2));
    // While others wait, an even share is the maximum.
    for _ in 0..6 {
        queue.release_slot(client(1));
    }
    assert_eq!(queue.first(32), Some(greedy));
    let others = [3, 4].map(|ticket| queue.push(request(MISS, ticket)).unwrap().0);
    queue.charge(client(3), 1.0, at(0));
    queue.charge(client(4), 1.0, at(0));
    assert_eq!(queue.first(32), Some(others[0]), "four compete: 8 each");
    queue.remove(request(MISS, 3), others[0], false);
    queue.remove(request(MISS, 4), others[1], false);
    assert_eq!(queue.first(32), Some(greedy));
}

#[test]
fn a_request_given_up_does_not_change_the_order() {
    let mut queue = FairOrder::new(100);
    let tickets = [1, 1, 2].map(|number| queue.push(request(MISS, number)).unwrap().0);
    queue.remove(request(MISS, 1), tickets[0], false);
    assert_eq!(queue.first(MANY), Some(tickets[1]));
    queue.remove(request(MISS, 1), tickets[0], false);
    assert_eq!(queue.len(), 2, "it was removed already");
}

#[test]
fn a_full_queue_displaces_the_last_request_of_the_client_with_the_most() {
    let mut queue = FairOrder::new(4);
    for _ in 0..3 {
        queue.push(request(MISS, 1)).unwrap();
    }
    let again = queue.push(request(AGAIN, 1)).unwrap().0;
    assert_eq!(
        queue.push(request(AGAIN, 1)),
        Err(QueueFull),
        "its own client has the most"
    );
    let (miss, displaced) = queue.push(request(MISS, 1)).unwrap();
    assert_eq!(
        displaced,
        Some(again),
        "a less urgent one of the same client"
    );
    assert_eq!(queue.push(request(MISS, 1)), Err(QueueFull));
    let (second, displaced) = queue.push(request(AGAIN, 2)).unwrap();
    assert_eq!(displaced, Some(miss), "whatever the priority");
    let (_, displaced) = queue.push(request(Priority::Probe, 3)).unwrap();
    assert!(displaced.is_some() && displaced != Some(second));
    assert_eq!(queue.len(), 4);
    let mut probes = FairOrder::new(1);
    probes.push(request(Priority::Probe, 1)).unwrap();
    assert_eq!(probes.push(request(Priority::Probe, 1)), Err(QueueFull));
    assert_eq!(probes.push(request(MISS, 1)), Err(QueueFull));
}

proptest! {
    /// In any sequence, the capacity is kept, probes go first, a client's misses go
    /// before its revalidations, and of two waiting clients neither is served twice
    /// in a row.
    #[test]
    fn waiting_clients_alternate(
        steps in proptest::collection::vec((0_usize..3, 0_u32..4, 0_u8..4), 1..300),
    ) {
        let mut queue = FairOrder::new(20);
        let mut waiting: Vec<(Ticket, RequestPriority)> = Vec::new();
        for (priority, number, act) in steps {
            let request = request(Priority::ALL[priority], number);
            match act {
                0 | 1 => match queue.push(request) {
                    Ok((ticket, displaced)) => {
                        waiting.retain(|(other, _)| Some(*other) != displaced);
                        waiting.push((ticket, request));
                    }
                    Err(QueueFull) => prop_assert_eq!(queue.len(), 20),
                },
                2 => {
                    if let Some(at) = waiting.iter().position(|(_, w)| *w == request) {
                        let (ticket, request) = waiting.remove(at);
                        queue.remove(request, ticket, false);
                    }
                }
                _ => {
                    if let Some(first) = queue.first(MANY) {
                        let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                        let (ticket, request) = waiting.remove(at);
                        let is_probe = |w: &RequestPriority| w.priority == Priority::Probe;
                        prop_assert!(
                            is_probe(&request) || !waiting.iter().any(|(_, w)| is_probe(w))
                        );
                        let own = waiting.iter().filter(|(_, w)| w.client == request.client);
                        let urgent = own.map(|(_, w)| w.priority).min();
                        prop_assert!(urgent.is_none_or(|urgent| request.priority <= urgent));
                        queue.remove(request, ticket, true);
                    }
                }
            }
            prop_assert_eq!(queue.len(), waiting.len());
            prop_assert!(queue.len() <= 20);
        }
        let mut order = served(&mut queue, &mut waiting);
        order.retain(|request| request.priority != Priority::Probe);
        for (one, other) in [(0, 1), (1, 2), (2, 3)] {
            let of = |w: &&RequestPriority| [client(one), client(other)].contains(&w.client);
            let served_clients: Vec<_> = order.iter().filter(of).map(|w| w.client).collect();
            // When one has no more requests, the rest are the other's.
            let last = |c: u32| served_clients.iter().rposition(|t| *t == client(c));
            let both = last(one).min(last(other)).unwrap_or(0);
            let even = served_clients[..both].windows(2).all(|pair| pair[0] != pair[1]);
            prop_assert!(even, "{served_clients:?}");
        }
    }

    /// The counters agree with the lists after any sequence; and while a client
    /// waits that uses no slot, some request may go.
    #[test]
    fn counters_agree_with_the_lists(
        steps in proptest::collection::vec((0_u32..5, 0_u8..6, 0_u64..40), 1..200),
        slots in 1_u32..12,
    ) {
        let mut queue = FairOrder::new(50);
        let mut waiting: Vec<(Ticket, RequestPriority)> = Vec::new();
        let mut in_use: Vec<Option<Client>> = Vec::new();
        let mut now = 0;
        for (number, act, pause) in steps {
            now += pause;
            match act {
                0 | 1 => {
                    let request = request(MISS, number);
                    waiting.push((queue.push(request).unwrap().0, request));
                    if waiting.len() == 50 {
                        break;
                    }
                }
                2 | 3 if (in_use.len() as u32) < slots => {
                    if let Some(first) = queue.first(slots) {
                        let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                        let (ticket, request) = waiting.remove(at);
                        queue.take_slot(request.client);
                        queue.charge(request.client, 1.0, moment(now));
                        in_use.push(request.client);
                        queue.remove(request, ticket, true);
                    }
                }
                _ => {
                    if let Some(client) = in_use.pop() {
                        queue.release_slot(client);
                    }
                }
            }
            let clients = waiting.iter().map(|(_, w)| w.client);
            let mut competing: Vec<_> = clients.chain(in_use.iter().copied()).collect();
            competing.sort_by_key(|client| format!("{client:?}"));
            competing.dedup();
            prop_assert_eq!(queue.competing as usize, competing.len());
            prop_assert_eq!(queue.slots_in_use as usize, in_use.len());
            let has_no_slot = |(_, w): &(Ticket, RequestPriority)| !in_use.contains(&w.client);
            if waiting.iter().any(has_no_slot) {
                prop_assert!(queue.first(slots).is_some());
            }
        }
        for client in in_use {
            queue.release_slot(client);
        }
        for (ticket, request) in waiting {
            queue.remove(request, ticket, false);
        }
        prop_assert_eq!((queue.competing, queue.slots_in_use, queue.order.len()), (0, 0, 0));
        prop_assert_eq!(queue.len(), 0);
    }
}

/// [`at`], where a local variable has that name.
fn moment(seconds: u64) -> Moment {
    at(seconds)
}
