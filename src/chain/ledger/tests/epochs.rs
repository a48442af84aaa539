//! When epochs begin and end, and of which epoch an answer is.

use super::*;

#[test]
fn an_epoch_lasts_until_height_or_tag_change() {
    let mut test = TestLedger::new();
    assert_eq!(test.tip(100, 0).unwrap().epoch, 1, "the first tip");
    assert_eq!(test.tip(100, 0).unwrap().epoch, 1);
    assert_eq!(test.tip(101, 0).unwrap().epoch, 2);
    assert_eq!(test.0.tip(), Some((101, true)));
    assert_eq!(test.0.ended(1), Some(at(1)));
    assert_eq!(test.0.ended(2), None);
    // The ordinals tag: a timestamp that may stay, or change with the height.
    let mut test = TestLedger::new();
    assert_eq!(test.status(100, "\"1700\"").unwrap().epoch, 1);
    let higher = test.status(101, "\"1700\"").unwrap();
    assert_eq!((higher.epoch, higher.orphaned), (2, None));
    let other = test.status(101, "W/\"1800\"").unwrap();
    assert_eq!((other.epoch, other.orphaned), (3, Some(98)), "replaced");
    assert_eq!(test.status(101, "\"1800\"").unwrap().epoch, 3, "the same");
}

#[test]
fn an_answer_from_before_the_first_tip_is_of_no_epoch() {
    let mut test = TestLedger::new();
    assert_eq!(applied(test.answer(&[block(90, 0)], "")).epoch, NO_EPOCH);
    // Nor is an answer without blocks, such as a token, or a late one.
    let mut test = TestLedger::new();
    assert_eq!(applied(test.answer(&[], "")).epoch, NO_EPOCH);
    let start = test.0.start();
    assert_eq!(test.tip(100, 0).unwrap().epoch, 1);
    assert_eq!(test.0.ended(NO_EPOCH), Some(at(1)));
    assert_eq!(applied(test.answer_to(start, &[], "")).epoch, NO_EPOCH);
    assert!(!test.0.is_linked(NO_EPOCH, 90));
    assert_eq!(test.tip(100, 0).unwrap().epoch, 1, "it is not the first");
    // Nor is one received after a block of the tip's height was seen.
    let mut test = TestLedger::new();
    assert_eq!(applied(test.answer(&[], "")).epoch, NO_EPOCH);
    assert_eq!(applied(test.answer(&[block(100, 0)], "")).epoch, NO_EPOCH);
    assert_eq!(test.tip(100, 0).unwrap().epoch, 1);
}

#[test]
fn a_new_height_or_tag_in_an_answer_begins_an_epoch() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    let plain = applied(test.answer(&[block(90, 0)], &tag(100, 0)));
    assert_eq!(
        (plain.epoch, plain.tip_height, plain.needs_probe),
        (1, Some(100), false)
    );
    // A changed tag: the tip is uncertain until the status reports it.
    let changed = applied(test.answer(&[block(90, 0)], &tag(101, 0)));
    assert_eq!(
        (changed.epoch, changed.tip_height, changed.needs_probe),
        (2, None, true)
    );
    let again = applied(test.answer(&[block(91, 0)], &tag(101, 0)));
    assert_eq!((again.epoch, again.needs_probe), (2, false));
    let status = test.tip(101, 0).unwrap();
    assert_eq!(
        (status.epoch, status.orphaned),
        (2, None),
        "the tag showed it"
    );
    // A height above the tip, with the tag of its tip.
    let higher = applied(test.answer(&[block(102, 0)], &tag(102, 0)));
    assert_eq!((higher.epoch, higher.tip_height), (3, Some(102)));
    assert_eq!(test.tip(102, 0).unwrap().epoch, 3);
    // Without tags, heights alone.
    let mut test = TestLedger::new();
    test.status(100, "");
    assert_eq!(applied(test.answer(&[block(101, 0)], "")).epoch, 2);
    assert_eq!(test.status(101, "").unwrap().epoch, 2);
}

