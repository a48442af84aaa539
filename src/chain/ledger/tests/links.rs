//! Which epochs share a block, and which block would prove that they do.

use super::*;

#[test]
fn a_block_seen_in_two_epochs_links_them() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(99, 0)], &tag(100, 0));
    test.tip(100, 0);
    test.tip(101, 0);
    assert!(!test.0.is_linked(1, 90));
    test.answer(&[block(99, 0)], &tag(101, 0));
    assert!(test.0.is_linked(1, 99) && test.0.is_linked(1, 90));
    assert!(!test.0.is_linked(1, 100), "nothing is known of that one");
    test.answer(&[block(100, 0)], &tag(101, 0));
    assert!(test.0.is_linked(1, 100), "the tip of the first epoch");
    // Links are transitive.
    test.tip(101, 0);
    test.tip(102, 0);
    assert!(!test.0.is_linked(1, 90) && !test.0.is_linked(2, 90));
    test.answer(&[block(100, 0)], &tag(102, 0));
    assert!(test.0.is_linked(1, 100) && test.0.is_linked(2, 100));
    assert!(!test.0.is_linked(2, 101) && !test.0.is_linked(NO_EPOCH, 1));
    // Without tags of the tip, a change within an epoch may go unnoticed.
    let mut test = TestLedger::new();
    test.status(100, "");
    test.answer(&[block(99, 0)], "");
    test.status(101, "");
    test.answer(&[block(99, 0)], "");
    assert!(!test.0.is_linked(1, 90));
}

#[test]
fn a_block_of_an_unproved_answer_links_nothing() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(97, 0)], &tag(100, 0));
    test.tip(100, 0);
    // All above 96 is replaced between this one's tag and its body.
    test.answer(&[block(99, 1)], &tag(100, 0));
    test.tip(101, 1);
    test.answer(&[block(99, 1)], &tag(101, 1));
    assert!(!test.0.is_linked(1, 97), "99 may have been seen later");
    test.empty(100, &tag(101, 1));
    assert_eq!(test.0.anchor(1, 97), Some(97));
}

#[test]
fn an_answer_requested_two_changes_ago_links_nothing() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(97, 0)], &tag(100, 0));
    let before = test.0.start();
    // All above 96 is replaced, of which first a lower part is seen.
    test.tip(101, 0);
    test.answer_to(before, &[block(99, 1)], &tag(102, 1));
    test.tip(102, 1);
    test.answer(&[block(99, 1)], &tag(102, 1));
    assert!(
        !test.0.is_linked(1, 97),
        "99 of the branch was not seen then"
    );
}

#[test]
fn the_anchor_is_the_highest_block_seen_in_the_epoch() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(96, 0)], &tag(100, 0));
    test.answer(&[block(99, 0)], &tag(100, 0));
    assert_eq!(test.0.anchor(1, 96), None, "it is the present epoch");
    test.tip(100, 0);
    test.tip(101, 0);
    assert_eq!(test.0.anchor(1, 96), Some(100), "the next fork check");
    test.empty(100, &tag(101, 0));
    assert_eq!(test.0.anchor(1, 96), Some(99));
    assert_eq!(test.0.anchor(1, 99), Some(99));
    assert_eq!(test.0.anchor(1, 100), None, "it is without items");
    assert_eq!(test.0.anchor(NO_EPOCH, 96), None);
    test.answer(&[block(96, 0)], &tag(101, 0));
    test.tip(101, 0);
    test.tip(102, 0);
    test.empty(101, &tag(102, 0));
    assert_eq!(test.0.anchor(1, 97), Some(99), "seen in the same epoch");
    assert_eq!(test.0.anchor(1, 96), Some(99));
    assert_eq!(test.0.anchor(2, 96), Some(96), "99 was not seen then");
    // Once it is seen, nothing is left to prove.
    test.answer(&[block(99, 0)], &tag(102, 0));
    assert_eq!(test.0.anchor(1, 97), None);
    test.tip(103, 0);
    // A reorg removes the block.
    test.answer(&[block(99, 1)], &tag(104, 1));
    assert_eq!(test.0.anchor(1, 97), None);
}
