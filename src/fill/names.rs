//! What routes and tips are called outside the process, where their numbers mean nothing:
//! in `answers.db`, and among replicas.
//!
//! A stored response is found by its route's name, its target, and a digest of all that
//! the route's answers depend on: with another path, mode or upstream, what was stored
//! before is not found. A purge goes to other replicas by the sender's numbers: one whose routes
//! or tips are others, as during a rollout, drops all it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::Purge;
use crate::chain::{Chain, TipNumber};
use crate::route::{Route, RouteTable};
use crate::state::{PurgeRows, RowKey};
use crate::upstream::{Settings, Upstreams};

/// The names of a configuration's routes and tips.
#[derive(Default)]
pub(crate) struct StoredNames {
    /// By the numbers of the routes: the name, and the digest of the route's meaning.
    routes: BTreeMap<u16, [Arc<str>; 2]>,
    /// By the numbers of the tips: the digest of the tip's meaning.
    tips: Vec<Arc<str>>,
}

impl StoredNames {
    /// Those of a configuration, each with the digest of all that its answers depend on; of a
    /// route in mode `chain`, that is also its tip, and the depth at which answers are final.
    pub(crate) fn of(table: &RouteTable, upstreams: &Upstreams, chain: &Chain) -> Self {
        let sources = chain.tips().map(|(_, tip)| &tip.source);
        let settings = |number| &upstreams.get(number).settings;
        let tips = sources.map(|source| {
            let asked = upstream(settings(source.upstream));
            hex_digest(&format!("{:?}", (&source.name, &source.path, asked)))
        });
        let tips: Vec<_> = tips.collect();
        let depth = chain.finality.final_depth;
        let route = |route: &Route| {
            let tip = tips.get(usize::from(route.cache.tip));
            let tip = tip.filter(|_| route.cache.mode == Mode::Chain);
            let tip = tip.map(|meaning| (meaning, depth));
            let asked = upstream(settings(route.upstream.number));
            let meaning = format!("{} {asked:?} {tip:?}", route.meaning());
            let both = [route.name.as_ref().into(), hex_digest(&meaning)];
            (route.number, both)
        };
        Self {
            routes: table.routes().iter().map(route).collect(),
            tips,
        }
    }

    /// What the response to a key is found by.
    pub(super) fn row_key(&self, key: &Key) -> Option<RowKey> {
        let [name, meaning] = self.routes.get(&key.route())?;
        Some(RowKey {
            route: name.clone(),
            config: meaning.clone(),
            target: key.target().to_owned(),
        })
    }

    /// What the response to a key is found by among replicas.
    pub(super) fn shared_key(&self, key: &Key) -> Option<Vec<u8>> {
        let [name, meaning] = self.routes.get(&key.route())?;
        let whole = hex_digest(&format!("{name} {meaning} {}", key.target()));
        Some(whole.as_bytes().to_vec())
    }

    /// The digest of a tip.
    pub(super) fn tip(&self, tip: TipNumber) -> Option<&Arc<str>> {
        self.tips.get(usize::from(tip))
    }

    /// The digest of all names and meanings, by their numbers.
    fn all(&self) -> Arc<str> {
        hex_digest(&format!("{:?} {:?}", self.routes, self.tips))
    }

    /// Purges as other replicas are told of them.
    pub(super) fn record(&self, purges: &[Purge]) -> Vec<u8> {
        // Without bytes, it is a purge of everything.
        postcard::to_allocvec(&(&*self.all(), purges)).unwrap_or_default()
    }

    /// The purges that another replica tells of: everything, if that cannot be read, or if its
    /// numbers mean something else here.
    pub(super) fn purges(&self, record: &[u8]) -> Vec<Purge> {
        match postcard::from_bytes::<(&str, Vec<Purge>)>(record) {
            Ok((names, purges)) if *names == *self.all() => purges,
            _ => vec![Purge::All],
        }
    }

