//! The chain: determinism, reorgs, bounds.

use std::collections::HashSet;

use super::{Chain, MAX_BLOCKS};

fn chain() -> Chain {
    Chain::new(7, 840_000, 200)
}

#[test]
fn equal_histories_give_equal_chains() {
    let mut one = chain();
    let mut two = chain();
    for chain in [&mut one, &mut two] {
        chain.rollback(3);
        chain.apply();
        chain.push();
    }
    assert_eq!(one.blocks, two.blocks);
}

#[test]
fn hashes_and_ids_are_found() {
    let chain = chain();
    for block in chain.blocks() {
        let hash = chain.hash(block);
        assert!(hash.len() == 64 && hash.starts_with("0000000000000000000"));
        assert_eq!(chain.by_hash(&hash), Some(block));
        assert_eq!(chain.by_hash(&hash.to_uppercase()), None);
        for placed in chain.placements(block).into_iter().take(5) {
            assert_eq!(
                chain.find_tx(&chain.tx_id(placed.key)),
                Some((block, placed))
            );
        }
    }
    assert_eq!(chain.find_tx(&"f".repeat(64)), None);
    assert_eq!(chain.by_hash(&format!("00000000{}", "f".repeat(56))), None);
}

#[test]
fn some_blocks_have_an_earlier_time_than_their_parent() {
    let chain = chain();
    let blocks: Vec<_> = chain.blocks().collect();
    let earlier = blocks
        .windows(2)
        .filter(|pair| pair[1].timestamp < pair[0].timestamp);
    assert!(earlier.clone().count() >= 18);
    for pair in earlier {
        assert_eq!(pair[1].highest_timestamp, pair[0].highest_timestamp);
    }
}

#[test]
fn after_a_rollback_the_parent_is_the_tip_and_replacements_differ() {
    let mut chain = chain();
    let old = *chain.tip().expect("a tip");
    let old_hash = chain.hash(&old);
    assert_eq!(chain.rollback(2), 2);
    assert_eq!(chain.tip().expect("a tip").height, old.height - 2);
    assert_eq!(chain.by_hash(&old_hash), None);
    assert_eq!(chain.apply(), 2);
    let new = *chain.tip().expect("a tip");
    assert_eq!(new.height, old.height);
    assert_ne!(chain.hash(&new), old_hash);
    assert_ne!(new.timestamp, old.timestamp);
    assert_eq!(chain.by_hash(&old_hash), None);
}

#[test]
fn after_a_reorg_each_transaction_is_in_one_block() {
    let mut chain = chain();
    let before: Vec<_> = (840_190..840_200)
        .flat_map(|height| chain.placements(chain.at(height).expect("a block")))
        .collect();
    chain.rollback(10);
    chain.apply();
    chain.push();
    let mut seen = HashSet::new();
    for block in chain.blocks().filter(|block| block.height >= 840_190) {
        for placed in chain.placements(block) {
            assert!(
                seen.insert(placed.key.word()),
                "a transaction is in two blocks"
            );
        }
    }
    let moved = before.iter().filter(|old| {
        let (_, new) = chain.find_tx(&chain.tx_id(old.key)).expect("on the chain");
        new.index != old.index
    });
    assert!(moved.count() * 2 > before.len());
}

#[test]
fn the_lowest_block_stays_and_the_number_of_blocks_is_bounded() {
    let mut chain = Chain::new(1, 5, 4);
    assert_eq!(chain.rollback(99), 3);
    assert_eq!(chain.rollback(1), 0);
    let long = Chain::new(1, 0, u32::MAX);
    assert_eq!(long.blocks.len(), MAX_BLOCKS as usize);
    let mut last = Chain::new(1, u32::MAX, 1);
    last.push();
    assert_eq!(last.tip().map(|block| block.height), Some(u32::MAX));
}

#[test]
fn after_many_reorgs_each_transaction_is_in_one_block() {
    let mut chain = Chain::new(9, 840_000, 30);
    for round in 0..60u32 {
        chain.rollback(round % 4);
        if round % 3 > 0 {
            chain.apply();
        }
        chain.push();
        let mut seen = HashSet::new();
        for block in chain.blocks().rev().take(6) {
            let placements = chain.placements(block);
            assert!(placements.is_sorted_by(|one, next| one.index < next.index));
            for placed in placements {
                assert!(
                    seen.insert(placed.key.word()),
                    "a transaction is in two blocks"
                );
                assert_eq!(
                    chain.find_tx(&chain.tx_id(placed.key)),
                    Some((block, placed))
                );
            }
        }
    }
}

#[test]
fn only_the_largest_blocks_change_with_their_setting() {
    let (usual, larger) = (chain(), chain().with_largest(7_000));
    for (one, other) in usual.blocks().zip(larger.blocks()) {
        let (few, many) = (usual.placements(one), larger.placements(other));
        match (one.height - 840_000) % 50 {
            23 => assert_eq!((few.len(), many.len()), (1_000, 7_000)),
            _ => assert_eq!(few, many),
        }
        assert_eq!(usual.hash(one), larger.hash(other));
    }
}
