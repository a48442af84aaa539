//! Purging: what is to be answered with no more, whenever it was stored and
//! even where it is still on its way from the upstream.
//!
//! A purge is a record with a number, and is complete once the record is
//! written. Each stored response knows the last number that it has survived; a
//! hit compares that with the last number there is, and only where they differ
//! are the records between looked through. So a purge of anything takes the
//! same short time, holds on all runtimes at once, and reaches the fills under
//! way: what they bring bears the number of their beginning.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use memchr::memmem;

use super::key::{route_of, target_of};
use crate::chain::ChainStamp;

/// What is purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Everything.
    All,
    /// What a route has stored.
    Route(u16),
    /// What a route has stored of one target.
    Target {
        /// The route.
        route: u16,
        /// The canonical target, query included.
        target: Box<str>,
    },
    /// What a route has stored of the paths that have a value in a place.
    Segment {
        /// The route.
        route: u16,
        /// The segment, counted from 0 after the first slash.
        at: usize,
        /// Its canonical value.
        value: Box<str>,
    },
    /// What a route has stored of one path, whatever the query.
    Path {
        /// The route.
        route: u16,
        /// The canonical path.
        path: Box<str>,
    },
    /// What names a block of an indexer between two heights, both included.
    Heights {
        /// The indexer's tip; `None` for any.
        tip: Option<u16>,
        /// The lowest.
        from: u32,
        /// The highest.
        to: u32,
    },
    /// What has this text in its target or its body: the hexadecimal form of a
    /// block's hash or of a transaction's id.
    Text(Box<str>),
}

/// What a purge sees of a stored response.
pub struct PurgeSubject<'s> {
    /// Its key.
    pub key: &'s [u8],
    /// How it stands towards the chain.
    pub standing: Option<&'s ChainStamp>,
    /// Its bodies.
    pub bodies: Vec<&'s [u8]>,
}

impl Purge {
    /// Whether it means a stored response.
    pub fn matches(&self, sight: &PurgeSubject<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Route(route) => route_of(sight.key) == *route,
            Self::Target { route, target } => {
                route_of(sight.key) == *route && *target_of(sight.key) == **target
            }
            Self::Segment { route, at, value } => {
                let own = path_of(sight.key).split('/').nth(at + 1);
                route_of(sight.key) == *route && own == Some(value)
            }
            Self::Path { route, path } => {
                route_of(sight.key) == *route && *path_of(sight.key) == **path
            }
            Self::Heights { tip, from, to } => sight.standing.is_some_and(|standing| {
                let here = tip.is_none_or(|tip| tip == standing.tip);
                let named = standing.heights();
                here && named.is_some_and(|(lowest, highest)| *from <= highest && lowest <= *to)
            }),
            Self::Text(text) => {
                let has = |bytes: &[u8]| memmem::find(bytes, text.as_bytes()).is_some();
                has(sight.key) || sight.bodies.iter().any(|body| has(body))
            }
        }
    }
}

fn path_of(key: &[u8]) -> &str {
    let target = target_of(key);
    target.split('?').next().unwrap_or(target)
}

/// The purges there were, by number.
#[derive(Debug, Default)]
pub struct Purges {
    last: AtomicU64,
    /// Those that are remembered, with the highest number last. What has not
    /// been looked at since before the oldest counts as purged.
    records: RwLock<VecDeque<Purge>>,
}

/// Purges that are remembered. The store is swept soon after each, so that
/// only what comes late from the upstream is ever compared with old ones.
const REMEMBERED: usize = 4096;

impl Purges {
    /// The number of the last purge.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Adds one; it holds when this returns. Answers with its number.
    pub fn push(&self, purge: Purge) -> u64 {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        records.push_back(purge);
        if records.len() > REMEMBERED {
            records.pop_front();
        }
        // The lock orders the writers; readers go by this number alone.
        let number = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(number, Ordering::Release);
        number
    }

    /// Whether any purge after `since` means what is seen, but for one.
    pub fn strike(&self, sight: &PurgeSubject<'_>, since: u64, except: Option<u64>) -> bool {
        self.any(since, |number, purge| {
            Some(number) != except && purge.matches(sight)
        })
    }

