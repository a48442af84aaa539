//! The machine while the server runs on with older rows than it had.

use std::time::Duration;

use super::machine::{
    LIFE, TIME, append, apply, at, machine, names, saved, sync_all, sync_once, text,
};
use crate::shared::journal::machine::{JournalEffect, JournalMachine};
use crate::shared::journal::model;
use crate::shared::journal::record::JournalRecord;

#[test]
fn other_records_in_the_place_of_those_applied_are_found_out() {
    // Whether the process is started again, and how many records are left that it could
    // compare.
    for (is_restarted, left) in [(false, 6), (false, 2), (true, 6), (true, 2)] {
        let mut engine = None;
        let (mut one, mut two) = (machine(1, None), machine(2, None));
        append(&mut one, [1, 2]);
        sync_all(&mut one, &mut engine, at(0));
        let older = engine.clone();
        append(&mut one, [3, 4]);
        sync_all(&mut one, &mut engine, at(0));
        sync_all(&mut two, &mut engine, at(0));
        // The same server has older rows again, and another process fills their places.
        engine = older;
        let mut three = machine(3, None);
        let others = 13..=16;
        append(&mut three, others.clone());
        sync_all(&mut three, &mut engine, at(1));
        let records = &mut engine.as_mut().unwrap().records;
        records.drain(..records.len() - left);
        if is_restarted {
            two = machine(4, Some(saved(&two, Duration::from_secs(1))));
        }
        let mut effects = sync_all(&mut two, &mut engine, at(1));
        sync_all(&mut three, &mut engine, at(1));
        effects.extend(sync_all(&mut two, &mut engine, at(1)));
        for number in others {
            assert!(
                effects.contains(&apply(number)),
                "{is_restarted} {left}: {effects:?}"
            );
        }
    }
}

#[test]
fn a_generation_that_comes_back_says_nothing_of_what_others_have_applied() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    let older = engine.clone();
    // Nobody sends these again.
    for _ in 0..5 {
        two.append(JournalRecord::Unknown);
    }
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut one, &mut engine, at(0));
    assert_eq!(one.others().iter().next().unwrap().applied, 5);
    // The rows are lost, another generation begins, and then older rows are there again.
    sync_all(&mut one, &mut None, at(1));
    engine = older;
    let uid = one.append(text(4));
    let request = one.next_request(at(1), false, false);
    let mut reply = model::sync(&mut engine, (LIFE, TIME), &request);
    reply.rows = None;
    one.answered(at(1), request.sequence, reply);
    let reach = one.reach(uid);
    assert!(reach.is_recorded && !reach.is_listed && reach.applied.is_empty());
    assert_eq!(names(&reach.waiting), ["replica 2"]);
}

#[test]
fn what_others_have_applied_counts_up_to_what_was_read() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    append(&mut two, 0..100);
    sync_all(&mut two, &mut engine, at(0));
    sync_once(&mut one, &mut engine, at(0));
    let read: Vec<_> = one.others().iter().map(|other| other.applied).collect();
    assert_eq!(read, [64], "one has read no more of a hundred");
}

#[test]
fn a_record_that_is_lost_before_it_was_read_is_sent_again_once() {
    let mut engine = None;
    let mut one = machine(1, None);
    append(&mut one, 0..100);
    sync_all(&mut one, &mut engine, at(0));
    let mut two = machine(2, Some(saved(&one, Duration::from_secs(1))));
    let older = engine.clone();
    two.append(text(200));
    // It is sent while older records are read, and lost before it is read.
    sync_once(&mut two, &mut engine, at(1));
    assert!(two.has_more() && two.unsent() == 0);
    engine = older;
    sync_all(&mut two, &mut engine, at(1));
    assert_eq!(sync_all(&mut one, &mut engine, at(1)), [apply(200)]);
    assert_eq!((two.lengths(), two.counts().sent), ((101, 0), 1));
}

#[test]
fn what_the_engine_knows_and_no_longer_has_is_not_sent_for_ever() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    one.append(text(1));
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    // Both send it to a new generation, where it is trimmed before the second has read it.
    let mut engine = None;
    sync_all(&mut one, &mut engine, at(1));
    one.append(text(2));
    sync_all(&mut one, &mut engine, at(1));
    engine.as_mut().unwrap().records.drain(..1);
    let mut requests = 0;
    while requests == 0 || two.has_more() {
        sync_once(&mut two, &mut engine, at(1));
        requests += 1;
        assert!(requests < 10, "it is sent again and again");
    }
    assert_eq!(two.lengths(), (2, 0));
}

