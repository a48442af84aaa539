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
use crate::chain::Standing;

/// What is purged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Everything.
    All,
    /// What a route has stored.
    Route(u16),
    /// What a route has stored of one path, whatever the query; and all that
    /// has the hash or the id in it that the path has: answers are cut from
    /// that too, and a block's are stored under its height.
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
pub struct Sight<'s> {
    /// Its key.
    pub key: &'s [u8],
    /// How it stands towards the chain.
    pub standing: Option<&'s Standing>,
    /// Its bodies.
    pub bodies: Vec<&'s [u8]>,
}

impl Sight<'_> {
    fn has(&self, text: &str) -> bool {
        let has = |bytes: &[u8]| memmem::find(bytes, text.as_bytes()).is_some();
        has(self.key) || self.bodies.iter().any(|body| has(body))
    }
}

/// Whether a part of a path has the form of a block's hash or a transaction's
/// id.
fn is_hash(part: &str) -> bool {
    part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Purge {
    /// Whether it means a stored response.
    pub fn strikes(&self, sight: &Sight<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Route(route) => route_of(sight.key) == *route,
            Self::Path { route, path } => {
                let target = target_of(sight.key);
                let own = target.split('?').next().unwrap_or(target);
                let mut ids = path.split('/').filter(|part| is_hash(part));
                route_of(sight.key) == *route && *own == **path || ids.any(|id| sight.has(id))
            }
            Self::Heights { tip, from, to } => sight.standing.is_some_and(|standing| {
                let here = tip.is_none_or(|tip| tip == standing.tip);
                let named = standing.heights();
                here && named.is_some_and(|(lowest, highest)| *from <= highest && lowest <= *to)
            }),
            Self::Text(text) => sight.has(text),
        }
    }
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
    pub fn strike(&self, sight: &Sight<'_>, since: u64, except: Option<u64>) -> bool {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let last = self.last.load(Ordering::Relaxed);
        let remembered = last.saturating_sub(records.len() as u64);
        if since < remembered {
            return true;
        }
        let numbered = (remembered + 1..).zip(&*records);
        let mut later = numbered.filter(|(number, _)| *number > since && Some(*number) != except);
        later.any(|(_, purge)| purge.strikes(sight))
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
        let standing = Standing::new(Class::Recent, 1, Some((840_000, 840_002)), 5);
        let sight = Sight {
            key: key.as_bytes(),
            standing: Some(&standing),
            bodies: vec![body.as_bytes()],
        };
        let path = |route, path: &str| Purge::Path {
            route,
            path: path.into(),
        };
        let heights = |tip, from, to| Purge::Heights { tip, from, to };
        for (purge, strikes) in [
            (Purge::All, true),
            (Purge::Route(3), true),
            (Purge::Route(2), false),
            (path(3, "/blocks/840000/activity"), true),
            (path(3, "/blocks/84000/activity"), false),
            (path(2, "/blocks/840000/activity"), false),
            (path(3, &format!("/blocks/{hash}/activity")), true),
            (path(2, &format!("/transactions/{hash}/activity")), true),
            (
                path(2, &format!("/transactions/{}/activity", "1".repeat(64))),
                false,
            ),
            (heights(Some(1), 840_002, u32::MAX), true),
            (heights(Some(1), 840_003, u32::MAX), false),
            (heights(Some(0), 840_002, u32::MAX), false),
            (heights(None, 840_001, 840_001), true),
            (heights(None, 0, 839_999), false),
            (Purge::Text(hash.into()), true),
            (Purge::Text("840000/activity".into()), true),
            (Purge::Text("1".repeat(64).into()), false),
        ] {
            assert_eq!(purge.strikes(&sight), strikes, "{purge:?}");
        }
        let none = Standing::new(Class::Live, 1, None, 5);
        let sight = Sight {
            standing: Some(&none),
            ..sight
        };
        assert!(!heights(None, 0, u32::MAX).strikes(&sight));
    }

    #[test]
    fn purges_concern_what_was_there_before_them() {
        let purges = Purges::default();
        let key = key(1, "/a");
        let sight = Sight {
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
