//! `[upstream]` and `[upstreams.NAME]`: the servers of the API, and how they are called.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderName, Uri};
use rustls::pki_types::DnsName;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::value::{Count, DAY, OneOrMore, Size, Time, rate, text};
use crate::upstream::{DEFAULT, PER_MINUTE, PER_SECOND, Rate, Settings};

/// A server of the API, and how it is called.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamTable {
    /// The API's base URL. A path in it goes before every target. --upstream takes
    /// precedence.
    ///
    /// A list names several servers, the preferred one first. ordgate uses one at a time. It
    /// fails over to another when that one does not answer, answers a status path with 410
    /// (gone, for an hour) or with anything else than a status, or is more than `max_lag`
    /// blocks behind another by their status paths. All of them share one budget for each key,
    /// and keys are sent to each of them. A key in cooldown (429) or quarantine (401, 403) at
    /// one base URL is not used at any base URL of that host (scheme, name and port); it is
    /// used at the others. When no key is usable for longer than `queue_timeout`, ordgate uses
    /// another server. On routes with headers = "all", 5xx and 410 are passed on, so there a
    /// server has failed only when it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<OneOrMore<BaseUrl>>,
    /// How many blocks a server may be behind another and still be used.
    max_lag: Count<0, 1000>,
    /// How long a preferred server must work again before ordgate returns to it.
    return_after: Time<1, DAY>,
    /// The request field that carries the API key.
    #[serde(with = "text")]
    #[schemars(with = "String")]
    api_key_header: HeaderName,
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
    api_keys_file: Option<PathBuf>,
    /// Whether requests carry an API key. Set it to false for a server of your own beside a
    /// provider's.
    send_api_key: bool,
    /// Whether an API key may be sent over plain http to another machine.
    allow_plain_http: bool,
    /// A file of certificate authorities (PEM) to trust beside the public ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_file: Option<PathBuf>,
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
    #[serde(deserialize_with = "rate")]
    #[schemars(with = "u32", extend("x-allowed" = RATE))]
    requests_per_minute: Option<Rate>,
    /// The budget of each API key: the most requests in any second, or "unlimited". It is 20
    /// if it is not set, or "unlimited" where `requests_per_minute` is.
    ///
    /// A request counts until a second after its answer: of n per second, n / (1.005 + t) can
    /// be used when answers take t seconds; of 20, that is 18.0 at 105 ms and 10.0 at 1 s.
    #[serde(deserialize_with = "rate", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", extend("x-allowed" = RATE))]
    requests_per_second: Option<Rate>,
    /// The most requests under way at once, at each base URL.
    ///
    /// A quarter of the slots is kept for clients that have none (`kept_for_other_clients` in
    /// /status). Below 4, none are kept, and one client's slow requests can hold up all others.
    ///
    /// When `requests_per_second` of all keys together is lower than this, the slots are as many
    /// as that, because a request counts in each second until it is answered. For the same
    /// reason, each of several hosts that get the same key may have 3/4 of what the others leave
    /// of `requests_per_second` unanswered, and always one.
    max_in_flight: Count<1, 100_000>,
    /// How long a request waits for budget and for a slot.
    ///
    /// Clients take turns, however much each of them wants. A client's misses go before its
    /// revalidations. A request that is sent again does not wait once more.
    queue_timeout: Time<1, DAY>,
    /// The most requests that wait at once. A client leaves a quarter of them to others.
    max_queue: Count<1, 1_000_000>,
    /// How long connecting may take, with TLS: 5 s if it is not set, and at most `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_timeout: Option<Time<1, DAY>>,
    /// How long the first byte of an answer may take: a minute if it is not set, and at most
    /// `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_timeout: Option<Time<1, DAY>>,
    /// How long the body of an answer may be silent while ordgate waits for it.
    ///
    /// A body that stalls is a failure of its base URL. If it is read whole before it is passed
    /// on, the next base URL is asked, or the client gets 504. On routes with headers = "all",
    /// the client's answer breaks off. The time in which a client reads nothing does not count.
    /// On those routes, events, and answers without a length, may be streams: they may be silent
    /// for `first_byte_timeout`.
    silence_timeout: Time<1, DAY>,
    /// How long a whole answer may take, with retries.
    timeout: Time<1, DAY>,
    /// How long an unused connection is kept.
    idle_timeout: Time<1, DAY>,
    /// The longest answer that ordgate accepts.
    max_body_bytes: Size<1024, 4_294_967_296>,
    /// The longest request body, on routes with headers = "all".
    ///
    /// A request takes a slot at the upstream when its body has arrived whole. A body that
    /// breaks off or is malformed, too slow or too large is the client's fault: the client gets
    /// 400, 408 or 413, and nothing is sent to the upstream. A client must send 1 KiB a second,
    /// and may fall behind by 10 seconds. For one client up to two of the longest bodies are in
    /// memory, for all together up to sixteen; a body beyond that gets 503 with retry-after.
    max_request_body: Size<1024, 1_073_741_824>,
    /// Whether a failed request is sent again, once, after a short random delay, where that is
    /// safe and may help: the connection was refused or ended, or 502, 503 or 504 came. One in
    /// five requests may be, and three at first.
    ///
    /// If there is another base URL, it is asked at once, whatever the failure.
    retry: bool,
}

