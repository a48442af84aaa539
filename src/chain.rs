//! What ordgate knows of the chain: the tip and the epoch of each indexer, which
//! block is at which height, and whether a stored response is still valid.
//!
//! Probes report the tip ([`Chain::apply_status`]), other upstream answers mention blocks
//! ([`Chain::apply_answer`]). The cache calls [`Chain::freshness`] for each hit, which
//! takes no lock while the epoch is unchanged. Everything else is behind a lock for
//! each tip and one for the index of transactions, held for arithmetic only.
//!
//! Invariant: the end of an epoch is visible on all threads before the answer that
//! showed it is served.
//!
//! Deliberately absent: the store (the fill purges after a reorg), and when
//! upstream requests are sent.

pub(crate) mod finality;
mod freshness;
pub(crate) mod ledger;
pub(crate) mod live_checks;
mod seed;
mod settings;
mod stamp;
mod tip;
mod transaction_index;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Moment;
use crate::pages::Hash;
use crate::sync::lock;
use finality::{FinalitySettings, is_deep};
pub(crate) use freshness::Freshness;
use ledger::{
    Epoch, ForkCheck, LedgerBounds, LedgerUpdate, Observation, ObservationResult, RequestStart,
};
pub(crate) use seed::SeedState;
pub(crate) use settings::{INDEX_BLOCKS, STANDBYS_SELDOM};
pub use settings::{Settings, TipSource};
pub(crate) use stamp::ChainStamp;
pub(crate) use tip::TipSnapshot;
use tip::{Tip, TipState};
use transaction_index::TransactionIndex;
pub(crate) use transaction_index::TransactionLocation;

/// The number of a tip, by which routes and stamps name it.
pub(crate) type TipNumber = u16;

/// The chain as each indexer reports it.
pub struct Chain {
    finality: FinalitySettings,
    tips: Box<[Tip]>,
    transactions: Arc<Mutex<TransactionIndex>>,
}

