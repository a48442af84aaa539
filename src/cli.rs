//! The command line: its commands and flags, and one function for each command.

mod admin;
mod check;
mod descriptors;
mod environment;
mod flags;
mod man;
mod sandbox;
mod serve;

use std::env;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use flags::{AdminFlags, PurgeFlags, SandboxFlags, ServeFlags};
use ordgate::client_tokens::file::{TokenName, line, new_token};
use ordgate::config;
use ordgate::log_writer::{self, Destination};
use ordgate::{build, openapi};

/// A caching gateway for the Ordinals and Runes read API
#[derive(Parser)]
#[command(
    name = "ordgate",
    version = build::LONG_VERSION,
    max_term_width = 100,
    after_long_help = VARIABLES,
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What is neither a flag nor in the configuration file.
const VARIABLES: &str = "\
Environment variables:
  ORDGATE_API_KEYS         the provider's API keys, separated by commas; or upstream.api_keys_file
  ORDGATE_API_KEYS_NAME    the keys of the upstream NAME (in upper case, - as _) alone
  ORDGATE_ADMIN_TOKEN      the token of the admin listener; or admin.token_file
  ORDGATE_LOG              what is logged: error, warn, info, debug or trace; or log.level
  ORDGATE_SHARED_URL       the URL of the engine that replicas share; or shared.url_file
  ORDGATE_SHARED_REPLICAS  the number of replicas; or shared.replicas
  OTEL_EXPORTER_OTLP_ENDPOINT and others of OpenTelemetry: where traces are exported to

Flags have variables, too: the help of each command names them. Flags take precedence over
variables, and variables over the configuration file. An empty variable counts as not set.

Exit codes: 0 success; 1 a running ordgate is not ready (health) or refuses (purge); 2 something
is wrong with the command line, the configuration or the environment, or has failed; 130 a SIGINT
has ended serve while it drained.";

/// The sandbox's control routes, for its help.
const CONTROL: &str = "\
Control routes (on the same port):
  GET    /sandbox/examples              paths that have content
  GET    /sandbox/counts                how many requests came, by route
  GET    /sandbox/journal               the last 100 requests: target and status
  POST   /sandbox/fault?kind=503        also kind=stall, close; times=N, chance=0.1, path=PREFIX
  DELETE /sandbox/fault                 clears the faults
  POST   /sandbox/advance?blocks=N      new blocks
  POST   /sandbox/reorg?depth=N         replaces the highest blocks";

