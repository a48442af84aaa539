//! What routes and tips are called outside the process, where their numbers mean nothing:
//! in `answers.db`, and among replicas.
//!
//! A stored response is found by its route's name, its target, and a digest of all that
//! the route's answers depend on: with another path, mode or upstream, what was stored
//! before is not found. A purge goes by the route's name alone, so that replicas with
//! different configurations, as during a rollout, all apply it.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::Purge;
use crate::chain::{Chain, TipNumber, TipSource};
use crate::route::{Route, RouteTable};
use crate::state::{PurgeRows, RowKey};
use crate::upstream::{Settings, Upstreams};

/// The names of a configuration's routes and tips.
#[derive(Default)]
pub(crate) struct StoredNames {
    /// By the numbers of the routes: the name, and the digest of the route's meaning.
    routes: HashMap<u16, [Arc<str>; 2]>,
    /// By the numbers of the tips: the name, and the digest of the tip's meaning.
    tips: Vec<[Arc<str>; 2]>,
}

/// Purges as replicas tell each other: by the sender's numbers, which its names explain.
#[derive(Serialize, Deserialize)]
struct PurgeRecord {
    routes: Vec<(u16, String)>,
    tips: Vec<String>,
    purges: Vec<Purge>,
}

impl StoredNames {
    /// Those of a configuration.
    pub(crate) fn of(table: &RouteTable, upstreams: &Upstreams, chain: &Chain) -> Self {
        let sources = (0..).map_while(|tip| chain.source(tip));
        let settings = |number| &upstreams.get(number).settings;
        let tips: Vec<[Arc<str>; 2]> = sources
            .map(|source| {
                let meaning = of_tip(source, settings(source.upstream));
                [source.name.as_ref().into(), meaning]
            })
            .collect();
        let depth = chain.finality.final_depth;
        let route = |route: &Route| {
            let tip = tips.get(usize::from(route.cache.tip));
            let tip = tip.filter(|_| route.cache.mode == Mode::Chain);
            let tip = tip.map(|[_, meaning]| meaning);
            let meaning = of_route(route, settings(route.upstream.number), tip, depth);
            (route.number, [route.name.as_ref().into(), meaning])
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
        let whole = format!("{name} {meaning} {}", key.target());
        Some(hex_digest(&whole).as_bytes().to_vec())
    }

    /// The digest of a tip.
    pub(super) fn tip(&self, tip: TipNumber) -> Option<&Arc<str>> {
        self.tips.get(usize::from(tip)).map(|[_, meaning]| meaning)
    }

    /// Purges as other replicas are told of them.
    pub(super) fn record(&self, purges: &[Purge]) -> Vec<u8> {
        let routes = self.routes.iter();
        let record = PurgeRecord {
            routes: routes
                .map(|(number, [name, _])| (*number, name.to_string()))
                .collect(),
            tips: self.tips.iter().map(|[name, _]| name.to_string()).collect(),
            purges: purges.to_vec(),
        };
        // Without bytes, it is a purge of everything.
        postcard::to_allocvec(&record).unwrap_or_default()
    }

    /// The purges that another replica tells of: everything, if that cannot be read. Routes
    /// that are unknown here have nothing stored here; of an unknown tip, all tips are meant.
    pub(super) fn purges(&self, record: &[u8]) -> Vec<Purge> {
        let Ok(record) = postcard::from_bytes::<PurgeRecord>(record) else {
            return vec![Purge::All];
        };
        let own_route = |theirs: u16| {
            let (_, name) = record.routes.iter().find(|(number, _)| *number == theirs)?;
            let own = self.routes.iter().find(|(_, [own, _])| **own == **name);
            own.map(|(number, _)| *number)
        };
        let own_tip = |theirs: TipNumber| {
            let name = record.tips.get(usize::from(theirs))?;
            let own = self.tips.iter().position(|[own, _]| **own == **name)?;
            TipNumber::try_from(own).ok()
        };
        let own = |mut purge: Purge| {
            match &mut purge {
                Purge::All | Purge::Text(_) => {}
                Purge::Route(route)
                | Purge::Target { route, .. }
                | Purge::Segment { route, .. }
                | Purge::Path { route, .. } => *route = own_route(*route)?,
                Purge::Heights { tip, .. } => *tip = tip.and_then(own_tip),
            }
            Some(purge)
        };
        record.purges.iter().cloned().filter_map(own).collect()
    }

    /// A purge by names. One that cannot be said by them purges more.
    pub(super) fn rows(&self, purge: &Purge) -> Vec<PurgeRows> {
        let route = |number: &u16| Some(self.routes.get(number)?[0].to_string());
        let rows = match purge {
            Purge::All | Purge::Text(_) => None,
            Purge::Route(of) | Purge::Segment { route: of, .. } => {
                route(of).map(|route| vec![PurgeRows::Route(route)])
            }
            Purge::Target { route: of, target } => route(of).map(|route| {
                let target = target.to_string();
                vec![PurgeRows::Target { route, target }]
            }),
            Purge::Path { route: of, path } => route(of).map(|route| {
                let whole = PurgeRows::Target {
                    route: route.clone(),
                    target: path.to_string(),
                };
                let prefix = format!("{path}?");
                vec![whole, PurgeRows::Prefix { route, prefix }]
            }),
            Purge::Heights { tip, from, to } => {
                let (tip, from, to) = (tip.and_then(|tip| self.tip(tip)).cloned(), *from, *to);
                Some(vec![PurgeRows::Heights { tip, from, to }])
            }
        };
        rows.unwrap_or_else(|| vec![PurgeRows::All])
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

fn of_tip(tip: &TipSource, asked: &Settings) -> Arc<str> {
    let meaning = (&tip.name, &tip.path, upstream(asked));
    hex_digest(&format!("{meaning:?}"))
}

/// The digest of all that a route's answers depend on; on a route in mode `chain`, its tip
/// and the depth at which answers are final.
fn of_route(route: &Route, asked: &Settings, tip: Option<&Arc<str>>, depth: u32) -> Arc<str> {
    let tip = tip.map(|tip| (tip, depth));
    hex_digest(&format!(
        "{} {:?} {tip:?}",
        route.meaning(),
        upstream(asked)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> StoredNames {
        let both = |name: &str| [name.into(), format!("digest of {name}").into()];
        StoredNames {
            routes: [(3, both("blocks")), (4, both("tokens"))].into(),
            tips: vec![both("ordinals"), both("runes")],
        }
    }

    #[test]
    fn purges_are_told_by_names_and_unknown_routes_are_not_purged() {
        let purges = [
            Purge::All,
            Purge::Text("abc".into()),
            Purge::Route(3),
            Purge::Target {
                route: 3,
                target: "/a?b".into(),
            },
            Purge::Segment {
                route: 4,
                at: 2,
                value: "ordi".into(),
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
        // Another replica has other numbers, and lacks a route and a tip.
        let mut others = names();
        let blocks = others.routes.remove(&3).unwrap();
        others.routes = [(9, blocks)].into();
        others.tips.pop();
        let heard = others.purges(&record);
        assert_eq!(heard[2], Purge::Route(9));
        assert_eq!(heard.len(), 5, "{heard:?}");
        let any = Purge::Heights {
            tip: None,
            from: 7,
            to: u32::MAX,
        };
        assert_eq!(heard[4], any);
        for broken in [&b""[..], &record[..record.len() - 1], b"\xff"] {
            assert_eq!(names().purges(broken), [Purge::All]);
        }
    }

    #[test]
    fn what_rows_cannot_say_purges_more_of_them() {
        let rows = |purge| names().rows(&purge);
        assert_eq!(rows(Purge::Text("abc".into())), [PurgeRows::All]);
        assert_eq!(rows(Purge::Route(99)), [PurgeRows::All]);
        let segment = Purge::Segment {
            route: 4,
            at: 2,
            value: "ordi".into(),
        };
        assert_eq!(rows(segment), [PurgeRows::Route("tokens".into())]);
        let path = Purge::Path {
            route: 3,
            path: "/a".into(),
        };
        let route = || "blocks".to_owned();
        let both = [
            PurgeRows::Target {
                route: route(),
                target: "/a".into(),
            },
            PurgeRows::Prefix {
                route: route(),
                prefix: "/a?".into(),
            },
        ];
        assert_eq!(rows(path), both);
    }
}
