//! Sends sync requests to the engine, and saves the position.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cooldown::{CooldownRecord, MOST_WAITING_COOLDOWNS, longest};
use super::machine::{JournalEffect, JournalMachine};
use super::position::JournalPosition;
use super::record::JournalRecord;
use super::sync::{MOST_AT_ONCE, SyncReply};
use super::{Journal, file};
use crate::clock::Moment;
use crate::shared::engine::SharedError;
use crate::shared::engine::server::RedisEngine;
use crate::sync::{lock, read, write};

/// The time between two sync requests while new records are announced, and while they are not.
const ROUND: Duration = Duration::from_millis(200);
const UNANNOUNCED_ROUND: Duration = Duration::from_millis(50);
/// The same while somebody waits for other replicas.
const WAITING_ROUND: Duration = Duration::from_millis(10);
/// The pause after a sync request that was not answered.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// The pause after the journal has begun anew, twice as long for each further time in a
/// row: an engine that keeps losing its keys is not asked all the time.
const AFTER_NEW: Duration = Duration::from_millis(5);
const LONGEST_AFTER_NEW: Duration = Duration::from_millis(320);

/// How long the engine holds the call that waits for new records.
const BLOCK: Duration = Duration::from_millis(400);
/// The pause after records were announced, and after such a call has failed.
const AFTER_RECORDS: Duration = Duration::from_millis(5);
const AFTER_BROKEN: Duration = Duration::from_millis(100);

/// How often the position is saved, and how often if it has not changed.
const SAVE_EVERY: Duration = Duration::from_secs(1);
const SAVE_UNCHANGED: Duration = Duration::from_secs(10);

/// How many sync requests are sent at most before the process ends.
const LAST_REQUESTS: usize = 20;

/// What a sync request has shown of the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Synced {
    /// Another request should follow at once: something was read, or is left to read or to send.
    More,
    /// It has begun anew.
    New,
    /// Nothing is left.
    All,
}

impl Journal {
    /// Follows the journal until it is dropped. `announcer` is the engine by a connection
    /// of its own.
    pub(in crate::shared) async fn run(&self, engine: &RedisEngine, announcer: &RedisEngine) {
        tokio::join!(
            self.send_requests(engine),
            self.await_records(announcer),
            self.save_positions()
        );
    }

    /// Sends what waits, and removes the row of this process, which is about to end.
    pub(in crate::shared) async fn leave(&self, engine: &RedisEngine) {
        for _ in 0..LAST_REQUESTS {
            let left = self.exchange(engine, false, true).await;
            if left.is_err() || !read(&self.machine).has_more() {
                break;
            }
        }
        let unsent = read(&self.machine).unsent();
        if unsent > 0 {
            tracing::error!(
                purges = unsent,
                "the engine does not have the last purges, so other replicas do not apply them: purge there"
            );
        }
    }

    async fn send_requests(&self, engine: &RedisEngine) {
        let mut after_new = AFTER_NEW;
        loop {
            let waits = self.waiting.load(Ordering::Relaxed) > 0;
            let synced = self.exchange(engine, waits, false).await;
            if synced == Ok(Synced::New) {
                // Not to be ended early: the announcer does so while the engine loses its keys.
                tokio::time::sleep(after_new).await;
                after_new = (after_new * 2).min(LONGEST_AFTER_NEW);
                continue;
            }
            after_new = AFTER_NEW;
            let pause = match synced {
                Err(_) => {
                    tokio::time::sleep(AFTER_FAILURE).await;
                    continue;
                }
                // What was read is acknowledged at once.
                Ok(Synced::More | Synced::New) => Duration::ZERO,
                Ok(Synced::All) if self.waiting.load(Ordering::Relaxed) > 0 => WAITING_ROUND,
                Ok(Synced::All) => match self.is_announced.load(Ordering::Relaxed) {
                    true => ROUND,
                    false => UNANNOUNCED_ROUND,
                },
            };
            let _whichever = tokio::time::timeout(pause, self.wake.notified()).await;
        }
    }

