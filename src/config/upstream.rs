//! `[upstream]` and `[upstreams.NAME]`: where the API is, and how it is asked.

use std::num::NonZeroU32;
use std::time::Duration;

use http::{HeaderName, Uri};

use super::reader::Table;
use super::{DAY, MILLI, count, integer, least_and_most, path, seconds};
use crate::upstream::client::{response_body, upload};
use crate::upstream::endpoint::breaker;
use crate::upstream::{DEFAULT, Hedge, Rate, Retry, Settings};

/// Fields of a request that mean something already: the key would break the
/// message, or be taken for something else by who is on the way.
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

/// What is in force where no file says otherwise.
fn defaults() -> Settings {
    const fn count(n: u32) -> NonZeroU32 {
        match NonZeroU32::new(n) {
            Some(n) => n,
            None => NonZeroU32::MIN,
        }
    }
    Settings {
        name: DEFAULT.into(),
        has_own_keys_file: false,
        urls: Vec::new(),
        max_lag: 2,
        return_after: seconds(30),
        api_key_header: HeaderName::from_static("x-api-key"),
        api_keys_file: None,
        allow_plain_http: false,
        ca_file: None,
        http2: false,
        send_api_key: true,
        requests_per_minute: None,
        requests_per_second: None,
        passes_all: false,
        max_in_flight: count(32),
        min_in_flight: count(4),
        queue_timeout: seconds(2),
        max_queue: count(1024),
        connect_timeout: seconds(5),
        first_byte_timeout: seconds(60),
        timeout: seconds(90),
        idle_timeout: seconds(60),
        max_body_bytes: 16 << 20,
        request_body: upload::Limits {
            buffer: 64 << 10,
            max_buffered: 16 << 20,
            max_buffered_per_client: 2 << 20,
            min_rate: 1024,
            grace: seconds(10),
            timeout: seconds(600),
            max_bytes: 1 << 30,
        },
        response_body: response_body::Limits {
            min_rate: 1024,
            grace: seconds(10),
        },
        retry: Retry {
            limit: 1,
            share: 20,
        },
        hedge: Hedge {
            enabled: false,
            percentile: count(95),
        },
        breaker: breaker::Settings {
            enabled: true,
            failures: count(10),
            share: count(80),
            window: seconds(30),
            pause: seconds(1),
            max_pause: seconds(60),
        },
    }
}

/// Base URLs that the command line gives an upstream, by its name.
pub type UrlOverrides = [(Box<str>, Vec<Uri>)];

/// Reads `[upstream]` and each `[upstreams.NAME]`: the default upstream first,
/// then the named ones. The base URLs of `overrides` replace those of the file;
/// an upstream that only they name is as the default one otherwise.
pub(super) fn read_all(root: &Table<'_>, overrides: &UrlOverrides) -> Vec<Settings> {
    let replaced = |name: &str| {
        let mut named = overrides.iter();
        let (_, urls) = named.find(|(known, _)| **known == *name)?;
        Some(urls.clone())
    };
    let mut default = read(root.table("upstream"), &defaults());
    default.urls = replaced(DEFAULT).unwrap_or(default.urls);
    let mut all = vec![default.clone()];
    for ((name, at), table) in root.table("upstreams").named_tables() {
        if name == DEFAULT || !is_name(&name) {
            let message = format!(
                "\"{name}\" is no name for an upstream; allowed are 1 to 32 of a-z, 0-9 and -, and not \"{DEFAULT}\", which is [upstream]"
            );
            table.problem(&at, message);
        }
        let settings = Settings {
            name: name.into(),
            has_own_keys_file: table.has("api_keys_file"),
            ..read(table, &default)
        };
        all.push(settings);
    }
    for (name, urls) in overrides {
        match all.iter_mut().find(|settings| settings.name == *name) {
            Some(settings) => settings.urls.clone_from(urls),
            None => all.push(Settings {
                name: name.clone(),
                urls: urls.clone(),
                ..default.clone()
            }),
        }
    }
    all
}

/// Whether an upstream may have this name.
pub fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&text.len()) && text.bytes().all(allowed)
}

