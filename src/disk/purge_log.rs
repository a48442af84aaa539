//! The purge log: all purges and removals, so that none is forgotten when the process
//! ends.
//!
//! A record is written to the file before the purge applies in memory. So a process that
//! is killed has lost no purge that anyone has seen, and [`PurgeLog::sync`] makes it
//! survive the machine's end as well. Purges and removals have the numbers that they
//! have in memory; the numbers continue in the next run.
//!
//! What is kept on disk bears the log's id and the numbers that it was checked against
//! ([`Checked`]). It is absent if the log has a later record that matches, or no longer
//! has all later records, or is another log.
//!
//! The file is a head, records, and a mark at the end that each record overwrites. A
//! file without its mark is torn: a record may be missing. Then, and where anything in
//! it cannot be read, a new log begins, and all that was kept before is absent. The same
//! is done where a record cannot be written.

mod file;
mod record;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use self::file::LogFile;
pub(super) use self::file::parse_any;
pub(super) use self::record::LoggedPurge;
use self::record::Record;
use super::digest::MeaningDigest;
use crate::cache::key::Key;
use crate::cache::purge::PurgeSubject;
use crate::sync::lock;

/// The most purges that are remembered. What was last checked before the oldest of
/// them is absent.
const MOST_PURGES: usize = 4096;
/// The most bytes of the remembered purges.
const MOST_PURGE_BYTES: usize = 1 << 20;
/// The most removed keys that are remembered; the same applies.
const MOST_REMOVALS: usize = 16_384;
/// The file is written anew once it is this long: much of it is forgotten then.
pub(super) const MOST_BYTES: u64 = 4 << 20;

/// The id of a log. Another log knows nothing of the purges of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogId(pub(super) [u8; 16]);

/// Stands for a key that nothing is kept under.
pub(super) const NO_KEY: [u8; 16] = [0; 16];

impl LogId {
    fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_unspecified| io::Error::other("no source of randomness"))?;
        Ok(Self(bytes))
    }
}

/// The purges and removals that something was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) log: LogId,
    /// The number of the last purge.
    pub(super) purge: u64,
    /// The number of the next removal.
    pub(super) removal: u64,
}

/// The log.
#[derive(Debug)]
pub(super) struct PurgeLog {
    path: PathBuf,
    /// Held while the file is written.
    state: Mutex<State>,
    /// Never held while the file is written.
    summary: Mutex<Summary>,
}

#[derive(Debug)]
struct State {
    /// The file, unless a record could not be written to it.
    file: Option<LogFile>,
    id: LogId,
    records: Records,
}

/// What is asked by those who must not wait for the disk. It follows the state.
#[derive(Clone, Copy, Debug)]
struct Summary {
    /// The log's id; `None` while it cannot be written.
    id: Option<LogId>,
    /// The number of the last purge, and that of the next removal.
    position: (u64, u64),
    /// The length of the file.
    len: u64,
}

