//! The simulated replicas, their engine, and what is checked.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::machine::{JournalEffect, JournalMachine, LONGEST_ABSENCE};
use super::super::model::{self, ModelJournal};
use super::super::position::{AppliedPosition, JournalPosition, SavedPosition};
use super::super::record::{JournalRecord, RecordUid};
use super::super::sync::{SyncReply, SyncRequest};
use super::weather::JournalWeather;
use crate::cache::purge::Purge;
use crate::portable::purge::LoggedPurge;
use crate::shared::allowance::ProcessId;

const SLOTS: usize = 3;
/// All is well for so many steps at the end.
const CALM: u64 = 1_000;
/// A message takes at most so many steps.
const DELAY: u64 = 3;
/// A sync request without a reply is given up after so many steps.
const TIMEOUT: u64 = 5;
/// The time between two sync requests.
const ROUND: u64 = 10;

/// A purge of the simulation, by its place in the order in which all were made.
type PurgeNumber = usize;

/// A process.
struct Replica {
    machine: JournalMachine,
    start: u64,
    began: u64,
    /// What is in force.
    purged: BTreeSet<PurgeNumber>,
    /// The same, but only what was applied as a record or is its own.
    applied: BTreeSet<PurgeNumber>,
    own: Vec<(PurgeNumber, RecordUid)>,
    due: u64,
    pending: Option<(u64, u64)>,
    cut_until: u64,
    paused_until: u64,
    has_disk: bool,
    saved: Option<(AppliedPosition, u64, BTreeSet<u64>)>,
    /// The processes whose rows it has seen, by their starts.
    met: BTreeSet<u64>,
}

enum Message {
    ToEngine(Box<SyncRequest>),
    ToReplica(u64, Box<SyncReply>),
}

struct InFlight {
    at: u64,
    slot: usize,
    start: u64,
    message: Message,
}

/// What was fetched and stored where all can read it.
struct StoredItem {
    at: JournalPosition,
    /// How many purges there had been.
    purges: PurgeNumber,
}

pub(super) struct JournalWorld {
    weather: JournalWeather,
    dice: fastrand::Rng,
    step: u64,
    replicas: Vec<Replica>,
    starts: u64,
    engine: Option<ModelJournal>,
    life: u64,
    copies: Vec<Option<ModelJournal>>,
    in_flight: Vec<InFlight>,
    items: Vec<StoredItem>,
    /// For each purge, which process has made it, and when the engine had it.
    made: Vec<(u64, Option<u64>)>,
    /// How often everything was purged.
    pub(super) everything: u64,
    pub(super) fault: Option<String>,
}

fn record(purge: PurgeNumber) -> JournalRecord {
    let text = Purge::Text(format!("purge {purge}").into());
    JournalRecord::Purge(LoggedPurge::new(&text, None, None))
}

fn purge_of(record: &JournalRecord) -> Option<PurgeNumber> {
    let JournalRecord::Purge(purge) = record else {
        return None;
    };
    let Purge::Text(text) = purge.with_numbers(0, None) else {
        return None;
    };
    text.strip_prefix("purge ")?.parse().ok()
}

fn time(step: u64) -> Duration {
    // Long after the machine was started: an age can be subtracted.
    Duration::from_secs(100_000) + Duration::from_millis(10 * step)
}

impl JournalWorld {
    pub(super) fn new(weather: JournalWeather, seed: u64) -> Self {
        let mut world = Self {
            weather,
            dice: fastrand::Rng::with_seed(seed),
            step: 0,
            replicas: Vec::new(),
            starts: 0,
            engine: None,
            life: 0,
            copies: Vec::new(),
            in_flight: Vec::new(),
            items: Vec::new(),
            made: Vec::new(),
            everything: 0,
            fault: None,
        };
        for _ in 0..SLOTS {
            let new = world.start(None);
            world.replicas.push(new);
        }
        world
    }

    pub(super) fn purges(&self) -> usize {
        self.made.len()
    }

