//! `[upstream]` and `[upstreams.NAME]`: the servers of the API, and how they are
//! called.

mod parts;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use http::{HeaderName, Uri};
use parts::ResponseBodyKeys;
use rustls::pki_types::DnsName;

use super::cache::fit_part_and_whole;
use super::containers::{NamedTable, one_or_more, table};
use super::key::{KeyTable, keys};
use super::kinds::{
    DAY, Flag, MILLI, ParsedText, Requests, STRING, count, integer, optional, seconds, size, text,
    time,
};
use super::problem::{FileSpan, Path};
use crate::upstream::{AdmissionSettings, DEFAULT, PoolSettings, Rate, Settings, Timeouts};

/// Request fields that already have a meaning: a key in one of them would break the
/// message, or a proxy on the way would take it for something else.
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

const HEADER: ParsedText<HeaderName> = text(
    "the name of a field that is there for the key alone, such as \"x-api-key\" or \"authorization\", and none of framing, of the connection, of proxies or of every request",
    "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
    |text| {
        let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_no_name| String::new())?;
        let is_taken = TAKEN.contains(&name.as_str()) || name.as_str().starts_with("proxy-");
        match is_taken {
            true => Err(String::new()),
            false => Ok(name),
        }
    },
);

const URL: ParsedText<Uri> = text(
    "an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as \"https://api.example\"",
    "^[Hh][Tt][Tt][Pp][Ss]?://[^@?#]+$",
    |text| base_url(text).ok_or_else(|| wrong_host(text).unwrap_or_default()),
);

/// The names of upstreams, as JSON Schema has them.
pub(super) const NAMES: &str = "^[a-z0-9-]{1,32}$";

