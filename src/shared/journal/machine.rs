//! The state of one process that follows the journal. Pure: `now` is an argument, no
//! message is sent here, and purges are returned to be carried out.
//!
//! What is returned by [`JournalMachine::answered`] must be in force before the next
//! sync request is made: that one says so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::awaited::AwaitedReplicas;
use super::history::{JournalHistory, SeenRecords};
use super::others::{OtherReplicas, Reach};
use super::position::{AppliedPosition, JournalPosition, RecordNumber, SavedPosition};
use super::record::{JournalRecord, RecordUid};
use super::rules::{JournalRule, has};
use super::sync::{MOST_AT_ONCE, ReadUpTo, RowChange, SyncReply, SyncRequest};
use super::waiting::WaitingRecords;
use crate::shared::allowance::ProcessId;
use crate::upstream::admission::restrictions::CooldownLeft;

/// The most own records that wait for the engine. With more, one purge of everything takes
/// their place.
pub(crate) const MOST_WAITING: usize = 1024;

/// Whoever was out of sync for longer purges everything when it begins anew.
/// Others remember their records for longer, unless there are very many.
pub(crate) const LONGEST_ABSENCE: Duration = Duration::from_secs(600);

/// How often all rows are asked for, if nothing waits for them.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// The most bytes of records in one sync request.
const MOST_SYNC_BYTES: usize = 64 << 10;

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalEffect {
    /// Everything is to be purged, for this reason: something was missed.
    PurgeEverything(&'static str),
    /// A record of another process is to be applied.
    Apply(JournalRecord),
    /// A key is not to be used for a while: the name of its budget, and what is left.
    CoolDown(String, CooldownLeft),
}

/// How often what has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalCounts {
    /// Records of this process that the engine has.
    pub(crate) sent: u64,
    /// Records of others that were applied.
    pub(crate) received: u64,
    /// Records that this version does not know.
    pub(crate) unknown: u64,
    /// How often records were missed.
    pub(crate) gaps: u64,
    /// How often the journal has begun anew.
    pub(crate) generations: u64,
}

/// A process that follows the journal.
#[derive(Debug)]
pub(crate) struct JournalMachine {
    process: ProcessId,
    name: Arc<str>,
    sequence: u64,
    made: u64,
    followed: Option<ReadUpTo>,
    tail: RecordNumber,
    /// When all records were known last: the send of the sync request that was answered so.
    contact: Option<Duration>,
    /// How long before the start the same was so in the run before.
    saved_age: Option<Duration>,
    started: Duration,
    /// The same, in this run.
    synced: Option<Duration>,
    history: JournalHistory,
    seen: SeenRecords,
    waiting: WaitingRecords,
    others: OtherReplicas,
    awaited: AwaitedReplicas,
    listed: Option<Duration>,
    pending: Option<PendingSync>,
    counts: JournalCounts,
    /// The engine's clock in milliseconds, and when that was read at the latest.
    engine_time: Option<(u64, Duration)>,
}

/// A sync request that was not answered yet.
#[derive(Debug)]
struct PendingSync {
    sequence: u64,
    began: Duration,
    records: Vec<RecordUid>,
}

impl JournalMachine {
    /// A process that starts now, after an earlier run if one had followed the journal.
    pub(crate) fn new(
        process: ProcessId,
        name: Arc<str>,
        saved: Option<SavedPosition>,
        now: Duration,
    ) -> Self {
        let saved_age = saved.as_ref().map(|saved| saved.age);
        let applied = saved.map(|saved| saved.applied);
        let followed = applied.as_ref().map(|applied| ReadUpTo {
            generation: applied.position.generation,
            // All that the engine has is read, for the history.
            read: 0,
            applied: applied.position.record,
            last: applied.last,
        });
        let known = applied.map_or_else(BTreeSet::new, |applied| applied.others);
        Self {
            process,
            name,
            sequence: 0,
            made: 0,
            followed,
            tail: 0,
            contact: None,
            saved_age,
            started: now,
            synced: None,
            history: JournalHistory::default(),
            seen: SeenRecords::default(),
            waiting: WaitingRecords::default(),
            others: OtherReplicas::default(),
            awaited: AwaitedReplicas::after(known),
            listed: None,
            pending: None,
            counts: JournalCounts::default(),
            engine_time: None,
        }
    }

    /// A process that has ended, and whose row is removed: this one has come in its place.
    pub(crate) fn set_predecessor(&mut self, process: Option<ProcessId>) {
        self.others
            .set_ended(process.filter(|process| *process != self.process));
    }

    /// This process.
    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// Adds a record of this process, which has applied it.
    pub(crate) fn append(&mut self, record: JournalRecord) -> RecordUid {
        if self.waiting.own().len() >= MOST_WAITING {
            self.waiting.clear_own();
            self.push_own(JournalRecord::purge_all());
        }
        self.push_own(record)
    }

