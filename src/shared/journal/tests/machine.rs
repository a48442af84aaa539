//! Single cases of the machine, with the model of the script.

use std::sync::Arc;
use std::time::Duration;

use super::super::history::MOST_RECORDS;
use super::super::machine::{JournalEffect, JournalMachine, LONGEST_ABSENCE, MOST_WAITING};
use super::super::model::{self, ModelJournal};
use super::super::others::OtherReplicas;
use super::super::position::{Generation, JournalPosition, SavedPosition};
use super::super::record::{JournalRecord, RecordUid};
use super::super::sync::ReplicaRow;
use crate::cache::purge::Purge;
use crate::portable::purge::LoggedPurge;
use crate::shared::allowance::ProcessId;

pub(super) const LIFE: &str = "one";

/// The engine's time at 0 s, in microseconds.
pub(super) const TIME: u64 = 10_000_000_000;

pub(super) fn at(seconds: u64) -> Duration {
    Duration::from_secs(10_000 + seconds)
}

pub(super) fn text(number: usize) -> JournalRecord {
    let text = Purge::Text(format!("{number}").into());
    JournalRecord::Purge(LoggedPurge::new(&text, None, None))
}

/// Appends records with these numbers.
pub(super) fn append(machine: &mut JournalMachine, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        machine.append(text(number));
    }
}

pub(super) fn apply(number: usize) -> JournalEffect {
    JournalEffect::Apply(text(number))
}

pub(super) fn machine(number: u128, saved: Option<SavedPosition>) -> JournalMachine {
    let name = format!("replica {number}").into();
    JournalMachine::new(ProcessId(number), name, saved, at(0))
}

/// One sync request and its reply.
pub(super) fn sync_once(
    machine: &mut JournalMachine,
    engine: &mut Option<ModelJournal>,
    now: Duration,
) -> Vec<JournalEffect> {
    let request = machine.next_request(now, true, false);
    let time = now.as_micros() as u64;
    let reply = model::sync(engine, (LIFE, time), &request);
    machine.answered(now, request.sequence, reply)
}

/// Sync requests until there is nothing more to read or to send.
pub(super) fn sync_all(
    machine: &mut JournalMachine,
    engine: &mut Option<ModelJournal>,
    now: Duration,
) -> Vec<JournalEffect> {
    let mut effects = sync_once(machine, engine, now);
    while machine.has_more() {
        effects.extend(sync_once(machine, engine, now));
    }
    effects.extend(sync_once(machine, engine, now));
    effects
}

pub(super) fn names(names: &[Arc<str>]) -> Vec<&str> {
    names.iter().map(|name| &**name).collect()
}

fn everything(effects: &[JournalEffect]) -> bool {
    let is_everything =
        |effect: &JournalEffect| matches!(effect, JournalEffect::PurgeEverything(_));
    effects.iter().any(is_everything)
}

pub(super) fn saved(machine: &JournalMachine, age: Duration) -> SavedPosition {
    let applied = machine.position_to_save().unwrap();
    SavedPosition { applied, age }
}

#[test]
fn a_record_is_applied_by_others_once_and_then_acknowledged() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    assert!(sync_all(&mut two, &mut engine, at(0)).is_empty());
    let uid = one.append(text(1));
    assert_eq!(sync_all(&mut one, &mut engine, at(0)), []);
    let reach = one.reach(uid);
    assert_eq!((reach.applied.len(), reach.waiting.len()), (0, 1));
    assert_eq!(sync_once(&mut two, &mut engine, at(0)), [apply(1)]);
    sync_once(&mut one, &mut engine, at(0));
    assert!(
        one.reach(uid).applied.is_empty(),
        "its request has not said so"
    );
    assert_eq!(sync_once(&mut two, &mut engine, at(0)), []);
    sync_once(&mut one, &mut engine, at(0));
    assert_eq!(names(&one.reach(uid).applied), ["replica 2"]);
    assert_eq!(one.lengths(), (1, 0));
    assert_eq!(two.synced_ago(at(3)), Some(Duration::from_secs(3)));
}

