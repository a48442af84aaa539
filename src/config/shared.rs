//! `[shared]`: what several replicas share.

use std::num::NonZeroU32;

use serde::Serialize;

use super::key::{Setting, keys};
use super::kinds::{integer, optional};
use super::problem::{FileSpan, Path};
use crate::upstream::{Rate, Settings};

/// The most replicas.
const MOST: u64 = 10_000;

/// What several replicas share, if there are several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplicaSettings {
    /// The most replicas that run at once.
    pub replicas: NonZeroU32,
}

/// The values of environment variables, which take precedence over the file.
#[derive(Clone, Debug, Default)]
pub struct ReplicaOverrides {
    /// The most replicas that run at once.
    pub replicas: Option<NonZeroU32>,
}

/// The number of replicas that a text is, if there may be so many.
pub fn replica_count(text: &str) -> Option<NonZeroU32> {
    let count: u32 = text.parse().ok()?;
    NonZeroU32::new(count).filter(|count| u64::from(count.get()) <= MOST)
}

keys! {
    /// What several ordgates share that use the same API keys, for example behind a load
    /// balancer. Without this table, an ordgate uses its API keys alone.
    ///
    /// Each replica has the same part of each key's budget: requests_per_minute and
    /// requests_per_second divided by `replicas`, rounded down. Their requests together
    /// never exceed the budget. Clients' limits are not shared: a client whose requests
    /// the load balancer spreads over all replicas may send as many to each of them.
    pub(super) struct SharedKeys {
        /// The most replicas that run at the same time, those included that overlap while
        /// they are replaced.
        ///
        /// Every replica must have the same value. To add replicas, raise it everywhere
        /// first; to remove some, stop them, wait 61 s, and lower it then.
        /// ORDGATE_SHARED_REPLICAS takes precedence over this key. A change needs a restart.
        replicas: Option<u64> = optional(integer(1..=MOST)) => None, example("3");
    }
}

/// The settings, if replicas are configured.
pub(super) fn settings(
    table: Setting<Option<SharedKeys>>,
    path: &Path<'_>,
    overrides: &ReplicaOverrides,
    upstreams: &[Settings],
) -> Option<ReplicaSettings> {
    let nowhere = FileSpan::default();
    let at = table.at_or(&nowhere).clone();
    let keys = match (table.value, overrides.replicas) {
        (Some(keys), _) => keys,
        (None, None) => return None,
        (None, Some(_)) => <SharedKeys as super::key::KeyTable>::defaults(),
    };
    let (at, source) = match overrides.replicas {
        Some(_) => (at, "ORDGATE_SHARED_REPLICAS".to_owned()),
        None => (
            keys.replicas.at_or(&at).clone(),
            path.key("replicas").name().to_owned(),
        ),
    };
    let count = keys
        .replicas
        .value
        .and_then(|count| u32::try_from(count).ok());
    let replicas = overrides.replicas.or(count.and_then(NonZeroU32::new));
    let Some(replicas) = replicas else {
        if !keys.replicas.is_wrong {
            path.key("replicas").problem(
                &at,
                "is missing: the most replicas that run at the same time; set it, or ORDGATE_SHARED_REPLICAS",
            );
        }
        return None;
    };
    let settings = ReplicaSettings { replicas };
    // Rates of requests with an API key are no looser.
    if let Some((key, limit)) = upstreams
        .iter()
        .find_map(|upstream| settings.without_part(upstream))
    {
        path.problem_whole(
            &at,
            format!(
                "{source} is {replicas}, and {key} is {limit}: each replica's part would be 0 requests: lower shared.replicas, or raise that limit"
            ),
        );
    }
    Some(settings)
}

impl ReplicaSettings {
    /// The rate of an upstream of which a replica has no part: its key and limit.
    fn without_part(&self, upstream: &Settings) -> Option<(String, u32)> {
        let mut limits = limits(upstream, false).into_iter();
        limits.find(|(_, limit)| *limit < self.replicas.get())
    }

    /// The rates of an upstream of which more than a quarter is lost because each
    /// replica's part is rounded down: key, limit, and what is lost.
    pub(super) fn lost_parts(
        &self,
        upstream: &Settings,
        has_keys: bool,
    ) -> Vec<(String, u32, u32)> {
        let lost = |(key, limit): (String, u32)| {
            let lost = limit % self.replicas;
            (lost > limit / 4).then_some((key, limit, lost))
        };
        limits(upstream, has_keys)
            .into_iter()
            .filter_map(lost)
            .collect()
    }
}

/// The rates of an upstream that are limited, by their keys.
fn limits(upstream: &Settings, has_keys: bool) -> Vec<(String, u32)> {
    let rates = upstream.rates(has_keys);
    let rates = [
        ("requests_per_minute", rates.per_minute),
        ("requests_per_second", rates.per_second),
    ];
    let limit = |(key, rate): (&str, Rate)| Some((upstream.key(key), rate.limit()?));
    rates.into_iter().filter_map(limit).collect()
}
