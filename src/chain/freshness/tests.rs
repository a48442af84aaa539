//! Freshness and age of stored responses, as tips change and are lost.

use super::*;
use crate::chain::ledger::Observation;
use crate::chain::{Chain, Settings};
use crate::pages::Block;

fn at(seconds: u64) -> Moment {
    Moment::from_nanos((100_000 + seconds) * 1_000_000_000)
}

/// A chain that is asked for its tip every five seconds.
struct Test(Chain);

impl Test {
    fn new() -> Self {
        Self(Chain::new(&Settings::of_tests()))
    }

    /// A status reports a tip.
    fn tip(&self, height: u32, now: u64) {
        let start = Some(self.0.tip(0).read(|ledger| ledger.start()));
        let tag = format!("{height:064x}");
        let tip = self.0.tip(0);
        tip.apply_status((start, at(now)), height, Some(tag.as_bytes()), at(now));
    }

    /// An answer of the present tip names a block.
    fn name(&self, height: u32, now: u64) {
        let start = self.0.tip(0).read(|ledger| ledger.start());
        let tag = format!(
            "{:064x}",
            self.0.tip(0).read(|ledger| ledger.tip_height().unwrap())
        );
        let hash = [height as u8; 32];
        let observation = Observation {
            blocks: &[Block { height, hash }],
            tag: Some(tag.as_bytes()),
            ..Observation::default()
        };
        self.0.tip(0).apply_answer(start, observation, at(now));
    }

    fn freshness(&self, stamp: ChainStamp, received: u64, now: u64) -> String {
        let lifetime = stamp.class.lifetime();
        let tip = self.0.tip(0);
        let (freshness, age) = tip.freshness(&stamp, (at(received), lifetime), at(now));
        let age = age.as_secs();
        match freshness {
            Freshness::Fresh { ttl } => format!("fresh {}, age {age}", ttl.as_secs()),
            Freshness::BecameFinal => "final".to_owned(),
            Freshness::Stale { by } => format!("stale {}", by.as_secs()),
        }
    }
}

fn stamp(class: Class, epoch: Epoch) -> ChainStamp {
    ChainStamp {
        class,
        tip: 0,
        epoch,
        heights: Some((97, 97)),
        is_settled: true,
    }
}

#[test]
fn what_names_only_deep_blocks_is_final() {
    for (class, highest, final_up_to, expected) in [
        (Class::Recent, Some(100), Some(100), Class::Final),
        (Class::Recent, Some(100), Some(99), Class::Recent),
        (Class::Recent, Some(100), None, Class::Recent),
        (Class::Absent, None, Some(100), Class::Absent),
        (Class::Absent, Some(100), Some(100), Class::Final),
        (Class::Absent, Some(101), Some(100), Class::Absent),
        (Class::Live, Some(100), Some(100), Class::Live),
    ] {
        let view = View {
            final_up_to,
            ..View::default()
        };
        let heights = highest.map(|highest| (1, highest));
        let actual = view.classify(class, heights);
        assert_eq!(actual, expected, "{class:?} {highest:?} {final_up_to:?}");
    }
}

#[test]
fn freshness_follows_class_and_epoch() {
    let test = Test::new();
    test.tip(100, 0);
    let [last, recent, live, absent] =
        [Class::Final, Class::Recent, Class::Live, Class::Absent].map(|class| stamp(class, 1));
    // For clients, of two intervals what is left since the last status.
    for (now, expected) in [(0, "fresh 10, age 0"), (4, "fresh 6, age 4")] {
        assert_eq!(test.freshness(recent, 0, now), expected);
        assert_eq!(test.freshness(live, 0, now), expected);
    }
    assert_eq!(test.freshness(recent, 3, 4), "fresh 6, age 4");
    assert_eq!(test.freshness(absent, 0, 0), "fresh 1, age 0");
    assert_eq!(test.freshness(absent, 0, 1), "stale 0");
    for second in (5..=595).step_by(5) {
        test.tip(100, second);
    }
    assert_eq!(test.freshness(recent, 0, 597), "fresh 8, age 2");
    assert_eq!(test.freshness(live, 0, 597), "fresh 3, age 7");
    test.tip(100, 600);
    assert_eq!(test.freshness(live, 0, 602), "stale 2", "ten minutes");
    test.tip(101, 605);
    assert_eq!(
        test.freshness(recent, 0, 606),
        "fresh 9, age 1",
        "nothing is known to ask for"
    );
    assert_eq!(test.freshness(live, 590, 606), "stale 1");
    assert_eq!(test.freshness(absent, 605, 606), "stale 1");
    assert_eq!(test.freshness(last, 0, 606), "fresh 2591394, age 606");
    assert_eq!(test.freshness(last, 0, 2_592_007), "stale 7");
}

