//! The settings of mode `chain`: final depth, freshness lifetimes, and where tips are
//! asked for. `config` reads them from proxy.toml.

use std::time::Duration;

use super::freshness::FinalitySettings;

/// The settings of mode `chain`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Final depth and freshness lifetimes.
    pub(crate) times: FinalitySettings,
    /// Where tips are asked for. The last ones have no status path: they are for routes
    /// whose indexer has none, one for each upstream.
    pub tips: Vec<TipSource>,
}

#[cfg(test)]
impl Settings {
    /// Those of tests: one tip, which is asked for every 5 s.
    pub(crate) fn of_tests() -> Self {
        Self {
            times: FinalitySettings::default(),
            tips: vec![TipSource {
                name: "runes".into(),
                path: Some("/".into()),
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

/// Where an indexer's tip is asked for.
#[derive(Clone, Debug, Default)]
pub struct TipSource {
    /// Its name in the configuration of routes.
    pub name: Box<str>,
    /// Its status path; `None` where there is none, and the tip is never known.
    pub path: Option<Box<str>>,
    /// The time from one status to the next.
    pub(crate) every: Duration,
    /// The number of its upstream.
    pub(crate) upstream: u16,
    /// The upstream's name.
    pub(crate) upstream_name: Box<str>,
}

impl TipSource {
    /// How long a tip counts as known after the last status was asked for: one may fail.
    pub(crate) const fn known_for(&self) -> Duration {
        self.every.saturating_mul(2)
    }

    /// Whether another is of the same indexer of the same upstream, perhaps at another
    /// pace.
    pub(super) fn is_same_indexer(&self, other: &Self) -> bool {
        (&self.name, &self.path) == (&other.name, &other.path)
            && self.upstream_name == other.upstream_name
    }
}
