//! The flags of the commands.
//!
//! The first paragraph of each text is what `-h` prints: one line. `--help` and the man pages
//! have all of it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ordgate::listener::ListenAddress;
use ordgate::sandbox::{self, Sandbox};
use ordgate::units;

use super::environment;

/// The heading of the flags of a sandbox in the help.
pub(super) const SANDBOX: &str = "Sandbox";

/// What `serve` and `check` take.
#[derive(Args, Clone)]
pub(super) struct ServeFlags {
    /// The configuration file
    ///
    /// Flags and environment variables take precedence over it. Default: the built-in
    /// configuration.
    #[arg(long, value_name = "FILE", env = "ORDGATE_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// An address and port for clients, such as 127.0.0.1:8080, or unix:PATH; may be repeated
    ///
    /// Port 0 takes a free port. The addresses take the place of server.listen;
    /// [[listener]] tables of the configuration stay.
    #[arg(
        long,
        value_name = "ADDR",
        env = "ORDGATE_LISTEN",
        value_delimiter = ','
    )]
    pub(super) listen: Vec<ListenAddress>,
    /// The address and port for the operator: dashboard, /metrics, /status, /readyz
    ///
    /// Also /healthz, /explain, /purge and /reload. Off loopback it needs the token of
    /// ORDGATE_ADMIN_TOKEN or of admin.token_file.
    #[arg(long, value_name = "ADDR", env = "ORDGATE_ADMIN", value_parser = environment::socket_address)]
    pub(super) admin: Option<SocketAddr>,
    /// The API's base URL, such as https://api.example; may be repeated
    ///
    /// Or that of a named upstream, as NAME=URL, such as runes=http://127.0.0.1:3001.
    /// Repeat the flag for other upstreams, and for further base URLs of the same one,
    /// the preferred one first. With --sandbox, no other upstream is used.
    #[arg(
        long,
        value_name = "[NAME=]URL",
        env = "ORDGATE_UPSTREAM",
        value_delimiter = ','
    )]
    pub(super) upstream: Vec<String>,
    /// The directory for what outlives a restart: spent budget, stored answers
    ///
    /// It is created if it does not exist. Default: state.path of the configuration, else
    /// systemd's STATE_DIRECTORY, else none.
    #[arg(long, value_name = "DIR", env = "ORDGATE_STATE")]
    pub(super) state: Option<PathBuf>,
    /// Use a simulated upstream inside this process: no API key, no network
    ///
    /// The ready line has its address and control routes (`ordgate help sandbox`). If the
    /// configuration has the usual [limit] and no proxies, clients are not limited while ordgate
    /// listens on loopback addresses only, so that load tests get answers.
    #[arg(long)]
    pub(super) sandbox: bool,
    /// The address and port of the sandbox [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR", value_parser = environment::socket_address,
          requires = "sandbox", help_heading = SANDBOX)]
    pub(super) sandbox_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) model: ModelFlags,
}

impl ServeFlags {
    /// The sandbox of these flags, if there is to be one.
    pub(super) fn sandbox(&self) -> Option<Sandbox> {
        let settings = sandbox::Settings {
            listen: self.sandbox_listen,
            ..self.model.settings(Some(Duration::from_secs(30)))
        };
        self.sandbox.then(|| Sandbox::new(settings))
    }
}

/// Where a running ordgate is: what `health` takes.
#[derive(Args)]
pub(super) struct AdminFlags {
    /// The admin address of the running ordgate, such as 127.0.0.1:9090
    ///
    /// Default: admin.listen of the configuration.
    #[arg(long, value_name = "ADDR", env = "ORDGATE_ADMIN", value_parser = environment::socket_address)]
    pub(super) admin: Option<SocketAddr>,
    /// The configuration file of the running ordgate
    ///
    /// Default: the built-in configuration.
    #[arg(long, value_name = "FILE", env = "ORDGATE_CONFIG")]
    pub(super) config: Option<PathBuf>,
}

/// What `purge` takes.
#[derive(Args)]
pub(super) struct PurgeFlags {
    #[command(flatten)]
    pub(super) wanted: WantedFlags,
    #[command(flatten)]
    pub(super) of: AdminFlags,
}

/// What is purged: one of these kinds.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct WantedFlags {
    /// The answers for a public path with its query, or for a URL
    ///
    /// For a list of activity, all pages go, whatever the query; for a transaction, also the pages
    /// of its block that contain it; a block goes by its height and by its hash.
    #[arg(long, value_name = "URL")]
    pub(super) url: Vec<String>,
    /// All answers of a route
    #[arg(long, value_name = "NAME")]
    pub(super) route: Vec<String>,
    /// All answers that mention block:HASH, height:N, height:N+, tx:TXID or ticker:TICKER
    ///
    /// height:N+ is N and above.
    #[arg(long, value_name = "TAG")]
    pub(super) tag: Vec<String>,
    /// All answers
    #[arg(long)]
    pub(super) all: bool,
}

/// What `sandbox` takes.
#[derive(Args)]
pub(super) struct SandboxFlags {
    /// The address and port to listen at; port 0 takes a free port
    #[arg(long, value_name = "ADDR", value_parser = environment::socket_address, default_value = "127.0.0.1:3999")]
    pub(super) listen: SocketAddr,
    /// Serve the two APIs on two ports, as the open-source indexer does
    ///
    /// The ordinals API is on --listen, the runes API on the port after it (on a free port
    /// if that is 0). Both have the same chain.
    #[arg(long)]
    pub(super) split: bool,
    #[command(flatten)]
    pub(super) model: ModelFlags,
}

/// What the sandbox is like: `sandbox` takes these, and so does `serve --sandbox`.
#[derive(Args, Clone)]
#[command(next_help_heading = SANDBOX)]
pub(super) struct ModelFlags {
    /// The seed of chain, latencies and faults: the same seed gives the same ones [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Refuse requests without this key in x-api-key (several: separated by commas)
    #[arg(long, value_name = "K")]
    require_key: Option<String>,
    /// The requests per minute that each key, or all clients without one, may send
    ///
    /// Further ones get 429.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rpm: Option<u32>,
    /// How long answers take: 50ms, or 50ms..400ms
    ///
    /// Within a range most answers are near its lower end. The seed and the number of the
    /// request decide which time an answer takes.
    #[arg(long, value_name = "D", value_parser = latency)]
    latency: Option<RangeInclusive<Duration>>,
    /// How often a block arrives, such as 10s
    ///
    /// Default: only on POST /sandbox/advance; with serve --sandbox, every 30s.
    #[arg(long, value_name = "D", value_parser = time)]
    block_every: Option<Duration>,
}

impl ModelFlags {
    /// The sandbox's settings. Without --block-every, blocks arrive at this interval.
    pub(super) fn settings(&self, block_every: Option<Duration>) -> sandbox::Settings {
        let default = sandbox::Settings::default();
        sandbox::Settings {
            seed: self.seed.unwrap_or(default.seed),
            require_key: self.require_key.clone(),
            requests_per_minute: self.rpm,
            latency: self.latency.clone().unwrap_or(default.latency),
            block_every: self.block_every.or(block_every),
            ..default
        }
    }
}

/// Reads the times of --latency.
fn latency(text: &str) -> Result<RangeInclusive<Duration>, &'static str> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let times = units::parse(least).zip(units::parse(most));
    times
        .map(|(least, most)| least..=most)
        .filter(|range| !range.is_empty())
        .ok_or("allowed is a time such as 50ms, or a range such as 50ms..400ms")
}

fn time(text: &str) -> Result<Duration, String> {
    units::parse(text).ok_or_else(|| format!("allowed is {}", units::DURATION))
}
