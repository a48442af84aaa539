//! `[chain]`, and the tips by which routes in mode `chain` go.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::value::{Count, DAY, Time};
use crate::chain::{self, FinalitySettings, TipSource};
use crate::upstream::{DEFAULT, Settings};

/// Routes with cache.mode = "chain": answers are kept by the blocks that they depend on
/// rather than by time.
///
/// An answer is final when all blocks that it depends on are `final_depth` or more below the
/// tip; recent when it depends on newer blocks; and live when any block may change it, such
/// as a token's figures. While no tip is known, because the status path fails, what is not
/// final is fresh for a second.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChainTable {
    /// How many blocks below the tip a block is final.
    final_depth: Count<1, 10_000>,
    /// How long after a new tip its indexer may still be writing: a live answer that was fetched
    /// within that time is fetched once more after it.
    ///
    /// Apart from that, live answers are fresh until the next tip, ten minutes at most.
    live_ttl: Time<1, DAY>,
    /// How long answers that are empty, not found or refused (any 4xx) are fresh.
    absent_ttl: Time<1, DAY>,
    /// The number of zeros that a block hash in a request must begin with; 0 for test chains
    /// such as regtest and signet.
    ///
    /// Other hashes get 400 and cost no upstream request. The reference upstream demands
    /// eight.
    pub(super) hash_zeros: Count<0, 64>,
    /// Where each indexer of the upstream reports its tip: [chain.tip.NAME].
    ///
    /// "ordinals" and "runes" are there by default. These requests come first in the
    /// upstream's budget, which keeps up to a quarter for them. Where they would be more,
    /// `every` is so much longer, and a warning says how long.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tip: BTreeMap<String, TipTable>,
}

impl Default for ChainTable {
    fn default() -> Self {
        Self {
            final_depth: Count(6),
            live_ttl: Time::seconds(30),
            absent_ttl: Time::seconds(1),
            hash_zeros: Count(8),
            tip: BTreeMap::new(),
        }
    }
}

/// Where an indexer reports its tip.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct TipTable {
    /// A path on the upstream that answers with a JSON object, such as "/runes/v1/". A new
    /// tip needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The member of that object that has the tip's height.
    height: String,
    /// How often ordgate asks. Clients are told to keep an answer no longer than this,
    /// unless it is final.
    every: Time<100, DAY>,
    /// The upstream to ask: "default", or the name of an `[upstreams.NAME]`.
    ///
    /// Without it, that is the upstream that the routes of this tip name, or else the one of
    /// the same name as the tip, or else `[upstream]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<String>,
}

impl Default for TipTable {
    fn default() -> Self {
        Self {
            path: None,
            height: "block_height".to_owned(),
            every: Time::seconds(5),
            upstream: None,
        }
    }
}

/// The indexers of the API, as the reference upstream has them.
const INDEXERS: [(&str, &str); 2] = [("ordinals", "/ordinals/v1/"), ("runes", "/runes/v1/")];

/// The tips that routes may go by.
pub(super) struct Tips {
    /// Their sources. Those without a path, for routes whose indexer reports no tip, are the
    /// last.
    pub(super) sources: Vec<TipSource>,
    /// The number of the upstream that each names.
    pub(super) named: Vec<Option<u16>>,
}

impl ChainTable {
    /// Finality, and what is remembered. The tips come later.
    pub(super) fn settings(&self) -> chain::Settings {
        chain::Settings {
            times: FinalitySettings {
                final_depth: self.final_depth.small(),
                live_ttl: *self.live_ttl,
                absent_ttl: *self.absent_ttl,
                ..FinalitySettings::default()
            },
            tips: Vec::new(),
        }
    }

    /// The tips of the file, and those of the reference upstream.
    pub(super) fn tips(&self, upstreams: &[Settings], problems: &mut Vec<String>) -> Tips {
        let names = INDEXERS.map(|(name, _)| name).into_iter();
        let own = self.tip.keys().map(|name| &**name);
        let own = own.filter(|name| !INDEXERS.iter().any(|(known, _)| known == name));
        let mut tips = Tips {
            sources: Vec::new(),
            named: Vec::new(),
        };
        let usual = TipTable::default();
        for name in names.chain(own) {
            let table = self.tip.get(name).unwrap_or(&usual);
            let known = INDEXERS.iter().find(|(known, _)| *known == name);
            let path = table.path.as_deref().or(known.map(|(_, path)| *path));
            let is_target = |path: &str| {
                let is_plain = path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
                path.starts_with('/') && is_plain
            };
            if !path.is_some_and(is_target) {
                problems.push(format!(
                    "chain.tip.{name}.path is {}; needed is a path on the upstream, such as \"/runes/v1/\"",
                    path.map_or_else(|| "missing".to_owned(), |path| format!("{path:?}"))
                ));
            }
            let key = format!("chain.tip.{name}.upstream");
            let named = table.upstream.as_deref();
            tips.named
                .push(named.and_then(|named| number_of(upstreams, named, &key, problems)));
            tips.sources
                .push(source(name, path, &table.height, *table.every));
        }
        tips.sources
            .push(source("none", None, &usual.height, *usual.every));
        tips
    }
}

fn source(name: &str, path: Option<&str>, height: &str, every: Duration) -> TipSource {
    TipSource {
        name: name.into(),
        path: path.map(Into::into),
        height: height.into(),
        every,
        upstream: 0,
        upstream_name: DEFAULT.into(),
    }
}

/// The number of the upstream that a key names; says which there are if there is none.
pub(super) fn number_of(
    upstreams: &[Settings],
    name: &str,
    key: &str,
    problems: &mut Vec<String>,
) -> Option<u16> {
    let found = position(upstreams, name);
    if found.is_none() {
        let names: Vec<_> = upstreams.iter().map(|one| &*one.name).collect();
        problems.push(format!(
            "{key} is {name:?}; allowed are \"{DEFAULT}\", which is [upstream], and the names of [upstreams.NAME]: {}",
            names.join(", ")
        ));
    }
    found
}

/// The number of the upstream of a name.
pub(super) fn position(upstreams: &[Settings], name: &str) -> Option<u16> {
    let found = upstreams.iter().position(|one| *one.name == *name)?;
    u16::try_from(found).ok()
}
