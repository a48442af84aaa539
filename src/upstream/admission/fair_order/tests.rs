//! In which order requests go, and what a client may hold.

use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;

fn wish(priority: Priority, caller: u32) -> RequestPriority {
    RequestPriority {
        priority,
        client: Some(Client::V4(caller)),
    }
}

/// Serves all that wait; answers with their order.
fn served(
    queue: &mut FairOrder,
    waiting: &mut Vec<(Ticket, RequestPriority)>,
) -> Vec<RequestPriority> {
    let mut order = Vec::new();
    while let Some(first) = queue.first(MANY) {
        let at = waiting.iter().position(|(number, _)| *number == first);
        let (number, wish) = waiting.remove(at.unwrap());
        queue.remove(wish, number, true);
        order.push(wish);
    }
    assert!(queue.is_empty());
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
fn clients_take_turns_whatever_the_priority_and_priority_counts_within_a_client() {
    let mut queue = FairOrder::new(100);
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
        waiting.push((queue.push(wish).unwrap().0, wish));
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
    let mut queue = FairOrder::new(100);
    for _ in 0..8 {
        queue.charge(client(1), at(0));
    }
    queue.charge(client(2), at(0));
    let greedy = queue.push(wish(MISS, 1)).unwrap().0;
    assert!(queue.goes_first(wish(AGAIN, 2), MANY));
    let modest = queue.push(wish(AGAIN, 2)).unwrap().0;
    assert_eq!(queue.first(MANY), Some(modest));
    assert!(queue.is_light(client(2)) && queue.is_light(client(3)));
    assert!(!queue.is_light(client(1)));
    // Two half-lives later what the first had counts as two, which is less
    // than three.
    for _ in 0..3 {
        queue.charge(client(2), at(60));
    }
    assert_eq!(queue.first(MANY), Some(greedy));
    let shares = queue.busiest_clients(1, at(60));
    assert_eq!(shares.len(), 1);
    assert_eq!((shares[0].client, shares[0].waiting), (client(2), 1));
    assert!((shares[0].recent - 3.25).abs() < 1e-9, "{shares:?}");
}

#[test]
fn clients_that_want_nothing_are_forgotten_in_time() {
    let mut queue = FairOrder::new(100);
    for number in 0..1000 {
        queue.charge(client(number), at(0));
    }
    let waits = queue.push(wish(MISS, 7)).unwrap().0;
    queue.take_slot(client(8));
    assert_eq!(queue.active_clients(), 1000);
    queue.charge(client(2000), at(130));
    assert_eq!(
        queue.active_clients(),
        3,
        "one waits, one holds, one is new"
    );
    queue.release_slot(client(8));
    queue.remove(wish(MISS, 7), waits, false);
    // An age later nothing overflows.
    queue.charge(client(1), at(10_000_000));
    assert_eq!(queue.active_clients(), 1);
    assert!(!queue.is_light(client(1)) && queue.is_light(client(2)));
}

#[test]
fn clients_beyond_those_that_are_told_apart_count_as_one() {
    let mut queue = FairOrder::new(100);
    for number in 0..2 * MOST_CLIENTS as u32 {
        queue.charge(client(number), at(0));
    }
    assert_eq!(
        queue.active_clients(),
        MOST_CLIENTS + 1,
        "and the one for all others"
    );
    assert_eq!(queue.tracked(client(1)), client(1));
    assert_eq!(queue.tracked(client(u32::MAX)), None);
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
fn a_client_over_its_share_of_slots_holds_up_nobody() {
    let mut queue = FairOrder::new(100);
    for _ in 0..16 {
        assert!(queue.goes_first(wish(MISS, 1), 32));
        queue.take_slot(client(1));
    }
    assert!(!queue.goes_first(wish(MISS, 1), 32));
    let greedy = queue.push(wish(MISS, 1)).unwrap().0;
    assert_eq!(queue.first(32), None);
    assert!(queue.is_first_over_its_share(32));
    let modest = queue.push(wish(MISS, 2)).unwrap().0;
    assert_eq!(queue.first(32), Some(modest), "it is passed over");
    queue.remove(wish(MISS, 2), modest, true);
    queue.take_slot(client(2));
    // As long as others wait, an even share is the most.
    for _ in 0..6 {
        queue.release_slot(client(1));
    }
    assert_eq!(queue.first(32), Some(greedy));
    let others = [3, 4].map(|number| queue.push(wish(MISS, number)).unwrap().0);
    queue.charge(client(3), at(0));
    queue.charge(client(4), at(0));
    assert_eq!(queue.first(32), Some(others[0]), "four want some: 8 each");
    queue.remove(wish(MISS, 3), others[0], false);
    queue.remove(wish(MISS, 4), others[1], false);
    assert_eq!(queue.first(32), Some(greedy));
}

#[test]
fn a_request_that_is_given_up_costs_nobody_a_turn() {
    let mut queue = FairOrder::new(100);
    let numbers = [1, 1, 2].map(|caller| queue.push(wish(MISS, caller)).unwrap().0);
    queue.remove(wish(MISS, 1), numbers[0], false);
    assert_eq!(queue.first(MANY), Some(numbers[1]));
    queue.remove(wish(MISS, 1), numbers[0], false);
    assert_eq!(queue.len(), 2, "it has gone already");
}

#[test]
fn a_full_queue_drops_the_last_of_the_client_with_the_most() {
    let mut queue = FairOrder::new(4);
    for _ in 0..3 {
        queue.push(wish(MISS, 1)).unwrap();
    }
    let again = queue.push(wish(AGAIN, 1)).unwrap().0;
    assert_eq!(
        queue.push(wish(AGAIN, 1)),
        Err(QueueFull),
        "its own are the most"
    );
    let (miss, out) = queue.push(wish(MISS, 1)).unwrap();
    assert_eq!(out, Some(again), "its own that is less urgent");
    assert_eq!(queue.push(wish(MISS, 1)), Err(QueueFull));
    let (second, out) = queue.push(wish(AGAIN, 2)).unwrap();
    assert_eq!(out, Some(miss), "whatever the priority");
    let (_, out) = queue.push(wish(Priority::Probe, 3)).unwrap();
    assert!(out.is_some() && out != Some(second));
    assert_eq!(queue.len(), 4);
    let mut probes = FairOrder::new(1);
    probes.push(wish(Priority::Probe, 1)).unwrap();
    assert_eq!(probes.push(wish(Priority::Probe, 1)), Err(QueueFull));
    assert_eq!(probes.push(wish(MISS, 1)), Err(QueueFull));
}

proptest! {
    /// Whatever comes and goes, the bound holds, probes go first, a client's
    /// misses go before its revalidations, and of two clients that both wait
    /// neither is served twice between two turns of the other.
    #[test]
    fn turns_are_even(
        steps in proptest::collection::vec((0_usize..3, 0_u32..4, 0_u8..4), 1..300),
    ) {
        let mut queue = FairOrder::new(20);
        let mut waiting: Vec<(Ticket, RequestPriority)> = Vec::new();
        for (priority, caller, act) in steps {
            let wish = wish(Priority::ALL[priority], caller);
            match act {
                0 | 1 => match queue.push(wish) {
                    Ok((number, out)) => {
                        waiting.retain(|(other, _)| Some(*other) != out);
                        waiting.push((number, wish));
                    }
                    Err(QueueFull) => prop_assert_eq!(queue.len(), 20),
                },
                2 => {
                    if let Some(at) = waiting.iter().position(|(_, w)| *w == wish) {
                        let (number, wish) = waiting.remove(at);
                        queue.remove(wish, number, false);
                    }
                }
                _ => {
                    if let Some(first) = queue.first(MANY) {
                        let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                        let (number, wish) = waiting.remove(at);
                        let is_probe = |w: &RequestPriority| w.priority == Priority::Probe;
                        prop_assert!(
                            is_probe(&wish) || !waiting.iter().any(|(_, w)| is_probe(w))
                        );
                        let own = waiting.iter().filter(|(_, w)| w.client == wish.client);
                        let urgent = own.map(|(_, w)| w.priority).min();
                        prop_assert!(urgent.is_none_or(|urgent| wish.priority <= urgent));
                        queue.remove(wish, number, true);
                    }
                }
            }
            prop_assert_eq!(queue.len(), waiting.len());
            prop_assert!(queue.len() <= 20);
        }
        let mut order = served(&mut queue, &mut waiting);
        order.retain(|wish| wish.priority != Priority::Probe);
        for (one, other) in [(0, 1), (1, 2), (2, 3)] {
            let of = |w: &&RequestPriority| [client(one), client(other)].contains(&w.client);
            let turns: Vec<_> = order.iter().filter(of).map(|w| w.client).collect();
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
        let mut queue = FairOrder::new(50);
        let mut waiting: Vec<(Ticket, RequestPriority)> = Vec::new();
        let mut held: Vec<Option<Client>> = Vec::new();
        let mut now = 0;
        for (caller, act, pause) in steps {
            now += pause;
            match act {
                0 | 1 => {
                    let wish = wish(MISS, caller);
                    waiting.push((queue.push(wish).unwrap().0, wish));
                    if waiting.len() == 50 {
                        break;
                    }
                }
                2 | 3 if (held.len() as u32) < slots => {
                    if let Some(first) = queue.first(slots) {
                        let at = waiting.iter().position(|(n, _)| *n == first).unwrap();
                        let (number, wish) = waiting.remove(at);
                        queue.take_slot(wish.client);
                        queue.charge(wish.client, moment(now));
                        held.push(wish.client);
                        queue.remove(wish, number, true);
                    }
                }
                _ => {
                    if let Some(client) = held.pop() {
                        queue.release_slot(client);
                    }
                }
            }
            let clients = waiting.iter().map(|(_, w)| w.client);
            let mut wanting: Vec<_> = clients.chain(held.iter().copied()).collect();
            wanting.sort_by_key(|client| format!("{client:?}"));
            wanting.dedup();
            prop_assert_eq!(queue.competing as usize, wanting.len());
            prop_assert_eq!(queue.slots_in_use as usize, held.len());
            let holds_none = |(_, w): &(Ticket, RequestPriority)| !held.contains(&w.client);
            if waiting.iter().any(holds_none) {
                prop_assert!(queue.first(slots).is_some());
            }
        }
        for client in held {
            queue.release_slot(client);
        }
        for (number, wish) in waiting {
            queue.remove(wish, number, false);
        }
        prop_assert_eq!((queue.competing, queue.slots_in_use, queue.order.len()), (0, 0, 0));
        prop_assert!(queue.is_empty());
    }
}

/// [`at`], where that name is a position's.
fn moment(seconds: u64) -> Moment {
    at(seconds)
}
