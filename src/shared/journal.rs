//! The journal: what one replica purges, all replicas purge.
//!
//! It is one stream of numbered records in the engine, which each replica reads from where
//! it stands. So delivery and catch-up are the same. A replica sends *sync requests* to the
//! engine ([`sync`]), several a second: each one says how far the replica has applied the
//! journal, appends its own records, and returns those that it has not read. A second
//! connection waits for new records, so that the next sync request is sent at once; correctness
//! does not depend on it.
//!
//! Invariants, each with a rule ([`rules`]) without which the simulation in `proof` fails:
//!
//! - A replica that says it has applied a record has purged what it matches: effects are
//!   in force before the next sync request is made.
//! - Each purge reaches each replica sooner or later, or the replica has purged
//!   everything. Records are kept until they are read back; after the engine has lost
//!   records (another run id, fewer records than were applied), the journal begins a new
//!   *generation*, which is read from its beginning, and to which all replicas send their
//!   remembered purges again. What is not remembered any more purges everything; so does
//!   whatever a process may have purged that a replica knew, and that does not come to the
//!   new generation ([`awaited`]).
//! - A record's uid is appended once in a generation, however often it is sent.
//! - What was fetched while the journal was at a position, and stored elsewhere, is used
//!   only if all later records are known and none matches ([`Journal::holds`]).
//!
//! No request of a client waits for the journal. Without the engine, records wait here
//! ([`machine::MOST_WAITING`]), and the replica goes on as a standalone ordgate.
//!
//! Not covered: rows of the engine that somebody replaces by older ones while it runs (what
//! was stored elsewhere may be used once more); two engines that both have replicas for
//! longer than the history of a replica lasts (a split); an engine that answers with records
//! that nobody has sent; a purge that its process could not send to the engine before it
//! ended; and one that the engine has lost, of a process that has ended, where a replica
//! was cut off before that process began.

mod awaited;
mod cooldown;
mod file;
mod follow;
pub(super) mod history;
mod local;
mod machine;
mod others;
pub(crate) mod position;
pub(crate) mod record;
mod rules;
mod sync;
mod waiting;

#[cfg(test)]
mod model;
#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

pub(crate) use local::PurgesOnDisk;
use machine::{JournalEffect, JournalMachine};
pub(crate) use position::JournalPosition;
pub(crate) use record::{JournalRecord, RecordUid};
use tokio::sync::{Notify, watch};

use self::file::PositionFile;
use self::local::LocalPurges;
use super::allowance::ProcessId;
use super::engine::SharedError;
use super::engine::server::EngineScript;
use crate::cache::Cache;
use crate::cache::key::Key;
use crate::cache::purge::{Purge, PurgeSubject};
use crate::clock::Clock;
use crate::portable::digest::MeaningDigest;
use crate::portable::meanings::Meanings;
use crate::state_dir::OpenedState;
use crate::sync::{lock, read, write};
use crate::upstream::admission::budgets::Budgets;

/// The script that answers a sync request.
const SYNC: &str = include_str!("engine/scripts/sync.lua");

/// A replica whose last sync request that gave all records was sent before is out of sync:
/// it does not know whether something was purged.
pub(crate) const IN_SYNC_WITHIN: Duration = Duration::from_millis(500);

/// How long the answer to a purge waits for other replicas, and a start for what was
/// purged before.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a start looks whether that is over.
const CATCH_UP_EVERY: Duration = Duration::from_millis(2);

/// The journal of this process. It survives reloads.
pub(crate) struct Journal {
    keys: [String; 3],
    script: EngineScript,
    machine: RwLock<JournalMachine>,
    local: Mutex<LocalPurges>,
    prefix: Box<str>,
    budgets: Arc<Budgets>,
    state: OpenedState,
    clock: Clock,
    /// Has the next sync request sent at once.
    wake: Notify,
    /// How many wait for other replicas.
    waiting: AtomicUsize,
    /// How many purges apply here and are not records yet.
    unrecorded: AtomicUsize,
    /// Whether new records are announced.
    is_announced: AtomicBool,
    /// Why the last sync request was not answered, if it was not; changes with each sync request.
    last_failure: watch::Sender<Option<SharedError>>,
}

/// Which replicas have applied a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PurgeReach {
    /// The names of other replicas that have.
    pub(crate) applied: Vec<Arc<str>>,
    /// The names of those that have not, as far as is known.
    pub(crate) not_reached: Vec<Arc<str>>,
    /// Why the engine does not have the purge yet; it is sent as soon as it answers.
    pub(crate) engine: Option<String>,
}

