//! What ordgate knows of the chain: the tip and the epoch of each indexer, which
//! block is at which height, and whether a stored response is still valid.
//!
//! The status path reports the tip ([`Chain::apply_status`]), other upstream answers name
//! blocks ([`Chain::apply_answer`]). The rules are in [`ledger`] and [`freshness`], and are
//! pure. The cache calls [`Chain::freshness`] for each hit, which takes no lock while the
//! response is fresh. Everything else is behind a lock for each tip and one for the index
//! of transactions, held for arithmetic only.
//!
//! Invariant: the end of an epoch is visible on all threads before the answer that
//! showed it is served.
//!
//! Deliberately absent: the store (the fill purges after a reorg), and when
//! upstream requests are sent.

pub(crate) mod freshness;
pub(crate) mod ledger;
mod settings;
mod tip;
mod transactions;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::Moment;
use crate::pages::{Block, Hash};
pub use freshness::Class;
pub(crate) use freshness::{ChainStamp, Content, Freshness};
pub(crate) use freshness::{Epoch, FinalitySettings, TipNumber};
use ledger::{Applied, Observation, RequestStart};
pub(crate) use settings::STANDBYS_SELDOM;
pub use settings::{Settings, TipSource};
pub(crate) use tip::TipSnapshot;
use tip::{Progress, Tip};
pub(crate) use transactions::TransactionLocation;

/// The chain as each indexer reports it.
pub struct Chain {
    finality: FinalitySettings,
    tips: Box<[Tip]>,
    /// What any other number means: a tip that is never known.
    no_tip: Tip,
    /// In which window a transaction was last seen, by a slot of its hash.
    transactions: Arc<Mutex<Vec<Option<(Hash, TransactionLocation)>>>>,
}

impl Chain {
    /// A chain of which nothing is known.
    pub(crate) fn new(settings: &Settings) -> Self {
        let finality = settings.times.clone();
        let tip = |source| Tip::new(source, finality.final_depth);
        Self {
            tips: settings.tips.iter().map(tip).collect(),
            finality,
            ..Self::without_tips()
        }
    }

    /// The chain after a reload. It shares the state of each tip that has the same
    /// number and the same indexer as before.
    pub(crate) fn after(before: &Self, settings: &Settings) -> Self {
        let mut chain = Self::new(settings);
        chain.transactions = before.transactions.clone();
        for (tip, old) in chain.tips.iter_mut().zip(&before.tips) {
            if tip.source.is_same_indexer(&old.source) {
                tip.state = old.state.clone();
                // The depth at which blocks are final may be another.
                tip.change(|_| ());
            }
        }
        chain
    }

    /// A chain without tips: for routes whose freshness goes by time.
    pub fn without_tips() -> Self {
        Self {
            finality: FinalitySettings::default(),
            tips: Box::default(),
            no_tip: Tip::new(&TipSource::default(), 0),
            transactions: Arc::default(),
        }
    }

    /// Whether what was stored for a tip under the previous configuration is still
    /// valid under this one.
    pub(crate) fn accepts_stamps_of(&self, before: &Self, tip: TipNumber) -> bool {
        Arc::ptr_eq(&self.tip(tip).state, &before.tip(tip).state)
            && self.finality.keep(&before.finality)
    }

    /// Final depth and freshness lifetimes.
    pub(crate) const fn finality(&self) -> &FinalitySettings {
        &self.finality
    }

    /// The number of tips.
    pub(crate) fn len(&self) -> usize {
        self.tips.len()
    }

    fn tip(&self, tip: TipNumber) -> &Tip {
        self.tips.get(usize::from(tip)).unwrap_or(&self.no_tip)
    }

    /// Where a tip's status is asked for.
    pub(crate) fn source(&self, tip: TipNumber) -> Option<&TipSource> {
        self.tips.get(usize::from(tip)).map(|tip| &tip.source)
    }

    /// The state of a tip's ledger, to be taken before a request is sent to its
    /// indexer.
    pub(crate) fn request_start(&self, tip: TipNumber) -> RequestStart {
        self.tip(tip).ledger().start()
    }

