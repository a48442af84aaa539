//! The tier: its files, its threads, and what survives reloads.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use std::{io, thread};

use super::bytes::{Reader, put_record, take_record};
use super::chain_file;
use super::counts::{Counts, DiskSnapshot, count};
use super::digest::Digest;
use super::engine::{Engine, Recovered};
use super::files::replace;
use super::health::Health;
use super::purge_log::{Begun, Checked, LoggedPurge, PurgeLog};
use super::reads::{self, Reads};
use super::time::DiskClock;
use super::writes::Writes;
use super::{Disk, RouteOnDisk};
use crate::cache::key::{route_of, target_of};
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// The state on disk.
pub struct Tier {
    directory: PathBuf,
    max_bytes: u64,
    recovered: u64,
    pub(super) engine: Engine,
    pub(super) log: PurgeLog,
    pub(super) clock: DiskClock,
    machine: Clock,
    /// When it was opened.
    opened: Moment,
    /// Whether responses can be read.
    pub(super) reading: Health,
    /// Whether anything can be written.
    pub(super) writing: Health,
    pub(super) counts: Counts,
    pub(super) reads: Reads<Arc<Disk>>,
    pub(super) writes: Writes,
    names: Mutex<Names>,
    upkeep: Mutex<Upkeep>,
}

/// What the numbers of routes and tips mean, for the purge log.
#[derive(Default)]
struct Names {
    /// A number means the same for as long as the process runs.
    routes: HashMap<u16, Digest>,
    /// `None` where a number has meant several tips.
    tips: Vec<Option<Digest>>,
}

/// What the writer thread looks after.
#[derive(Default)]
struct Upkeep {
    current: Weak<Disk>,
    /// Whether purges are recorded.
    records_purges: bool,
    /// The states of tips that were seeded.
    seeded: HashSet<u64>,
    /// What was known of each tip when its file was written.
    written: HashMap<Digest, (u64, u64)>,
    /// Whether the purge log has records that are not durable yet.
    synced: (u64, u64),
    /// When the time was last written.
    time_written: Moment,
}

/// What of the bytes is for everything but stored responses: the purge log, while it is
/// written anew twice, what is known of the chain, and what keys have spent.
const RESERVED: u64 = 3 * super::purge_log::MOST_BYTES;

/// How often the time is written.
const TIME_EVERY: Duration = Duration::from_secs(5);