#[test]
fn what_is_recent_is_served_for_one_interval_before_it_is_checked() {
    let test = Test::new();
    test.tip(100, 0);
    test.name(97, 1);
    test.name(90, 1);
    test.tip(100, 2);
    test.tip(101, 5);
    let old = stamp(Class::Recent, 1);
    assert_eq!(test.freshness(old, 1, 9), "fresh 1, age 9");
    assert_eq!(test.freshness(old, 1, 10), "stale 0");
    assert_eq!(
        test.freshness(stamp(Class::Recent, 2), 6, 10),
        "fresh 5, age 5"
    );
    test.name(97, 11);
    test.tip(101, 11);
    assert_eq!(test.freshness(old, 1, 11), "fresh 10, age 0");
    // The tip goes back, and comes forward on another branch.
    test.tip(96, 12);
    assert_eq!(test.freshness(old, 1, 13), "stale 1");
    test.name(90, 13);
    test.tip(98, 14);
    assert_eq!(test.freshness(old, 1, 15), "stale 1");
}

/// No route shows the block that a check asks for.
#[test]
fn what_is_recent_and_cannot_be_checked_is_stale() {
    let test = Test::new();
    test.tip(100, 0);
    test.name(90, 1);
    test.tip(101, 5);
    test.0.tip(0).change(|ledger| ledger.cannot_check(at(6)));
    assert_eq!(test.freshness(stamp(Class::Recent, 1), 0, 7), "stale 1");
    assert_eq!(
        test.freshness(stamp(Class::Recent, 2), 5, 7),
        "fresh 8, age 2"
    );
}

#[test]
fn recent_responses_become_final_and_not_while_they_are_in_doubt() {
    let test = Test::new();
    test.tip(102, 0);
    test.name(97, 0);
    let recent = stamp(Class::Recent, 1);
    assert_eq!(test.freshness(recent, 0, 0), "fresh 10, age 0");
    test.tip(102, 1);
    test.tip(103, 2);
    assert_eq!(test.freshness(recent, 0, 2), "fresh 5, age 5", "in doubt");
    test.name(97, 3);
    assert_eq!(test.freshness(recent, 0, 3), "final");
    // Whether the tip is known or not.
    assert_eq!(test.freshness(recent, 0, 999), "final");
}

#[test]
fn what_was_fetched_while_the_indexer_may_write_is_fetched_once_more() {
    let test = Test::new();
    test.tip(100, 0);
    for second in (5..=600).step_by(5) {
        test.tip(100, second);
    }
    for (sent, now, expected) in [
        (29, 29, "fresh 1, age 9"),
        (29, 30, "stale 0"),
        (30, 31, "fresh 9, age 1"),
        (30, 599, "fresh 10, age 0"),
    ] {
        let stamp = test.0.stamp(0, (Class::Live, None), 1, at(sent));
        let age = if now == 31 { 1 } else { 0 };
        let test = Test::new();
        let from = now - age;
        test.tip(100, 0);
        test.tip(100, from.max(1));
        assert_eq!(test.freshness(stamp, sent, now), expected, "sent at {sent}");
    }
}

#[test]
fn without_a_tip_what_is_not_final_is_fresh_for_a_second() {
    let test = Test::new();
    for class in [Class::Recent, Class::Live, Class::Absent] {
        let unknown = stamp(class, NO_EPOCH);
        assert_eq!(test.freshness(unknown, 0, 1), "stale 0", "{class:?}");
    }
    assert!(
        test.freshness(stamp(Class::Final, NO_EPOCH), 0, 9)
            .starts_with("fresh")
    );
    // Two intervals after the last status, and for a second from then on.
    test.tip(100, 20);
    let [recent, live] = [Class::Recent, Class::Live].map(|class| stamp(class, 1));
    assert_eq!(test.freshness(recent, 20, 29), "fresh 1, age 9");
    assert_eq!(test.freshness(recent, 20, 30), "stale 0");
    assert_eq!(test.freshness(live, 40, 40), "fresh 1, age 9");
    assert_eq!(test.freshness(live, 40, 41), "stale 0");
    // It ended when the tip was lost, and not when the next was seen.
    test.tip(101, 90);
    assert_eq!(test.freshness(live, 20, 91), "stale 61");
    assert_eq!(
        test.freshness(live, 85, 91),
        "stale 6",
        "no longer than it is there"
    );
    // Eight ends are known; then it counts as stale since it was received.
    for (height, expected) in (102..110).zip([63, 64, 65, 66, 67, 68, 69, 80]) {
        test.tip(height, u64::from(height) - 10);
        let found = test.freshness(live, 20, u64::from(height) - 9);
        assert_eq!(found, format!("stale {expected}"), "{height}");
    }
}