    /// Waits until the first request for a tip's status has ended, at most for `max_wait`:
    /// without a tip an answer has no certain class.
    pub(crate) async fn first_probe(&self, tip: TipNumber, max_wait: Duration) {
        self.tip(tip).reach(Progress::Probed, max_wait).await;
    }

    /// Applies a status, requested at `sent`, here or by another replica: then it has no
    /// `start`. Returns from which height on everything is
    /// to be purged, if anything is.
    pub(crate) fn apply_status(
        &self,
        tip: TipNumber,
        (start, sent): (Option<RequestStart>, Moment),
        height: u32,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<u32> {
        let tip = self.tip(tip);
        let view = **tip.state.view.load();
        let is_lost = view.confirmed > Moment::default() && view.known_until() < now;
        let lost = is_lost.then(|| view.known_until());
        let purge = tip.change(|ledger| {
            ledger.view.confirmed = ledger.view.confirmed.max(sent);
            if ledger.trouble.take().is_some() {
                tracing::info!(tip = &*tip.source.name, "the tip is known again");
            }
            ledger.status(start, height, tag, lost, now)
        });
        tip.advance(Progress::Probed);
        purge
    }

    /// A request for a tip's status had no answer, or one without a tip.
    pub(crate) fn probe_failed(&self, tip: TipNumber, why: String) {
        let tip = self.tip(tip);
        let mut ledger = tip.ledger();
        ledger.probes += 1;
        ledger.failures += 1;
        if ledger.trouble.as_ref() != Some(&why) {
            tracing::warn!(
                tip = &*tip.source.name,
                upstream = &*tip.source.upstream_name,
                why,
                "the tip is unknown: what is not final is fresh for a second only"
            );
        }
        ledger.trouble = Some(why);
        drop(ledger);
        tip.advance(Progress::Unanswered);
    }

    /// A request for a tip's status was answered, and what follows was done.
    pub(crate) fn count_probe(&self, tip: TipNumber) {
        self.tip(tip).ledger().probes += 1;
    }

    /// Applies an answer that is not a status.
    pub(crate) fn apply_answer(
        &self,
        tip: TipNumber,
        start: RequestStart,
        observation: Observation<'_>,
        now: Moment,
    ) -> Applied {
        let tip = self.tip(tip);
        let interval = tip.state.view.load().interval;
        let applied = tip.change(|ledger| ledger.apply(start, observation, interval, now));
        if applied.asks_status {
            tip.state.probe_request.notify_one();
        }
        applied
    }

    /// The block that a check asks for, and the present epoch. A check that has the same
    /// result as before has had no answer that counts.
    pub(crate) fn block_check(&self, tip: TipNumber) -> Option<(u32, Epoch)> {
        self.tip(tip).ledger().check()
    }

    /// No route shows the block that a check asks for.
    pub(crate) fn cannot_check(&self, tip: TipNumber, now: Moment) {
        self.tip(tip).change(|ledger| ledger.cannot_check(now));
    }

    /// A check of an earlier run's blocks had no answer.
    pub(crate) fn check_unanswered(&self, tip: TipNumber) {
        self.tip(tip).advance(Progress::Unanswered);
    }

    /// Lets one task ask for a tip's blocks; `None` while another does.
    pub(crate) fn lock_check(&self, tip: TipNumber) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.tip(tip).state.checking.try_lock().ok()
    }

    /// Takes over the blocks that an earlier run knew of a tip, before the first status.
    pub(crate) fn seed(&self, tip: TipNumber, blocks: &[Block]) {
        let mut ledger = self.tip(tip).ledger();
        blocks.iter().for_each(|block| ledger.learn(*block));
    }

    /// Whether the blocks up to a height that an earlier run has seen are known to stand.
    pub(crate) fn stood(&self, tip: TipNumber, highest: u32) -> bool {
        self.tip(tip).ledger().stands >= Some(highest)
    }

    /// Whether it is not known yet which blocks of an earlier run stand, after a wait for the
    /// first check, at most for `patience`.
    pub(crate) async fn is_unconfirmed(&self, tip: TipNumber, patience: Duration) -> bool {
        self.tip(tip).reach(Progress::Unanswered, patience).await < Progress::Confirmed
    }