impl Chain {
    /// A chain of which nothing is known.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self::build(settings, Arc::default(), |_, _| None)
    }

    /// The chain after a reload. It shares the state of each tip that has the same
    /// number and the same indexer as before.
    pub(crate) fn after(before: &Self, settings: &Settings) -> Self {
        let state = |number: usize, source: &TipSource| {
            let tip = before.tips.get(number)?;
            let same = tip.source.is_same_indexer(source);
            same.then(|| tip.state.clone())
        };
        Self::build(settings, before.transactions.clone(), state)
    }

    fn build(
        settings: &Settings,
        transactions: Arc<Mutex<TransactionIndex>>,
        state: impl Fn(usize, &TipSource) -> Option<Arc<TipState>>,
    ) -> Self {
        let bounds = LedgerBounds {
            blocks: settings.index_blocks,
            margin: settings.times.final_depth.saturating_mul(2),
            write_time: settings.times.live_ttl,
        };
        let tip = |(number, source): (usize, &TipSource)| {
            let state = state(number, source);
            let state = state.unwrap_or_else(|| Arc::new(TipState::new(source, bounds)));
            lock(&state.ledger).set_bounds(bounds);
            Tip {
                source: source.clone(),
                state,
            }
        };
        Self {
            finality: settings.times.clone(),
            tips: settings.tips.iter().enumerate().map(tip).collect(),
            transactions,
        }
    }

    /// A chain without tips: for routes whose freshness goes by time.
    pub fn without_tips() -> Self {
        Self {
            finality: FinalitySettings::default(),
            tips: Box::default(),
            transactions: Arc::default(),
        }
    }

    /// Whether what was stored for a tip under the previous configuration is still
    /// valid under this one.
    pub(crate) fn accepts_stamps_of(&self, before: &Self, tip: TipNumber) -> bool {
        let (one, other) = (
            self.tips.get(usize::from(tip)),
            before.tips.get(usize::from(tip)),
        );
        let same = one
            .zip(other)
            .is_some_and(|(one, other)| Arc::ptr_eq(&one.state, &other.state));
        same && self.finality.keep(&before.finality)
    }

    /// Final depth and freshness lifetimes.
    pub(crate) const fn finality(&self) -> &FinalitySettings {
        &self.finality
    }

    /// The number of tips.
    pub(crate) fn len(&self) -> usize {
        self.tips.len()
    }

    fn tip_of(&self, stamp: &ChainStamp) -> Option<&Tip> {
        self.tips.get(usize::from(stamp.tip))
    }

    fn tip_at(&self, tip: TipNumber) -> Option<&Tip> {
        self.tips.get(usize::from(tip))
    }

    /// How a tip is probed.
    pub(crate) fn source(&self, tip: TipNumber) -> Option<&TipSource> {
        self.tip_at(tip).map(|tip| &tip.source)
    }

    /// The state of a tip's ledger, to be taken before a request is sent to its
    /// indexer.
    pub(crate) fn request_start(&self, tip: TipNumber) -> Option<RequestStart> {
        Some(self.tip_at(tip)?.ledger().start())
    }

    /// Waits until the first probe of a tip has ended, at most for `max_wait`: without a
    /// tip an answer has no certain class.
    pub(crate) async fn first_probe(&self, tip: TipNumber, max_wait: Duration) {
        if let Some(tip) = self.tip_at(tip) {
            let mut first = tip.first_probe.subscribe();
            if !*first.borrow() {
                let ended = first.wait_for(|ended| *ended);
                let _in_time = tokio::time::timeout(max_wait, ended).await;
            }
        }
    }

    /// Sets which endpoint of the upstream reports the next status.
    pub(crate) fn set_status_endpoint(&self, tip: TipNumber, endpoint: u16) {
        if let Some(tip) = self.tip_at(tip) {
            tip.ledger().set_status_endpoint(endpoint);
        }
    }

    /// Applies a status, requested at `sent`. `None` where it should be requested
    /// again at once.
    pub(crate) fn apply_status(
        &self,
        tip: TipNumber,
        start: RequestStart,
        sent: Moment,
        height: Option<u32>,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<LedgerUpdate> {
        let tip = self.tip_at(tip)?;
        let mut ledger = tip.ledger();
        if height.is_none() && !ledger.has_status() {
            drop(ledger);
            let member = &tip.source.height;
            tip.fail(format!(
                "its status has no {member}: the index is empty, or the member has another name"
            ));
            return None;
        }
        ledger.set_tip_lost(tip.lost_at(now));
        let update = ledger.status(start, height, tag, now);
        tip.publish(&ledger);
        if let Some(update) = update {
            tip.report_reorg(update.orphaned, update.epoch);
            tip.confirm(sent);
        }
        drop(ledger);
        tip.succeed();
        update
    }

    /// A probe had no answer, or one without a tip.
    pub(crate) fn probe_failed(&self, tip: TipNumber, why: String) {
        if let Some(tip) = self.tip_at(tip) {
            tip.fail(why);
            tip.count_probe();
        }
    }

    /// A probe has ended with a status.
    pub(crate) fn count_probe(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.count_probe();
        }
    }

    /// Applies an answer that is not a status, requested at `sent`.
    pub(crate) fn apply_answer(
        &self,
        tip: TipNumber,
        start: RequestStart,
        sent: Moment,
        observation: Observation<'_>,
        now: Moment,
    ) -> ObservationResult {
        let Some(tip) = self.tip_at(tip) else {
            return ObservationResult::Outdated;
        };
        let mut ledger = tip.ledger();
        ledger.set_tip_lost(tip.lost_at(now));
        let result = ledger.observe(start, observation, now);
        tip.publish(&ledger);
        drop(ledger);
        if let ObservationResult::Applied(update) = result {
            tip.report_reorg(update.orphaned, update.epoch);
            if update.confirms_tip {
                // As good as a probe.
                tip.confirm(sent);
            }
            if update.needs_probe {
                tip.probe_request.notify_one();
            }
        }
        result
    }

    /// The next step of the search for the fork point after a change of tip. Call it
    /// again after each check that was answered, and purge what it reports as
    /// orphaned.
    pub(crate) fn next_fork_check(&self, tip: TipNumber, now: Moment) -> ForkCheck {
        let Some(tip) = self.tip_at(tip) else {
            return ForkCheck::None;
        };
        let mut ledger = tip.ledger();
        let check = ledger.next_fork_check(now);
        tip.publish(&ledger);
        let epoch = ledger.epoch();
        let orphaned = match check {
            ForkCheck::Orphaned(from) => Some(from),
            ForkCheck::At(_) | ForkCheck::None => None,
        };
        drop(ledger);
        tip.report_reorg(orphaned, epoch);
        check
    }

    /// A check had no answer.
    pub(crate) fn fork_check_failed(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.ledger().fork_check_failed();
        }
    }

    /// Locks the search for a tip's fork point; `None` while it is locked.
    pub(crate) fn lock_fork_search(
        &self,
        tip: TipNumber,
    ) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.tip_at(tip)?.state.fork_search.try_lock().ok()
    }

    /// The time until the next probe of a tip is due, counted from the last answer
    /// that confirmed it; zero where one is due.
    pub(crate) fn until_next_probe(&self, tip: TipNumber, now: Moment) -> Duration {
        self.tip_at(tip).map_or(Duration::ZERO, |tip| {
            (tip.confirmed() + tip.interval()).since(now)
        })
    }

    /// Sets the time from one status of a tip to the next, if it is longer than usual. A tip
    /// is known for two of them.
    pub(crate) fn set_tip_interval(&self, tip: TipNumber, interval: Duration) {
        if let Some(tip) = self.tip_at(tip) {
            tip.set_interval(interval);
        }
    }

    /// Requests a probe of a tip before the next is due.
    pub(crate) fn request_probe(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.probe_request.notify_one();
        }
    }

    /// Waits until a probe of a tip is requested.
    pub(crate) async fn probe_requested(&self, tip: TipNumber) {
        match self.tip_at(tip) {
            Some(tip) => tip.probe_request.notified().await,
            None => std::future::pending().await,
        }
    }

    /// The height of a block in the chain.
    pub fn height_of(&self, tip: TipNumber, hash: &Hash) -> Option<u32> {
        self.tip_at(tip)?.ledger().height_of(hash)
    }

    /// The hash of the block at a height.
    pub fn hash_at(&self, tip: TipNumber, height: u32) -> Option<Hash> {
        self.tip_at(tip)?.ledger().hash_at(height)
    }

    /// The tip's height, where it is certain.
    pub fn tip_height(&self, tip: TipNumber) -> Option<u32> {
        let tip = self.tip_at(tip)?.ledger().tip();
        tip.filter(|(_, certain)| *certain)
            .map(|(height, _)| height)
    }

    /// Whether all blocks up to a height are final by the tip that is known here.
    pub(crate) fn is_final(&self, tip: TipNumber, highest: u32) -> bool {
        is_deep(highest, self.tip_height(tip), self.finality.final_depth)
    }

    /// The present epoch of a tip, and what any process calls its tip, if that is certain.
    pub(crate) fn tip_mark(&self, tip: TipNumber) -> Option<(Epoch, Vec<u8>)> {
        self.tip_at(tip)?.ledger().tip_mark()
    }

    /// The present epoch of a tip.
    pub fn epoch(&self, tip: TipNumber) -> Epoch {
        self.tip_at(tip).map_or(ledger::NO_EPOCH, Tip::epoch)
    }

    /// Notes that transactions are in a stored window.
    pub(crate) fn note_transactions(
        &self,
        location: TransactionLocation,
        txs: impl Iterator<Item = Hash>,
    ) {
        let mut transactions = lock(&self.transactions);
        for tx in txs {
            transactions.note(tx, location);
        }
    }

    /// The window in which a transaction was last seen.
    pub(crate) fn find_transaction(&self, tx: &Hash) -> Option<TransactionLocation> {
        lock(&self.transactions).find(tx)
    }

    /// A snapshot of each tip.
    pub(crate) fn snapshots(&self, now: Moment) -> Vec<TipSnapshot> {
        self.tips.iter().map(|tip| tip.snapshot(now)).collect()
    }
}
