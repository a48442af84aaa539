//! One indexer's tip: its ledger, what hits need of it without a lock, and the state
//! of its probes.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::finality::{Class, FinalitySettings};
use super::freshness::Freshness;
use super::ledger::{self, Epoch, Ledger, LedgerBounds};
use super::live_checks::UnchangedSpan;
use super::seed::SeedState;
use super::{TipSource, lock};
use crate::clock::Moment;
use crate::pages::hex;
use std::time::Duration;

/// One indexer's tip.
pub(super) struct Tip {
    pub(super) source: TipSource,
    /// What is known of it, which outlives a reload.
    pub(super) state: Arc<TipState>,
}

/// What is known of a tip.
pub(super) struct TipState {
    pub(super) ledger: Mutex<Ledger>,
    /// The present epoch of the ledger.
    epoch: AtomicU64,
    /// When the last request was sent whose answer confirmed the tip, in
    /// nanoseconds; 0 for never.
    confirmed: AtomicU64,
    /// The time from one status to the next, in nanoseconds.
    interval: AtomicU64,
    /// The ledger's span of live checks, in nanoseconds.
    unchanged_from: AtomicU64,
    unchanged_until: AtomicU64,
    /// Held while the fork point is searched.
    pub(super) fork_search: tokio::sync::Mutex<()>,
    /// Notified when a probe should be sent before the next is due.
    pub(super) probe_request: Notify,
    /// Whether the first probe has ended, or there are none.
    pub(super) first_probe: watch::Sender<bool>,
    /// What is known of an earlier run's blocks.
    pub(super) seed: watch::Sender<SeedState>,
    probes: AtomicU64,
    failures: AtomicU64,
    reorgs: AtomicU64,
    /// Why the last probe failed.
    trouble: Mutex<Option<String>>,
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
    /// Whether a probe has confirmed it lately; else freshness goes by time.
    pub(crate) known: bool,
    /// Whether it has ever been known.
    pub(crate) known_once: bool,
    /// Its height.
    pub(crate) height: Option<u32>,
    /// The hash of the block there.
    pub(crate) hash: Option<String>,
    /// The present epoch.
    pub(crate) epoch: Epoch,
    /// Seconds since the last successful probe was sent.
    pub(crate) confirmed_seconds_ago: Option<f64>,
    /// Probes sent.
    pub(crate) probes: u64,
    /// Probes that failed.
    pub(crate) failures: u64,
    /// Reorgs seen.
    pub(crate) reorgs: u64,
    /// Heights whose hash is known.
    pub(crate) blocks: usize,
    /// Why the last probe failed.
    pub(crate) trouble: Option<String>,
}

impl TipState {
    pub(super) fn new(source: &TipSource, bounds: LedgerBounds) -> Self {
        Self {
            ledger: Mutex::new(Ledger::new(bounds)),
            epoch: AtomicU64::new(ledger::NO_EPOCH),
            confirmed: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            unchanged_from: AtomicU64::new(0),
            unchanged_until: AtomicU64::new(0),
            fork_search: tokio::sync::Mutex::new(()),
            probe_request: Notify::new(),
            first_probe: watch::Sender::new(source.path.is_none()),
            seed: watch::Sender::new(SeedState::Done),
            probes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            reorgs: AtomicU64::new(0),
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

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
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

    /// When the last request was sent whose answer confirmed the tip.
    pub(super) fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// Notes that the answer to a request sent at a moment confirmed the tip.
    pub(super) fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.nanos(), Ordering::AcqRel);
    }

    pub(super) fn is_known(&self, now: Moment) -> bool {
        let confirmed = self.confirmed();
        confirmed > Moment::default() && now.since(confirmed) <= self.interval() * 2
    }

    /// When the tip was lost, if it is not known.
    pub(super) fn lost_at(&self, now: Moment) -> Option<Moment> {
        (!self.is_known(now)).then(|| self.confirmed() + self.interval() * 2)
    }

