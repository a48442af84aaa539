//! A ledger that is given statuses and answers, in and out of order. Each test is an
//! interleaving that one rule is for.

use super::*;
use crate::pages::hex;

fn at(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

/// The block at a height on a branch.
fn block(height: u32, branch: u8) -> Block {
    let mut hash = [branch; 32];
    hash[..4].copy_from_slice(&height.to_be_bytes());
    Block { height, hash }
}

/// The tag of a tip, as the reference upstream's runes indexer has it.
fn tag(height: u32, branch: u8) -> String {
    format!("\"{}\"", hex(&block(height, branch).hash))
}

const EVERY: Duration = Duration::from_secs(5);

/// A ledger whose answers have tags, or none.
struct Test {
    ledger: Ledger,
    has_tags: bool,
    now: u64,
}

impl Test {
    fn tagged() -> Self {
        Self {
            ledger: Ledger::default(),
            has_tags: true,
            now: 1,
        }
    }

    fn tagless() -> Self {
        Self {
            has_tags: false,
            ..Self::tagged()
        }
    }

    /// A status that was asked for and answered now. Returns from where on is to be purged.
    fn tip(&mut self, height: u32, branch: u8) -> Option<u32> {
        self.now += 1;
        let (start, tag) = (self.ledger.start(), tag(height, branch));
        let tag = Some(tag.as_bytes());
        self.ledger
            .status(Some(start), height, tag, None, at(self.now))
    }

    fn apply(
        &mut self,
        start: RequestStart,
        blocks: &[Block],
        empty: Option<u32>,
        tag: &str,
    ) -> Applied {
        let observation = Observation {
            route: 7,
            blocks,
            empty_block: empty,
            tag: self.has_tags.then_some(tag.as_bytes()),
        };
        self.ledger.apply(start, observation, EVERY, at(self.now))
    }

    /// An answer that was asked for and made now, at a tip.
    fn answer(&mut self, named: Block, tip: (u32, u8)) -> Applied {
        self.apply(self.ledger.start(), &[named], None, &tag(tip.0, tip.1))
    }

    fn empty(&mut self, height: u32, tip: (u32, u8)) -> Applied {
        self.apply(self.ledger.start(), &[], Some(height), &tag(tip.0, tip.1))
    }

    /// The height that is asked for.
    fn asks(&self) -> Option<u32> {
        self.ledger.check().map(|(height, _)| height)
    }

    fn is_known(&self, block: Block) -> bool {
        self.ledger.hash_at(block.height) == Some(block.hash)
    }
}

fn stored(applied: Applied) -> bool {
    applied.stored_in.is_some()
}

#[test]
fn after_a_new_tip_the_highest_block_known_before_shows_that_all_below_it_stands() {
    let mut test = Test::tagged();
    assert_eq!(test.tip(100, 0), None);
    assert_eq!(test.asks(), None, "nothing is known");
    for height in [90, 99, 95] {
        assert!(stored(test.answer(block(height, 0), (100, 0))));
    }
    // The same tip: all this was of it.
    assert_eq!(test.tip(100, 0), None);
    assert_eq!(test.ledger.view.epoch, 1);
    assert_eq!(test.tip(101, 0), None);
    assert_eq!((test.ledger.view.epoch, test.asks()), (2, Some(99)));
    let view = test.ledger.view(6, EVERY);
    assert_eq!(view.doubted, Some(at(test.now)));
    assert_eq!(view.final_up_to, None, "nothing turns final");
    assert_eq!(test.answer(block(99, 0), (101, 0)).purge_from, None);
    assert_eq!(test.asks(), None);
    let view = test.ledger.view(6, EVERY);
    assert_eq!((view.doubted, view.final_up_to), (None, Some(95)));
    assert_eq!(view.refuted_before, 1);
    assert!(test.ledger.stands == Some(99) && test.ledger.reorgs == 0);
}

#[test]
fn after_a_reorg_lower_blocks_are_asked_for_in_doubling_steps() {
    let mut test = Test::tagged();
    test.tip(300, 0);
    for height in 100..=300 {
        test.answer(block(height, 0), (300, 0));
    }
    test.tip(300, 0);
    test.tip(301, 1);
    let mut asked = Vec::new();
    let mut purge = None;
    while let Some(height) = test.asks() {
        asked.push(height);
        let stands = height <= 290;
        let applied = test.answer(block(height, u8::from(!stands)), (301, 1));
        assert_eq!(stored(applied), stands, "it contradicts what is known");
        purge = applied.purge_from;
        if asked.len() == 1 {
            let view = test.ledger.view(6, EVERY);
            assert_eq!(view.refuted_before, view.epoch, "at once");
        }
    }
    assert_eq!(asked, [300, 299, 297, 293, 285]);
    assert_eq!(purge, Some(286));
    assert_eq!(test.ledger.reorgs, 1);
    assert!(!test.is_known(block(286, 0)) && test.is_known(block(285, 0)));
    // None of eight stands: all is purged.
    test.tip(302, 2);
    let mut asked = 0;
    while let Some(height) = test.asks() {
        asked += 1;
        purge = test.answer(block(height, 2), (302, 2)).purge_from;
    }
    assert_eq!((asked, purge, test.ledger.blocks.len()), (8, Some(0), 0));
}

/// Of the old chain, first seen after the reorg.
#[test]
fn an_answer_of_another_tip_is_passed_on() {
    for mut test in [Test::tagged(), Test::tagless()] {
        test.tip(100, 0);
        test.answer(block(90, 0), (100, 0));
        let start = test.ledger.start();
        test.tip(101, 1);
        let late = test.apply(start, &[block(95, 0)], None, &tag(100, 0));
        assert!(!stored(late));
        assert_eq!(
            late.asks_status, test.has_tags,
            "its tag may be that of a newer one"
        );
        assert!(!test.is_known(block(95, 0)));
        // One that has the new tip's tag is of it, whenever it was asked for.
        let early = test.apply(start, &[block(95, 1)], None, &tag(101, 1));
        assert_eq!(stored(early), test.has_tags);
    }
}

#[test]
fn tags_of_resources_are_ignored_and_equal_tags_that_are_no_hashes_prove_little() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    let answer = test.apply(
        test.ledger.start(),
        &[block(90, 0)],
        None,
        "\"of this body\"",
    );
    assert!(stored(answer) && !answer.asks_status);
    // Two tips of one tag, as the reference upstream's ordinals indexer has them.
    let mut test = Test::tagged();
    let status = |test: &mut Test, height| {
        let start = Some(test.ledger.start());
        test.ledger
            .status(start, height, Some(b"W/\"17\""), None, at(1))
    };
    status(&mut test, 100);
    let start = test.ledger.start();
    assert!(stored(test.apply(start, &[block(90, 0)], None, "\"17\"")));
    status(&mut test, 101);
    assert!(!stored(test.apply(start, &[block(91, 0)], None, "\"17\"")));
}

