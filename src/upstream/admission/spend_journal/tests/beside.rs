//! A process beside another, which uses the journal once that one has ended.

use super::*;
use crate::state_dir::{self, OpenedState};

/// A process beside the first, whose thread the test is.
fn beside(path: &Path, clock: &Clock) -> (OpenedState, Arc<Budgets>) {
    let settings = state_dir::Settings {
        path: Some(path.into()),
        max_bytes: 1 << 30,
        min_freshness: Duration::ZERO,
    };
    let state = OpenedState::open(&settings, Duration::ZERO).unwrap();
    assert!(state.is_missing());
    (state, Budgets::beside_another_process(clock.now()))
}

fn taken_over(state: &OpenedState, budgets: Arc<Budgets>, clock: &Clock) -> Process {
    let directory = state.open_late().unwrap().unwrap();
    let journal = Arc::new(SpendJournal::read(directory, clock.clone(), false));
    budgets.adopt_journal(&journal, clock.now());
    let clock = clock.clone();
    Process {
        journal,
        budgets,
        clock,
    }
}

#[test]
fn a_process_beside_another_counts_what_that_has_spent_once_it_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let clock = Clock::manual();
    let first = Process::start(path, &clock);
    let (state, budgets) = beside(path, &clock);
    let second = |budgets: &Arc<Budgets>| handle(budgets, &clock, "one");
    let own = second(&budgets);
    assert_eq!(own.remaining(clock.now()), Some(0), "nothing is known");
    // The first goes on.
    clock.advance(millis(30_000));
    let of_first = first.budget("one");
    let entry = first.take(&of_first);
    of_first.end(entry, clock.now());
    first.take(&of_first);
    first.journal.write();
    drop(of_first);
    first.kill();
    clock.advance(millis(1_000));
    let process = taken_over(&state, budgets, &clock);
    // All that the first has spent is known, so that the key is used at once.
    assert_eq!(own.remaining(clock.now()), Some(58));
    let (entry, of_new) = (process.take(&own), process.budget("new"));
    own.end(entry, clock.now());
    process.take(&of_new);
    // Until it is written, the next process knows that this one has spent.
    let shared = path.join("shared");
    assert!(shared.exists());
    process.journal.write();
    assert!(!shared.exists());
    drop((own, of_new, state));
    process.kill();
    let third = Process::start(path, &clock);
    assert_eq!(third.left("one"), Some(57));
    assert_eq!(third.left("new"), Some(59));
    clock.advance(millis(59_200));
    assert_eq!(third.left("one"), Some(58), "the first's answered request");
    clock.advance(millis(3_000));
    assert_eq!(third.left("one"), Some(60));
}

#[test]
fn what_a_process_beside_another_cannot_read_is_waited_out() {
    let damages: [fn(&Path); 2] = [
        |path| fs::write(path.join(file::NAME), "torn").unwrap(),
        |path| fs::write(path.join("shared"), "another\n").unwrap(),
    ];
    for damage in damages {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let clock = Clock::manual();
        let first = Process::start(path, &clock);
        let (state, budgets) = beside(path, &clock);
        let own = handle(&budgets, &clock, "one");
        clock.advance(LONGEST);
        assert_eq!(own.remaining(clock.now()), Some(60));
        first.kill();
        damage(path);
        let process = taken_over(&state, budgets, &clock);
        assert_eq!(own.remaining(clock.now()), Some(0));
        assert_eq!(process.left("new"), Some(0));
        clock.advance(LONGEST);
        assert_eq!(own.remaining(clock.now()), Some(60));
    }
}

#[test]
fn a_process_that_was_beside_another_and_ends_before_it_writes_leaves_a_mark() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let clock = Clock::manual();
    let first = Process::start(path, &clock);
    let (state, budgets) = beside(path, &clock);
    first.kill();
    let process = taken_over(&state, budgets, &clock);
    process.take(&process.budget("one"));
    drop(state);
    process.kill();
    let third = Process::start(path, &clock);
    assert_eq!(third.left("one"), Some(0));
}

#[test]
fn a_replica_beside_another_does_not_learn_what_its_own_predecessor_has_spent() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start_as(directory.path(), &clock, true);
    clock.advance(millis(61_050));
    first_write(&first, "one");
    let (state, budgets) = beside(directory.path(), &clock);
    let replicas = Replicas {
        count: 2.try_into().unwrap(),
        floor_percent: 100,
    };
    let second = budgets.shared(replicas, clock.clone());
    let own = handle(&second, &clock, "one");
    first.kill();
    clock.advance(millis(30_000));
    let second = taken_over(&state, second, &clock);
    assert_eq!(own.remaining(clock.now()), Some(0));
    let unknown = second.budgets.unknown_spending(clock.now());
    assert_eq!(unknown.unwrap().0, millis(31_050));
    clock.advance(millis(31_050));
    // Half of 60 a minute, less the request of the other, which counts in both.
    assert_eq!(own.remaining(clock.now()), Some(29));
}
