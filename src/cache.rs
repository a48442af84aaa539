//! The cache: stored responses, and the rules by which they may answer requests.
//!
//! The rules are in the modules below. They are pure: `now` is an argument.
//! [`Cache`] reads the store and the chain for them; [`Cache::decide`] says what
//! to do with a request.

pub mod coding;
pub mod date;
pub mod decision;
pub mod directives;
pub(crate) mod freshen;
pub(crate) mod freshness;
pub(crate) mod hop;
pub(crate) mod invalidate;
pub mod key;
mod list;
pub mod metadata;
pub mod outcome;
pub mod policy;
pub mod purge;
pub mod range;
pub mod reuse;
pub mod storable;
pub mod store;
pub mod stored;
pub mod validator;
pub mod vary;

#[cfg(test)]
mod tests_model;
#[cfg(test)]
mod tests_table;

use std::sync::Arc;
use std::time::Duration;

use decision::{Decision, by_freshness, freshness_by_age};
use key::Key;
use outcome::Forward;
use policy::{Mode, Policy};
use store::Store;
pub use stored::{Encodings, OriginFields, StoredFields, StoredResponse};

use crate::chain::{Chain, Freshness};
use crate::clock::{Clock, Moment};

/// A stored response, and how fresh it is at the time of a request.
#[derive(Clone, Debug)]
pub struct JudgedResponse {
    /// The response.
    pub(crate) stored: Arc<StoredResponse>,
    /// How fresh it is.
    pub(crate) freshness: Freshness,
    /// Its `age`: the time since the upstream's answer was received or shown to be unchanged.
    pub(crate) age: Duration,
}

impl JudgedResponse {
    /// Whole seconds of freshness left, below zero where it is stale: the `ttl`
    /// of `cache-status` (RFC 9211 §2.4).
    #[inline]
    pub(crate) fn ttl(&self) -> i64 {
        let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        match self.freshness {
            Freshness::Fresh { ttl } | Freshness::BecameFinal { ttl } => seconds(ttl),
            Freshness::Stale { by } => -seconds(by),
        }
    }
}

/// The cache.
#[derive(Clone)]
pub struct Cache {
    store: Store,
    chain: Arc<Chain>,
    clock: Clock,
}

impl Cache {
    /// An empty cache of at most `max_bytes`.
    pub fn new(max_bytes: u64, chain: Arc<Chain>, clock: Clock) -> Self {
        Self {
            store: Store::new(max_bytes),
            chain,
            clock,
        }
    }

    /// The cache after a reload: the same store, with the new configuration's view of the
    /// chain.
    #[must_use]
    pub(crate) fn after(&self, chain: Arc<Chain>) -> Self {
        Self {
            store: self.store.clone(),
            chain,
            clock: self.clock.clone(),
        }
    }

    /// Decides what to do with a request for a key, on a route in mode `chain`,
    /// `override` or `off`. `is_answer` says whether the response stored under
    /// the key is of the block that the request names.
    #[inline]
    pub fn decide(
        &self,
        key: &Key,
        policy: &Policy,
        is_answer: impl FnOnce(&StoredResponse) -> bool,
        now: Moment,
    ) -> Decision<JudgedResponse> {
        if policy.mode == Mode::Off {
            return Decision::fetch(Forward::Bypass);
        }
        let Some(judged) = self.get(key, now) else {
            return Decision::fetch(Forward::UriMiss);
        };
        let (freshness, is_answer) = (judged.freshness, is_answer(&judged.stored));
        by_freshness(policy, judged, freshness, is_answer)
    }

    /// The response that is stored under a key, fresh or stale.
    #[inline]
    pub(crate) fn get(&self, key: &Key, now: Moment) -> Option<JudgedResponse> {
        Some(self.judged(self.store.get(key)?, now))
    }

    /// A stored response, and how fresh it is.
    #[inline]
    pub(crate) fn judged(&self, stored: Arc<StoredResponse>, now: Moment) -> JudgedResponse {
        let (freshness, age) = self.judge(&stored, now);
        JudgedResponse {
            stored,
            freshness,
            age,
        }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How fresh a stored response is, and its age: by the chain where it has a chain stamp, by
    /// the origin's fields where it has those, by its lifetime otherwise.
    #[inline]
    pub(crate) fn judge(&self, stored: &StoredResponse, now: Moment) -> (Freshness, Duration) {
        let times = (stored.received, stored.lifetime);
        match (&stored.stamp, &stored.fields) {
            (Some(stamp), _) => self.chain.tip(stamp.tip).freshness(stamp, times, now),
            (None, StoredFields::Prepared(_)) => {
                let age = now.since(stored.received);
                (freshness_by_age(age, stored.lifetime), age)
            }
            (None, StoredFields::Origin(origin)) => {
                let age = origin.reuse.age(self.clock.wall(now));
                let freshness = freshness_by_age(age, origin.reuse.lifetime());
                // RFC 9111 §1.2.2: what is more cannot be written.
                (freshness, age.min(date::MOST))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_response_ages_from_fresh_to_useless() {
        let cache = Cache::new(1 << 20, Arc::new(Chain::without_tips()), Clock::manual());
        let key = Key::of(0, "/a");
        let received = Moment::from_nanos(1 << 40);
        let stored = StoredResponse {
            received,
            lifetime: Duration::from_secs(10),
            ..StoredResponse::of_json("{}")
        };
        let policy = Policy {
            mode: Mode::Override,
            stale_while_revalidate: Duration::from_secs(5),
            stale_if_error: Duration::from_secs(60),
            ..Policy::default()
        };
        let at = |seconds| {
            let now = received + Duration::from_secs(seconds);
            match cache.decide(&key, &policy, |_| true, now) {
                Decision::Serve { stored, reuse } => format!("{reuse:?} {}", stored.ttl()),
                Decision::Fetch { why, stored } => {
                    let ttl = stored.map(|stored| stored.ttl());
                    format!("{} {ttl:?}", why.as_str())
                }
                Decision::OnlyIfCached => "504".to_owned(),
            }
        };
        assert_eq!(at(0), "uri-miss None", "nothing is stored");
        assert!(cache.store.insert(&key, Arc::new(stored)));
        for (age, expected) in [
            (0, "Fresh 10"),
            (9, "Fresh 1"),
            (10, "WhileRevalidate 0"),
            (14, "WhileRevalidate -4"),
            (15, "stale Some(-5)"),
            (69, "stale Some(-59)"),
            (70, "uri-miss None"),
        ] {
            assert_eq!(at(age), expected, "at {age} s");
        }
    }
}
