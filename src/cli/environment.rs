//! The configuration and the secrets of a command: from files, environment
//! variables and flags.

use std::env::VarError;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use http::Uri;
use ordgate::admin::Token;
use ordgate::client_tokens::TokenFile;
use ordgate::config::{self, Config, Overrides, base_url};
use ordgate::listener::{ListenAddress, address_hint};
use ordgate::regular_file;
use ordgate::secrets::{self, Secret};
use ordgate::serve::LoadedConfig;
use ordgate::shared::EngineUrl;
use ordgate::telemetry::otlp::{self, CollectorSettings};
use ordgate::upstream::keys::ApiKey;
use ordgate::upstream::{self, ProviderKeys};

use super::descriptors::fit_connections;
use super::{ServeFlags, variables};

/// The configuration for `serve`: the file, and the flags that take precedence. Sockets that
/// were passed may be open to other machines, or not.
pub(super) fn effective(flags: &ServeFlags, passed: PassedSockets) -> Result<(Config, String)> {
    let overrides = Overrides {
        listen: listen_addresses(&flags.listen)?,
        admin: address(flags.admin, "ORDGATE_ADMIN")?,
        urls: upstream_urls(&flags.upstream, flags.sandbox)?,
        ..Overrides::default()
    };
    let (mut config, config_name) = load(flags.config.as_deref(), &overrides)?;
    set_state_path(&mut config, flags.state.as_deref())?;
    config.collector = collector()?;
    read_engine_url(&mut config)?;
    check_sandbox(&config, flags.sandbox_listen)?;
    if flags.sandbox && passed == PassedSockets::Loopback {
        config.lift_limits();
    }
    for (name, _) in &overrides.urls {
        let is_asked = |known: &upstream::Settings| known.name == *name;
        if **name != *upstream::DEFAULT && !config.upstreams.iter().any(is_asked) {
            let tips = config.chain.tips.iter().filter(|tip| tip.path.is_some());
            let tips: Vec<_> = tips.map(|tip| &*tip.name).collect();
            bail!(
                "--upstream {name}=...: no route uses an upstream of that name; allowed are names that a route or a tip has as upstream = \"NAME\", and the names of the tips: {}",
                tips.join(", ")
            );
        }
    }
    Ok((config, config_name))
}

/// Who can reach the sockets that the supervisor has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PassedSockets {
    /// This machine alone; also if none were passed.
    Loopback,
    /// Maybe others.
    Others,
}

/// An environment variable that replaces a flag. An empty one counts as not set.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.trim().is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    }
}

/// The address of a flag, or else of an environment variable.
pub(super) fn address(flag: Option<SocketAddr>, name: &str) -> Result<Option<SocketAddr>> {
    let Some(text) = variable(name)?.filter(|_| flag.is_none()) else {
        return Ok(flag);
    };
    match socket_address(text.trim()) {
        Ok(address) => Ok(Some(address)),
        Err(why) => bail!("{name} is {text:?}; {why}"),
    }
}

/// Reads an address and a port of a flag.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_not_one| {
        let allowed = "allowed is an address and a port, such as 127.0.0.1:8080".to_owned();
        with_hint(allowed, text)
    })
}

/// What is allowed, with what to write in place of a text.
fn with_hint(allowed: String, text: &str) -> String {
    match address_hint(text) {
        Some(hint) => format!("{allowed}: {hint}"),
        None => allowed,
    }
}

/// The addresses of --listen, or else of ORDGATE_LISTEN.
fn listen_addresses(flags: &[ListenAddress]) -> Result<Vec<ListenAddress>> {
    if !flags.is_empty() {
        return Ok(flags.to_vec());
    }
    let text = variable("ORDGATE_LISTEN")?.unwrap_or_default();
    let each = text
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let read = |text: &str| match text.parse() {
        Ok(address) => Ok(address),
        Err(why) => bail!("ORDGATE_LISTEN, as one of several separated by commas: {why}"),
    };
    each.map(read).collect()
}

