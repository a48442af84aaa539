//! Whether what another replica has stored may be used here.
//!
//! It must be of the same meaning of its route, no later record of the journal may match
//! it, and it must be fresh here. A response of mode `chain` must agree with what is known
//! here of the chain:
//!
//! | class | condition |
//! |---|---|
//! | final | its blocks are final by the tip here |
//! | recent | the tip by which it was fetched is the tip here, or a block that was seen here in an epoch that is linked to the present one |
//! | live, absent | the tip by which it was fetched is the tip here |

use std::sync::Arc;
use std::time::Duration;

use super::SharedTier;
use super::client_waits::Waiting;
use super::value::{self, LONG, MOST_PLAIN, SharedPosition};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::sequence::PurgeSequence;
use crate::chain::finality::Class;
use crate::chain::{Chain, Freshness, TipMark, TipNumber};
use crate::clock::Moment;
use crate::pages::Block;
use crate::portable::codec::KeptStamp;
use crate::portable::meanings::RouteMeaning;
use crate::portable::restore::{RestoredStamp, Restoring};
use crate::shared::journal::JournalPosition;

/// Why a value is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusableReason {
    /// It has another form, or is of another route.
    Foreign,
    /// It was purged, or it is not known whether it was.
    Purged,
    /// It is too old.
    Expired,
    /// It is not known whether it agrees with the chain as it is known here.
    Chain,
    /// It is long, and too many long ones are being opened.
    Busy,
}

impl UnusableReason {
    /// All reasons, as metrics name them.
    pub(super) const REASONS: [&'static str; 5] = ["foreign", "purged", "expired", "chain", "busy"];

    /// The index of its reason in [`REASONS`](Self::REASONS).
    pub(super) const fn index(self) -> usize {
        match self {
            Self::Foreign => 0,
            Self::Purged => 1,
            Self::Expired => 2,
            Self::Chain => 3,
            Self::Busy => 4,
        }
    }
}

/// What the tier has for a key, for `/explain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeekedEntry {
    /// Its age, where it can be read.
    pub(crate) age: Option<Duration>,
    /// Why it is not usable, if it is not.
    pub(crate) unusable: Option<&'static str>,
}

/// When the engine was asked, and what its clock showed.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineTime {
    /// The time of the engine, in milliseconds, between `sent` and `arrived`.
    pub(super) now_ms: u64,
    /// When the call was sent.
    pub(super) sent: Moment,
    /// When its reply arrived.
    pub(super) arrived: Moment,
}

impl EngineTime {
    /// The age at `arrived` of what was received at a time of the engine: at least its true
    /// age. `None` if that time has not come yet, since the engine's clock was set back.
    pub(super) fn age(self, received_ms: u64) -> Option<Duration> {
        let since = self.now_ms.checked_sub(received_ms)?;
        // Both times are rounded down.
        let most = Duration::from_millis(since.saturating_add(1));
        Some(most + self.arrived.since(self.sent))
    }

    /// The time of the engine at a later moment, or a little before.
    pub(super) fn at(self, moment: Moment) -> u64 {
        let since = moment.since(self.arrived).as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.now_ms.saturating_add(since)
    }
}

/// A response of another replica, as far as it can be told without what memory has.
pub(super) struct OpenedValue {
    stored: StoredResponse,
    journal: JournalPosition,
    /// The purges from before the journal is read.
    sequence: PurgeSequence,
}

/// A response of another replica that may be used here.
pub(crate) struct SharedResponse {
    /// The key under which it is to be stored in memory.
    pub(crate) own: Key,
    /// The response.
    pub(crate) stored: Box<StoredResponse>,
    /// The purges that it was checked against.
    pub(crate) sequence: PurgeSequence,
}

/// The chain stamp here of a response of another replica; `None` if it is not known
/// whether it is valid.
pub(super) fn stamp_here(
    chain: &Chain,
    tip: TipNumber,
    stamp: KeptStamp,
    mark: Option<TipMark>,
) -> Option<RestoredStamp> {
    let highest = stamp.heights.map(|(_, highest)| highest);
    let epoch = match stamp.class {
        Class::Final => chain.is_final(tip, highest?).then_some(chain.epoch(tip))?,
        Class::Recent => chain.marked_epoch(tip, mark?, Some(highest?))?.epoch,
        Class::Live | Class::Absent => {
            let marked = chain.marked_epoch(tip, mark?, highest)?;
            marked.is_present.then_some(marked.epoch)?
        }
    };
    Some(RestoredStamp {
        tip,
        class: stamp.class,
        epoch,
        heights: stamp.heights,
    })
}

