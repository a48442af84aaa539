//! The settings of mode `chain`: final depth, freshness lifetimes, and where tips are
//! asked for. `config` reads them from proxy.toml.

use std::time::Duration;

use serde::Serialize;

use super::freshness::Class;

/// The settings of mode `chain`.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Final depth and freshness lifetimes.
    #[serde(flatten)]
    pub(crate) times: FinalitySettings,
    /// The fewest leading zeros of a block hash that clients may request; 0 to 64.
    pub(crate) hash_zeros: u8,
    /// Where tips are asked for. The last ones have no status path: they are for routes
    /// whose indexer has none, one for each upstream.
    #[serde(skip)]
    pub tips: Vec<TipSource>,
}

/// When blocks are final, and how long answers are fresh.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FinalitySettings {
    /// A block this far below the tip is final.
    pub(crate) final_depth: u32,
    /// Freshness lifetime of `final`.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) final_ttl: Duration,
    /// How long after a new tip its indexer may still be writing: what is `live` and was
    /// fetched within that time is fetched once more after it.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) live_ttl: Duration,
    /// Freshness lifetime of `absent`: clients poll for what is not indexed yet.
    #[serde(serialize_with = "crate::units::serialize")]
    pub(crate) absent_ttl: Duration,
}

/// Freshness lifetime of what is not final while no tip is known.
pub(super) const WITHOUT_TIP: Duration = Duration::from_secs(1);

/// The longest freshness lifetime of `live`: an indexer may change a token without a new
/// tip. The mean time between blocks.
const LIVE: Duration = Duration::from_mins(10);

impl FinalitySettings {
    /// Whether responses stored under other settings may be kept under these:
    /// nothing would be final later, or be fresh for a shorter time.
    pub(super) fn keep(&self, before: &Self) -> bool {
        self.final_depth <= before.final_depth
            && self.final_ttl >= before.final_ttl
            && self.live_ttl <= before.live_ttl
            && self.absent_ttl >= before.absent_ttl
    }

    /// The longest freshness lifetime of a class.
    pub(crate) const fn lifetime(&self, class: Class) -> Duration {
        match class {
            Class::Absent => self.absent_ttl,
            Class::Live => LIVE,
            Class::Recent | Class::Final => self.final_ttl,
        }
    }
}

impl Default for FinalitySettings {
    fn default() -> Self {
        Self {
            final_depth: 6,
            final_ttl: Duration::from_hours(30 * 24),
            live_ttl: Duration::from_secs(30),
            absent_ttl: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
impl Settings {
    /// Those of tests: one tip, which is asked for every 5 s.
    pub(crate) fn of_tests() -> Self {
        Self {
            times: FinalitySettings::default(),
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

/// Where an indexer's tip is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct TipSource {
    /// Its name in the configuration of routes.
    #[serde(skip)]
    pub name: Box<str>,
    /// Its status path; `None` where there is none, and the tip is never known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<str>>,
    /// The member of the status (a JSON object) that is the tip's height.
    pub(crate) height: Box<str>,
    /// The time from one status to the next.
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
    /// How long a tip counts as known after the last status was asked for: one may fail.
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