/// Reads a table. What it does not say is as in `from`.
fn read(table: Table<'_>, from: &Settings) -> Settings {
    const URL: &str = "an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as \"https://api.example\"";
    const HEADER: &str = "the name of a field that is there for the key alone, such as \"x-api-key\" or \"authorization\", and none of framing, of the connection, of proxies or of every request";
    let header = |text: &str| {
        let name = HeaderName::from_bytes(text.as_bytes()).ok()?;
        let taken = TAKEN.contains(&name.as_str()) || name.as_str().starts_with("proxy-");
        (!taken).then_some(name)
    };
    let name = table.parsed("api_key_header", HEADER, header);
    let time = |key, default| table.duration(key, MILLI..=DAY, default);
    let said = match table.is_string("url") || !table.has("url") {
        true => table.parsed("url", URL, base_url).map(|(url, _)| vec![url]),
        false => table.strings("url", URL, base_url),
    };
    let mut urls = match table.has("url") {
        true => said.unwrap_or_default(),
        false => from.urls.clone(),
    };
    let given = urls.len();
    urls.dedup();
    if (1..urls.len()).any(|at| urls[..at].contains(&urls[at])) || urls.len() < given {
        let name = table.name("url");
        let message = format!("{name} has a URL twice; each once is allowed");
        table.problem(table.span(), message);
    }
    let max_in_flight = count(&table, "max_in_flight", 100_000, from.max_in_flight.get());
    let least = from.min_in_flight.min(max_in_flight);
    let min_in_flight = count(&table, "min_in_flight", 100_000, least.get());
    if min_in_flight > max_in_flight {
        let message = format!(
            "{} is more than {}; allowed is as many at the most",
            table.name("min_in_flight"),
            table.name("max_in_flight")
        );
        table.problem(table.span(), message);
    }
    let per_minute = rate(&table, "requests_per_minute");
    let per_second = rate(&table, "requests_per_second").or(match per_minute {
        // The limit of another upstream's second is none on an unlimited minute.
        Some(Rate::Unlimited) => None,
        _ => from.requests_per_second,
    });
    let settings = Settings {
        name: from.name.clone(),
        has_own_keys_file: false,
        urls,
        max_lag: integer(&table, "max_lag", 0..=1000, from.max_lag),
        return_after: time("return_after", from.return_after),
        api_key_header: name.map_or_else(|| from.api_key_header.clone(), |(name, _)| name),
        api_keys_file: path(&table, "api_keys_file").or_else(|| from.api_keys_file.clone()),
        allow_plain_http: table.boolean("allow_plain_http", from.allow_plain_http),
        ca_file: path(&table, "ca_file").or_else(|| from.ca_file.clone()),
        http2: table.boolean("http2", from.http2),
        send_api_key: table.boolean("send_api_key", from.send_api_key),
        requests_per_minute: per_minute.or(from.requests_per_minute),
        requests_per_second: per_second,
        passes_all: false,
        max_in_flight,
        min_in_flight,
        queue_timeout: time("queue_timeout", from.queue_timeout),
        max_queue: count(&table, "max_queue", 1_000_000, from.max_queue.get()),
        connect_timeout: time("connect_timeout", from.connect_timeout),
        first_byte_timeout: time("first_byte_timeout", from.first_byte_timeout),
        timeout: time("timeout", from.timeout),
        idle_timeout: time("idle_timeout", from.idle_timeout),
        max_body_bytes: table.size("max_body_bytes", 1024..=1 << 32, from.max_body_bytes),
        request_body: request_body(table.table("request_body"), &from.request_body),
        response_body: response_body(table.table("response_body"), &from.response_body),
        retry: retry(table.table("retry"), &from.retry),
        hedge: hedge(table.table("hedge"), &from.hedge),
        breaker: breaker(table.table("breaker"), &from.breaker),
    };
    table.finish();
    settings
}

/// Requests in a window: a number, or no limit.
fn rate(table: &Table<'_>, key: &'static str) -> Option<Rate> {
    let read = table.integer_or(key, 1..=1_000_000, Rate::UNLIMITED)?;
    let Some(most) = read else {
        return Some(Rate::Unlimited);
    };
    let most = u32::try_from(most).ok().and_then(NonZeroU32::new)?;
    Some(Rate::Limited(most))
}

