//! The purge log: all purges and removals, so that none is forgotten when the process
//! ends.
//!
//! A record applies in memory at once, and a thread of its own writes it to the file. The
//! answer to whoever has caused it waits for that ([`PurgeLog::recorded`]). So a process
//! that is killed has lost no purge that was acknowledged; [`PurgeLog::sync`] makes them
//! survive the machine's end as well. No thread that serves requests waits for the disk.
//! Purges and removals have the numbers that they have in memory; the numbers continue in
//! the next run.
//!
//! What is kept on disk bears the log's id and the numbers that it was checked against
//! ([`Checked`]). It is absent if the log has a later record that matches, or no longer
//! has all later records, or is another log.
//!
//! The file is a head, records, and a mark at the end that each record overwrites. A
//! file without its mark is torn: a record may be missing. Then, and where anything in
//! it cannot be read, a new log begins, and all that was kept before is absent. The same
//! is done where a record cannot be written: at once in memory, and on disk as soon as
//! that is possible.

mod checked;
mod file;
mod record;
mod records;
mod state;

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock};
use std::thread::Thread;
use std::time::Duration;

use tokio::sync::watch;

pub(super) use self::checked::{Checked, LogId, NO_KEY};
use self::file::LogFile;
pub(super) use self::file::parse_any;
pub(super) use self::record::LoggedPurge;
use self::record::Record;
use self::records::PurgeRecords;
pub(super) use self::records::{CarriedOut, Due};
use self::state::{LogProgress, LogStanding, State};
use super::bytes::put_record;
use super::digest::MeaningDigest;
use crate::cache::key::Key;
use crate::cache::purge::PurgeSubject;
use crate::sync::{lock, read, write};

/// The file is written anew once it is this long: much of it is forgotten then. It is
/// never twice as long.
pub(super) const MOST_BYTES: u64 = 4 << 20;
const REMOVED: &str = "the purge log was removed";
/// How long an answer waits for its record to be written.
const PATIENCE: Duration = Duration::from_secs(3);

/// The log.
#[derive(Debug)]
pub(super) struct PurgeLog {
    path: PathBuf,
    /// Never locked by anyone who waits for the disk.
    state: RwLock<State>,
    /// Locked while the file is written. `None` while there is none to write to.
    file: Mutex<Option<LogFile>>,
    progress: watch::Sender<LogProgress>,
    /// Whether what an earlier run may believe cannot be removed.
    is_stuck: AtomicBool,
    thread: OnceLock<Thread>,
    is_closed: AtomicBool,
}

/// How a log began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// With the records of the file.
    Continued,
    /// Without a file.
    New,
    /// The file could not be read, for this reason.
    Unreadable(&'static str),
}

