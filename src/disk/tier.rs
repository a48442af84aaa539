//! The tier: its files, its threads, and what survives reloads.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{fmt, io, thread};

use super::counts::{Counts, DiskPauses, DiskSnapshot, count};
use super::engine::{Engine, Recovered};
use super::health::{DiskHealth, MAX_PAUSE};
use super::purge_log::{Begun, Checked, NO_KEY, PurgeLog};
use super::reads::{self, Reads};
use super::time::{DiskClock, Reached};
use super::upkeep::CurrentDisk;
use super::writes::{TICK, Writes};
use super::{Disk, chain_file};
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::clock::{Clock, Moment};
use crate::portable::names::Names;
use crate::state_dir::RESPONSES;
use crate::sync::lock;

/// The state on disk.
pub struct Tier {
    pub(super) directory: PathBuf,
    max_bytes: u64,
    recovered: u64,
    pub(super) engine: Engine,
    pub(super) log: PurgeLog,
    /// The log's position when it was opened. Numbers of purges and removals in memory
    /// begin anew with each process; in the log they go on from there.
    begun_at: (u64, u64),
    pub(super) clock: DiskClock,
    machine: Clock,
    /// When it was opened.
    opened: Moment,
    /// Whether responses can be read.
    pub(super) reading: DiskHealth,
    /// Whether responses can be written.
    pub(super) writing: DiskHealth,
    /// Whether the purge log and the other small files can be written.
    pub(super) logging: DiskHealth,
    /// Whether what was removed can be removed from disk.
    pub(super) removing: DiskHealth,
    pub(super) counts: Counts,
    pub(super) reads: Reads<Arc<Disk>>,
    pub(super) writes: Writes,
    pub(super) names: Mutex<Names>,
    current: Mutex<CurrentDisk>,
}