/// What is remembered.
#[derive(Debug, Default)]
struct Records {
    /// Ascending.
    purges: VecDeque<(u64, LoggedPurge)>,
    /// What was last checked before this purge is absent.
    purges_from: u64,
    last_purge: u64,
    purge_bytes: usize,
    /// The last removal of each key.
    removals: HashMap<[u8; 16], u64>,
    /// The same, ascending; with removals that a later one of the same key replaced.
    removed: VecDeque<(u64, [u8; 16])>,
    removals_from: u64,
    next_removal: u64,
    /// The routes that there were last.
    routes: Vec<MeaningDigest>,
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

/// What became of a record.
#[derive(Debug)]
pub(super) enum Written {
    /// It is in the file.
    Recorded,
    /// It cannot be written, for this reason: the log was discarded.
    Lost(io::Error),
    /// The log was discarded before.
    LostBefore,
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
            None => (LogId::random()?, Records::default()),
        };
        // Without what is no longer remembered, and with room for what comes.
        let file = LogFile::create(path, id, &records)?;
        let state = State {
            file: Some(file),
            id,
            records,
        };
        let log = Self {
            path: path.to_owned(),
            summary: Mutex::new(state.summary()),
            state: Mutex::new(state),
        };
        Ok((log, begun))
    }

    /// The routes that there were when [`set_routes`](Self::set_routes) was last called,
    /// by any run.
    pub(super) fn routes(&self) -> Vec<MeaningDigest> {
        self.state().records.routes.clone()
    }

    /// Writes which routes there are.
    pub(super) fn set_routes(&self, routes: Vec<MeaningDigest>) -> Written {
        self.write(Record::Routes(routes))
    }

    /// The number of the last purge, and that of the next removal.
    pub(super) fn position(&self) -> (u64, u64) {
        lock(&self.summary).position
    }

    /// The log's id; `None` while it cannot be written, so that nothing may be kept.
    pub(super) fn id(&self) -> Option<LogId> {
        lock(&self.summary).id
    }

    /// Writes a purge.
    pub(super) fn purge(&self, number: u64, purge: LoggedPurge) -> Written {
        self.write(Record::Purge(number, purge))
    }

    /// Writes the removal of a key.
    pub(super) fn remove(&self, number: u64, key: [u8; 16]) -> Written {
        self.write(Record::Removal(number, key))
    }

    fn write(&self, record: Record) -> Written {
        let mut state = self.state();
        let bytes = record.to_bytes();
        state.records.apply(record);
        self.show(&state);
        let State { file, records, .. } = &mut *state;
        let Some(open) = file else {
            return Written::LostBefore;
        };
        if let Err(error) = open.append(&bytes, records) {
            tracing::error!(%error, "a purge cannot be recorded: all that is stored on disk is discarded");
            state.discard(self);
            return Written::Lost(error);
        }
        self.show(&state);
        Written::Recorded
    }

    /// Makes the records of the file survive the machine's end.
    ///
    /// # Errors
    /// If that fails, or a record could not be written.
    pub(super) fn sync(&self) -> io::Result<()> {
        let file = match &self.state().file {
            Some(open) => open.handle()?,
            None => return Err(io::Error::other("the purge log cannot be written")),
        };
        // Not under the lock: purges go on meanwhile.
        file.sync_data()
    }

    /// Begins a new log where a record could not be written, or the file is no longer
    /// there; writes it anew where it has become long. Returns whether a new one began.
    ///
    /// # Errors
    /// If the new one cannot be written.
    pub(super) fn maintain(&self) -> io::Result<bool> {
        let mut state = self.state();
        let is_intact = state.file.as_ref().is_some_and(|f| f.is_at(&self.path));
        if !is_intact {
            state.discard(self);
            let id = LogId::random()?;
            let (last_purge, next_removal) = (state.records.last_purge, state.records.next_removal);
            state.records = Records {
                last_purge,
                purges_from: last_purge,
                next_removal,
                removals_from: next_removal,
                routes: std::mem::take(&mut state.records.routes),
                ..Records::default()
            };
            state.file = Some(LogFile::create(&self.path, id, &state.records)?);
            state.id = id;
            self.show(&state);
            return Ok(true);
        }
        if state.file.as_ref().is_some_and(|f| f.len() > MOST_BYTES) {
            let created = LogFile::create(&self.path, state.id, &state.records);
            state.change_file(self, created)?;
        }
        Ok(false)
    }

    /// Makes all that was kept so far absent. A new log begins with the next
    /// [`maintain`](Self::maintain).
    pub(super) fn discard(&self) {
        self.state().discard(self);
    }

    /// The length of the file.
    pub(super) fn len(&self) -> u64 {
        lock(&self.summary).len
    }

    /// Whether what was kept under a key is of this log and was not removed since. To be
    /// called before what takes longer.
    pub(super) fn may_hold(&self, checked: Checked, key: &[u8; 16]) -> bool {
        let state = self.state();
        let records = &state.records;
        let removed = records.removals.get(key);
        state.file.is_some()
            && checked.log == state.id
            && records.purges_from <= checked.purge
            && checked.purge <= records.last_purge
            && records.removals_from <= checked.removal
            && checked.removal <= records.next_removal
            && removed.is_none_or(|number| *number < checked.removal)
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
        let state = self.state();
        let since = state.records.purges.iter().rev();
        let mut since = since.take_while(|(number, _)| checked.purge < *number);
        state.id == checked.log && !since.any(|(_, purge)| purge.matches(route, tip, &subject))
    }

    /// Brings the summary up to date, while the state is locked.
    fn show(&self, state: &State) {
        *lock(&self.summary) = state.summary();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each operation on it leaves it consistent.
        lock(&self.state)
    }
}