/// Sets the state directory: that of --state, or else of ORDGATE_STATE, or else of the
/// file, or else the one that systemd has made.
fn set_state_path(config: &mut Config, flag: Option<&Path>) -> Result<()> {
    let path = &mut config.file.state.path;
    let replacement = match flag {
        Some(flag) => Some(flag.to_owned()),
        None => variable("ORDGATE_STATE")?.map(PathBuf::from),
    };
    if replacement.is_some() {
        *path = replacement;
    } else if path.is_none()
        && let Some(directories) = variable("STATE_DIRECTORY")?
    {
        // StateDirectory= may name several, which systemd separates by colons.
        let mut each = directories.split(':').filter(|one| !one.is_empty());
        *path = each.next().map(Into::into);
    }
    Ok(())
}

/// The collector of traces that the environment names, if it does.
fn collector() -> Result<Option<CollectorSettings>> {
    let variable = |name: &str| {
        let value = std::env::var_os(name)?;
        Some(value.to_string_lossy().into_owned())
    };
    let collector = CollectorSettings::read(variable)?;
    if let Some(settings) = &collector {
        otlp::check(settings)?;
    }
    Ok(collector)
}

/// The variable with the URL of the engine.
const SHARED_URL: &str = "ORDGATE_SHARED_URL";

/// Adds what environment variables say of what replicas share.
fn add_shared(overrides: &mut Overrides) -> Result<()> {
    if let Some(text) = variable("ORDGATE_SHARED_REPLICAS")? {
        let count = text.trim().parse().ok();
        let Some(count) = count.filter(|count: &NonZeroU32| count.get() <= 10_000) else {
            bail!(
                "ORDGATE_SHARED_REPLICAS is {text:?}; allowed is a number from 1 to 10000, or nothing"
            );
        };
        overrides.replicas = Some(count);
    }
    let url = secrets::variable(SHARED_URL)?;
    if let Some(url) = url.filter(|url| !url.trim().is_empty()) {
        overrides.engine = Some(engine_url(&url, SHARED_URL)?);
    }
    Ok(())
}

/// Reads the URL of the engine. No error has a part of it.
fn engine_url(text: &str, source: &str) -> Result<EngineUrl> {
    EngineUrl::parse(text.trim()).map_err(|problem| anyhow!("{source}: {problem}"))
}

/// Reads the URL of the engine from `shared.url_file`, unless the environment has it.
fn read_engine_url(config: &mut Config) -> Result<()> {
    const KEY: &str = "shared.url_file";
    let Some(shared) = &mut config.file.shared else {
        return Ok(());
    };
    if let (None, Some(path)) = (&shared.engine, &shared.url_file) {
        let source = format!("{KEY} {}", path.display());
        shared.engine = Some(engine_url(&secrets::file(KEY, path)?, &source)?);
    }
    Ok(())
}

/// Reads a path of --state.
pub(super) fn state_path(text: &str) -> Result<PathBuf, &'static str> {
    match text.is_empty() {
        true => Err("allowed is the path of a directory"),
        false => Ok(text.into()),
    }
}

/// Refuses an address of the sandbox that a listener has.
fn check_sandbox(config: &Config, sandbox: Option<SocketAddr>) -> Result<()> {
    let Some(sandbox) = sandbox.map(ListenAddress::Tcp) else {
        return Ok(());
    };
    let admin = ListenAddress::Tcp(config.file.admin.listen);
    let listeners = config.listeners.iter().map(|one| &one.address);
    if let Some(other) = listeners
        .chain([&admin])
        .find(|other| other.overlaps(&sandbox))
    {
        bail!(
            "--sandbox-listen is {sandbox}, and a listener is on {other}; each needs a port of its own"
        );
    }
    Ok(())
}

