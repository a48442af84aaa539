//! What another process may conclude from the tip of an answer.

use super::*;

fn mark(height: u32, branch: u8) -> TipMark {
    TipMark {
        height,
        tag: id(height, branch),
        is_hash: true,
    }
}

/// A ledger whose tip was reported and borne by an answer.
fn at_tip(height: u32) -> TestLedger {
    let mut test = TestLedger::new();
    test.tip(height, 0);
    test.answer(&[block(height - 3, 0)], &tag(height, 0));
    test.tip(height, 0);
    test
}

fn marked(epoch: Epoch, is_present: bool) -> Option<MarkedEpoch> {
    Some(MarkedEpoch { epoch, is_present })
}

#[test]
fn the_mark_is_that_of_the_present_epoch_with_a_certain_tip() {
    let mut test = TestLedger::new();
    assert_eq!(test.0.mark_of(NO_EPOCH), None);
    test.tip(100, 0);
    assert_eq!(test.0.mark_of(1), None, "no answer has borne the tag yet");
    let mut test = at_tip(100);
    assert_eq!(test.0.mark_of(1), Some(mark(100, 0)));
    // An answer shows that there is a new tip, and not which height it has.
    test.answer(&[], &tag(101, 0));
    assert_eq!((test.0.mark_of(1), test.0.mark_of(2)), (None, None));
    test.tip(101, 0);
    let epoch = test.0.epoch();
    assert_eq!(test.0.mark_of(epoch), Some(mark(101, 0)));
    assert_eq!(test.0.mark_of(1), None, "it has ended");
    // An answer names a higher block than the tip's tag.
    test.answer(&[block(102, 0)], &tag(101, 0));
    assert_eq!(test.0.mark_of(test.0.epoch()), None);
    // Tags of resources.
    let mut test = TestLedger::new();
    test.status(100, "\"a\"");
    test.answer(&[block(97, 0)], "\"b\"");
    assert_eq!(test.0.mark_of(1), None);
}

#[test]
fn a_tag_that_is_no_hash_marks_the_present_tip_and_no_block() {
    let tagged = |tag: &str| {
        let mut test = TestLedger::new();
        test.status(100, tag);
        test.answer(&[block(97, 0)], tag);
        test
    };
    let mark = tagged("\"a\"").0.mark_of(1).unwrap();
    assert_eq!((mark.height, mark.is_hash), (100, false));
    let mut test = tagged("\"a\"");
    assert_eq!(test.0.marked_epoch(mark), marked(1, true));
    assert_eq!(tagged("\"b\"").0.marked_epoch(mark), None);
    test.status(101, "\"b\"");
    assert_eq!(test.0.marked_epoch(mark), None);
}

#[test]
fn a_mark_is_of_the_present_epoch_or_of_one_in_which_its_block_was_seen() {
    let mut test = at_tip(100);
    assert_eq!(test.0.marked_epoch(mark(100, 0)), marked(1, true));
    assert_eq!(test.0.marked_epoch(mark(100, 1)), None, "another block");
    assert_eq!(test.0.marked_epoch(mark(101, 0)), None, "not seen yet");
    assert_eq!(test.0.marked_epoch(mark(97, 0)), marked(1, false));
    test.tip(101, 0);
    // The block before the tip was seen in the epoch before, and is not linked yet.
    assert_eq!(test.0.marked_epoch(mark(100, 0)), marked(1, false));
    assert!(!test.0.is_linked(1, 100));
    test.answer(&[block(100, 0)], &tag(101, 0));
    assert_eq!(test.0.marked_epoch(mark(100, 0)), marked(2, false));
    // A reorg: nothing is known of the block any more.
    test.tip(101, 0);
    test.answer(&[block(100, 1)], &tag(102, 1));
    assert_eq!(test.0.marked_epoch(mark(100, 0)), None);
    assert_eq!(test.0.marked_epoch(mark(101, 0)), None);
}