/// Why the tier cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] super::engine::EngineError),
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Tier {
    /// Opens what is in a directory, of at most `max_bytes`, and starts the threads.
    ///
    /// # Errors
    /// If that is not possible. The directory is not used then.
    pub fn open(directory: &Path, max_bytes: u64, clock: Clock) -> Result<Arc<Self>, OpenError> {
        let in_file = |name: &str| {
            let path = directory.join(name);
            move |error| OpenError::File { path, error }
        };
        let room = max_bytes.saturating_sub(RESERVED);
        let (engine, found) = Engine::open(&directory.join(RESPONSES), room)?;
        report(&found);
        let recovered = found.entries;
        let log = PurgeLog::open(&directory.join(PURGES));
        let (log, begun) = log.map_err(in_file(PURGES))?;
        match begun {
            Begun::Unreadable(why) => tracing::warn!(
                entries = recovered,
                "the purge log on disk cannot be read, since {why}: all responses that were stored on disk are discarded"
            ),
            Begun::New if recovered > 0 => tracing::warn!(
                entries = recovered,
                "there is no purge log on disk: all responses that were stored on disk are discarded"
            ),
            Begun::Continued | Begun::New => {}
        }
        let disk_clock = DiskClock::after(read_time(&directory.join(TIME)), clock.clone());
        if disk_clock.was_set_back() {
            tracing::warn!(
                "the time of day is before that of the last run: what was stored on disk and is fresh for a time is discarded"
            );
        }
        let tier = Arc::new(Self {
            directory: directory.to_owned(),
            max_bytes,
            recovered,
            engine,
            log,
            clock: disk_clock,
            opened: clock.now(),
            reading: Health::new("reading", clock.clone()),
            writing: Health::new("writing", clock.clone()),
            machine: clock,
            counts: Counts::default(),
            reads: Reads::new(),
            writes: Writes::new(),
            names: Mutex::default(),
            upkeep: Mutex::default(),
        });
        tier.start_threads().map_err(in_file(""))?;
        tracing::info!(
            directory = %directory.display(),
            entries = recovered,
            bytes = tier.engine.bytes(),
            "stored responses are kept on disk"
        );
        Ok(tier)
    }

    fn start_threads(self: &Arc<Self>) -> io::Result<()> {
        let spawn = |name: &str, work: fn(&Self)| {
            let tier = self.clone();
            let thread = thread::Builder::new().name(format!("ordgate-{name}"));
            thread.spawn(move || work(&tier)).map(drop)
        };
        let started = (0..reads::THREADS)
            .try_for_each(|_| spawn("disk-read", Self::run_reader))
            .and_then(|()| spawn("disk-write", Self::run_writer));
        if started.is_err() {
            self.reads.close();
        }
        started
    }

    /// Uses a configuration from now on. What an earlier run knew of its tips is read.
    pub(super) fn begin(self: &Arc<Self>, disk: &Arc<Disk>) {
        self.learn(&disk.routes, &disk.tips);
        for (tip, digest) in (0..).zip(&disk.tips) {
            let is_new = disk
                .chain
                .state_number(tip)
                .is_some_and(|number| self.upkeep().seeded.insert(number));
            if !is_new {
                continue;
            }
            match chain_file::read(&self.directory, *digest) {
                Ok(Some(blocks)) => disk.chain.seed(tip, &blocks),
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    %error,
                    "what an earlier run knew of the chain cannot be read: what it stored counts as stale"
                ),
            }
        }
        let mut upkeep = self.upkeep();
        upkeep.current = Arc::downgrade(disk);
        let is_first = !std::mem::replace(&mut upkeep.records_purges, true);
        drop(upkeep);
        if is_first {
            let position = self.log.position();
            disk.cache.store().record(self.clone(), position);
        }
        self.forget_routes(disk);
    }

    /// Purges what was kept for routes that were not there last: they have been there
    /// before, and what was kept may have been purged meanwhile under another meaning.
    fn forget_routes(&self, disk: &Disk) {
        let mut present: Vec<_> = disk.routes.values().map(|route| route.digest).collect();
        present.sort_unstable_by_key(|digest| digest.0);
        let before = self.log.routes();
        if before == present {
            return;
        }
        let is_new = |route: &&Digest| !before.is_empty() && !before.contains(route);
        for new in present.iter().filter(is_new) {
            self.names().routes.insert(NEW, *new);
            disk.cache.store().purge(Purge::Route(NEW));
        }
        if !self.log.set_routes(present) {
            count(&self.counts.errors);
            self.writing
                .fail("purges cannot be recorded on disk", &"see above");
        }
    }

    /// Learns what the numbers of routes and tips mean.
    fn learn(&self, routes: &HashMap<u16, RouteOnDisk>, tips: &[Digest]) {
        let mut names = self.names();
        for (number, route) in routes {
            names.routes.insert(*number, route.digest);
        }
        for (at, tip) in tips.iter().enumerate() {
            match names.tips.get_mut(at) {
                Some(known) if *known != Some(*tip) => *known = None,
                Some(_) => {}
                None => names.tips.push(Some(*tip)),
            }
        }
    }

    /// What is stored now was checked against; `None` if nothing can be kept.
    pub(super) fn checked(&self, purge: u64, removal: u64) -> Option<Checked> {
        let log = self.log.id()?;
        Some(Checked {
            log,
            purge,
            removal,
        })
    }

    /// Whether memory has, or had, something newer for a key than the disk.
    pub(super) fn is_replaced(&self, key: &[u8; 16]) -> bool {
        self.writes.is_replaced(key)
    }

    pub(super) fn now(&self) -> Moment {
        self.machine.now()
    }

    /// The time since a moment.
    pub(super) fn age(&self, since: Moment) -> Duration {
        self.now().since(since)
    }

    /// The time since the tier was opened.
    pub(crate) fn since_opened(&self) -> Duration {
        self.age(self.opened)
    }

    /// Whether something is kept under a key of a route, for `/explain`.
    pub(super) fn has(&self, key: &[u8; 16]) -> bool {
        self.reading.is_good() && matches!(self.engine.get(key), Ok(Some(_)))
    }

    /// Makes all purges so far survive the machine's end. It waits for the disk.
    ///
    /// # Errors
    /// If that fails: what was purged may come back after a restart.
    pub(crate) fn sync_purges(&self) -> io::Result<()> {
        self.log.sync().inspect_err(|error| {
            count(&self.counts.errors);
            self.writing
                .fail("purges cannot be recorded on disk", error);
        })
    }

    /// Writes what waits, for at most this long, and ends the threads.
    pub fn close(&self, patience: Duration) {
        self.reads.close();
        let until = tokio::time::Instant::now() + patience;
        if !self.writes.close(until) {
            tracing::warn!(
                responses = self.writes.len(),
                "not all responses could be written to disk in time"
            );
        }
    }

    /// A snapshot for `/status`.
    pub(crate) fn snapshot(&self) -> DiskSnapshot {
        let counts = &self.counts;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        DiskSnapshot {
            bytes: self.engine.bytes(),
            max_bytes: self.max_bytes,
            entries: self.engine.entries(),
            recovered: self.recovered,
            hits: read(&counts.hits),
            misses: read(&counts.misses),
            unchecked: read(&counts.unchecked),
            outdated: read(&counts.outdated),
            discarded: read(&counts.discarded) + self.engine.unreadable(),
            skipped: read(&counts.skipped),
            late: read(&counts.late),
            written: read(&counts.written),
            dropped: read(&counts.dropped),
            evicted: self.engine.evicted(),
            queued: self.writes.len() as u64,
            errors: read(&counts.errors),
            paused: self.reading.is_failing() || self.writing.is_failing(),
            last_purge: self.log.position().0,
            purge_log_bytes: self.log.len(),
        }
    }

    /// What is to be done every second: makes purges durable, writes what is known of the
    /// chain and the time, and tries again what has failed.
    pub(super) fn tick(&self) {
        if !self.writing.is_good() {
            return;
        }
        if let Err(error) = self.try_tick() {
            count(&self.counts.errors);
            self.writing
                .fail("the state directory cannot be written", &error);
        }
    }

    /// The same for the last time, when all is written.
    pub(super) fn last_tick(&self) {
        self.upkeep().time_written = Moment::default();
        self.tick();
    }

    fn try_tick(&self) -> io::Result<()> {
        if self.log.maintain()? {
            tracing::warn!(
                "a new purge log begins: all responses that were stored on disk are discarded"
            );
        }
        let mut upkeep = self.upkeep();
        let position = self.log.position();
        if upkeep.synced != position {
            self.log.sync()?;
            upkeep.synced = position;
        }
        let now = self.now();
        if upkeep.time_written + TIME_EVERY <= now {
            self.write_time()?;
            upkeep.time_written = now;
        }
        let Some(disk) = upkeep.current.upgrade() else {
            return Ok(());
        };
        for (tip, digest) in (0..).zip(&disk.tips) {
            let Some(number) = disk.chain.state_number(tip) else {
                continue;
            };
            let known = (number, disk.chain.revision(tip));
            if known.1 == 0 || upkeep.written.get(digest) == Some(&known) {
                continue;
            }
            if let Some(blocks) = disk.chain.known_blocks(tip) {
                chain_file::write(&self.directory, *digest, &blocks)?;
                upkeep.written.insert(*digest, known);
            }
        }
        Ok(())
    }

    fn write_time(&self) -> io::Result<()> {
        let mut bytes = Vec::new();
        put_record(&mut bytes, &self.clock.now().millis.to_le_bytes());
        replace(&self.directory.join(TIME), &bytes, false).map(drop)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        lock(&self.upkeep)
    }
}

