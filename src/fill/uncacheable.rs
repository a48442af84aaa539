//! Keys whose answers could not be shared lately. Requests for such a key go to
//! the upstream at once, without waiting for another request's answer. (Varnish
//! calls this hit-for-miss, pingora a cacheability predictor.)

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Mutex;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::clock::Moment;
use crate::sync::lock;

/// How long a key is remembered: as long as an answer's directives are likely to
/// stay the same, and short enough for an error of the origin to have little
/// effect.
const TTL: Duration = Duration::from_secs(60);
/// How many keys are remembered. If there are more, all are forgotten: each costs one
/// wait then.
const MAX_KEYS: usize = 16_384;

/// The keys, by hash. If two keys have the same hash, one unnecessary request is
/// sent, and no answer is wrong.
#[derive(Default)]
pub(super) struct Uncacheable {
    until: Mutex<HashMap<u64, Moment, RandomState>>,
    hasher: RandomState,
}

impl Uncacheable {
    /// Records that the last answer for a key could not be shared.
    pub(super) fn remember(&self, key: &[u8], now: Moment) {
        let mut until = lock(&self.until);
        if until.len() >= MAX_KEYS {
            until.retain(|_, until| *until > now);
        }
        if until.len() >= MAX_KEYS {
            until.clear();
        }
        until.insert(self.hasher.hash_one(key), now + TTL);
    }

    /// Records that the answer for a key could be shared.
    pub(super) fn forget(&self, key: &[u8]) {
        lock(&self.until).remove(&self.hasher.hash_one(key));
    }

    /// Whether the last known answer for a key could not be shared.
    pub(super) fn has(&self, key: &[u8], now: Moment) -> bool {
        let until = lock(&self.until).get(&self.hasher.hash_one(key)).copied();
        until.is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_remembered_for_a_minute_and_are_bounded() {
        let at = |seconds: u64| Moment::from_nanos(seconds * 1_000_000_000);
        let keys = Uncacheable::default();
        keys.remember(b"a", at(1));
        assert!(keys.has(b"a", at(60)) && !keys.has(b"a", at(61)));
        keys.remember(b"b", at(1));
        keys.forget(b"b");
        assert!(!keys.has(b"b", at(1)));
        for number in 0..MAX_KEYS * 3 {
            keys.remember(&number.to_be_bytes(), at(2));
        }
        assert!(lock(&keys.until).len() <= MAX_KEYS);
    }
}
