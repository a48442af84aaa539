//! The keys that unsafe methods have invalidated here lately (RFC 9111 §4.4). What was
//! requested before that, and stored in the engine, is not used by this replica. Other
//! replicas are caches of their own: they learn of purges, not of this.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::clock::Moment;
use crate::sync::lock;

/// How many are remembered. What was requested before an older one is not used, whatever
/// its key.
const MOST: usize = 4096;

/// The keys in the engine, oldest first.
#[derive(Debug, Default)]
pub(super) struct InvalidatedKeys(Mutex<LastInvalidated>);

#[derive(Debug, Default)]
struct LastInvalidated {
    /// When the last one was invalidated that is forgotten.
    forgotten: Option<Moment>,
    keys: VecDeque<(String, Moment)>,
}

impl InvalidatedKeys {
    /// Adds a key.
    pub(super) fn push(&self, key: String, now: Moment) {
        let last = &mut *lock(&self.0);
        last.keys.push_back((key, now));
        if last.keys.len() > MOST {
            last.forgotten = last.keys.pop_front().map(|(_, at)| at);
        }
    }

    /// Whether a key was invalidated after a request for it was sent, or may have been.
    pub(super) fn since(&self, key: &str, sent: Moment) -> bool {
        let last = lock(&self.0);
        last.forgotten.is_some_and(|at| sent <= at)
            || last
                .keys
                .iter()
                .any(|(known, at)| sent <= *at && known == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_key_is_not_used_that_was_requested_before_it_was_invalidated() {
        let at = |second| Moment::default() + Duration::from_secs(second);
        let keys = InvalidatedKeys::default();
        assert!(!keys.since("a", at(0)));
        keys.push("a".to_owned(), at(5));
        for (key, sent, expected) in [("a", 4, true), ("a", 5, true), ("a", 6, false)] {
            assert_eq!(keys.since(key, at(sent)), expected, "{key} {sent}");
        }
        assert!(!keys.since("b", at(4)));
        for _ in 0..MOST {
            keys.push("c".to_owned(), at(7));
        }
        assert!(keys.since("b", at(5)), "it may be forgotten");
        assert!(!keys.since("a", at(6)) && !keys.since("b", at(8)));
    }
}
