//! Flags, and one call for each command.

use std::env::VarError;
use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use http::Uri;
use ordgate::admin::Token;
use ordgate::admin::client::{self, Wanted};
use ordgate::clock::Clock;
use ordgate::config::{self, Config, UrlOverrides, base_url};
use ordgate::sandbox::{self, Api, Sandbox};
use ordgate::secrets::{self, Secret};
use ordgate::serve::{LoadedConfig, Options, Server, StartError, bind};
use ordgate::supervisor::{self, Supervisor};
use ordgate::upstream::client::resolver::Names;
use ordgate::upstream::keys::ApiKey;
use ordgate::upstream::{self, ProviderKeys, SetupError, Upstreams};
use ordgate::{openapi, telemetry, units};
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A caching gateway for the Ordinals and Runes read API.
///
/// The provider's keys come from the environment variable ORDGATE_API_KEYS,
/// separated by commas, or from the file that upstream.api_keys_file names. A
/// named upstream has keys of its own where ORDGATE_API_KEYS_NAME is set (its
/// name in upper case, - as _), or its api_keys_file.
#[derive(Parser)]
#[command(name = "ordgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the API from memory, and from an upstream where need be.
    Serve(Serve),
    /// Run a model of a chain and of the API, to try things on.
    Sandbox(SandboxFlags),
    /// Check a configuration and print all of its effect.
    Check(Serve),
    /// Have a running ordgate forget answers, at once.
    ///
    /// When this ends well, no request that begins afterwards gets what was
    /// stored, or asked of the upstream, before.
    Purge(PurgeFlags),
    /// Print the OpenAPI 3.1 document of the public side.
    Openapi {
        /// The configuration file whose routes it describes; without the flag,
        /// that of ORDGATE_CONFIG, else the one that is built in.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Args, Clone)]
struct Serve {
    /// The configuration file; without the flag, that of ORDGATE_CONFIG, else
    /// the one that is built in. Flags and variables override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients come, such as 127.0.0.1:8080; port 0 takes a free one.
    /// Without the flag, ORDGATE_LISTEN says it.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the operator comes: /healthz, /readyz, /metrics, /status,
    /// /explain, /purge, /reload. Off loopback it demands the token of
    /// ORDGATE_ADMIN_TOKEN. Without the flag, ORDGATE_ADMIN says it.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The base URL of the API to ask, such as https://api.example; or, as
    /// NAME=URL, that of a named upstream, such as runes=http://127.0.0.1:3001.
    /// Give the flag again for another upstream, or for another base URL of the
    /// same one, the preferred one first. Without the flag, ORDGATE_UPSTREAM has
    /// the same, separated by commas.
    #[arg(long, value_name = "[NAME=]URL", conflicts_with = "sandbox")]
    upstream: Vec<String>,
    /// Ask a sandbox inside this process: no key, no network.
    #[arg(long)]
    sandbox: bool,
}

#[derive(Args)]
struct PurgeFlags {
    #[command(flatten)]
    wanted: WantedFlags,
    /// Where the running ordgate's operator comes; without the flag, what
    /// ORDGATE_ADMIN or else the configuration says. Its token comes from
    /// ORDGATE_ADMIN_TOKEN, or from the configuration's admin.token_file.
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The running ordgate's configuration file; without the flag, that of
    /// ORDGATE_CONFIG, else the one that is built in.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct WantedFlags {
    /// A public path with its query, or a URL with one. Of a list, all of its
    /// pages go, whatever the query; of a transaction, also the block's pages
    /// that have it; a block goes by its height and by its hash.
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    /// All that a route has stored.
    #[arg(long, value_name = "NAME")]
    route: Vec<String>,
    /// All that names something: block:HASH, height:N, height:N+ (N and above),
    /// tx:TXID or ticker:TICKER.
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Everything.
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
struct SandboxFlags {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3999")]
    listen: SocketAddr,
    /// Serve the two APIs on two ports, as the open-source indexer does: the
    /// ordinals API on --listen, the runes API on --runes-listen. Both have one
    /// chain; --rpm, the counts and the faults are of each alone.
    #[arg(long)]
    split: bool,
    /// Where the runes API listens; without it, on the port after that of
    /// --listen, or on a free one where that is 0.
    #[arg(long, value_name = "ADDR", requires = "split")]
    runes_listen: Option<SocketAddr>,
    /// What the chain is made from: one seed, one chain.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Refuse requests without this key in x-api-key (several: with commas).
    #[arg(long, value_name = "K")]
    require_key: Option<String>,
    /// Requests a minute that each key, or all who have none, may send; more
    /// gets 429.
    #[arg(long, value_name = "N")]
    rpm: Option<NonZeroU32>,
    /// How long each answer takes, such as 200ms.
    #[arg(long, value_name = "D", value_parser = time)]
    latency: Option<Duration>,
    /// The share of requests that fail with 500, from 0 to 1.
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.0)]
    error_rate: f64,
    /// How often a block arrives, such as 10s; without it, only when POST
    /// /sandbox/advance says so.
    #[arg(long, value_name = "D", value_parser = time)]
    block_every: Option<Duration>,
    /// Every so many blocks, one comes as a reorg.
    #[arg(long, value_name = "N", requires = "block_every")]
    reorg_every: Option<NonZeroU32>,
    /// How many transactions, of some five items each, the largest blocks hold:
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

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(flags) => serve(flags),
        Command::Sandbox(flags) => sandbox(flags),
        Command::Check(flags) => check(&flags),
        Command::Purge(flags) => purge(flags),
        Command::Openapi { config } => print_openapi(config.as_deref()),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // The only channel left; if it is gone too, the code still tells.
            let _ = writeln!(std::io::stderr(), "ordgate: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Reads what `serve` serves by: the file, and the flags that override it.
fn effective(flags: &Serve) -> Result<(Config, String)> {
    let urls = upstream_urls(&flags.upstream, flags.sandbox)?;
    let (mut config, config_name) = load(flags.config.as_deref(), &urls)?;
    if let Some(listen) = address(flags.listen, "ORDGATE_LISTEN")? {
        config.server.listen = listen;
    }
    if let Some(admin) = address(flags.admin, "ORDGATE_ADMIN")? {
        config.admin.listen = admin;
    }
    let (public, private) = (config.server.listen, config.admin.listen);
    if public == private && public.port() != 0 {
        bail!("--listen and --admin are both {public}; each needs a port of its own");
    }
    for (name, _) in &urls {
        let is_asked = |known: &upstream::Settings| known.name == *name;
        if **name != *upstream::DEFAULT && !config.upstreams.iter().any(is_asked) {
            let tips = config.chain.tips.iter().filter(|tip| tip.path.is_some());
            let tips: Vec<_> = tips.map(|tip| &*tip.name).collect();
            bail!(
                "--upstream {name}=...: no route asks an upstream of that name; allowed are names that a route or a tip has as upstream = \"NAME\", and the names of the tips: {}",
                tips.join(", ")
            );
        }
    }
    Ok((config, config_name))
}

/// A variable of the environment that stands in for a flag. One that is empty is
/// as if it were not set.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.trim().is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    }
}

/// The address of a flag, or else of a variable of the environment.
fn address(flag: Option<SocketAddr>, name: &str) -> Result<Option<SocketAddr>> {
    let Some(text) = variable(name)?.filter(|_| flag.is_none()) else {
        return Ok(flag);
    };
    let Ok(address) = text.trim().parse() else {
        bail!(
            "{name} is {text:?}; allowed is an address and a port, such as 127.0.0.1:8080, or nothing"
        );
    };
    Ok(Some(address))
}

/// The base URLs of --upstream, or else of ORDGATE_UPSTREAM, by the names of the
/// upstreams.
fn upstream_urls(flags: &[String], sandbox: bool) -> Result<Vec<(Box<str>, Vec<Uri>)>> {
    let (source, texts) = match flags.is_empty() && !sandbox {
        false => ("--upstream", flags.to_vec()),
        true => {
            let variable = variable("ORDGATE_UPSTREAM")?.unwrap_or_default();
            let texts = variable.split(',').map(str::trim).map(str::to_owned);
            let texts = texts.filter(|text| !text.is_empty()).collect();
            ("ORDGATE_UPSTREAM", texts)
        }
    };
    let mut named: Vec<(Box<str>, Vec<Uri>)> = Vec::new();
    for text in &texts {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if config::is_upstream_name(name) => (name, url),
            Some(_) | None => (upstream::DEFAULT, &**text),
        };
        let Some(url) = base_url(url) else {
            bail!(
                "{source}: {text:?} came; allowed is an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as https://api.example, or NAME= and such a URL, NAME of a-z, 0-9 and -"
            );
        };
        let urls = match named.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, urls)) => urls,
            None => {
                named.push((name.into(), Vec::new()));
                match named.last_mut() {
                    Some((_, urls)) => urls,
                    None => continue,
                }
            }
        };
        if urls.contains(&url) {
            bail!("{source}: {url} came twice; each once is allowed");
        }
        urls.push(url);
    }
    Ok(named)
}