    /// A purge by names. One that cannot be said by them purges more.
    pub(super) fn rows(&self, purge: &Purge) -> Vec<PurgeRows> {
        self.named(purge).unwrap_or_else(|| vec![PurgeRows::All])
    }

    fn named(&self, purge: &Purge) -> Option<Vec<PurgeRows>> {
        let name = |number: &u16| Some(self.routes.get(number)?[0].to_string());
        let whole = |route, target: &str| PurgeRows::Targets {
            route,
            range: target.to_owned()..=target.to_owned(),
        };
        Some(match purge {
            Purge::All | Purge::Text(_) => return None,
            Purge::Route(of) => vec![PurgeRows::below(name(of)?, String::new())],
            Purge::Target { route, target } => vec![whole(name(route)?, target)],
            Purge::Path { route, path } => vec![
                whole(name(route)?, path),
                PurgeRows::below(name(route)?, format!("{path}?")),
            ],
            Purge::Heights { tip, from, to } => vec![PurgeRows::Heights {
                tip: tip.and_then(|tip| self.tip(tip)).cloned(),
                from: *from,
                to: *to,
            }],
        })
    }
}

/// The digest of a text, in hexadecimal.
fn hex_digest(text: &str) -> Arc<str> {
    let digest = digest(&SHA256, text.as_bytes());
    let half = digest.as_ref()[..16].iter();
    half.map(|byte| format!("{byte:02x}"))
        .collect::<String>()
        .into()
}

/// What an upstream's answers depend on: its name and its preferred URL, or what its
/// answers follow from. The other URLs are of the same API.
fn upstream(settings: &Settings) -> (&str, String) {
    let preferred = match &settings.content {
        Some(content) => content.to_string(),
        None => (settings.urls.first()).map_or_else(String::new, ToString::to_string),
    };
    (&settings.name, preferred)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> StoredNames {
        let both = |name: &str| [name.into(), format!("digest of {name}").into()];
        StoredNames {
            routes: [(3, both("blocks")), (4, both("tokens"))].into(),
            tips: vec!["ordinals".into(), "runes".into()],
        }
    }

    #[test]
    fn purges_are_told_by_numbers_and_everything_is_purged_where_they_differ() {
        let purges = [
            Purge::All,
            Purge::Text("abc".into()),
            Purge::Route(3),
            Purge::Target {
                route: 3,
                target: "/a?b".into(),
            },
            Purge::Path {
                route: 4,
                path: "/a".into(),
            },
            Purge::Heights {
                tip: Some(1),
                from: 7,
                to: u32::MAX,
            },
        ];
        let record = names().record(&purges);
        assert_eq!(names().purges(&record), purges);
        // Another replica has other numbers, or lacks a tip.
        let (mut renumbered, mut fewer) = (names(), names());
        let blocks = renumbered.routes.remove(&3).unwrap();
        renumbered.routes.insert(9, blocks);
        fewer.tips.pop();
        for others in [renumbered, fewer] {
            assert_eq!(others.purges(&record), [Purge::All]);
        }
        for broken in [&b""[..], &record[..record.len() - 1], b"\xff"] {
            assert_eq!(names().purges(broken), [Purge::All]);
        }
    }

    #[test]
    fn what_rows_cannot_say_purges_more_of_them() {
        let rows = |purge| names().rows(&purge);
        assert_eq!(rows(Purge::Text("abc".into())), [PurgeRows::All]);
        assert_eq!(rows(Purge::Route(99)), [PurgeRows::All]);
        let path = Purge::Path {
            route: 3,
            path: "/a".into(),
        };
        let route = || "blocks".to_owned();
        let both = [
            PurgeRows::Targets {
                route: route(),
                range: "/a".into()..="/a".into(),
            },
            PurgeRows::below(route(), "/a?".into()),
        ];
        assert_eq!(rows(path), both);
    }
}
