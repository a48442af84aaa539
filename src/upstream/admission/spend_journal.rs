//! The spend journal: what each budget has spent, in the state directory, so that a
//! process that is killed and started again spends nothing twice.
//!
//! A request is journalled before it is sent: it waits until the journal's thread has
//! written the budget's page ([`Spending`](super::spending::Spending)). Only that thread
//! writes, so a disk that
//! hangs holds up no thread that serves requests; and it writes what several requests
//! have spent at once. The ends of requests are written within [`DELAY`]; until then,
//! the next process counts them from its own start.
//!
//! What cannot be read counts as spent: after a damaged or missing page, a file of another
//! boot, or one that says that it is incomplete, no request is taken out of the budget
//! until a window after the start.
//!
//! If the disk refuses a write, or takes none for [`PATIENCE`], requests are sent all the
//! same, and the file is marked incomplete, or removed if that fails too; the next process
//! then waits a window out. The thread tries again each second. Not covered: a process that
//! is killed while its disk hangs, or whose file system refuses both and is then repaired
//! without a restart of the machine.

mod books;
mod file;
mod health;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use books::Books;
pub(crate) use file::SLOTS;
use file::{FileHeader, SpendFile};
use health::Health;
pub(crate) use health::JournalSnapshot;
use tokio::sync::watch;

use super::budgets::BudgetOwner;
use super::shared_budget::SharedBudget;
use super::spending::{EarlierSpending, PAGE, Stamp};
use crate::clock::Clock;
use crate::state_dir::{BootId, StateDir};
use crate::sync::lock;

/// Within this time, the ends of requests are written.
const DELAY: Duration = Duration::from_millis(50);
/// How long a request waits for the journal at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a write is tried again that has failed, and the file is looked for.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the last write.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// The journal of all budgets of a process.
pub(crate) struct SpendJournal {
    directory: Arc<StateDir>,
    clock: Clock,
    books: Mutex<Books>,
    /// Used by the journal's thread alone.
    file: Mutex<Option<SpendFile>>,
    wake: Arc<Wake>,
    health: Health,
    /// Whether what this process has spent without the directory is still said there, and
    /// need not be once all budgets are written.
    said_beside: AtomicBool,
}

/// A budget's place in the journal.
pub(crate) struct JournalEntry {
    journal: Arc<SpendJournal>,
    name: [u8; 16],
    /// The number of its page; `None` where there are too many budgets.
    slot: Option<usize>,
    is_dirty: AtomicBool,
    /// The number of the last request that is journalled.
    written: watch::Sender<u64>,
}

/// Wakes the journal's thread.
#[derive(Default)]
struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct WakeState {
    /// A request waits.
    is_urgent: bool,
    /// Requests have ended.
    is_dirty: bool,
    is_stopped: bool,
    has_stopped: bool,
}

impl SpendJournal {
    /// Reads what earlier processes have left in a directory, and starts the thread.
    /// `is_shared` is whether replicas share the budgets.
    ///
    /// # Errors
    /// Where there is no thread.
    pub(crate) fn open(
        directory: Arc<StateDir>,
        clock: Clock,
        is_shared: bool,
    ) -> io::Result<Arc<Self>> {
        let journal = Arc::new(Self::read(directory, clock, is_shared));
        let (own, wake) = (Arc::downgrade(&journal), journal.wake.clone());
        let thread = std::thread::Builder::new().name("ordgate-journal".to_owned());
        thread.spawn(move || run(&own, &wake))?;
        Ok(journal)
    }

    /// The same without the thread.
    fn read(directory: Arc<StateDir>, clock: Clock, is_shared: bool) -> Self {
        let boot = directory.boot_id();
        let since_boot = clock.since_boot();
        let stamp = Stamp {
            since_boot,
            now: clock.now(),
        };
        let opened = SpendFile::open(&directory);
        let health = Health::default();
        let (mut books, file) = match opened {
            // The next page of a key says what is spent from now on.
            Ok(_) if directory.was_shared() => {
                let shared = "another process has spent without the journal";
                (Books::unknown(shared, stamp), None)
            }
            Ok(Some((file, bytes))) => {
                // One that is not whole is created anew.
                let file = Some(file).filter(|_| bytes.len() as u64 >= file::BYTES);
                (Books::read(&bytes, boot, stamp), file)
            }
            Ok(None) if directory.was_used() => {
                let missing = "the journal is missing";
                (Books::unknown(missing, stamp), None)
            }
            Ok(None) => (Books::default(), None),
            Err(error) => {
                health.fail(&error);
                (Books::unknown("the journal cannot be read", stamp), None)
            }
        };
        if is_shared {
            books.share(stamp.now);
        }
        books.log(directory.path(), stamp.now);
        let journal = Self {
            directory,
            clock,
            books: Mutex::new(books),
            file: Mutex::new(file),
            wake: Arc::default(),
            health,
            said_beside: AtomicBool::new(false),
        };
        journal.begin();
        journal
    }

