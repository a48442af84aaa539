//! `ordgate check`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use ordgate::clock::Clock;
use ordgate::serve::{self, StartError};
use ordgate::upstream::SetupError;
use ordgate::upstream::keys::ApiKey;

use super::environment::loaded;
use super::{ServeFlags, print};

/// Refuses what `serve` refuses, and prints the values that take effect.
pub(super) fn check(flags: &ServeFlags) -> Result<ExitCode> {
    let (loaded, name) = loaded(flags, true)?;
    let address = loaded.config.file.admin.listen;
    serve::check_admin(address, loaded.admin_token.as_ref())?;
    let checked = serve::check(&loaded, &Clock::machine());
    let verdict = match &checked {
        Ok(()) => "is valid. These values take effect, defaults included:",
        // The values and their documentation are of use before there is an upstream, too.
        Err(StartError::Upstream(SetupError::NoUpstream | SetupError::NoUrl(_))) => {
            "lacks the URL of an upstream. These values would take effect, defaults included:"
        }
        Err(why) => bail!("{why}"),
    };
    let (config, keys) = (&loaded.config, &loaded.keys);
    let count = |keys: &[ApiKey]| match keys.len() {
        0 => "none".to_owned(),
        n => format!("{n} [redacted]"),
    };
    let mut text = format!("# {name} {verdict}\n# API keys: {}\n", count(&keys.shared));
    for (name, own) in &keys.own {
        text += &format!("# API keys of the upstream {name}: {}\n", count(own));
    }
    let token = loaded.admin_token.map_or("none", |_| "[redacted]");
    let names = config.tokens.as_ref().map_or(0, |file| file.names.len());
    text += &format!("# admin token: {token}\n# names with client tokens: {names}\n");
    for warning in config.warnings(keys) {
        text += &format!("# warning: {warning}\n");
    }
    let printed = print(&format!("{text}\n{}", toml::to_string(&config.file)?))?;
    checked?;
    Ok(printed)
}