    fn push_own(&mut self, record: JournalRecord) -> RecordUid {
        self.made += 1;
        let uid = RecordUid {
            process: self.process,
            number: self.made,
        };
        self.seen.insert(uid);
        self.waiting.push(uid, record);
        uid
    }

    /// The next sync request. Until it is answered or [`lost`](Self::lost), there must be no other.
    pub(crate) fn next_request(&mut self, now: Duration, list: bool, leave: bool) -> SyncRequest {
        self.sequence += 1;
        let records = self.waiting.next(MOST_AT_ONCE, MOST_SYNC_BYTES, leave);
        let is_time = |listed| now.saturating_sub(listed) >= LIST_EVERY;
        self.pending = Some(PendingSync {
            sequence: self.sequence,
            began: now,
            records: records.iter().map(|(uid, _)| *uid).collect(),
        });
        SyncRequest {
            process: self.process,
            name: self.name.clone(),
            sequence: self.sequence,
            followed: self.followed,
            list: list || self.listed.is_none_or(is_time),
            row: match (leave, self.waiting.resends()) {
                (true, _) => RowChange::Remove,
                (false, true) => RowChange::Keep,
                (false, false) => RowChange::Write,
            },
            forget: self.others.forgotten(),
            records,
        }
    }

    /// The sync request with this number was not answered, as far as is known.
    pub(crate) fn lost(&mut self, sequence: u64) {
        self.pending.take_if(|pending| pending.sequence == sequence);
    }

    /// Applies the reply to the sync request with this number. Returns what is to be done before
    /// the next sync request.
    pub(crate) fn answered(
        &mut self,
        now: Duration,
        sequence: u64,
        reply: SyncReply,
    ) -> Vec<JournalEffect> {
        let Some(pending) = self.pending.take_if(|pending| pending.sequence == sequence) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        let mut followed = self.follow(now, &reply, &mut effects);
        self.tail = reply.tail;
        self.engine_time = Some((reply.now_ms, now));
        self.waiting.confirm(&pending.records);
        if reply.first > followed.applied + 1 {
            self.gap(now, &mut effects);
            followed.applied = reply.first - 1;
            followed.last = None;
        }
        if reply.first > followed.read + 1 {
            self.history.begin(reply.first - 1);
            followed.read = reply.first - 1;
        }
        for (number, uid, content) in reply.records {
            if number <= followed.read {
                continue;
            }
            if number > followed.read + 1 && number > followed.applied + 1 {
                // Somebody has deleted records in between.
                self.gap(now, &mut effects);
            }
            if number > followed.read + 1 {
                self.history.begin(number - 1);
            }
            followed.read = number;
            let effect = self.read_record(now, uid, &content, number > followed.applied);
            effects.extend(match effect {
                Some(JournalEffect::Apply(JournalRecord::Cooldown(cooldown))) => {
                    let left = cooldown.left(reply.now_ms);
                    left.map(|(budget, left)| JournalEffect::CoolDown(budget, left))
                }
                effect => effect,
            });
            if number >= followed.applied {
                followed.applied = number;
                followed.last = Some(uid);
            }
        }
        self.followed = Some(followed);
        if let Some(rows) = reply.rows {
            let since = self
                .listed
                .map_or(Duration::ZERO, |at| now.saturating_sub(at));
            self.listed = Some(now);
            let rows = rows.into_iter().filter(|row| row.process != self.process);
            // What this process has not read may be lost again before it does.
            self.others.listed(followed.read, rows, since);
            let here = self.others.present();
            if self.awaited.listed(here, since, (followed.read, self.tail)) {
                self.counts.gaps += 1;
                self.history.miss(now);
                effects.push(JournalEffect::PurgeEverything(
                    "the journal has begun anew, and a replica is gone that may have purged something before",
                ));
            }
        }
        if followed.read == self.tail {
            // Others who have not read what was trimmed purge everything anyway.
            if self.waiting.read_all() && reply.first == 1 {
                self.push_own(JournalRecord::purge_all());
            }
            self.synced = Some(pending.began);
            self.contact = self.synced;
        }
        effects
    }

    fn gap(&mut self, now: Duration, effects: &mut Vec<JournalEffect>) {
        self.counts.gaps += 1;
        self.history.miss(now);
        if has(JournalRule::GapPurgesEverything) {
            effects.push(JournalEffect::PurgeEverything(
                "the journal no longer has all records that this replica has not applied",
            ));
        }
    }

