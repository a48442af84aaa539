//! What the writer thread does beside writing: it makes purges durable, writes what is
//! known of the chain and the time, removes what was removed in memory, and tries again
//! what has failed.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::io;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::counts::count;
use super::engine::EngineError;
use super::files::bytes_of;
use super::health::DiskHealth;
use super::purge_log::{Checked, Due};
use super::tier::{TIME, Tier};
use super::{Disk, chain_file};
use crate::chain::KnownBlocks;
use crate::clock::Moment;
use crate::portable::codec::decode_head;
use crate::portable::digest::MeaningDigest;

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
    /// The number of blocks that were written.
    blocks: usize,
}

impl Written {
    /// Whether the file need not be written again: no block is new, and lower blocks that
    /// answers have mentioned since can wait: half a millisecond for each block in the file,
    /// so that at most 80 kB a second are written. Until then a kill loses which height
    /// their hashes have, and responses to requests by hash are not found on disk.
    fn is_recent(&self, known: &Self) -> bool {
        let is_same = (self.state, self.tip) == (known.state, known.tip);
        let can_wait = known.at < self.at + Duration::from_millis(self.blocks as u64 / 2);
        is_same && (self.revision == known.revision || can_wait)
    }
}

/// What is used now. Never locked by anyone who waits for the disk.
#[derive(Default)]
pub(super) struct CurrentDisk {
    pub(super) disk: Weak<Disk>,
    /// The states of tips that were seeded.
    pub(super) seeded: HashSet<u64>,
    /// Whether the files of former tips were removed.
    pub(super) is_tidy: bool,
}

/// What the writer thread looks after.
#[derive(Default)]
pub(super) struct Upkeep {
    /// What was known of each tip when its file was written.
    written: HashMap<MeaningDigest, Written>,
    /// When the time was last written.
    time_written: Moment,
}

impl Tier {
    /// Writes to the purge log, until it is closed.
    pub(super) fn run_log(&self) {
        self.log.run(|error| self.log_fails(error));
    }

    /// Makes the purges and removals so far survive the machine's end. Returns whether
    /// what was checked against them may be kept.
    pub(super) fn make_purges_durable(&self) -> bool {
        let made = self.log.make_durable();
        if let Err(error) = &made {
            self.log_fails(error);
        }
        made.is_ok()
    }

    fn log_fails(&self, error: &io::Error) {
        count(&self.counts.errors);
        self.logging
            .fail("purges cannot be recorded on disk", error);
    }

    /// What is to be done every second: makes purges durable, writes what is known of the
    /// chain and the time, removes what was removed, and tries again what has failed.
    pub(super) fn tick(&self, upkeep: &mut Upkeep) {
        if self.logging.is_good() {
            let what = "the state directory cannot be written";
            self.note(&self.logging, what, self.try_tick(upkeep));
        }
        if self.removing.is_good() {
            let what = "stored responses cannot be removed from disk";
            self.note(&self.removing, what, self.carry_out());
        }
    }

    /// The same for the last time, when all is written, whatever has failed before.
    pub(super) fn last_tick(&self) {
        let what = "the state directory cannot be written";
        self.note(&self.logging, what, self.try_tick(&mut Upkeep::default()));
    }

    fn note<E: Display>(&self, health: &DiskHealth, what: &str, done: Result<(), E>) {
        match done {
            Ok(()) => health.succeed(),
            Err(error) => {
                count(&self.counts.errors);
                health.fail(what, &error);
            }
        }
    }

    fn try_tick(&self, upkeep: &mut Upkeep) -> io::Result<()> {
        let before = self.log.len();
        if self.log.maintain()? {
            tracing::warn!(
                "a new purge log begins: all responses that were stored on disk are discarded"
            );
        } else if self.log.len() < before {
            let now = self.now().nanos();
            self.counts.last_compaction.store(now, Relaxed);
        }
        let disk = self.current().disk.upgrade();
        // Before the blocks: a purge that comes meanwhile counts as one that they may not know.
        let (purge, _) = self.log.position();
        // Before the log is made durable: a file with blocks of the new chain is never there
        // without the purge that their reorg has caused.
        let to_write = (disk.as_deref()).map_or_else(Vec::new, |disk| self.blocks(disk, upkeep));
        self.log.make_durable()?;
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
        if let Some(disk) = disk {
            let is_tidy = std::mem::replace(&mut self.current().is_tidy, true);
            if !is_tidy && let Err(error) = chain_file::tidy(&self.directory, &disk.tips) {
                self.current().is_tidy = false;
                return Err(error);
            }
        }
        for (digest, known, blocks) in to_write {
            chain_file::write(&self.directory, digest, (&blocks, purge))?;
            upkeep.written.insert(digest, known);
        }
        Ok(())
    }

