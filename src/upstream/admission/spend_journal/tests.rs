//! The journal with real files.

mod beside;
mod cooldowns;

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicI32;

use futures_util::FutureExt;
use http::HeaderValue;

use super::*;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::budgets::Budgets;
use crate::upstream::admission::queue::AdmissionQueue;
use crate::upstream::admission::shared_budget::{BudgetDemand, BudgetHandle};
use crate::upstream::admission::{Rates, Replicas, Reserve, spending};

/// An error that every write gets, if it is set, and what happens during the next one.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<AtomicI32>, Arc<Mutex<Option<During>>>);

type During = Box<dyn FnOnce() + Send>;

impl Fault {
    pub(super) fn check(&self) -> io::Result<()> {
        let during = self.1.lock().unwrap().take();
        during.into_iter().for_each(|during| during());
        match self.0.load(Relaxed) {
            0 => Ok(()),
            number => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

/// A directory with a journal whose thread the test is, and its budgets.
struct Process {
    journal: Arc<SpendJournal>,
    budgets: Arc<Budgets>,
    clock: Clock,
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

impl Process {
    fn start(path: &Path, clock: &Clock) -> Self {
        Self::start_as(path, clock, false)
    }

    fn start_as(path: &Path, clock: &Clock, is_shared: bool) -> Self {
        let directory = StateDir::open(path).unwrap().unwrap();
        let journal = SpendJournal::read(Arc::new(directory), clock.clone(), is_shared);
        let journal = Arc::new(journal);
        Self {
            budgets: Budgets::journalled(journal.clone()),
            journal,
            clock: clock.clone(),
        }
    }

    /// The budget of a key: 60 a minute, 5 a second.
    fn budget(&self, key: &'static str) -> Arc<BudgetHandle> {
        handle(&self.budgets, &self.clock, key)
    }

    fn left(&self, key: &'static str) -> Option<usize> {
        self.budget(key).remaining(self.clock.now())
    }

    fn take(&self, budget: &BudgetHandle) -> BudgetEntry {
        budget.take(self.clock.now(), Reserve::Nothing).unwrap()
    }

    fn fault(&self, number: i32) {
        let file = self.journal.file();
        file.as_ref().unwrap().fault.0.store(number, Relaxed);
    }

    fn state(&self) -> &'static str {
        self.journal.snapshot().state
    }

    /// The process is killed: nothing is written any more.
    fn kill(self) {
        drop(self);
    }
}

fn handle(budgets: &Budgets, clock: &Clock, key: &'static str) -> Arc<BudgetHandle> {
    let owner = BudgetOwner::Key(HeaderValue::from_static(key));
    let queue = AdmissionQueue::new(10, clock.clone());
    let handle = budgets.handle(&owner, &queue, clock.now());
    handle.join(BudgetDemand {
        rates: Rates::of(60, 5),
        probes: 0,
    });
    handle
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn what_a_killed_process_has_spent_is_known_to_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    let (one, other) = (first.budget("one"), first.budget("other"));
    let entry = first.take(&one);
    first.take(&one);
    first.take(&other);
    one.end(entry, clock.now());
    first.journal.write();
    first.kill();
    drop((one, other));
    clock.advance(millis(10_000));
    let second = Process::start(directory.path(), &clock);
    assert_eq!(second.journal.snapshot().recovered, 3);
    assert_eq!(second.left("one"), Some(58));
    assert_eq!(second.left("other"), Some(59));
    assert_eq!(second.left("third"), Some(60), "a key that is new");
    clock.advance(millis(50_100));
    assert_eq!(second.left("one"), Some(59), "the one that was answered");
    // The others count from the second start.
    clock.advance(millis(10_800));
    assert_eq!(second.left("one"), Some(59));
    clock.advance(millis(200));
    assert_eq!(second.left("one"), Some(60));
    assert_eq!(second.left("other"), Some(60));
}

#[test]
fn a_key_that_is_absent_for_a_while_keeps_its_spending() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    first.take(&first.budget("one"));
    first.journal.write();
    first.kill();
    // A process without the key, and one to which a reload gives it.
    let second = Process::start(directory.path(), &clock);
    first_write(&second, "other");
    second.kill();
    let third = Process::start(directory.path(), &clock);
    first_write(&third, "other");
    assert_eq!(third.left("one"), Some(59));
}

#[test]
fn replicas_know_only_what_was_spent_in_their_own_place() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let start = || Process::start_as(directory.path(), &clock, true);
    let why = |process: &Process| process.journal.snapshot().unknown_because;
    // A new directory: the replica before may have had another.
    let first = start();
    assert!(why(&first).unwrap().contains("this state directory"));
    assert_eq!(first.left("one"), Some(0));
    clock.advance(millis(61_050));
    assert_eq!((first.left("one"), why(&first)), (Some(60), None));
    first_write(&first, "one");
    first.kill();
    // Soon afterwards, its page says all; nothing says it of other keys.
    clock.advance(millis(61_049));
    let second = start();
    assert_eq!((second.left("one"), why(&second)), (Some(59), None));
    assert_eq!(second.left("new"), Some(0));
    assert!(why(&second).unwrap().contains("is new"));
    clock.advance(millis(61_050));
    assert_eq!(second.left("new"), Some(60));
    second.journal.write();
    second.kill();
    // Later, others may have run in its place.
    clock.advance(millis(61_050));
    let third = start();
    assert!(why(&third).unwrap().contains("in the last minute"));
    assert_eq!(third.left("one"), Some(0));
    assert_eq!(third.left("new"), Some(0));
    third.journal.write();
    third.kill();
    // Another start does not wait anew.
    clock.advance(millis(30_000));
    let fourth = start();
    assert_eq!(fourth.left("one"), Some(0));
    clock.advance(millis(31_050));
    assert_eq!(fourth.left("one"), Some(60));
    // Alone, an ordgate knows that nobody else has spent anything.
    fourth.kill();
    clock.advance(millis(600_000));
    let alone = Process::start(directory.path(), &clock);
    assert_eq!(alone.left("one"), Some(60));
}

/// Uses a key once.
fn first_write(process: &Process, key: &'static str) {
    process.take(&process.budget(key));
    process.journal.write();
}

#[test]
fn what_cannot_be_read_is_waited_out() {
    type Damage = fn(&Path);
    let rows: [(&str, Damage, &str); 6] = [
        ("missing", |file| fs::remove_file(file).unwrap(), "missing"),
        ("empty", |file| fs::write(file, "").unwrap(), "torn"),
        ("torn", |file| cut(file, PAGE as u64 + 100), "torn"),
        ("header", |file| flip(file, 20), "damaged"),
        ("page", |file| flip(file, PAGE + 60), "damaged"),
        ("boot", |file| flip_boot(file), "restarted"),
    ];
    for (name, damage, reason) in rows {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::manual();
        let first = Process::start(directory.path(), &clock);
        first_write(&first, "one");
        first.kill();
        damage(&directory.path().join(file::NAME));
        let second = Process::start(directory.path(), &clock);
        let snapshot = second.journal.snapshot();
        assert!(snapshot.unknown_because.unwrap().contains(reason), "{name}");
        assert_eq!(snapshot.waiting, millis(61_050), "{name}");
        assert_eq!(second.left("one"), Some(0), "{name}");
        assert_eq!(second.left("new"), Some(0), "{name}");
        let file = fs::metadata(directory.path().join(file::NAME)).unwrap();
        assert_eq!(file.len(), file::BYTES, "{name}");
        second.journal.write();
        second.kill();
        // Another start does not wait anew, whether it has known the key or not.
        clock.advance(millis(31_050));
        let third = Process::start(directory.path(), &clock);
        assert_eq!(third.journal.snapshot().waiting, millis(30_000), "{name}");
        for key in ["one", "new", "newer"] {
            assert_eq!(third.left(key), Some(0), "{name} {key}");
        }
        clock.advance(millis(30_000));
        for key in ["one", "new", "newer"] {
            assert_eq!(third.left(key), Some(60), "{name} {key}");
        }
        assert_eq!(third.journal.snapshot().unknown_because, None);
    }
}

fn cut(file: &Path, length: u64) {
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.set_len(length).unwrap();
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Gives the file the boot id of another machine.
fn flip_boot(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let header = FileHeader {
        unknown_before: None,
        is_incomplete: false,
    };
    bytes[..PAGE].copy_from_slice(&*header.page(&[1; 16], Duration::ZERO));
    fs::write(file, bytes).unwrap();
}

#[test]
fn after_an_error_requests_go_on_and_the_next_process_waits() {
    for number in [EIO, ENOSPC] {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::manual();
        let first = Process::start(directory.path(), &clock);
        let budget = first.budget("one");
        first.journal.write();
        assert_eq!(first.state(), "written");
        first.fault(number);
        let entry = first.take(&budget);
        first.journal.write();
        assert_eq!(first.state(), "failing");
        assert!(first.journal.snapshot().error.is_some());
        let waits = Box::pin(budget.journalled(entry));
        assert_eq!(waits.now_or_never(), Some(()), "it waits no longer");
        assert_eq!(first.journal.snapshot().unjournalled, 1);
        // It cannot be written, so it is not there.
        assert!(!directory.path().join(file::NAME).exists());
        drop(budget);
        first.kill();
        let second = Process::start(directory.path(), &clock);
        assert_eq!(second.left("one"), Some(0));
    }
}

#[test]
fn after_an_error_that_has_passed_nothing_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    let budget = first.budget("one");
    first.fault(EIO);
    first.take(&budget);
    first.journal.write();
    first.take(&budget);
    first.journal.write();
    assert_eq!(first.state(), "written");
    let snapshot = first.journal.snapshot();
    assert_eq!((snapshot.errors, snapshot.error), (1, None));
    drop(budget);
    first.kill();
    let second = Process::start(directory.path(), &clock);
    assert_eq!(second.left("one"), Some(58));
}

#[test]
fn what_is_not_known_is_not_known_to_the_start_after_the_next_either() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    first_write(&first, "one");
    let mut file = first.journal.file();
    first.journal.fail(&mut file, &removed());
    drop(file);
    first.kill();
    // This one ends before it has written a page.
    Process::start(directory.path(), &clock).kill();
    let third = Process::start(directory.path(), &clock);
    assert_eq!(third.left("one"), Some(0));
    clock.advance(LONGEST);
    assert_eq!(third.left("one"), Some(60));
}

