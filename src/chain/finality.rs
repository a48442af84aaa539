//! How settled an answer is: the finality classes of mode `chain`, and how long
//! each is fresh. Pure.
//!
//! Everything that the API says changes only when a block arrives or is undone,
//! so what an answer names, and how deep that lies below the tip, says how long
//! it may be believed. The fill asks [`classify`]; the cache asks the class.
//!
//! Deliberately absent: which height is the tip (`chain::ledger`) and what a
//! body names (`pages`).

use std::time::Duration;

use serde::Serialize;

/// How settled an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// An empty list, not found, or a refusal (any 4xx): it may appear at any
    /// moment.
    Absent,
    /// It may change with any block.
    Live,
    /// Confirmed by blocks, of which the highest may still be undone.
    Recent,
    /// Every block that it names, or whose emptiness it tells, lies
    /// `final_depth` or more below the tip.
    Final,
}

impl Class {
    /// Its word in logs, metrics and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Live => "live",
            Self::Recent => "recent",
            Self::Final => "final",
        }
    }

    /// Whether it ends with the epoch in which it was fetched.
    pub const fn ends_with_epoch(self) -> bool {
        match self {
            Self::Absent | Self::Live | Self::Recent => true,
            Self::Final => false,
        }
    }
}

/// When blocks count as settled, and how long answers are fresh.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// A block so far below the tip is final.
    pub final_depth: u32,
    /// Freshness of `final`.
    #[serde(serialize_with = "crate::units::serialize")]
    pub final_ttl: Duration,
    /// Freshness of `recent` and `live` where no tip is known.
    #[serde(serialize_with = "crate::units::serialize")]
    pub recent_ttl: Duration,
    /// The longest freshness of `live`, whatever the epoch: the reference
    /// upstream changes a token's body before its tip moves.
    #[serde(serialize_with = "crate::units::serialize")]
    pub live_ttl: Duration,
    /// Freshness of `absent`: clients poll for what is not indexed yet.
    #[serde(serialize_with = "crate::units::serialize")]
    pub absent_ttl: Duration,
}

impl Times {
    /// Whether what was stored by others may be kept by these: nothing would be
    /// final later than it was, or be fresh for a shorter time.
    pub fn keep(&self, before: &Self) -> bool {
        self.final_depth <= before.final_depth
            && self.final_ttl >= before.final_ttl
            && self.recent_ttl >= before.recent_ttl
            && self.live_ttl >= before.live_ttl
            && self.absent_ttl >= before.absent_ttl
    }
}

impl Default for Times {
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

impl Times {
    /// The longest freshness of a class. `recent` lasts for as long as its
    /// epoch does.
    pub const fn lifetime(&self, class: Class) -> Duration {
        match class {
            Class::Absent => self.absent_ttl,
            Class::Live => self.live_ttl,
            Class::Recent | Class::Final => self.final_ttl,
        }
    }
}

/// What an answer says, as far as finality goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// It is about one transaction or block and names blocks, the highest of
    /// which is this.
    Confirmed {
        /// A height.
        highest: u32,
    },
    /// Nothing is there: an empty list, not found, or a refusal.
    Nothing {
        /// Of the block at this height, where one was asked for by height.
        asked: Option<u32>,
    },
    /// Something else, which any block may change.
    Other,
}

/// The class of an answer, with the tip where it is known for certain.
pub const fn classify(says: Says, tip: Option<u32>, final_depth: u32) -> Class {
    match says {
        Says::Confirmed { highest } if is_deep(highest, tip, final_depth) => Class::Final,
        Says::Confirmed { .. } => Class::Recent,
        Says::Nothing {
            asked: Some(height),
        } if is_deep(height, tip, final_depth) => Class::Final,
        Says::Nothing { .. } => Class::Absent,
        Says::Other => Class::Live,
    }
}

/// Whether a height lies `final_depth` or more below the tip.
pub const fn is_deep(height: u32, tip: Option<u32>, final_depth: u32) -> bool {
    match tip {
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
    fn classes() {
        let confirmed = |highest| Says::Confirmed { highest };
        let nothing = |asked| Says::Nothing { asked };
        for (says, tip, class) in [
            (confirmed(100), Some(106), Class::Final),
            (confirmed(100), Some(105), Class::Recent),
            (confirmed(100), Some(100), Class::Recent),
            // The answer is newer than what we know of the tip.
            (confirmed(107), Some(106), Class::Recent),
            (confirmed(100), None, Class::Recent),
            (nothing(None), Some(106), Class::Absent),
            (nothing(Some(100)), Some(106), Class::Final),
            (nothing(Some(101)), Some(106), Class::Absent),
            (nothing(Some(200)), Some(106), Class::Absent),
            (nothing(Some(100)), None, Class::Absent),
            (Says::Other, Some(106), Class::Live),
        ] {
            assert_eq!(classify(says, tip, 6), class, "{says:?} at tip {tip:?}");
        }
        assert_eq!(classify(confirmed(7), Some(7), 0), Class::Final);
    }

    #[test]
    fn the_less_settled_comes_first() {
        // Assembled answers are as settled as their least settled part.
        let order = [Class::Absent, Class::Live, Class::Recent, Class::Final];
        assert!(order.is_sorted());
    }
}
