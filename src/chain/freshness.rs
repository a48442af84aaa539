//! Whether a stored response of mode `chain` is fresh, and how old it is. Pure.
//!
//! A response is fresh until the first of several moments: its lifetime
//! ends, its epoch ends, a check refutes it, the tip is no longer known.

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
}

/// When blocks are final, and how long answers are fresh.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FinalitySettings {
    /// A block this far below the tip is final.
    pub(crate) final_depth: u32,
    /// Freshness lifetime of `final`.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) final_ttl: Duration,
    /// How long after a new tip its indexer may still be writing: what is `live` and was
    /// fetched within that time is fetched once more after it.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) live_ttl: Duration,
    /// Freshness lifetime of `absent`: clients poll for what is not indexed yet.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) absent_ttl: Duration,
}

/// Freshness lifetime of what is not final while no tip is known.
pub(super) const WITHOUT_TIP: Duration = Duration::from_secs(1);

/// The longest freshness lifetime of `live`: an indexer may change a token without a new
/// tip. The mean time between blocks.
const LIVE: Duration = Duration::from_mins(10);

impl FinalitySettings {
    /// Whether responses stored under other settings may be kept under these:
    /// nothing would be final later, or be fresh for a shorter time.
    pub(super) fn keep(&self, before: &Self) -> bool {
        self.final_depth <= before.final_depth
            && self.final_ttl >= before.final_ttl
            && self.live_ttl <= before.live_ttl
            && self.absent_ttl >= before.absent_ttl
    }

    /// The longest freshness lifetime of a class.
    pub(crate) const fn lifetime(&self, class: Class) -> Duration {
        match class {
            Class::Absent => self.absent_ttl,
            Class::Live => LIVE,
            Class::Recent | Class::Final => self.final_ttl,
        }
    }
}

impl Default for FinalitySettings {
    fn default() -> Self {
        Self {
            final_depth: 6,
            final_ttl: Duration::from_hours(30 * 24),
            live_ttl: Duration::from_secs(30),
            absent_ttl: Duration::from_secs(1),
        }
    }
}

/// What an answer contains, as far as its class depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Items of one transaction or block, which do not change while that block is in
    /// the chain.
    Confirmed {
        /// The block's height.
        height: u32,
    },
    /// Nothing: an empty list, or any 4xx.
    Nothing {
        /// The height of the block whose list was requested, if it was by height.
        block: Option<u32>,
    },
    /// Anything else, which any block may change.
    Other,
}

/// The class of an answer, where blocks up to a height are final.
pub(super) fn classify(content: Content, final_up_to: Option<u32>) -> Class {
    let is_final = |height: u32| final_up_to.is_some_and(|most| height <= most);
    match content {
        Content::Confirmed { height } if is_final(height) => Class::Final,
        Content::Confirmed { .. } => Class::Recent,
        Content::Nothing { block: Some(at) } if is_final(at) => Class::Final,
        Content::Nothing { .. } => Class::Absent,
        Content::Other => Class::Live,
    }
}

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

/// What a hit needs to know of a tip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) epoch: Epoch,
    /// When the epoch began.
    pub(super) began: Moment,
    /// Recent responses that name a higher block are stale: the tip, or a lower one that it
    /// had and that is not checked yet.
    pub(super) lowest_tip: Option<u32>,
    /// Recent responses of earlier epochs are stale, since `refuted_at`.
    pub(super) refuted_before: Epoch,
    pub(super) refuted_at: Moment,
    /// Since when recent responses of earlier epochs are in doubt.
    pub(super) doubted: Option<Moment>,
    /// What names only blocks up to this height is final.
    pub(super) final_up_to: Option<u32>,
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
    BecameFinal {
        /// The freshness that is left.
        ttl: Duration,
    },
    /// It is stale.
    Stale {
        /// How long ago it ceased to be fresh.
        by: Duration,
    },
}

/// When the tip was last confirmed, and how often its status is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When the last request was sent whose answer was a status.
    pub(super) confirmed: Moment,
    pub(super) interval: Duration,
}

impl Pace {
    /// Until when the tip is known: one status may fail.
    pub(super) fn known_until(self) -> Moment {
        match self.confirmed == Moment::default() {
            true => self.confirmed,
            false => self.confirmed + self.interval * 2,
        }
    }
}

/// A stored response that is judged.
#[derive(Clone, Copy)]
pub(super) struct Judged<'s> {
    pub(super) stamp: &'s ChainStamp,
    pub(super) received: Moment,
    pub(super) lifetime: Duration,
}

impl Judged<'_> {
    /// Whether it is fresh. `ended` is when its epoch ended, if it has, and is only called
    /// then.
    pub(super) fn freshness(
        self,
        (view, pace): (&View, Pace),
        finality: &FinalitySettings,
        ended: impl FnOnce() -> Option<Moment>,
        now: Moment,
    ) -> Freshness {
        let Self {
            stamp,
            received,
            lifetime,
        } = self;
        let until = received + lifetime;
        let until = match stamp.class {
            Class::Final => return Freshness::until(until, now),
            Class::Absent | Class::Live if stamp.epoch != view.epoch => {
                until.min(ended().unwrap_or(received))
            }
            Class::Live if !stamp.is_settled => until.min(view.began + finality.live_ttl),
            Class::Absent | Class::Live => until,
            Class::Recent => until.min(self.recent_until(view, pace)),
        };
        let is_deep = |(_, highest)| view.final_up_to.is_some_and(|most| highest <= most);
        if stamp.class == Class::Recent && now < until && stamp.heights.is_some_and(is_deep) {
            return Freshness::BecameFinal {
                ttl: finality.final_ttl,
            };
        }
        let known = pace.known_until().max(received + WITHOUT_TIP);
        let until = until.min(known);
        let mut freshness = Freshness::until(until, now);
        if let Freshness::Fresh { ttl } = &mut freshness
            && stamp.class != Class::Absent
        {
            // A client may rely on it until the status after the next.
            *ttl = (*ttl).min((self.confirmed(pace) + pace.interval * 2).since(now));
        }
        freshness
    }

    /// Until when a recent response stands, as far as is known.
    fn recent_until(self, view: &View, pace: Pace) -> Moment {
        let stamp = self.stamp;
        let forever = Moment::from_nanos(u64::MAX);
        if stamp.epoch < view.refuted_before {
            return view.refuted_at;
        }
        if stamp.epoch == view.epoch {
            return forever;
        }
        let is_above = |(_, highest)| view.lowest_tip.is_some_and(|tip| tip < highest);
        if stamp.heights.is_some_and(is_above) {
            return view.began;
        }
        view.doubted.map_or(forever, |since| since + pace.interval)
    }

    /// When it was last known to be valid: when it was received, or by the last status
    /// that left it fresh.
    pub(super) fn confirmed(self, pace: Pace) -> Moment {
        match self.stamp.class {
            Class::Recent | Class::Live => pace.confirmed.max(self.received),
            Class::Absent | Class::Final => self.received,
        }
    }
}

impl Freshness {
    /// Freshness that ends at a moment.
    pub(super) fn until(until: Moment, now: Moment) -> Self {
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
