//! What is known of the chain, for all who ask: the tip and the epoch of each
//! indexer, which block stands at which height, and whether a stored answer
//! still holds.
//!
//! The probe tells it what the status paths say, the fill what answers say; the
//! cache asks [`Chain::judge`] for each hit, which takes no lock while the
//! epoch stands. Everything else is under an indexer's own lock, held for
//! arithmetic alone.
//!
//! Invariant: whatever ends an epoch is visible to every runtime before the
//! answer that told of it is.
//!
//! Deliberately absent: the store (what a reorg purges is the fill's business),
//! and who asks when.

pub mod finality;
pub mod ledger;
pub mod runs;
mod settings;
mod stamp;

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use finality::{Class, FinalitySettings, MOST_CHECKED, checked_until, is_deep};
use ledger::{Epoch, Facts, Ledger, LedgerBounds, Look, Start, Told, Verdict};
use runs::{TransactionIndex, TransactionLocation};
use serde::Serialize;
pub use settings::{LookAhead, Settings, TipSource};
pub use stamp::{ChainStamp, Freshness};
use tokio::sync::{Notify, watch};

use crate::clock::Moment;
use crate::pages::{Hash, hex};

/// The chain as each indexer has it.
pub struct Chain {
    times: FinalitySettings,
    look_ahead: LookAhead,
    tips: Box<[Tip]>,
    runs: Arc<Mutex<TransactionIndex>>,
}

/// One indexer's tip.
struct Tip {
    source: TipSource,
    /// What is known of it, which outlives a reload.
    known: Arc<Known>,
}

/// What is known of a tip.
struct Known {
    epoch: AtomicU64,
    /// When the last good probe was sent, in nanoseconds; 0 for never.
    confirmed: AtomicU64,
    /// For how long live answers are known to be unchanged, in nanoseconds: the
    /// ledger's [`finality::Checks::stretch`].
    checked_from: AtomicU64,
    checked_until: AtomicU64,
    ledger: Mutex<Ledger>,
    /// Held while blocks are looked at.
    looking: tokio::sync::Mutex<()>,
    /// Rings when the tip should be asked for.
    bell: Notify,
    /// Whether the first probe has ended, or there is none to wait for.
    first: watch::Sender<bool>,
    probes: AtomicU64,
    failures: AtomicU64,
    reorgs: AtomicU64,
    /// Why the last probe failed.
    trouble: Mutex<Option<String>>,
}

/// How a tip is known, for those who look.
#[derive(Clone, Debug, Serialize)]
pub struct TipSnapshot {
    /// Its name.
    pub name: String,
    /// The upstream that is asked for it.
    pub upstream: String,
    /// Its status path.
    pub path: Option<String>,
    /// Whether a probe has confirmed it lately; else times alone count.
    pub known: bool,
    /// Whether it has ever been known.
    pub known_once: bool,
    /// Its height.
    pub height: Option<u32>,
    /// The hash of the block there.
    pub hash: Option<String>,
    /// The present epoch.
    pub epoch: Epoch,
    /// Seconds since the last good probe was sent.
    pub confirmed_seconds_ago: Option<f64>,
    /// Probes sent.
    pub probes: u64,
    /// Those that failed.
    pub failures: u64,
    /// Reorgs seen.
    pub reorgs: u64,
    /// Heights of which the hash is known.
    pub blocks: usize,
    /// Why the last probe failed.
    pub trouble: Option<String>,
}

impl Chain {
    /// Nothing is known yet.
    pub fn new(settings: &Settings) -> Self {
        Self::build(settings, Arc::default(), |_, _| None)
    }

    /// One that knows what another knows of each indexer that has the same
    /// number there. They learn together from then on.
    pub fn after(before: &Self, settings: &Settings) -> Self {
        let known = |number: usize, source: &TipSource| {
            let tip = before.tips.get(number)?;
            let same = tip.source.is_of_one_indexer(source);
            same.then(|| tip.known.clone())
        };
        Self::build(settings, before.runs.clone(), known)
    }