/// What of the bytes is for everything but stored responses: the purge log, while it is
/// written anew twice; what is known of the chain, each file while it is written anew; and
/// what keys have spent, the same.
const fn reserved(tips: usize) -> u64 {
    let files = tips as u64 + chain_file::MOST_FORMER as u64;
    3 * super::purge_log::MOST_BYTES + 2 * files * chain_file::MOST_BYTES + (2 << 20)
}

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
    /// Opens what is in a directory, of at most `max_bytes`, and starts the threads. `tips`
    /// is the number of tips whose blocks are kept.
    ///
    /// # Errors
    /// If that is not possible. The directory is not used then.
    pub fn open(
        directory: &Path,
        max_bytes: u64,
        tips: usize,
        clock: Clock,
    ) -> Result<Arc<Self>, OpenError> {
        let in_file = |name: &str| {
            let path = directory.join(name);
            move |error| OpenError::File { path, error }
        };
        let room = max_bytes.saturating_sub(reserved(tips));
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
        let reached = Reached::read(&directory.join(TIME));
        let (disk_clock, why) = DiskClock::after(reached, recovered > 0, clock.clone());
        if let Some(why) = why {
            tracing::warn!("{why}: what was stored on disk and is fresh for a time is discarded");
        }
        let tier = Arc::new(Self {
            directory: directory.to_owned(),
            max_bytes,
            recovered,
            engine,
            begun_at: log.position(),
            log,
            clock: disk_clock,
            opened: clock.now(),
            reading: DiskHealth::new("reading", MAX_PAUSE, clock.clone()),
            writing: DiskHealth::new("writing", MAX_PAUSE, clock.clone()),
            logging: DiskHealth::new("purges", TICK, clock.clone()),
            removing: DiskHealth::new("removals", TICK, clock.clone()),
            machine: clock,
            counts: Counts::default(),
            reads: Reads::new(),
            writes: Writes::new(),
            names: Mutex::default(),
            current: Mutex::default(),
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
            .and_then(|()| spawn("purge-log", Self::run_log))
            .and_then(|()| spawn("disk-write", Self::run_writer));
        if started.is_err() {
            self.reads.close();
            self.log.close();
        }
        started
    }

    /// Uses a configuration from now on, whose names are known. What an earlier run knew of
    /// its tips is read.
    pub(super) fn begin(self: &Arc<Self>, disk: &Arc<Disk>) {
        for (tip, digest) in (0..).zip(&disk.tips) {
            let is_new = disk
                .chain
                .state_number(tip)
                .is_some_and(|number| self.current().seeded.insert(number));
            if !is_new {
                continue;
            }
            match chain_file::read(&self.directory, *digest) {
                Ok(Some((mut known, purge))) => {
                    // An answer of a later chain may be there, of whose blocks the file
                    // knows those of before.
                    known.cut_off(self.log.reorg_since(purge, *digest));
                    if let Some(from) = disk.chain.seed(tip, &known) {
                        let (tip_of, to) = (Some(tip), u32::MAX);
                        let store = disk.cache.store();
                        store.purge(Purge::Heights {
                            tip: tip_of,
                            from,
                            to,
                        });
                        disk.chain.purged(tip);
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    %error,
                    "what an earlier run knew of the chain cannot be read: what it stored counts as stale"
                ),
            }
        }
        let mut current = self.current();
        current.disk = Arc::downgrade(disk);
        current.is_tidy = false;
        drop(current);
        self.forget_routes(disk);
    }

    /// Makes all that was stored so far absent: not all purges and removals up to a
    /// position in memory are known. The log goes on from their numbers.
    pub(super) fn discard_before(&self, (purge, removal): (u64, u64)) {
        if purge > 0 {
            self.purge(purge, &Purge::All);
        }
        if let Some(last) = removal.checked_sub(1) {
            let (_, last) = self.logged((0, last));
            self.log.remove(last, NO_KEY);
        }
        self.log
            .discard(&"too much was purged before it could be recorded");
    }

    /// The numbers of a purge and a removal in memory, as they are in the log.
    pub(super) fn logged(&self, (purge, removal): (u64, u64)) -> (u64, u64) {
        let begun = self.begun_at;
        (
            begun.0.saturating_add(purge),
            begun.1.saturating_add(removal),
        )
    }

    /// What is stored now was checked against, by numbers in memory; `None` if nothing can
    /// be kept.
    pub(super) fn checked(&self, purge: u64, removal: u64) -> Option<Checked> {
        let log = self.log.id()?;
        let (purge, removal) = self.logged((purge, removal));
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

    /// Waits, briefly, until all purges and removals so far would outlive the process. If
    /// the disk takes too long, whoever has caused them is answered all the same.
    pub(super) async fn recorded(&self) {
        let _in_time = self.log.recorded().await;
    }

    /// Makes all purges so far survive the machine's end. It waits for the disk.
    ///
    /// # Errors
    /// If that fails: what was purged may come back after a restart.
    pub(crate) fn sync_purges(&self) -> io::Result<()> {
        self.log
            .sync()
            .inspect_err(|_error| count(&self.counts.errors))
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
        self.log.close();
    }

    /// A snapshot for `/status`.
    pub(crate) fn snapshot(&self) -> DiskSnapshot {
        let counts = &self.counts;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let ago = |at: &std::sync::atomic::AtomicU64| {
            let at = Moment::from_nanos(read(at));
            (at > Moment::default()).then(|| self.age(at).as_secs())
        };
        DiskSnapshot {
            bytes: self.engine.bytes() + read(&counts.other_bytes),
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
            last_eviction_seconds_ago: ago(&counts.last_eviction),
            last_compaction_seconds_ago: ago(&counts.last_compaction),
            queued: self.writes.len() as u64,
            errors: read(&counts.errors),
            paused: DiskPauses {
                reading: !self.reading.is_good(),
                writing: !self.writing.is_good(),
                purges: !self.logging.is_good(),
            },
            last_purge: self.log.position().0,
            purge_log_bytes: self.log.len(),
            unrecorded_purges: self.log.unrecorded(),
        }
    }

    pub(super) fn current(&self) -> MutexGuard<'_, CurrentDisk> {
        lock(&self.current)
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

/// The names of the files.
pub(super) const PURGES: &str = "purges";
pub(super) const TIME: &str = "time";
