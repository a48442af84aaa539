//! proxy.toml: from the file's shape to checked settings. The only room that
//! knows the file; each setting's type belongs to the room that uses it.
//!
//! A file is read whole, and all that is wrong with it is told at once, each
//! with line and column. Nothing is validated again later. Keys of the provider
//! never stand in the file.

mod assign;
mod print;
mod reader;
mod routes;
mod upstream;
mod warnings;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Uri};
use ipnet::IpNet;
pub use reader::Problem;
use reader::{Problems, Table};
use routes::Tips;
use serde::Serialize;
use toml::de::DeTable;
pub use upstream::{UrlOverrides, base_url, is_name as is_upstream_name};

use crate::admin::host;
use crate::chain::{TipSource, finality};
use crate::fill::failure_backoff;
use crate::identify::TrustedProxies;
use crate::route::{HeaderMode, RouteTable};
use crate::upstream::DEFAULT;
use crate::validate::HASH_DIGITS;
use crate::{access_log, chain, limit, listener, respond, telemetry};

/// The proxy.toml that the repository ships.
pub const SHIPPED: &str = include_str!("../proxy.toml");
/// Its name in messages.
pub const SHIPPED_NAME: &str = "proxy.toml (built in)";

/// Everything that is configured, checked.
#[derive(Clone)]
pub struct Config {
    /// Sockets, threads and connections.
    pub server: Server,
    /// The admin side.
    pub admin: Admin,
    /// Whose forwarding fields are believed.
    pub trust: TrustedProxies,
    /// What is said to clients.
    pub respond: respond::Settings,
    /// What each client may ask.
    pub limit: limit::Settings,
    /// What each client may hold, where it is limited at all.
    pub per_client: listener::PerClient,
    /// The memory that stored responses may take, in bytes.
    pub cache_bytes: u64,
    /// How long a client waits for a fresh answer where a stale one may stand
    /// in.
    pub stale_wait: Duration,
    /// For how long failures are remembered.
    pub lapses: failure_backoff::Settings,
    /// A response field that is obeyed before `CDN-Cache-Control` (RFC 9213).
    pub targeted: Option<HeaderName>,
    /// What mode `chain` goes by.
    pub chain: chain::Settings,
    /// How each upstream is called; routes and tips know them by their numbers
    /// here. Upstreams that no route asks are not among them.
    pub upstreams: Vec<crate::upstream::Settings>,
    /// The names of the upstreams that no route asks.
    pub unused_upstreams: Vec<Box<str>>,
    /// What is logged.
    pub log: telemetry::Settings,
    /// A line for each request.
    pub access_log: access_log::Settings,
    /// Which requests there are.
    pub routes: RouteTable,
}

/// Sockets, threads and connections.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Where clients come.
    pub listen: SocketAddr,
    /// Threads that serve; 0 for one each core.
    pub workers: usize,
    /// How they share the work.
    pub runtime: Runtime,
    /// From the order to stop to the end.
    #[serde(serialize_with = "crate::units::serialize")]
    pub drain_timeout: Duration,
    /// How connections are served.
    #[serde(flatten)]
    pub connections: listener::Settings,
}

/// How threads share the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// A runtime for each thread; a connection stays with the one that
    /// accepted it.
    PerCore,
    /// One runtime; its threads steal work from each other.
    WorkStealing,
}

impl Runtime {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("per-core", Self::PerCore),
        ("work-stealing", Self::WorkStealing),
    ];
}

/// The admin side.
#[derive(Clone, Debug, Serialize)]
pub struct Admin {
    /// Where the operator comes.
    pub listen: SocketAddr,
    /// A file with the token that is demanded, where it does not come from the
    /// environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Names in Host that it answers to, beside localhost and any address.
    pub hosts: Vec<String>,
    /// Whether `/readyz` fails until each tip that a route goes by has been known
    /// once.
    pub ready_needs_tips: bool,
}

/// A number of seconds.
const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const DAY: Duration = Duration::from_hours(24);

