//! Keys whose answers could not be shared lately: nobody waits for such a key's
//! answer only to learn that it is not for him, and asks himself at once. (The
//! idea is that of Varnish's hit-for-miss and of pingora's predictor.)
//!
//! Invariants: a key is remembered for [`LASTS`] at the most; the number of
//! keys is bounded.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::clock::Moment;

/// How long a key is remembered: as long as an answer's directives are likely
/// to stay as they are, and short enough that a slip of the origin passes.
const LASTS: Duration = Duration::from_secs(60);
/// How many keys are remembered; the oldest make room.
const MOST: usize = 16_384;

/// The keys, by hash: where two have one hash, a request too many is sent, and
/// no answer is wrong.
#[derive(Default)]
pub(super) struct Uncacheable {
    keys: Mutex<Keys>,
    hasher: RandomState,
}

#[derive(Default)]
struct Keys {
    until: HashMap<u64, Moment, RandomState>,
    /// In the order in which they were put in.
    order: VecDeque<(u64, Moment)>,
}

impl Uncacheable {
    /// The last answer of a key was not for others.
    pub(super) fn remember(&self, key: &[u8], now: Moment) {
        let (key, until) = (self.hasher.hash_one(key), now + LASTS);
        let mut keys = self.keys();
        keys.until.insert(key, until);
        keys.order.push_back((key, until));
        while let Some(&(oldest, was)) = keys.order.front()
            && (was <= now || keys.order.len() > MOST)
        {
            keys.order.pop_front();
            // It may have been remembered anew.
            if keys.until.get(&oldest) == Some(&was) {
                keys.until.remove(&oldest);
            }
        }
    }

    /// Its answer was for others.
    pub(super) fn forget(&self, key: &[u8]) {
        let key = self.hasher.hash_one(key);
        self.keys().until.remove(&key);
    }

    /// Whether the answer of a key is not for others, as far as is known.
    pub(super) fn has(&self, key: &[u8], now: Moment) -> bool {
        let key = self.hasher.hash_one(key);
        let until = self.keys().until.get(&key).copied();
        until.is_some_and(|until| until > now)
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_is_remembered_for_a_while() {
        let keys = Uncacheable::default();
        assert!(!keys.has(b"/a", at(0)));
        keys.remember(b"/a", at(0));
        assert!(keys.has(b"/a", at(59)) && !keys.has(b"/b", at(59)));
        assert!(!keys.has(b"/a", at(60)));
        keys.remember(b"/a", at(50));
        assert!(keys.has(b"/a", at(109)), "it was so again");
        keys.remember(b"/b", at(61));
        assert!(
            keys.has(b"/a", at(109)),
            "the first time is over, not the second"
        );
        keys.forget(b"/a");
        assert!(!keys.has(b"/a", at(62)));
    }

    #[test]
    fn the_oldest_make_room() {
        let keys = Uncacheable::default();
        for n in 0..3 * MOST {
            keys.remember(&n.to_ne_bytes(), at(0));
        }
        assert_eq!(keys.keys().until.len(), MOST);
        assert!(!keys.has(&0_usize.to_ne_bytes(), at(1)));
        assert!(keys.has(&(3 * MOST - 1).to_ne_bytes(), at(1)));
        for n in 0..3 * MOST {
            keys.remember(b"/a", at(n as u64 / 1000));
        }
        assert!(keys.keys().order.len() <= MOST);
    }
}
