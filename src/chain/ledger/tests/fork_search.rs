//! The search for the fork point after a change of tip.

use super::*;

impl TestLedger {
    fn next_check(&mut self) -> ForkCheck {
        self.0.next_fork_check(at(3))
    }

    /// A check finds a block, or none, under a tip.
    fn check_finds(&mut self, height: u32, branch: Option<u8>, tip: (u32, u8)) -> Option<u32> {
        let tag = tag(tip.0, tip.1);
        let result = match branch {
            Some(branch) => self.answer(&[block(height, branch)], &tag),
            None => self.empty(height, &tag),
        };
        applied(result).orphaned
    }
}

#[test]
fn after_a_change_of_tip_the_previous_tip_is_checked_once() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    assert_eq!(test.next_check(), ForkCheck::None, "the first tip");
    test.tip(100, 0);
    assert_eq!(test.next_check(), ForkCheck::None);
    test.tip(101, 0);
    assert_eq!(test.next_check(), ForkCheck::At(100));
    assert_eq!(test.check_finds(100, Some(0), (101, 0)), None);
    assert_eq!(test.next_check(), ForkCheck::None);
    test.tip(101, 0);
    assert_eq!(test.next_check(), ForkCheck::None, "once for each change");
    // A block that an answer showed needs no check.
    test.tip(102, 0);
    test.answer(&[block(101, 0)], &tag(102, 0));
    assert_eq!(test.next_check(), ForkCheck::None);
    // An answer shows the change first, another the block.
    test.answer(&[], &tag(103, 0));
    test.answer(&[block(102, 0)], &tag(103, 0));
    test.tip(103, 0);
    assert_eq!(test.next_check(), ForkCheck::None);
    test.answer(&[], &tag(104, 0));
    test.tip(104, 0);
    assert_eq!(test.next_check(), ForkCheck::At(103));
}

#[test]
fn checks_descend_until_a_block_is_in_the_chain() {
    let mut test = TestLedger::new();
    for height in [70, 80, 90, 95] {
        test.answer(&[block(height, 0)], &tag(100, 0));
    }
    test.tip(100, 0);
    test.tip(101, 1);
    assert_eq!(test.next_check(), ForkCheck::At(100));
    assert_eq!(test.check_finds(100, Some(1), (101, 1)), Some(97));
    // A block learned meanwhile proves nothing of earlier ones.
    test.answer(&[block(92, 1)], &tag(101, 1));
    assert_eq!(test.next_check(), ForkCheck::At(95));
    assert_eq!(test.check_finds(95, Some(1), (101, 1)), Some(92));
    assert_eq!(test.next_check(), ForkCheck::At(90));
    assert_eq!(test.check_finds(90, Some(1), (101, 1)), Some(87));
    assert_eq!(test.next_check(), ForkCheck::At(80));
    assert_eq!(test.check_finds(80, Some(0), (101, 1)), None);
    assert_eq!(test.next_check(), ForkCheck::None);
    assert_eq!(test.0.hash_at(70), Some(id(70, 0)));
}

#[test]
fn a_visible_reorg_is_searched_below_as_well() {
    // By a status: a lower tip, or another of the same height.
    for (height, below) in [(98, 95), (100, 95)] {
        let mut test = TestLedger::new();
        test.answer(&[block(95, 0)], &tag(100, 0));
        test.answer(&[block(80, 0)], &tag(100, 0));
        test.tip(100, 0);
        test.tip(height, 1);
        assert_eq!(test.next_check(), ForkCheck::At(below));
        assert!(test.check_finds(below, Some(1), (height, 1)).is_some());
        assert_eq!(test.next_check(), ForkCheck::At(80));
    }
    // By an answer, where the status is unchanged.
    let mut test = TestLedger::new();
    for height in [99, 90] {
        test.answer(&[block(height, 0)], "");
    }
    test.status(100, "");
    assert_eq!(applied(test.answer(&[block(99, 1)], "")).orphaned, Some(96));
    assert_eq!(test.next_check(), ForkCheck::At(90));
    assert_eq!(applied(test.answer(&[block(90, 1)], "")).orphaned, Some(87));
    assert_eq!(test.next_check(), ForkCheck::None);
    test.status(100, "");
    assert_eq!(
        test.next_check(),
        ForkCheck::None,
        "the fork point is known"
    );
}

