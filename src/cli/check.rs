//! `ordgate check`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use ordgate::clock::Clock;
use ordgate::config::Config;
use ordgate::serve::{self, StartError};
use ordgate::supervisor::InheritedSockets;
use ordgate::telemetry;
use ordgate::upstream::SetupError;
use ordgate::upstream::keys::ApiKey;

use super::environment::{PassedSockets, effective, equip};
use super::{ServeFlags, print};

/// Refuses what `serve` refuses, and prints the values that take effect.
pub(super) fn check(flags: &ServeFlags) -> Result<ExitCode> {
    let (config, name) = effective(flags, PassedSockets::Loopback)?;
    telemetry::filter(&config.log())?;
    let (loaded, warnings) = equip(config)?;
    let sockets = InheritedSockets::default();
    let checked = serve::check(&loaded, flags.sandbox, &sockets, &Clock::machine());
    let verdict = match &checked {
        Ok(()) => "is valid. These values take effect, defaults included:",
        // The values and their documentation are of use before there is an upstream, too.
        Err(StartError::Upstream(SetupError::NoUpstream | SetupError::NoUrl(_))) => {
            "lacks the URL of an upstream. These values would take effect, defaults included:"
        }
        Err(why) => bail!("{why}"),
    };
    let served = serve::with_sandbox(&loaded.config, flags.sandbox);
    let (config, keys) = (&loaded.config, &loaded.keys);
    let warnings: String = (served.warnings(keys).into_iter().chain(warnings))
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
    let token = if loaded.admin_token.is_some() {
        "[redacted]"
    } else {
        "none"
    };
    let tokens = client_tokens(config);
    let values = config.print()?;
    let printed = print(&format!(
        "# {name} {verdict}\n# API keys: {}\n{own}# admin token: {token}\n{tokens}{warnings}\n{values}",
        count(&keys.shared)
    ))?;
    checked?;
    Ok(printed)
}

/// What the token file has, as a comment. Not the digests.
fn client_tokens(config: &Config) -> String {
    if config.tokens.file.is_none() {
        return "# client tokens: none\n".to_owned();
    }
    let file = &config.tokens.tokens;
    let clock = Clock::machine();
    let now = clock.system_time();
    let expired = file.names.values();
    let expired = expired.filter(|entry| entry.expires.is_some_and(|at| now >= at.0));
    let expired = match expired.count() {
        0 => String::new(),
        n => format!(", {n} of them expired"),
    };
    let names = file.names.len();
    let tokens = file.names.values().map(|entry| entry.sha256.len());
    let tokens: usize = tokens.sum();
    format!("# client tokens: {tokens} of {names} names{expired}\n")
}