impl Config {
    /// The shipped configuration.
    ///
    /// # Errors
    /// Never, as a test sees to; the list is there for the caller's `?`.
    pub fn shipped() -> Result<Self, Vec<Problem>> {
        Self::parse(SHIPPED_NAME, SHIPPED)
    }

    /// Reads a file's text. What it leaves out is as in the shipped file,
    /// routes included.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        Self::parse_with(file, text, &[])
    }

    /// Reads a file's text as [`parse`](Self::parse) does. The base URLs of
    /// `overrides` replace those of the file; an upstream that only they name has
    /// the settings of the default one.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse_with(
        file: &str,
        text: &str,
        overrides: &UrlOverrides,
    ) -> Result<Self, Vec<Problem>> {
        let problems = Problems::new(file, text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            problems.add(&error.span().unwrap_or_default(), error.message());
        }
        let table = Table::root(&problems, &root);
        let config = Self::read(&table, overrides);
        table.finish();
        let problems = problems.into_list();
        match problems.is_empty() {
            true => Ok(config),
            false => Err(problems),
        }
    }

    fn read(root: &Table<'_>, overrides: &UrlOverrides) -> Self {
        let mut upstreams = upstream::read_all(root, overrides);
        let (mut chain, mut tips) = chain(root.table("chain"), &upstreams);
        let (routes, unused_upstreams) = match root.tables("route") {
            Some(tables) => routes::read(tables, root, &mut tips, &mut upstreams),
            None => shipped_routes(&mut tips, &mut upstreams),
        };
        for route in routes.routes() {
            if route.headers == HeaderMode::All
                && let Some(settings) = upstreams.get_mut(usize::from(route.upstream))
            {
                settings.passes_all = true;
            }
        }
        chain.tips = tips.sources;
        let (public, private) = (root.table("server"), root.table("admin"));
        apart(&public, &private);
        let cache = root.table("cache");
        let cache_bytes = cache.size("max_bytes", 1 << 20..=1 << 44, 256 << 20);
        let stale_wait = cache.duration("stale_wait", seconds(0)..=DAY, seconds(2));
        let lapses = lapses(&cache);
        let header = |text: &str| HeaderName::from_bytes(text.as_bytes()).ok();
        let targeted = cache.parsed("targeted_field", "a field name", header);
        cache.finish();
        let log = root.table("log");
        let server = server(public);
        let (limit, per_client) = limits(root.table("limit"));
        let config = Self {
            server: Server {
                connections: listener::Settings {
                    per_client: limit.enabled.then_some(per_client),
                    ..server.connections
                },
                ..server
            },
            admin: admin(private),
            trust: trust(root.table("clients")),
            respond: answers(root.table("answers")),
            limit,
            per_client,
            cache_bytes,
            stale_wait,
            lapses,
            targeted: targeted.map(|(name, _)| name),
            chain,
            upstreams,
            unused_upstreams,
            access_log: access(log.table("access")),
            log: logging(&log),
            routes,
        };
        log.finish();
        config
    }

    /// The name of the upstream of a number.
    pub fn upstream_name(&self, number: u16) -> &str {
        let settings = self.upstreams.get(usize::from(number));
        settings.map_or(DEFAULT, |settings| &settings.name)
    }

    /// Has each upstream asked at one URL, where one is given.
    pub fn ask_all_at(&mut self, url: Option<&Uri>) {
        for settings in &mut self.upstreams {
            if let Some(url) = url {
                settings.urls = vec![url.clone()];
            }
        }
    }
}

/// The routes of the shipped file, for a file that has none.
fn shipped_routes(
    tips: &mut Tips,
    upstreams: &mut Vec<crate::upstream::Settings>,
) -> (RouteTable, Vec<Box<str>>) {
    let problems = Problems::new(SHIPPED_NAME, SHIPPED);
    let (root, _errors) = DeTable::parse_recoverable(SHIPPED);
    let table = Table::root(&problems, &root);
    let tables = table.tables("route").unwrap_or_default();
    routes::read(tables, &table, tips, upstreams)
}