    fn build(
        settings: &Settings,
        runs: Arc<Mutex<TransactionIndex>>,
        known: impl Fn(usize, &TipSource) -> Option<Arc<Known>>,
    ) -> Self {
        let bounds = LedgerBounds {
            blocks: settings.index_blocks,
            margin: settings.times.final_depth.saturating_mul(2),
            pause: settings.times.live_ttl,
        };
        let tip = |(number, source): (usize, &TipSource)| {
            let known =
                known(number, source).unwrap_or_else(|| Arc::new(Known::new(source, bounds)));
            lock(&known.ledger).bound(bounds);
            Tip {
                source: source.clone(),
                known,
            }
        };
        Self {
            times: settings.times.clone(),
            look_ahead: settings.look_ahead,
            tips: settings.tips.iter().enumerate().map(tip).collect(),
            runs,
        }
    }

    /// Whether what was stored by another's tip of a number may be judged by
    /// this one's tip of that number, and is kept no longer than here.
    pub fn judges_alike(&self, before: &Self, tip: u16) -> bool {
        let (one, other) = (
            self.tips.get(usize::from(tip)),
            before.tips.get(usize::from(tip)),
        );
        let same = one
            .zip(other)
            .is_some_and(|(one, other)| Arc::ptr_eq(&one.known, &other.known));
        same && self.times.keep(&before.times)
    }

    /// One that no indexer tells of: for routes that go by time.
    pub fn timeless() -> Self {
        Self {
            times: FinalitySettings::default(),
            look_ahead: LookAhead::default(),
            tips: Box::default(),
            runs: Arc::default(),
        }
    }

    /// Depths and times.
    pub const fn times(&self) -> &FinalitySettings {
        &self.times
    }

    /// What is fetched before it is asked for.
    pub const fn look_ahead(&self) -> LookAhead {
        self.look_ahead
    }

    /// How many tips there are.
    pub fn len(&self) -> usize {
        self.tips.len()
    }

    /// Whether there is no tip at all.
    pub fn is_empty(&self) -> bool {
        self.tips.is_empty()
    }

    /// Where a tip is learned.
    pub fn source(&self, tip: u16) -> Option<&TipSource> {
        self.tips.get(usize::from(tip)).map(|tip| &tip.source)
    }

    /// What a stored answer is good for. Of one that is fresh in the present
    /// epoch nothing else is read.
    pub fn judge(
        &self,
        standing: &ChainStamp,
        received: Moment,
        lifetime: Duration,
        now: Moment,
    ) -> Freshness {
        let left = lifetime.saturating_sub(now.since(received));
        if standing.class == Class::Final {
            return match left.is_zero() {
                false => Freshness::Fresh { ttl: left },
                true => Freshness::Stale {
                    by: now.since(received + lifetime),
                },
            };
        }
        let Some(tip) = self.tips.get(usize::from(standing.tip)) else {
            return Freshness::Stale {
                by: now.since(received),
            };
        };
        let epoch = standing.epoch();
        if epoch == tip.epoch.load(Ordering::Acquire) {
            let until = tip.until(standing.class, received, lifetime);
            return tip.within_epoch(&self.times, received, until, now);
        }
        let ledger = tip.ledger();
        let holds = standing.class == Class::Recent && ledger.is_linked(epoch, standing.highest);
        if !holds {
            let mut ended = ledger.ended(epoch).unwrap_or(now);
            let until = match standing.class {
                Class::Live => ledger.live_until(epoch, received, lifetime),
                Class::Absent | Class::Recent | Class::Final => received + lifetime,
            };
            // It came after the tip had been lost: its time counted.
            if Moment::default() < ended && ended < received {
                ended = received + self.times.recent_ttl;
            }
            return Freshness::Stale {
                by: now.since(ended.min(until)),
            };
        }
        standing.hold_in(ledger.epoch());
        let sure = ledger.tip().filter(|(_, certain)| *certain);
        let deep = is_deep(
            standing.highest,
            sure.map(|(height, _)| height),
            self.times.final_depth,
        );
        drop(ledger);
        match deep {
            true => Freshness::Revalidated {
                ttl: self.times.final_ttl,
            },
            false => tip.within_epoch(&self.times, received, received + lifetime, now),
        }
    }

