//! One indexer's tip: its ledger, what hits need of it without a lock, and the state of
//! the requests for its status.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::freshness::{Epoch, Pace, View};
use super::ledger::Ledger;
use super::{TipSource, lock};
use crate::clock::Moment;
use crate::pages::hex;

/// One indexer's tip.
pub(super) struct Tip {
    pub(super) source: TipSource,
    /// What is known of it, which outlives a reload.
    pub(super) state: Arc<TipState>,
}

/// What is known of a tip.
pub(super) struct TipState {
    pub(super) ledger: Mutex<Ledger>,
    /// What hits need of the ledger.
    pub(super) view: ArcSwap<View>,
    /// When the last request was sent whose answer was a status, in nanoseconds; 0 for
    /// never.
    confirmed: AtomicU64,
    /// The time from one status to the next if it is longer than usual, in nanoseconds.
    interval: AtomicU64,
    /// Held while blocks are asked for.
    pub(super) checking: tokio::sync::Mutex<()>,
    /// Notified when the status should be asked for before the next is due.
    pub(super) probe_request: Notify,
    /// Whether the first request for the status has ended, or there is none.
    pub(super) first_probe: watch::Sender<bool>,
    /// What is known of an earlier run's blocks.
    pub(super) seed: watch::Sender<SeedState>,
    probes: AtomicU64,
    failures: AtomicU64,
    /// Why the last request for the status failed.
    trouble: Mutex<Option<String>>,
}

/// What is known of an earlier run's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeedState {
    /// The first request for the highest of them has not ended.
    Pending,
    /// It had no answer yet.
    Unanswered,
    /// It was answered, or there are none.
    Done,
}

/// A snapshot of a tip for /status and /metrics.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TipSnapshot {
    /// Its name.
    pub(crate) name: String,
    /// Its upstream.
    pub(crate) upstream: String,
    /// Its status path.
    pub(crate) path: Option<String>,
    /// Whether a status has confirmed it lately; else freshness goes by time.
    pub(crate) known: bool,
    /// Whether it has ever been known.
    pub(crate) known_once: bool,
    /// Its height.
    pub(crate) height: Option<u32>,
    /// The hash of the block there.
    pub(crate) hash: Option<String>,
    /// The present epoch.
    pub(crate) epoch: Epoch,
    /// The height of the block that a check asks for; while there is one, nothing becomes
    /// final.
    pub(crate) checking: Option<u32>,
    /// Seconds since the last request was sent whose answer was a status.
    pub(crate) confirmed_seconds_ago: Option<f64>,
    /// Requests for the status.
    pub(crate) probes: u64,
    /// Those that failed.
    pub(crate) failures: u64,
    /// Seconds since its status reported another tip than before.
    pub(crate) moved_seconds_ago: Option<f64>,
    /// Reorgs seen.
    pub(crate) reorgs: u64,
    /// The last of them.
    pub(crate) last_reorg: Option<ReorgSnapshot>,
    /// Heights whose hash is known.
    pub(crate) blocks: usize,
    /// Why the last request for the status failed.
    pub(crate) trouble: Option<String>,
}

/// The last reorg, for /status.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReorgSnapshot {
    /// Seconds since it was found.
    pub(crate) seconds_ago: f64,
    /// How many blocks it replaced, up to the tip.
    pub(crate) blocks: u32,
}

impl TipState {
    pub(super) fn new(source: &TipSource) -> Self {
        let ledger = Ledger::default();
        Self {
            view: ArcSwap::from_pointee(ledger.view(0)),
            ledger: Mutex::new(ledger),
            confirmed: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            checking: tokio::sync::Mutex::new(()),
            probe_request: Notify::new(),
            first_probe: watch::Sender::new(source.path.is_none()),
            seed: watch::Sender::new(SeedState::Done),
            probes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            trouble: Mutex::new(None),
        }
    }
}

impl Deref for Tip {
    type Target = TipState;

    fn deref(&self) -> &TipState {
        &self.state
    }
}