    /// Brings the file to what is known now, before anything is sent.
    fn begin(&self) {
        let mut file = self.file();
        let begun = match &*file {
            // Before the pages that it stands for are cleared.
            Some(open) => self.write_header(open, false).and_then(|()| {
                let useless = std::mem::take(&mut self.books().useless);
                let mut slots = useless.into_iter();
                slots.try_for_each(|slot| open.write(slot, &[0; PAGE]))
            }),
            None => SpendFile::create(&self.directory, &self.header(false)).map(|created| {
                *file = Some(created);
            }),
        };
        let begun = begun.and_then(|()| match self.directory.was_beside() {
            // The file does not have what this process has spent.
            true => Ok(()),
            // The file says it from now on.
            false => self.directory.forget_shared(),
        });
        if let Err(error) = begun {
            self.fail(&mut file, &error);
        }
    }

    /// The place of a budget, and what earlier processes have spent of it.
    pub(super) fn entry(self: &Arc<Self>, owner: &BudgetOwner) -> (JournalEntry, EarlierSpending) {
        let name = match owner {
            BudgetOwner::Key(value) => self.directory.digest(&[b"key", value.as_bytes()]),
            BudgetOwner::Server(server) => self.directory.digest(&[b"server", server.as_bytes()]),
        };
        let mut books = self.books();
        let was_full = books.is_full;
        let (slot, earlier) = books.assign(name, self.clock.now());
        drop(books);
        // Once: there may be very many keys.
        if slot.is_none() && !was_full {
            tracing::error!(
                most = SLOTS,
                "the spend journal has no page left for further API keys: what they spend is forgotten at a restart, which then waits a minute"
            );
        }
        let entry = JournalEntry {
            journal: self.clone(),
            name,
            slot,
            is_dirty: AtomicBool::new(true),
            written: watch::Sender::new(0),
        };
        (entry, earlier)
    }

    /// The budget of an entry is in use from now on.
    pub(super) fn add(&self, budget: &Arc<SharedBudget>) {
        self.books().budgets.push(Arc::downgrade(budget));
        self.wake.wake(true);
    }

    /// All budgets of a process that has run beside another are in use now.
    pub(super) fn has_all(&self) {
        self.said_beside.store(true, Release);
        self.wake.wake(true);
    }

    /// The state of the journal, for `/status` and `/metrics`.
    pub(crate) fn snapshot(&self) -> JournalSnapshot {
        let books = self.books();
        self.health.snapshot(&books, self.clock.now())
    }

    /// Writes what is left to write, and ends the thread.
    pub(crate) fn close(&self) {
        let mut state = self.wake.state();
        state.is_stopped = true;
        self.wake.changed.notify_all();
        let stopped = self
            .wake
            .changed
            .wait_timeout_while(state, LAST_WRITE, |state| !state.has_stopped);
        let (_state, waited) = stopped.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            tracing::error!("the disk does not take the last write of the spend journal");
        }
    }

    /// Writes the pages of the budgets that have changed.
    fn write(&self) {
        let mut file = self.file();
        let mut was_failing = self.health.is_failing();
        loop {
            match self.write_to(&mut file, was_failing) {
                Err(error) => return self.fail(&mut file, &error),
                Ok(()) if was_failing => return self.health.recover(),
                // It took too long, and requests were sent meanwhile: now with them.
                Ok(()) if self.health.is_failing() => was_failing = true,
                Ok(()) => return,
            }
        }
    }

    fn write_to(&self, file: &mut Option<SpendFile>, everything: bool) -> io::Result<()> {
        let open = match file {
            Some(open) => open,
            None if self.directory.was_removed() => return Err(removed()),
            None => file.insert(SpendFile::create(&self.directory, &self.header(true))?),
        };
        // Before the budgets: all of them are there then.
        let says_beside = self.said_beside.load(Acquire);
        let (budgets, is_due) = {
            let mut books = self.books();
            (books.live(), books.header_is_due)
        };
        if is_due && !everything {
            // Before a request of a budget without a page is sent.
            self.write_header(open, false)?;
        }
        for budget in &budgets {
            let Some(entry) = budget.entry() else {
                continue;
            };
            if !entry.is_dirty.swap(false, Relaxed) && !everything {
                continue;
            }
            let Some((number, page)) = budget.page() else {
                continue;
            };
            if let Some(slot) = entry.slot
                && let Err(error) = open.write(slot, &page)
            {
                entry.is_dirty.store(true, Relaxed);
                return Err(error);
            }
            self.health.writes.fetch_add(1, Relaxed);
            entry.written.send_replace(number);
        }
        if everything {
            // It says that the pages are complete.
            self.write_header(open, false)?;
        }
        if is_due {
            self.books().header_is_due = false;
        }
        if says_beside {
            self.directory.forget_shared()?;
            self.said_beside.store(false, Relaxed);
        }
        Ok(())
    }

    /// Whether the file is still there. Called at intervals.
    fn check(&self) {
        let mut file = self.file();
        let Some(open) = &*file else {
            return;
        };
        match open.was_removed() {
            Ok(false) => {}
            Ok(true) => {
                *file = None;
                self.fail(&mut file, &removed());
            }
            Err(error) => self.fail(&mut file, &error),
        }
    }

    /// Goes on without the journal, and lets the next process know.
    fn fail(&self, file: &mut Option<SpendFile>, error: &io::Error) {
        self.health.fail(error);
        let marked = file.as_ref().map(|open| self.write_header(open, true));
        if !matches!(marked, Some(Ok(()))) {
            // A missing file says it, too.
            match file::remove(&self.directory) {
                Ok(()) => *file = None,
                Err(error) => self.health.cannot_mark(&error),
            }
        }
        // Requests that wait need not wait any longer.
        for budget in self.books().live() {
            if let Some(entry) = budget.entry() {
                entry.written.send_replace(u64::MAX);
            }
        }
    }

    fn write_header(&self, file: &SpendFile, is_incomplete: bool) -> io::Result<()> {
        file.write(0, &self.header(is_incomplete))
    }

    fn header(&self, is_incomplete: bool) -> Box<[u8; PAGE]> {
        let (books, now, since_boot) = (self.books(), self.clock.now(), self.clock.since_boot());
        let unknown_before = books.unknown_before();
        let header = FileHeader {
            unknown_before: unknown_before
                .map(|before| since_boot.saturating_sub(now.since(before))),
            is_incomplete: is_incomplete || books.is_full,
        };
        header.page(&self.boot_id(), since_boot)
    }

    /// The boot id; zeros, which no machine has, where it cannot be read.
    fn boot_id(&self) -> BootId {
        self.directory.boot_id().copied().unwrap_or_default()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    fn file(&self) -> MutexGuard<'_, Option<SpendFile>> {
        lock(&self.file)
    }
}