#[derive(Subcommand)]
enum Command {
    /// Serve the API from the cache, and from the upstream where needed
    ///
    /// It needs the URL of an upstream (--upstream, ORDGATE_UPSTREAM or upstream.url), or
    /// --sandbox. When it is ready, it prints a line with the addresses that it listens
    /// at. SIGHUP reloads the configuration, SIGTERM drains and ends the process.
    Serve(ServeFlags),
    /// Run a simulated chain and its API, for tests, load tests and demonstrations
    ///
    /// It is a model of the upstream, for tests of clients and of gateways. Control routes on the
    /// same port change it while it runs; --help lists them. All their answers are JSON, and an
    /// unknown parameter gets 400 with the allowed ones.
    ///
    /// POST /sandbox/fault makes requests fail. kind is a status from 400 to 599, close (the
    /// connection), or stall (delay=MS). times=N is how many requests fail (1), path=PREFIX which
    /// ones, chance=0.1 what share of them (until the faults are cleared, unless times is set).
    #[command(after_help = CONTROL, after_long_help = CONTROL)]
    Sandbox(SandboxFlags),
    /// Check a configuration, and print the values that take effect
    ///
    /// Takes the flags of serve. Prints what is wrong, or else the effective configuration
    /// as a proxy.toml, defaults included and without secrets. The exit code is 0 if it is
    /// valid, else 2.
    Check(ServeFlags),
    /// Print a JSON Schema of proxy.toml, for editors
    ///
    /// The schema (draft 2020-12) has the type, bounds, default and documentation of
    /// every key. Write it to a file, and begin proxy.toml with
    /// `#:schema ./proxy.schema.json`: editors that use taplo then complete and check
    /// the file.
    Schema,
    /// Remove stored answers from a running ordgate, at once
    ///
    /// When this has succeeded, no request that begins afterwards gets what was
    /// stored, or fetched from the upstream, before.
    Purge(PurgeFlags),
    /// Check whether a running ordgate is ready: exit code 0 if it is, else 1
    ///
    /// Prints why it is not. It takes at most 5 s, and needs no token.
    Health(AdminFlags),
    /// Make tokens for clients
    #[command(subcommand)]
    Token(TokenCommand),
    /// Print the OpenAPI 3.1 document of the public side
    Openapi {
        /// The configuration file with the routes to describe
        ///
        /// Default: the built-in configuration.
        #[arg(long, value_name = "FILE", env = "ORDGATE_CONFIG")]
        config: Option<PathBuf>,
    },
    /// Write the man pages into a directory
    ///
    /// One page for each command, and proxy.toml(5) with all keys of the configuration.
    /// The directory is created if it does not exist. `man DIR/ordgate.1` shows a page.
    Man {
        /// The directory, such as ./man
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the completions of a shell
    ///
    /// For bash, write them to /etc/bash_completion.d/ordgate or to
    /// ~/.local/share/bash-completion/completions/ordgate; for zsh, to the file _ordgate
    /// in a directory of $fpath; for fish, to ~/.config/fish/completions/ordgate.fish.
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Print a new token, and the line for the token file
    ///
    /// The first line is the token, which is shown only here. Add the second one, which is
    /// TOML, to the file that clients.token_file names. Beside sha256, a name may have
    /// requests_per_minute, burst, origins and expires. The token is valid after the next
    /// reload.
    New {
        /// The name of the client in /status, metrics and the access log
        ///
        /// A name may have several tokens, so that one can be replaced: list the new one's
        /// SHA-256 beside the old one's.
        #[arg(value_name = "NAME", value_parser = |name: &str| TokenName::try_from(name.to_owned()))]
        name: TokenName,
    },
}

/// The command line as clap parses it. A variable that is empty counts as not set, and the help
/// shows no values of variables.
fn command() -> clap::Command {
    let is_blank = |name: &OsStr| {
        env::var_os(name).is_some_and(|value| value.as_encoded_bytes().trim_ascii().is_empty())
    };
    let model_of_sandbox =
        |serve: clap::Command| serve.mut_group("ModelFlags", |flags| flags.requires("sandbox"));
    Cli::command()
        .mut_subcommands(|inner| {
            inner.mut_args(|arg| match arg.get_env().is_some_and(is_blank) {
                true => arg.env(Resettable::Reset),
                false => arg.hide_env_values(true),
            })
        })
        .mut_subcommand("serve", model_of_sandbox)
        .mut_subcommand("check", model_of_sandbox)
}

/// Runs the command of the command line.
pub(crate) fn run() -> ExitCode {
    let matches = command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Command::Serve(flags) => serve::serve(flags),
        Command::Sandbox(flags) => sandbox::sandbox(flags),
        Command::Check(flags) => check::check(&flags),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Purge(flags) => admin::purge(flags),
        Command::Health(flags) => Ok(admin::health(&flags)),
        Command::Token(TokenCommand::New { name }) => print_token(&name),
        Command::Openapi { config } => print_openapi(config),
        Command::Man { directory } => man::write(command(), &directory),
        Command::Completions { shell } => print_completions(shell),
    };
    let code = done.unwrap_or_else(|error| {
        complain(&format!("{error:#}"));
        ExitCode::from(2)
    });
    log_writer::flush();
    code
}

/// Prints a new token, and the line for the token file.
fn print_token(name: &TokenName) -> Result<ExitCode> {
    let token = new_token().context("the system has no randomness")?;
    print(&format!("{token}\n{}\n", line(name, &token)))
}

fn print_openapi(path: Option<PathBuf>) -> Result<ExitCode> {
    let (config, _) = environment::load(path.as_deref(), String::new())?;
    let document = openapi::document(&config.routes, config.file.clients.require_token);
    print(&format!("{document:#}\n"))
}

/// Prints the completions of a shell.
fn print_completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "ordgate", &mut text);
    print(&String::from_utf8(text)?)
}

/// Writes to standard output, whole, at once. A reader that has closed the pipe, as `head`
/// does, has read what it wanted.
fn print(text: &str) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}

/// Writes an error to standard error.
fn complain(message: &str) {
    // There is no other channel; if this one is gone or blocked, the exit code remains.
    let line = format!("ordgate: {message}\n");
    let _ = Destination::StandardError
        .writer()
        .write_all(line.as_bytes());
}