const PUBLIC: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// The two sides cannot listen in one place.
fn apart(public: &Table<'_>, private: &Table<'_>) {
    let (one, at_one) = address(public, PUBLIC);
    let (other, at_other) = address(private, ADMIN);
    if one == other && one.port() != 0 {
        let at = at_other.or(at_one);
        let at = at.as_ref().unwrap_or(private.span());
        private.problem(
            at,
            format!("server.listen and admin.listen are both {one}; each needs a port of its own"),
        );
    }
}

fn server(table: Table<'_>) -> Server {
    let number = |key, bounds, default| {
        table
            .integer(key, bounds)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
    };
    let server = Server {
        listen: address(&table, PUBLIC).0,
        workers: number("workers", 0..=1024, 0),
        runtime: table
            .one_of("runtime", &Runtime::NAMES)
            .unwrap_or(Runtime::PerCore),
        drain_timeout: table.duration("drain_timeout", seconds(0)..=DAY, seconds(30)),
        connections: listener::Settings {
            max_connections: table
                .integer("max_connections", 1..=10_000_000)
                .unwrap_or(16_384),
            max_head_bytes: number("max_head_bytes", 1024..=1 << 20, 16 * 1024),
            max_target_bytes: number("max_target_bytes", 256..=65_000, 8 * 1024),
            max_fields: number("max_fields", 8..=1024, 100),
            max_unsent_bytes: table.size("max_unsent_bytes", 1 << 20..=1 << 44, 128 << 20),
            per_client: None,
            times: listener::ConnectionTimeouts {
                header_timeout: table.duration("header_timeout", MILLI..=DAY, seconds(10)),
                idle_timeout: table.duration("idle_timeout", MILLI..=DAY, seconds(75)),
                half_closed_timeout: table.duration(
                    "half_closed_timeout",
                    MILLI..=DAY,
                    seconds(10),
                ),
                write_timeout: table.duration("write_timeout", MILLI..=DAY, seconds(30)),
                min_send_rate: table.size("min_send_rate", 0..=1 << 30, 1024),
            },
        },
    };
    table.finish();
    server
}

const MILLI: Duration = Duration::from_millis(1);

fn admin(table: Table<'_>) -> Admin {
    let admin = Admin {
        listen: address(&table, ADMIN).0,
        token_file: path(&table, "token_file"),
        hosts: table
            .strings(
                "hosts",
                "a host name without a port, such as \"ordgate.internal\"",
                |text| host::is_name(text).then(|| text.to_owned()),
            )
            .unwrap_or_default(),
        ready_needs_tips: table.boolean("ready_needs_tips", true),
    };
    table.finish();
    admin
}

fn trust(table: Table<'_>) -> TrustedProxies {
    let network = |text: &str| {
        text.parse::<IpNet>()
            .ok()
            .or_else(|| Some(IpNet::from(text.parse::<IpAddr>().ok()?)))
    };
    let allowed = "an address or a network, such as \"10.0.0.0/8\"";
    let trust = TrustedProxies {
        networks: table
            .strings("trusted_proxies", allowed, network)
            .unwrap_or_default(),
    };
    table.finish();
    trust
}

fn answers(table: Table<'_>) -> respond::Settings {
    let origin = |text: &str| {
        let uri: Uri = text.parse().ok()?;
        let bare = uri.scheme().is_some() && uri.authority().is_some() && uri.path() == "/";
        (bare && !text.ends_with('/')).then(|| text.to_owned())
    };
    let allowed = "an origin without a path, such as \"https://app.example\"";
    let settings = respond::Settings {
        cors_origins: table
            .strings("cors_origins", allowed, origin)
            .unwrap_or_default(),
        cache_status_key: table.boolean("cache_status_key", false),
        server_timing: table.boolean("server_timing", false),
    };
    table.finish();
    settings
}

fn integer(table: &Table<'_>, key: &'static str, bounds: RangeInclusive<u64>, default: u32) -> u32 {
    let read = table.integer(key, bounds);
    read.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
}

