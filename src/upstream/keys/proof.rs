//! Properties: no key gets more requests than its budget allows, whatever happens to
//! the keys meanwhile.
//!
//! A request counts from its permit to its end, because ordgate does not know at which
//! moment of that time the upstream counts it. A request that is given up ends when its
//! connection does, or some time after the endpoint has answered a later one: a server
//! may stop, and read what was sent meanwhile when it goes on. When ordgate permits a
//! request, at most the bound then in force count that had not ended a second (a
//! minute) before, this one included. Hence no window of a second (a minute) holds
//! more requests than the bound that was in force when the last of them was permitted,
//! wherever the window begins and at whatever moments the upstream counts: all others
//! in it had not ended a window's length before that permit. When a bound is lowered,
//! the requests sent before may exceed it; no more are permitted until fewer count.
//!
//! The same holds for each limit that the upstream reports: until it ends, at most
//! the reported number is permitted, less the requests that the upstream may not have
//! counted when it reported.
//!
//! A key is its value here: a reload may change its name, remove it for a while, or
//! give it to several upstreams, each of which a reload may add or remove. Without a
//! key, the budget is the server's.

mod model;

use std::time::Duration;

use model::{BUDGETS, BudgetModel, MAX_UPSTREAMS, SERVERS};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest};

use crate::identify::Client;
use crate::upstream::admission::limit_report::{LimitWindow, ReportedLimit};
use crate::upstream::admission::{Priority, RequestPriority};

/// One step of the model. Times are milliseconds.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes.
    Pause(u64),
    /// An upstream is to send requests of one priority, each with its duration.
    Send(usize, RequestPriority, Vec<u64>),
    /// A request under way fails: the server closed its connection, or it was never
    /// sent.
    Fail(usize),
    /// A request under way is given up; it may still reach the upstream.
    GiveUp(usize),
    /// A request under way is answered, if its server runs.
    Answer(usize, ScriptedAnswer),
    /// A request under way is given up and sent again.
    Retry(usize, u64),
    /// A server stops and answers nothing.
    Freeze(usize),
    /// A server goes on and may count all that was sent to it.
    Thaw(usize),
    /// A server that runs closes the connection of a request that was given up.
    Close(usize),
    /// A server is killed and started again.
    Restart(usize),
    /// A reload of one upstream: the change, its keys as bits, and its rates per
    /// minute and second (0 is unlimited).
    Reload(usize, ReloadChange, u8, u32, u32),
}

/// What a reload does to an upstream.
#[derive(Clone, Copy, Debug)]
enum ReloadChange {
    /// It stays at its server, or is added at the first.
    Here,
    /// It moves to the other server, or is added at the second.
    Elsewhere,
    /// It is removed.
    Gone,
}

/// What an answer reports about the key. Times are seconds.
#[derive(Clone, Debug)]
enum ScriptedAnswer {
    Limits(Vec<ReportedLimit>),
    QuotaSpent(u64),
    Throttled(u64),
    Refused,
    Accepted,
}

fn reported_limit() -> impl Strategy<Value = ReportedLimit> {
    use LimitWindow::{Day, Hour, Minute, Month, Second, Unnamed};
    // Long windows are rare: once spent, they permit nothing for most of a run.
    let windows = [
        Unnamed, Unnamed, Second, Minute, Minute, Minute, Hour, Hour, Day, Month,
    ];
    let longest = |window| match window {
        Second => 1,
        Minute => 60,
        Unnamed | Hour | Day | Month => 3600,
    };
    let limit = move |(at, remaining, seconds, end_is_known): (usize, u64, u64, bool)| {
        let window = windows[at];
        let longest = longest(window);
        // Without a reported end, the limit holds for the longest possible time.
        let seconds = if end_is_known {
            seconds.min(longest)
        } else {
            longest
        };
        ReportedLimit {
            window,
            remaining,
            valid_for: Duration::from_secs(seconds),
            end_is_known,
        }
    };
    (0_usize..10, 0_u64..20, 1_u64..120, any::<bool>()).prop_map(limit)
}