impl State {
    fn summary(&self) -> Summary {
        Summary {
            id: self.file.as_ref().map(|_| self.id),
            position: (self.records.last_purge, self.records.next_removal),
            len: self.file.as_ref().map_or(0, LogFile::len),
        }
    }

    /// Goes on with a file that was written anew. Where that has failed, it may be in
    /// place all the same; then the open one is none that a later run reads.
    fn change_file(&mut self, log: &PurgeLog, created: io::Result<LogFile>) -> io::Result<()> {
        let is_open_in_place = || self.file.as_ref().is_some_and(|f| f.is_at(&log.path));
        match created {
            Ok(file) => self.file = Some(file),
            Err(error) if is_open_in_place() => return Err(error),
            Err(error) => {
                self.discard(log);
                return Err(error);
            }
        }
        log.show(self);
        Ok(())
    }

    /// Makes the file unreadable, so that no later run believes it.
    fn discard(&mut self, log: &PurgeLog) {
        let path = &log.path;
        let open = self.file.take();
        // From now on nothing is kept.
        log.show(self);
        let emptied = open.map(LogFile::empty);
        let removed = std::fs::remove_file(path);
        let is_gone = matches!(emptied, Some(Ok(())))
            || removed.is_ok()
            || removed.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if !is_gone {
            tracing::error!(
                path = %path.display(),
                "the purge log cannot be removed: remove it before ordgate is started again, or what was purged may be served"
            );
        }
    }
}

impl Records {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Purge(number, purge) => {
                self.last_purge = number;
                self.purge_bytes += purge.weight();
                self.purges.push_back((number, purge));
                while (self.purges.len() > MOST_PURGES || self.purge_bytes > MOST_PURGE_BYTES)
                    && let Some((forgotten, purge)) = self.purges.pop_front()
                {
                    self.purge_bytes -= purge.weight();
                    self.purges_from = forgotten;
                }
            }
            Record::Routes(routes) => self.routes = routes,
            Record::Removal(number, key) => {
                self.next_removal = number.saturating_add(1);
                if key == NO_KEY {
                    return;
                }
                self.removals.insert(key, number);
                self.removed.push_back((number, key));
                if self.removed.len() > MOST_REMOVALS
                    && let Some((forgotten, key)) = self.removed.pop_front()
                    && self.removals.get(&key) == Some(&forgotten)
                {
                    self.removals.remove(&key);
                    self.removals_from = forgotten.saturating_add(1);
                }
            }
        }
    }

    /// All records, in no order that matters.
    fn iter(&self) -> impl Iterator<Item = Record> {
        let purges = self.purges.iter();
        let purges = purges.map(|(number, purge)| Record::Purge(*number, purge.clone()));
        let removals = self.removed.iter();
        let removals = removals.filter(|(number, key)| self.removals.get(key) == Some(number));
        let routes = std::iter::once(Record::Routes(self.routes.clone()));
        let removals = removals.map(|(number, key)| Record::Removal(*number, *key));
        routes.chain(purges).chain(removals)
    }
}

#[cfg(test)]
mod tests;