#[test]
fn a_record_that_was_answered_late_is_appended_once() {
    let mut engine = None;
    let mut one = machine(1, None);
    one.append(text(1));
    let request = one.next_request(at(0), false, false);
    model::sync(&mut engine, (LIFE, TIME), &request);
    one.lost(request.sequence);
    model::sync(&mut engine, (LIFE, TIME), &request);
    sync_all(&mut one, &mut engine, at(1));
    assert_eq!(engine.unwrap().count, 1);
}

#[test]
fn a_silent_replica_is_not_waited_for_and_later_forgotten() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut one, &mut engine, at(0));
    let uid = one.append(text(1));
    for second in 0..=2 {
        sync_all(&mut one, &mut engine, at(second));
        assert_eq!(one.reach(uid).waiting.len(), 1, "{second}");
    }
    sync_all(&mut one, &mut engine, at(3));
    assert_eq!(names(&one.reach(uid).silent), ["replica 2"]);
    // Nobody is forgotten because this one was cut off itself.
    sync_all(&mut one, &mut engine, at(3000));
    assert_eq!(one.others().iter().count(), 1);
    for second in 3000..3600 {
        sync_once(&mut one, &mut engine, at(second));
    }
    assert_eq!(one.others().iter().count(), 0);
    assert_eq!(engine.unwrap().rows.len(), 1);
}

#[test]
fn a_replica_that_leaves_is_not_named() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut one, &mut engine, at(0));
    let last = two.next_request(at(1), false, true);
    model::sync(&mut engine, (LIFE, TIME), &last);
    sync_all(&mut one, &mut engine, at(1));
    assert_eq!(one.others().iter().count(), 0);
}

#[test]
fn after_a_restart_only_later_records_apply() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    append(&mut one, 0..100);
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    let saved = saved(&two, Duration::from_secs(3600));
    let uid = one.append(text(100));
    sync_all(&mut one, &mut engine, at(1));
    let mut again = machine(3, Some(saved.clone()));
    let request = again.next_request(at(1), true, false);
    assert_eq!(
        request.followed.unwrap().applied,
        100,
        "said from the start"
    );
    again.lost(request.sequence);
    assert_eq!(again.position_to_save(), None, "not before all was applied");
    assert_eq!(sync_all(&mut again, &mut engine, at(1)), [apply(100)]);
    assert_eq!(again.counts().gaps + again.counts().generations, 0);
    // Its history reaches back to the first record.
    let beginning = JournalPosition {
        record: 0,
        ..saved.applied.position
    };
    assert_eq!(again.since(beginning).unwrap().count(), 101);
    sync_all(&mut one, &mut engine, at(1));
    assert!(names(&one.reach(uid).applied).contains(&"replica 3"));
}

#[test]
fn a_restart_after_records_were_trimmed_purges_everything() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    one.append(text(1));
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    let saved = saved(&two, Duration::ZERO);
    append(&mut one, 2..=5);
    sync_all(&mut one, &mut engine, at(0));
    engine.as_mut().unwrap().records.drain(..3);
    let mut again = machine(3, Some(saved.clone()));
    let effects = sync_all(&mut again, &mut engine, at(1));
    assert!(everything(&effects) && again.counts().gaps == 1);
    assert!(again.since(saved.applied.position).is_none());
    assert_eq!(sync_all(&mut again, &mut engine, at(1)), []);
}

#[test]
fn a_record_that_somebody_has_deleted_is_a_gap_once() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    append(&mut one, 1..=5);
    sync_all(&mut one, &mut engine, at(0));
    let request = two.next_request(at(0), true, false);
    let mut reply = model::sync(&mut engine, (LIFE, TIME), &request);
    reply.records.remove(2);
    let effects = two.answered(at(0), request.sequence, reply);
    assert_eq!(effects.len(), 5, "{effects:?}");
    assert!(everything(&effects[2..=2]) && two.counts().gaps == 1);
    assert!(!two.has_more() && two.position().unwrap().record == 5);
    let stored = two.position().unwrap();
    let known = |record| two.since(JournalPosition { record, ..stored }).is_some();
    assert_eq!([2, 3, 4].map(known), [false, true, true]);
}