#[test]
fn data_that_run_ahead_of_the_status_are_passed_on() {
    for mut test in [Test::tagged(), Test::tagless()] {
        test.tip(100, 0);
        let ahead = test.answer(block(101, 0), (100, 0));
        assert!(!stored(ahead) && ahead.asks_status);
        assert!(!test.is_known(block(101, 0)));
    }
}

/// An answer is made after the tip has moved and arrives before that is seen: with tags,
/// its tag is decided before its body.
#[test]
fn a_block_that_may_be_of_the_new_chain_proves_nothing() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    test.answer(block(80, 0), (100, 0));
    test.answer(block(90, 0), (100, 0));
    // Body of the other chain.
    let start = test.ledger.start();
    test.apply(start, &[block(95, 1)], None, &tag(100, 0));
    test.tip(101, 1);
    assert_eq!(test.asks(), Some(90), "and not 95");
    assert_eq!(test.answer(block(90, 1), (101, 1)).purge_from, None);
    assert_eq!(test.answer(block(80, 0), (101, 1)).purge_from, Some(81));
    // Where that stands, what was learned since is purged.
    let mut test = Test::tagged();
    test.tip(100, 0);
    test.answer(block(90, 0), (100, 0));
    test.answer(block(95, 0), (100, 0));
    test.tip(101, 1);
    assert_eq!(test.asks(), Some(90));
    assert_eq!(test.answer(block(90, 0), (101, 1)).purge_from, Some(91));
}