    /// The time until the next status of a tip is due; zero where one is due.
    pub(crate) fn until_next_probe(&self, tip: TipNumber, now: Moment) -> Duration {
        let view = self.tip(tip).state.view.load();
        (view.confirmed + view.interval).since(now)
    }

    /// Sets the time from one status of a tip to the next, if it is longer than usual. A tip
    /// is known for two of them.
    pub(crate) fn set_tip_interval(&self, tip: TipNumber, interval: Duration) {
        self.tip(tip)
            .change(|ledger| ledger.view.interval = interval);
    }

    /// Has a tip's status asked for before the next is due.
    pub(crate) fn request_probe(&self, tip: TipNumber) {
        self.tip(tip).state.probe_request.notify_one();
    }

    /// Waits until a status of a tip is asked for before the next is due.
    pub(crate) async fn probe_requested(&self, tip: TipNumber) {
        self.tip(tip).state.probe_request.notified().await;
    }

    /// The height of a block in the chain.
    pub fn height_of(&self, tip: TipNumber, hash: &Hash) -> Option<u32> {
        self.tip(tip).ledger().heights.get(hash).copied()
    }

    /// The hash of the block at a height.
    pub fn hash_at(&self, tip: TipNumber, height: u32) -> Option<Hash> {
        self.tip(tip).ledger().hash_at(height)
    }

    /// Whether all blocks up to a height are final by the tip that is known here.
    pub(crate) fn is_final(&self, tip: TipNumber, highest: u32) -> bool {
        self.tip(tip).state.view.load().is_final(highest)
    }

    /// What any process calls a tip.
    pub(crate) fn tip_mark(&self, tip: TipNumber) -> Option<(Epoch, Vec<u8>)> {
        let ledger = self.tip(tip).ledger();
        Some((ledger.view.epoch, ledger.tip_mark()?))
    }

    /// The present epoch of a tip.
    pub fn epoch(&self, tip: TipNumber) -> Epoch {
        self.tip(tip).state.view.load().epoch
    }

    /// The stamp of an answer of an epoch, whose request was sent at `sent`, and that names
    /// blocks from one height to another.
    pub(crate) fn stamp(
        &self,
        tip: TipNumber,
        (content, heights): (Content, Option<(u32, u32)>),
        epoch: Epoch,
        sent: Moment,
    ) -> ChainStamp {
        let view = self.tip(tip).state.view.load();
        ChainStamp {
            class: view.classify(content),
            tip,
            epoch,
            heights,
            is_settled: view.began + self.finality.live_ttl <= sent,
        }
    }

    /// Whether a stored response is fresh.
    pub(crate) fn freshness(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        lifetime: Duration,
        now: Moment,
    ) -> Freshness {
        let tip = self.tip(stamp.tip);
        let ended = || tip.ledger().ended.get(&stamp.epoch).copied();
        let view = tip.state.view.load();
        view.freshness(stamp, (received, lifetime), &self.finality, ended, now)
    }

    /// The age of a stored response: the time since it was received, or since the last
    /// status that left it fresh.
    pub(crate) fn age(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        freshness: Freshness,
        now: Moment,
    ) -> Duration {
        let view = self.tip(stamp.tip).state.view.load();
        now.since(match freshness {
            Freshness::Fresh { .. } => view.confirmed(stamp, received),
            Freshness::BecameFinal { .. } | Freshness::Stale { .. } => received,
        })
    }

    /// The `max-age` of a response that is stored now.
    pub(crate) fn client_lifetime(&self, class: Class, tip: TipNumber, now: Moment) -> Duration {
        let lifetime = class.lifetime();
        let tip = self.tip(tip);
        let is_known = now <= tip.state.view.load().known_until();
        match class {
            Class::Final | Class::Absent => lifetime,
            Class::Recent | Class::Live if is_known => lifetime.min(tip.source.known_for()),
            Class::Recent | Class::Live => lifetime.min(freshness::WITHOUT_TIP),
        }
    }

    /// A snapshot of each tip.
    pub(crate) fn snapshots(&self, now: Moment) -> Vec<TipSnapshot> {
        self.tips.iter().map(|tip| tip.snapshot(now)).collect()
    }
}
