//! What a command starts from: the configuration file, flags, environment variables and the
//! secrets that they name.

use std::collections::BTreeMap;
use std::env;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, Error, Result, anyhow, bail};
use ordgate::admin::Token;
use ordgate::client_tokens::TokenFile;
use ordgate::config::{self, Config};
use ordgate::regular_file;
use ordgate::secrets::{self, Secret};
use ordgate::serve::LoadedConfig;
use ordgate::shared::EngineUrl;
use ordgate::telemetry;
use ordgate::upstream::keys::ApiKey;
use ordgate::upstream::{self, ProviderKeys, base_url};

use super::ServeFlags;
use super::descriptors::fit_connections;

/// The most bytes of a configuration file: some ten thousand routes.
const MAX_CONFIG: u64 = 4 << 20;

/// What `serve` starts from and reloads: the file, what takes precedence over it, and the
/// secrets, fitted to the limits of this machine; and the file's name. Unless it `binds_all`
/// sockets, those that a supervisor passes may be open to other machines; then a sandbox's
/// clients are limited.
pub(super) fn loaded(flags: &ServeFlags, binds_all: bool) -> Result<(LoadedConfig, String)> {
    let mut overrides = String::new();
    if !flags.listen.is_empty() {
        let listen = flags.listen.iter().map(ToString::to_string);
        set(&mut overrides, "server.listen", listen.collect::<Vec<_>>());
    }
    if let Some(admin) = flags.admin {
        set(&mut overrides, "admin.listen", admin.to_string());
    }
    if !flags.sandbox {
        for (name, urls) in upstream_urls(&flags.upstream)? {
            let key = match name {
                upstream::DEFAULT => "upstream.url".to_owned(),
                name => format!("upstreams.{name}.url"),
            };
            set(&mut overrides, &key, urls);
        }
    }
    let (mut config, name) = load(flags.config.as_deref(), overrides)?;
    let state = &mut config.file.state.path;
    *state = flags.state.clone().or(state.take()).or_else(|| {
        // StateDirectory= may name several, which systemd separates by colons.
        let directories = env::var("STATE_DIRECTORY").ok()?;
        let first = directories.split(':').find(|one| !one.trim().is_empty())?;
        Some(first.into())
    });
    config.names_collector = names_collector();
    if flags.sandbox {
        // Its address is known only once it runs.
        let url = base_url("http://127.0.0.1:1").map_err(Error::msg)?;
        config.use_sandbox(&(url, Box::default()));
        if binds_all {
            config.lift_limits();
        }
    }
    config.lowered = fit_connections(&mut config);
    if let Some(path) = &config.file.clients.token_file {
        let text = secrets::file("clients.token_file", path).map_err(Error::msg)?;
        let tokens = TokenFile::parse(path.display(), &text);
        config.tokens = Some(tokens.map_err(Error::msg)?.into());
    }
    let admin_token = admin_secret(config.file.admin.token_file.as_deref())?;
    let loaded = LoadedConfig {
        keys: provider_keys(&config)?,
        admin_token: admin_token.map(|text| Token::new(&text)),
        config,
    };
    Ok((loaded, name))
}

/// Adds the line of a key.
fn set(lines: &mut String, key: &str, value: impl Into<toml::Value>) {
    lines.push_str(&format!("{key} = {}\n", value.into()));
}

/// Whether the environment names a collector of traces, by OpenTelemetry's variables.
fn names_collector() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_disabled = env::var("OTEL_SDK_DISABLED");
    let is_disabled = is_disabled.is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    !is_disabled
        && (is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|text| !text.trim().is_empty())
}

/// Reads the file of a path, or the built-in configuration; the lines of `overrides` take
/// precedence. Also returns its name.
pub(super) fn load(path: Option<&Path>, mut overrides: String) -> Result<(Config, String)> {
    let (name, text) = match path {
        None => (config::SHIPPED_NAME.to_owned(), config::SHIPPED.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            // A pipe is refused: a reload would find it empty.
            let bytes = regular_file::read(path, MAX_CONFIG)
                .with_context(|| format!("cannot read {name}"))?;
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_where| anyhow!("{name} is not UTF-8; allowed is TOML"))?;
            (name, text)
        }
    };
    if let Some(text) = variable("ORDGATE_SHARED_REPLICAS") {
        let count: Option<NonZeroU32> = text.trim().parse().ok();
        let count = count.with_context(|| {
            format!("ORDGATE_SHARED_REPLICAS is {text:?}; allowed is a whole number of at least 1")
        })?;
        set(&mut overrides, "shared.replicas", i64::from(count.get()));
    }
    if let Some(text) = variable("ORDGATE_LOG") {
        if telemetry::filter(&text).is_none() {
            bail!("ORDGATE_LOG is {text:?}; allowed is {}", telemetry::FILTER);
        }
        set(&mut overrides, "log.level", text);
    }
    let config = Config::parse_with(&name, &text, &overrides);
    let mut config = config.map_err(|problems| anyhow!(problems.join("\n")))?;
    let shared = config.file.shared.as_mut();
    let file = shared
        .as_ref()
        .and_then(|shared| shared.url_file.as_deref());
    // No error has a part of the URL.
    if let Some((url, source)) = secret("ORDGATE_SHARED_URL", "shared.url_file", file)? {
        let engine = EngineUrl::parse(url.trim()).map_err(|why| anyhow!("{source}: {why}"))?;
        let shared = shared.context("shared.replicas is missing: the most replicas that run at the same time; set it, or ORDGATE_SHARED_REPLICAS")?;
        shared.engine = Some(engine);
    }
    Ok((config, name))
}

