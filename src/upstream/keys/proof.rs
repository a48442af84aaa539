//! That no key is ever asked for more than its budget, whatever happens to the
//! keys meanwhile.
//!
//! The claim. A request counts from its grant to its end; at which moment of that
//! the upstream counts it, we do not know. One that is given up ends when its
//! connection has, or a while after the endpoint has answered a later one: a server
//! may stop, and read what was sent meanwhile when it goes on. When a request is granted, no
//! more than the bound then in force count of those that had not ended a second
//! (a minute) ago, this one among them. It follows that no window of a second
//! (a minute), wherever it begins and at whatever moments the upstream counts,
//! holds more than the bound that was in force when the last of its requests
//! was granted: whichever others it holds had not ended a window's length before
//! that moment. Where a bound goes down, what was sent before it did may be more
//! than it; nothing is added until it is less.
//!
//! The same goes for each word of the upstream about what is left: from when it
//! is heard until it ends, no more are granted than it says, less those that the
//! upstream may not have counted when it said so.
//!
//! A key is its value here: it may be called otherwise after a reload, be away
//! for a while, or be sent by several upstreams at the same time, each of which
//! may come and go by a reload. Without a key it is the server that counts.

mod world;

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};
use world::{PLACES, SERVERS, VALUES, World};

use crate::identify::Client;
use crate::upstream::admission::limit_report::{LimitWindow, ReportedLimit};
use crate::upstream::{Priority, RequestPriority};

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// Time goes by.
    Pause(u64),
    /// So many requests are wished of one upstream, for ordgate itself or a
    /// client, each of which would take so long.
    Ask(usize, RequestPriority, Vec<u64>),
    /// One that is under way fails before its time: the server has ended its
    /// connection, or it was never sent.
    Fail(usize),
    /// One that is under way is given up; it may reach the upstream yet.
    GiveUp(usize),
    /// One that is under way is answered, where its server runs.
    Answer(usize, Said),
    /// One that is under way is given up and sent again.
    Retry(usize, u64),
    /// A server stops: it answers nothing.
    Freeze(usize),
    /// A server goes on: it may count all that has been sent to it.
    Thaw(usize),
    /// A server that runs ends a connection on which a request was given up.
    Close(usize),
    /// A server is killed and started anew.
    Restart(usize),
    /// A reload of one upstream: what becomes of it, which keys it has, and its
    /// rates, 0 for any number.
    Reload(usize, Fate, u8, u32, u32),
}

/// What a reload makes of an upstream.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It stays where it is, or is new.
    Here,
    /// It is another server from now on, or is new.
    Elsewhere,
    /// It is there no more.
    Gone,
}

/// What an answer says of the key.
#[derive(Clone, Debug)]
enum Said {
    Left(Vec<ReportedLimit>),
    QuotaSpent(u64),
    TooOften(u64),
    Refused,
    Accepted,
}

fn word() -> impl Strategy<Value = ReportedLimit> {
    use LimitWindow::{Day, Hour, Minute, Month, Second, Unnamed};
    // A word about a day that is spent says all that there is to say for long.
    let windows = [
        Unnamed, Unnamed, Second, Minute, Minute, Minute, Hour, Hour, Day, Month,
    ];
    let longest = |window| match window {
        Second => 1,
        Minute => 60,
        Unnamed | Hour | Day | Month => 3600,
    };
    let word = move |(at, left, lasts, told): (usize, u64, u64, bool)| {
        let window = windows[at];
        let longest = longest(window);
        ReportedLimit {
            window,
            remaining: left,
            // Where no end is told it is the longest that it can be.
            valid_for: Duration::from_secs(if told { lasts.min(longest) } else { longest }),
            end_is_known: told,
        }
    };
    (0_usize..10, 0_u64..20, 1_u64..120, any::<bool>()).prop_map(word)
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        12 => vec(word(), 1..3).prop_map(Said::Left),
        1 => (1_u64..200).prop_map(Said::QuotaSpent),
        2 => (1_u64..90).prop_map(Said::TooOften),
        2 => Just(Said::Refused),
        4 => Just(Said::Accepted),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wish =
        (0_usize..4, proptest::option::of(0_u32..3)).prop_map(|(rank, client)| RequestPriority {
            priority: Priority::ALL[rank],
            client: client.map(Client::V4),
        });
    // Most take a moment, some longer than any window.
    let takes = prop_oneof![6 => 0_u64..900, 2 => 0_u64..5_000, 1 => 0_u64..150_000];
    let fate = prop_oneof![
        5 => Just(Fate::Here),
        1 => Just(Fate::Elsewhere),
        1 => Just(Fate::Gone),
    ];
    let minute = prop_oneof![1 => Just(0), 9 => 8_u32..30];
    let second = prop_oneof![1 => Just(0), 9 => 2_u32..7];
    prop_oneof![
        6 => (0_u64..400).prop_map(Step::Pause),
        2 => (900_u64..1_200).prop_map(Step::Pause),
        2 => (0_u64..70_000).prop_map(Step::Pause),
        1 => (0_u64..4_000_000).prop_map(Step::Pause),
        14 => (0..PLACES, wish, vec(takes.clone(), 1..8))
            .prop_map(|(place, wish, takes)| Step::Ask(place, wish, takes)),
        3 => any::<usize>().prop_map(Step::Fail),
        2 => any::<usize>().prop_map(Step::GiveUp),
        1 => (0..SERVERS).prop_map(Step::Freeze),
        2 => (0..SERVERS).prop_map(Step::Thaw),
        6 => any::<usize>().prop_map(Step::Close),
        1 => (0..SERVERS).prop_map(Step::Restart),
        8 => (any::<usize>(), said()).prop_map(|(at, said)| Step::Answer(at, said)),
        2 => (any::<usize>(), takes).prop_map(|(at, takes)| Step::Retry(at, takes)),
        3 => (0..PLACES, fate, 0_u8..8, minute, second).prop_map(
            |(place, fate, keys, minute, second)| Step::Reload(place, fate, keys, minute, second)
        ),
    ]
}

proptest! {
    #[test]
    fn no_key_is_asked_for_more_than_its_budget(steps in vec(step(), 1..100)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
        world.waits_are_true()?;
    }

    /// The same from the upstream's side: at whatever moment between its grant
    /// and its end each request is counted, no window holds too many.
    #[test]
    fn no_window_of_the_upstreams_holds_too_many(
        steps in vec(step(), 1..100),
        shares in vec(0_u64..=100, 1..40),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step)?;
        }
        world.pause(200_000);
        world.end_all();
        for value in 0..VALUES {
            let sent = world.history.iter().zip(shares.iter().cycle());
            let of_it = sent.filter(|(sent, _)| sent.value == value);
            let counted = of_it.map(|(sent, share)| {
                let took = sent.to.unwrap() - sent.from;
                sent.from + took * share / 100
            });
            let mut counted: Vec<_> = counted.collect();
            counted.sort_unstable();
            let (minute, second) = world.loosest[value];
            for (most, span) in [(minute, 60_000), (second, 1_000)] {
                for window in counted.windows(most.saturating_add(1)) {
                    prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
                }
            }
        }
    }
}

/// That the properties above say something: requests are granted, a good deal
/// of them, and they are refused for each of the reasons that there are.
#[test]
fn what_may_be_asked_is_asked() {
    let mut world = World::new();
    let mut granted = 0;
    for _ in 0..60 {
        for nth in 0..6 {
            granted += usize::from(world.ask(nth % 2, Priority::Probe, 0).unwrap());
        }
        world.pause(1_000);
    }
    assert_eq!(granted, 40, "two keys' minutes are used to the last");
}