    /// A process, after another one.
    fn start(&mut self, before: Option<&Replica>) -> Replica {
        self.starts += 1;
        let process = ProcessId(u128::from(self.starts) << 64 | u128::from(self.starts * 77));
        let kept = before.filter(|before| before.has_disk);
        let saved = kept.and_then(|before| before.saved.clone());
        let met = saved.as_ref().map(|(_, _, met)| met.clone());
        let met = met.unwrap_or_default();
        let saved = saved.map(|(applied, step, _)| SavedPosition {
            applied,
            age: time(self.step) - time(step),
        });
        // What is not on disk is fetched after all purges.
        let purged = match kept {
            Some(before) => before.purged.clone(),
            None => (0..self.made.len()).collect(),
        };
        let name = format!("{}", self.starts).into();
        Replica {
            machine: JournalMachine::new(process, name, saved, time(self.step)),
            start: self.starts,
            began: self.step,
            purged,
            applied: BTreeSet::new(),
            own: Vec::new(),
            due: self.step + self.dice.u64(0..ROUND),
            pending: None,
            cut_until: before.map_or(0, |before| before.cut_until),
            paused_until: 0,
            has_disk: kept.is_some() || self.dice.bool(),
            saved: kept.and_then(|before| before.saved.clone()),
            met,
        }
    }

    fn happens(&mut self, every: u64) -> bool {
        every > 0 && self.dice.u64(0..every) == 0
    }

    pub(super) fn run(&mut self) {
        while self.step < self.weather.steps + CALM && self.fault.is_none() {
            self.step += 1;
            if self.step < self.weather.steps {
                self.weather_of_engine();
                self.weather_of_replicas();
            } else if self.step == self.weather.steps {
                for replica in &mut self.replicas {
                    (replica.cut_until, replica.paused_until) = (0, 0);
                }
            }
            self.deliver();
            (0..SLOTS).for_each(|slot| self.turn(slot));
            self.check();
        }
        self.check_end();
    }

    fn weather_of_engine(&mut self) {
        if self.step.is_multiple_of(50) {
            self.copies.push(self.engine.clone());
            let excess = self.copies.len().saturating_sub(8);
            self.copies.drain(..excess);
        }
        let older = self.copies.get(self.dice.usize(0..8)).cloned();
        if self.happens(self.weather.flush) {
            self.engine = None;
        }
        if self.happens(self.weather.failover)
            && let Some(older) = older.clone()
        {
            self.engine = older;
            self.life += 1;
        }
        if self.happens(self.weather.older)
            && let Some(older) = older
        {
            // A copy of another life does not come back as this one.
            let is_of_life = |journal: &ModelJournal| *journal.life == *format!("{}", self.life);
            if older.as_ref().is_none_or(is_of_life) {
                self.forget_recorded(older.as_ref());
                self.engine = older;
            }
        }
        if self.happens(self.weather.trim)
            && let Some(journal) = &mut self.engine
        {
            let excess = journal.records.len().saturating_sub(2);
            journal.records.drain(..excess);
        }
    }

    /// The engine loses the records that these rows do not have. Whether they come back is up
    /// to the processes that have made them: nobody can tell if those end before they notice.
    fn forget_recorded(&mut self, rows: Option<&ModelJournal>) {
        let records = |rows: Option<&ModelJournal>| -> BTreeSet<_> {
            let all = rows.into_iter().flat_map(|journal| &journal.records);
            let purges = all.filter_map(|(_, content)| purge_of(&JournalRecord::decode(content)));
            purges.collect()
        };
        let (before, after) = (records(self.engine.as_ref()), records(rows));
        for number in before.difference(&after) {
            self.made[*number].1 = None;
        }
    }

