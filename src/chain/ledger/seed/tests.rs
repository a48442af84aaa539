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

const fn run(state: u64, up_to: u32) -> KnownRun {
    KnownRun { state, up_to }
}

/// What run 1 leaves to the next.
fn known(blocks: impl IntoIterator<Item = (Block, bool)>) -> KnownBlocks {
    KnownBlocks {
        blocks: blocks.into_iter().collect(),
        runs: vec![run(1, u32::MAX)],
    }
}

/// A ledger after a run that knew blocks 100 to 140 of chain 1, whose upstream
/// reports a tip.
fn seeded(tip: Option<u32>) -> Ledger {
    let mut ledger = Ledger::new(LedgerBounds {
        blocks: 1000,
        margin: 12,
        write_time: Duration::ZERO,
    });
    ledger.seed(&known((100..=140).map(|height| (block(height, 1), true))));
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

fn stands(ledger: &Ledger) -> Option<u32> {
    ledger.seed.stands.map(|(height, _)| height)
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
    assert_eq!(ledger.known_blocks(2), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::None);
    assert_eq!(stands(&ledger), Some(140));
    assert_eq!(ledger.known_blocks(2).unwrap().blocks.len(), 41);
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
    assert_eq!(ledger.known_blocks(2), None, "those above are unchecked");
}

#[test]
fn after_many_checks_in_vain_no_block_stands() {
    let mut ledger = Ledger::new(LedgerBounds {
        blocks: 10_000,
        margin: 2,
        write_time: Duration::ZERO,
    });
    ledger.seed(&known((100..=900).map(|height| (block(height, 1), true))));
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
fn blocks_stand_in_the_epoch_in_which_one_was_seen() {
    let mut ledger = seeded(Some(150));
    let first = ledger.epoch();
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(ledger.seed.stands, Some((140, first)));
    ledger.status(ledger.start(), Some(151), None, NOW).unwrap();
    assert_eq!(ledger.seed.stands, Some((140, first)), "unchecked since");
    let lower = block(120, 1);
    assert_eq!(answer(&mut ledger, lower), None);
    assert_eq!(ledger.seed.stands, Some((140, first)));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(ledger.seed.stands, Some((140, first + 1)));
    // Where it is orphaned, a lower one that is seen says more.
    assert_eq!(answer(&mut ledger, block(139, 2)), Some(127));
    assert_eq!(answer(&mut ledger, lower), None);
    let last = ledger.epoch();
    assert!(last > first + 1);
    assert_eq!(ledger.seed.stands, Some((120, last)));
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

#[test]
fn a_block_that_cannot_be_checked_does_not_keep_the_others_from_the_next_run() {
    let mut ledger = Ledger::new(seeded(None).bounds);
    // The second as a status records the tip: it cannot be requested.
    ledger.seed(&known([(block(140, 1), true), (block(141, 1), false)]));
    ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
    assert_eq!(ledger.known_blocks(2), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(answer(&mut ledger, block(145, 1)), None);
    let next = ledger.known_blocks(2).unwrap();
    let heights: Vec<_> = next.blocks.iter().map(|(block, _)| block.height).collect();
    assert_eq!(heights, [140, 145]);
    assert_eq!(next.runs, [run(1, 140), run(2, u32::MAX)]);
}

#[test]
fn blocks_of_a_later_run_prove_nothing_for_answers_above_those_that_were_seen() {
    let mut ledger = seeded(Some(150));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    // Run 1 knew no block 141, though an answer of it may name one.
    assert_eq!(answer(&mut ledger, block(145, 1)), None);
    assert_eq!(ledger.stood(1, 141), None);
    let mut next = Ledger::new(ledger.bounds);
    next.seed(&ledger.known_blocks(2).unwrap());
    next.status(next.start(), Some(150), None, NOW).unwrap();
    assert_eq!(answer(&mut next, block(145, 1)), None);
    let epoch = Some(next.epoch());
    assert_eq!((next.stood(1, 140), next.stood(1, 141)), (epoch, None));
    assert_eq!((next.stood(2, 145), next.stood(2, 146)), (epoch, None));
    assert_eq!(
        next.stood(3, 100),
        None,
        "a run that the file does not name"
    );
}

#[test]
fn blocks_that_were_cut_off_prove_nothing() {
    let mut cut = known((100..=140).map(|height| (block(height, 1), true)));
    cut.cut_off(None);
    assert_eq!(cut.blocks.len(), 41);
    cut.cut_off(Some(130));
    let mut ledger = Ledger::new(seeded(None).bounds);
    ledger.seed(&cut);
    ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(129));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    assert_eq!(answer(&mut ledger, block(129, 1)), None);
    let epoch = Some(ledger.epoch());
    assert_eq!((ledger.stood(1, 129), ledger.stood(1, 130)), (epoch, None));
}

#[test]
fn the_runs_that_are_spoken_for_are_bounded() {
    let mut ledger = seeded(Some(150));
    for state in 2..200 {
        assert_eq!(answer(&mut ledger, block(140, 1)), None);
        let known = ledger.known_blocks(state).unwrap();
        assert!(known.runs.len() <= MOST_RUNS);
        assert_eq!(known.runs.last(), Some(&run(state, u32::MAX)));
        ledger = Ledger::new(ledger.bounds);
        ledger.seed(&known);
        ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
    }
}

/// A ledger that has seen blocks of a chain before it takes over those of chain 1, and
/// from where on these were replaced.
fn seeded_late(seen: impl IntoIterator<Item = Block>) -> (Ledger, Option<u32>) {
    let mut ledger = Ledger::new(seeded(None).bounds);
    ledger.status(ledger.start(), Some(150), None, NOW).unwrap();
    for block in seen {
        assert_eq!(answer(&mut ledger, block), None);
    }
    let known = known((100..=140).map(|height| (block(height, 1), true)));
    let orphaned = ledger.seed(&known);
    assert!(ledger.blocks.is_consistent());
    (ledger, orphaned)
}

#[test]
fn blocks_that_are_taken_over_late_are_checked_like_others() {
    let (mut ledger, orphaned) = seeded_late([block(145, 1)]);
    assert_eq!((orphaned, stands(&ledger)), (None, None));
    assert_eq!(ledger.stood(1, 100), None);
    assert_eq!(ledger.known_blocks(2), None);
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 1)), None);
    let epoch = Some(ledger.epoch());
    assert_eq!((ledger.stood(1, 140), ledger.stood(1, 141)), (epoch, None));
    assert_eq!(ledger.known_blocks(2).unwrap().blocks.len(), 42);
}

