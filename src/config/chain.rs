//! `[chain]`, and the tips by which routes in mode `chain` go.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::chain::{FinalitySettings, TipSource};
use crate::units::Time;

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
    final_depth: NonZeroU32,
    /// How long after a new tip its indexer may still be writing: a live answer that was fetched
    /// within that time is fetched once more after it.
    ///
    /// Apart from that, live answers are fresh until the next tip, ten minutes at most.
    #[serde(with = "Time::<1>")]
    live_ttl: Duration,
    /// Where each indexer of the upstream reports its tip: [chain.tip.NAME].
    ///
    /// "ordinals" and "runes" are built in; a file changes the keys of them that it sets. These
    /// requests come first in the upstream's budget, which keeps up to a quarter for them. Where
    /// they would be more, `every` is so much longer, and a warning says how long.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) tip: BTreeMap<String, TipTable>,
}

impl Default for ChainTable {
    fn default() -> Self {
        let usual = FinalitySettings::default();
        Self {
            final_depth: NonZeroU32::new(usual.final_depth).unwrap_or(NonZeroU32::MIN),
            live_ttl: usual.live_ttl,
            tip: BTreeMap::new(),
        }
    }
}

/// Where an indexer reports its tip.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TipTable {
    /// A path on the upstream that answers with a JSON object that has the tip's height as
    /// `block_height`, such as "/runes/v1/".
    pub(super) path: String,
    /// How often ordgate asks. Clients may keep an answer that is not final for two of these
    /// intervals after the last status; what is stored keeps the time it was stored with.
    #[serde(default = "five_seconds", with = "Time::<100>")]
    every: Duration,
    /// The upstream to ask: "default", or the name of an `[upstreams.NAME]`.
    ///
    /// Without it, that is the upstream that the routes of this tip name, or else the one of
    /// the same name as the tip, or else `[upstream]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) upstream: Option<String>,
}

fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

impl ChainTable {
    /// When answers are final, and how long others are fresh.
    pub(super) fn finality(&self) -> FinalitySettings {
        FinalitySettings {
            final_depth: self.final_depth.get(),
            live_ttl: self.live_ttl,
        }
    }

    /// The tips, whose upstreams are assigned later.
    pub(super) fn tips(&self) -> Vec<TipSource> {
        let source = |(name, table): (&String, &TipTable)| TipSource {
            name: name.as_str().into(),
            path: Some(table.path.as_str().into()),
            every: table.every,
            ..TipSource::default()
        };
        self.tip.iter().map(source).collect()
    }
}

/// The source of a tip that is never known, for routes of an upstream without a status path.
pub(super) fn no_tip(upstream: &str) -> TipSource {
    TipSource {
        name: format!("none-{upstream}").into(),
        path: None,
        every: five_seconds(),
        upstream_name: upstream.into(),
        ..TipSource::default()
    }
}
