//! The cache: stored responses, and the rules by which they may answer requests.
//!
//! The rules are in the modules below. They are pure: `now` is an argument.
//! [`Cache`] reads the store and the chain for them; [`Cache::decide`] says what
//! to do with a request.

pub mod coding;
pub mod date;
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
mod tests_table;

use std::sync::Arc;
use std::time::Duration;

use key::Key;
use outcome::Forward;
use policy::{Mode, Policy};
use reuse::Reuse;
use store::Store;
pub use stored::{Encodings, OriginFields, StoredFields, StoredResponse};

use crate::chain::{Chain, Class, Freshness};
use crate::clock::Moment;

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
            Freshness::Fresh { ttl } => seconds(ttl),
            Freshness::BecameFinal => seconds(Class::Final.lifetime()),
            Freshness::Stale { by } => -seconds(by),
        }
    }
}

/// What to do with a request. Every request gets one of these, and so does `/explain`, which
/// therefore reports what the gateway does.
#[derive(Clone, Debug)]
pub enum Decision {
    /// Answer with a stored response.
    Serve {
        /// The response.
        stored: JudgedResponse,
        /// Why it may answer.
        reuse: Reuse,
    },
    /// Ask the upstream.
    Fetch {
        /// Why memory does not answer.
        why: Forward,
        /// A stored response that is worth validating, or that may answer where
        /// the upstream fails.
        stored: Option<JudgedResponse>,
    },
    /// Answer 504: nothing stored may answer, and the client forbids asking the
    /// upstream (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

impl Decision {
    /// To ask the upstream, since nothing stored is of use.
    pub(crate) const fn fetch(why: Forward) -> Self {
        Self::Fetch { why, stored: None }
    }
}

/// The cache.
#[derive(Clone)]
pub struct Cache {
    store: Store,
    chain: Arc<Chain>,
}

impl Cache {
    /// An empty cache of at most `max_bytes`.
    pub fn new(max_bytes: u64, chain: Arc<Chain>) -> Self {
        Self {
            store: Store::new(max_bytes),
            chain,
        }
    }

    /// The cache after a reload: the same store, with the new configuration's view of the
    /// chain.
    #[must_use]
    pub(crate) fn after(&self, chain: Arc<Chain>) -> Self {
        Self {
            chain,
            ..self.clone()
        }
    }

    /// Decides what to do with a request for a key, on a route in mode `chain`,
    /// `override` or `off`. `is_answer` says whether the response stored under
    /// the key is of the block that the request names: a reorg may have separated the height
    /// that it is stored under from the hash in the request.
    #[inline]
    pub fn decide(
        &self,
        key: &Key,
        policy: &Policy,
        is_answer: impl FnOnce(&StoredResponse) -> bool,
        now: Moment,
    ) -> Decision {
        if policy.mode == Mode::Off {
            return Decision::fetch(Forward::Bypass);
        }
        let Some(stored) = self.get(key, now) else {
            return Decision::fetch(Forward::UriMiss);
        };
        let is_answer = is_answer(&stored.stored);
        let (reuse, by) = match stored.freshness {
            Freshness::Fresh { .. } | Freshness::BecameFinal => (Reuse::Fresh, Duration::ZERO),
            Freshness::Stale { by } => (Reuse::WhileRevalidate, by),
        };
        // RFC 5861: while the seconds that the route grants last.
        match reuse == Reuse::Fresh || by < policy.stale_while_revalidate {
            true if is_answer => Decision::Serve { stored, reuse },
            false if by < policy.stale_if_error => Decision::Fetch {
                why: Forward::Stale,
                stored: is_answer.then_some(stored),
            },
            // It has no use, as if it were not stored.
            true | false => Decision::fetch(Forward::UriMiss),
        }
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
                let until = stored.received + stored.lifetime;
                (Freshness::until(until, now), now.since(stored.received))
            }
            (None, StoredFields::Origin(origin)) => {
                let age = origin.reuse.age(now.since(stored.received));
                let until = now.before(age) + origin.reuse.lifetime;
                // RFC 9111 §1.2.2: what is more cannot be written.
                (Freshness::until(until, now), age.min(date::MOST))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_response_ages_from_fresh_to_useless() {
        let cache = Cache::new(1 << 20, Arc::new(Chain::without_tips()));
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
        // Of the block that the request names, and of another.
        let at = |seconds| {
            let now = received + Duration::from_secs(seconds);
            let words = [true, false].map(|is_answer| {
                match cache.decide(&key, &policy, |_| is_answer, now) {
                    Decision::Serve { stored, reuse } => format!("{reuse:?} {}", stored.ttl()),
                    Decision::Fetch { why, stored } => {
                        let ttl = stored.map(|stored| stored.ttl().to_string());
                        format!("{} {}", why.as_str(), ttl.unwrap_or_default())
                    }
                    Decision::OnlyIfCached => "504".to_owned(),
                }
            });
            words.join(", ")
        };
        assert_eq!(at(0), "uri-miss , uri-miss ", "nothing is stored");
        assert!(cache.store.insert(&key, Arc::new(stored)));
        for (age, expected) in [
            (0, "Fresh 10, uri-miss "),
            (9, "Fresh 1, uri-miss "),
            (10, "WhileRevalidate 0, uri-miss "),
            (14, "WhileRevalidate -4, uri-miss "),
            (15, "stale -5, stale "),
            (69, "stale -59, stale "),
            (70, "uri-miss , uri-miss "),
        ] {
            assert_eq!(at(age), expected, "at {age} s");
        }
    }
}
