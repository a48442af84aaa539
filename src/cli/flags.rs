//! The flags of the commands.
//!
//! The first paragraph of each text is what `--help` prints: one line. `ordgate help
//! COMMAND` and the man pages have all of it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ordgate::listener::ListenAddress;
use ordgate::units;

use super::environment;

/// What `serve` and `check` take.
#[derive(Args, Clone)]
pub(super) struct ServeFlags {
    /// The configuration file
    ///
    /// Flags and environment variables take precedence over it. Default:
    /// ORDGATE_CONFIG, else the built-in configuration.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// An address and port for clients, such as 127.0.0.1:8080, or unix:PATH; may be repeated
    ///
    /// Port 0 takes a free port. The addresses take the place of server.listen;
    /// [[listener]] tables of the configuration stay. Default: ORDGATE_LISTEN (separated
    /// by commas), else the configuration.
    #[arg(long, value_name = "ADDR", value_parser = environment::listen_address)]
    pub(super) listen: Vec<ListenAddress>,
    /// The address and port for the operator: dashboard, /metrics, /status, /readyz
    ///
    /// Also /healthz, /explain, /purge and /reload. Off loopback it needs the token of
    /// ORDGATE_ADMIN_TOKEN or of admin.token_file. Default: ORDGATE_ADMIN, else the
    /// configuration.
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<SocketAddr>,
    /// The API's base URL, such as https://api.example; may be repeated
    ///
    /// Or that of a named upstream, as NAME=URL, such as runes=http://127.0.0.1:3001.
    /// Repeat the flag for other upstreams, and for further base URLs of the same one,
    /// the preferred one first. Default: ORDGATE_UPSTREAM (the same, separated by
    /// commas), else the configuration.
    #[arg(long, value_name = "[NAME=]URL", conflicts_with = "sandbox")]
    pub(super) upstream: Vec<String>,
    /// The directory for what outlives a restart: spent budget, stored answers
    ///
    /// It is created if it does not exist. Default: ORDGATE_STATE, else the
    /// configuration, else systemd's STATE_DIRECTORY, else none.
    #[arg(long, value_name = "DIR", value_parser = environment::state_path)]
    pub(super) state: Option<PathBuf>,
    /// Use a simulated upstream inside this process: no API key, no network
    #[arg(long)]
    pub(super) sandbox: bool,
}

/// What `purge` takes.
#[derive(Args)]
pub(super) struct PurgeFlags {
    #[command(flatten)]
    pub(super) wanted: WantedFlags,
    /// The admin address of the running ordgate
    ///
    /// Its token comes from ORDGATE_ADMIN_TOKEN or from admin.token_file in the
    /// configuration. Default: ORDGATE_ADMIN, else the configuration.
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<SocketAddr>,
    /// The configuration file of the running ordgate
    ///
    /// Default: ORDGATE_CONFIG, else the built-in configuration.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// What `health` takes.
#[derive(Args)]
pub(super) struct HealthFlags {
    /// The admin address of the running ordgate
    ///
    /// Default: ORDGATE_ADMIN, else the configuration.
    #[arg(long, value_name = "ADDR")]
    pub(super) admin: Option<SocketAddr>,
    /// The configuration file of the running ordgate
    ///
    /// Default: ORDGATE_CONFIG, else the built-in configuration.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// What is purged: one of these kinds.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct WantedFlags {
    /// The answers for a public path with its query, or for a URL
    ///
    /// For a list, all pages go, whatever the query; for a transaction, also the pages
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
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3999")]
    pub(super) listen: SocketAddr,
    /// Serve the two APIs on two ports, as the open-source indexer does
    ///
    /// The ordinals API is on --listen, the runes API on --runes-listen. Both have the
    /// same chain; --rpm, the counts and the faults are separate.
    #[arg(long)]
    pub(super) split: bool,
    /// The address and port of the runes API
    ///
    /// Default: the port after that of --listen, or a free port if that is 0.
    #[arg(long, value_name = "ADDR", requires = "split")]
    pub(super) runes_listen: Option<SocketAddr>,
    /// The seed of the chain: the same seed gives the same chain
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Refuse requests without this key in x-api-key (several: separated by commas)
    #[arg(long, value_name = "K")]
    pub(super) require_key: Option<String>,
    /// The requests per minute that each key, or all clients without one, may send
    ///
    /// Further ones get 429.
    #[arg(long, value_name = "N")]
    pub(super) rpm: Option<NonZeroU32>,
    /// How long each answer takes, such as 200ms
    #[arg(long, value_name = "D", value_parser = time)]
    pub(super) latency: Option<Duration>,
    /// The share of requests that fail with 500, from 0 to 1
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.0)]
    pub(super) error_rate: f64,
    /// How often a block arrives, such as 10s
    ///
    /// Default: only on POST /sandbox/advance.
    #[arg(long, value_name = "D", value_parser = time)]
    pub(super) block_every: Option<Duration>,
    /// Make one of so many blocks a reorg
    #[arg(long, value_name = "N", requires = "block_every")]
    pub(super) reorg_every: Option<NonZeroU32>,
    /// The number of transactions in the largest blocks: one block in fifty
    ///
    /// Each has about five items.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(super) largest_block: u16,
}

fn time(text: &str) -> Result<Duration, String> {
    units::parse(text).ok_or_else(|| format!("allowed is {}", units::DURATION))
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "allowed is a number from 0 to 1".to_owned())
}