/// The blocks above 96 may have been replaced between the answer's tag and its body.
#[test]
fn a_block_that_was_perhaps_seen_after_its_epoch_marks_none() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[block(99, 1)], &tag(100, 0));
    assert_eq!(test.0.marked_epoch(mark(99, 1)), marked(1, false));
    test.tip(101, 1);
    assert_eq!(test.0.marked_epoch(mark(99, 1)), None);
    test.answer(&[block(99, 1)], &tag(101, 1));
    assert_eq!(test.0.marked_epoch(mark(99, 1)), marked(2, false));
}

#[test]
fn a_status_is_overtaken_by_what_was_learned_since_its_request() {
    let mut test = at_tip(100);
    let before = test.0.start();
    let says = |test: &TestLedger, start, height| {
        let tag = tag(height, 0);
        test.0.is_overtaken(start, height, Some(tag.as_bytes()))
    };
    assert!(!says(&test, before, 100) && !says(&test, before, 101));
    // An answer shows that there is a new tip.
    test.answer(&[], &tag(101, 0));
    assert!(says(&test, before, 100), "it is the tip of before");
    assert!(!says(&test, before, 101), "it says the same");
    let after = test.0.start();
    assert!(!says(&test, after, 100) && !says(&test, after, 102));
    assert!(!test.0.is_overtaken(before, 100, None), "it has no tag");
}

/// What another process has seen under the present tip ends the search for the fork point,
/// if it is what is known here, and changes nothing otherwise.
#[test]
fn a_block_that_another_process_has_seen_under_the_present_tip_is_confirmed() {
    let at_new_tip = || {
        let mut test = at_tip(100);
        test.tip(101, 0);
        assert_eq!(test.0.next_fork_check(at(3)), ForkCheck::At(100));
        test
    };
    let mut test = at_new_tip();
    assert!(!test.0.is_linked(1, 97));
    assert!(test.0.confirm_block(2, block(100, 0)));
    assert_eq!(test.0.next_fork_check(at(3)), ForkCheck::None);
    assert!(
        test.0.is_linked(1, 97),
        "it is the same chain up to the block"
    );
    for (what, epoch, shown) in [
        ("another block than is known", 2, block(100, 1)),
        ("a block that is not known", 2, block(99, 0)),
        ("the tip before", 1, block(100, 0)),
        ("a tip that is not known yet", 3, block(100, 0)),
        ("no tip", NO_EPOCH, block(100, 0)),
        ("a block above the tip", 2, block(102, 0)),
    ] {
        let mut test = at_new_tip();
        let before = format!("{:?}", test.0);
        assert!(!test.0.confirm_block(epoch, shown), "{what}");
        assert_eq!(format!("{:?}", test.0), before, "{what}");
    }
    // An answer shows that there is another tip, and not which.
    let mut test = at_new_tip();
    test.answer(&[], &tag(102, 0));
    let present = test.0.epoch();
    assert!(!test.0.confirm_block(present, block(100, 0)));
    // The tip's tag is not its hash: it does not commit to the blocks below.
    let mut test = TestLedger::new();
    for (height, tag) in [(100, "\"a\""), (101, "\"b\"")] {
        test.status(height, tag);
        test.answer(&[block(99, 0)], tag);
    }
    let present = test.0.epoch();
    assert!(test.0.mark_of(present).is_some());
    assert!(!test.0.confirm_block(present, block(99, 0)));
}

/// A request's answer shows that the tip did not change until the request began, and so
/// nothing of what was confirmed later.
#[test]
fn a_confirmation_is_certain_by_a_request_that_began_after_it_and_by_no_earlier_one() {
    for (is_after, known) in [(false, None), (true, marked(2, false))] {
        let mut test = at_tip(100);
        test.tip(101, 0);
        let before = test.0.start();
        assert!(test.0.confirm_block(2, block(100, 0)));
        let after = test.0.start();
        let start = if is_after { after } else { before };
        test.answer_to(start, &[], &tag(101, 0));
        test.tip(102, 0);
        assert_eq!(test.0.marked_epoch(mark(100, 0)), known, "{is_after}");
    }
}