/// The base URLs of --upstream, or else of ORDGATE_UPSTREAM, by the names of the
/// upstreams.
pub(super) fn upstream_urls(flags: &[String], sandbox: bool) -> Result<Vec<(Box<str>, Vec<Uri>)>> {
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
    for (at, text) in texts.iter().enumerate() {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if config::is_upstream_name(name) => (name, url),
            Some(_) | None => (upstream::DEFAULT, &**text),
        };
        let Some(url) = base_url(url) else {
            // A password may have commas, so that the next texts are parts of it.
            let rest = texts[at..].join(",");
            let shown = match rest.contains('@') {
                true => &config::without_user(&rest),
                false => text,
            };
            let why = config::wrong_host(url).map_or_else(String::new, |why| format!(": {why}"));
            bail!(
                "{source}: {shown:?} came; allowed is an http or https URL without user, query and fragment, with a port from 1 to 65535 if any, such as https://api.example, or NAME= and such a URL, NAME of a-z, 0-9 and -{why}"
            );
        };
        let known = named.iter().position(|(known, _)| **known == *name);
        let at = known.unwrap_or_else(|| {
            named.push((name.into(), Vec::new()));
            named.len() - 1
        });
        let urls = &mut named[at].1;
        if urls.contains(&url) {
            bail!("{source}: {url} came twice; each once is allowed");
        }
        urls.push(url);
    }
    Ok(named)
}

/// Adds the secrets to a configuration, and fits it to the limits of this machine. Also
/// returns warnings about the environment.
pub(super) fn equip(mut config: Config) -> Result<(LoadedConfig, Vec<String>)> {
    let mut warnings = fit_connections(&mut config);
    read_client_tokens(&mut config)?;
    warnings.extend(unused_key_variables(&config));
    warnings.extend(variables::unknown());
    let loaded = LoadedConfig {
        keys: provider_keys(&config)?,
        admin_token: admin_token(&config)?,
        config,
    };
    Ok((loaded, warnings))
}

/// Logs warnings.
pub(super) fn warn(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Reads the token file, if there is one.
fn read_client_tokens(config: &mut Config) -> Result<()> {
    const KEY: &str = "clients.token_file";
    if let Some(path) = &config.tokens.file {
        let text = secrets::file(KEY, path)?;
        let tokens = TokenFile::parse(path.display(), &text);
        config.tokens.tokens = tokens.map_err(|problem| Invalid(vec![problem]))?.into();
    }
    Ok(())
}

/// Reads the configuration and the secrets again.
///
/// # Errors
/// Everything that is wrong with them, one line each.
pub(super) fn reread(
    flags: &ServeFlags,
    passed: PassedSockets,
) -> Result<LoadedConfig, Vec<String>> {
    let fresh = effective(flags, passed).and_then(|(config, _)| {
        let (loaded, warnings) = equip(config)?;
        warn(&warnings);
        Ok(loaded)
    });
    fresh.map_err(|error| match error.downcast_ref::<Invalid>() {
        Some(Invalid(problems)) => problems.clone(),
        None => vec![format!("{error:#}")],
    })
}

/// Everything that is wrong with a configuration.
#[derive(Debug)]
struct Invalid(Vec<String>);

impl std::error::Error for Invalid {}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the configuration is not valid\n{}", self.0.join("\n"))
    }
}

/// The configuration file that the environment names. A blank variable counts as not set.
/// The name need not be UTF-8: it is not printed into a configuration, as that of the state
/// directory is.
fn config_variable() -> Option<PathBuf> {
    let path = std::env::var_os("ORDGATE_CONFIG")?;
    let is_blank = path.as_encoded_bytes().trim_ascii().is_empty();
    (!is_blank).then(|| path.into())
}

/// The most bytes of a configuration file: some ten thousand routes.
const MAX_CONFIG: u64 = 4 << 20;

/// Reads a configuration: that of the path, or of ORDGATE_CONFIG, or the built-in
/// one. Values of flags, and of variables for replicas, take precedence.
pub(super) fn load(path: Option<&Path>, overrides: &Overrides) -> Result<(Config, String)> {
    let named = match path {
        Some(path) => Some(path.to_owned()),
        None => config_variable(),
    };
    let (name, text) = match named.as_deref() {
        None => (config::SHIPPED_NAME.to_owned(), config::SHIPPED.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let text = config_text(path).with_context(|| format!("cannot read {name}"))?;
            (name, text)
        }
    };
    let mut overrides = overrides.clone();
    add_shared(&mut overrides)?;
    let config = Config::parse_with(&name, &text, &overrides).map_err(Invalid)?;
    Ok((config, name))
}