keys! {
    /// A server of the API, and how it is called.
    pub(super) struct UpstreamKeys {
        /// The API's base URL. A path in it goes before every target. --upstream takes
        /// precedence.
        ///
        /// A list names several servers, the preferred one first. ordgate uses one
        /// at a time. It fails over to another when that one does not answer, answers a
        /// status path with 410 (gone, for an hour) or with anything else than a status, or is
        /// more than `max_lag` blocks behind another by their status paths. All of them share one budget for each key, and keys are sent to each
        /// of them. A key in cooldown (429) or quarantine (401, 403) at one base URL is
        /// not used at any base URL of that host (scheme, name and port); it is used at
        /// the others. When no key is usable for longer than `queue_timeout`, ordgate
        /// uses another server. On routes with headers = "all", 5xx and 410 are passed on, so
        /// there a server has failed only when it does not answer.
        url: Vec<Uri> = one_or_more(URL) => Vec::new(),
            example("\"https://api.example\""), shown();
        /// How many blocks a server may be behind another and still be used.
        max_lag: u32 = integer(0..=1000) => 2;
        /// How long a preferred server must work again before ordgate returns to it.
        return_after: Duration = time(MILLI, DAY) => seconds(30);
        /// The request field that carries the API key.
        api_key_header: HeaderName = HEADER => HeaderName::from_static("x-api-key"), shown();
        /// A file with the API keys, one per line, unless ORDGATE_API_KEYS is set.
        ///
        /// The file must not be readable by others or writable by its group (chmod
        /// 600). Of several keys, ordgate uses the one with the most budget left. After
        /// 429 a key is in cooldown: it is not used for the time that the answer names.
        /// When a target gets 401 or 403, ordgate requests the status path of its tip
        /// (chain.tip.*.path) with the same key, at most once a minute if that goes on.
        /// If the key is refused there too, it is quarantined, for a minute at a time,
        /// and another is used; otherwise the client gets 502 and the key stays in use. On routes with headers = "all", 401 and 403 are passed on
        /// and do not affect the key.
        api_keys_file: Option<String> = optional(STRING) => None,
            example("\"/etc/ordgate/api-keys\""), shown();
        /// Whether requests carry an API key. Set it to false for a server of your own
        /// beside a provider's.
        send_api_key: bool = Flag => true;
        /// Whether an API key may be sent over plain http to another machine.
        allow_plain_http: bool = Flag => false;
        /// A file of certificate authorities (PEM) to trust beside the public ones.
        ca_file: Option<String> = optional(STRING) => None, example("\"/etc/ordgate/ca.pem\"");
        /// The budget of each API key: the most requests in any 60 seconds, or
        /// "unlimited" for a server of your own.
        ///
        /// ordgate never sends more. Three fifths may go at once; after that, requests
        /// are spread over the minute. The client that has recently had the least goes
        /// first, and a part is kept for probes of the tip (`kept_for_probes` in
        /// /status). A key has one budget for all upstreams that it is sent to.
        /// Requests without a key have none.
        ///
        /// Limits that the server reports (retry-after, ratelimit, ratelimit-remaining
        /// and -reset, x-ratelimit-remaining and -reset) apply as well and can only make
        /// the budget smaller, also with "unlimited".
        ///
        /// A request counts from when it is sent until a minute after its answer,
        /// because the provider may count it at any time in between: of n per minute,
        /// 60 n / (60.05 + t) can be used when answers take t seconds. A request that
        /// nobody waits for any more stays in flight, with its slot, until the server
        /// answers or closes its connection, two minutes at most.
        requests_per_minute: Option<Rate> = optional(Requests) => None, example("500"), shown_set();
        /// The budget of each API key: the most requests in any second, or "unlimited".
        ///
        /// A request counts until a second after its answer: of n per second,
        /// n / (1.005 + t) can be used when answers take t seconds; of 20, that is 18.0
        /// at 105 ms and 10.0 at 1 s. When `requests_per_minute` is "unlimited", this is
        /// too by default.
        requests_per_second: Option<Rate> = optional(Requests) => None, example("20"), shown_set();
        /// The most requests under way at once, at each base URL.
        ///
        /// A quarter of the slots is kept for clients that have none
        /// (`kept_for_other_clients` in /status). Below 4, none are kept, and one client's
        /// slow requests can hold up all others.
        ///
        /// When `requests_per_second` of all keys together is lower than this, the slots
        /// are as many as that, because a request counts in each second until it
        /// is answered. For the same reason, each of several hosts that get the same key may
        /// have 3/4 of what the others leave of `requests_per_second` unanswered, and
        /// always one.
        max_in_flight: NonZeroU32 = integer(1..=100_000) => count(32), shown();
        /// How long a request waits for budget and for a slot.
        ///
        /// Clients take turns, however much each of them wants. A client's misses go
        /// before its revalidations. A request that is sent again does not wait once more.
        queue_timeout: Duration = time(MILLI, DAY) => seconds(2);
        /// The most requests that wait at once.
        max_queue: NonZeroU32 = integer(1..=1_000_000) => count(1024);
        /// How long connecting may take, with TLS; at most `timeout`.
        connect_timeout: Duration = time(MILLI, DAY) => seconds(5);
        /// How long the first byte of an answer may take; at most `timeout`.
        first_byte_timeout: Duration = time(MILLI, DAY) => seconds(60), shown();
        /// How long a whole answer may take, with retries.
        timeout: Duration = time(MILLI, DAY) => seconds(90), shown();
        /// How long an unused connection is kept.
        idle_timeout: Duration = time(MILLI, DAY) => seconds(60);
        /// The longest answer that ordgate accepts.
        max_body_bytes: u64 = size(1024..=1 << 32) => 16 << 20;
        /// The longest request body, on routes with headers = "all".
        ///
        /// A request takes a slot at the upstream when its body has arrived whole. A body
        /// that breaks off or is malformed, too slow or too large is the client's fault: the
        /// client gets 400, 408 or 413, and nothing is sent to the upstream. A client must
        /// send 1 KiB a second, and may fall behind by 10 seconds. For one client up to two
        /// of the longest bodies are in memory, for all together up to sixteen; a body beyond
        /// that gets 503 with retry-after.
        max_request_body: u64 = size(1024..=1 << 30) => 1 << 20;
        response_body: ResponseBodyKeys = table() => ResponseBodyKeys::defaults();
        /// Whether a failed request is sent again, once, after a short random delay, where
        /// that is safe and may help: the connection was refused or ended, or 502, 503 or
        /// 504 came. One in five requests may be, and three at first.
        ///
        /// If there is another base URL, it is asked at once, whatever the failure.
        retry: bool = Flag => true;
    }
}