#[test]
fn a_block_that_was_seen_before_it_is_taken_over_was_seen_again() {
    let (mut ledger, orphaned) = seeded_late([block(130, 1), block(99, 1)]);
    assert_eq!((orphaned, stands(&ledger)), (None, Some(130)));
    let epoch = Some(ledger.epoch());
    assert_eq!((ledger.stood(1, 130), ledger.stood(1, 131)), (epoch, None));
    assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(140));
    assert_eq!(answer(&mut ledger, block(140, 2)), Some(128));
}

#[test]
fn blocks_that_another_one_contradicts_are_not_taken_over() {
    for other in [130, 135] {
        let (mut ledger, orphaned) = seeded_late([block(130, 2), block(other, 2)]);
        assert_eq!((orphaned, stands(&ledger)), (Some(118), None));
        assert_eq!(ledger.hash_at(130), Some(block(130, 2).hash));
        assert_eq!((ledger.hash_at(118), ledger.hash_at(129)), (None, None));
        assert_eq!(ledger.next_seed_check(NOW), SeedCheck::At(117));
        assert_eq!(answer(&mut ledger, block(117, 1)), None);
        let epoch = Some(ledger.epoch());
        assert_eq!((ledger.stood(1, 117), ledger.stood(1, 118)), (epoch, None));
        assert_eq!(ledger.seed(&known([(block(120, 1), true)])), None);
        assert_eq!(ledger.hash_at(120), None, "they are taken over once");
    }
}
