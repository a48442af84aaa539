//! The settings of one upstream, as `[upstream]` or `[upstreams.NAME]` in
//! proxy.toml has them, and whether it can be called with them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use rustls::pki_types::DnsName;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::keys::ApiKey;
use crate::shared::permits::Limits;
use crate::units::{Size, Texts, Time};

/// The name of the upstream that `[upstream]` describes.
pub const DEFAULT: &str = "default";

/// A server of the API, and how it is called.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The upstream's name: [`DEFAULT`], or that of its table in proxy.toml.
    #[serde(skip)]
    pub name: Box<str>,
    /// What all answers follow from, where it is known: for a sandbox, whose URL differs
    /// from start to start.
    #[serde(skip)]
    pub content: Option<Box<str>>,
    /// Whether `api_keys_file` is this upstream's own, so that its keys are not those of
    /// the default upstream.
    #[serde(skip)]
    pub has_own_file: bool,
    /// The API's base URL. A path in it goes before every target. --upstream takes
    /// precedence.
    ///
    /// A list names several servers, the preferred one first. ordgate uses one at a time. It
    /// fails over to another when that one does not answer, answers a status path with anything
    /// else than a status, or is more than two blocks behind another by their status paths. It
    /// returns to a preferred one that has worked again for 30 seconds. All of them share one
    /// budget for each key, and keys are sent to each of them. A key in cooldown (429) or
    /// quarantine (401, 403) at
    /// one base URL is not used at any base URL of that host (scheme, name and port); it is
    /// used at the others. When no key is usable for longer than `queue_timeout`, ordgate uses
    /// another server. On routes with headers = "all", 5xx are passed on, so there a server has
    /// failed only when it does not answer.
    #[serde(
        rename = "url",
        deserialize_with = "base_urls",
        serialize_with = "Texts::serialize",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(with = "Texts")]
    pub urls: Vec<Uri>,
    /// The request field that carries the API key.
    #[serde(deserialize_with = "key_field", serialize_with = "write_key_field")]
    #[schemars(with = "String")]
    pub api_key_header: HeaderName,
    /// A file with the API keys, one per line, unless ORDGATE_API_KEYS is set.
    ///
    /// The file must not be readable by others or writable by its group (chmod 600). Of
    /// several keys, ordgate uses the one with the most budget left. After 429 a key is in
    /// cooldown: it is not used for the time that the answer names. When a target gets 401 or
    /// 403, ordgate requests the status path of its tip (chain.tip.*.path) with the same key,
    /// at most once a minute if that goes on. If the key is refused there too, it is
    /// quarantined, for a minute at a time, and another is used; otherwise the client gets 502
    /// and the key stays in use. On routes with headers = "all", 401 and 403 are passed on and
    /// do not affect the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_file: Option<PathBuf>,
    /// Whether requests carry an API key. Set it to false for a server of your own beside a
    /// provider's.
    pub send_api_key: bool,
    /// Whether an API key may be sent over plain http to another machine.
    pub allow_plain_http: bool,
    /// A file of certificate authorities (PEM) to trust beside the public ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// The budget of each API key: the most requests in any 60 seconds, or "unlimited" for a
    /// server of your own.
    ///
    /// ordgate never sends more. Three fifths may go at once; after that, requests are spread
    /// over the minute. The client that has recently had the least goes first, and a part is
    /// kept for probes of the tip (`kept_for_probes` in /status). A key has one budget for all
    /// upstreams that it is sent to. Requests without a key have none.
    ///
    /// Limits that the server reports (retry-after, ratelimit, ratelimit-remaining and -reset,
    /// x-ratelimit-remaining and -reset) apply as well and can only make the budget smaller,
    /// also with "unlimited".
    ///
    /// A request counts from when it is sent until a minute after its answer, because the
    /// provider may count it at any time in between: of n per minute, 60 n / (60.05 + t) can be
    /// used when answers take t seconds. A request that nobody waits for any more stays in
    /// flight, with its slot, until the server answers or closes its connection, two minutes at
    /// most.
    pub requests_per_minute: Rate,
    /// The budget of each API key: the most requests in any second, or "unlimited". The default is
    /// 20, or none where `requests_per_minute` is "unlimited".
    ///
    /// A request counts until a second after its answer: of n per second, n / (1.005 + t) can
    /// be used when answers take t seconds; of 20, that is 18.0 at 105 ms and 10.0 at 1 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<Rate>,
    /// The most requests under way at once, at each base URL.
    ///
    /// A quarter of the slots is kept for clients that have none (`kept_for_other_clients` in
    /// /status). Below 4, none are kept, and one client's slow requests can hold up all others.
    ///
    /// When `requests_per_second` of all keys together is lower than this, the slots are as many
    /// as that, because a request counts in each second until it is answered. For the same
    /// reason, each of several hosts that get the same key may have 3/4 of `requests_per_second`
    /// unanswered, and always one.
    pub max_in_flight: NonZeroU32,
    /// How long a request waits for budget and for a slot.
    ///
    /// Clients take turns, however much each of them wants. A client's misses go before its
    /// revalidations. A request that is sent again does not wait once more.
    #[serde(with = "Time::<1>")]
    pub queue_timeout: Duration,
    /// How long the first byte of an answer may take; `timeout` bounds it, too. Connecting, with
    /// TLS, may take as long, five seconds at most.
    #[serde(with = "Time::<1>")]
    pub first_byte_timeout: Duration,
    /// How long the body of an answer may be silent while ordgate waits for it.
    ///
    /// A body that stalls is a failure of its base URL. If it is read whole before it is passed
    /// on, the next base URL is asked, or the client gets 504. On routes with headers = "all",
    /// the client's answer breaks off. The time in which a client reads nothing does not count.
    /// On those routes, events, and answers without a length, may be streams: they may be silent
    /// for `first_byte_timeout`.
    #[serde(with = "Time::<1>")]
    pub silence_timeout: Duration,
    /// How long a whole answer may take, with retries.
    #[serde(with = "Time::<1>")]
    pub timeout: Duration,
    /// The longest answer that ordgate accepts.
    #[serde(with = "Size::<1024>")]
    pub max_body_bytes: u64,
    /// The longest request body, on routes with headers = "all".
    ///
    /// A request takes a slot at the upstream when its body has arrived whole. A body that
    /// breaks off or is malformed, too slow or too large is the client's fault: the client gets
    /// 400, 408 or 413, and nothing is sent to the upstream. A client must send 1 KiB a second,
    /// and may fall behind by 10 seconds. For one client up to two of the longest bodies are in
    /// memory, for all together up to sixteen; a body beyond that gets 503 with retry-after.
    #[serde(with = "Size::<1024>")]
    pub max_request_body: u64,
    /// Whether a failed request is sent again, once, after a short random delay, where that is
    /// safe and may help: the connection was refused or ended, or 502, 503 or 504 came. One in
    /// five requests may be, and three at first.
    ///
    /// If there is another base URL, it is asked at once, whatever the failure.
    pub retry: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            name: DEFAULT.into(),
            content: None,
            has_own_file: false,
            urls: Vec::new(),
            api_key_header: HeaderName::from_static("x-api-key"),
            api_keys_file: None,
            send_api_key: true,
            allow_plain_http: false,
            ca_file: None,
            requests_per_minute: Rate::PER_MINUTE,
            requests_per_second: None,
            max_in_flight: const { NonZeroU32::new(32).expect("it is not 0") },
            queue_timeout: seconds(2),
            first_byte_timeout: seconds(60),
            silence_timeout: seconds(10),
            timeout: seconds(90),
            max_body_bytes: 16 << 20,
            max_request_body: 1 << 20,
            retry: true,
        }
    }
}