impl PurgeRecorder for Tier {
    fn purge(&self, number: u64, purge: &Purge) {
        let logged = self.names().logged(purge);
        if !self.log.purge(number, logged) {
            count(&self.counts.errors);
            self.writing
                .fail("purges cannot be recorded on disk", &"see above");
        }
    }

    fn remove(&self, number: u64, key: &[u8]) {
        let digest = self.names().routes.get(&route_of(key)).copied();
        // Every number is recorded, even of a route that nothing is kept for.
        let key = digest.map_or([0; 16], |digest| digest.key_of(target_of(key)));
        if !self.log.remove(number, key) {
            count(&self.counts.errors);
            self.writing
                .fail("purges cannot be recorded on disk", &"see above");
        }
    }
}

impl Names {
    fn logged(&self, purge: &Purge) -> LoggedPurge {
        let (route, tip) = match purge {
            Purge::All | Purge::Text(_) => (None, None),
            Purge::Heights { tip, .. } => {
                let tip = tip.and_then(|tip| self.tips.get(usize::from(tip)).copied());
                (None, tip.flatten())
            }
            Purge::Route(route)
            | Purge::Target { route, .. }
            | Purge::Segment { route, .. }
            | Purge::Path { route, .. } => match self.routes.get(route) {
                Some(digest) => (Some(*digest), None),
                // No route of the process has it.
                None => return LoggedPurge::new(&Purge::All, None, None),
            },
        };
        LoggedPurge::new(purge, route, tip)
    }
}

/// Logs what was found of which nothing can be used.
fn report(found: &Recovered) {
    if found.discarded > 0 {
        tracing::warn!(
            files = found.discarded,
            of_another_version = found.other_version,
            "files of responses on disk were deleted, since they cannot be read"
        );
    }
    if let Some(name) = &found.foreign_name {
        tracing::warn!(
            files = found.foreign,
            name,
            "the state directory has files that are not ordgate's: they are left alone"
        );
    }
}

/// The time that the last run had reached; 0 if that is not known.
fn read_time(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap_or_default();
    let time = take_record(&mut Reader(&bytes)).and_then(|content| Reader(content).u64());
    time.unwrap_or(0)
}

/// A number that no route has: it stands for one that was not there last.
const NEW: u16 = u16::MAX;

/// The names of the files.
const RESPONSES: &str = "responses";
const PURGES: &str = "purges";
const TIME: &str = "time";