fn count(table: &Table<'_>, key: &'static str, most: u64, default: u32) -> NonZeroU32 {
    let read = table
        .integer(key, 1..=most)
        .and_then(|n| u32::try_from(n).ok());
    read.and_then(NonZeroU32::new)
        .or(NonZeroU32::new(default))
        .unwrap_or(NonZeroU32::MIN)
}

fn limits(table: Table<'_>) -> (limit::Settings, listener::PerClient) {
    let settings = limit::Settings {
        enabled: table.boolean("enabled", true),
        requests_per_minute: count(&table, "requests_per_minute", 60_000_000, 3000),
        burst: count(&table, "burst", 60_000_000, 3000),
        misses_per_minute: integer(&table, "misses_per_minute", 0..=60_000_000, 1200),
        max_clients: count(&table, "max_callers", 100_000_000, 100_000),
    };
    let per_client = listener::PerClient {
        connections: integer(&table, "connections", 1..=10_000_000, 512),
        unsent_bytes: table.size("unsent_bytes", 1 << 16..=1 << 44, 32 << 20),
    };
    table.finish();
    (settings, per_client)
}

fn lapses(table: &Table<'_>) -> failure_backoff::Settings {
    let defaults = [seconds(1), seconds(30)];
    let (error_ttl, max_error_ttl) =
        least_and_most(table, ["error_ttl", "max_error_ttl"], defaults);
    failure_backoff::Settings {
        error_ttl,
        max_error_ttl,
    }
}

/// Two times of which the one grows up to the other; with their defaults.
fn least_and_most(
    table: &Table<'_>,
    [least, most]: [&'static str; 2],
    [at_first, at_last]: [Duration; 2],
) -> (Duration, Duration) {
    let from = table.duration(least, MILLI..=DAY, at_first);
    let to = table.duration(most, MILLI..=DAY, at_last.max(from));
    if to < from {
        let message = format!(
            "{} is shorter than {}; allowed is as long at the least",
            table.name(most),
            table.name(least)
        );
        table.problem(table.span(), message);
    }
    (from, to)
}

/// The indexers of the API, as the reference upstream has them.
const INDEXERS: [(&str, &str); 2] = [("ordinals", "/ordinals/v1/"), ("runes", "/runes/v1/")];

/// Reads `[chain]` but for the tips, and the tips.
fn chain(table: Table<'_>, upstreams: &[crate::upstream::Settings]) -> (chain::Settings, Tips) {
    const YEAR: Duration = Duration::from_hours(24 * 365);
    let number = |key, bounds, default| {
        let read = table.integer(key, bounds);
        read.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
    };
    let default = finality::FinalitySettings::default();
    let times = finality::FinalitySettings {
        final_depth: number("final_depth", 1..=10_000, default.final_depth),
        final_ttl: table.duration("final_ttl", seconds(1)..=YEAR, default.final_ttl),
        recent_ttl: table.duration("recent_ttl", MILLI..=DAY, default.recent_ttl),
        live_ttl: table.duration("live_ttl", MILLI..=DAY, default.live_ttl),
        absent_ttl: table.duration("absent_ttl", MILLI..=DAY, default.absent_ttl),
    };
    let index_blocks = number("index_blocks", 16..=10_000_000, 65_536);
    let most_zeros = HASH_DIGITS as u64;
    let hash_zeros = table.integer("hash_zeros", 0..=most_zeros);
    let hash_zeros = hash_zeros.and_then(|n| u8::try_from(n).ok()).unwrap_or(8);
    let ahead = table.table("look_ahead");
    let look_ahead = chain::LookAhead {
        next_window: ahead.boolean("next_window", false),
        refresh: ahead
            .integer("refresh", 0..=100_000)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0),
    };
    ahead.finish();
    let known = INDEXERS.map(|(name, path)| source(name, Some(path)));
    let mut tips = Tips {
        said: vec![None; known.len()],
        sources: known.into(),
        hash_zeros,
    };
    for ((name, at), table) in table.table("tip").named_tables() {
        tip(&mut tips, &name, &at, table, upstreams);
    }
    // For routes whose indexer says no tip.
    tips.sources.push(source("none", None));
    table.finish();
    let settings = chain::Settings {
        times,
        index_blocks: index_blocks as usize,
        hash_zeros,
        look_ahead,
        tips: Vec::new(),
    };
    (settings, tips)
}