#[test]
fn what_is_sent_while_a_write_hangs_is_written_as_soon_as_it_returns() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    let budget = first.budget("one");
    first.journal.write();
    first.take(&budget);
    let (journal, sent) = (first.journal.clone(), budget.clone());
    let now = clock.now();
    let hangs: During = Box::new(move || {
        journal.health.stall();
        sent.take(now, Reserve::Nothing).unwrap();
    });
    let fault = first.journal.file().as_ref().unwrap().fault.clone();
    *fault.1.lock().unwrap() = Some(hangs);
    first.journal.write();
    assert_eq!(first.state(), "written");
    drop(budget);
    first.kill();
    let second = Process::start(directory.path(), &clock);
    assert_eq!(second.left("one"), Some(58));
}

#[test]
fn a_file_that_is_removed_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    first_write(&first, "one");
    fs::remove_file(directory.path().join(file::NAME)).unwrap();
    first.journal.check();
    assert_eq!(first.state(), "failing");
    first.journal.write();
    assert_eq!(first.state(), "written");
    first.kill();
    let second = Process::start(directory.path(), &clock);
    assert_eq!(second.left("one"), Some(59));
}

#[test]
fn a_directory_that_is_removed_is_not_written_anew() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("state");
    let clock = Clock::manual();
    let first = Process::start(&path, &clock);
    let budget = first.budget("one");
    fs::remove_dir_all(&path).unwrap();
    for _ in 0..3 {
        first.journal.check();
        let entry = first.take(&budget);
        first.journal.write();
        let waits = Box::pin(budget.journalled(entry));
        assert_eq!(waits.now_or_never(), Some(()));
    }
    assert_eq!(first.state(), "failing");
    assert!(!path.exists());
}