    /// What is followed after this reply: the same, or a new generation.
    fn follow(
        &mut self,
        now: Duration,
        reply: &SyncReply,
        effects: &mut Vec<JournalEffect>,
    ) -> ReadUpTo {
        let before = self.followed;
        if let Some(followed) = before
            && followed.generation == reply.generation
        {
            return followed;
        }
        let mut missed = None;
        if before.is_some() {
            self.counts.generations += 1;
            let since = |at| now.saturating_sub(at);
            let before_start = || Some(self.saved_age?.saturating_add(since(self.started)));
            let absence = self.contact.map(since).or_else(before_start);
            let is_recent = absence.is_some_and(|absence| absence <= LONGEST_ABSENCE);
            self.awaited.begin_generation();
            if !is_recent {
                self.awaited.clear();
                let why =
                    "the journal has begun anew, and this replica had not reached it for too long";
                missed = has(JournalRule::AbsencePurgesEverything).then_some(why);
            }
        }
        if reply.first > 1 && has(JournalRule::GapPurgesEverything) {
            missed = Some("the journal no longer has its first records");
        }
        effects.extend(missed.map(JournalEffect::PurgeEverything));
        let floor = match (before, has(JournalRule::ReadFromBeginning)) {
            (Some(_), false) => reply.tail,
            _ => reply.first - 1,
        };
        let known = self.history.begin(floor);
        if self.waiting.begin_generation(known) {
            self.history.miss(now);
        }
        self.others.begin_generation();
        let forgotten = self.history.since_forgotten(now);
        if reply.first > 1 {
            self.history.miss(now);
        }
        if before.is_some() && forgotten.is_some_and(|ago| ago <= LONGEST_ABSENCE) {
            // Somebody may come back to whom nobody can send all that was missed.
            self.push_own(JournalRecord::purge_all());
        }
        let skips = before.is_none() && !has(JournalRule::FirstContactApplies);
        ReadUpTo {
            generation: reply.generation,
            read: floor,
            applied: if skips { reply.tail } else { floor },
            last: None,
        }
    }

    fn read_record(
        &mut self,
        now: Duration,
        uid: RecordUid,
        content: &[u8],
        is_later: bool,
    ) -> Option<JournalEffect> {
        let record = JournalRecord::decode(content);
        self.counts.sent += u64::from(self.waiting.read(uid));
        let is_new = self.seen.insert(uid);
        self.history.push(now, uid, record.clone());
        if record == JournalRecord::Unknown {
            self.counts.unknown += 1;
            return None;
        }
        // A cooldown was forgotten at a restart, and says itself whether it is over.
        let is_cooldown = matches!(record, JournalRecord::Cooldown(_));
        let applies = is_new && (is_later || is_cooldown);
        self.counts.received += u64::from(applies);
        applies.then_some(JournalEffect::Apply(record))
    }

    /// Whether there is more to read, or to send, than one sync request could.
    pub(crate) fn has_more(&self) -> bool {
        let is_behind = self
            .followed
            .is_some_and(|followed| followed.read < self.tail);
        is_behind || self.waiting.has_unsent()
    }

    /// How many own records the engine does not have.
    pub(crate) fn unsent(&self) -> usize {
        self.waiting.unsent_own()
    }

    /// Where this process stands.
    pub(crate) fn position(&self) -> Option<JournalPosition> {
        let followed = self.followed?;
        Some(JournalPosition {
            generation: followed.generation,
            record: followed.applied,
        })
    }

    /// The last record that was read.
    pub(crate) fn read_up_to(&self) -> RecordNumber {
        self.followed.map_or(0, |followed| followed.read)
    }

    /// The position and the uid of its record, as soon as all that an earlier run had not
    /// applied was applied, and nobody is awaited: the next run would not know of it.
    pub(crate) fn position_to_save(&self) -> Option<AppliedPosition> {
        let position = self.contact.and(self.position())?;
        self.synced?;
        (!self.awaited.is_any()).then(|| AppliedPosition {
            position,
            last: self.followed.and_then(|followed| followed.last),
            others: self.awaited.known(),
        })
    }

    /// How long ago a sync request was sent whose answer showed that all records are known.
    pub(crate) fn synced_ago(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.synced?))
    }

    /// The records that may concern what was fetched at a position, newest first, those
    /// included that the engine does not have yet; `None` if not all are known.
    pub(crate) fn since(
        &self,
        at: JournalPosition,
    ) -> Option<impl Iterator<Item = &JournalRecord>> {
        let followed = self.followed?;
        let is_same = followed.generation == at.generation;
        let later = self.history.since(at.record).filter(|_| is_same)?;
        Some(later.chain(self.waiting.own()))
    }

    /// Which replicas have applied a record.
    pub(crate) fn reach(&self, uid: RecordUid) -> Reach {
        self.others.reach(self.history.number_of(uid))
    }

    /// Its last record, and how many are waiting for the engine.
    pub(crate) fn lengths(&self) -> (RecordNumber, usize) {
        (self.tail, self.waiting.len())
    }

    /// All other replicas.
    pub(crate) const fn others(&self) -> &OtherReplicas {
        &self.others
    }

    /// The time of the engine's clock in milliseconds, or a little before.
    pub(crate) fn engine_time(&self, now: Duration) -> Option<u64> {
        let (millis, at) = self.engine_time?;
        let since = now.saturating_sub(at).as_millis();
        Some(millis.saturating_add(u64::try_from(since).unwrap_or(u64::MAX)))
    }

    /// How often what has happened.
    pub(crate) const fn counts(&self) -> JournalCounts {
        self.counts
    }
}