/// What a rate may be.
const RATE: &str = "a whole number from 1 to 1000000, or \"unlimited\"";

impl Default for UpstreamTable {
    fn default() -> Self {
        Self {
            url: None,
            max_lag: Count(2),
            return_after: Time::seconds(30),
            api_key_header: HeaderName::from_static("x-api-key"),
            api_keys_file: None,
            send_api_key: true,
            allow_plain_http: false,
            ca_file: None,
            requests_per_minute: NonZeroU32::new(PER_MINUTE).map(Rate::Limited),
            requests_per_second: None,
            max_in_flight: Count(32),
            queue_timeout: Time::seconds(2),
            max_queue: Count(1024),
            connect_timeout: None,
            first_byte_timeout: None,
            silence_timeout: Time::seconds(10),
            timeout: Time::seconds(90),
            idle_timeout: Time::seconds(60),
            max_body_bytes: Size(16 << 20),
            max_request_body: Size(1 << 20),
            retry: true,
        }
    }
}

/// Base URLs that the command line gives an upstream, by its name.
pub type UrlOverrides = [(Box<str>, Vec<Uri>)];

/// The settings of `[upstream]` and of each `[upstreams.NAME]`: the default upstream first,
/// then the named ones by name.
pub(super) fn settings(
    default: &UpstreamTable,
    named: &BTreeMap<String, UpstreamTable>,
    problems: &mut Vec<String>,
) -> Vec<Settings> {
    let mut all = vec![default.settings(DEFAULT, default, problems)];
    for (name, upstream) in named {
        if name == DEFAULT || !is_name(name) {
            problems.push(format!(
                "[upstreams.{name}]: {name:?} cannot be the name of an upstream; allowed are 1 to 32 of a-z, 0-9 and -, and not \"{DEFAULT}\", which is [upstream]"
            ));
        }
        all.push(upstream.settings(name, default, problems));
    }
    all
}

/// Whether an upstream may have this name.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Request fields that already have a meaning: a key in one of them would break the message, or
/// a proxy on the way would take it for something else.
const TAKEN: [&str; 13] = [
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
];

impl UpstreamTable {
    /// Replaces the base URLs.
    pub(super) fn set_urls(&mut self, urls: &[Uri]) {
        self.url = Some(OneOrMore(urls.iter().cloned().map(BaseUrl).collect()));
    }

    /// Fills in what follows from other keys, where it is not set: the limit of a second from
    /// that of a minute, and parts of a time from the whole.
    pub(super) fn fill(&mut self) {
        let second = match self.requests_per_minute {
            Some(Rate::Unlimited) => Rate::Unlimited,
            _ => NonZeroU32::new(PER_SECOND).map_or(Rate::Unlimited, Rate::Limited),
        };
        self.requests_per_second.get_or_insert(second);
        let whole = self.timeout;
        self.connect_timeout
            .get_or_insert(Time::seconds(5).min(whole));
        self.first_byte_timeout
            .get_or_insert(Time::seconds(60).min(whole));
    }

    /// Whether another one has the same base URLs.
    pub(super) fn has_urls_of(&self, other: &Self) -> bool {
        self.url == other.url
    }

