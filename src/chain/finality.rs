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

use crate::clock::Moment;

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
pub struct FinalitySettings {
    /// A block so far below the tip is final.
    pub final_depth: u32,
    /// Freshness of `final`.
    #[serde(serialize_with = "crate::units::serialize")]
    pub final_ttl: Duration,
    /// Freshness of `recent` and `live` where no tip is known.
    #[serde(serialize_with = "crate::units::serialize")]
    pub recent_ttl: Duration,
    /// How long `live` is fresh by itself, whatever the epoch: the reference
    /// upstream changes a token's body before its tip moves. From so long after
    /// a new tip on, one check may stand for all live answers of a tip
    /// ([`Checks`]): each is then fresh for so long after the last check, and
    /// for [`MOST_CHECKED`] times as long in all.
    #[serde(serialize_with = "crate::units::serialize")]
    pub live_ttl: Duration,
    /// Freshness of `absent`: clients poll for what is not indexed yet.
    #[serde(serialize_with = "crate::units::serialize")]
    pub absent_ttl: Duration,
}

impl FinalitySettings {
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

impl FinalitySettings {
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

/// So many times `live_ttl` a live answer is fresh at the most, however many
/// checks of others were good: a check shows only one key to be unchanged. By
/// default this is ten minutes, the mean time between blocks: so on a chain that
/// moves as usual it costs next to nothing, and where the upstream changes
/// bodies without moving its tip, no answer stays wrong for longer.
pub const MOST_CHECKED: u32 = 20;

/// What is known of a tip's live answers within an epoch: the stretch of time in
/// which checks have found no change.
///
/// A check fetches a key again whose answer was received after the indexer has
/// had time to write all of its tip. If it has not changed, nothing is known
/// to have changed for any other key between the two fetches. Checks that meet
/// or overlap make one stretch; one that leaves a gap begins another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// Answers received earlier may be of a tip that was only half written.
    stable: Moment,
    /// The beginning of the stretch.
    from: Moment,
    /// Its end: when the request of the last good check was sent.
    until: Moment,
}

impl Checks {
    /// There is a new tip, or sign that bodies change without one: what comes
    /// within `pause` may be half written.
    pub fn restart(&mut self, now: Moment, pause: Duration) {
        let stable = now + pause;
        *self = Self {
            stable,
            from: stable,
            until: stable,
        };
    }

    /// Whether an answer received at a moment may be checked.
    pub fn is_stable(&self, received: Moment) -> bool {
        received >= self.stable
    }

    /// An answer that has been the same since a moment was found so again by a
    /// request that was sent at another.
    pub fn unchanged(&mut self, since: Moment, sent: Moment) {
        if !self.is_stable(since) {
            return;
        }
        self.from = match since <= self.until {
            true => self.from.min(since),
            false => since,
        };
        self.until = self.until.max(sent);
    }

    /// Beginning and end of the stretch.
    pub const fn stretch(&self) -> (Moment, Moment) {
        (self.from, self.until)
    }
}

/// Up to when a live answer is known not to have changed, as far as checks in
/// such a stretch tell.
pub fn checked_until(stretch: (Moment, Moment), received: Moment) -> Moment {
    let (from, until) = stretch;
    match received >= from {
        true => received.max(until),
        false => received,
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

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// Up to when answers are known to be unchanged, by when they were received.
    fn known(checks: &Checks, received: &[u64]) -> Vec<u64> {
        let known = |second: &u64| checked_until(checks.stretch(), at(*second));
        let known = received.iter().map(known);
        known.map(|moment| moment.millis() / 1000).collect()
    }

    #[test]
    fn a_check_stands_for_what_was_received_since_its_answer_was() {
        let pause = Duration::from_secs(30);
        let mut checks = Checks::default();
        checks.restart(at(100), pause);
        assert!(!checks.is_stable(at(129)) && checks.is_stable(at(130)));
        checks.unchanged(at(110), at(140));
        assert_eq!(known(&checks, &[110, 135]), [110, 135], "half written");
        checks.unchanged(at(135), at(165));
        assert_eq!(known(&checks, &[131, 135, 150, 170]), [131, 165, 165, 170]);
        // One that overlaps lengthens the stretch, at either end.
        checks.unchanged(at(131), at(161));
        assert_eq!(known(&checks, &[130, 131, 135]), [130, 165, 165]);
        checks.unchanged(at(165), at(195));
        assert_eq!(known(&checks, &[131, 150]), [195, 195]);
        // Between 195 and 300 nobody has looked.
        checks.unchanged(at(300), at(330));
        assert_eq!(known(&checks, &[131, 299, 300]), [131, 299, 330]);
        checks.restart(at(400), pause);
        assert_eq!(known(&checks, &[310, 420, 440]), [310, 420, 440]);
        checks.unchanged(at(420), at(450));
        assert_eq!(known(&checks, &[420, 440]), [420, 440]);
    }

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
