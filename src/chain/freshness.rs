//! Whether a stored response of mode `chain` is fresh, and how old it is.
//!
//! [`Chain::freshness`] is called for every hit. It takes no lock while the
//! response's epoch is the present one.

use std::time::Duration;

use super::TipNumber;
use super::finality::{Class, is_deep};
use super::{Chain, ChainStamp};
use crate::clock::Moment;

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

impl Chain {
    /// Whether a stored response is fresh.
    pub(crate) fn freshness(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        lifetime: Duration,
        now: Moment,
    ) -> Freshness {
        let left = lifetime.saturating_sub(now.since(received));
        if stamp.class == Class::Final {
            return match left.is_zero() {
                false => Freshness::Fresh { ttl: left },
                true => Freshness::Stale {
                    by: now.since(received + lifetime),
                },
            };
        }
        let Some(tip) = self.tip_of(stamp) else {
            return Freshness::Stale {
                by: now.since(received),
            };
        };
        let epoch = stamp.epoch();
        if epoch == tip.epoch() {
            let until = tip.fresh_until(stamp.class, received, lifetime);
            return tip.freshness_in_epoch(&self.finality, received, until, now);
        }
        let ledger = tip.ledger();
        let is_valid = stamp.class == Class::Recent && ledger.is_linked(epoch, stamp.highest);
        if !is_valid {
            let mut ended = ledger.ended(epoch).unwrap_or(now);
            let until = match stamp.class {
                Class::Live => {
                    let span = ledger.live_span(epoch).unwrap_or_default();
                    span.fresh_until(received, lifetime)
                }
                Class::Absent | Class::Recent | Class::Final => received + lifetime,
            };
            // It was received after the tip had been lost, and was fresh for a fixed
            // time.
            if Moment::default() < ended && ended < received {
                ended = received + self.finality.recent_ttl;
            }
            return Freshness::Stale {
                by: now.since(ended.min(until)),
            };
        }
        stamp.set_epoch(ledger.epoch());
        let certain_tip = ledger.tip().filter(|(_, certain)| *certain);
        let is_final = is_deep(
            stamp.highest,
            certain_tip.map(|(height, _)| height),
            self.finality.final_depth,
        );
        drop(ledger);
        match is_final {
            true => Freshness::BecameFinal {
                ttl: self.finality.final_ttl,
            },
            false => tip.freshness_in_epoch(&self.finality, received, received + lifetime, now),
        }
    }

    /// The age of a stored response: the time since it was received or proved to be
    /// unchanged.
    pub(crate) fn age(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        freshness: Freshness,
        now: Moment,
    ) -> Duration {
        match freshness {
            Freshness::Fresh { ttl } | Freshness::BecameFinal { ttl } => {
                stamp.age(received, ttl, now)
            }
            Freshness::Stale { .. } => now.since(self.last_proved(stamp, received)),
        }
    }

    /// When a stale response was last proved to be unchanged: by the last probe, if
    /// the response is recent and of the present epoch. Of an epoch that has ended
    /// the last probe is not known.
    fn last_proved(&self, stamp: &ChainStamp, received: Moment) -> Moment {
        let tip = self.tip_of(stamp);
        let present =
            tip.filter(|tip| stamp.class == Class::Recent && stamp.epoch() == tip.epoch());
        present.map_or(received, |tip| tip.confirmed().max(received))
    }

    /// How long a client may keep a response that it gets now: no longer than until
    /// the next probe.
    pub(crate) fn client_lifetime(&self, class: Class, tip: TipNumber, now: Moment) -> Duration {
        let lifetime = self.finality.lifetime(class);
        if !class.ends_with_epoch() {
            return lifetime;
        }
        let tip = self.tips.get(usize::from(tip));
        match tip.filter(|tip| tip.is_known(now)) {
            Some(tip) => lifetime.min(tip.source.every),
            None => lifetime.min(self.finality.recent_ttl),
        }
    }

    /// Until when a live response that is no longer fresh is known to be unchanged,
    /// where a check of it, or of another, may make it fresh again. `None` where it
    /// has to be fetched itself.
    pub(crate) fn checkable_since(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        lifetime: Duration,
        now: Moment,
    ) -> Option<Moment> {
        let tip = self.tip_of(stamp)?;
        if stamp.class != Class::Live || !tip.is_known(now) {
            return None;
        }
        let ledger = tip.ledger();
        let checks = ledger.live_checks();
        let known = checks.span().known_until(received);
        let is_checkable = stamp.epoch() == ledger.epoch()
            && checks.is_settled(received)
            && known + lifetime <= now
            && now < received + lifetime * super::live_checks::MOST_LIVE_TTLS;
        is_checkable.then_some(known)
    }

    /// A live response was fetched again by a request sent at `sent`, and was
    /// unchanged or not. Answers since when it is unchanged, where this proves that
    /// others have not changed either.
    pub(crate) fn checked(
        &self,
        stamp: &ChainStamp,
        received: Moment,
        sent: Moment,
        unchanged: bool,
        now: Moment,
    ) -> Option<Moment> {
        let tip = self.tip_of(stamp)?;
        let since = stamp.unchanged_since(received);
        let mut ledger = tip.ledger();
        let proves = ledger.checked(stamp.epoch(), since, sent, unchanged, now);
        tip.publish(&ledger);
        proves.then_some(since)
    }

    /// The height of the block that would prove, if it is still in the chain, that a
    /// recent response of an earlier epoch is still valid.
    pub(crate) fn anchor(&self, stamp: &ChainStamp) -> Option<u32> {
        let tip = self.tip_of(stamp)?;
        match stamp.class {
            Class::Recent => tip.ledger().anchor(stamp.epoch(), stamp.highest),
            Class::Final | Class::Live | Class::Absent => None,
        }
    }
}

#[cfg(test)]
mod tests;
