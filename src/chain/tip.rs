//! One indexer's tip: its ledger, what hits need of it without a lock, and the state of
//! the requests for its status.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use super::TipSource;
use super::freshness::{Epoch, View};
use super::ledger::Ledger;
use crate::clock::Moment;
use crate::pages::hex;
use crate::sync::lock;

/// One indexer's tip.
pub(super) struct Tip {
    pub(super) source: TipSource,
    /// Blocks this far below it are final.
    pub(super) final_depth: u32,
    /// What is known of it, which outlives a reload.
    pub(super) state: Arc<TipState>,
}

/// What is known of a tip.
pub(super) struct TipState {
    ledger: Mutex<Ledger>,
    /// What hits need of the ledger.
    pub(super) view: ArcSwap<View>,
    /// Held while blocks are asked for.
    pub(super) checking: tokio::sync::Mutex<()>,
    /// Notified when the status should be asked for before the next is due.
    pub(super) probe_request: Notify,
    progress: watch::Sender<Progress>,
}

/// How much of a start is over, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// The first request for the status has not ended.
    Started,
    /// It has ended, but not the one for the highest block that an earlier run knew.
    Probed,
    /// One of the two had no answer.
    Unanswered,
    /// It is known which blocks of an earlier run stand; or there is no status path.
    Confirmed,
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

impl Tip {
    /// A tip of which nothing is known.
    pub(super) fn new(source: &TipSource, final_depth: u32) -> Self {
        let state = TipState {
            ledger: Mutex::default(),
            view: ArcSwap::from_pointee(Ledger::default().view(final_depth, source.every)),
            checking: tokio::sync::Mutex::default(),
            probe_request: Notify::new(),
            progress: watch::Sender::new(match source.path {
                Some(_) => Progress::Started,
                None => Progress::Confirmed,
            }),
        };
        Self {
            source: source.clone(),
            final_depth,
            state: Arc::new(state),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.state.ledger)
    }

    /// Changes the ledger, and makes what hits need of it visible to all threads before
    /// this returns.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut ledger = self.ledger();
        let (reorgs, moved) = (ledger.reorgs, ledger.moved);
        let changed = change(&mut ledger);
        let view = ledger.view(self.final_depth, self.source.every);
        self.state.view.store(Arc::new(view));
        if ledger.tip_height().is_some() && ledger.doubt.is_none() {
            self.advance(Progress::Confirmed);
        }
        let (tip, epoch) = (&*self.source.name, ledger.view.epoch);
        if moved < ledger.moved {
            let height = ledger.tip_height();
            tracing::info!(tip, height, epoch, "the tip has moved");
        }
        if reorgs < ledger.reorgs {
            let blocks = ledger.last_reorg.map(|(_, blocks)| blocks);
            tracing::info!(
                tip,
                stands = ledger.stands,
                blocks,
                epoch,
                "reorg: responses that name blocks above the highest one that stands are purged"
            );
        }
        changed
    }

    /// Notes how much of the start is over.
    pub(super) fn advance(&self, to: Progress) {
        self.state.progress.send_if_modified(|progress| {
            let is_more = *progress < to;
            *progress = to.max(*progress);
            is_more
        });
    }

    /// How much of the start is over, after a wait until that is `enough`, at most for
    /// `max_wait`.
    pub(super) async fn reach(&self, enough: Progress, max_wait: Duration) -> Progress {
        let mut progress = self.state.progress.subscribe();
        let known = *progress.borrow();
        if known < enough {
            let reached = progress.wait_for(|progress| *progress >= enough);
            let _in_time = tokio::time::timeout(max_wait, reached).await;
        }
        *self.state.progress.borrow()
    }

    pub(super) fn snapshot(&self, now: Moment) -> TipSnapshot {
        let view = self.state.view.load();
        let known_once = view.confirmed > Moment::default();
        let ledger = self.ledger();
        let height = ledger.tip_height();
        let ago = |at: Moment| now.since(at).as_secs_f64();
        TipSnapshot {
            name: self.source.name.to_string(),
            upstream: self.source.upstream_name.to_string(),
            path: self.source.path.as_deref().map(str::to_owned),
            known: now <= view.known_until(),
            known_once,
            height,
            hash: height.and_then(|h| ledger.hash_at(h)).map(|h| hex(&h)),
            epoch: ledger.view.epoch,
            checking: ledger.doubt.map(|doubt| doubt.height),
            confirmed_seconds_ago: known_once.then(|| ago(view.confirmed)),
            probes: ledger.probes,
            failures: ledger.failures,
            moved_seconds_ago: ledger.moved.map(ago),
            reorgs: ledger.reorgs,
            last_reorg: ledger.last_reorg.map(|(at, blocks)| ReorgSnapshot {
                seconds_ago: ago(at),
                blocks,
            }),
            blocks: ledger.blocks.len(),
            trouble: ledger.trouble.clone(),
        }
    }
}