/// Base URLs that the command line gives an upstream, by its name.
pub type UrlOverrides = [(Box<str>, Vec<Uri>)];

/// The settings of `[upstream]` and of each `[upstreams.NAME]`: the default
/// upstream first, then the named ones. The base URLs of `overrides` replace those
/// of the file; an upstream that only they name is otherwise like the default one.
pub(super) fn settings(
    (at, mut default): (FileSpan, UpstreamKeys),
    named: Vec<NamedTable<UpstreamKeys>>,
    root: &Path<'_>,
    overrides: &UrlOverrides,
) -> Vec<Settings> {
    let replaced = |name: &str| {
        let mut named = overrides.iter();
        let (_, urls) = named.find(|(known, _)| **known == *name)?;
        Some(urls.clone())
    };
    default.fit(&root.key("upstream"), &at);
    if let Some(urls) = replaced(DEFAULT) {
        default.url.value = urls;
    }
    let mut all = vec![default.clone().settings(DEFAULT)];
    for mut table in named {
        if table.name == DEFAULT || !is_name(&table.name) {
            let message = format!(
                "\"{}\" cannot be the name of an upstream; allowed are 1 to 32 of a-z, 0-9 and -, and not \"{DEFAULT}\", which is [upstream]",
                table.name
            );
            root.problem_whole(&table.at, message);
        }
        let path = root.key("upstreams").key(&table.name);
        table.keys.take_over(&default);
        table.keys.fit(&path, &table.at);
        all.push(table.keys.settings(&table.name));
    }
    for (name, urls) in overrides {
        match all.iter_mut().find(|settings| settings.name == *name) {
            Some(settings) => settings.urls.clone_from(urls),
            None => {
                let mut settings = default.clone().settings(name);
                settings.urls.clone_from(urls);
                all.push(settings);
            }
        }
    }
    all
}

/// Whether an upstream may have this name.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(is_allowed)
}

impl UpstreamKeys {
    /// Takes over what the table does not set.
    fn take_over(&mut self, default: &Self) {
        let minute = *self.requests_per_minute;
        self.inherit(default);
        if minute == Some(Rate::Unlimited) && !self.requests_per_second.is_set() {
            // The default upstream's limit per second does not apply to an
            // unlimited minute.
            self.requests_per_second.value = None;
        }
    }

    /// Fits what is not set to what is, and reports what does not go together.
    fn fit(&mut self, path: &Path<'_>, at: &FileSpan) {
        let urls = &self.url.value;
        if (1..urls.len()).any(|at| urls[..at].contains(&urls[at])) && self.url.is_set() {
            path.key("url")
                .problem(self.url.at_or(at), "has a URL twice; each is allowed once");
        }
        // The whole includes the others.
        for (part_name, part) in [
            ("first_byte_timeout", &mut self.first_byte_timeout),
            ("connect_timeout", &mut self.connect_timeout),
        ] {
            let whole = ("timeout", &mut self.timeout);
            fit_part_and_whole(path, at, (part_name, part), whole);
        }
    }

    fn settings(self, name: &str) -> Settings {
        Settings {
            name: name.into(),
            urls: self.url.value,
            content: None,
            max_lag: *self.max_lag,
            return_after: *self.return_after,
            has_own_file: name != DEFAULT && self.api_keys_file.is_set(),
            api_key_header: self.api_key_header.value,
            api_keys_file: self.api_keys_file.value.map(Into::into),
            send_api_key: *self.send_api_key,
            allow_plain_http: *self.allow_plain_http,
            requests_per_minute: *self.requests_per_minute,
            requests_per_second: *self.requests_per_second,
            connections: PoolSettings {
                ca_file: self.ca_file.value.map(Into::into),
                connect_timeout: *self.connect_timeout,
                idle_timeout: *self.idle_timeout,
            },
            admission: AdmissionSettings {
                max_in_flight: *self.max_in_flight,
                queue_timeout: *self.queue_timeout,
                max_queue: *self.max_queue,
            },
            timeouts: Timeouts {
                first_byte: *self.first_byte_timeout,
                whole: *self.timeout,
            },
            max_body_bytes: *self.max_body_bytes,
            max_request_body: *self.max_request_body,
            response_body: self.response_body.value.limits(),
            retry: *self.retry,
        }
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