/// What is lost a second time is not sent a third time: everything is purged instead, since
/// other replicas may never read it.
#[test]
fn a_record_that_is_lost_twice_purges_everything_elsewhere() {
    const UNREAD: usize = 100;
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    let uid = two.append(text(1_000));
    for time in [1, 2] {
        // There is more to read than one reply has, so that it is sent before it is read.
        for number in 0..UNREAD {
            one.append(text(number));
        }
        sync_all(&mut one, &mut engine, at(time));
        let older = engine.clone();
        sync_once(&mut two, &mut engine, at(time));
        assert_eq!(two.unsent(), 0, "{time}");
        assert!(two.has_more(), "{time}");
        engine = older;
        sync_once(&mut two, &mut engine, at(time));
    }
    assert_eq!(two.unsent(), 1, "the purge of everything");
    sync_all(&mut two, &mut engine, at(3));
    let everything = JournalEffect::Apply(JournalRecord::purge_all());
    assert_eq!(sync_all(&mut one, &mut engine, at(3)), [everything]);
    assert_eq!(two.lengths(), (2 * UNREAD as u64 + 1, 0));
    assert!(!two.reach(uid).is_recorded, "it is not sent again");
}

/// What was stored before is not used any more, whose age would be too small; nothing else
/// is lost.
#[test]
fn an_engine_whose_clock_is_set_back_begins_a_generation() {
    for (back_millis, begins) in [(0, false), (1_000, false), (1_001, true), (3_600_000, true)] {
        let mut engine = None;
        let (mut one, mut two) = (machine(1, None), machine(2, None));
        one.append(text(1));
        sync_all(&mut one, &mut engine, at(0));
        sync_all(&mut two, &mut engine, at(0));
        let stored_at = two.position().unwrap();
        assert!(two.since(stored_at).is_some());
        let mut sync = |machine: &mut JournalMachine| {
            let request = machine.next_request(at(1), true, false);
            let time = TIME - back_millis * 1_000;
            let reply = model::sync(&mut engine, (LIFE, time), &request);
            machine.answered(at(1), request.sequence, reply)
        };
        let mut effects = Vec::new();
        for _ in 0..3 {
            effects.extend(sync(&mut two));
            effects.extend(sync(&mut one));
        }
        assert_eq!(effects, [], "{back_millis}: all purges are known");
        assert_eq!(two.since(stored_at).is_none(), begins, "{back_millis}");
        assert_eq!(two.counts().generations, u64::from(begins));
        assert_eq!(two.lengths(), (1, 0), "{back_millis}: the purge is there");
    }
}

#[test]
fn who_does_not_come_to_a_new_generation_may_have_purged_something() {
    // Whether the other one comes, whether it was silent for long before, and whether this one
    // was started again meanwhile, with what is purged then.
    for (comes, was_silent, is_restarted, purges) in [
        (false, false, false, true),
        (false, false, true, true),
        (false, true, false, false),
        (true, false, false, false),
        (true, false, true, false),
    ] {
        let mut engine = None;
        let (mut one, mut two) = (machine(1, None), machine(2, None));
        sync_all(&mut two, &mut engine, at(0));
        let before = if was_silent { 12 } else { 1 };
        for second in 0..=before {
            sync_all(&mut one, &mut engine, at(second));
        }
        if is_restarted {
            one = machine(3, Some(saved(&one, Duration::from_secs(1))));
        }
        engine = None;
        let mut effects = Vec::new();
        for second in 1..=4 {
            effects.extend(sync_all(&mut one, &mut engine, at(before + second)));
            if comes {
                effects.extend(sync_all(&mut two, &mut engine, at(before + second)));
            }
        }
        let is_everything =
            |effect: &JournalEffect| matches!(effect, JournalEffect::PurgeEverything(_));
        let case = (comes, was_silent, is_restarted);
        assert_eq!(effects.iter().any(is_everything), purges, "{case:?}");
        assert_eq!(one.counts().gaps, u64::from(purges), "{case:?}");
    }
}

#[test]
fn nothing_is_saved_while_somebody_is_awaited_and_lost_keys_do_not_postpone_the_purge() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut one, &mut engine, at(1));
    assert!(one.position_to_save().is_some());
    let mut purged_after = None;
    for second in 2..=14 {
        // The engine loses its keys each second.
        let effects = sync_all(&mut one, &mut None, at(second));
        let is_everything =
            |effect: &JournalEffect| matches!(effect, JournalEffect::PurgeEverything(_));
        if purged_after.is_none() && effects.iter().any(is_everything) {
            purged_after = Some(second);
        }
        let is_saved = one.position_to_save().is_some();
        assert_eq!(is_saved, purged_after.is_some(), "{second}");
    }
    assert_eq!(purged_after, Some(12));
}

#[test]
fn a_late_request_does_not_count_as_coming_to_a_new_generation() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    let late = two.next_request(at(0), false, false);
    two.lost(late.sequence);
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut one, &mut engine, at(1));
    engine = None;
    let mut effects = sync_all(&mut one, &mut engine, at(2));
    model::sync(&mut engine, (LIFE, 0), &late);
    for second in 3..=7 {
        effects.extend(sync_all(&mut one, &mut engine, at(second)));
    }
    let is_everything =
        |effect: &JournalEffect| matches!(effect, JournalEffect::PurgeEverything(_));
    assert!(effects.iter().any(is_everything), "{effects:?}");
}
