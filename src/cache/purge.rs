//! Purges: records that make stored responses, and answers still on their way
//! from the upstream, unusable.
//!
//! A purge is a numbered record, and is complete once the record is written.
//! Each stored response has the number of the last purge it was checked against
//! ([`CheckedPurge`]). A hit compares that
//! with the last number, and checks the records in between only where they
//! differ. So every purge takes the same short time, applies to all runtimes at
//! once, and also applies to fetches under way, whose answers have the number
//! that was current when the fetch began.

use std::collections::VecDeque;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::sync::{read, write};

/// What to purge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purge {
    /// Everything.
    All,
    /// All responses of a route.
    Route(u16),
    /// One target of a route.
    Target {
        /// The route.
        route: u16,
        /// The canonical target, query included.
        target: Box<str>,
    },
    /// One path of a route, whatever the query.
    Path {
        /// The route.
        route: u16,
        /// The canonical path.
        path: Box<str>,
    },
    /// Responses that name a block between two heights, both included.
    Heights {
        /// The tip whose blocks are meant; `None` for any.
        tip: Option<u16>,
        /// The lowest height.
        from: u32,
        /// The highest height.
        to: u32,
    },
    /// Responses with this text in their target or body: the hexadecimal hash of
    /// a block or id of a transaction.
    Text(Box<str>),
}

/// The parts of a stored response that purges match.
pub(crate) struct PurgeSubject<'s> {
    /// Its key.
    pub(crate) key: &'s Key,
    /// The tip by which it was fetched, and the lowest and the highest block that it names,
    /// if it names any.
    pub(crate) blocks: Option<(u16, (u32, u32))>,
    /// Its body.
    pub(crate) body: &'s [u8],
}

impl Purge {
    /// Whether it matches a stored response.
    pub(crate) fn matches(&self, subject: &PurgeSubject<'_>) -> bool {
        let of_route = |route: &u16| subject.key.route() == *route;
        match self {
            Self::All => true,
            Self::Route(route) => of_route(route),
            Self::Target { route, target } => of_route(route) && *subject.key.target() == **target,
            Self::Path { route, path } => {
                let own = subject.key.target().split('?').next();
                of_route(route) && own == Some(path)
            }
            Self::Heights { tip, from, to } => subject.blocks.is_some_and(|(of, blocks)| {
                tip.is_none_or(|tip| tip == of) && *from <= blocks.1 && blocks.0 <= *to
            }),
            Self::Text(text) => {
                let has = |bytes: &[u8]| memmem::find(bytes, text.as_bytes()).is_some();
                has(subject.key.as_bytes()) || has(subject.body)
            }
        }
    }
}

/// The number of the last purge that a stored response was checked against.
#[derive(Debug, Default)]
pub struct CheckedPurge(AtomicU64);

impl Clone for CheckedPurge {
    fn clone(&self) -> Self {
        Self::at(self.number())
    }
}

impl CheckedPurge {
    /// That of a response whose request was sent after a purge. For a response that is made
    /// of others it is the lowest of theirs.
    pub(crate) const fn at(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// The number of the purge.
    pub(crate) fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a check against all purges up to a number.
    pub(super) fn raise(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

/// The purge records, by number.
#[derive(Debug, Default)]
pub(super) struct Purges {
    last: AtomicU64,
    /// The remembered records, oldest first. A response that was last checked
    /// before the oldest counts as purged.
    records: RwLock<VecDeque<Purge>>,
}

/// How many purges are remembered. The store is swept soon after each purge, so
/// old records are compared only with late answers from the upstream.
const REMEMBERED: usize = 4096;

impl Purges {
    /// The number of the last purge.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Adds purges, which apply once this returns. `first` is called before that, with the
    /// number of the last of them, and while nobody else purges.
    pub(super) fn push<T>(&self, purges: &[Purge], first: impl FnOnce(u64) -> T) -> (u64, T) {
        let mut records = write(&self.records);
        let number = self.last.load(Ordering::Relaxed) + purges.len() as u64;
        let done = first(number);
        records.extend(purges.iter().cloned());
        let excess = records.len().saturating_sub(REMEMBERED);
        records.drain(..excess);
        // The lock orders writers; readers look at this number only.
        self.last.store(number, Ordering::Release);
        (number, done)
    }

    /// Whether any purge after `since` matches.
    pub(super) fn any(&self, since: u64, matches: impl Fn(&Purge) -> bool) -> bool {
        if since == self.last() {
            return false;
        }
        let records = read(&self.records);
        let last = self.last.load(Ordering::Relaxed);
        let forgotten = last.saturating_sub(records.len() as u64);
        if since < forgotten {
            return true;
        }
        let mut numbered = (forgotten + 1..).zip(&*records);
        numbered.any(|(number, purge)| number > since && matches(purge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(route: u16, target: &str) -> Key {
        Key::of(route, target)
    }

    #[test]
    fn purges_match_by_target_block_or_text() {
        let hash = "0".repeat(64);
        let body = format!("{{\"block_hash\":\"{hash}\"}}");
        let key = key(3, "/blocks/840000/activity?limit=20&offset=0");
        let subject = PurgeSubject {
            key: &key,
            blocks: Some((1, (840_000, 840_002))),
            body: body.as_bytes(),
        };
        let path = |route, path: &str| Purge::Path {
            route,
            path: path.into(),
        };
        let target = |route, target: &str| Purge::Target {
            route,
            target: target.into(),
        };
        let heights = |tip, from, to| Purge::Heights { tip, from, to };
        for (purge, expected) in [
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
            (heights(Some(1), 840_002, u32::MAX), true),
            (heights(Some(1), 840_003, u32::MAX), false),
            (heights(Some(0), 840_002, u32::MAX), false),
            (heights(None, 840_001, 840_001), true),
            (heights(None, 0, 839_999), false),
            (Purge::Text(hash.into()), true),
            (Purge::Text("840000/activity".into()), true),
            (Purge::Text("1".repeat(64).into()), false),
        ] {
            assert_eq!(purge.matches(&subject), expected, "{purge:?}");
        }
        let subject = PurgeSubject {
            blocks: None,
            ..subject
        };
        assert!(!heights(None, 0, u32::MAX).matches(&subject));
    }

    #[test]
    fn a_purge_matches_only_what_was_checked_before_it() {
        let purges = Purges::default();
        let key = key(1, "/a");
        let subject = PurgeSubject {
            key: &key,
            blocks: None,
            body: &[],
        };
        let any = |since| purges.any(since, |purge| purge.matches(&subject));
        let push = |route| purges.push(&[Purge::Route(route)], |number| number);
        assert_eq!(purges.last(), 0);
        assert_eq!(push(1), (1, 1));
        assert!(any(0));
        assert!(!any(1));
        assert_eq!(push(2), (2, 2));
        assert!(!any(1));
        let many = vec![Purge::Route(9); REMEMBERED];
        purges.push(&many, |_| {
            assert_eq!(purges.last(), 2, "they do not apply yet")
        });
        assert!(any(1), "forgotten is purged");
        assert!(!any(purges.last()));
    }
}