/// The number of requests allowed in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(
    rename_all = "lowercase",
    expecting = "allowed is a whole number from 1 to 4294967295, or \"unlimited\""
)]
#[schemars(inline)]
pub enum Rate {
    /// Any number of requests.
    Unlimited,
    /// At most this many requests.
    #[serde(untagged)]
    Limited(NonZeroU32),
}

impl Rate {
    /// The default limits of a key: those of the API's provider.
    const PER_MINUTE: Self = Self::Limited(NonZeroU32::new(500).expect("it is not 0"));
    const PER_SECOND: Self = Self::Limited(NonZeroU32::new(20).expect("it is not 0"));

    /// The number of requests; `None` for any number.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Unlimited => None,
            Self::Limited(limit) => Some(limit.get()),
        }
    }
}

/// Whether an upstream may have this name.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Why an upstream cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No upstream is configured, or routes use the default one, which has no URL.
    #[error(
        "there is no upstream, or some routes use the default one, which has no URL: give --upstream URL or upstream.url in the config, or set upstream = \"NAME\" on those routes or on their tip, or try --sandbox, which needs neither key nor network"
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

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

impl Settings {
    /// How long connecting may take, with TLS.
    pub(super) fn connect_timeout(&self) -> Duration {
        CONNECT.min(self.first_byte_timeout)
    }

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
        let per_minute = self.requests_per_minute.limit();
        Limits {
            per_minute,
            per_second: match self.requests_per_second {
                Some(own) => own.limit(),
                None => per_minute.and(Rate::PER_SECOND.limit()),
            },
        }
    }

    /// Whether a limit is set that is not the provider's.
    pub(crate) fn has_own_rate(&self) -> bool {
        let is_own = |rate: Rate, usual: Rate| rate.limit().is_some() && rate != usual;
        let per_second = self.requests_per_second;
        is_own(self.requests_per_minute, Rate::PER_MINUTE)
            || per_second.is_some_and(|rate| is_own(rate, Rate::PER_SECOND))
    }
}

