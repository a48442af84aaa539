//! The command line: its commands and flags, and one function for each command.

mod check;
mod environment;
mod health;
mod purge;
mod sandbox;
mod serve;
mod token;

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use ordgate::listener::ListenAddress;
use ordgate::{config, log_writer, openapi, units};

/// A caching gateway for the Ordinals and Runes read API.
///
/// The provider's API keys come from the environment variable ORDGATE_API_KEYS,
/// separated by commas, or from the file that upstream.api_keys_file names. A named
/// upstream has keys of its own if ORDGATE_API_KEYS_NAME is set (its name in upper
/// case, - as _), or its api_keys_file.
#[derive(Parser)]
#[command(name = "ordgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API from the cache, and from the upstream where needed.
    Serve(ServeFlags),
    /// Run a simulated chain and its API, for tests and demonstrations.
    Sandbox(SandboxFlags),
    /// Check a configuration, and print the values that take effect.
    ///
    /// Prints every problem with its line and column, or else the effective
    /// configuration as a proxy.toml, defaults included and without secrets.
    Check {
        #[command(flatten)]
        flags: ServeFlags,
        /// Also print the keys that are not set, and the documentation of every key.
        #[arg(long)]
        all: bool,
    },
    /// Print a JSON Schema of proxy.toml, for editors.
    ///
    /// The schema (draft 2020-12) has the type, bounds, default and documentation of
    /// every key. Write it to a file, and begin proxy.toml with
    /// `#:schema ./proxy.schema.json`: editors that use taplo then complete and check
    /// the file.
    Schema,
    /// Remove stored answers from a running ordgate, at once.
    ///
    /// When this has succeeded, no request that begins afterwards gets what was
    /// stored, or fetched from the upstream, before.
    Purge(PurgeFlags),
    /// Check whether a running ordgate is ready: exit code 0 if it is, else 1.
    ///
    /// Prints why it is not. It takes at most 5 s, and needs no token.
    Health(HealthFlags),
    /// Make tokens for clients.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print the OpenAPI 3.1 document of the public side.
    Openapi {
        /// The configuration file with the routes to describe. Default:
        /// ORDGATE_CONFIG, else the built-in configuration.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token, and the line for the token file.
    ///
    /// The first line is the token, which is shown only here. The second one is for the
    /// file that clients.token_file names; it has the name and the token's SHA-256, and
    /// may be followed by requests_per_minute=N, burst=N, origins=https://A,https://B
    /// and expires=DATE. The token is valid after the next reload.
    New {
        /// The name of the client in /status, metrics and the access log. Several tokens
        /// may have one name, so that a token can be replaced.
        #[arg(value_name = "NAME", value_parser = token::name)]
        name: String,
    },
}

#[derive(Args, Clone)]
struct ServeFlags {
    /// The configuration file. Flags and environment variables take precedence over
    /// it. Default: ORDGATE_CONFIG, else the built-in configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address and port for clients, such as 127.0.0.1:8080; port 0 takes a free
    /// port; unix:PATH is a unix socket.
    ///
    /// Repeat the flag for several. They take the place of server.listen; [[listener]]
    /// tables of the configuration stay. Default: ORDGATE_LISTEN (separated by commas),
    /// else the configuration.
    #[arg(long, value_name = "ADDR", value_parser = environment::listen_address)]
    listen: Vec<ListenAddress>,
    /// The address and port for the operator: /healthz, /readyz, /metrics, /status,
    /// /explain, /purge, /reload. Off loopback it needs the token of
    /// ORDGATE_ADMIN_TOKEN. Default: ORDGATE_ADMIN, else the configuration.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The API's base URL, such as https://api.example; or that of a named upstream,
    /// as NAME=URL, such as runes=http://127.0.0.1:3001.
    ///
    /// Repeat the flag for other upstreams, and for further base URLs of the same one,
    /// the preferred one first. Default: ORDGATE_UPSTREAM (the same, separated by
    /// commas), else the configuration.
    #[arg(long, value_name = "[NAME=]URL", conflicts_with = "sandbox")]
    upstream: Vec<String>,
    /// The directory in which ordgate keeps what a restart must not forget: what each
    /// API key has spent, and answers. It is created if it does not exist. Default:
    /// ORDGATE_STATE, else the configuration, else systemd's STATE_DIRECTORY, else none.
    #[arg(long, value_name = "DIR", value_parser = environment::state_path)]
    state: Option<PathBuf>,
    /// Use a simulated upstream inside this process: no API key, no network.
    #[arg(long)]
    sandbox: bool,
}