    /// Makes what hits need visible to all threads. What shortens freshness is stored
    /// before what lengthens it, and [`fresh_until`](Self::fresh_until) loads them
    /// the other way round, so that no thread sees the second without the first.
    pub(super) fn publish(&self, ledger: &Ledger) {
        let span = ledger.live_checks().span();
        self.unchanged_from
            .store(span.from.nanos(), Ordering::Release);
        self.unchanged_until
            .store(span.until.nanos(), Ordering::Release);
        self.epoch.store(ledger.epoch(), Ordering::Release);
    }

    /// Until when a response of the present epoch is fresh, where the tip is known.
    pub(super) fn fresh_until(&self, class: Class, received: Moment, lifetime: Duration) -> Moment {
        if class != Class::Live {
            return received + lifetime;
        }
        let until = Moment::from_nanos(self.unchanged_until.load(Ordering::Acquire));
        let from = Moment::from_nanos(self.unchanged_from.load(Ordering::Acquire));
        UnchangedSpan { from, until }.fresh_until(received, lifetime)
    }

    /// Whether a response of the present epoch is fresh, which is so until a moment
    /// where the tip is known.
    pub(super) fn freshness_in_epoch(
        &self,
        finality: &FinalitySettings,
        received: Moment,
        until: Moment,
        now: Moment,
    ) -> Freshness {
        let known = self.is_known(now);
        let bound = match known {
            true => until,
            false => until.min(received + finality.recent_ttl),
        };
        let left = bound.since(now);
        if !left.is_zero() {
            let next_probe = self.confirmed().max(received) + self.source.every;
            return Freshness::Fresh {
                ttl: match known {
                    true => left.min(next_probe.since(now)),
                    false => left,
                },
            };
        }
        let mut ended = bound;
        if !known {
            // Until the tip was lost, the epoch kept it fresh.
            ended = ended.max((self.confirmed() + self.interval() * 2).min(until));
        }
        Freshness::Stale {
            by: now.since(ended),
        }
    }

    pub(super) fn count_probe(&self) {
        self.probes.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a probe succeeded.
    pub(super) fn succeed(&self) {
        let before = lock(&self.trouble).take();
        if before.is_some() {
            tracing::info!(tip = &*self.source.name, "the tip is known again");
        }
        self.first_probe.send_replace(true);
    }

    /// Notes that a probe failed, and why.
    pub(super) fn fail(&self, why: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let before = lock(&self.trouble).replace(why.clone());
        if before.as_deref() != Some(&*why) {
            tracing::warn!(
                tip = &*self.source.name,
                upstream = &*self.source.upstream_name,
                why,
                "the tip is unknown: recent answers are fresh for chain.recent_ttl only"
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

    /// Counts and logs a reorg, if there was one.
    pub(super) fn report_reorg(&self, orphaned: Option<u32>, epoch: Epoch) {
        let Some(height) = orphaned else {
            return;
        };
        self.reorgs.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            tip = &*self.source.name,
            height,
            epoch,
            "reorg: responses that mention blocks at this height or above are purged"
        );
    }

    pub(super) fn snapshot(&self, now: Moment) -> TipSnapshot {
        let confirmed = self.confirmed();
        let known_once = confirmed > Moment::default();
        let ledger = self.ledger();
        let height = ledger.tip().map(|(height, _)| height);
        TipSnapshot {
            name: self.source.name.to_string(),
            upstream: self.source.upstream_name.to_string(),
            path: self.source.path.as_deref().map(str::to_owned),
            known: self.is_known(now),
            known_once,
            height,
            hash: height.and_then(|h| ledger.hash_at(h)).map(|h| hex(&h)),
            epoch: ledger.epoch(),
            confirmed_seconds_ago: known_once.then(|| now.since(confirmed).as_secs_f64()),
            probes: self.probes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            reorgs: self.reorgs.load(Ordering::Relaxed),
            blocks: ledger.len(),
            trouble: lock(&self.trouble).clone(),
        }
    }
}
