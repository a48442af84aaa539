//! What the writer thread does beside writing: it makes purges durable, writes what is
//! known of the chain and the time, and tries again what has failed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::counts::count;
use super::digest::MeaningDigest;
use super::files::bytes_of;
use super::tier::{TIME, Tier};
use super::{Disk, chain_file};
use crate::chain::KnownBlocks;
use crate::clock::Moment;

/// How often the time is written, and what was written to disk is made durable: so that
/// a full file has little left to be made durable.
const TIME_EVERY: Duration = Duration::from_secs(5);

/// What was known of a tip when its file was written.
struct Written {
    /// The number of the tip's state.
    state: u64,
    revision: u64,
    tip: Option<u32>,
    at: Moment,
}

impl Written {
    /// Whether the file need not be written again: no block is new, and lower blocks that
    /// answers have mentioned since can wait.
    fn is_recent(&self, known: &Self) -> bool {
        let is_same = (self.state, self.tip) == (known.state, known.tip);
        let can_wait = known.at < self.at + BLOCKS_EVERY;
        is_same && (self.revision == known.revision || can_wait)
    }
}

/// How often the blocks of a tip are written, where none is new.
const BLOCKS_EVERY: Duration = Duration::from_secs(30);

/// What the writer thread looks after.
#[derive(Default)]
pub(super) struct Upkeep {
    pub(super) current: Weak<Disk>,
    /// Whether purges are recorded.
    pub(super) records_purges: bool,
    /// The states of tips that were seeded.
    pub(super) seeded: HashSet<u64>,
    /// What was known of each tip when its file was written.
    written: HashMap<MeaningDigest, Written>,
    /// Whether the purge log has records that are not durable yet.
    synced: (u64, u64),
    /// When the time was last written.
    time_written: Moment,
    /// Whether the files of former tips were removed.
    pub(super) is_tidy: bool,
}

impl Tier {
    /// What is to be done every second: makes purges durable, writes what is known of the
    /// chain and the time, and tries again what has failed.
    pub(super) fn tick(&self) {
        if !self.logging.is_good() {
            return;
        }
        match self.try_tick() {
            Ok(()) => self.logging.succeed(),
            Err(error) => {
                count(&self.counts.errors);
                self.logging
                    .fail("the state directory cannot be written", &error);
            }
        }
    }

    /// The same for the last time, when all is written.
    pub(super) fn last_tick(&self) {
        let mut upkeep = self.upkeep();
        upkeep.time_written = Moment::default();
        upkeep.written.clear();
        drop(upkeep);
        self.tick();
    }

    fn try_tick(&self) -> io::Result<()> {
        let before = self.log.len();
        if self.log.maintain()? {
            tracing::warn!(
                "a new purge log begins: all responses that were stored on disk are discarded"
            );
            // All on disk is absent, so nothing there is older than what memory had.
            self.writes.forget_lost();
        } else if self.log.len() < before {
            let now = self.now().nanos();
            self.counts.last_compaction.store(now, Relaxed);
        }
        let mut upkeep = self.upkeep();
        let disk = upkeep.current.upgrade();
        // Before the log is made durable: a file with blocks of the new chain is never there
        // without the purge that their reorg has caused.
        let to_write = (disk.as_deref()).map_or_else(Vec::new, |disk| self.blocks(disk, &upkeep));
        let position = self.log.position();
        if upkeep.synced != position {
            self.log.sync()?;
            upkeep.synced = position;
        }
        let now = self.now();
        if upkeep.time_written + TIME_EVERY <= now {
            // The first time, the clock may have been set anew.
            let durable = upkeep.time_written == Moment::default();
            let reached = self.clock.reached();
            reached.write(&self.directory.join(TIME), durable)?;
            upkeep.time_written = now;
            if let Err(error) = self.engine.sync() {
                count(&self.counts.errors);
                let what = "stored responses cannot be written to disk";
                self.writing.fail(what, &error);
            }
            let others = bytes_of(&self.directory)?;
            self.counts.other_bytes.store(others, Relaxed);
        }
        if let Some(disk) = disk
            && !upkeep.is_tidy
        {
            chain_file::tidy(&self.directory, &disk.tips)?;
            upkeep.is_tidy = true;
        }
        for (digest, known, blocks) in to_write {
            chain_file::write(&self.directory, digest, &blocks)?;
            upkeep.written.insert(digest, known);
        }
        Ok(())
    }

    /// The blocks of each tip that are to be written.
    fn blocks(&self, disk: &Disk, upkeep: &Upkeep) -> Vec<(MeaningDigest, Written, KnownBlocks)> {
        let tips = (0..).zip(&disk.tips);
        let blocks = tips.filter_map(|(tip, digest)| {
            let known = Written {
                state: disk.chain.state_number(tip)?,
                revision: disk.chain.revision(tip),
                tip: disk.chain.tip_height(tip),
                at: self.now(),
            };
            let before = upkeep.written.get(digest);
            if known.revision == 0 || before.is_some_and(|before| before.is_recent(&known)) {
                return None;
            }
            Some((*digest, known, disk.chain.known_blocks(tip)?))
        });
        blocks.collect()
    }
}