#[derive(Args)]
struct PurgeFlags {
    #[command(flatten)]
    wanted: WantedFlags,
    /// The admin address of the running ordgate. Its token comes from
    /// ORDGATE_ADMIN_TOKEN or from admin.token_file in the configuration. Default:
    /// ORDGATE_ADMIN, else the configuration.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The configuration file of the running ordgate. Default: ORDGATE_CONFIG, else
    /// the built-in configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
struct HealthFlags {
    /// The admin address of the running ordgate. Default: ORDGATE_ADMIN, else the
    /// configuration.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The configuration file of the running ordgate. Default: ORDGATE_CONFIG, else
    /// the built-in configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct WantedFlags {
    /// The answers for a public path with its query, or for a URL with them. For a
    /// list, all pages go, whatever the query; for a transaction, also the pages of
    /// its block that contain it; a block goes by its height and by its hash.
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    /// All answers of a route.
    #[arg(long, value_name = "NAME")]
    route: Vec<String>,
    /// All answers that mention something: block:HASH, height:N, height:N+ (N and
    /// above), tx:TXID or ticker:TICKER.
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// All answers.
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
struct SandboxFlags {
    /// The address and port to listen at; port 0 takes a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3999")]
    listen: SocketAddr,
    /// Serve the two APIs on two ports, as the open-source indexer does: the ordinals
    /// API on --listen, the runes API on --runes-listen. Both have the same chain;
    /// --rpm, the counts and the faults are separate.
    #[arg(long)]
    split: bool,
    /// The address and port of the runes API. Default: the port after that of
    /// --listen, or a free port if that is 0.
    #[arg(long, value_name = "ADDR", requires = "split")]
    runes_listen: Option<SocketAddr>,
    /// The seed of the chain: the same seed gives the same chain.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Refuse requests without this key in x-api-key (several: separated by commas).
    #[arg(long, value_name = "K")]
    require_key: Option<String>,
    /// The requests per minute that each key, or all clients without one, may send.
    /// Further ones get 429.
    #[arg(long, value_name = "N")]
    rpm: Option<NonZeroU32>,
    /// How long each answer takes, such as 200ms.
    #[arg(long, value_name = "D", value_parser = time)]
    latency: Option<Duration>,
    /// The share of requests that fail with 500, from 0 to 1.
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.0)]
    error_rate: f64,
    /// How often a block arrives, such as 10s. Default: only on POST
    /// /sandbox/advance.
    #[arg(long, value_name = "D", value_parser = time)]
    block_every: Option<Duration>,
    /// Make one of so many blocks a reorg.
    #[arg(long, value_name = "N", requires = "block_every")]
    reorg_every: Option<NonZeroU32>,
    /// The number of transactions, with about five items each, in the largest blocks:
    /// one block in fifty.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    largest_block: u16,
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

/// How long the log's last lines may take, if standard error blocks.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs the command of the command line.
pub(crate) fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(flags) => serve::serve(flags),
        Command::Sandbox(flags) => sandbox::sandbox(flags),
        Command::Check { flags, all } => check::check(&flags, all),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Purge(flags) => purge::purge(flags),
        Command::Health(flags) => Ok(health::health(&flags)),
        Command::Token(TokenCommand::New { name }) => token::new(&name),
        Command::Openapi { config } => print_openapi(config.as_deref()),
    };
    // After the log's last lines, and before the error.
    log_writer::flush(LAST_LINES);
    match done {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

fn print_openapi(path: Option<&Path>) -> Result<ExitCode> {
    let (config, _) = environment::load(path, &environment::upstream_urls(&[], false)?)?;
    print(&format!(
        "{:#}\n",
        openapi::document(&config.routes, config.tokens.required)
    ))
}

/// Writes to standard output, whole, at once.
fn print(text: &str) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes an error to standard error.
fn complain(message: &str) {
    // There is no other channel; if this one is gone, the exit code remains.
    let _ = writeln!(std::io::stderr(), "ordgate: {message}");
}