    /// One sync request and its reply, whose effects are in force then.
    async fn exchange(
        &self,
        engine: &RedisEngine,
        list: bool,
        leave: bool,
    ) -> Result<Synced, SharedError> {
        let request = {
            let mut machine = write(&self.machine);
            self.add_cooldowns(&mut machine);
            machine.next_request(self.clock.since_boot(), list, leave)
        };
        let keys = [&*self.keys[0], &*self.keys[1], &*self.keys[2]];
        let answer = engine.run(&self.script, &keys, &request.arguments()).await;
        let reply =
            answer.and_then(|value| SyncReply::read(&value).ok_or_else(|| engine.unreadable()));
        let mut machine = write(&self.machine);
        let (failure, done) = match reply {
            Ok(reply) => {
                let before = machine.position();
                let effects = machine.answered(self.clock.since_boot(), request.sequence, reply);
                // Under the lock: whoever sees the new position sees what it means.
                let local = lock(&self.local);
                for effect in effects {
                    match effect {
                        JournalEffect::CoolDown(budget, left) => {
                            let budget = (&*self.prefix, &*budget);
                            let now = self.clock.now();
                            self.budgets.receive_cooldown(budget, left, now);
                        }
                        purge @ (JournalEffect::PurgeEverything(_) | JournalEffect::Apply(_)) => {
                            local.apply(purge);
                        }
                    }
                }
                let now = machine.position();
                let generation = |at: Option<JournalPosition>| at.map(|at| at.generation);
                let synced = match () {
                    () if before.is_some() && generation(now) != generation(before) => Synced::New,
                    () if now != before || machine.has_more() => Synced::More,
                    () => Synced::All,
                };
                (None, Ok(synced))
            }
            Err(error) => {
                machine.lost(request.sequence);
                (Some(error.clone()), Err(error))
            }
        };
        drop(machine);
        self.last_failure.send_replace(failure);
        done
    }

    /// Adds records of the cooldowns that other replicas do not know; those of one host
    /// replace each other while the engine does not answer.
    fn add_cooldowns(&self, machine: &mut JournalMachine) {
        let Some(engine_ms) = machine.engine_time(self.clock.since_boot()) else {
            return;
        };
        if !self.is_synced(machine) || machine.lengths().1 > MOST_AT_ONCE {
            return;
        }
        let cooldowns = self.budgets.take_cooldowns(&self.prefix, self.clock.now());
        let room = MOST_WAITING_COOLDOWNS.saturating_sub(machine.lengths().1);
        let (cooldowns, left_out) = longest(cooldowns, room);
        if left_out > 0 {
            tracing::warn!(
                left_out,
                "too many keys have cooldowns at once: the shortest are not sent to other replicas"
            );
        }
        for (budget, left) in cooldowns {
            if let Some(record) = CooldownRecord::new(&budget, left, engine_ms) {
                machine.append(JournalRecord::Cooldown(record));
            }
        }
    }

    /// Has a sync request sent as soon as the stream has a new record.
    async fn await_records(&self, announcer: &RedisEngine) {
        loop {
            let position = read(&self.machine).read_up_to();
            let after = format!("{position}-0");
            let waited = announcer.wait_for_entry(&self.keys[1], &after, BLOCK).await;
            self.is_announced.store(waited.is_ok(), Ordering::Relaxed);
            let pause = match waited {
                Ok(false) => continue,
                Ok(true) => {
                    self.wake.notify_one();
                    // What sync requests do not read would be announced again at once.
                    match self.last_failure.borrow().is_some() {
                        true => AFTER_BROKEN,
                        false => AFTER_RECORDS,
                    }
                }
                Err(_) => AFTER_BROKEN,
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn save_positions(&self) {
        let mut last = None;
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            let (position, synced) = {
                let machine = read(&self.machine);
                (
                    machine.position_to_save(),
                    machine.synced_ago(self.clock.since_boot()),
                )
            };
            let now = self.clock.now();
            let is_same = |(saved, at): &(_, Moment)| {
                Some(saved) == position.as_ref() && now.since(*at) < SAVE_UNCHANGED
            };
            let directory = self.state.directory().cloned();
            let is_current = synced.is_some_and(|ago| ago < SAVE_EVERY);
            if last.as_ref().is_some_and(is_same) || !is_current {
                continue;
            }
            let (Some(position), Some(directory)) = (position, directory) else {
                continue;
            };
            let process = read(&self.machine).process();
            let (disk, wall) = (lock(&self.local).disk.clone(), self.clock.system_time());
            let to_save = position.clone();
            let saved = tokio::task::spawn_blocking(move || {
                // First what was applied, then that it was.
                disk.map_or(Ok(()), |disk| disk.sync_purges())?;
                file::write(
                    directory.path(),
                    directory.identity(),
                    process,
                    &to_save,
                    wall,
                )
            });
            match saved.await {
                Ok(Ok(())) => last = Some((position, now)),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "the position in the journal cannot be saved");
                }
                Err(_ended) => {}
            }
        }
    }
}