/// Adds the secrets to a configuration, and fits it to this machine.
fn equip(mut config: Config) -> Result<LoadedConfig> {
    fit_connections(&mut config);
    for warning in unused_key_variables(&config) {
        tracing::warn!("{warning}");
    }
    Ok(LoadedConfig {
        keys: provider_keys(&config)?,
        admin_token: admin_token(config.admin.token_file.as_deref())?,
        config,
    })
}

/// Reads all of it again; or says all that is wrong with it, a line each.
fn reread(flags: &Serve) -> Result<LoadedConfig, Vec<String>> {
    let fresh = effective(flags).and_then(|(config, _)| equip(config));
    fresh.map_err(|error| match error.downcast_ref::<Invalid>() {
        Some(Invalid(problems)) => problems.clone(),
        None => vec![format!("{error:#}")],
    })
}

/// All that is wrong with a configuration.
#[derive(Debug)]
struct Invalid(Vec<String>);

impl std::error::Error for Invalid {}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the configuration is not valid\n{}", self.0.join("\n"))
    }
}

fn serve(flags: Serve) -> Result<ExitCode> {
    // Before there are threads.
    let handed = supervisor::inherited_sockets()?;
    let (config, config_name) = effective(&flags)?;
    telemetry::begin(&config.log)?;
    let sandbox = flags.sandbox.then(|| {
        let settings = sandbox::Settings {
            block_every: Some(Duration::from_secs(30)),
            ..sandbox::Settings::default()
        };
        Sandbox::new(settings)
    });
    let examples = sandbox.as_ref().map(Sandbox::examples);
    let supervisor = Supervisor::from_env();
    let server = Server::start(Options {
        loaded: equip(config)?,
        config_name,
        load: Box::new(move || reread(&flags)),
        sandbox,
        names: Names::default(),
        clock: Clock::machine(),
        sockets: handed,
        supervisor: supervisor.clone(),
    })?;
    let public = server.public();
    let admin = server.admin();
    let mut ready = format!("ordgate is ready on http://{public} (admin on http://{admin})\n");
    if let Some(examples) = examples {
        ready.push_str("A sandbox is its upstream. Try:\n");
        for path in [examples.token(), examples.transaction(), examples.block()] {
            ready.push_str(&format!("  curl -i 'http://{public}{path}'\n"));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (drained, finished) = tokio::sync::oneshot::channel();
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        // Who reads this may send a signal at once.
        say(&ready)?;
        supervisor.ready(&format!("serving on {public}, admin on {admin}"));
        tokio::spawn(supervisor.clone().run_watchdog(server.runtimes()));
        let interrupted = loop {
            tokio::select! {
                _ = terminate.recv() => break false,
                _ = interrupt.recv() => break true,
                _ = hang_up.recv() => {
                    tracing::info!("SIGHUP: the configuration is read again");
                    let reloads = server.reloads().clone();
                    // What comes of it is logged. Signals are heard meanwhile.
                    tokio::task::spawn_blocking(move || reloads.run());
                }
            }
        };
        tracing::info!("draining: no more connections are accepted, what is under way finishes");
        supervisor.stopping();
        server.drain();
        std::thread::spawn(move || {
            server.wait();
            // Nobody listens any more where a second signal came first.
            let _ = drained.send(());
        });
        tokio::select! {
            _ = finished => Ok(ExitCode::SUCCESS),
            // A second SIGINT means now; after SIGTERM the first one does.
            _ = interrupt.recv() => {
                tracing::warn!(again = interrupted, "stopped at once");
                Ok(ExitCode::from(130))
            }
        }
    })
}

