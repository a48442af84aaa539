//! `[upstream]`: where the API is, and how it is asked.

use std::num::NonZeroU32;

use http::{HeaderName, Uri};

use super::reader::Table;
use super::{DAY, MILLI, count, integer, least_and_most, path, seconds};
use crate::upstream::breaker;
use crate::upstream::upload;
use crate::upstream::{Hedge, Rate, Retry, Settings};

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

/// Reads the table.
pub(super) fn read(table: Table<'_>) -> Settings {
    const URL: &str = "an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as \"https://api.example\"";
    const HEADER: &str = "the name of a field that is there for the key alone, such as \"x-api-key\" or \"authorization\", and none of framing, of the connection, of proxies or of every request";
    let header = |text: &str| {
        let name = HeaderName::from_bytes(text.as_bytes()).ok()?;
        let taken = TAKEN.contains(&name.as_str()) || name.as_str().starts_with("proxy-");
        (!taken).then_some(name)
    };
    let name = table.parsed("api_key_header", HEADER, header);
    let time = |key, default| table.duration(key, MILLI..=DAY, default);
    let mut urls = match table.is_string("url") || !table.has("url") {
        true => table.parsed("url", URL, base_url).map(|(url, _)| vec![url]),
        false => table.strings("url", URL, base_url),
    }
    .unwrap_or_default();
    let given = urls.len();
    urls.dedup();
    if (1..urls.len()).any(|at| urls[..at].contains(&urls[at])) || urls.len() < given {
        let name = table.name("url");
        let message = format!("{name} has a URL twice; each once is allowed");
        table.problem(table.span(), message);
    }
    let max_in_flight = count(&table, "max_in_flight", 100_000, 32);
    let least = NonZeroU32::new(4).map_or(max_in_flight, |four| four.min(max_in_flight));
    let min_in_flight = count(&table, "min_in_flight", 100_000, least.get());
    if min_in_flight > max_in_flight {
        let message = format!(
            "{} is more than {}; allowed is as many at the most",
            table.name("min_in_flight"),
            table.name("max_in_flight")
        );
        table.problem(table.span(), message);
    }
    let settings = Settings {
        urls,
        max_lag: integer(&table, "max_lag", 0..=1000, 2),
        return_after: time("return_after", seconds(30)),
        api_key_header: name.map_or(HeaderName::from_static("x-api-key"), |(name, _)| name),
        api_keys_file: path(&table, "api_keys_file"),
        allow_plain_http: table.boolean("allow_plain_http", false),
        ca_file: path(&table, "ca_file"),
        send_api_key: table.boolean("send_api_key", true),
        requests_per_minute: rate(&table, "requests_per_minute"),
        requests_per_second: rate(&table, "requests_per_second"),
        passes_all: false,
        max_in_flight,
        min_in_flight,
        queue_timeout: time("queue_timeout", seconds(2)),
        max_queue: count(&table, "max_queue", 1_000_000, 1024),
        connect_timeout: time("connect_timeout", seconds(5)),
        first_byte_timeout: time("first_byte_timeout", seconds(60)),
        timeout: time("timeout", seconds(90)),
        idle_timeout: time("idle_timeout", seconds(60)),
        max_body_bytes: table.size("max_body_bytes", 1024..=1 << 32, 16 << 20),
        request_body: request_body(table.table("request_body")),
        retry: retry(table.table("retry")),
        hedge: hedge(table.table("hedge")),
        breaker: breaker(table.table("breaker")),
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

fn request_body(table: Table<'_>) -> upload::Limits {
    let size = |key, most, default| table.size(key, 1024..=most, default);
    // What is not said fits what is.
    let mut all = size("max_buffered", 1 << 40, 16 << 20);
    let room = match table.has("max_buffered") {
        true => all,
        false => u64::MAX,
    };
    let per_client = u64::min(2 << 20, room);
    let mut per_client = size("max_buffered_per_client", 1 << 32, per_client);
    let buffer = size("buffer", 16 << 20, u64::min(64 << 10, per_client));
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
        min_rate: table.size("min_rate", 1..=1 << 30, 1024),
        grace: table.duration("grace", MILLI..=DAY, seconds(10)),
        timeout: table.duration("timeout", MILLI..=DAY, seconds(600)),
        max_bytes: table.size("max_bytes", 1024..=1 << 40, 1 << 30),
    };
    table.finish();
    limits
}

fn retry(table: Table<'_>) -> Retry {
    let settings = Retry {
        limit: integer(&table, "limit", 0..=10, 1),
        share: integer(&table, "share", 0..=100, 20),
    };
    table.finish();
    settings
}

fn hedge(table: Table<'_>) -> Hedge {
    let settings = Hedge {
        enabled: table.boolean("enabled", false),
        percentile: count(&table, "percentile", 99, 95),
    };
    table.finish();
    settings
}

fn breaker(table: Table<'_>) -> breaker::Settings {
    let (pause, max_pause) = least_and_most(&table, ["pause", "max_pause"], [1, 60]);
    let settings = breaker::Settings {
        enabled: table.boolean("enabled", true),
        failures: count(&table, "failures", 1_000_000, 10),
        share: count(&table, "share", 100, 80),
        window: table.duration("window", MILLI..=DAY, seconds(30)),
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