#[tokio::test]
async fn there_are_pages_for_many_keys_and_beyond_them_the_next_start_waits() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual();
    let first = Process::start(directory.path(), &clock);
    let queue = AdmissionQueue::new(10, clock.clone());
    let handles = |process: &Process, names: std::ops::Range<usize>| -> Vec<_> {
        let handle = |number: usize| {
            let owner = BudgetOwner::Server(format!("server-{number}").into());
            process.budgets.handle(&owner, &queue, clock.now())
        };
        names.map(handle).collect()
    };
    let held = handles(&first, 0..SLOTS);
    first.journal.write();
    assert!(!first.journal.books().is_full);
    let more = handles(&first, SLOTS..SLOTS + 1);
    assert!(first.journal.books().is_full);
    // A request of a budget without a page waits until the file says that there is one.
    let entry = first.take(&more[0]);
    let mut waits = Box::pin(more[0].journalled(entry));
    assert_eq!(waits.as_mut().now_or_never(), None);
    first.journal.write();
    assert_eq!(waits.now_or_never(), Some(()));
    assert_eq!(first.journal.snapshot().unjournalled, 1);
    drop((held, more));
    first.kill();
    // Pages of keys that are gone are used again, when nothing counts any more.
    let second = Process::start(directory.path(), &clock);
    assert!(second.journal.books().unknown_before().is_some());
    clock.advance(LONGEST);
    let _held = handles(&second, 1000..1000 + SLOTS);
    assert!(!second.journal.books().is_full);
}