fn sandbox(flags: SandboxFlags) -> Result<ExitCode> {
    let settings = sandbox::Settings {
        seed: flags.seed,
        require_key: flags.require_key,
        requests_per_minute: flags.rpm,
        latency: flags.latency.unwrap_or_default(),
        error_rate: flags.error_rate,
        block_every: flags.block_every,
        reorg_every: flags.reorg_every,
        largest_block: flags.largest_block,
        ..sandbox::Settings::default()
    };
    raise_descriptors();
    let sandbox = Sandbox::new(settings);
    let runes = match flags.split {
        true => Some(runes_listen(flags.runes_listen, flags.listen)?),
        false => None,
    };
    let (socket, address) = bind(flags.listen)?;
    let runes = runes.map(bind).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(socket)?;
        let runes = match runes {
            Some((socket, address)) => Some((tokio::net::TcpListener::from_std(socket)?, address)),
            None => None,
        };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let examples = sandbox.examples();
        let of_runes = runes.as_ref().map_or(address, |(_, address)| *address);
        let addresses = match runes {
            None => format!("http://{address}"),
            Some(_) => format!("http://{address} (ordinals) and http://{of_runes} (runes)"),
        };
        let mut ready =
            format!("ordgate sandbox is ready on {addresses}; more at /sandbox/examples. Try:\n");
        for (address, path) in [
            (address, examples.token()),
            (of_runes, examples.transaction()),
            (of_runes, examples.block()),
        ] {
            ready.push_str(&format!("  curl -i 'http://{address}{path}'\n"));
        }
        if runes.is_some() {
            ready.push_str(&format!(
                "A gateway before both:\n  ordgate serve --upstream ordinals=http://{address} --upstream runes=http://{of_runes}\n"
            ));
        }
        say(&ready)?;
        match runes {
            None => sandbox.serve(Api::Both, listener, stop).await,
            Some((runes, _)) => {
                let other = sandbox.clone();
                tokio::select! {
                    () = sandbox.serve(Api::Ordinals, listener, stop) => {}
                    () = other.serve(Api::Runes, runes, std::future::pending()) => {}
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Where the runes API of a split sandbox listens.
fn runes_listen(given: Option<SocketAddr>, ordinals: SocketAddr) -> Result<SocketAddr> {
    if let Some(given) = given {
        return Ok(given);
    }
    let port = match ordinals.port() {
        0 => 0,
        port => port
            .checked_add(1)
            .context("there is no port after that of --listen; say --runes-listen")?,
    };
    Ok(SocketAddr::new(ordinals.ip(), port))
}

fn check(flags: &Serve) -> Result<ExitCode> {
    let (config, name) = effective(flags)?;
    let keys = provider_keys(&config)?;
    let token = admin_token(config.admin.token_file.as_deref())?;
    if let Some(why) = StartError::open_admin(config.admin.listen, token.as_ref()) {
        bail!(why);
    }
    let mut served = config.clone();
    if flags.sandbox {
        // Its port is known only when it is there.
        served.ask_all_at(Some(&Uri::from_static("http://127.0.0.1:1")));
    }
    let mut warnings = served.warnings(&keys);
    warnings.extend(unused_key_variables(&config));
    match Upstreams::new(
        &served.upstreams,
        &keys,
        &Names::default(),
        &Clock::machine(),
        None,
    ) {
        // The URL may be given when it is served.
        Err(error @ (SetupError::NoUpstream | SetupError::NoDefaultUrl | SetupError::NoUrl(_))) => {
            warnings.push(error.to_string());
        }
        checked => drop(checked?),
    }
    let warnings: String = warnings
        .iter()
        .map(|warning| format!("# warning: {warning}\n"))
        .collect();
    let count = |keys: &[ApiKey]| match keys.len() {
        0 => "none".to_owned(),
        n => format!("{n} [redacted]"),
    };
    let own = keys.own.iter();
    let own: String = own
        .map(|(name, keys)| format!("# API keys of the upstream {name}: {}\n", count(keys)))
        .collect();
    let token = if token.is_some() {
        "[redacted]"
    } else {
        "none"
    };
    say(&format!(
        "# {name} is valid. Its effect, defaults included:\n# API keys: {}\n{own}# admin token: {token}\n{warnings}\n{}",
        count(&keys.shared),
        config.print(&keys)?
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn purge(flags: PurgeFlags) -> Result<ExitCode> {
    let (config, _) = load(flags.config.as_deref(), &upstream_urls(&[], false)?)?;
    let token = admin_secret(config.admin.token_file.as_deref())?;
    let admin = address(flags.admin, "ORDGATE_ADMIN")?.unwrap_or(config.admin.listen);
    let WantedFlags {
        url,
        route,
        tag,
        all,
    } = flags.wanted;
    // One of them is there, and no other.
    let wanted = match (url.is_empty(), route.is_empty(), all) {
        (false, ..) => Wanted::Urls(url),
        (_, false, _) => Wanted::Routes(route),
        (_, _, true) => Wanted::All,
        (_, _, false) => Wanted::Tags(tag),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match runtime.block_on(client::purge(
        admin,
        token.as_ref().map(|token| token.as_str()),
        &wanted,
    )) {
        Ok(purged) => {
            say(&format!("{purged:#}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            // The only channel left; if it is gone too, the code still tells.
            let _ = writeln!(std::io::stderr(), "ordgate: {error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn print_openapi(path: Option<&Path>) -> Result<ExitCode> {
    let (config, _) = load(path, &upstream_urls(&[], false)?)?;
    say(&format!("{:#}\n", openapi::document(&config.routes)))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a configuration, that of ORDGATE_CONFIG, or the one that is built in.
/// The base URLs given replace those that it has.
fn load(path: Option<&Path>, urls: &UrlOverrides) -> Result<(Config, String)> {
    let variable = std::env::var_os("ORDGATE_CONFIG").filter(|path| !path.is_empty());
    let (name, text) = match path.or(variable.as_deref().map(Path::new)) {
        None => (config::SHIPPED_NAME.to_owned(), config::SHIPPED.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
            (name, text)
        }
    };
    let parsed = Config::parse_with(&name, &text, urls);
    let config = parsed.map_err(|problems| {
        let lines = problems.iter().map(ToString::to_string);
        Invalid(lines.collect())
    })?;
    Ok((config, name))
}

/// The keys of all upstreams. What an upstream has of its own goes before what
/// is shared, and a variable of the environment before a file.
fn provider_keys(config: &Config) -> Result<ProviderKeys> {
    let mut keys = ProviderKeys::default();
    let mut shared_file = None;
    for settings in &config.upstreams {
        let name = &settings.name;
        let file = settings.api_keys_file.as_deref();
        if **name == *upstream::DEFAULT || !settings.has_own_keys_file {
            shared_file = shared_file.or(file);
        }
        if **name != *upstream::DEFAULT {
            let variable = key_variable(name);
            let file = file.filter(|_| settings.has_own_keys_file);
            let key = settings.key("api_keys_file");
            if let Some(own) = api_keys(&variable, &key, file)? {
                keys.own.insert(name.clone(), own);
            }
        }
    }
    let shared = api_keys("ORDGATE_API_KEYS", "upstream.api_keys_file", shared_file)?;
    keys.shared = shared.unwrap_or_default();
    Ok(keys)
}

/// What is wrong with variables of keys that no upstream has.
fn unused_key_variables(config: &Config) -> Vec<String> {
    let is_used = |variable: &String| {
        let names = config.upstreams.iter().map(|settings| &settings.name);
        let mut named = names.filter(|name| ***name != *upstream::DEFAULT);
        named.any(|name| key_variable(name) == *variable)
    };
    let mut unused = secrets::variables_with_prefix(&key_variable(""));
    unused.retain(|variable| !is_used(variable));
    let warning = |variable: String| {
        format!("{variable} has no effect: no route asks an upstream of that name")
    };
    unused.into_iter().map(warning).collect()
}

/// The variable that has an upstream's own keys.
fn key_variable(upstream: &str) -> String {
    let name = upstream.to_uppercase().replace('-', "_");
    format!("ORDGATE_API_KEYS_{name}")
}

/// The keys of a variable of the environment, or else of a file.
fn api_keys(variable: &str, key: &str, file: Option<&Path>) -> Result<Option<Vec<ApiKey>>> {
    let from_environment = secrets::variable(variable)?.filter(|text| !text.trim().is_empty());
    match (from_environment, file) {
        (Some(text), _) => Ok(Some(
            ApiKey::list(&text).with_context(|| variable.to_owned())?,
        )),
        (None, Some(path)) => {
            let text = secrets::file(key, path)?;
            let name = path.display();
            let keys = ApiKey::list(&text).with_context(|| format!("{key} {name}"))?;
            Ok(Some(keys))
        }
        (None, None) => Ok(None),
    }
}

fn admin_token(file: Option<&Path>) -> Result<Option<Token>> {
    let text = admin_secret(file)?;
    Ok(text.map(|text| Token::new(&text)))
}

/// The admin token's text: from the environment, or from a file.
fn admin_secret(file: Option<&Path>) -> Result<Option<Secret>> {
    let text = match (secrets::variable("ORDGATE_ADMIN_TOKEN")?, file) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => Some(secrets::file("admin.token_file", path)?),
        (None, None) => None,
    };
    match text {
        Some(text) if text.trim().is_empty() => {
            bail!("the admin token is empty; leave it out, or give one")
        }
        text => Ok(text),
    }
}

/// Takes as many file descriptors as the system allows, and accepts no more
/// connections than there are descriptors for.
fn fit_connections(config: &mut Config) {
    /// For the upstream, the listeners, files and the allocator's whims.
    const SPARE: u64 = 256;
    let Some(allowed) = raise_descriptors() else {
        return;
    };
    let upstreams = config.upstreams.iter();
    let slots: u64 = upstreams
        .map(|one| u64::from(one.max_in_flight.get()))
        .sum();
    let most = &mut config.server.connections.max_connections;
    let fit = allowed.saturating_sub(SPARE + slots).max(1);
    if *most > fit {
        tracing::warn!(
            max_connections = *most,
            open_files = allowed,
            "fewer connections are accepted, {fit}: raise the limit of open files (ulimit -n) for more"
        );
        *most = fit;
    }
    // One client must not hold them all for that reason.
    if let Some(client) = &mut config.server.connections.per_client {
        let share = u32::try_from(fit / 4).unwrap_or(u32::MAX).max(1);
        if client.connections > share {
            tracing::warn!(
                connections = client.connections,
                open_files = allowed,
                "one client may have fewer connections, {share}: a quarter of what open files allow"
            );
            client.connections = share;
        }
    }
}

/// Raises the soft limit of open files to the hard one; `None` is no limit.
fn raise_descriptors() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_kept_as_it_is) => limit.current,
    }
}

/// Writes to standard output, whole, at once.
fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