    /// How long ago a stored answer was received, or shown to be unchanged.
    pub fn age(
        &self,
        standing: &ChainStamp,
        received: Moment,
        judged: Freshness,
        now: Moment,
    ) -> Duration {
        match judged {
            Freshness::Fresh { ttl } | Freshness::Revalidated { ttl } => {
                standing.age(received, ttl, now)
            }
            Freshness::Stale { .. } => now.since(self.shown(standing, received)),
        }
    }

    /// When an answer that is stale was last shown to be unchanged: by the last
    /// look at the tip that found the epoch of a recent one still present. When
    /// the last look in an epoch that has ended was is not known.
    fn shown(&self, standing: &ChainStamp, received: Moment) -> Moment {
        let tip = self.tips.get(usize::from(standing.tip));
        let present = tip.filter(|tip| {
            standing.class == Class::Recent && standing.epoch() == tip.epoch.load(Ordering::Acquire)
        });
        present.map_or(received, |tip| {
            let confirmed = tip.confirmed.load(Ordering::Acquire);
            Moment::from_nanos(confirmed).max(received)
        })
    }

    /// For how long a client may keep an answer that it gets now: no longer
    /// than the next probe takes to tell that it has ended.
    pub fn promise(&self, class: Class, tip: u16, now: Moment) -> Duration {
        let lifetime = self.times.lifetime(class);
        if !class.ends_with_epoch() {
            return lifetime;
        }
        let Some(tip) = self.tips.get(usize::from(tip)) else {
            return lifetime.min(self.times.recent_ttl);
        };
        match tip.is_known(now) {
            true => lifetime.min(tip.source.every),
            false => lifetime.min(self.times.recent_ttl),
        }
    }

    /// To be taken before a request is sent to an indexer.
    pub fn start(&self, tip: u16) -> Option<Start> {
        Some(self.tips.get(usize::from(tip))?.ledger().start())
    }

    /// Waits until the first probe of a tip has ended, well or not, so that
    /// what is asked for at the very start can be told how final it is.
    pub async fn settled(&self, tip: u16, patience: Duration) {
        if let Some(tip) = self.tips.get(usize::from(tip)) {
            let mut first = tip.first.subscribe();
            if !*first.borrow() {
                let ended = first.wait_for(|ended| *ended);
                let _in_time = tokio::time::timeout(patience, ended).await;
            }
        }
    }

    /// To be said before a status: which endpoint of the upstream says it.
    pub fn heard_from(&self, tip: u16, endpoint: u16) {
        if let Some(tip) = self.tips.get(usize::from(tip)) {
            tip.ledger().heard_from(endpoint);
        }
    }