/// The journal as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub struct JournalReport {
    /// The generation, in hexadecimal, before the first reply `None`.
    pub generation: Option<String>,
    /// The last record that was applied.
    pub applied: u64,
    /// The last record that the engine has.
    pub tail: u64,
    /// How long ago all records were known last.
    pub synced: Option<Duration>,
    /// Whether that is recent enough.
    pub is_in_sync: bool,
    /// Why the last sync request was not answered, if it was not.
    pub failure: Option<String>,
    /// How many own records wait for the engine.
    pub waiting: usize,
    /// Own records that the engine has, those of others, and those that are not known.
    pub records: [u64; 3],
    /// How often records were missed.
    pub gaps: u64,
    /// How often the journal has begun anew.
    pub generations: u64,
    /// The other replicas: name, last record applied, how long silent, and whether they
    /// count as reachable.
    pub replicas: Vec<(Arc<str>, u64, Duration, bool)>,
}

/// From before a purge applies here until it is a record. What others have stored does not
/// hold meanwhile: it may match the purge.
pub(crate) struct UnrecordedPurge<'j>(&'j Journal);

impl Drop for UnrecordedPurge<'_> {
    fn drop(&mut self) {
        self.0.unrecorded.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts one who waits, for as long as it exists.
struct Waiter<'j>(&'j Journal);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Journal {
    /// The journal of this process under a prefix, with the budgets whose keys may have
    /// cooldowns. An earlier run may have left its
    /// position in the state directory.
    pub(crate) fn new(
        prefix: &str,
        name: &str,
        process: ProcessId,
        budgets: Arc<Budgets>,
        (state, clock): (&OpenedState, &Clock),
    ) -> Arc<Self> {
        let directory = state.directory();
        let file = directory.map_or(PositionFile::None, |directory| {
            file::read(directory.path(), directory.identity(), clock.system_time())
        });
        let (saved, predecessor, owed) = match file {
            PositionFile::None => (None, None, Vec::new()),
            PositionFile::Saved(saved, process) => (Some(saved), process, Vec::new()),
            PositionFile::Unreadable => {
                let why = "it cannot be read how far the last run had followed the journal";
                (None, None, vec![JournalEffect::PurgeEverything(why)])
            }
        };
        let tag = format!("{{{prefix}:j}}");
        let mut machine = JournalMachine::new(process, name.into(), saved, clock.since_boot());
        // It is known only if it had the directory, which this one has now: it has ended.
        machine.set_predecessor(predecessor);
        Arc::new(Self {
            keys: [tag.clone(), format!("{tag}:s"), format!("{tag}:u")],
            script: EngineScript::new(SYNC),
            machine: RwLock::new(machine),
            local: Mutex::new(LocalPurges::owing(owed)),
            prefix: prefix.into(),
            budgets,
            state: state.clone(),
            clock: clock.clone(),
            wake: Notify::new(),
            waiting: AtomicUsize::new(0),
            unrecorded: AtomicUsize::new(0),
            is_announced: AtomicBool::new(false),
            last_failure: watch::Sender::new(Some(SharedError::Absent)),
        })
    }

    /// Uses a configuration from now on: purges of others apply to its cache.
    pub(crate) fn learn(&self, meanings: &Meanings, cache: &Cache, disk: Arc<dyn PurgesOnDisk>) {
        lock(&self.local).learn(meanings, cache, disk);
    }

    /// For what is fetched from now on and stored elsewhere; `None` while the journal is
    /// not [in sync](Self::is_in_sync).
    pub(crate) fn position(&self) -> Option<JournalPosition> {
        let machine = read(&self.machine);
        self.is_synced(&machine)
            .then(|| machine.position())
            .flatten()
    }

    /// Whether all records were known at some time within the last [`IN_SYNC_WITHIN`].
    pub(crate) fn is_in_sync(&self) -> bool {
        self.is_synced(&read(&self.machine))
    }

    fn is_synced(&self, machine: &JournalMachine) -> bool {
        let synced = machine.synced_ago(self.clock.since_boot());
        synced.is_some_and(|ago| ago <= IN_SYNC_WITHIN)
    }

