//! Whether a stored response of mode `chain` is fresh, and how old it is. Pure.
//!
//! A response is fresh until the first of several moments: its lifetime
//! ends, its epoch ends (live, absent), a check refutes it, the tip is no longer known.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

/// The number of a tip, by which routes and stamps name it.
pub(crate) type TipNumber = u16;

/// The number of an epoch. The first is 1, and begins with the first known tip.
pub(crate) type Epoch = u64;

/// The epoch of what was fetched before any tip was known.
pub(crate) const NO_EPOCH: Epoch = 0;

/// A finality class. Ascending: a response made of others has the lowest of their
/// classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// An empty list or any 4xx: a result may appear at any moment.
    Absent,
    /// Any block may change it.
    Live,
    /// It names confirmed blocks, of which the highest may still be orphaned.
    Recent,
    /// Every block that it names is `final_depth` or more below the tip.
    Final,
}

impl Class {
    /// Its name in logs, metrics and documents.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Live => "live",
            Self::Recent => "recent",
            Self::Final => "final",
        }
    }

    /// The longest freshness lifetime of its responses.
    pub(crate) const fn lifetime(self) -> Duration {
        match self {
            Self::Absent => ABSENT,
            Self::Live => LIVE,
            Self::Recent | Self::Final => FINAL,
        }
    }
}

/// When blocks are final, and how long answers are fresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FinalitySettings {
    /// A block this far below the tip is final.
    pub(crate) final_depth: u32,
    /// How long after a new tip its indexer may still be writing: what is `live` and was
    /// fetched within that time is fetched once more after it.
    pub(crate) live_ttl: Duration,
}

/// The longest freshness lifetime of `final` and `recent`.
const FINAL: Duration = Duration::from_hours(30 * 24);
/// The freshness lifetime of `absent`: clients poll for what is not indexed yet.
const ABSENT: Duration = Duration::from_secs(1);

/// The longest freshness lifetime of `live`: an indexer may change a token without a new
/// tip. The mean time between blocks.
const LIVE: Duration = Duration::from_mins(10);

impl Default for FinalitySettings {
    fn default() -> Self {
        Self {
            final_depth: 6,
            live_ttl: Duration::from_secs(30),
        }
    }
}

/// Freshness lifetime of what is not final while no tip is known.
const WITHOUT_TIP: Duration = Duration::from_secs(1);

/// The relation of a stored response to the chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainStamp {
    /// Its class.
    pub(crate) class: Class,
    /// The number of its indexer's tip.
    pub(crate) tip: TipNumber,
    /// The epoch in which it was fetched.
    pub(crate) epoch: Epoch,
    /// The lowest and the highest height that it names, if any.
    pub(crate) heights: Option<(u32, u32)>,
    /// Whether its request was sent when the indexer had surely finished writing the tip.
    pub(crate) is_settled: bool,
}

/// What a hit needs to know of a tip: a copy of what changes seldom, which is read without
/// a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) epoch: Epoch,
    /// When the epoch began.
    pub(crate) began: Moment,
    /// When each of the epochs before it ceased to keep answers fresh, the latest first: earlier,
    /// if the tip was lost.
    pub(crate) ended: [Moment; 8],
    /// Recent responses that name a higher block are stale: the tip, or a lower one that it
    /// had and that is not checked yet.
    pub(crate) lowest_tip: Option<u32>,
    /// Recent responses of earlier epochs are stale, since `refuted_at`.
    pub(crate) refuted_before: Epoch,
    pub(crate) refuted_at: Moment,
    /// Since when recent responses of earlier epochs are in doubt.
    pub(crate) doubted: Option<Moment>,
    /// What names only blocks up to this height is final.
    pub(crate) final_up_to: Option<u32>,
    /// When the last request was sent whose answer was a status; 0 for never.
    pub(crate) confirmed: Moment,
    /// The time from one status to the next.
    pub(crate) interval: Duration,
}

/// Whether a stored response may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// It is fresh.
    Fresh {
        /// The freshness that is left, as far as clients can rely on it.
        ttl: Duration,
    },
    /// It is fresh, and its blocks have become final since it was stored.
    BecameFinal,
    /// It is stale.
    Stale {
        /// How long ago it ceased to be fresh.
        by: Duration,
    },
}

impl View {
    /// Until when the tip is known: one status may fail.
    pub(super) fn known_until(&self) -> Moment {
        // Never is years before the clock began.
        self.confirmed + self.interval * 2
    }

    /// Whether what names blocks up to a height is final.
    pub(crate) fn is_final(&self, highest: u32) -> bool {
        self.final_up_to.is_some_and(|most| highest <= most)
    }

    /// The class of an answer that names blocks, and is of this class until they are final.
    pub(super) fn classify(&self, class: Class, heights: Option<(u32, u32)>) -> Class {
        match heights {
            Some((_, highest)) if class != Class::Live && self.is_final(highest) => Class::Final,
            _ => class,
        }
    }

    /// Whether a stored response with this lifetime is fresh. One of an epoch whose end is not
    /// known any more counts as stale since it was received.
    pub(super) fn freshness(
        &self,
        stamp: &ChainStamp,
        (received, lifetime): (Moment, Duration),
        finality: &FinalitySettings,
        now: Moment,
    ) -> Freshness {
        let until = received + lifetime;
        let until = match stamp.class {
            Class::Final => return Freshness::until(until, now),
            Class::Recent => until.min(self.recent_until(stamp)),
            Class::Absent | Class::Live if stamp.epoch != self.epoch => {
                let ago = usize::try_from(self.epoch - stamp.epoch - 1);
                let ended = ago.ok().and_then(|ago| self.ended.get(ago));
                until.min(ended.map_or(received, |ended| received.max(*ended)))
            }
            Class::Live if !stamp.is_settled => until.min(self.began + finality.live_ttl),
            Class::Absent | Class::Live => until,
        };
        let is_deep = stamp
            .heights
            .is_some_and(|(_, highest)| self.is_final(highest));
        if stamp.class == Class::Recent && is_deep && now < until {
            return Freshness::BecameFinal;
        }
        // A client may rely on it until the status after the next.
        Freshness::until(
            until.min(self.known_until().max(received + WITHOUT_TIP)),
            now,
        )
    }

    /// Until when a recent response stands, as far as is known.
    fn recent_until(&self, stamp: &ChainStamp) -> Moment {
        let forever = Moment::from_nanos(u64::MAX);
        if stamp.epoch < self.refuted_before {
            return self.refuted_at;
        }
        if stamp.epoch == self.epoch {
            return forever;
        }
        let is_above = |(_, highest)| self.lowest_tip.is_some_and(|tip| tip < highest);
        if stamp.heights.is_some_and(is_above) {
            return self.began;
        }
        self.doubted.map_or(forever, |since| since + self.interval)
    }
}

impl Freshness {
    /// Freshness that ends at a moment.
    pub(crate) fn until(until: Moment, now: Moment) -> Self {
        match now < until {
            true => Self::Fresh {
                ttl: until.since(now),
            },
            false => Self::Stale {
                by: now.since(until),
            },
        }
    }
}

#[cfg(test)]
mod tests;
