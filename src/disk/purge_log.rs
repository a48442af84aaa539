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
//! it cannot be read, a new log begins, and all that was kept before is absent.
//!
//! Where a record cannot be written, the file is removed at once, so that no later run
//! believes it. This run still knows all records: it goes on with what is kept, and
//! writes the file anew as soon as that is possible.

mod checked;
mod file;
mod record;
mod records;
mod rewrite;
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
use self::record::Record;
use self::records::PurgeRecords;
pub(super) use self::records::{CarriedOut, Due};
use self::state::{LogProgress, LogStanding, State};
use crate::cache::key::Key;
use crate::cache::purge::PurgeSubject;
use crate::portable::bytes::put_record;
use crate::portable::digest::MeaningDigest;
use crate::portable::purge::LoggedPurge;
use crate::sync::{lock, read, write};

/// The file is written anew once it is this long: much of it is forgotten then. It is
/// never twice as long.
pub(super) const MOST_BYTES: u64 = 4 << 20;
/// How long an answer waits for its record to be written.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

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
    /// Whether the log says that there is no file.
    is_reported: AtomicBool,
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
                durable: (records.last_purge, records.next_removal),
                records,
                queued: Vec::new(),
                is_behind: false,
                pushed: 0,
                len: file.len(),
            }),
            file: Mutex::new(Some(file)),
            progress: watch::Sender::default(),
            is_stuck: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
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

    /// Records which routes there are.
    pub(super) fn set_routes(&self, routes: Vec<MeaningDigest>) {
        self.push(Record::Routes(routes));
    }

    /// The lowest height of a tip that was purged after a purge: 0 if that is forgotten.
    pub(super) fn reorg_since(&self, purge: u64, tip: MeaningDigest) -> Option<u32> {
        read(&self.state).records.reorg_since(purge, tip)
    }

    /// The number of the last purge, and that of the next removal.
    pub(super) fn position(&self) -> (u64, u64) {
        read(&self.state).position()
    }

    /// The log's id; `None` while nothing may be kept.
    pub(super) fn id(&self) -> Option<LogId> {
        read(&self.state).id()
    }

    /// Records a purge.
    pub(super) fn purge(&self, number: u64, purge: LoggedPurge) {
        self.push(Record::Purge(number, purge));
    }

    /// Records the removal of a key.
    pub(super) fn remove(&self, number: u64, key: [u8; 16]) {
        self.push(Record::Removal(number, key));
    }

    fn push(&self, record: Record) {
        let mut bytes = Vec::new();
        put_record(&mut bytes, &record.to_bytes());
        let mut state = write(&self.state);
        state.records.apply(record);
        state.push(&bytes);
        drop(state);
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

    /// Writes what waits to be written, and makes it survive the machine's end. It waits
    /// for the disk. To be called before anything is written that was checked against
    /// these records: the next run gives their numbers to others, if they are lost.
    ///
    /// # Errors
    /// If that fails. Then either there is no file that a later run could believe, or
    /// nothing may be kept.
    pub(super) fn make_durable(&self) -> io::Result<()> {
        let state = read(&self.state);
        let is_done = state.queued.is_empty() && state.durable == state.position();
        drop(state);
        match is_done {
            true => Ok(()),
            false => self.sync_file().map(drop),
        }
    }

    /// Writes what waits to be written. It waits for the disk.
    ///
    /// # Errors
    /// If that fails.
    fn flush(&self) -> io::Result<()> {
        self.write_queued(&mut self.file())
    }

    /// Writes what waits to be written.
    ///
    /// # Errors
    /// If that fails. Then the file is removed, and no later call is an error: without a
    /// file, no later run uses what is kept.
    fn write_queued(&self, file: &mut Option<LogFile>) -> io::Result<()> {
        let mut state = write(&self.state);
        let Some(open) = file else {
            let (_in_memory, pushed) = state.take_queued();
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
        if state.is_behind {
            drop(state);
            return self.write_anew(file);
        }
        let (queued, pushed) = state.take_queued();
        let mark = file::mark(&state.records);
        drop(state);
        if let Err(error) = open.append(&queued, &mark) {
            self.report(&error);
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
        match self.sync_file()? {
            true => Ok(()),
            false => Err(io::Error::other("the purge log cannot be written")),
        }
    }

    /// The same, but that there is no file is no error. Returns whether there is one.
    fn sync_file(&self) -> io::Result<bool> {
        let mut file = self.file();
        let position = read(&self.state).position();
        self.write_queued(&mut file)?;
        self.replace_if_removed(&mut file)?;
        let Some(open) = &*file else {
            return Ok(false);
        };
        let handle = open.handle()?;
        // Not under the lock: records are written meanwhile.
        drop(file);
        if let Err(error) = handle.sync_data() {
            // What was written may be lost, though a later attempt may succeed.
            self.report(&error);
            write(&self.state).fall_behind();
            self.write_anew(&mut self.file())?;
        }
        self.have_synced(position);
        Ok(true)
    }

    fn have_synced(&self, position: (u64, u64)) {
        let mut state = write(&self.state);
        let (purge, removal) = state.durable;
        state.durable = (purge.max(position.0), removal.max(position.1));
    }

    /// Begins a new log where nothing that was kept may be used; writes it anew where it
    /// could not be written, or has become long. Returns whether a new one began. It waits
    /// for the disk.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn maintain(&self) -> io::Result<bool> {
        let mut file = self.file();
        self.write_queued(&mut file)?;
        self.replace_if_removed(&mut file)?;
        if read(&self.state).standing == LogStanding::Lost {
            self.discard_file(&mut file)?;
            self.begin(&mut file)?;
            return Ok(true);
        }
        match &*file {
            None => {
                // One that could not be removed.
                self.discard_file(&mut file)?;
                self.write_anew(&mut file)?;
                tracing::info!("the purge log is written anew, with all that was purged");
            }
            Some(open) if open.len() > MOST_BYTES => self.write_anew(&mut file)?,
            Some(_) => {}
        }
        Ok(false)
    }

    /// Makes all that was kept so far absent: at once here, and soon for later runs. A new
    /// log begins with the next [`maintain`](Self::maintain).
    pub(super) fn discard(&self, why: &dyn Display) {
        self.lose(why);
        self.wake();
    }

    fn lose(&self, why: &dyn Display) {
        if write(&self.state).lose() {
            tracing::error!(%why, "all that is stored on disk is discarded");
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

    /// Whether the same holds for what is to be kept from now on, and a later run finds all
    /// records that it was checked against, or no file.
    pub(super) fn may_keep(&self, checked: Checked, key: &[u8; 16]) -> bool {
        let state = read(&self.state);
        let is_of_log = state.id() == Some(checked.log) && !self.is_stuck.load(Relaxed);
        is_of_log && state.records.may_keep(checked, key)
    }

    /// The purges and removals of keys that are to be carried out, and up to where they
    /// are.
    pub(super) fn due(&self) -> (Vec<([u8; 16], Due)>, CarriedOut) {
        read(&self.state).records.due()
    }

    /// Records that nothing is on disk any more to which they apply.
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
        let key = Key::of(0, target);
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

#[cfg(test)]
mod tests;
