//! How the upstream is called, and whether it can be.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use serde::Serialize;

use super::client::{response_body, upload};
use super::endpoint::InFlight;
use super::keys::ApiKey;
use crate::upstream::admission::{Rate, Rates};
use crate::upstream::client::tls::TlsError;
use crate::upstream::endpoint::breaker;

/// The name of the upstream that `[upstream]` describes.
pub const DEFAULT: &str = "default";

/// How the upstream is called.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The upstream's name: [`DEFAULT`], or that of its table in proxy.toml.
    #[serde(skip)]
    pub name: Box<str>,
    /// Whether `api_keys_file` is its own, so that its keys are not those of the
    /// default upstream.
    #[serde(skip)]
    pub has_own_keys_file: bool,
    /// The base URLs, the preferred one first: of each `http` or `https`, an
    /// authority, and perhaps a path that stands before every target. Nothing
    /// can be asked without.
    #[serde(
        rename = "url",
        serialize_with = "urls",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub urls: Vec<Uri>,
    /// By how many blocks one of them may lag behind another and still be
    /// asked.
    pub max_lag: u32,
    /// How long a preferred one has to be sound before it is asked again.
    #[serde(serialize_with = "crate::units::serialize")]
    pub return_after: Duration,
    /// The field that carries the key.
    #[serde(serialize_with = "display")]
    pub api_key_header: HeaderName,
    /// A file of keys, where they do not come from the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_file: Option<PathBuf>,
    /// Whether a key may travel over plain http to another machine.
    pub allow_plain_http: bool,
    /// A PEM file of certificate authorities to trust beside the usual ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Whether HTTP/2 is spoken: to https URLs where they agree to it by ALPN, to
    /// http URLs with prior knowledge.
    pub http2: bool,
    /// Whether requests carry a key, where there are keys.
    pub send_api_key: bool,
    /// For each key: requests in any 60 seconds, where that is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<Rate>,
    /// For each key: requests in any second, where that is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<Rate>,
    /// Whether some route that passes all that clients ask (`headers = "all"`)
    /// asks here.
    #[serde(skip)]
    pub passes_all: bool,
    /// Requests under way at once, at each base URL.
    pub max_in_flight: NonZeroU32,
    /// The bound goes down to so many where more only make it slower.
    pub min_in_flight: NonZeroU32,
    /// How long a request waits for budget and for a place among those.
    #[serde(serialize_with = "crate::units::serialize")]
    pub queue_timeout: Duration,
    /// How many may wait so at once.
    pub max_queue: NonZeroU32,
    /// How long connecting may take, TLS included.
    #[serde(serialize_with = "crate::units::serialize")]
    pub connect_timeout: Duration,
    /// How long the first byte of an answer may take.
    #[serde(serialize_with = "crate::units::serialize")]
    pub first_byte_timeout: Duration,
    /// How long the whole of an answer may take, retries among it.
    #[serde(serialize_with = "crate::units::serialize")]
    pub timeout: Duration,
    /// How long an unused connection is kept.
    #[serde(serialize_with = "crate::units::serialize")]
    pub idle_timeout: Duration,
    /// The longest body that is accepted, in bytes.
    pub max_body_bytes: u64,
    /// What the bodies of requests may take.
    pub request_body: upload::Limits,
    /// How slowly the bodies of answers may come.
    pub response_body: response_body::Limits,
    /// When and how often a request is sent again.
    pub retry: Retry,
    /// When a request is sent a second time before the first is answered.
    pub hedge: Hedge,
    /// When it is not asked at all, since it goes on failing.
    pub breaker: breaker::Settings,
}

/// When and how often a request is sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Retry {
    /// How often one request is, at the most; 0 for never.
    pub limit: u32,
    /// How many in a hundred requests are, at the most.
    pub share: u32,
}

/// When a request is sent a second time before the first is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hedge {
    /// Whether one ever is.
    pub enabled: bool,
    /// After the time that so many in a hundred answers of late have taken at
    /// the most.
    pub percentile: NonZeroU32,
}

/// The rates of a key where none is said, as the provider of the API had them.
const PER_MINUTE: u32 = 500;
const PER_SECOND: u32 = 20;

