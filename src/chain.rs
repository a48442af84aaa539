//! What ordgate knows of the chain: the tip and the epoch of each indexer, which
//! block is at which height, and whether a stored response is still valid.
//!
//! The status path, asked by [`crate::probe`], reports the tip ([`tip::Tip::apply_status`]); other
//! upstream answers name blocks ([`tip::Tip::apply_answer`]). The rules are in [`ledger`] and [`freshness`], and are
//! pure. The cache calls [`tip::Tip::freshness`] for each hit, which takes no lock. Everything
//! else is behind a lock for each tip and one for the index of transactions, held for
//! arithmetic only.
//!
//! Invariant: the end of an epoch is visible on all threads before the answer that
//! showed it is served.
//!
//! Deliberately absent: the store (the fill purges after a reorg), and when
//! upstream requests are sent.

pub(crate) mod freshness;
pub(crate) mod ledger;
pub(crate) mod tip;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::clock::Moment;
use crate::events::Events;
use crate::pages::Hash;
use crate::sync::lock;
pub use freshness::Class;
pub(crate) use freshness::{ChainStamp, Freshness};
pub(crate) use freshness::{Epoch, FinalitySettings, TipNumber};
pub(crate) use tip::Progress;
use tip::Tip;
pub use tip::TipSource;

/// The settings of mode `chain`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Final depth and freshness lifetimes.
    pub(crate) times: FinalitySettings,
    /// Where tips are asked for. The last ones have no status path: they are for routes
    /// whose indexer has none, one for each upstream.
    pub tips: Vec<TipSource>,
}

#[cfg(test)]
impl Settings {
    /// Those of tests: one tip, which is asked for every 5 s.
    pub(crate) fn of_tests() -> Self {
        Self {
            times: FinalitySettings::default(),
            tips: vec![TipSource {
                name: "runes".into(),
                path: Some("/".into()),
                every: std::time::Duration::from_secs(5),
                upstream: 0,
                upstream_name: "default".into(),
            }],
        }
    }
}

/// Standby endpoints are probed so many times less often than the active one while they
/// are healthy.
pub(crate) const STANDBYS_SELDOM: u32 = 3;

/// Where a transaction was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionLocation {
    /// The route of its block's activity.
    pub(crate) route: u16,
    /// The block's height.
    pub(crate) height: u32,
    /// The window's offset.
    pub(crate) offset: u64,
}

/// The most transactions of which it is known where they are; then all are forgotten.
const MOST_TRANSACTIONS: usize = 1 << 16;

/// The chain as each indexer reports it.
pub struct Chain {
    /// Final depth and freshness lifetimes.
    pub(crate) finality: FinalitySettings,
    tips: Box<[Tip]>,
    /// What any other number means: a tip that is never known.
    no_tip: Tip,
    /// In which window a transaction was last seen.
    transactions: Arc<Mutex<HashMap<Hash, TransactionLocation>>>,
    /// What listeners are told of it.
    pub(crate) events: Arc<Events>,
}

impl Chain {
    /// A chain of which nothing is known.
    pub(crate) fn new(settings: &Settings) -> Self {
        let finality = settings.times.clone();
        let tip = |source| Tip::new(source, &finality);
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
        chain.events = before.events.clone();
        for (tip, old) in chain.tips.iter_mut().zip(&before.tips) {
            let (new, known) = (&tip.source, &old.source);
            let is_same = (&new.name, &new.path) == (&known.name, &known.path);
            if is_same && new.upstream_name == known.upstream_name {
                tip.state = old.state.clone();
                // The depth at which blocks are final may be another.
                tip.change(|_| ());
            }
        }
        chain
    }

    /// A chain without tips: for routes whose freshness goes by time.
    pub fn without_tips() -> Self {
        let finality = FinalitySettings::default();
        Self {
            no_tip: Tip::new(&TipSource::default(), &finality),
            finality,
            tips: Box::default(),
            transactions: Arc::default(),
            events: Arc::default(),
        }
    }

    /// Whether what was stored for a tip under the previous configuration is still
    /// valid under this one.
    pub(crate) fn accepts_stamps_of(&self, before: &Self, tip: TipNumber) -> bool {
        Arc::ptr_eq(&self.tip(tip).state, &before.tip(tip).state)
            && self.finality == before.finality
    }

    /// Tells listeners what a status of a tip has changed, if anything.
    pub(crate) fn announce(&self, tip: TipNumber, now: Moment) {
        let tip = self.tip(tip);
        let known = tip.read(|ledger| Some((ledger.tip_height()?, ledger.tip_mark()?)));
        // Not while the ledger is locked: all listeners are woken.
        if let Some((height, (_, mark))) = known {
            let is_settled = tip.view().began + self.finality.live_ttl <= now;
            (self.events).status(&tip.source.name, height, &mark, is_settled);
        }
    }

    /// One of the tips; one that is never known where there is none of this number.
    pub(crate) fn tip(&self, tip: TipNumber) -> &Tip {
        self.tips.get(usize::from(tip)).unwrap_or(&self.no_tip)
    }

    /// The stamp of an answer of an epoch, whose request was sent at `sent`, that names blocks from
    /// one height to another, and has this class until they are final.
    pub(crate) fn stamp(
        &self,
        tip: TipNumber,
        (class, heights): (Class, Option<(u32, u32)>),
        epoch: Epoch,
        sent: Moment,
    ) -> ChainStamp {
        let view = self.tip(tip).view();
        ChainStamp {
            class: view.classify(class, heights),
            tip,
            epoch,
            heights,
            is_settled: view.began + self.finality.live_ttl <= sent,
        }
    }

    /// The hash of the block at a height.
    pub fn hash_at(&self, tip: TipNumber, height: u32) -> Option<Hash> {
        self.tip(tip).read(|ledger| ledger.hash_at(height))
    }

    /// Notes that transactions are in a stored window.
    pub(crate) fn note_transactions(
        &self,
        location: TransactionLocation,
        txs: impl Iterator<Item = Hash>,
    ) {
        let mut known = lock(&self.transactions);
        if known.len() >= MOST_TRANSACTIONS {
            known.clear();
        }
        known.extend(txs.map(|tx| (tx, location)));
    }

    /// The window in which a transaction was last seen, if that is still known: a hint, which
    /// may be out of date, so its user looks into the window itself.
    pub(crate) fn find_transaction(&self, tx: &Hash) -> Option<TransactionLocation> {
        lock(&self.transactions).get(tx).copied()
    }

    /// The tips, with their numbers.
    pub(crate) fn tips(&self) -> impl Iterator<Item = (TipNumber, &Tip)> {
        (0..).zip(&self.tips)
    }
}