    /// The settings of the upstream of a name, beside those of the default one.
    fn settings(&self, name: &str, default: &Self, problems: &mut Vec<String>) -> Settings {
        let urls = self.url.iter().flat_map(|urls| &urls.0);
        let settings = Settings {
            name: name.into(),
            urls: urls.map(|url| url.0.clone()).collect(),
            content: None,
            max_lag: self.max_lag.small(),
            return_after: *self.return_after,
            has_own_file: name != DEFAULT && self.api_keys_file != default.api_keys_file,
            api_key_header: self.api_key_header.clone(),
            api_keys_file: self.api_keys_file.clone(),
            send_api_key: self.send_api_key,
            allow_plain_http: self.allow_plain_http,
            requests_per_minute: self.requests_per_minute,
            requests_per_second: self.requests_per_second,
            ca_file: self.ca_file.clone(),
            connect_timeout: self.connect_timeout.map_or(Duration::ZERO, |time| *time),
            idle_timeout: *self.idle_timeout,
            max_in_flight: self.max_in_flight.positive(),
            queue_timeout: *self.queue_timeout,
            max_queue: self.max_queue.positive(),
            first_byte_timeout: self.first_byte_timeout.map_or(Duration::ZERO, |time| *time),
            silence_timeout: *self.silence_timeout,
            timeout: *self.timeout,
            max_body_bytes: *self.max_body_bytes,
            max_request_body: *self.max_request_body,
            retry: self.retry,
        };
        self.check(&settings, problems);
        settings
    }

    /// Says what makes no sense together.
    fn check(&self, settings: &Settings, problems: &mut Vec<String>) {
        let key = |name: &str| settings.key(name);
        let urls = &settings.urls;
        if (1..urls.len()).any(|at| urls[..at].contains(&urls[at])) {
            problems.push(format!(
                "{} has a URL twice; each is allowed once",
                key("url")
            ));
        }
        let field = self.api_key_header.as_str();
        if TAKEN.contains(&field) || field.starts_with("proxy-") {
            problems.push(format!(
                "{} is {field:?}; allowed is the name of a field that is there for the key alone, such as \"x-api-key\" or \"authorization\", and none of framing, of the connection, of proxies or of every request",
                key("api_key_header")
            ));
        }
        // The whole includes the others.
        for (name, part) in [
            ("first_byte_timeout", self.first_byte_timeout),
            ("connect_timeout", self.connect_timeout),
        ] {
            if part > Some(self.timeout) {
                problems.push(format!(
                    "{} is longer than {}, which includes it: raise the latter, or lower the former",
                    key(name),
                    key("timeout")
                ));
            }
        }
    }
}

/// The URL of a server.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(inline)]
struct BaseUrl(#[schemars(with = "String")] Uri);

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        base_url(text).map(Self).ok_or_else(|| {
            let why = wrong_host(text).map_or_else(String::new, |why| format!(": {why}"));
            format!(
                "{:?} came; allowed is an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as \"https://api.example\"{why}",
                without_user(text)
            )
        })
    }
}

impl<'de> Deserialize<'de> for BaseUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

impl Serialize for BaseUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

/// Reads an upstream's base URL.
pub fn base_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let scheme = matches!(url.scheme_str(), Some("http" | "https"));
    let authority = url.authority().is_some_and(|authority| {
        let rest = authority.as_str().strip_prefix(authority.host());
        is_host(authority.host())
            && rest
                .is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
    });
    let bare = url.query().is_none() && !text.contains('#');
    (scheme && authority && bare).then_some(url)
}

/// What is wrong with the host of a base URL, if it is that. Nothing of a URL that may have
/// a password.
pub fn wrong_host(text: &str) -> Option<String> {
    let url: Uri = text.parse().ok().filter(|_| !text.contains('@'))?;
    let host = url.host().filter(|host| !is_host(host))?;
    Some(format!(
        "its host, {host}, is neither a DNS name nor an IP address"
    ))
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

fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits && text.parse::<u16>().is_ok_and(|port| port != 0)
}

/// A URL, or what came in place of one, as messages show it: without the user and the
/// password, which end at the last `@`.
pub fn without_user(text: &str) -> String {
    let Some((before, rest)) = text.rsplit_once('@') else {
        return text.to_owned();
    };
    // Also `NAME=`, which goes before the URL on the command line.
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.=".contains(c);
    let scheme = before.split_once("://").map(|(scheme, _)| scheme);
    match scheme.filter(|scheme| scheme.chars().all(is_scheme)) {
        Some(scheme) => format!("{scheme}://[redacted]@{rest}"),
        None => format!("[redacted]@{rest}"),
    }
}