impl Tip {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Changes the ledger, and makes what hits need of it visible to all threads before
    /// this returns. Blocks `depth` below the tip are final.
    pub(super) fn change<T>(&self, depth: u32, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut ledger = self.ledger();
        let (reorgs, moved) = (ledger.reorgs(), ledger.moved());
        let changed = change(&mut ledger);
        self.view.store(Arc::new(ledger.view(depth)));
        if ledger.tip_height().is_some() && ledger.check().is_none() {
            self.seed.send_replace(SeedState::Done);
        }
        if moved < ledger.moved() {
            tracing::info!(
                tip = &*self.source.name,
                height = ledger.tip_height(),
                epoch = ledger.epoch(),
                "the tip has moved"
            );
        }
        if reorgs < ledger.reorgs() {
            tracing::info!(
                tip = &*self.source.name,
                stands = ledger.stands(),
                blocks = ledger.last_reorg().map(|(_, blocks)| blocks),
                epoch = ledger.epoch(),
                "reorg: responses that name blocks above the highest one that stands are purged"
            );
        }
        changed
    }

    /// The time from one status to the next.
    pub(super) fn interval(&self) -> Duration {
        let longer = Duration::from_nanos(self.interval.load(Ordering::Relaxed));
        self.source.every.max(longer)
    }

    /// Sets the time from one status to the next, if it is longer than usual.
    pub(super) fn set_interval(&self, interval: Duration) {
        let nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.interval.store(nanos, Ordering::Relaxed);
    }

    pub(super) fn pace(&self) -> Pace {
        Pace {
            confirmed: Moment::from_nanos(self.confirmed.load(Ordering::Acquire)),
            interval: self.interval(),
        }
    }

    /// Notes that the answer to a request sent at a moment was a status.
    pub(super) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.nanos(), Ordering::AcqRel);
        let before = lock(&self.trouble).take();
        if before.is_some() {
            tracing::info!(tip = &*self.source.name, "the tip is known again");
        }
        self.first_probe.send_replace(true);
    }

    pub(super) fn is_known(&self, now: Moment) -> bool {
        now <= self.pace().known_until()
    }

    /// When the tip was lost, if it was known and is no more.
    pub(super) fn lost_at(&self, now: Moment) -> Option<Moment> {
        let until = self.pace().known_until();
        (Moment::default() < until && until < now).then_some(until)
    }

    pub(super) fn count_probe(&self) {
        self.probes.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request for the status failed, and why.
    pub(super) fn fail(&self, why: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let before = lock(&self.trouble).replace(why.clone());
        if before.as_deref() != Some(&*why) {
            tracing::warn!(
                tip = &*self.source.name,
                upstream = &*self.source.upstream_name,
                why,
                "the tip is unknown: what is not final is fresh for a second only"
            );
        }
        self.first_probe.send_replace(true);
        self.seed_unanswered();
    }

    /// The request for an earlier run's highest block had no answer, or could not be sent.
    pub(super) fn seed_unanswered(&self) {
        self.seed.send_if_modified(|state| {
            let was_pending = *state == SeedState::Pending;
            if was_pending {
                *state = SeedState::Unanswered;
            }
            was_pending
        });
    }

    pub(super) fn snapshot(&self, now: Moment) -> TipSnapshot {
        let confirmed = self.pace().confirmed;
        let known_once = confirmed > Moment::default();
        let ledger = self.ledger();
        let height = ledger.tip_height();
        TipSnapshot {
            name: self.source.name.to_string(),
            upstream: self.source.upstream_name.to_string(),
            path: self.source.path.as_deref().map(str::to_owned),
            known: self.is_known(now),
            known_once,
            height,
            hash: height.and_then(|h| ledger.hash_at(h)).map(|h| hex(&h)),
            epoch: ledger.epoch(),
            checking: ledger.check().map(|(height, _)| height),
            confirmed_seconds_ago: known_once.then(|| now.since(confirmed).as_secs_f64()),
            probes: self.probes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            moved_seconds_ago: ledger.moved().map(|at| now.since(at).as_secs_f64()),
            reorgs: ledger.reorgs(),
            last_reorg: ledger.last_reorg().map(|(at, blocks)| ReorgSnapshot {
                seconds_ago: now.since(at).as_secs_f64(),
                blocks,
            }),
            blocks: ledger.len(),
            trouble: lock(&self.trouble).clone(),
        }
    }
}