    /// Whether any purge after `since` may mean what is stored under a key, of
    /// which the body is not known.
    pub fn may_strike(&self, key: &[u8], since: u64) -> bool {
        let sight = PurgeSubject {
            key,
            standing: None,
            bodies: Vec::new(),
        };
        self.any(since, |_, purge| match purge {
            Purge::Text(_) => true,
            Purge::All
            | Purge::Route(_)
            | Purge::Target { .. }
            | Purge::Segment { .. }
            | Purge::Path { .. }
            | Purge::Heights { .. } => purge.matches(&sight),
        })
    }

    fn any(&self, since: u64, strikes: impl Fn(u64, &Purge) -> bool) -> bool {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let last = self.last.load(Ordering::Relaxed);
        let remembered = last.saturating_sub(records.len() as u64);
        if since < remembered {
            return true;
        }
        let numbered = (remembered + 1..).zip(&*records);
        let mut later = numbered.filter(|(number, _)| *number > since);
        later.any(|(number, purge)| strikes(number, purge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::key::Key;
    use crate::chain::finality::Class;

    fn key(route: u16, target: &str) -> Key {
        let mut key = Key::begin(route);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    #[test]
    fn what_purges_mean() {
        let hash = "0".repeat(64);
        let body = format!("{{\"block_hash\":\"{hash}\"}}");
        let key = key(3, "/blocks/840000/activity?limit=20&offset=0");
        let standing = ChainStamp::new(Class::Recent, 1, Some((840_000, 840_002)), 5);
        let sight = PurgeSubject {
            key: key.as_bytes(),
            standing: Some(&standing),
            bodies: vec![body.as_bytes()],
        };
        let path = |route, path: &str| Purge::Path {
            route,
            path: path.into(),
        };
        let target = |route, target: &str| Purge::Target {
            route,
            target: target.into(),
        };
        let segment = |route, at, value: &str| Purge::Segment {
            route,
            at,
            value: value.into(),
        };
        let heights = |tip, from, to| Purge::Heights { tip, from, to };
        for (purge, strikes) in [
            (Purge::All, true),
            (Purge::Route(3), true),
            (Purge::Route(2), false),
            (path(3, "/blocks/840000/activity"), true),
            (path(3, "/blocks/84000/activity"), false),
            (path(2, "/blocks/840000/activity"), false),
            (target(3, "/blocks/840000/activity?limit=20&offset=0"), true),
            (target(3, "/blocks/840000/activity"), false),
            (
                target(2, "/blocks/840000/activity?limit=20&offset=0"),
                false,
            ),
            (segment(3, 1, "840000"), true),
            (segment(3, 2, "activity"), true),
            (segment(3, 1, "84000"), false),
            (segment(3, 0, "840000"), false),
            (segment(3, 3, ""), false),
            (segment(2, 1, "840000"), false),
            (heights(Some(1), 840_002, u32::MAX), true),
            (heights(Some(1), 840_003, u32::MAX), false),
            (heights(Some(0), 840_002, u32::MAX), false),
            (heights(None, 840_001, 840_001), true),
            (heights(None, 0, 839_999), false),
            (Purge::Text(hash.into()), true),
            (Purge::Text("840000/activity".into()), true),
            (Purge::Text("1".repeat(64).into()), false),
        ] {
            assert_eq!(purge.matches(&sight), strikes, "{purge:?}");
        }
        let none = ChainStamp::new(Class::Live, 1, None, 5);
        let sight = PurgeSubject {
            standing: Some(&none),
            ..sight
        };
        assert!(!heights(None, 0, u32::MAX).matches(&sight));
    }

    #[test]
    fn purges_concern_what_was_there_before_them() {
        let purges = Purges::default();
        let key = key(1, "/a");
        let sight = PurgeSubject {
            key: key.as_bytes(),
            standing: None,
            bodies: Vec::new(),
        };
        assert_eq!(purges.last(), 0);
        assert_eq!(purges.push(Purge::Route(1)), 1);
        assert!(purges.strike(&sight, 0, None));
        assert!(!purges.strike(&sight, 1, None));
        assert!(!purges.strike(&sight, 0, Some(1)), "its own cause");
        assert_eq!(purges.push(Purge::Route(2)), 2);
        assert!(!purges.strike(&sight, 1, None));
        for _ in 0..REMEMBERED {
            purges.push(Purge::Route(9));
        }
        assert!(purges.strike(&sight, 1, None), "forgotten is purged");
        assert!(!purges.strike(&sight, purges.last(), None));
    }
}
