//! How a stored answer stands towards the chain: its class, the heights that it
//! names, the epoch in which it held, and what is made of that for a client.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::finality::Class;
use super::ledger::Epoch;
use crate::clock::Moment;

/// How a stored answer stands towards the chain.
#[derive(Debug)]
pub struct ChainStamp {
    /// Its class.
    pub class: Class,
    /// Its indexer.
    pub tip: u16,
    /// The lowest height that it names; above `highest` where it names none.
    pub lowest: u32,
    /// The highest height that it names.
    pub highest: u32,
    epoch: AtomicU64,
    /// When the first of a row of answers was received that were all the same,
    /// where this is not the first.
    since: Moment,
    /// What clients were promised when it was stored, in milliseconds.
    promised: u32,
    heat: AtomicU32,
}

impl ChainStamp {
    /// Of an answer that names blocks from one height to another, or none.
    pub const fn new(class: Class, tip: u16, heights: Option<(u32, u32)>, epoch: Epoch) -> Self {
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
            since: Moment::from_nanos(u64::MAX),
            promised: 0,
            heat: AtomicU32::new(0),
        }
    }

    /// With what clients are promised.
    #[must_use]
    pub fn promising(self, promise: Duration) -> Self {
        Self {
            promised: u32::try_from(promise.as_millis()).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// Notes that it is the same as what was received at a moment before.
    pub fn unchanged_since(&mut self, since: Moment) {
        self.since = since;
    }

    /// Since when an answer that was received at a moment has come again and
    /// again without a change.
    pub fn since(&self, received: Moment) -> Moment {
        self.since.min(received)
    }

    /// The age of what is fresh: the time since the answer was received or shown
    /// to be unchanged (RFC 9111 §4.2.3). A probe that finds the tip as it was
    /// shows that what names its blocks stands, and then `max-age` less `age` is
    /// what can be promised now. It shows nothing of what any block may change,
    /// such as a token: the indexer may have had more to say of the same tip.
    pub fn age(&self, received: Moment, ttl: Duration, now: Moment) -> Duration {
        let since = now.since(received);
        match self.class {
            Class::Recent => {
                let promised = Duration::from_millis(u64::from(self.promised));
                promised.saturating_sub(ttl).min(since)
            }
            Class::Absent | Class::Live | Class::Final => since,
        }
    }

    /// The heights that it names, if any.
    pub fn heights(&self) -> Option<(u32, u32)> {
        (self.lowest <= self.highest).then_some((self.lowest, self.highest))
    }

    /// The last epoch in which it is known to have held.
    pub fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Notes that it holds in an epoch as well.
    pub(super) fn hold_in(&self, epoch: Epoch) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// Counts some use of it.
    pub fn warm(&self, by: u32) {
        self.heat.fetch_add(by, Ordering::Relaxed);
    }

    /// Its use lately, of which half is forgotten by asking.
    pub fn cool(&self) -> u32 {
        let heat = self.heat.load(Ordering::Relaxed);
        self.heat.store(heat / 2, Ordering::Relaxed);
        heat
    }
}

/// What a stored answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It may be served for so long.
    Fresh {
        /// What is left of its freshness, as far as can be promised.
        ttl: Duration,
    },
    /// So is it, and its blocks have become final since it was stored.
    Revalidated {
        /// What is left of its freshness.
        ttl: Duration,
    },
    /// It may be out of date, for so long.
    Stale {
        /// How long ago it ceased to be fresh.
        by: Duration,
    },
}