    /// Whether what was fetched at a position, for a target of a route, was not purged
    /// since, as far as is known here. `names` are those of the route and its tip. The
    /// subject's key is replaced.
    pub(crate) fn holds(
        &self,
        at: JournalPosition,
        (route, tip): (MeaningDigest, Option<MeaningDigest>),
        target: &str,
        subject: PurgeSubject<'_>,
    ) -> bool {
        let key = Key::of(0, target);
        let subject = PurgeSubject {
            key: key.as_bytes(),
            ..subject
        };
        // Before the records are read: a purge that is one by then is found there.
        if self.unrecorded.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let machine = read(&self.machine);
        let since = machine.since(at);
        since.is_some_and(|mut since| {
            !since.any(|record| match record {
                JournalRecord::Purge(purge) => purge.matches(route, tip, &subject),
                JournalRecord::Cooldown(_) | JournalRecord::Unknown => false,
            })
        })
    }

    /// Adds a record for all replicas. It is sent at once, and again until the engine has
    /// it. What it means must be in force here.
    pub(crate) fn append(&self, record: JournalRecord) -> RecordUid {
        let uid = write(&self.machine).append(record);
        self.wake.notify_one();
        uid
    }

    /// To be held from before a purge applies here until it is
    /// [appended](Self::append_purges).
    pub(crate) fn unrecorded_purge(&self) -> UnrecordedPurge<'_> {
        self.unrecorded.fetch_add(1, Ordering::SeqCst);
        UnrecordedPurge(self)
    }

    /// Adds purges that are in force here. Returns the last one.
    pub(crate) fn append_purges(&self, purges: &[Purge]) -> Option<RecordUid> {
        let local = lock(&self.local);
        let logged: Vec<_> = purges.iter().map(|purge| local.logged(purge)).collect();
        drop(local);
        let appended = logged.into_iter().map(JournalRecord::Purge);
        appended.map(|record| self.append(record)).last()
    }

    /// Waits, briefly, until all replicas that are there have applied this record and all
    /// earlier ones of this process.
    pub(crate) async fn reached(&self, uid: RecordUid) -> PurgeReach {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiter = Waiter(self);
        self.wake.notify_one();
        let mut requests = self.last_failure.subscribe();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reach = read(&self.machine).reach(uid);
            let is_done = reach.is_recorded && reach.is_listed && reach.waiting.is_empty();
            let changed = tokio::time::timeout_at(deadline, requests.changed());
            if is_done || !matches!(changed.await, Ok(Ok(()))) {
                let reach = read(&self.machine).reach(uid);
                let failure = self.last_failure.borrow().clone();
                let late = || "it has not taken the purge in time".to_owned();
                let why = || failure.map_or_else(late, |failure| failure.to_string());
                return PurgeReach {
                    applied: reach.applied,
                    not_reached: [reach.waiting, reach.silent].concat(),
                    engine: (!reach.is_recorded).then(why),
                };
            }
        }
    }

    /// Waits, briefly, until all that was purged while this replica was down is purged
    /// here. To be called before clients are served; without a position of an earlier run,
    /// nothing is waited for.
    pub(crate) fn catch_up(&self) {
        let is_behind = |machine: &JournalMachine| {
            machine.position().is_some() && machine.position_to_save().is_none()
        };
        let mut left = PATIENCE;
        while is_behind(&read(&self.machine)) && !left.is_zero() {
            std::thread::sleep(CATCH_UP_EVERY);
            left = left.saturating_sub(CATCH_UP_EVERY);
        }
    }

    /// The state now.
    pub(crate) fn report(&self) -> JournalReport {
        let now = self.clock.since_boot();
        let machine = read(&self.machine);
        let (position, counts) = (machine.position(), machine.counts());
        let (tail, waiting) = machine.lengths();
        let replicas = machine.others().iter().map(|other| {
            let is_there = other.silent <= others::SILENT;
            (other.name.clone(), other.applied, other.silent, is_there)
        });
        JournalReport {
            generation: position.map(|position| position.generation.hex()),
            applied: position.map_or(0, |position| position.record),
            tail,
            synced: machine.synced_ago(now),
            is_in_sync: self.is_synced(&machine),
            failure: self.last_failure.borrow().as_ref().map(ToString::to_string),
            waiting,
            records: [counts.sent, counts.received, counts.unknown],
            gaps: counts.gaps,
            generations: counts.generations,
            replicas: replicas.collect(),
        }
    }
}