    fn weather_of_replicas(&mut self) {
        let slot = self.dice.usize(0..SLOTS);
        if self.happens(self.weather.purge) && self.step >= self.replicas[slot].paused_until {
            let number = self.made.len();
            let replica = &mut self.replicas[slot];
            self.made.push((replica.start, None));
            replica.purged.insert(number);
            replica.applied.insert(number);
            let uid = replica.machine.append(record(number));
            replica.own.push((number, uid));
        }
        if self.happens(self.weather.fetch)
            && let Some(at) = self.replicas[slot].machine.position()
        {
            let purges = self.made.len();
            self.items.push(StoredItem { at, purges });
            let excess = self.items.len().saturating_sub(30);
            self.items.drain(..excess);
        }
        let is_cut = |replica: &Replica| replica.cut_until > self.step;
        let may_cut = !self.weather.outage || !self.replicas.iter().any(is_cut);
        if self.happens(self.weather.cut) && may_cut {
            let lengths = self.weather.shortest_cut..self.weather.longest_cut;
            self.replicas[slot].cut_until = self.step + self.dice.u64(lengths);
        }
        let is_back_soon = |replica: &Replica| replica.cut_until == self.step + 5;
        if self.weather.outage
            && let Some(cut) = self.replicas.iter().position(is_back_soon)
        {
            self.engine = None;
            for slot in (0..SLOTS).filter(|slot| *slot != cut) {
                self.replicas[slot] = self.start(None);
            }
        }
        if self.happens(self.weather.pause) {
            self.replicas[slot].paused_until = self.step + self.dice.u64(1..300);
        }
        if self.happens(self.weather.kill) {
            let before = self.replicas.remove(slot);
            let new = self.start(Some(&before));
            self.replicas.insert(slot, new);
        }
    }

    fn send(&mut self, slot: usize, message: Message) {
        let replica = &self.replicas[slot];
        if self.step < replica.cut_until || self.dice.u64(0..100) < self.weather.lost {
            return;
        }
        self.in_flight.push(InFlight {
            at: self.step + self.dice.u64(1..=DELAY),
            slot,
            start: replica.start,
            message,
        });
    }

    fn deliver(&mut self) {
        let now = self.step;
        let all = std::mem::take(&mut self.in_flight);
        let (due, later): (Vec<_>, _) = all.into_iter().partition(|one| one.at <= now);
        self.in_flight = later;
        for InFlight {
            slot,
            start,
            message,
            ..
        } in due
        {
            let is_same = self.replicas[slot].start == start;
            match message {
                Message::ToEngine(request) => {
                    let life = self.life.to_string();
                    let server = (&*life, self.step * 10_000);
                    let reply = model::sync(&mut self.engine, server, &request);
                    self.note_records();
                    // Sync requests are not repeated, but what is late may come from one that is
                    // given up.
                    if self.dice.u64(0..100) < self.weather.twice {
                        let again = Message::ToEngine(request.clone());
                        let at = self.step + self.dice.u64(1..200);
                        self.in_flight.push(InFlight {
                            at,
                            slot,
                            start,
                            message: again,
                        });
                    }
                    if is_same {
                        self.send(slot, Message::ToReplica(request.sequence, Box::new(reply)));
                    }
                }
                Message::ToReplica(sequence, reply) if is_same => {
                    self.receive(slot, sequence, *reply)
                }
                Message::ToReplica(..) => {}
            }
        }
    }

    /// Notes which purges the engine has.
    fn note_records(&mut self) {
        let Some(journal) = &self.engine else {
            return;
        };
        for (_, content) in journal.records.iter().rev().take(64) {
            if let Some(number) = purge_of(&JournalRecord::decode(content)) {
                self.made[number].1.get_or_insert(self.step);
            }
        }
    }

    fn receive(&mut self, slot: usize, sequence: u64, reply: SyncReply) {
        let step = self.step;
        if step < self.replicas[slot].paused_until {
            // It reads it when it goes on; the sync request may be given up by then.
            let (at, start) = (self.replicas[slot].paused_until, self.replicas[slot].start);
            let message = Message::ToReplica(sequence, Box::new(reply));
            self.in_flight.push(InFlight {
                at,
                slot,
                start,
                message,
            });
            return;
        }
        let made = self.made.len();
        // A late request may leave the row of one that has ended.
        let alive: BTreeSet<_> = self.replicas.iter().map(|replica| replica.start).collect();
        let replica = &mut self.replicas[slot];
        replica.pending.take_if(|(pending, _)| *pending == sequence);
        for effect in replica.machine.answered(time(step), sequence, reply) {
            match effect {
                JournalEffect::PurgeEverything(_) => {
                    self.everything += 1;
                    replica.purged.extend(0..made);
                }
                JournalEffect::CoolDown(..) => {}
                JournalEffect::Apply(record) if record == JournalRecord::purge_all() => {
                    replica.purged.extend(0..made);
                }
                JournalEffect::Apply(record) => {
                    if let Some(number) = purge_of(&record) {
                        replica.purged.insert(number);
                        replica.applied.insert(number);
                    }
                }
            }
        }
        if replica.machine.has_more() {
            replica.due = step + 1;
        }
        let others = replica.machine.others().iter();
        let others = others.filter_map(|other| other.name.parse::<u64>().ok());
        replica
            .met
            .extend(others.filter(|other| alive.contains(other)));
        if let Some(applied) = replica.machine.position_to_save()
            && self.dice.u64(0..20) == 0
        {
            replica.saved = Some((applied, step, replica.met.clone()));
        }
    }

