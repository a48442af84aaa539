//! What mode `chain` goes by: depths and times, and where tips are learned.
//! `config` makes it of proxy.toml.

use std::time::Duration;

use serde::Serialize;

use super::finality::FinalitySettings;

/// What mode `chain` goes by.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Depths and times.
    #[serde(flatten)]
    pub times: FinalitySettings,
    /// Heights of which the hash is remembered, for each tip.
    pub index_blocks: usize,
    /// How many zeros a block's hash begins with at the least, in what clients
    /// ask; 0 to 64.
    pub hash_zeros: u8,
    /// What is fetched before it is asked for.
    pub look_ahead: LookAhead,
    /// Where tips are learned. The last ones have no path: they are for routes
    /// whose indexer has none, one for each upstream.
    #[serde(skip)]
    pub tips: Vec<TipSource>,
}

/// What is fetched before it is asked for, with what the budget has to spare.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LookAhead {
    /// Whether the next window is fetched for one who walks a list.
    pub next_window: bool,
    /// How many hot answers are fetched anew when an epoch begins.
    pub refresh: u32,
}

impl LookAhead {
    /// Whether anything is.
    pub const fn is_on(self) -> bool {
        self.next_window || self.refresh > 0
    }
}

/// Where an indexer says its tip.
#[derive(Clone, Debug, Serialize)]
pub struct TipSource {
    /// What routes call it.
    #[serde(skip)]
    pub name: Box<str>,
    /// Its status path; `None` where there is none, and only answers tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<str>>,
    /// The member of the status' JSON object that has the tip's height.
    pub height: Box<str>,
    /// How often it is asked.
    #[serde(serialize_with = "crate::units::serialize")]
    pub every: Duration,
    /// The number of the upstream that is asked.
    #[serde(skip)]
    pub upstream: u16,
    /// Its name.
    #[serde(rename = "upstream")]
    pub upstream_name: Box<str>,
}

impl TipSource {
    /// How long a tip counts as known since the last good probe was sent: one
    /// may fail.
    pub const fn patience(&self) -> Duration {
        self.every.saturating_mul(2)
    }

    /// Whether another says the tip of the same indexer, of the same upstream,
    /// however often it is asked.
    pub(super) fn is_of_one_indexer(&self, other: &Self) -> bool {
        (&self.name, &self.path, &self.height) == (&other.name, &other.path, &other.height)
            && self.upstream_name == other.upstream_name
    }
}
