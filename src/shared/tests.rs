//! The scripts under faults, in simulated time: the real ones, each with every rule and with
//! one rule taken out.

#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "these are tests throughout: a failure is a panic"
)]

mod purges;
mod server;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::permits::{GIVE_BACK, TAKE};
use world::World;

/// A rule that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// In a script: a text of it and another one for it.
    Script(usize, &'static str, &'static str),
    UsedWithinASecond,
    BootClock,
    UnknownIsSpent,
    ClosedInTime,
    RetryIsNew,
    WrittenStays,
    ChargeStays,
    UniqueIds,
    PoolWithoutFloors,
    OwnWindows,
}

/// The rules of the scripts; what is wrong without one: the budget is exceeded (`over`), it is
/// not `used`, or permits are `kept` for ever; the script, its text, and the text without the rule.
const SCRIPT_RULES: &str = "\
T + W|over|0|now + HELD, ARGV[1]|now + MINUTE, ARGV[1]
closed|over|0|opens = now + HELD|opens = now
closed for H|over|0|opens = now + HELD|opens = now + MINUTE
run id|over|0|string.match(info, 'run_id:(%w+)')|''
replication id|over|0|string.match(info, 'master_replid:(%w+)')|''
begins empty|kept|0|redis.call('DEL', permits)|
never trimmed|used|0|'(' .. opens, now|'-inf', now
no expiry|used|0|if not opens|if not opens or redis.call('ZCOUNT', permits, '(' .. now - HELD, '+inf') == 0
clock rule|used|0|ZCOUNT', permits, '(' .. now + HELD|ZCOUNT', permits, '+inf'
clock rule: life|used|0|'+inf') > 0|'+inf') > (opens and opens > now + HELD and 1 or 0)
in flight|used|0|math.min(next[2], now + MINUTE)|next[2]
minute|over|0|tonumber(ARGV[2])|9999
second|over|0|tonumber(ARGV[3])|9999
H with the longer minute|over|0|61000 + MINUTE|121000
longer second|over|0|1005|1000
answered: a minute|over|1|now + MINUTE|now
answered: longer minute|over|1|60050|60000
not added|kept|1|'XX', |";

/// The rules of a replica. Without one, the budget is exceeded.
const REPLICA_RULES: [Cut; 9] = [
    Cut::UsedWithinASecond,
    Cut::BootClock,
    Cut::UnknownIsSpent,
    Cut::ClosedInTime,
    Cut::RetryIsNew,
    Cut::WrittenStays,
    Cut::ChargeStays,
    Cut::UniqueIds,
    Cut::PoolWithoutFloors,
];

fn parts<const N: usize>(rule: &str) -> [&str; N] {
    let parts: Vec<_> = rule.split('|').collect();
    parts.try_into().expect("a rule has its parts")
}

fn seeds() -> u64 {
    let variable = std::env::var("ORDGATE_PERMIT_SEEDS");
    variable.map_or(500, |seeds| seeds.parse().expect("a number of seeds"))
}

/// The first seed that fails and why, by two threads.
fn first_failure(
    seeds: u64,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) -> Option<(u64, String)> {
    let found = AtomicU64::new(u64::MAX);
    let half = |first: u64| {
        let mut seeds = (first..seeds).step_by(2);
        let seed = |seed| Some((seed, run(seed).err()?));
        let failure = seeds
            .by_ref()
            .take_while(|seed| *seed < found.load(Relaxed))
            .find_map(seed)?;
        found.fetch_min(failure.0, Relaxed);
        Some(failure)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let failures = [half(0), other.join().expect("it does not panic")];
        failures.into_iter().flatten().min()
    })
}

#[test]
fn no_window_is_over_the_budget() {
    let failure = first_failure(seeds(), |seed| World::new(seed, None).run());
    assert_eq!(failure, None);
}

#[test]
fn two_primaries_cost_one_budget_for_each_replica() {
    let run = |seed, without| World::new(seed, without).with_two_primaries().run();
    assert_eq!(first_failure(50, |seed| run(seed, None)), None);
    let failure = first_failure(50, |seed| run(seed, Some(Cut::OwnWindows)));
    assert!(failure.is_some(), "own windows are not needed");
}

#[test]
fn each_rule_is_needed() {
    let replica_rules = REPLICA_RULES.map(|cut| (format!("{cut:?}"), "over", cut));
    let script_rules = SCRIPT_RULES.lines().map(|line| {
        let [rule, kind, script, old, new] = parts(line);
        let cut = Cut::Script(script.parse().unwrap(), old, new);
        (rule.to_owned(), kind, cut)
    });
    for (rule, kind, cut) in script_rules.chain(replica_rules) {
        // Some rules taken out do both.
        let run = |seed| match World::new(seed, Some(cut)).run() {
            Err(why) if why.starts_with(kind) => Err(why),
            _ => Ok(()),
        };
        let failure = first_failure(500, run);
        println!("{rule}: {failure:?}");
        assert!(failure.is_some(), "{rule}: not needed");
    }
}

/// Four replicas for three minutes: the shares of the budget that they use. One of them starts in
/// the middle.
#[test]
fn at_least_three_quarters_of_the_budget_are_used() {
    for is_one in [true, false] {
        let used = World::new(1, None).with_load(is_one).used();
        println!("all load at one: {is_one}; used {used:?}");
        assert!(used.iter().all(|share| *share >= 75), "{used:?}");
    }
}

#[test]
fn no_replica_misses_a_purge_and_each_rule_is_needed() {
    assert_eq!(first_failure(seeds(), |seed| purges::run(seed, None)), None);
    for [rule, old, new] in purges::RULES.lines().map(parts) {
        let failure = first_failure(500, |seed| purges::run(seed, Some((old, new))));
        println!("{rule}: {failure:?}");
        assert!(failure.is_some(), "{rule}: not needed");
    }
}