#[test]
fn an_empty_previous_tip_is_skipped() {
    let mut test = TestLedger::new();
    test.answer(&[block(90, 0)], &tag(100, 0));
    test.tip(100, 0);
    test.tip(101, 1);
    assert_eq!(test.next_check(), ForkCheck::At(100));
    assert_eq!(test.check_finds(100, None, (101, 1)), None);
    assert_eq!(test.next_check(), ForkCheck::At(90));
    assert_eq!(test.check_finds(90, Some(1), (101, 1)), Some(87));
    assert_eq!(test.next_check(), ForkCheck::None);
}

#[test]
fn a_block_learned_since_the_last_status_proves_nothing_of_earlier_ones() {
    // Without tags, its chain is not known.
    let mut test = TestLedger::new();
    test.answer(&[block(60, 0)], "");
    test.status(100, "");
    test.answer(&[block(90, 1)], "");
    test.status(101, "");
    assert_eq!(test.next_check(), ForkCheck::At(60));
    assert_eq!(applied(test.answer(&[block(60, 1)], "")).orphaned, Some(57));
    assert_eq!(test.next_check(), ForkCheck::None);
    // Nor does a block of the first answer with the new tip's tag.
    let mut test = TestLedger::new();
    test.answer(&[block(60, 0)], &tag(100, 0));
    test.tip(100, 0);
    test.tip(100, 0);
    test.answer(&[block(90, 1)], &tag(101, 1));
    test.tip(101, 1);
    assert_eq!(test.next_check(), ForkCheck::At(100));
    assert_eq!(test.check_finds(100, Some(1), (101, 1)), Some(97));
    assert_eq!(test.next_check(), ForkCheck::At(60));
    assert_eq!(test.check_finds(60, Some(1), (101, 1)), Some(57));
    assert_eq!(test.next_check(), ForkCheck::None);
    // Nor do earlier ones prove it.
    let mut test = TestLedger::new();
    test.answer(&[block(60, 0)], "");
    test.status(100, "");
    test.answer(&[block(90, 0)], "");
    test.status(101, "");
    assert_eq!(test.next_check(), ForkCheck::At(60));
    test.answer(&[block(60, 0)], "");
    assert_eq!(test.next_check(), ForkCheck::At(90));
    assert_eq!(applied(test.answer(&[block(90, 1)], "")).orphaned, Some(87));
    // That is another reorg, which may reach further down.
    assert_eq!(test.next_check(), ForkCheck::At(60));
    test.answer(&[block(60, 0)], "");
    assert_eq!(test.next_check(), ForkCheck::None);
}

#[test]
fn a_search_ends() {
    // A check without a result is not repeated for the same change.
    let mut test = TestLedger::new();
    test.answer(&[block(90, 0)], &tag(100, 0));
    test.tip(100, 0);
    test.tip(101, 0);
    assert_eq!(test.next_check(), ForkCheck::At(100));
    test.answer(&[], &tag(101, 0));
    assert_eq!(test.next_check(), ForkCheck::None);
    // A check that failed is repeated.
    test.tip(102, 0);
    for _ in 0..100 {
        assert_eq!(test.next_check(), ForkCheck::At(101));
        test.0.fork_check_failed();
    }
    // Meanwhile there is another tip: one search serves both changes.
    test.tip(103, 1);
    assert_eq!(test.next_check(), ForkCheck::At(101));
    assert_eq!(test.check_finds(101, Some(0), (103, 1)), None);
    assert_eq!(test.next_check(), ForkCheck::At(102));
    assert_eq!(test.check_finds(102, Some(0), (103, 1)), None);
    assert_eq!(test.next_check(), ForkCheck::None);
    // After a very deep reorg all blocks are forgotten.
    let mut test = TestLedger::new();
    for height in 0..100 {
        test.answer(&[block(height, 0)], &tag(100, 0));
    }
    test.tip(100, 0);
    test.tip(101, 1);
    let mut checks = 0;
    let orphaned = loop {
        match test.next_check() {
            ForkCheck::At(height) => {
                checks += 1;
                assert!(test.check_finds(height, Some(1), (101, 1)).is_some());
            }
            orphaned @ (ForkCheck::None | ForkCheck::Orphaned(_)) => break orphaned,
        }
    };
    assert_eq!((checks, orphaned), (16, ForkCheck::Orphaned(0)));
    assert_eq!(test.next_check(), ForkCheck::None);
    assert_eq!(test.0.len(), 0);
}