/// A, B, A between two statuses: without tags, nothing learned in the last epoch counts.
#[test]
fn without_tags_blocks_count_that_were_known_before_the_last_epoch() {
    let mut test = Test::tagless();
    test.tip(100, 0);
    test.answer(block(90, 0), (0, 0));
    assert_eq!(test.tip(101, 0), Some(0), "all of the first epoch");
    assert!(test.is_known(block(90, 0)), "it may be asked for later");
    test.answer(block(98, 1), (0, 0));
    test.tip(101, 0);
    assert_eq!(test.tip(102, 0), None);
    assert_eq!(test.asks(), Some(90));
    assert_eq!(test.answer(block(90, 0), (0, 0)).purge_from, Some(91));
}

#[test]
fn a_block_replaced_by_an_empty_one_does_not_stand() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    test.answer(block(99, 0), (100, 0));
    test.answer(block(90, 0), (100, 0));
    test.tip(100, 0);
    test.tip(101, 1);
    assert_eq!(test.asks(), Some(99));
    assert!(!stored(test.empty(99, (101, 1))));
    assert_eq!(test.asks(), Some(90));
    assert_eq!(test.answer(block(90, 0), (101, 1)).purge_from, Some(91));
    assert!(stored(test.empty(99, (101, 1))));
}

/// Whether or not it was found meanwhile that the blocks at or below the lower tip stand.
#[test]
fn a_lower_tip_purges_nothing_and_its_blocks_are_asked_for_when_it_is_back() {
    for is_answered in [true, false] {
        let mut test = Test::tagged();
        test.tip(500, 0);
        for height in [150, 400, 499] {
            test.answer(block(height, 0), (500, 0));
        }
        test.tip(500, 0);
        assert_eq!(test.tip(200, 0), None);
        assert_eq!(test.asks(), Some(150));
        if is_answered {
            assert_eq!(test.answer(block(150, 0), (200, 0)).purge_from, None);
        }
        let lowest = |test: &Test| test.ledger.view(6, EVERY).lowest_tip;
        assert_eq!(lowest(&test), Some(200), "higher ones are stale");
        // Forward on another branch.
        test.tip(450, 1);
        assert_eq!(test.asks(), Some(400));
        assert_eq!(lowest(&test), Some(200), "until they are checked");
        test.answer(block(400, 1), (450, 1));
        assert_eq!(test.answer(block(150, 0), (450, 1)).purge_from, Some(151));
    }
}

/// Each status is a block lower, so each time the block that is asked for stands.
#[test]
fn a_rollback_block_by_block_is_found_when_the_chain_grows_again() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    for height in 90..=100 {
        test.answer(block(height, 0), (100, 0));
    }
    test.tip(100, 0);
    for height in (95..100).rev() {
        test.tip(height, 0);
        assert_eq!(test.asks(), Some(height));
        assert_eq!(test.answer(block(height, 0), (height, 0)).purge_from, None);
    }
    test.tip(96, 1);
    assert_eq!(test.asks(), Some(96));
    test.answer(block(96, 1), (96, 1));
    assert_eq!(test.answer(block(95, 0), (96, 1)).purge_from, Some(96));
    assert!(!test.is_known(block(100, 0)));
}

#[test]
fn a_contradiction_is_checked_once_an_interval_before_anything_is_stale() {
    let mut test = Test::tagless();
    test.tip(100, 0);
    test.answer(block(90, 0), (0, 0));
    test.tip(101, 0);
    test.answer(block(95, 0), (0, 0));
    let epoch = test.ledger.view.epoch;
    let other = test.answer(block(95, 1), (0, 0));
    assert!(!stored(other) && other.asks_block);
    assert_eq!((test.asks(), test.ledger.view.epoch), (Some(95), epoch));
    assert_eq!(test.ledger.view(6, EVERY).doubted, None);
    // It was an endpoint that is behind.
    assert!(stored(test.answer(block(95, 0), (0, 0))));
    assert_eq!(test.asks(), None);
    test.answer(block(95, 1), (0, 0));
    assert_eq!(test.asks(), None, "not so soon again");
    test.now += 5;
    test.answer(block(95, 1), (0, 0));
    assert_eq!(test.asks(), Some(95));
    test.answer(block(95, 1), (0, 0));
    assert_eq!((test.asks(), test.ledger.view.epoch), (Some(90), epoch + 1));
    assert_eq!(test.answer(block(90, 0), (0, 0)).purge_from, Some(91));
}