fn request_body(table: Table<'_>, from: &upload::Limits) -> upload::Limits {
    let size = |key, most, default| table.size(key, 1024..=most, default);
    // What is not said fits what is.
    let mut all = size("max_buffered", 1 << 40, from.max_buffered);
    let room = match table.has("max_buffered") {
        true => all,
        false => u64::MAX,
    };
    let per_client = from.max_buffered_per_client.min(room);
    let mut per_client = size("max_buffered_per_client", 1 << 32, per_client);
    let buffer = size("buffer", 16 << 20, from.buffer.min(per_client));
    let is_said = table.has("max_buffered_per_client");
    if !is_said {
        per_client = per_client.max(buffer).min(room);
    }
    if !table.has("max_buffered") {
        all = all.max(per_client);
    }
    // The complaint names what was said.
    let holds_buffer = match is_said {
        true => (per_client, "max_buffered_per_client"),
        false => (all, "max_buffered"),
    };
    for (less, more, names) in [
        (buffer, holds_buffer.0, ["buffer", holds_buffer.1]),
        (per_client, all, ["max_buffered_per_client", "max_buffered"]),
    ] {
        if less > more {
            let [less, more] = names.map(|name| table.name(name));
            let message = format!("{less} is more than {more}; allowed is as much at the most");
            table.problem(table.span(), message);
        }
    }
    let limits = upload::Limits {
        buffer,
        max_buffered: all,
        max_buffered_per_client: per_client,
        min_rate: min_rate(&table, from.min_rate),
        grace: grace(&table, from.grace),
        timeout: table.duration("timeout", MILLI..=DAY, from.timeout),
        max_bytes: table.size("max_bytes", 1024..=1 << 40, from.max_bytes),
    };
    table.finish();
    limits
}

fn response_body(table: Table<'_>, from: &response_body::Limits) -> response_body::Limits {
    let limits = response_body::Limits {
        min_rate: min_rate(&table, from.min_rate),
        grace: grace(&table, from.grace),
    };
    table.finish();
    limits
}

/// The least that a body's sender must send each second.
fn min_rate(table: &Table<'_>, default: u64) -> u64 {
    table.size("min_rate", 1..=1 << 30, default)
}

/// How far it may fall behind that.
fn grace(table: &Table<'_>, default: Duration) -> Duration {
    table.duration("grace", MILLI..=DAY, default)
}

fn retry(table: Table<'_>, from: &Retry) -> Retry {
    let settings = Retry {
        limit: integer(&table, "limit", 0..=10, from.limit),
        share: integer(&table, "share", 0..=100, from.share),
    };
    table.finish();
    settings
}

fn hedge(table: Table<'_>, from: &Hedge) -> Hedge {
    let settings = Hedge {
        enabled: table.boolean("enabled", from.enabled),
        percentile: count(&table, "percentile", 99, from.percentile.get()),
    };
    table.finish();
    settings
}

fn breaker(table: Table<'_>, from: &breaker::Settings) -> breaker::Settings {
    let defaults = [from.pause, from.max_pause];
    let (pause, max_pause) = least_and_most(&table, ["pause", "max_pause"], defaults);
    let settings = breaker::Settings {
        enabled: table.boolean("enabled", from.enabled),
        failures: count(&table, "failures", 1_000_000, from.failures.get()),
        share: count(&table, "share", 100, from.share.get()),
        window: table.duration("window", MILLI..=DAY, from.window),
        pause,
        max_pause,
    };
    table.finish();
    settings
}

/// Reads the upstream's base URL.
pub fn base_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let scheme = matches!(url.scheme_str(), Some("http" | "https"));
    let authority = url.authority().is_some_and(|authority| {
        let rest = authority.as_str().strip_prefix(authority.host());
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
    });
    let bare = url.query().is_none() && !text.contains('#');
    (scheme && authority && bare).then_some(url)
}

fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits && text.parse::<u16>().is_ok_and(|port| port != 0)
}