impl PurgeLog {
    /// Opens the log, or begins a new one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Begun)> {
        let (begun, known) = match std::fs::read(path) {
            Ok(bytes) => match file::parse(&bytes) {
                Ok(known) => (Begun::Continued, Some(known)),
                Err(why) => (Begun::Unreadable(why), None),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Begun::New, None),
            Err(error) => return Err(error),
        };
        let (id, records) = match known {
            Some(known) => known,
            None => (LogId::random()?, PurgeRecords::default()),
        };
        // Without what is no longer remembered, and with room for what comes.
        let file = LogFile::create(path, file::to_bytes(id, &records))?;
        let log = Self {
            path: path.to_owned(),
            state: RwLock::new(State {
                standing: LogStanding::Recording(id),
                records,
                queued: Vec::new(),
                pushed: 0,
                len: file.len(),
            }),
            file: Mutex::new(Some(file)),
            progress: watch::Sender::default(),
            is_stuck: AtomicBool::new(false),
            thread: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        };
        Ok((log, begun))
    }

    /// The routes that there were when [`set_routes`](Self::set_routes) was last called,
    /// by any run.
    pub(super) fn routes(&self) -> Vec<MeaningDigest> {
        read(&self.state).records.routes.clone()
    }

    /// PurgeRecords which routes there are.
    pub(super) fn set_routes(&self, routes: Vec<MeaningDigest>) {
        self.push(Record::Routes(routes));
    }

    /// The lowest height of a tip that was purged after a purge: 0 if that is forgotten.
    pub(super) fn reorg_since(&self, purge: u64, tip: MeaningDigest) -> Option<u32> {
        read(&self.state).records.reorg_since(purge, tip)
    }

    /// The number of the last purge, and that of the next removal.
    pub(super) fn position(&self) -> (u64, u64) {
        let state = read(&self.state);
        (state.records.last_purge, state.records.next_removal)
    }

    /// The log's id; `None` while a record is missing, so that nothing may be kept.
    pub(super) fn id(&self) -> Option<LogId> {
        read(&self.state).id()
    }

    /// PurgeRecords a purge.
    pub(super) fn purge(&self, number: u64, purge: LoggedPurge) {
        self.push(Record::Purge(number, purge));
    }

    /// PurgeRecords the removal of a key.
    pub(super) fn remove(&self, number: u64, key: [u8; 16]) {
        self.push(Record::Removal(number, key));
    }

    fn push(&self, record: Record) {
        let mut bytes = Vec::new();
        put_record(&mut bytes, &record.to_bytes());
        let mut state = write(&self.state);
        state.records.apply(record);
        let is_lost = state.push(&bytes);
        drop(state);
        if is_lost {
            report_lost(&"too many records wait to be written");
        }
        self.wake();
    }

    /// Waits, briefly, until all records so far are in the file, or all that was kept
    /// before them is gone. Returns whether they are.
    pub(super) async fn recorded(&self) -> bool {
        let pushed = read(&self.state).pushed;
        let mut progress = self.progress.subscribe();
        let waited = progress.wait_for(|at| pushed <= at.recorded || at.is_late);
        match tokio::time::timeout(PATIENCE, waited).await {
            Ok(at) => at.is_ok_and(|at| pushed <= at.recorded),
            Err(_elapsed) => {
                self.progress.send_modify(|at| at.is_late = true);
                false
            }
        }
    }

    /// How many records a later run could lack.
    pub(super) fn unrecorded(&self) -> u64 {
        let pushed = read(&self.state).pushed;
        pushed.saturating_sub(self.progress.borrow().recorded)
    }

    /// Writes what waits to be written, until the log is closed. `fails` is called with
    /// each fault.
    pub(super) fn run(&self, fails: impl Fn(&io::Error)) {
        let _first = self.thread.set(std::thread::current());
        loop {
            let is_closed = self.is_closed.load(Relaxed);
            if let Err(error) = self.flush() {
                fails(&error);
            }
            if is_closed {
                return;
            }
            std::thread::park();
        }
    }

    /// Has [`run`](Self::run) end once all is written.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Writes what waits to be written. It waits for the disk. To be called before anything
    /// is written that was checked against these records: the next run gives their numbers
    /// to others, if they are lost.
    ///
    /// # Errors
    /// If that fails.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.write_queued(&mut self.file())
    }

    /// Writes what waits to be written.
    ///
    /// # Errors
    /// If that fails. Then the file is removed, and no later call is an error: without a
    /// file, nothing that was kept can be used.
    fn write_queued(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let mut state = write(&self.state);
        let Some(open) = file else {
            let pushed = state.pushed;
            drop(state);
            if !self.is_stuck.load(Relaxed) {
                self.have_recorded(pushed);
            }
            return Ok(());
        };
        if state.standing == LogStanding::Lost {
            drop(state);
            return self.discard_file(file);
        }
        let (queued, pushed) = state.take_queued();
        let mark = file::mark(&state.records);
        drop(state);
        if let Err(error) = open.append(&queued, &mark) {
            self.lose(&error);
            self.discard_file(file)?;
            return Err(error);
        }
        write(&self.state).len = open.len();
        self.have_recorded(pushed);
        Ok(())
    }

    fn have_recorded(&self, pushed: u64) {
        self.progress.send_if_modified(|at| {
            let is_new = at.recorded < pushed || at.is_late;
            at.recorded = at.recorded.max(pushed);
            at.is_late = false;
            is_new
        });
    }

    /// Makes the records so far survive the machine's end. It waits for the disk.
    ///
    /// # Errors
    /// If that fails, or a record could not be written.
    pub(super) fn sync(&self) -> io::Result<()> {
        let mut file = self.file();
        self.write_queued(&mut file)?;
        let Some(open) = &*file else {
            return Err(io::Error::other("the purge log cannot be written"));
        };
        if !open.is_at(&self.path) {
            self.lose(&REMOVED);
            return Err(io::Error::other(REMOVED));
        }
        let handle = open.handle()?;
        // Not under the lock: records are written meanwhile.
        drop(file);
        handle.sync_data().inspect_err(|error| {
            // What was written may be lost, though a later attempt may succeed.
            self.lose(error);
            self.wake();
        })
    }

    /// Begins a new log where a record is missing, or the file is no longer there; writes
    /// it anew where it has become long. Returns whether a new one began. It waits for the
    /// disk.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn maintain(&self) -> io::Result<bool> {
        let mut file = self.file();
        self.write_queued(&mut file)?;
        if file.as_ref().is_some_and(|open| !open.is_at(&self.path)) {
            self.lose(&REMOVED);
        }
        let standing = read(&self.state).standing;
        let LogStanding::Recording(id) = standing else {
            self.discard_file(&mut file)?;
            self.begin(&mut file)?;
            return Ok(true);
        };
        let Some(open) = file.as_mut().filter(|open| open.len() > MOST_BYTES) else {
            return Ok(false);
        };
        let mut state = write(&self.state);
        let bytes = file::to_bytes(id, &state.records);
        // They are among the records.
        let (queued, pushed) = state.take_queued();
        let mark = file::mark(&state.records);
        drop(state);
        let created = LogFile::create(&self.path, bytes);
        // Otherwise the new file may be in place, though that is no longer certain.
        if let Err(error) = &created
            && open.is_at(&self.path)
            && open.append(&queued, &mark).is_ok()
        {
            self.have_recorded(pushed);
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        self.change_file(&mut file, created, pushed)?;
        Ok(false)
    }

    /// Begins a new log.
    fn begin(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let id = LogId::random()?;
        let mut state = write(&self.state);
        let records = &mut state.records;
        let numbers = (records.last_purge, records.next_removal);
        *records = PurgeRecords::begin(numbers, std::mem::take(&mut records.routes));
        let bytes = file::to_bytes(id, records);
        let (_lost, pushed) = state.take_queued();
        state.standing = LogStanding::Beginning;
        drop(state);
        let created = LogFile::create(&self.path, bytes);
        let mut state = write(&self.state);
        if created.is_ok() && state.standing == LogStanding::Beginning {
            state.standing = LogStanding::Recording(id);
        } else {
            state.standing = LogStanding::Lost;
        }
        drop(state);
        self.change_file(file, created, pushed)
    }

    /// Goes on with a file that was written anew, with all records up to a number. Where
    /// that has failed, what waited to be written is in no file.
    fn change_file(
        &self,
        file: &mut Option<LogFile>,
        created: io::Result<LogFile>,
        pushed: u64,
    ) -> io::Result<()> {
        match created {
            Ok(new) => {
                write(&self.state).len = new.len();
                *file = Some(new);
                self.have_recorded(pushed);
                Ok(())
            }
            Err(error) => {
                self.lose(&error);
                self.discard_file(file)?;
                Err(error)
            }
        }
    }

    /// Makes all that was kept so far absent: at once here, and soon for later runs. A new
    /// log begins with the next [`maintain`](Self::maintain).
    pub(super) fn discard(&self, why: &dyn Display) {
        self.lose(why);
        self.wake();
    }

    fn lose(&self, why: &dyn Display) {
        let is_new = write(&self.state).lose();
        if is_new {
            report_lost(why);
        }
    }

    /// Makes the file unreadable, so that no later run believes it.
    fn discard_file(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let pushed = read(&self.state).pushed;
        let emptied = file.take().map(LogFile::empty);
        let removed = match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        write(&self.state).len = 0;
        match removed {
            Err(error) if !matches!(emptied, Some(Ok(()))) => {
                if !self.is_stuck.swap(true, Relaxed) {
                    tracing::error!(
                        %error,
                        path = %self.path.display(),
                        "the purge log cannot be removed: remove it before ordgate is started again, or what was purged may be served"
                    );
                }
                Err(error)
            }
            Ok(()) | Err(_) => {
                self.is_stuck.store(false, Relaxed);
                self.have_recorded(pushed);
                Ok(())
            }
        }
    }

    /// The length of the file.
    pub(super) fn len(&self) -> u64 {
        read(&self.state).len
    }

    /// Whether what was kept under a key is of this log and was not removed since. To be
    /// called before what takes longer.
    pub(super) fn may_hold(&self, checked: Checked, key: &[u8; 16]) -> bool {
        let state = read(&self.state);
        state.id() == Some(checked.log) && state.records.may_hold(checked, key)
    }

    /// Whether the same holds for what is to be kept from now on.
    pub(super) fn may_keep(&self, checked: Checked, key: &[u8; 16]) -> bool {
        let state = read(&self.state);
        state.id() == Some(checked.log) && state.records.may_keep(checked, key)
    }

    /// The purges and removals of keys that are to be carried out, and up to where they
    /// are.
    pub(super) fn due(&self) -> (Vec<([u8; 16], Due)>, CarriedOut) {
        read(&self.state).records.due()
    }

    /// PurgeRecords that nothing is on disk any more to which they apply.
    pub(super) fn have_carried_out(&self, done: CarriedOut) {
        self.push(Record::CarriedOut(done));
    }

    /// Whether no purge since it was checked matches what was kept for a target of a
    /// route. The subject's key is replaced.
    pub(super) fn holds(
        &self,
        checked: Checked,
        (route, tip): (MeaningDigest, Option<MeaningDigest>),
        target: &str,
        subject: PurgeSubject<'_>,
    ) -> bool {
        let mut key = Key::begin(0);
        key.buffer().extend_from_slice(target.as_bytes());
        let subject = PurgeSubject {
            key: key.as_bytes(),
            ..subject
        };
        let state = read(&self.state);
        let since = state.records.purges.iter().rev();
        let mut since = since.take_while(|(number, _)| checked.purge < *number);
        state.id() == Some(checked.log)
            && !since.any(|(_, purge)| purge.matches(route, tip, &subject))
    }

    fn file(&self) -> MutexGuard<'_, Option<LogFile>> {
        lock(&self.file)
    }
}

fn report_lost(why: &dyn Display) {
    tracing::error!(
        %why,
        "purges cannot be recorded on disk: all that is stored there is discarded"
    );
}

#[cfg(test)]
mod tests;
