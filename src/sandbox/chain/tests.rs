//! The chain: determinism, reorgs, bounds.

use std::collections::HashSet;

use super::Chain;

fn chain() -> Chain {
    Chain::new(7, 200, 1_000)
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
    for block in chain.blocks.iter() {
        let hash = chain.hash(block);
        assert!(hash.len() == 64 && hash.starts_with("0000000000000000000"));
        assert_eq!(chain.by_hash(&hash), Some(block));
        assert_eq!(chain.by_hash(&hash.to_uppercase()), None);
        for placed in chain.transactions(block).into_iter().take(5) {
            assert_eq!(chain.find_tx(&chain.tx_id(placed.0)), Some((block, placed)));
        }
    }
    assert_eq!(chain.find_tx(&"f".repeat(64)), None);
    assert_eq!(chain.by_hash(&format!("00000000{}", "f".repeat(56))), None);
}

#[test]
fn after_a_reorg_each_transaction_is_in_one_block() {
    let mut chain = chain();
    let before: Vec<_> = (840_190..840_200)
        .flat_map(|height| chain.transactions(chain.at(height).expect("a block")))
        .collect();
    chain.rollback(10);
    chain.apply();
    chain.push();
    let mut seen = HashSet::new();
    for block in chain.blocks.iter().filter(|block| block.height >= 840_190) {
        for placed in chain.transactions(block) {
            assert!(seen.insert(placed.0), "a transaction is in two blocks");
        }
    }
    let moved = before.iter().filter(|old| {
        let (_, new) = chain.find_tx(&chain.tx_id(old.0)).expect("on the chain");
        new.1 != old.1
    });
    assert!(moved.count() * 2 > before.len());
}
