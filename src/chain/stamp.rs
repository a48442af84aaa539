//! The chain stamp of a stored response: its finality class, the heights that it
//! mentions, and the epoch in which it was valid.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::TipNumber;
use super::finality::Class;
use super::ledger::Epoch;
use crate::clock::Moment;

/// The relation of a stored response to the chain.
#[derive(Debug)]
pub(crate) struct ChainStamp {
    /// Its class.
    pub(crate) class: Class,
    /// The number of its indexer's tip.
    pub(crate) tip: TipNumber,
    /// The lowest height that it mentions; above `highest` where it mentions none.
    pub(crate) lowest: u32,
    /// The highest height that it mentions.
    pub(crate) highest: u32,
    epoch: AtomicU64,
    /// When the first of several equal answers was received, of which this is the
    /// last; the clock's end where it is the first.
    unchanged_since: Moment,
    /// The `max-age` that clients get, in milliseconds.
    client_lifetime: u32,
    /// Sampled hits, of which half are forgotten at each new epoch.
    uses: AtomicU32,
}

impl ChainStamp {
    /// The stamp of an answer that mentions blocks from one height to another, or
    /// none.
    pub(crate) const fn new(
        class: Class,
        tip: TipNumber,
        heights: Option<(u32, u32)>,
        epoch: Epoch,
    ) -> Self {
        let (lowest, highest) = match heights {
            Some(heights) => heights,
            None => (1, 0),
        };
        Self {
            class,
            tip,
            lowest,
            highest,
            epoch: AtomicU64::new(epoch),
            unchanged_since: Moment::from_nanos(u64::MAX),
            client_lifetime: 0,
            uses: AtomicU32::new(0),
        }
    }

    /// Sets the `max-age` that clients get.
    #[must_use]
    pub(crate) fn with_client_lifetime(self, lifetime: Duration) -> Self {
        Self {
            client_lifetime: u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Notes that the answer equals one that was received earlier.
    pub(crate) fn set_unchanged_since(&mut self, since: Moment) {
        self.unchanged_since = since;
    }

    /// Since when the answer, received at a moment, is known to be unchanged.
    pub(crate) fn unchanged_since(&self, received: Moment) -> Moment {
        self.unchanged_since.min(received)
    }

    /// The age of a fresh response: the time since it was received or proved to be
    /// unchanged (RFC 9111 §4.2.3). A probe that finds the same tip proves a
    /// `recent` response; its age is then such that `max-age` less age is the
    /// freshness that is left. It proves nothing of a `live` response, such as a
    /// token: the indexer may have written more of the same tip since.
    pub(crate) fn age(&self, received: Moment, ttl: Duration, now: Moment) -> Duration {
        let since = now.since(received);
        match self.class {
            Class::Recent => {
                let lifetime = Duration::from_millis(u64::from(self.client_lifetime));
                lifetime.saturating_sub(ttl).min(since)
            }
            Class::Absent | Class::Live | Class::Final => since,
        }
    }

    /// The lowest and the highest height that it mentions, if any.
    pub(crate) fn heights(&self) -> Option<(u32, u32)> {
        (self.lowest <= self.highest).then_some((self.lowest, self.highest))
    }

    /// The last epoch in which it is known to have been valid.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Notes that it is valid in an epoch as well.
    pub(super) fn set_epoch(&self, epoch: Epoch) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Counts uses of it.
    pub(crate) fn count_uses(&self, uses: u32) {
        self.uses.fetch_add(uses, Ordering::Relaxed);
    }

    /// Its recent uses; half of them are forgotten by each call.
    pub(crate) fn halve_uses(&self) -> u32 {
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses / 2, Ordering::Relaxed);
        uses
    }
}
