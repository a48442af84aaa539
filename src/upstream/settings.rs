//! The settings of one upstream, as `[upstream]` or `[upstreams.NAME]` in
//! proxy.toml has them, and whether it can be called with them.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use serde::{Serialize, Serializer};

use super::keys::ApiKey;
use crate::shared::permits::Limits;

/// The name of the upstream that `[upstream]` describes.
pub const DEFAULT: &str = "default";

/// The settings of one upstream.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The upstream's name: [`DEFAULT`], or that of its table in proxy.toml.
    pub name: Box<str>,
    /// The base URLs, the preferred one first. Each has the scheme `http` or `https`, an
    /// authority, and perhaps a path that is put before every target. Without a
    /// URL the upstream cannot be used.
    pub urls: Vec<Uri>,
    /// What all answers follow from, where it is known: for a sandbox, whose URL differs
    /// from start to start.
    pub content: Option<Box<str>>,
    /// By how many blocks an endpoint may lag behind another and still be used.
    pub max_lag: u32,
    /// How long a preferred endpoint must be healthy before it is used again.
    pub return_after: Duration,
    /// The header field that carries the key.
    pub api_key_header: HeaderName,
    /// A file of keys, for keys that do not come from the environment.
    pub api_keys_file: Option<PathBuf>,
    /// Whether `api_keys_file` is this upstream's own, so that its keys are not those of
    /// the default upstream.
    pub has_own_file: bool,
    /// Whether requests carry a key, if there are keys.
    pub send_api_key: bool,
    /// Whether a key may be sent over plain http to another machine.
    pub allow_plain_http: bool,
    /// Requests per key in any 60 seconds; `None` for the default.
    pub requests_per_minute: Option<Rate>,
    /// Requests per key in any second; `None` for the default.
    pub requests_per_second: Option<Rate>,
    /// A PEM file of certificate authorities to trust besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// How long connecting may take, TLS included.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Requests in flight at each base URL, at most.
    pub max_in_flight: NonZeroU32,
    /// How long a request may wait for budget and for a slot.
    pub queue_timeout: Duration,
    /// How many requests may wait at once.
    pub max_queue: NonZeroU32,
    /// How long the first byte of an answer may take.
    pub first_byte_timeout: Duration,
    /// How long a body may be silent.
    pub silence_timeout: Duration,
    /// How long the whole answer may take, retries included.
    pub timeout: Duration,
    /// The longest response body that is accepted, in bytes.
    pub max_body_bytes: u64,
    /// The longest request body that is accepted, in bytes.
    pub max_request_body: u64,
    /// Whether a failed request is sent again, where that is safe and may help.
    pub retry: bool,
}

/// The number of requests allowed in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Any number of requests.
    Unlimited,
    /// At most this many requests.
    Limited(NonZeroU32),
}

impl Rate {
    /// How the configuration spells the absence of a limit.
    pub const UNLIMITED: &str = "unlimited";

    /// The number of requests; `None` for any number.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Limited(limit) => Some(limit.get()),
        }
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unlimited => to.serialize_str(Self::UNLIMITED),
            Self::Limited(limit) => limit.serialize(to),
        }
    }
}

/// The default limits of a key: those of the API's provider.
pub(crate) const PER_MINUTE: u32 = 500;
pub(crate) const PER_SECOND: u32 = 20;