const LONGEST: Duration = Duration::from_secs(62);

#[tokio::test]
async fn a_request_waits_until_the_thread_has_written_it() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::machine();
    let state = Arc::new(StateDir::open(directory.path()).unwrap().unwrap());
    let journal = SpendJournal::open(state.clone(), clock.clone(), false).unwrap();
    let process = Process {
        budgets: Budgets::journalled(journal.clone()),
        journal,
        clock,
    };
    let budget = process.budget("one");
    for sent in 1..=5 {
        let entry = process.take(&budget);
        budget.journalled(entry).await;
        let bytes = fs::read(directory.path().join(file::NAME)).unwrap();
        let stamp = Stamp {
            since_boot: process.clock.since_boot(),
            now: process.clock.now(),
        };
        let page = &bytes[PAGE..2 * PAGE];
        let (_, found) = spending::read(page, state.boot_id(), stamp).unwrap();
        assert_eq!(found.requests(), sent);
        budget.end(entry, process.clock.now());
    }
    process.journal.close();
    let bytes = fs::read(directory.path().join(file::NAME)).unwrap();
    let stamp = Stamp {
        since_boot: process.clock.since_boot(),
        now: process.clock.now(),
    };
    let page = &bytes[PAGE..2 * PAGE];
    let (_, found) = spending::read(page, state.boot_id(), stamp).unwrap();
    assert_eq!(found.interrupted, 0, "the ends are written at the end");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_holds_up_one_request_for_a_second() {
    let directory = tempfile::tempdir().unwrap();
    // Nobody writes.
    let process = Process::start(directory.path(), &Clock::manual());
    let budget = process.budget("one");
    process.journal.write();
    let began = tokio::time::Instant::now();
    budget.journalled(process.take(&budget)).await;
    assert_eq!(began.elapsed(), PATIENCE);
    assert_eq!(process.state(), "stalled");
    budget.journalled(process.take(&budget)).await;
    assert_eq!(began.elapsed(), PATIENCE, "the next one does not wait");
    let snapshot = process.journal.snapshot();
    assert_eq!((snapshot.stalls, snapshot.unjournalled), (1, 2));
    process.journal.write();
    assert_eq!(process.state(), "written");
    drop(budget);
    process.kill();
    let next = Process::start(directory.path(), &Clock::manual());
    assert_eq!(next.left("one"), Some(58), "it has caught up");
}