impl SharedTier {
    /// Makes a stored response of a value that was found for a key. `own_key` says under
    /// which key it is stored in memory. A long value is opened on a thread of its own, if
    /// the client may have it opened.
    pub(super) async fn restore(
        self: &Arc<Self>,
        (client, route): (Waiting, RouteMeaning),
        key: &Key,
        found: Vec<u8>,
        time: EngineTime,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> Result<SharedResponse, UnusableReason> {
        let short = (found.len() <= LONG).then(|| self.open(route, key, &found, time, LONG));
        let opened = match short {
            Some(Err(UnusableReason::Foreign)) | None => {
                let permit = self.link.open_long(client, found.len()).await;
                let permit = permit.ok_or(UnusableReason::Busy)?;
                let (tier, key) = (self.clone(), key.clone());
                let open = move || {
                    let _permit = permit;
                    tier.open(route, &key, &found, time, MOST_PLAIN)
                };
                let opened = tokio::task::spawn_blocking(open).await;
                opened.unwrap_or(Err(UnusableReason::Foreign))?
            }
            Some(opened) => opened?,
        };
        self.check(route, key, opened, own_key)
    }

    /// Opens a value whose body has at most so many bytes.
    fn open(
        &self,
        route: RouteMeaning,
        key: &Key,
        found: &[u8],
        time: EngineTime,
        most_body: usize,
    ) -> Result<OpenedValue, UnusableReason> {
        let (head, kept) = value::read(found, most_body).ok_or(UnusableReason::Foreign)?;
        if head.route != route.digest || head.target != key.target() {
            return Err(UnusableReason::Foreign);
        }
        let SharedPosition { journal, mark } = head.checked;
        let age = time.age(kept.received).ok_or(UnusableReason::Expired)?;
        if kept.lifetime <= age {
            return Err(UnusableReason::Expired);
        }
        let now = self.link.now();
        // Before the journal is read: what it purges later, memory sees.
        let sequence = self.cache.store().sequence();
        let at = Restoring {
            received: time.arrived.before(age),
            now,
            sequence,
        };
        let stored = match (route.mode, kept.stamp) {
            (Mode::Override, None) => kept.restore_timed(at),
            (Mode::Chain, Some(stamp)) => {
                let stamp = stamp_here(&self.chain, route.tip, stamp, mark);
                kept.restore_of_chain(&self.chain, stamp.ok_or(UnusableReason::Chain)?, at)
            }
            _ => return Err(UnusableReason::Foreign),
        };
        Ok(OpenedValue {
            stored,
            journal,
            sequence,
        })
    }

    /// Checks a response against the chain and against what was purged.
    fn check(
        &self,
        route: RouteMeaning,
        key: &Key,
        opened: OpenedValue,
        own_key: &(dyn Fn(&StoredResponse) -> Key + Sync),
    ) -> Result<SharedResponse, UnusableReason> {
        let OpenedValue {
            stored,
            journal,
            sequence,
        } = opened;
        let contradicts = |block: &Block| {
            let known = self.chain.hash_at(route.tip, block.height);
            known.is_some_and(|hash| hash != block.hash)
        };
        let is_of_chain = stored.stamp().is_some();
        if is_of_chain
            && stored
                .page()
                .is_some_and(|page| page.blocks().iter().any(contradicts))
        {
            return Err(UnusableReason::Chain);
        }
        let own = own_key(&stored);
        let names = (route.name, route.tip_digest);
        let holds = |key: &Key| {
            let subject = stored.purge_subject(key.as_bytes());
            self.link
                .journal()
                .holds(journal, names, key.target(), subject)
        };
        let sent = stored.received.before(stored.took);
        let is_invalid = |key: &Key| {
            let name = self.name(route, key).value;
            self.link.invalidated().since(&name, sent)
        };
        if is_invalid(key) || own != *key && is_invalid(&own) {
            return Err(UnusableReason::Purged);
        }
        if !self.link.journal().is_in_sync() || !holds(key) || own != *key && !holds(&own) {
            return Err(UnusableReason::Purged);
        }
        if let Freshness::Stale { .. } = self.cache.judge(&stored, self.link.now()) {
            return Err(match stored.stamp() {
                Some(stamp) if stamp.class.ends_with_epoch() => UnusableReason::Chain,
                Some(_) | None => UnusableReason::Expired,
            });
        }
        Ok(SharedResponse {
            own,
            stored: Box::new(stored),
            sequence,
        })
    }
}