/// Whether requests to this URL can be read on the way: plain http to another
/// machine.
fn is_exposed(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local = match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_name) => host.eq_ignore_ascii_case("localhost"),
    };
    url.scheme_str() == Some("http") && !is_local
}

/// Reads the URLs of an upstream in proxy.toml.
fn base_urls<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Uri>, D::Error> {
    Texts::read(from, base_url)
}

/// Reads an upstream's base URL.
///
/// # Errors
/// What is allowed. What came is not shown: it may have a password.
pub fn base_url(text: &str) -> Result<Uri, &'static str> {
    let url = text.parse::<Uri>().ok();
    url.filter(|url| is_base(url) && !text.contains('#')).ok_or(
        "allowed is an http or https URL of a DNS name or an IP address, without user, query and fragment, such as \"https://api.example\"",
    )
}

fn is_base(url: &Uri) -> bool {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = url.host().unwrap_or_default();
    let port = authority
        .strip_prefix(host)
        .map(|rest| rest.strip_prefix(':'));
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    matches!(url.scheme_str(), Some("http" | "https"))
        && is_host(host)
        && port.is_some_and(|port| port.is_none_or(is_port))
        && url.query().is_none()
}

/// Whether a host can be connected to, or may resolve: an address, in brackets if it is one
/// of IPv6, or a DNS name. TLS knows no zones of IPv6 addresses.
fn is_host(text: &str) -> bool {
    let bracketed = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv4Addr>().is_ok() || DnsName::try_from(text).is_ok(),
    }
}

/// Fields that already have a meaning: a key in one of them would break the message, or a
/// proxy on the way would take it for something else.
const TAKEN: &str = "accept accept-encoding connection content-length expect host keep-alive \
                     proxy-authorization te trailer transfer-encoding upgrade user-agent via";

/// Reads the field that carries the key.
fn key_field<'de, D: Deserializer<'de>>(from: D) -> Result<HeaderName, D::Error> {
    let field = HeaderName::try_from(String::deserialize(from)?).ok();
    let field = field.filter(|field| !TAKEN.split(' ').any(|taken| field == taken));
    field.ok_or_else(|| {
        // What came may be the key itself.
        de::Error::custom(
            "allowed is the name of a field that is there for the key alone, such as \"x-api-key\" or \"authorization\"",
        )
    })
}

/// Writes it.
fn write_key_field<S: Serializer>(field: &HeaderName, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped_settings() -> Settings {
        Settings::default()
    }

    #[test]
    fn the_rates_in_force() {
        const ANY: Rate = Rate::Unlimited;
        let at_most = |most| Rate::Limited(NonZeroU32::new(most).unwrap());
        let [seven, nine] = [7, 9].map(at_most);
        // The configured rates; whether there are keys, and they are sent.
        for (configured, has_keys, sends, expected) in [
            ((nine, Some(seven)), true, true, (Some(9), Some(7))),
            ((nine, Some(seven)), false, true, (None, None)),
            ((nine, Some(seven)), true, false, (None, None)),
            ((ANY, Some(seven)), true, true, (None, Some(7))),
            ((nine, Some(ANY)), true, true, (Some(9), None)),
            ((nine, None), true, true, (Some(9), Some(20))),
            ((ANY, None), true, true, (None, None)),
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