/// Why an upstream cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No upstream is configured, or routes use the default one, which has no URL.
    #[error(
        "there is no upstream, or some routes use the default one, which has no URL: give --upstream URL or upstream.url in the config, or set upstream = \"NAME\" on those routes or on their tip (`ordgate check` prints the upstream of each), or try --sandbox, which needs neither key nor network"
    )]
    NoUpstream,
    /// A named upstream has no URL, and inherits none.
    #[error(
        "the upstream \"{0}\" has no URL: give --upstream {0}=URL or upstreams.{0}.url in the config, or try --sandbox, which needs neither key nor network"
    )]
    NoUrl(Box<str>),
    /// A key would be sent unencrypted.
    #[error(
        "{url} is plain http off this machine, and an API key would travel over it readable by anyone on the way: use https, or set {table}.allow_plain_http = true, or, if it needs no key, {table}.send_api_key = false"
    )]
    PlainHttp {
        /// The upstream's table.
        table: String,
        /// Where the key would be sent.
        url: Uri,
    },
    /// `ca_file` cannot be read, or has no usable certificate.
    #[error("{key} {path}: {why}", path = path.display())]
    CaFile {
        /// The key in proxy.toml that names it.
        key: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// rustls rejects the configuration.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

impl SetupError {
    /// The key in proxy.toml whose value is wrong, if it is that of one.
    pub fn key(&self) -> Option<String> {
        match self {
            Self::PlainHttp { table, .. } => Some(format!("{table}.url")),
            Self::CaFile { key, .. } => Some(key.clone()),
            Self::NoUpstream | Self::NoUrl(_) | Self::Rustls(_) => None,
        }
    }
}

impl Settings {
    /// The full name of one of its keys in proxy.toml.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.table())
    }

    /// The name of its table in proxy.toml.
    pub fn table(&self) -> String {
        match &*self.name {
            DEFAULT => "upstream".to_owned(),
            name => format!("upstreams.{name}"),
        }
    }

    /// Checks that the upstream can be called with these settings and keys.
    ///
    /// # Errors
    /// If there is no URL, or a key would be sent unencrypted.
    pub fn check(&self, keys: &[ApiKey]) -> Result<(), SetupError> {
        let urls = &self.urls;
        if urls.is_empty() {
            return Err(match &*self.name {
                DEFAULT => SetupError::NoUpstream,
                name => SetupError::NoUrl(name.into()),
            });
        }
        if !self.sends_keys(!keys.is_empty()) || self.allow_plain_http {
            return Ok(());
        }
        match urls.iter().find(|url| is_exposed(url)) {
            None => Ok(()),
            Some(url) => Err(SetupError::PlainHttp {
                table: self.table(),
                url: url.clone(),
            }),
        }
    }

    /// Whether requests carry a key, given whether there is one.
    pub fn sends_keys(&self, has_keys: bool) -> bool {
        has_keys && self.send_api_key
    }

    /// The limits in force, given whether there are keys: without a key, none; with one, the
    /// provider's unless others are configured.
    pub fn limits(&self, has_keys: bool) -> Limits {
        if !self.sends_keys(has_keys) {
            return Limits::default();
        }
        let per_minute = self.requests_per_minute;
        let per_minute = per_minute.map_or(Some(PER_MINUTE), Rate::limit);
        let per_second = self.requests_per_second;
        Limits {
            per_minute,
            per_second: per_second.map_or(per_minute.map(|_| PER_SECOND), Rate::limit),
        }
    }

    /// The key of a limit that is set, and is not the provider's.
    pub(crate) fn own_rate(&self) -> Option<&'static str> {
        let rates = [
            ("requests_per_minute", self.requests_per_minute, PER_MINUTE),
            ("requests_per_second", self.requests_per_second, PER_SECOND),
        ];
        let is_own = |rate: Option<Rate>, usual| {
            let limit = rate.and_then(Rate::limit);
            limit.is_some_and(|limit| limit != usual)
        };
        let own = rates.iter().find(|(_, rate, usual)| is_own(*rate, *usual));
        own.map(|(key, ..)| *key)
    }
}

/// Whether requests to this URL can be read on the way: plain http to another
/// machine.
fn is_exposed(url: &Uri) -> bool {
    if url.scheme_str() != Some("http") {
        return false;
    }
    let host = url
        .host()
        .unwrap_or("")
        .trim_start_matches('[')
        .trim_end_matches(']');
    let loopback = host
        .parse::<std::net::IpAddr>()
        .map(|address| address.is_loopback());
    !loopback.unwrap_or(host.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped_settings() -> Settings {
        let config = crate::config::Config::parse("p", "").unwrap();
        config.upstreams.into_iter().next().unwrap()
    }

    #[test]
    fn the_rates_in_force() {
        const ANY: Rate = Rate::Unlimited;
        let at_most = |most| Rate::Limited(NonZeroU32::new(most).unwrap());
        let [seven, nine] = [7, 9].map(at_most);
        let shipped = (Some(500), Some(20));
        // The configured rates; whether there are keys, and they are sent.
        for (configured, has_keys, sends, expected) in [
            ((None, None), true, true, shipped),
            ((None, None), false, true, (None, None)),
            ((None, None), true, false, (None, None)),
            ((Some(nine), Some(seven)), false, true, (None, None)),
            ((Some(ANY), None), true, true, (None, None)),
            ((Some(ANY), Some(seven)), true, true, (None, Some(7))),
            ((None, Some(ANY)), true, true, (Some(500), None)),
            ((Some(nine), None), true, true, (Some(9), Some(20))),
        ] {
            let mut settings = shipped_settings();
            (settings.requests_per_minute, settings.requests_per_second) = configured;
            settings.send_api_key = sends;
            let limits = settings.limits(has_keys);
            let found = (limits.per_minute, limits.per_second);
            assert_eq!(found, expected, "{configured:?} {has_keys} {sends}");
        }
    }

    #[test]
    fn a_key_that_is_not_sent_is_not_exposed() {
        let mut settings = shipped_settings();
        settings.urls = vec!["http://api.example".parse().unwrap()];
        let keys = ApiKey::list("a-key").unwrap();
        let checked = settings.check(&keys);
        assert!(matches!(checked, Err(SetupError::PlainHttp { .. })));
        settings.send_api_key = false;
        assert!(settings.check(&keys).is_ok());
    }

    #[test]
    fn where_a_key_would_be_exposed() {
        for (url, exposed) in [
            ("http://127.0.0.1:3999", false),
            ("http://127.9.9.9", false),
            ("http://[::1]:80/api", false),
            ("http://localhost:80", false),
            ("https://api.example", false),
            ("http://api.example", true),
            ("http://10.0.0.1", true),
            ("http://localhost.example", true),
        ] {
            assert_eq!(is_exposed(&url.parse().unwrap()), exposed, "{url}");
        }
    }
}