/// A source as it is where nothing else is said.
fn source(name: &str, path: Option<&str>) -> TipSource {
    TipSource {
        name: name.into(),
        path: path.map(Into::into),
        height: "block_height".into(),
        every: seconds(5),
        upstream: 0,
        upstream_name: DEFAULT.into(),
    }
}

/// Reads a `[chain.tip.NAME]`: one more indexer, or other settings for one that
/// is known.
fn tip(
    tips: &mut Tips,
    name: &str,
    at: &Range<usize>,
    table: Table<'_>,
    upstreams: &[crate::upstream::Settings],
) {
    let known = tips.sources.iter().position(|tip| *tip.name == *name);
    let is_target = |text: &str| {
        let plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        (text.starts_with('/') && plain).then(|| text.to_owned())
    };
    let path = table.parsed(
        "path",
        "a path on the upstream, such as \"/runes/v1/\"",
        is_target,
    );
    let height = table.string("height");
    if known.is_none() && path.is_none() && !table.has("path") {
        table.problem(
            at,
            format!("{} must say where the tip is", table.name("path")),
        );
    }
    let default = source(name, path.as_ref().map(|(path, _)| &**path));
    let every = table.duration("every", Duration::from_millis(100)..=DAY, default.every);
    let at = known.unwrap_or_else(|| {
        tips.sources.push(default);
        tips.said.push(None);
        tips.sources.len() - 1
    });
    tips.said[at] = assign::said(&table, upstreams).map(|(number, _)| number);
    let tip = &mut tips.sources[at];
    if let Some((path, _)) = path {
        tip.path = Some(path.into());
    }
    if let Some((height, _)) = height {
        tip.height = height.into();
    }
    tip.every = every;
    table.finish();
}

fn logging(table: &Table<'_>) -> telemetry::Settings {
    let filter = |text: &str| telemetry::is_filter(text).then(|| text.to_owned());
    telemetry::Settings {
        level: table
            .parsed("level", telemetry::FILTER, filter)
            .map_or("info".to_owned(), |(level, _)| level),
        format: table
            .one_of("format", &telemetry::Format::NAMES)
            .unwrap_or(telemetry::Format::Auto),
    }
}

fn access(table: Table<'_>) -> access_log::Settings {
    let all = access_log::Field::NAMES;
    let names = all
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(", ");
    let field = |text: &str| {
        all.iter()
            .find(|(name, _)| *name == text)
            .map(|(_, field)| *field)
    };
    let fields = table.strings("fields", &format!("one of {names}"), field);
    let settings = access_log::Settings {
        enabled: table.boolean("enabled", false),
        level: table
            .one_of("level", &access_log::LogLevel::NAMES)
            .unwrap_or(access_log::LogLevel::Info),
        sample: table.integer("sample", 1..=1_000_000).unwrap_or(1),
        fields: fields.unwrap_or_else(|| all.iter().map(|(_, field)| *field).collect()),
    };
    table.finish();
    settings
}

/// Where to listen, and where that is said.
fn address(table: &Table<'_>, default: SocketAddr) -> (SocketAddr, Option<Range<usize>>) {
    let read = table.parsed(
        "listen",
        "an address and a port, such as \"127.0.0.1:8080\"",
        |text| text.parse().ok(),
    );
    read.map_or((default, None), |(address, at)| (address, Some(at)))
}

fn path(table: &Table<'_>, key: &'static str) -> Option<PathBuf> {
    table.string(key).map(|(path, _)| path.into())
}

#[cfg(test)]
mod tests;
