//! `ordgate check`.

use std::process::ExitCode;

use anyhow::Result;
use http::Uri;
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::serve::StartError;
use ordgate::state_dir::StateDir;
use ordgate::tls;
use ordgate::upstream::client::resolver::Resolver;
use ordgate::upstream::keys::ApiKey;
use ordgate::upstream::{SetupError, Upstreams};

use super::environment::{
    admin_token, effective, provider_keys, read_client_tokens, unused_key_variables,
};
use super::{ServeFlags, print};

pub(super) fn check(flags: &ServeFlags, all: bool) -> Result<ExitCode> {
    let (mut config, name) = effective(flags)?;
    read_client_tokens(&mut config.tokens)?;
    let keys = provider_keys(&config)?;
    let token = admin_token(config.admin.token_file.as_deref())?;
    StartError::check_admin(config.admin.listen, token.as_ref())?;
    let clock = Clock::machine();
    check_certificates(&config, flags.sandbox, &clock)?;
    if let Some(path) = &config.state.path {
        StateDir::check(path)?;
    }
    let mut served = config.clone();
    if flags.sandbox {
        // The sandbox's port is known only once it runs.
        let sandbox = (Uri::from_static("http://127.0.0.1:1"), Box::default());
        served.use_sandbox(Some(&sandbox));
    }
    let mut warnings = served.warnings(&keys);
    warnings.extend(unused_key_variables(&config));
    match Upstreams::new(&served.upstreams, &keys, &Resolver::default(), &clock, None) {
        // `serve` may have a flag with the URL.
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
    let tokens = client_tokens(&config);
    let values = match all {
        true => config.print_all(&keys)?,
        false => config.print(&keys)?,
    };
    print(&format!(
        "# {name} is valid. These values take effect, defaults included:\n# API keys: {}\n{own}# admin token: {token}\n{tokens}{warnings}\n{values}",
        count(&keys.shared)
    ))
}

/// Refuses certificates that `serve` would refuse.
fn check_certificates(config: &Config, sandbox: bool, clock: &Clock) -> Result<(), StartError> {
    let now = clock.wall(clock.now());
    let listeners = config.all_listeners().into_iter();
    let tls = listeners.filter_map(|listener| listener.tls);
    let problems: Vec<_> = tls.flat_map(|tls| tls::check(&tls, sandbox, now)).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(StartError::Certificates(problems)),
    }
}

/// What the token file has, as a comment. Not the digests.
fn client_tokens(config: &Config) -> String {
    if config.tokens.file.is_none() {
        return "# client tokens: none\n".to_owned();
    }
    let file = &config.tokens.tokens;
    let clock = Clock::machine();
    let expired = file.expired(clock.system_time()).count();
    let expired = match expired {
        0 => String::new(),
        n => format!(", {n} of them expired"),
    };
    let (tokens, names) = (file.tokens.len(), file.names.len());
    format!("# client tokens: {tokens} of {names} names{expired}\n")
}