/// The text of a configuration file. A pipe is refused, also at the start: a reload would
/// find it empty, and would take that for a configuration without any key.
fn config_text(path: &Path) -> Result<String> {
    let bytes = regular_file::read(path, MAX_CONFIG)?;
    String::from_utf8(bytes).map_err(|_where| anyhow!("it is not UTF-8; allowed is TOML"))
}

/// The API keys of all upstreams. Keys of an upstream's own take precedence over
/// shared ones, and an environment variable over a file.
fn provider_keys(config: &Config) -> Result<ProviderKeys> {
    let mut keys = ProviderKeys::default();
    let mut shared_file = None;
    for settings in &config.upstreams {
        let name = &settings.name;
        let file = settings.api_keys_file.as_deref();
        if **name == *upstream::DEFAULT || !settings.has_own_file {
            shared_file = shared_file.or(file);
        }
        if **name != *upstream::DEFAULT {
            let variable = key_variable(name);
            let file = file.filter(|_| settings.has_own_file);
            let key = settings.key("api_keys_file");
            if let Some(own) = api_keys(&variable, &key, file)? {
                keys.own.insert(name.clone(), own);
            }
        }
    }
    let key = "upstream.api_keys_file";
    let shared = api_keys("ORDGATE_API_KEYS", key, shared_file)?;
    keys.shared = shared.unwrap_or_default();
    Ok(keys)
}

/// Warnings about environment variables with keys for upstreams that there are not.
fn unused_key_variables(config: &Config) -> Vec<String> {
    let is_used = |variable: &String| {
        let names = config.upstreams.iter().map(|settings| &settings.name);
        let mut named = names.filter(|name| ***name != *upstream::DEFAULT);
        named.any(|name| key_variable(name) == *variable)
    };
    let mut unused = secrets::variables_with_prefix(&key_variable(""));
    unused.retain(|variable| !is_used(variable));
    let warning = |variable: String| {
        format!("{variable} has no effect: no route uses an upstream of that name")
    };
    unused.into_iter().map(warning).collect()
}

/// The environment variable with an upstream's own keys.
fn key_variable(upstream: &str) -> String {
    let name = upstream.to_uppercase().replace('-', "_");
    format!("ORDGATE_API_KEYS_{name}")
}

/// The keys of an environment variable, or else of a file.
fn api_keys(variable: &str, key: &str, file: Option<&Path>) -> Result<Option<Vec<ApiKey>>> {
    let from_environment = secrets::variable(variable)?.filter(|text| !text.trim().is_empty());
    match (from_environment, file) {
        (Some(text), _) => Ok(Some(
            ApiKey::list(&text).with_context(|| variable.to_owned())?,
        )),
        (None, Some(path)) => {
            let text = secrets::file(key, path)?;
            let source = format!("{key} {}", path.display());
            let keys = ApiKey::list(&text).with_context(|| source)?;
            Ok(Some(keys))
        }
        (None, None) => Ok(None),
    }
}

fn admin_token(config: &Config) -> Result<Option<Token>> {
    let text = admin_secret(config)?;
    Ok(text.map(|text| Token::new(&text)))
}

/// The admin token as text: from the environment, or from a file.
pub(super) fn admin_secret(config: &Config) -> Result<Option<Secret>> {
    const KEY: &str = "admin.token_file";
    let text = match (
        secrets::variable("ORDGATE_ADMIN_TOKEN")?,
        &config.file.admin.token_file,
    ) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => Some(secrets::file(KEY, path)?),
        (None, None) => None,
    };
    match text {
        Some(text) if text.trim().is_empty() => {
            bail!("the admin token is empty; leave it out, or give one")
        }
        text => Ok(text),
    }
}