impl Drop for SpendJournal {
    fn drop(&mut self) {
        self.wake.state().is_stopped = true;
        self.wake.changed.notify_all();
    }
}

impl JournalEntry {
    /// A request was taken out of the budget, or has ended.
    pub(super) fn changed(&self, is_urgent: bool) {
        if !self.is_dirty.swap(true, Relaxed) || is_urgent {
            self.journal.wake.wake(is_urgent);
        }
    }

    /// Waits until the request of this number is journalled, or the journal fails. Where
    /// the budget has no page, the file says so then.
    pub(super) async fn written(&self, number: u64) {
        let health = &self.journal.health;
        let is_failing = health.is_failing();
        if is_failing || self.slot.is_none() {
            health.unjournalled.fetch_add(1, Relaxed);
        }
        if is_failing {
            return;
        }
        let mut written = self.written.subscribe();
        let waited = written.wait_for(|written| *written >= number);
        match tokio::time::timeout(PATIENCE, waited).await {
            Ok(_written) => {}
            Err(_elapsed) => {
                health.stall();
                let is_new = u64::from(self.slot.is_some());
                health.unjournalled.fetch_add(is_new, Relaxed);
            }
        }
    }

    /// What the budget's page is made with.
    pub(super) fn stamp(&self) -> Stamp {
        // In this order, the spending seems later than it was, not earlier.
        let now = self.journal.clock.now();
        Stamp {
            now,
            since_boot: self.journal.clock.since_boot(),
        }
    }

    pub(super) fn name(&self) -> &[u8; 16] {
        &self.name
    }

    pub(super) fn boot_id(&self) -> BootId {
        self.journal.boot_id()
    }
}

impl Wake {
    fn wake(&self, is_urgent: bool) {
        let mut state = self.state();
        let is_new = !state.is_dirty || (is_urgent && !state.is_urgent);
        state.is_dirty = true;
        state.is_urgent |= is_urgent;
        drop(state);
        if is_new {
            self.changed.notify_all();
        }
    }

    /// Waits until there is something to write, at most an interval, or for the whole of
    /// it after a failure. Returns whether the thread is to end.
    fn wait(&self, is_failing: bool) -> bool {
        let wait = |state, time, is_enough: fn(&WakeState) -> bool| {
            let waits =
                |state: &mut WakeState| !state.is_stopped && (is_failing || !is_enough(state));
            let waited = self.changed.wait_timeout_while(state, time, waits);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut state = wait(self.state(), INTERVAL, |state| state.is_dirty);
        if state.is_dirty && !is_failing {
            state = wait(state, DELAY, |state| state.is_urgent);
        }
        state.is_dirty = false;
        state.is_urgent = false;
        state.is_stopped
    }

    fn state(&self) -> MutexGuard<'_, WakeState> {
        lock(&self.state)
    }
}

/// The journal's thread. It ends with the journal.
fn run(journal: &Weak<SpendJournal>, wake: &Wake) {
    let mut is_failing = false;
    loop {
        let is_stopped = wake.wait(is_failing);
        let Some(journal) = journal.upgrade() else {
            return;
        };
        journal.write();
        journal.check();
        is_failing = journal.health.is_failing();
        if is_stopped {
            wake.state().has_stopped = true;
            wake.changed.notify_all();
            return;
        }
    }
}

fn removed() -> io::Error {
    io::Error::other("the file was removed or replaced by someone else")
}

#[cfg(test)]
mod tests;