#[test]
fn a_new_generation_purges_everything_only_after_ten_minutes() {
    for (age, expected) in [
        (LONGEST_ABSENCE - Duration::from_secs(60), false),
        (LONGEST_ABSENCE, true),
    ] {
        let mut engine = None;
        let mut one = machine(1, None);
        sync_all(&mut one, &mut engine, at(0));
        let mut again = machine(2, Some(saved(&one, age)));
        let mut other = None;
        let mut writer = machine(3, None);
        writer.append(text(1));
        sync_all(&mut writer, &mut other, at(1));
        let effects = sync_all(&mut again, &mut other, at(1));
        assert_eq!(everything(&effects), expected, "{effects:?}");
        assert_eq!(effects.last(), Some(&apply(1)));
    }
}

#[test]
fn what_was_purged_is_sent_again_to_a_new_generation() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    append(&mut one, 0..200);
    sync_all(&mut one, &mut engine, at(0));
    // The other has read half of them, and now they are gone.
    sync_once(&mut two, &mut engine, at(0));
    engine = None;
    let before = one.position().unwrap();
    let effects = sync_all(&mut two, &mut engine, at(1));
    assert_eq!(effects, [], "it sends those that it knows");
    assert_eq!(sync_all(&mut one, &mut engine, at(1)), []);
    let expected: Vec<_> = (64..200).map(apply).collect();
    assert_eq!(sync_all(&mut two, &mut engine, at(1)), expected);
    assert!(
        one.since(before).is_none(),
        "what was stored before is not used"
    );
    assert_eq!(engine.unwrap().count, 200, "each is there once");
}

#[test]
fn a_full_outbox_becomes_one_purge_of_everything() {
    let mut one = machine(1, None);
    append(&mut one, 0..MOST_WAITING + 10);
    let mut engine = None;
    assert_eq!(sync_all(&mut one, &mut engine, at(0)), []);
    let mut two = machine(2, None);
    let effects = sync_all(&mut two, &mut engine, at(0));
    assert_eq!(effects.len(), 11);
    assert_eq!(effects[0], JournalEffect::Apply(JournalRecord::purge_all()));
}

#[test]
fn what_was_stored_holds_until_a_later_record_matches() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    one.append(text(1));
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    let stored = two.position().unwrap();
    assert_eq!(stored.record, 1);
    assert_eq!(two.since(stored).unwrap().count(), 0);
    two.append(text(2));
    assert_eq!(two.since(stored).unwrap().count(), 1, "not sent yet");
    sync_all(&mut two, &mut engine, at(0));
    assert_eq!(two.since(stored).unwrap().next(), Some(&text(2)));
    let other = JournalPosition {
        generation: Generation([9; 16]),
        ..stored
    };
    assert!(two.since(other).is_none(), "another generation");
}

#[test]
fn a_reply_to_a_word_that_was_given_up_changes_nothing() {
    let mut engine = None;
    let mut one = machine(1, None);
    let request = one.next_request(at(0), true, false);
    let reply = model::sync(&mut engine, (LIFE, TIME), &request);
    one.lost(request.sequence);
    one.answered(at(0), request.sequence, reply);
    assert_eq!((one.position(), one.synced_ago(at(0))), (None, None));
    let number = 7;
    let process = ProcessId(9);
    let reach = one.reach(RecordUid { process, number });
    assert!(!reach.is_recorded);
}

#[test]
fn a_purge_waits_for_a_list_that_is_newer_than_its_record() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut one, &mut engine, at(0));
    sync_all(&mut two, &mut engine, at(0));
    let uid = one.append(text(1));
    let request = one.next_request(at(0), false, false);
    let reply = model::sync(&mut engine, (LIFE, TIME), &request);
    assert_eq!(reply.rows, None, "it was listed just now");
    one.answered(at(0), request.sequence, reply);
    let reach = one.reach(uid);
    assert!(
        reach.is_recorded && !reach.is_listed,
        "two is not known yet"
    );
    sync_once(&mut one, &mut engine, at(0));
    let reach = one.reach(uid);
    assert!(reach.is_listed && names(&reach.waiting) == ["replica 2"]);
}