fn answer() -> impl Strategy<Value = ScriptedAnswer> {
    prop_oneof![
        12 => vec(reported_limit(), 1..3).prop_map(ScriptedAnswer::Limits),
        1 => (1_u64..200).prop_map(ScriptedAnswer::QuotaSpent),
        2 => (1_u64..90).prop_map(ScriptedAnswer::Throttled),
        2 => Just(ScriptedAnswer::Refused),
        4 => Just(ScriptedAnswer::Accepted),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let priority =
        (0_usize..4, proptest::option::of(0_u32..3)).prop_map(|(rank, client)| RequestPriority {
            client: client.map(Client::V4),
            ..RequestPriority::own(Priority::ALL[rank])
        });
    // Most requests are short, some take longer than any window.
    let duration = prop_oneof![6 => 0_u64..900, 2 => 0_u64..5_000, 1 => 0_u64..150_000];
    let change = prop_oneof![
        5 => Just(ReloadChange::Here),
        1 => Just(ReloadChange::Elsewhere),
        1 => Just(ReloadChange::Gone),
    ];
    let minute = prop_oneof![1 => Just(0), 9 => 8_u32..30];
    let second = prop_oneof![1 => Just(0), 9 => 2_u32..7];
    prop_oneof![
        6 => (0_u64..400).prop_map(Step::Pause),
        2 => (900_u64..1_200).prop_map(Step::Pause),
        2 => (0_u64..70_000).prop_map(Step::Pause),
        1 => (0_u64..4_000_000).prop_map(Step::Pause),
        14 => (0..MAX_UPSTREAMS, priority, vec(duration.clone(), 1..8))
            .prop_map(|(entry, priority, durations)| Step::Send(entry, priority, durations)),
        3 => any::<usize>().prop_map(Step::Fail),
        2 => any::<usize>().prop_map(Step::GiveUp),
        1 => (0..SERVERS).prop_map(Step::Freeze),
        2 => (0..SERVERS).prop_map(Step::Thaw),
        6 => any::<usize>().prop_map(Step::Close),
        1 => (0..SERVERS).prop_map(Step::Restart),
        8 => (any::<usize>(), answer()).prop_map(|(at, answer)| Step::Answer(at, answer)),
        2 => (any::<usize>(), duration).prop_map(|(at, duration)| Step::Retry(at, duration)),
        3 => (0..MAX_UPSTREAMS, change, 0_u8..8, minute, second).prop_map(
            |(entry, change, keys, minute, second)| Step::Reload(entry, change, keys, minute, second)
        ),
    ]
}

proptest! {
    #[test]
    fn no_key_exceeds_its_budget(steps in vec(step(), 1..100)) {
        let mut model = BudgetModel::new();
        for step in &steps {
            model.step(step)?;
        }
        model.waits_are_true()?;
    }

    /// The same as the upstream sees it: it may count each request at any moment
    /// between its permit and its end, and no window exceeds its bound.
    #[test]
    fn no_window_of_the_upstream_exceeds_its_bound(
        steps in vec(step(), 1..100),
        shares in vec(0_u64..=100, 1..40),
    ) {
        let mut model = BudgetModel::new();
        for step in &steps {
            model.step(step)?;
        }
        model.pause(200_000);
        model.end_all();
        for budget in 0..BUDGETS {
            let sent = model.history.iter().zip(shares.iter().cycle());
            let its_own = sent.filter(|(sent, _)| sent.budget == budget);
            let counted = its_own.map(|(sent, share)| {
                let took = sent.to.unwrap() - sent.from;
                sent.from + took * share / 100
            });
            let mut counted: Vec<_> = counted.collect();
            counted.sort_unstable();
            let (minute, second) = model.loosest[budget];
            for (most, span) in [(minute, 60_000), (second, 1_000)] {
                for window in counted.windows(most.saturating_add(1)) {
                    prop_assert!(window[most] - window[0] >= span, "{most} in {span} ms: {window:?}");
                }
            }
        }
    }
}

/// The properties above are not empty: the model permits as many requests as the
/// budgets allow.
#[test]
fn the_whole_budget_can_be_used() {
    let mut model = BudgetModel::new();
    let mut permitted = 0;
    for _ in 0..60 {
        for nth in 0..6 {
            permitted += usize::from(model.send(nth % 2, Priority::Probe, 0).unwrap());
        }
        model.pause(1_000);
    }
    assert_eq!(permitted, 40, "the whole minute of two keys");
}