    fn turn(&mut self, slot: usize) {
        let step = self.step;
        let replica = &mut self.replicas[slot];
        if step < replica.paused_until {
            return;
        }
        if let Some((sequence, _)) = replica.pending.take_if(|(_, sent)| *sent + TIMEOUT <= step) {
            replica.machine.lost(sequence);
        }
        if replica.pending.is_some() || step < replica.due {
            return;
        }
        replica.due = step + self.dice.u64(1..=ROUND);
        let request = replica
            .machine
            .next_request(time(step), self.dice.bool(), false);
        replica.pending = Some((request.sequence, step));
        self.send(slot, Message::ToEngine(Box::new(request)));
    }

    /// What holds at any time.
    fn check(&mut self) {
        for replica in &self.replicas {
            // The newest often, all now and then.
            let newest = if self.step.is_multiple_of(100) {
                usize::MAX
            } else {
                3
            };
            for (number, uid) in replica.own.iter().rev().take(newest) {
                for name in replica.machine.reach(*uid).applied {
                    let start = name.parse().ok();
                    let mut others = self.replicas.iter();
                    let other = others.find(|other| Some(other.start) == start);
                    if other.is_some_and(|other| !other.purged.contains(number)) {
                        self.fault = Some(format!(
                            "step {}: purge {number} is not in force in {name}, which has it applied",
                            self.step
                        ));
                    }
                }
            }
        }
        let reader = &self.replicas[self.dice.usize(0..SLOTS)];
        for item in &self.items {
            let Some(since) = reader.machine.since(item.at) else {
                continue;
            };
            let later: BTreeSet<_> = since.filter_map(purge_of).collect();
            let missed = reader
                .applied
                .range(item.purges..)
                .find(|n| !later.contains(n));
            if let Some(number) = missed {
                self.fault = Some(format!(
                    "step {}: what purge {number} matches is used in {}, where it is in force",
                    self.step, reader.start
                ));
            }
        }
    }

    /// What holds when all was well for a while: each replica has each purge in force
    /// whose process is still there or was seen before, and also all others if it was out of
    /// sync for very long.
    fn check_end(&mut self) {
        if self.fault.is_some() {
            return;
        }
        let alive: BTreeSet<_> = self.replicas.iter().map(|replica| replica.start).collect();
        let long_ago = |step: u64| time(self.step) - time(step) > 2 * LONGEST_ABSENCE;
        for replica in &self.replicas {
            let has_row = |number: &(u64, Option<u64>)| {
                let (by, recorded) = *number;
                let has_ended = recorded.is_some() && replica.met.contains(&by);
                alive.contains(&by) || has_ended || recorded.is_some_and(long_ago)
            };
            let missed = self
                .made
                .iter()
                .enumerate()
                .find(|(number, made)| has_row(made) && !replica.purged.contains(number));
            if let Some((number, (by, recorded))) = missed {
                self.fault = Some(format!(
                    "at the end: purge {number} of {by}, recorded at {recorded:?}, is not in force in {}, which began at {}",
                    replica.start, replica.began
                ));
            }
            if replica
                .machine
                .synced_ago(time(self.step))
                .is_none_or(|ago| ago > Duration::from_secs(1))
            {
                self.fault = Some(format!("{} is not in sync with the journal", replica.start));
            }
        }
    }
}