/// Reads an address and a port; as the admin listener's, also as a URL.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim().trim_start_matches("http://");
    let bare = bare.trim_end_matches('/');
    bare.parse().map_err(|_not_one| {
        "allowed is an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080".to_owned()
    })
}

/// The base URLs of --upstream, by the names of the upstreams. An error shows no URL that may
/// have a password: one has commas, perhaps, so that it is in several texts.
fn upstream_urls(texts: &[String]) -> Result<BTreeMap<&str, Vec<String>>> {
    let may_show = !texts.iter().any(|text| text.contains(['@', '?']));
    let mut named = BTreeMap::<_, Vec<_>>::new();
    let texts = texts.iter().map(|text| text.trim());
    for text in texts.filter(|text| !text.is_empty()) {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if upstream::is_name(name) => (name, url),
            Some(_) | None => (upstream::DEFAULT, text),
        };
        let url = base_url(url).map_err(|why| match may_show {
            true => {
                anyhow!("--upstream {text}: {why}, or NAME= and such a URL, NAME of a-z, 0-9 and -")
            }
            false => anyhow!(
                "--upstream: a URL has a user, a password or a query; allowed is none of them"
            ),
        })?;
        named.entry(name).or_default().push(url.to_string());
    }
    Ok(named)
}

/// The API keys of all upstreams. Keys of an upstream's own take precedence over shared ones.
fn provider_keys(config: &Config) -> Result<ProviderKeys> {
    let file = config.file.upstream.api_keys_file.as_deref();
    let shared = api_keys("ORDGATE_API_KEYS", "upstream.api_keys_file", file)?;
    let mut keys = ProviderKeys {
        shared: shared.unwrap_or_default(),
        ..ProviderKeys::default()
    };
    let upstreams = config.upstreams.iter();
    for settings in upstreams.filter(|settings| *settings.name != *upstream::DEFAULT) {
        let name = settings.name.to_uppercase().replace('-', "_");
        let file = settings.api_keys_file.as_deref();
        let own = api_keys(
            &format!("ORDGATE_API_KEYS_{name}"),
            &settings.key("api_keys_file"),
            file.filter(|_| settings.has_own_file),
        );
        if let Some(own) = own? {
            keys.own.insert(settings.name.clone(), own);
        }
    }
    Ok(keys)
}

fn api_keys(variable: &str, key: &str, file: Option<&Path>) -> Result<Option<Vec<ApiKey>>> {
    let text = secret(variable, key, file)?;
    let keys = text.map(|(text, source)| ApiKey::list(&text).context(source));
    keys.transpose()
}

/// The admin token: from the environment, or from a file.
pub(super) fn admin_secret(file: Option<&Path>) -> Result<Option<Secret>> {
    match secret("ORDGATE_ADMIN_TOKEN", "admin.token_file", file)? {
        Some((text, source)) if text.trim().is_empty() => bail!("{source} is empty"),
        found => Ok(found.map(|(text, _)| text)),
    }
}

/// A secret of the environment, or else of the file that a key names; and where it is from. An
/// empty variable counts as not set.
fn secret(variable: &str, key: &str, file: Option<&Path>) -> Result<Option<(Secret, String)>> {
    let set = secrets::variable(variable).map_err(Error::msg)?;
    let set = set.filter(|text| !text.trim().is_empty());
    match (set, file) {
        (Some(text), _) => Ok(Some((text, variable.to_owned()))),
        (None, Some(path)) => {
            let source = format!("{key} {}", path.display());
            let text = secrets::file(key, path).map_err(Error::msg)?;
            Ok(Some((text, source)))
        }
        (None, None) => Ok(None),
    }
}