/// Why an upstream cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is no upstream at all.
    #[error(
        "there is no upstream: give --upstream URL or upstream.url in the config, or try --sandbox, which needs neither key nor network"
    )]
    NoUpstream,
    /// Routes ask the default upstream beside others, and it has no URL.
    #[error(
        "some routes ask the default upstream, which has no URL: give --upstream URL or upstream.url in the config, or have those routes, or their tip, ask another by upstream = \"NAME\" (`ordgate check` prints what each of them asks)"
    )]
    NoDefaultUrl,
    /// A named upstream has no URL, and inherits none.
    #[error(
        "the upstream \"{0}\" has no URL: give --upstream {0}=URL or upstreams.{0}.url in the config, or try --sandbox, which needs neither key nor network"
    )]
    NoUrl(Box<str>),
    /// A key would travel readable by anyone.
    #[error(
        "{0} is plain http off this machine, and an API key would travel over it readable by anyone on the way: use https, or set upstream.allow_plain_http = true"
    )]
    PlainHttp(Uri),
    /// The same, of a named upstream.
    #[error(
        "the upstream \"{name}\": {url} is plain http off this machine, and an API key would travel over it readable by anyone on the way: use https, or set upstreams.{name}.allow_plain_http = true, or, if it needs no key, upstreams.{name}.send_api_key = false"
    )]
    NamedPlainHttp {
        /// The upstream's name.
        name: Box<str>,
        /// Where the key would be sent.
        url: Uri,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
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

    /// Whether it can be called so, with these keys.
    ///
    /// # Errors
    /// Where there is no URL, or a key would travel in the clear.
    pub fn check(&self, keys: &[ApiKey]) -> Result<(), SetupError> {
        if self.urls.is_empty() {
            return Err(match &*self.name {
                DEFAULT => SetupError::NoUpstream,
                name => SetupError::NoUrl(name.into()),
            });
        }
        if !self.sends_keys(!keys.is_empty()) || self.allow_plain_http {
            return Ok(());
        }
        let Some(url) = self.urls.iter().find(|url| is_exposed(url)).cloned() else {
            return Ok(());
        };
        Err(match &*self.name {
            DEFAULT => SetupError::PlainHttp(url),
            name => SetupError::NamedPlainHttp {
                name: name.into(),
                url,
            },
        })
    }

    /// Whether requests carry a key, given whether there is one.
    pub fn sends_keys(&self, has_keys: bool) -> bool {
        has_keys && self.send_api_key
    }

    /// The rates in force, given whether there are keys. Where none is said, an
    /// origin that everything is passed to without a key is not limited, and the
    /// API as its provider sells it.
    pub fn rates(&self, has_keys: bool) -> Rates {
        let is_open = self.passes_all && !self.sends_keys(has_keys);
        let default = |most| match NonZeroU32::new(most) {
            Some(most) if !is_open => Rate::Limited(most),
            _ => Rate::Unlimited,
        };
        let per_second = match self.requests_per_minute {
            Some(Rate::Unlimited) => Rate::Unlimited,
            _ => default(PER_SECOND),
        };
        Rates {
            per_minute: self.requests_per_minute.unwrap_or(default(PER_MINUTE)),
            per_second: self.requests_per_second.unwrap_or(per_second),
        }
    }

    /// These settings with the rates in force said, given whether there are
    /// keys; so they are printed.
    #[must_use]
    pub fn in_force(&self, has_keys: bool) -> Self {
        let rates = self.rates(has_keys);
        Self {
            requests_per_minute: Some(rates.per_minute),
            requests_per_second: Some(rates.per_second),
            ..self.clone()
        }
    }

    /// Whether connections are made as by other settings, from the same
    /// authorities.
    pub fn connects_as(&self, other: &Self) -> bool {
        let windows = |settings: &Self| (settings.max_in_flight, settings.urls.len());
        self.ca_file == other.ca_file
            && self.connect_timeout == other.connect_timeout
            && self.idle_timeout == other.idle_timeout
            && self.http2 == other.http2
            && (!self.http2 || windows(self) == windows(other))
    }

    /// How many requests each base URL may have under way.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            least: self.min_in_flight.get(),
            most: self.max_in_flight.get(),
        }
    }
}

/// Whether what is sent there can be read on the way: plain http to another
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

/// One URL as it is, several as a list.
fn urls<S: serde::Serializer>(urls: &[Uri], to: S) -> Result<S::Ok, S::Error> {
    match urls {
        [url] => to.collect_str(url),
        urls => to.collect_seq(urls.iter().map(ToString::to_string)),
    }
}

fn display<S: serde::Serializer>(value: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_in_force() {
        use Rate::Unlimited;
        let limited = |most| Rate::Limited(NonZeroU32::new(most).unwrap());
        let shipped = (limited(500), limited(20));
        // What is said; whether all is passed, there are keys, and they are sent.
        for (said, is_open, has_keys, sends, expected) in [
            ((None, None), false, false, true, shipped),
            ((None, None), false, true, true, shipped),
            ((None, None), true, true, true, shipped),
            ((None, None), true, false, true, (Unlimited, Unlimited)),
            ((None, None), true, true, false, (Unlimited, Unlimited)),
            ((None, None), false, true, false, shipped),
            (
                (Some(Unlimited), None),
                false,
                true,
                true,
                (Unlimited, Unlimited),
            ),
            (
                (Some(Unlimited), Some(limited(7))),
                false,
                true,
                true,
                (Unlimited, limited(7)),
            ),
            (
                (None, Some(Unlimited)),
                false,
                true,
                true,
                (limited(500), Unlimited),
            ),
            (
                (Some(limited(9)), None),
                false,
                true,
                true,
                (limited(9), limited(20)),
            ),
            (
                (Some(limited(9)), None),
                true,
                false,
                true,
                (limited(9), Unlimited),
            ),
        ] {
            let mut settings = crate::config::Config::parse("p", "")
                .unwrap()
                .upstreams
                .remove(0);
            (settings.requests_per_minute, settings.requests_per_second) = said;
            (settings.passes_all, settings.send_api_key) = (is_open, sends);
            let rates = settings.rates(has_keys);
            let found = (rates.per_minute, rates.per_second);
            assert_eq!(found, expected, "{said:?} {is_open} {has_keys} {sends}");
            let shown = settings.in_force(has_keys).rates(true);
            assert_eq!(shown, rates, "what is printed is what is in force");
        }
    }

    #[test]
    fn a_key_that_is_not_sent_is_not_exposed() {
        let mut settings = crate::config::Config::parse("p", "")
            .unwrap()
            .upstreams
            .remove(0);
        settings.urls = vec!["http://api.example".parse().unwrap()];
        let keys = ApiKey::list("a-key").unwrap();
        assert!(matches!(
            settings.check(&keys),
            Err(SetupError::PlainHttp(_))
        ));
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
