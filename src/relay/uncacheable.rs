//! Keys whose answers could not be shared lately. Requests for such a key go to
//! the upstream at once, without waiting for another request's answer. (Varnish
//! calls this hit-for-miss, pingora a cacheability predictor.)
//!
//! Invariants: a key is remembered for at most [`TTL`]; the number of keys is
//! bounded.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::clock::Moment;
use crate::sync::lock;

/// How long a key is remembered: as long as an answer's directives are likely to
/// stay the same, and short enough for an error of the origin to have little
/// effect.
const TTL: Duration = Duration::from_secs(60);
/// How many keys are remembered; the oldest are dropped first.
const MAX_KEYS: usize = 16_384;

/// The keys, by hash. If two keys have the same hash, one unnecessary request is
/// sent, and no answer is wrong.
#[derive(Default)]
pub(super) struct Uncacheable {
    keys: Mutex<Keys>,
    hasher: RandomState,
}

#[derive(Default)]
struct Keys {
    until: HashMap<u64, Moment, RandomState>,
    /// Oldest first.
    order: VecDeque<(u64, Moment)>,
}

impl Uncacheable {
    /// Records that the last answer for a key could not be shared.
    pub(super) fn remember(&self, key: &[u8], now: Moment) {
        let (key, until) = (self.hasher.hash_one(key), now + TTL);
        let mut keys = self.keys();
        keys.until.insert(key, until);
        keys.order.push_back((key, until));
        while let Some(&(oldest, was)) = keys.order.front()
            && (was <= now || keys.order.len() > MAX_KEYS)
        {
            keys.order.pop_front();
            // Unless it was recorded again since.
            if keys.until.get(&oldest) == Some(&was) {
                keys.until.remove(&oldest);
            }
        }
    }

    /// Records that the answer for a key could be shared.
    pub(super) fn forget(&self, key: &[u8]) {
        let key = self.hasher.hash_one(key);
        self.keys().until.remove(&key);
    }

    /// Whether the last known answer for a key could not be shared.
    pub(super) fn has(&self, key: &[u8], now: Moment) -> bool {
        let key = self.hasher.hash_one(key);
        let until = self.keys().until.get(&key).copied();
        until.is_some_and(|until| until > now)
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        lock(&self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_is_remembered_for_a_minute() {
        let keys = Uncacheable::default();
        assert!(!keys.has(b"/a", at(0)));
        keys.remember(b"/a", at(0));
        assert!(keys.has(b"/a", at(59)) && !keys.has(b"/b", at(59)));
        assert!(!keys.has(b"/a", at(60)));
        keys.remember(b"/a", at(50));
        assert!(keys.has(b"/a", at(109)), "it was recorded again");
        keys.remember(b"/b", at(61));
        assert!(
            keys.has(b"/a", at(109)),
            "only the first record has expired"
        );
        keys.forget(b"/a");
        assert!(!keys.has(b"/a", at(62)));
    }

    #[test]
    fn the_oldest_keys_are_dropped_first() {
        let keys = Uncacheable::default();
        for n in 0..3 * MAX_KEYS {
            keys.remember(&n.to_ne_bytes(), at(0));
        }
        assert_eq!(keys.keys().until.len(), MAX_KEYS);
        assert!(!keys.has(&0_usize.to_ne_bytes(), at(1)));
        assert!(keys.has(&(3 * MAX_KEYS - 1).to_ne_bytes(), at(1)));
        for n in 0..3 * MAX_KEYS {
            keys.remember(b"/a", at(n as u64 / 1000));
        }
        assert!(keys.keys().order.len() <= MAX_KEYS);
    }
}
