//! What is a reorg, and what is none.

use super::*;

#[test]
fn another_hash_at_a_height_is_a_reorg() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    for height in 90..=99 {
        test.answer(&[block(height, 0)], &tag(100, 0));
    }
    let reorg = applied(test.answer(&[block(98, 1)], &tag(101, 1)));
    assert_eq!(reorg.orphaned, Some(95), "with the margin");
    assert_eq!(reorg.epoch, 2);
    assert!(reorg.needs_probe);
    assert_eq!(test.0.height_of(&id(98, 1)), Some(98));
    assert_eq!(test.0.height_of(&id(98, 0)), None);
    assert_eq!(test.0.height_of(&id(99, 0)), None);
    assert_eq!(test.0.height_of(&id(97, 0)), None, "within the margin");
    assert_eq!(test.0.height_of(&id(94, 0)), Some(94));
    // Further heights of the same reorg are no other reorg.
    let lower = applied(test.answer(&[block(96, 1)], &tag(101, 1)));
    assert_eq!((lower.orphaned, lower.epoch), (None, 2));
    // The tip's tag shows it as well.
    let mut test = TestLedger::new();
    test.tip(100, 0);
    assert_eq!(test.tip(100, 1).unwrap().orphaned, Some(97));
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(101, 0)], &tag(101, 0));
    assert_eq!(test.tip(101, 1).unwrap().orphaned, Some(98));
}

#[test]
fn a_lower_tip_is_a_reorg() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    let rolled_back = test.tip(98, 0).unwrap();
    assert_eq!(rolled_back.orphaned, Some(96));
    assert_eq!(rolled_back.epoch, 2);
    assert_eq!(test.0.tip(), Some((98, true)));
    assert_eq!(test.tip(100, 1).unwrap().epoch, 3);
    // A height that was seen during the status request is newer than the status.
    let mut test = TestLedger::new();
    test.tip(100, 0);
    let start = test.0.start();
    test.answer(&[block(101, 0)], &tag(101, 0));
    let doubtful = test.0.status(start, Some(100), None, at(3));
    assert_eq!(doubtful, None);
    assert_eq!(test.0.tip(), Some((101, true)));
}

#[test]
fn a_block_that_lost_its_items_is_orphaned() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    // The tag shows that the block exists, not that it has items.
    assert_eq!(applied(test.empty(100, &tag(100, 0))).orphaned, None);
    test.answer(&[block(99, 0)], &tag(100, 0));
    let emptied = applied(test.empty(99, &tag(98, 0)));
    assert_eq!(emptied.orphaned, Some(96));
    assert_eq!(emptied.tip_height, None, "how far it goes is not known");
    assert_eq!(test.0.height_of(&id(99, 0)), None);
}

#[test]
fn an_answer_from_before_a_reorg_is_outdated() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(99, 0)], &tag(100, 0));
    let before = test.0.start();
    test.answer(&[block(99, 1)], &tag(101, 1));
    let epoch = test.0.epoch();
    for old in [block(99, 0), block(100, 0), block(97, 0)] {
        assert_eq!(
            test.answer_to(before, &[old], &tag(100, 0)),
            ObservationResult::Outdated
        );
    }
    assert_eq!(test.0.epoch(), epoch, "it changed nothing");
    assert_eq!(test.0.height_of(&id(99, 1)), Some(99));
    // Far below, it is still valid, of the earlier epoch.
    let below = applied(test.answer_to(before, &[block(50, 0)], &tag(100, 0)));
    assert_eq!(below.epoch, 1);
    // A later request that finds the old branch shows a reorg back.
    let back = applied(test.answer(&[block(99, 0)], &tag(102, 0)));
    assert_eq!(back.orphaned, Some(96));
}

#[test]
fn blocks_that_cannot_be_of_one_chain_are_ignored() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    let one_at_two = Block {
        height: 91,
        ..block(90, 0)
    };
    for blocks in [[block(90, 0), one_at_two], [block(90, 0), block(90, 1)]] {
        let update = applied(test.answer(&blocks, ""));
        assert_eq!((update.orphaned, update.tip_height), (None, None));
    }
    assert!(test.0.hash_at(90).is_none());
    // Answers that contradict each other all the time, each fine by itself.
    let mut test = TestLedger::new();
    test.status(100, "");
    let answers = (0..200_u8).map(|n| applied(test.answer(&[block(90, n)], "")));
    let reorgs = answers.filter(|update| update.orphaned.is_some());
    assert_eq!(reorgs.count(), MOST_CONFLICTS);
    assert_eq!(applied(test.answer(&[block(50, 0)], "")).tip_height, None);
    let start = test.0.start();
    let observation = Observation {
        blocks: &[block(50, 0)],
        ..Observation::default()
    };
    let later = at(2) + CONFLICT_PERIOD;
    assert_eq!(
        applied(test.0.observe(start, observation, later)).tip_height,
        Some(90)
    );
    // Where each bears the tip's hash, they are reorgs, however many.
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[], &tag(100, 0));
    for n in 1..200_u8 {
        let reorg = applied(test.answer(&[block(90, n)], &tag(100, n)));
        assert_eq!(reorg.orphaned.is_some(), n > 1);
    }
}

/// Regression: failover to an endpoint that is a block behind looked like a reorg.
#[test]
fn another_endpoint_that_is_behind_orphans_nothing() {
    let mut test = TestLedger::new();
    test.status_from(0, 99, 0);
    test.answer(&[block(99, 0)], "");
    test.status_from(0, 100, 0);
    test.answer(&[block(100, 0)], "");
    let before = test.0.epoch();
    let behind = test.status_from(1, 99, 0);
    assert_eq!(behind.orphaned, None);
    assert_eq!(behind.tip_height, Some(99));
    assert_eq!(behind.epoch, before + 1, "of another tip");
    // It does not have the block yet.
    let start = test.0.start();
    let observation = Observation {
        blocks: &[],
        empty_block: Some(100),
        etag: None,
    };
    let ObservationResult::Applied(update) = test.0.observe(start, observation, at(2)) else {
        panic!("it is no contradiction");
    };
    assert_eq!(update.orphaned, None);
    // Once it has caught up, it is believed as the other was.
    assert_eq!(test.status_from(1, 100, 0).orphaned, None);
    assert!(
        test.status_from(1, 99, 0).orphaned.is_some(),
        "the same one goes back"
    );
    // Another block is a reorg, whichever endpoint shows it.
    test.status_from(1, 100, 0);
    test.status_from(1, 101, 0);
    assert_eq!(
        test.status_from(0, 101, 1).orphaned.map(|from| from <= 101),
        Some(true)
    );
    // Two endpoints with the same tip are of one epoch.
    let epoch = test.0.epoch();
    assert_eq!(test.status_from(1, 101, 1).epoch, epoch);
}
