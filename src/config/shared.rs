//! `[shared]`: what several replicas share.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::key::{Setting, keys};
use super::kinds::{MILLI, ParsedText, STRING, integer, optional, seconds, text, time, when};
use super::problem::{FileSpan, Path};
use crate::shared::{self, EngineUrl};
use crate::units;
use crate::upstream::Settings;

/// The most replicas.
const MOST: u64 = 10_000;

/// What several replicas share, if there are several.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaSettings {
    /// The most replicas that run at once.
    pub replicas: NonZeroU32,
    /// The engine. It is in the environment, or in `url_file`, which is read by whoever
    /// reads the secrets.
    #[serde(skip)]
    pub engine: Option<EngineUrl>,
    /// A file with the engine's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    /// What the engine's keys begin with.
    pub prefix: String,
    /// How long the engine may take to answer.
    #[serde(serialize_with = "units::serialize")]
    pub timeout: Duration,
    /// How long a request waits while another replica fetches the same response.
    #[serde(serialize_with = "units::serialize")]
    pub fill_wait: Duration,
}

/// The values of environment variables, which take precedence over the file.
#[derive(Clone, Debug, Default)]
pub struct ReplicaOverrides {
    /// The most replicas that run at once.
    pub replicas: Option<NonZeroU32>,
    /// The engine.
    pub engine: Option<EngineUrl>,
}

const PREFIX: ParsedText<String> = text(
    "1 to 32 letters, digits, dots, hyphens and underscores",
    "^[A-Za-z0-9._-]{1,32}$",
    |text| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        when(
            (1..=32).contains(&text.len()) && text.bytes().all(is_allowed),
            text,
        )
    },
);

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
    /// requests_per_second divided by `replicas`, rounded down. With an engine, that is so
    /// for a quarter of the budget, and the rest goes to those that need it. Their requests
    /// together never exceed the budget. Clients' limits are not shared: a client whose
    /// requests the load balancer spreads over all replicas may send as many to each of them.
    pub(super) struct SharedKeys {
        /// The most replicas that run at the same time, those included that overlap while
        /// they are replaced.
        ///
        /// Every replica must have the same value. To add replicas, raise it everywhere
        /// first; to remove some, stop them, wait 61 s, and lower it then.
        /// ORDGATE_SHARED_REPLICAS takes precedence over this key. A change needs a restart.
        replicas: Option<u64> = optional(integer(1..=MOST)) => None, example("3");
        /// A file with the URL of the engine and its password, unless ORDGATE_SHARED_URL is
        /// set. Without either, replicas share through no engine.
        ///
        /// The file must not be readable by others or writable by its group (chmod 600). A
        /// change needs a restart.
        url_file: Option<String> = optional(STRING) => None,
            example("\"/etc/ordgate/shared-url\"");
        /// What the names of all keys in the engine begin with. Replicas with the same prefix
        /// share. Without it, it is `ordgate`. A change needs a restart.
        prefix: Option<String> = optional(PREFIX) => None, example("\"ordgate\"");
        /// How long the engine may take to answer. A later answer is ignored. Without this key,
        /// it is 20 ms.
        timeout: Option<Duration> = optional(time(MILLI, seconds(1))) => None, example("\"20ms\"");
        /// How long a request waits while another replica fetches the same response. Then it is
        /// fetched here as well. Without this key, it is 2 s; with 0, replicas do not wait for
        /// each other's fetches.
        fill_wait: Option<Duration> = optional(time(Duration::ZERO, seconds(30))) => None, example("\"2s\"");
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
        (None, None) if overrides.engine.is_none() => return None,
        (None, _) => <SharedKeys as super::key::KeyTable>::defaults(),
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
    let settings = ReplicaSettings {
        replicas,
        engine: overrides.engine.clone(),
        url_file: keys.url_file.value.map(Into::into),
        prefix: keys.prefix.value.unwrap_or_else(|| "ordgate".to_owned()),
        timeout: keys.timeout.value.unwrap_or(20 * MILLI),
        fill_wait: keys.fill_wait.value.unwrap_or(seconds(2)),
    };
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
    /// How replicas share.
    pub(crate) fn shared(&self) -> shared::Settings {
        shared::Settings {
            replicas: self.replicas,
            engine: self.engine.clone(),
            prefix: self.prefix.clone(),
            timeout: self.timeout,
            fill_wait: self.fill_wait,
        }
    }

    /// The rate of an upstream of which a replica has no part, if requests carry an API key:
    /// its key and limit.
    fn without_part(&self, upstream: &Settings) -> Option<(String, u32)> {
        let mut limits = limits(upstream, true).into_iter();
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
    let limits = upstream.limits(has_keys);
    let limits = [
        ("requests_per_minute", limits.per_minute),
        ("requests_per_second", limits.per_second),
    ];
    let limit = |(key, limit): (&str, Option<u32>)| Some((upstream.key(key), limit?));
    limits.into_iter().filter_map(limit).collect()
}
