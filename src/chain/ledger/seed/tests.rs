//! What an earlier run knew, and what is seen of it again.

use super::super::{LedgerBounds, Observation, ObservationResult};
use super::*;
use std::time::Duration;

const NOW: Moment = Moment::from_nanos(1 << 50);

fn block(height: u32, chain: u8) -> Block {
    let mut hash = [chain; 32];
    hash[..4].copy_from_slice(&height.to_le_bytes());
    Block { height, hash }
}

/// A ledger after a run that knew blocks 100 to 140 of chain 1, whose upstream
/// reports a tip.
fn seeded(tip: Option<u32>) -> Ledger {
    let mut ledger = Ledger::new(LedgerBounds {
        blocks: 1000,
        margin: 12,
        write_time: Duration::ZERO,
    });
    ledger.seed(
        &(100..=140)
            .map(|height| block(height, 1))
            .collect::<Vec<_>>(),
    );
    if tip.is_some() {
        ledger.status(ledger.start(), tip, None, NOW).unwrap();
    }
    ledger
}

/// The upstream answers with its block at a height.
fn answer(ledger: &mut Ledger, block: Block) -> Option<u32> {
    let observation = Observation {
        blocks: &[block],
        ..Observation::default()
    };
    match ledger.observe(ledger.start(), observation, NOW) {
        ObservationResult::Applied(update) => update.orphaned,
        ObservationResult::Outdated => panic!("outdated"),
    }
}

const fn stands(ledger: &Ledger) -> Option<u32> {
    ledger.seed.stands
}

#[test]
fn one_check_shows_that_all_blocks_still_stand() {
    let mut ledger = seeded(None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None, "no tip");
    let mut ledger = {
        ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
        ledger
    };
    assert_eq!(ledger.seed.stands, None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    assert_eq!(stands(&ledger), Some(140));
    assert_eq!((ledger.stood(140), ledger.stood(141)), (true, false));
}

#[test]
fn a_reorg_while_it_was_down_is_found_and_what_is_left_is_checked() {
    let mut ledger = seeded(Some(150));
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    // The fork is at 120: blocks above are others.
    assert_eq!(answer(&mut ledger, block(140, 2)), Some(128));
    assert_eq!(ledger.seed.stands, None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(127));
    assert_eq!(answer(&mut ledger, block(127, 2)), Some(115));
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(114));
    assert_eq!(answer(&mut ledger, block(114, 1)), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    assert_eq!(stands(&ledger), Some(114));
}

#[test]
fn what_an_answer_shows_of_a_block_counts_for_those_below_it_only() {
    let mut ledger = seeded(Some(150));
    assert_eq!(answer(&mut ledger, block(110, 1)), None);
    assert_eq!(stands(&ledger), Some(110));
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 2)), Some(128));
    assert_eq!(stands(&ledger), Some(110), "it was seen in this run");
}

#[test]
fn a_check_without_effect_is_repeated_only_after_a_new_tip() {
    let mut ledger = seeded(Some(120));
    assert_eq!(
        ledger.next_seed_check(NOW),
        SeedCheck::At(120),
        "at most the tip"
    );
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    ledger.retry_seed_check();
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(120));
    assert_eq!(answer(&mut ledger, block(120, 1)), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    assert_eq!(stands(&ledger), Some(120));
    assert!(!ledger.stood(121), "those above are unchecked");
}

#[test]
fn after_many_checks_in_vain_no_block_stands() {
    let mut ledger = Ledger::new(LedgerBounds {
        blocks: 10_000,
        margin: 2,
        write_time: Duration::ZERO,
    });
    ledger.seed(
        &(100..=900)
            .map(|height| block(height, 1))
            .collect::<Vec<_>>(),
    );
    ledger.status(ledger.start(), Some(900), None, NOW).unwrap();
    let mut checks = 0;
    loop {
        match ledger.next_seed_check(NOW) {
            SeedCheck::At(height) => {
                checks += 1;
                answer(&mut ledger, block(height, 2)).unwrap();
            }
            SeedCheck::Orphaned(from) => {
                assert_eq!(from, 0);
                break;
            }
            SeedCheck::None => panic!("after {checks}"),
        }
    }
    assert_eq!(checks, MOST_CHECKS);
    assert_eq!(ledger.seed.stands, None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
}

#[test]
fn blocks_that_stood_are_purged_if_they_are_replaced_later() {
    let mut ledger = seeded(Some(150));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(answer(&mut ledger, block(120, 1)), None);
    assert_eq!(stands(&ledger), Some(140), "a lower one says less");
    assert_eq!(answer(&mut ledger, block(139, 2)), Some(127));
    assert_eq!(ledger.hash_at(140), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
}

#[test]
fn an_answer_of_no_certain_epoch_confirms_nothing() {
    let mut ledger = seeded(Some(150));
    let start = ledger.start();
    ledger.status(ledger.start(), Some(151), None, NOW).unwrap();
    let observation = Observation {
        blocks: &[block(140, 1)],
        etag: Some(b"another"),
        ..Observation::default()
    };
    ledger.observe(start, observation, NOW);
    assert_eq!(ledger.seed.stands, None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
}
