//! What is held in memory, and what of it may be used: the step between the
//! client's permit and the upstream.
//!
//! The rules are in the rooms below, pure, with `now` as an argument; this
//! keeper only asks them. [`Cache::look_up`] hands the walk a [`Lookup`], which
//! says all that it may do.

mod attached;
pub mod date;
pub mod delta;
pub mod directives;
pub mod etag;
pub mod freshen;
pub mod freshness;
pub mod hop;
pub mod invalidate;
pub mod key;
mod list;
pub mod metadata;
pub mod outcome;
pub mod policy;
pub mod purge;
pub mod range;
mod removals;
pub mod reuse;
pub mod sequence;
pub mod status;
pub mod storable;
pub mod store;
pub mod stored;
pub mod targeted;
pub mod validator;
pub mod variant;
pub mod vary;

#[cfg(test)]
mod tests_model;

use std::sync::Arc;
use std::time::Duration;

pub use attached::{Attached, StoredResponse};
use key::Key;
use policy::{Mode, Policy, Usable, usable};
use store::{Store, Variants};

use crate::chain::{Chain, Freshness};
use crate::clock::Moment;

/// What the cache has for a request.
#[derive(Debug)]
pub enum Lookup {
    /// A stored response to answer with.
    Fresh {
        /// The response.
        stored: Arc<StoredResponse>,
        /// What is left of its freshness lifetime.
        ttl: Duration,
    },
    /// So is this, whose blocks have become final since it was stored: it
    /// should be stored as such.
    Revalidated {
        /// The response.
        stored: Arc<StoredResponse>,
        /// What is left of its freshness lifetime.
        ttl: Duration,
    },
    /// A stored response that may be used under conditions.
    Stale {
        /// The response.
        stored: Arc<StoredResponse>,
        /// How long ago it ceased to be fresh.
        by: Duration,
        /// Whether it may be served while a newer one is fetched.
        while_revalidate: bool,
        /// Whether it may be served where fetching a newer one fails.
        if_error: bool,
    },
    /// Nothing that may be used.
    Absent,
    /// The route does not use the cache.
    Bypass,
}

/// The cache.
#[derive(Clone)]
pub struct Cache {
    store: Store<Attached>,
    chain: Arc<Chain>,
}

impl Cache {
    /// A cache of so many bytes at the most.
    pub fn new(max_bytes: u64, chain: Arc<Chain>) -> Self {
        Self {
            store: Store::new(max_bytes),
            chain,
        }
    }

    /// The cache that comes after this one, with so many bytes at the most and
    /// what is known of the chain then.
    #[must_use]
    pub fn after(&self, max_bytes: u64, chain: Arc<Chain>) -> Self {
        Self {
            store: self.store.resized(max_bytes),
            chain,
        }
    }

    /// What there is for a key under a route's policy.
    pub fn look_up(&self, key: &Key, policy: &Policy, now: Moment) -> Lookup {
        if policy.mode == Mode::Off {
            return Lookup::Bypass;
        }
        let Some(stored) = self.store.get(key) else {
            return Lookup::Absent;
        };
        let by = match self.judge(&stored, now) {
            Freshness::Fresh { ttl } => return Lookup::Fresh { stored, ttl },
            Freshness::Revalidated { ttl } => return Lookup::Revalidated { stored, ttl },
            Freshness::Stale { by } => by,
        };
        // RFC 5861: within the seconds that are granted, not beyond.
        let while_revalidate = by < policy.stale_while_revalidate;
        let if_error = by < policy.stale_if_error;
        match while_revalidate || if_error {
            true => Lookup::Stale {
                stored,
                by,
                while_revalidate,
                if_error,
            },
            false => Lookup::Absent,
        }
    }

    /// What a stored response is good for: by the chain where it stands towards
    /// one, by its time otherwise.
    pub fn judge(&self, stored: &StoredResponse, now: Moment) -> Freshness {
        match stored.stamp() {
            Some(standing) => self
                .chain
                .judge(standing, stored.received, stored.lifetime, now),
            None => match usable(stored.received, stored.lifetime, now) {
                Usable::Fresh { ttl } => Freshness::Fresh { ttl },
                Usable::Stale { by } => Freshness::Stale { by },
            },
        }
    }

    /// The `age` of a stored response, given what it is good for: the time since
    /// the upstream's answer was received or shown to be unchanged.
    pub fn age(&self, stored: &StoredResponse, judged: Freshness, now: Moment) -> Duration {
        match stored.stamp() {
            Some(standing) => self.chain.age(standing, stored.received, judged, now),
            None => now.since(stored.received),
        }
    }

    /// What there is for a key of a route in mode `respect`, newest last.
    pub(crate) fn variants(&self, key: &Key) -> Option<Variants> {
        self.store.variants(key)
    }

    /// Where it stores.
    pub fn store(&self) -> &Store<Attached> {
        &self.store
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, StatusCode};

    use super::*;

    #[test]
    fn what_a_stored_response_is_good_for() {
        let cache = Cache::new(1 << 20, Arc::new(Chain::timeless()));
        let mut key = Key::begin(0);
        key.buffer().extend_from_slice(b"/a");
        let received = Moment::from_nanos(1 << 40);
        let stored = StoredResponse {
            status: StatusCode::OK,
            body: "{}".into(),
            etag: HeaderValue::from_static("\"e\""),
            metadata: metadata::Metadata::of(
                HeaderValue::from_static("application/json"),
                metadata::ClientFreshness::Nothing,
            ),
            received,
            lifetime: Duration::from_secs(10),
            took: Duration::ZERO,
            checked: sequence::CheckedSequence::default(),
            attached: Attached::default(),
        };
        let mut policy = Policy {
            mode: Mode::Override,
            stale_while_revalidate: Duration::from_secs(5),
            stale_if_error: Duration::from_secs(60),
            ..Policy::default()
        };
        let look = |policy: &Policy, seconds| match cache.look_up(
            &key,
            policy,
            received + Duration::from_secs(seconds),
        ) {
            Lookup::Fresh { ttl, .. } => format!("fresh for {}", ttl.as_secs()),
            Lookup::Revalidated { ttl, .. } => format!("settled for {}", ttl.as_secs()),
            Lookup::Stale {
                by,
                while_revalidate,
                if_error,
                ..
            } => format!("stale by {} {while_revalidate} {if_error}", by.as_secs()),
            Lookup::Absent => "absent".to_owned(),
            Lookup::Bypass => "bypass".to_owned(),
        };
        assert_eq!(look(&policy, 0), "absent");
        assert!(cache.store().insert(key.clone(), Arc::new(stored)));
        for (age, expected) in [
            (0, "fresh for 10"),
            (9, "fresh for 1"),
            (10, "stale by 0 true true"),
            (14, "stale by 4 true true"),
            (15, "stale by 5 false true"),
            (69, "stale by 59 false true"),
            (70, "absent"),
        ] {
            assert_eq!(look(&policy, age), expected, "at {age} s");
        }
        policy.mode = Mode::Off;
        assert_eq!(look(&policy, 0), "bypass");
    }
}