#[test]
fn a_restarted_machine_does_not_count_as_long_deaf() {
    let mut engine = None;
    let mut one = machine(1, None);
    one.append(text(1));
    sync_all(&mut one, &mut engine, at(0));
    for (age, expected) in [(60, false), (LONGEST_ABSENCE.as_secs() + 1, true)] {
        let saved = saved(&one, Duration::from_secs(age));
        // The clock begins anew with the machine.
        let start = Duration::from_secs(5);
        let mut again = JournalMachine::new(ProcessId(3), "three".into(), Some(saved), start);
        let effects = sync_all(&mut again, &mut None, start);
        assert_eq!(everything(&effects), expected, "{age}");
    }
}

#[test]
fn a_new_generation_purges_everything_if_purges_were_forgotten_lately() {
    let mut engine = None;
    let (mut one, mut two) = (machine(1, None), machine(2, None));
    sync_all(&mut two, &mut engine, at(0));
    for number in 0..MOST_RECORDS + 1 {
        one.append(text(number));
        if number % 500 == 0 {
            sync_all(&mut one, &mut engine, at(0));
        }
    }
    sync_all(&mut one, &mut engine, at(0));
    let mut engine = None;
    sync_all(&mut one, &mut engine, at(1));
    let all = JournalEffect::Apply(JournalRecord::purge_all());
    assert!(sync_all(&mut two, &mut engine, at(1)).contains(&all));
}

#[test]
fn a_new_generation_purges_everything_if_purges_were_missed_lately() {
    let mut engine = None;
    let [mut one, mut two, mut three] = [1, 2, 3].map(|number| machine(number, None));
    sync_all(&mut two, &mut engine, at(0));
    sync_all(&mut three, &mut engine, at(0));
    append(&mut one, 1..=5);
    sync_all(&mut one, &mut engine, at(0));
    engine.as_mut().unwrap().records.drain(..3);
    assert!(everything(&sync_all(&mut two, &mut engine, at(1))));
    // Nobody who has read all is left.
    let mut engine = None;
    sync_all(&mut two, &mut engine, at(2));
    let all = JournalEffect::Apply(JournalRecord::purge_all());
    assert!(sync_all(&mut three, &mut engine, at(2)).contains(&all));
}

/// It was killed, and another one has its state directory: it is not waited for, and not
/// named, once that one has spoken.
#[test]
fn a_process_whose_successor_is_there_is_not_named() {
    let mut engine = None;
    let [mut killed, mut purging] = [1, 2].map(|number| machine(number, None));
    for machine in [&mut killed, &mut purging] {
        sync_all(machine, &mut engine, at(0));
    }
    let mut successor = machine(3, None);
    successor.set_predecessor(Some(ProcessId(1)));
    let uid = purging.append(text(1));
    let named = |purging: &JournalMachine| {
        let reach = purging.reach(uid);
        [reach.waiting, reach.silent].concat().join(", ")
    };
    sync_all(&mut purging, &mut engine, at(1));
    assert_eq!(named(&purging), "replica 1");
    sync_all(&mut successor, &mut engine, at(1));
    sync_all(&mut purging, &mut engine, at(2));
    assert_eq!(named(&purging), "");
    assert_eq!(purging.reach(uid).applied.join(", "), "replica 3");
}

/// A new generation waits neither for the process whose state directory this one has, nor for one that
/// was silent for long.
#[test]
fn who_has_ended_or_was_silent_for_long_is_not_present() {
    let row = |process, sequence| ReplicaRow {
        process: ProcessId(process),
        sequence,
        applied: 0,
        name: "r".into(),
    };
    let mut others = OtherReplicas::default();
    let mut listed = |sequence, ended| {
        others.set_ended(ended);
        let rows = [row(1, sequence), row(2, 7), row(3, sequence)];
        others.listed(0, rows.into_iter(), Duration::from_secs(2));
        let present: Vec<_> = others.present().map(|(process, _)| process.0).collect();
        present
    };
    assert_eq!(listed(1, None), [1, 2, 3]);
    assert_eq!(listed(2, Some(ProcessId(1))), [2, 3]);
    for sequence in 3..6 {
        assert_eq!(listed(sequence, None), [1, 2, 3], "{sequence}");
    }
    assert_eq!(listed(6, None), [1, 3], "ten seconds");
    assert_eq!(listed(7, Some(ProcessId(3))), [1]);
}
