//! The settings of mode `chain`: final depth, freshness lifetimes, and how tips are
//! probed. `config` reads them from proxy.toml.

use std::time::Duration;

use serde::Serialize;

use super::finality::FinalitySettings;

/// The settings of mode `chain`.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Final depth and freshness lifetimes.
    #[serde(flatten)]
    pub(crate) times: FinalitySettings,
    /// The most heights whose hash is remembered, for each tip.
    pub(crate) index_blocks: usize,
    /// The fewest leading zeros of a block hash that clients may request; 0 to 64.
    pub(crate) hash_zeros: u8,
    /// How tips are probed. The last ones have no status path: they are for routes
    /// whose indexer has none, one for each upstream.
    #[serde(skip)]
    pub tips: Vec<TipSource>,
}

/// The most heights of which the block hash is remembered.
pub(crate) const INDEX_BLOCKS: usize = 65_536;

#[cfg(test)]
impl Settings {
    /// Those of tests: one tip, which is probed every 5 s.
    pub(crate) fn of_tests() -> Self {
        Self {
            times: FinalitySettings::default(),
            index_blocks: 100,
            hash_zeros: 8,
            tips: vec![TipSource {
                name: "runes".into(),
                path: Some("/".into()),
                height: "block_height".into(),
                every: Duration::from_secs(5),
                upstream: 0,
                upstream_name: "default".into(),
            }],
        }
    }
}

/// Standby endpoints are probed so many times less often than the active one while they
/// are healthy.
pub(crate) const STANDBYS_SELDOM: u32 = 3;

/// How an indexer's tip is probed.
#[derive(Clone, Debug, Serialize)]
pub struct TipSource {
    /// Its name in the configuration of routes.
    #[serde(skip)]
    pub name: Box<str>,
    /// Its status path; `None` where there is none, and the tip follows from answers
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<str>>,
    /// The member of the status (a JSON object) that is the tip's height.
    pub(crate) height: Box<str>,
    /// The time from one probe to the next.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) every: Duration,
    /// The number of its upstream.
    #[serde(skip)]
    pub(crate) upstream: u16,
    /// The upstream's name.
    #[serde(rename = "upstream")]
    pub(crate) upstream_name: Box<str>,
}

impl TipSource {
    /// How long a tip counts as known after the last successful probe was sent: one
    /// probe may fail.
    pub(crate) const fn known_for(&self) -> Duration {
        self.every.saturating_mul(2)
    }

    /// Whether another is of the same indexer of the same upstream, perhaps at another
    /// pace.
    pub(super) fn is_same_indexer(&self, other: &Self) -> bool {
        (&self.name, &self.path, &self.height) == (&other.name, &other.path, &other.height)
            && self.upstream_name == other.upstream_name
    }
}
