//! Finality classes, and how long answers of each are fresh in mode `chain`. Pure.
//!
//! An answer of the API changes only when a block arrives or is orphaned. So the
//! blocks that it mentions, and how deep they are below the tip, determine how long
//! it is fresh. [`classify`] gives the class of an answer when it is stored.
//!
//! Deliberately absent: the height of the tip (`chain::ledger`) and what a body
//! mentions (`pages`).

use std::time::Duration;

use serde::Serialize;

/// A finality class. Ascending: a response made of others has the lowest of their
/// classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// An empty list or any 4xx: a result may appear at any moment.
    Absent,
    /// Any block may change it.
    Live,
    /// It mentions confirmed blocks, of which the highest may still be orphaned.
    Recent,
    /// Every block that it mentions is `final_depth` or more below the tip; so is a
    /// block whose list is empty.
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

    /// Whether its freshness ends with the epoch in which it was fetched.
    pub(crate) const fn ends_with_epoch(self) -> bool {
        match self {
            Self::Absent | Self::Live | Self::Recent => true,
            Self::Final => false,
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
    /// Freshness lifetime of `recent` and `live` where no tip is known.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) recent_ttl: Duration,
    /// Freshness lifetime of `live`, whatever the epoch: the reference upstream
    /// changes a token's body before its tip moves. Once this time has passed after
    /// a new tip, one check may extend the freshness of all live answers of a tip
    /// ([`LiveChecks`](super::live_checks::LiveChecks)), up to
    /// [`MOST_LIVE_TTLS`](super::live_checks::MOST_LIVE_TTLS) times this.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) live_ttl: Duration,
    /// Freshness lifetime of `absent`: clients poll for what is not indexed yet.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) absent_ttl: Duration,
}

impl FinalitySettings {
    /// Whether responses stored under other settings may be kept under these:
    /// nothing would be final later, or be fresh for a shorter time.
    pub(crate) fn keep(&self, before: &Self) -> bool {
        self.final_depth <= before.final_depth
            && self.final_ttl >= before.final_ttl
            && self.recent_ttl >= before.recent_ttl
            && self.live_ttl >= before.live_ttl
            && self.absent_ttl >= before.absent_ttl
    }

    /// The longest freshness lifetime of a class. `recent` is fresh until its epoch
    /// ends.
    pub(crate) const fn lifetime(&self, class: Class) -> Duration {
        match class {
            Class::Absent => self.absent_ttl,
            Class::Live => self.live_ttl,
            Class::Recent | Class::Final => self.final_ttl,
        }
    }
}

impl Default for FinalitySettings {
    fn default() -> Self {
        Self {
            final_depth: 6,
            final_ttl: Duration::from_hours(30 * 24),
            recent_ttl: Duration::from_secs(10),
            live_ttl: Duration::from_secs(30),
            absent_ttl: Duration::from_secs(1),
        }
    }
}

/// What an answer contains, as far as finality depends on it.
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

/// The class of an answer; the height of the tip counts where it is certain.
pub(crate) const fn classify(content: Content, tip_height: Option<u32>, final_depth: u32) -> Class {
    match content {
        Content::Confirmed { height } if is_deep(height, tip_height, final_depth) => Class::Final,
        Content::Confirmed { .. } => Class::Recent,
        Content::Nothing {
            block: Some(height),
        } if is_deep(height, tip_height, final_depth) => Class::Final,
        Content::Nothing { .. } => Class::Absent,
        Content::Other => Class::Live,
    }
}

/// Whether a height is `final_depth` or more below the tip.
pub(crate) const fn is_deep(height: u32, tip_height: Option<u32>, final_depth: u32) -> bool {
    match tip_height {
        Some(tip) => match tip.checked_sub(height) {
            Some(depth) => depth >= final_depth,
            None => false,
        },
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_follows_from_content_and_depth() {
        let confirmed = |height| Content::Confirmed { height };
        let nothing = |block| Content::Nothing { block };
        for (content, tip, class) in [
            (confirmed(100), Some(106), Class::Final),
            (confirmed(100), Some(105), Class::Recent),
            (confirmed(100), Some(100), Class::Recent),
            // The answer is newer than the known tip.
            (confirmed(107), Some(106), Class::Recent),
            (confirmed(100), None, Class::Recent),
            (nothing(None), Some(106), Class::Absent),
            (nothing(Some(100)), Some(106), Class::Final),
            (nothing(Some(101)), Some(106), Class::Absent),
            (nothing(Some(200)), Some(106), Class::Absent),
            (nothing(Some(100)), None, Class::Absent),
            (Content::Other, Some(106), Class::Live),
        ] {
            assert_eq!(classify(content, tip, 6), class, "{content:?} {tip:?}");
        }
        assert_eq!(classify(confirmed(7), Some(7), 0), Class::Final);
    }
}