    /// The blocks of each tip that are to be written.
    fn blocks(&self, disk: &Disk, upkeep: &Upkeep) -> Vec<(MeaningDigest, Written, KnownBlocks)> {
        let tips = (0..).zip(&disk.tips);
        let blocks = tips.filter_map(|(tip, digest)| {
            let mut known = Written {
                state: disk.chain.state_number(tip)?,
                revision: disk.chain.revision(tip),
                tip: disk.chain.tip_height(tip),
                at: self.now(),
                blocks: 0,
            };
            let before = upkeep.written.get(digest);
            if known.revision == 0 || before.is_some_and(|before| before.is_recent(&known)) {
                return None;
            }
            let blocks = disk.chain.known_blocks(tip)?;
            known.blocks = blocks.blocks.len();
            Some((*digest, known, blocks))
        });
        blocks.collect()
    }

    /// Removes from disk what was removed or purged by its key, and what is older than
    /// what memory has had. Then neither need be remembered.
    pub(super) fn carry_out(&self) -> Result<(), EngineError> {
        let (due, done) = self.log.due();
        let lost = self.writes.lost();
        let mut keys = lost.clone();
        keys.extend(due.iter().filter_map(|(key, due)| self.outdated(key, *due)));
        if keys.is_empty() && due.is_empty() {
            return Ok(());
        }
        self.engine.remove_batch(&keys)?;
        self.writes.forget_lost(&lost);
        if !due.is_empty() {
            self.log.have_carried_out(done);
        }
        Ok(())
    }

    /// A key, if what is kept under it is not newer than a purge or a removal.
    fn outdated(&self, key: &[u8; 16], due: Due) -> Option<[u8; 16]> {
        let is_newer = |value: &[u8]| {
            let head = decode_head::<Checked>(value);
            head.is_some_and(|(head, _)| !due.applies_to(head.checked))
        };
        match self.engine.get(key) {
            Ok(None) => None,
            Ok(Some(value)) if is_newer(&value) => None,
            // What cannot be read may be removed as well.
            Ok(Some(_)) | Err(_) => Some(*key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::key::Key;
    use crate::cache::policy::Mode;
    use crate::cache::purge::{Purge, PurgeRecorder};
    use crate::clock::Clock;
    use crate::disk::RouteMeaning;
    use crate::portable::codec::{Head, Kept, encode};

    const ROUTE: u16 = 1;
    const DIGEST: MeaningDigest = MeaningDigest([5; 32]);

    fn key(target: &str) -> Key {
        Key::of(ROUTE, target)
    }

    fn checked(tier: &Tier) -> Checked {
        let (purge, removal) = tier.log.position();
        tier.checked(purge, removal).unwrap()
    }

    /// Keeps something for a target. Returns what it was checked against.
    fn keep(tier: &Tier, target: &str) -> Checked {
        let checked = checked(tier);
        let head = Head {
            checked,
            route: DIGEST,
            target,
        };
        let value = encode(&head, &Kept::Variants(Vec::new()));
        tier.engine
            .put_batch(&[(DIGEST.key_of(target), value)])
            .unwrap();
        checked
    }

    fn has(tier: &Tier, target: &str) -> bool {
        tier.engine.get(&DIGEST.key_of(target)).unwrap().is_some()
    }

    #[tokio::test]
    async fn removals_and_purges_of_keys_remove_what_they_name_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let tier = Tier::open(directory.path(), 64 << 20, 0, Clock::manual()).unwrap();
        let route = RouteMeaning {
            digest: DIGEST,
            name: DIGEST,
            mode: Mode::Respect,
            tip: 0,
            tip_digest: None,
        };
        tier.learn(&HashMap::from([(ROUTE, route)]), &[]);
        let other = keep(&tier, "/other");
        for target in ["/removed", "/purged", "/again"] {
            keep(&tier, target);
        }
        tier.remove(0, key("/removed").as_bytes());
        tier.remove(1, key("/again").as_bytes());
        keep(&tier, "/again");
        let purge = |target: &str| Purge::Target {
            route: ROUTE,
            target: target.into(),
        };
        tier.purge(1, &purge("/purged"));
        tier.carry_out().unwrap();
        let targets = ["/removed", "/purged", "/again", "/other"];
        assert_eq!(
            targets.map(|target| has(&tier, target)),
            [false, false, true, true]
        );
        // More than are remembered.
        for number in 2..40_000 {
            tier.remove(number, key(&format!("/{number}")).as_bytes());
            if number % 4000 == 0 {
                tier.carry_out().unwrap();
            }
        }
        for number in 2..10_000 {
            tier.purge(number, &purge(&format!("/{number}")));
            if number % 1000 == 0 {
                tier.carry_out().unwrap();
            }
        }
        tier.carry_out().unwrap();
        assert!(tier.log.may_hold(other, &DIGEST.key_of("/other")));
        assert!(has(&tier, "/other"));
        tier.close(Duration::from_secs(30));
    }

    #[tokio::test]
    async fn what_was_written_is_made_durable_every_few_seconds() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::manual();
        let tier = Tier::open(directory.path(), 64 << 20, 0, clock.clone()).unwrap();
        // Whatever the writer thread does meanwhile.
        let mut upkeep = Upkeep::default();
        tier.tick(&mut upkeep);
        for _ in 0..3 {
            keep(&tier, "/a");
            clock.advance(TIME_EVERY);
            tier.tick(&mut upkeep);
            assert!(tier.engine.is_durable());
        }
        tier.close(Duration::from_secs(30));
    }
}