    /// A status path has answered a request that was sent at a moment. `None`
    /// where it should be asked again at once.
    pub fn status(
        &self,
        tip: u16,
        start: Start,
        sent: Moment,
        height: Option<u32>,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<Told> {
        let tip = self.tips.get(usize::from(tip))?;
        tip.probes.fetch_add(1, Ordering::Relaxed);
        let mut ledger = tip.ledger();
        if height.is_none() && !ledger.has_said() {
            drop(ledger);
            let member = &tip.source.height;
            let why = format!(
                "its status has no {member}: the index is empty, or the member has another name"
            );
            tip.fail(why);
            return None;
        }
        ledger.lost_at(tip.lost_at(now));
        let told = ledger.status(start, height, tag, now);
        tip.publish(&ledger);
        if let Some(told) = told {
            tip.count(told);
            tip.confirmed.fetch_max(sent.nanos(), Ordering::AcqRel);
        }
        drop(ledger);
        let was = lock(&tip.trouble).take();
        if was.is_some() {
            tracing::info!(tip = &*tip.source.name, "the tip is known again");
        }
        tip.first.send_replace(true);
        told
    }

    /// A status path has not answered, or nothing that says a tip.
    pub fn failed(&self, tip: u16, why: String) {
        if let Some(tip) = self.tips.get(usize::from(tip)) {
            tip.probes.fetch_add(1, Ordering::Relaxed);
            tip.fail(why);
        }
    }

    /// An answer of an indexer that is not its status, to a request that was
    /// sent at a moment.
    pub fn answer(
        &self,
        tip: u16,
        start: Start,
        sent: Moment,
        facts: Facts<'_>,
        now: Moment,
    ) -> Verdict {
        let Some(tip) = self.tips.get(usize::from(tip)) else {
            return Verdict::Outdated;
        };
        let mut ledger = tip.ledger();
        ledger.lost_at(tip.lost_at(now));
        let verdict = ledger.answer(start, facts, now);
        tip.publish(&ledger);
        drop(ledger);
        if let Verdict::Told(told) = verdict {
            tip.count(told);
            if told.confirms {
                // As good as a probe.
                tip.confirmed.fetch_max(sent.nanos(), Ordering::AcqRel);
            }
            if told.wake {
                tip.bell.notify_one();
            }
        }
        verdict
    }

    /// Up to when a live answer that is no longer fresh is known to have been
    /// unchanged, where a check of it, or of another, may make it fresh again.
    /// `None` where it has to be fetched itself.
    pub fn may_be_checked(
        &self,
        standing: &ChainStamp,
        received: Moment,
        lifetime: Duration,
        now: Moment,
    ) -> Option<Moment> {
        let tip = self.tips.get(usize::from(standing.tip))?;
        if standing.class != Class::Live || !tip.is_known(now) {
            return None;
        }
        let ledger = tip.ledger();
        let checks = ledger.checks();
        let known = checked_until(checks.stretch(), received);
        let may = standing.epoch() == ledger.epoch()
            && checks.is_stable(received)
            && known + lifetime <= now
            && now < received + lifetime * MOST_CHECKED;
        may.then_some(known)
    }

    /// A live answer, received at a moment, has been fetched again by a request
    /// that was sent at another, and was the same or not. Answers with the
    /// moment since when it has been the same, where that shows that others have
    /// not changed either.
    pub fn checked(
        &self,
        standing: &ChainStamp,
        received: Moment,
        sent: Moment,
        same: bool,
        now: Moment,
    ) -> Option<Moment> {
        let tip = self.tips.get(usize::from(standing.tip))?;
        let since = standing.since(received);
        let mut ledger = tip.ledger();
        let shows = ledger.checked(standing.epoch(), since, sent, same, now);
        tip.publish(&ledger);
        shows.then_some(since)
    }

    /// Where to look after a change of tip, so that no reorg goes unseen. What
    /// it says is undone is to be purged. It is to be asked again after each
    /// look that had an answer.
    pub fn next_look(&self, tip: u16, now: Moment) -> Look {
        let Some(tip) = self.tips.get(usize::from(tip)) else {
            return Look::Nowhere;
        };
        let mut ledger = tip.ledger();
        let look = ledger.next_look(now);
        tip.publish(&ledger);
        let epoch = ledger.epoch();
        drop(ledger);
        if let Look::Undone(from) = look {
            tip.count_reorg(from, epoch);
        }
        look
    }

    /// A look has had no answer.
    pub fn look_failed(&self, tip: u16) {
        if let Some(tip) = self.tips.get(usize::from(tip)) {
            tip.ledger().look_failed();
        }
    }

    /// The right to look at a tip's blocks; `None` while another has it.
    pub fn look(&self, tip: u16) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let tip = self.tips.get(usize::from(tip))?;
        tip.known.looking.try_lock().ok()
    }