/// Checks that fail for long, or many blocks learned since the last status, are no
/// reorg.
#[test]
fn without_a_reorg_only_unproved_blocks_are_orphaned() {
    // Checks fail while the chain grows.
    let mut test = TestLedger::new();
    test.answer(&[block(90, 0)], &tag(100, 0));
    for height in 100..130 {
        test.tip(height, 0);
        if let ForkCheck::At(_) = test.next_check() {
            test.0.fork_check_failed();
        }
    }
    let orphaned = loop {
        match test.next_check() {
            ForkCheck::At(height) => assert_eq!(test.check_finds(height, Some(0), (129, 0)), None),
            orphaned @ (ForkCheck::None | ForkCheck::Orphaned(_)) => break orphaned,
        }
    };
    // The first tip is in the chain; later ones may not be.
    assert_eq!(orphaned, ForkCheck::Orphaned(98));
    assert_eq!(test.0.hash_at(90), Some(id(90, 0)));
    // Without tags, a client requests block after block.
    let mut test = TestLedger::new();
    test.answer(&[block(50, 0)], "");
    test.status(100, "");
    for height in 60..90 {
        test.answer(&[block(height, 0)], "");
    }
    test.status(101, "");
    assert_eq!(
        test.next_check(),
        ForkCheck::At(50),
        "known before the change"
    );
    test.answer(&[block(50, 0)], "");
    let orphaned = loop {
        match test.next_check() {
            ForkCheck::At(height) => drop(applied(test.answer(&[block(height, 0)], ""))),
            orphaned @ (ForkCheck::None | ForkCheck::Orphaned(_)) => break orphaned,
        }
    };
    assert_eq!(orphaned, ForkCheck::Orphaned(48));
    // Where no block has items, none is orphaned.
    let mut test = TestLedger::new();
    for height in 100..130 {
        test.tip(height, 0);
        if let ForkCheck::At(_) = test.next_check() {
            test.0.fork_check_failed();
        }
    }
    let none = loop {
        match test.next_check() {
            ForkCheck::At(height) => assert_eq!(test.check_finds(height, None, (129, 0)), None),
            none @ (ForkCheck::None | ForkCheck::Orphaned(_)) => break none,
        }
    };
    assert_eq!(none, ForkCheck::None);
}

#[test]
fn an_endpoint_that_is_behind_is_checked_at_its_own_height() {
    let mut test = TestLedger::new();
    test.status_from(0, 95, 0);
    test.status_from(0, 96, 0);
    test.answer(&[block(95, 0)], &tag(96, 0));
    assert_eq!(test.next_check(), ForkCheck::None);
    test.answer(&[block(94, 0)], &tag(96, 0));
    test.status_from(0, 96, 0);
    test.status_from(1, 94, 0);
    assert_eq!(test.next_check(), ForkCheck::None, "its tip was known");
    test.status_from(1, 95, 1);
    assert_eq!(test.next_check(), ForkCheck::None, "nothing is known below");
}

#[test]
fn a_fork_check_is_an_anchor_as_well() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    applied(test.answer(&[block(97, 0)], &tag(100, 0)));
    test.tip(100, 0);
    test.tip(100, 0);
    assert_eq!(test.tip(101, 0).unwrap().epoch, 2);
    assert_eq!(test.0.anchor(1, 97), Some(100));
    assert_eq!(test.next_check(), ForkCheck::At(100));
    test.check_finds(100, None, (101, 0));
    assert_eq!(test.0.anchor(1, 97), Some(97), "it is empty");
    assert_eq!(test.next_check(), ForkCheck::At(97));
    test.check_finds(97, Some(0), (101, 0));
    assert!(test.0.is_linked(1, 97));
    assert_eq!(
        (test.0.anchor(1, 97), test.next_check()),
        (None, ForkCheck::None)
    );
}