#[test]
fn a_later_tip_waits_for_the_check_under_way() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    test.answer(block(90, 0), (100, 0));
    test.answer(block(99, 0), (100, 0));
    test.tip(100, 0);
    test.tip(101, 1);
    let doubted = test.ledger.view(6, EVERY).doubted;
    let check = test.ledger.check();
    // Learned of the new chain, so it proves nothing of the old one.
    test.answer(block(101, 1), (101, 1));
    test.tip(102, 1);
    assert_eq!(test.asks(), Some(99));
    assert_ne!(test.ledger.check(), check, "it is asked for again");
    assert_eq!(test.ledger.view(6, EVERY).doubted, doubted);
    test.answer(block(99, 1), (102, 1));
    assert_eq!(test.answer(block(90, 0), (102, 1)).purge_from, Some(91));
}

#[test]
fn the_blocks_of_an_earlier_run_are_in_doubt_at_the_first_status() {
    let mut test = Test::tagged();
    test.ledger.learn(block(90, 0));
    test.ledger.learn(block(120, 0));
    test.tip(100, 0);
    assert_eq!(test.asks(), Some(90));
    assert_eq!(test.ledger.stands, None);
    assert_eq!(test.answer(block(90, 0), (100, 0)).purge_from, None);
    assert_eq!(test.ledger.stands, Some(90));
}

#[test]
fn an_empty_block_is_final_below_one_that_is_not() {
    let mut test = Test::tagged();
    test.tip(100, 0);
    assert_eq!(test.ledger.view(6, EVERY).final_up_to, None);
    test.answer(block(80, 0), (100, 0));
    assert_eq!(test.ledger.view(6, EVERY).final_up_to, Some(80));
    test.answer(block(97, 0), (100, 0));
    assert_eq!(test.ledger.view(6, EVERY).final_up_to, Some(94));
}

#[test]
fn memory_is_bounded() {
    let mut ledger = Ledger::default();
    let end = 2 * MOST_BLOCKS as u32;
    for height in 0..end {
        ledger.learn(block(height, 0));
    }
    assert_eq!(
        (ledger.blocks.len(), ledger.heights.len()),
        (MOST_BLOCKS, MOST_BLOCKS)
    );
    assert_eq!(
        ledger.heights.get(&block(end - 1, 0).hash),
        Some(&(end - 1))
    );
    assert_eq!(ledger.heights.get(&block(0, 0).hash), None);
}

proptest::proptest! {
    /// Whatever comes in whatever order: heights and hashes agree, epochs never decrease,
    /// and a check asks for a block that is known.
    #[test]
    fn blocks_are_consistent(steps in proptest::collection::vec((0_u8..4, 90_u32..110, 0_u8..3, 0_usize..4), 1..200)) {
        let mut test = Test::tagged();
        let mut starts = vec![test.ledger.start()];
        let mut epoch = NO_EPOCH;
        for (what, height, branch, age) in steps {
            let start = starts[starts.len().saturating_sub(age + 1)];
            test.has_tags = what != 2;
            match what {
                0 => drop(test.tip(height, branch)),
                1 | 2 => drop(test.apply(start, &[block(height, branch)], None, &tag(height, branch))),
                _ => drop(test.apply(start, &[], Some(height), &tag(height, branch))),
            }
            starts.push(test.ledger.start());
            let ledger = &test.ledger;
            proptest::prop_assert!(ledger.view.epoch >= epoch);
            epoch = ledger.view.epoch;
            proptest::prop_assert_eq!(ledger.heights.len(), ledger.blocks.len());
            for (height, known) in &ledger.blocks {
                proptest::prop_assert_eq!(ledger.heights.get(&known.hash), Some(height));
            }
            let asked = test.asks();
            proptest::prop_assert!(asked.is_none_or(|at| ledger.hash_at(at).is_some()));
        }
    }
}