    /// How long a tip need not be asked for yet, since an answer has confirmed
    /// it; nothing where it should be asked now.
    pub fn rest(&self, tip: u16, now: Moment) -> Duration {
        let Some(tip) = self.tips.get(usize::from(tip)) else {
            return Duration::ZERO;
        };
        let confirmed = Moment::from_nanos(tip.confirmed.load(Ordering::Acquire));
        (confirmed + tip.source.every).since(now)
    }

    /// Has a tip asked for soon, out of turn.
    pub fn want(&self, tip: u16) {
        if let Some(tip) = self.tips.get(usize::from(tip)) {
            tip.bell.notify_one();
        }
    }

    /// Waits until a tip should be asked for, out of turn.
    pub async fn wanted(&self, tip: u16) {
        match self.tips.get(usize::from(tip)) {
            Some(tip) => tip.bell.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The height of a block that stands in the chain.
    pub fn height_of(&self, tip: u16, hash: &Hash) -> Option<u32> {
        self.tips.get(usize::from(tip))?.ledger().height_of(hash)
    }

    /// The hash of the block at a height.
    pub fn hash_at(&self, tip: u16, height: u32) -> Option<Hash> {
        self.tips.get(usize::from(tip))?.ledger().hash_at(height)
    }

    /// The height of a block whose standing would prove that a recent answer of
    /// an epoch before still holds.
    pub fn anchor(&self, standing: &ChainStamp) -> Option<u32> {
        let tip = self.tips.get(usize::from(standing.tip))?;
        match standing.class {
            Class::Recent => tip.ledger().anchor(standing.epoch(), standing.highest),
            Class::Final | Class::Live | Class::Absent => None,
        }
    }

    /// The tip's height, where it is certain.
    pub fn tip(&self, tip: u16) -> Option<u32> {
        let tip = self.tips.get(usize::from(tip))?.ledger().tip();
        tip.filter(|(_, certain)| *certain)
            .map(|(height, _)| height)
    }

    /// The present epoch of a tip.
    pub fn epoch(&self, tip: u16) -> Epoch {
        let tip = self.tips.get(usize::from(tip));
        tip.map_or(ledger::NO_EPOCH, |tip| tip.epoch.load(Ordering::Acquire))
    }

    /// Notes where transactions stand in a stored window.
    pub fn note_runs(&self, place: TransactionLocation, txs: impl Iterator<Item = Hash>) {
        let mut runs = lock(&self.runs);
        for tx in txs {
            runs.note(tx, place);
        }
    }

    /// Where a transaction was seen in a window.
    pub fn find_run(&self, tx: &Hash) -> Option<TransactionLocation> {
        lock(&self.runs).find(tx)
    }

    /// How each tip is known.
    pub fn snapshots(&self, now: Moment) -> Vec<TipSnapshot> {
        self.tips.iter().map(|tip| tip.standing(now)).collect()
    }
}

impl Known {
    fn new(source: &TipSource, bounds: LedgerBounds) -> Self {
        Self {
            first: watch::Sender::new(source.path.is_none()),
            epoch: AtomicU64::new(ledger::NO_EPOCH),
            confirmed: AtomicU64::new(0),
            checked_from: AtomicU64::new(0),
            checked_until: AtomicU64::new(0),
            ledger: Mutex::new(Ledger::new(bounds)),
            looking: tokio::sync::Mutex::new(()),
            bell: Notify::new(),
            probes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            reorgs: AtomicU64::new(0),
            trouble: Mutex::new(None),
        }
    }
}

impl Deref for Tip {
    type Target = Known;

    fn deref(&self) -> &Known {
        &self.known
    }
}

impl Tip {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    fn is_known(&self, now: Moment) -> bool {
        let confirmed = self.confirmed.load(Ordering::Acquire);
        confirmed > 0 && now.since(Moment::from_nanos(confirmed)) <= self.source.patience()
    }

    /// When the tip was lost, if it is not known.
    fn lost_at(&self, now: Moment) -> Option<Moment> {
        let confirmed = Moment::from_nanos(self.confirmed.load(Ordering::Acquire));
        (!self.is_known(now)).then(|| confirmed + self.source.patience())
    }

    /// Shows all runtimes what hits go by. What shortens freshness is stored
    /// before what lengthens it, and [`until`](Self::until) reads it the other
    /// way round: so nobody sees the second without the first.
    fn publish(&self, ledger: &Ledger) {
        let (from, until) = ledger.checks().stretch();
        self.checked_from.store(from.nanos(), Ordering::Release);
        self.checked_until.store(until.nanos(), Ordering::Release);
        self.epoch.store(ledger.epoch(), Ordering::Release);
    }

    /// Until when an answer of the present epoch is fresh, where the tip is
    /// known.
    fn until(&self, class: Class, received: Moment, lifetime: Duration) -> Moment {
        if class != Class::Live {
            return received + lifetime;
        }
        let until = Moment::from_nanos(self.checked_until.load(Ordering::Acquire));
        let from = Moment::from_nanos(self.checked_from.load(Ordering::Acquire));
        let known = checked_until((from, until), received);
        (known + lifetime).min(received + lifetime * MOST_CHECKED)
    }

    /// What an answer of the present epoch is good for, that is fresh until a
    /// moment where the tip is known.
    fn within_epoch(
        &self,
        times: &FinalitySettings,
        received: Moment,
        until: Moment,
        now: Moment,
    ) -> Freshness {
        let known = self.is_known(now);
        let bound = match known {
            true => until,
            false => until.min(received + times.recent_ttl),
        };
        let left = bound.since(now);
        if !left.is_zero() {
            let confirmed = Moment::from_nanos(self.confirmed.load(Ordering::Acquire));
            let next = confirmed.max(received) + self.source.every;
            return Freshness::Fresh {
                ttl: match known {
                    true => left.min(next.since(now)),
                    false => left,
                },
            };
        }
        let mut ended = bound;
        if !known {
            // Until the tip was lost, the epoch kept it fresh.
            let confirmed = Moment::from_nanos(self.confirmed.load(Ordering::Acquire));
            ended = ended.max((confirmed + self.source.patience()).min(until));
        }
        Freshness::Stale {
            by: now.since(ended),
        }
    }

    fn fail(&self, why: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let before = lock(&self.trouble).replace(why.clone());
        if before.as_deref() != Some(&*why) {
            tracing::warn!(
                tip = &*self.source.name,
                upstream = &*self.source.upstream_name,
                why,
                "the tip cannot be learned: recent answers are kept by chain.recent_ttl alone"
            );
        }
        self.first.send_replace(true);
    }

    fn count(&self, told: Told) {
        if let Some(height) = told.orphaned {
            self.count_reorg(height, told.epoch);
        }
    }

    fn count_reorg(&self, height: u32, epoch: Epoch) {
        self.reorgs.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            tip = &*self.source.name,
            height,
            epoch,
            "a reorg: what names blocks at this height or above is forgotten"
        );
    }

    fn standing(&self, now: Moment) -> TipSnapshot {
        let confirmed = self.confirmed.load(Ordering::Acquire);
        let ledger = self.ledger();
        let height = ledger.tip().map(|(height, _)| height);
        TipSnapshot {
            name: self.source.name.to_string(),
            upstream: self.source.upstream_name.to_string(),
            path: self.source.path.as_deref().map(str::to_owned),
            known: self.is_known(now),
            known_once: confirmed > 0,
            height,
            hash: height.and_then(|h| ledger.hash_at(h)).map(|h| hex(&h)),
            epoch: ledger.epoch(),
            confirmed_seconds_ago: (confirmed > 0)
                .then(|| now.since(Moment::from_nanos(confirmed)).as_secs_f64()),
            probes: self.probes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            reorgs: self.reorgs.load(Ordering::Relaxed),
            blocks: ledger.len(),
            trouble: lock(&self.trouble).clone(),
        }
    }
}

/// What these guard is whole after each operation, so a panic elsewhere has
/// spoilt nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