#[test]
fn a_height_far_above_the_tip_has_to_be_confirmed_by_the_status() {
    let mut test = TestLedger::new();
    test.status(100, "");
    let jump = applied(test.answer(&[block(104, 0)], ""));
    assert_eq!(
        (jump.tip_height, jump.needs_probe, jump.epoch),
        (None, true, 2)
    );
    assert_eq!(test.status(104, "").unwrap().tip_height, Some(104));
    let near = applied(test.answer(&[block(107, 0)], ""));
    assert_eq!((near.tip_height, near.needs_probe), (Some(107), false));
    // Without a status path there is nothing to confirm it.
    let mut test = TestLedger::new();
    test.answer(&[block(100, 0)], "");
    assert_eq!(
        applied(test.answer(&[block(900, 0)], "")).tip_height,
        Some(900)
    );
}

#[test]
fn tags_of_resources_begin_no_epochs() {
    let mut test = TestLedger::new();
    test.status(100, "\"status\"");
    for n in 0..9 {
        let update = applied(test.answer(&[block(90, 0)], &format!("\"resource-{n}\"")));
        assert_eq!((update.epoch, update.needs_probe), (1, false));
    }
    // A tag that seemed to be the tip's, and is not: a few false alarms, no more.
    let mut test = TestLedger::new();
    test.status(100, "\"same\"");
    test.answer(&[], "\"same\"");
    let mut epochs = 0;
    for n in 0..20 {
        let before = test.0.epoch();
        test.answer(&[], &format!("\"other-{n}\""));
        epochs += test.0.epoch() - before;
        test.status(100, "\"same\"");
        assert!(test.0.epoch() <= before + 1);
    }
    assert_eq!(epochs, u64::from(MOST_FALSE_ALARMS));
}

#[test]
fn the_hash_of_a_status_may_not_be_that_of_its_height() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    // Between its tag and its height a block has come.
    test.status(101, &tag(100, 0));
    assert_eq!(test.0.height_of(&id(100, 0)), None);
    test.answer(&[block(100, 0)], &tag(101, 0));
    assert_eq!(test.0.height_of(&id(100, 0)), Some(100));
}

#[test]
fn the_tag_of_an_earlier_tip_only_requests_a_probe() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[], &tag(100, 0));
    test.tip(101, 0);
    let lagging = applied(test.answer(&[block(90, 0)], &tag(100, 0)));
    assert_eq!((lagging.epoch, lagging.needs_probe), (NO_EPOCH, true));
    assert_eq!(test.0.epoch(), 2);
}

#[test]
fn a_late_answer_is_of_the_epoch_in_which_it_was_requested() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    test.answer(&[], &tag(100, 0));
    let before = test.0.start();
    test.tip(101, 0);
    assert_eq!(applied(test.answer_to(before, &[], &tag(100, 0))).epoch, 1);
    assert_eq!(applied(test.answer_to(before, &[], "")).epoch, 1);
    let newer = applied(test.answer_to(before, &[], &tag(101, 0)));
    assert_eq!(newer.epoch, 2, "its tag is the present tip's hash");
}

#[test]
fn the_tips_own_hash_confirms_it() {
    let mut test = TestLedger::new();
    test.tip(100, 0);
    assert!(applied(test.answer(&[], &tag(100, 0))).confirms_tip);
    assert!(!applied(test.answer(&[], "")).confirms_tip);
    let changed = applied(test.answer(&[], &tag(101, 0)));
    assert!(!changed.confirms_tip);
    assert!(
        !applied(test.answer(&[], &tag(101, 0))).confirms_tip,
        "not certain"
    );
    test.tip(101, 0);
    assert!(applied(test.answer(&[], &tag(101, 0))).confirms_tip);
    // A timestamp may stay as it was although the tip moved.
    let mut test = TestLedger::new();
    test.status(100, "\"1700\"");
    assert!(!applied(test.answer(&[], "\"1700\"")).confirms_tip);
}
