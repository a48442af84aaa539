//! `ordgate purge`.

use std::process::ExitCode;

use anyhow::Result;
use ordgate::admin::client::{self, CallError, Wanted};
use serde_json::Value;

use ordgate::config::Overrides;

use super::environment::{address, admin_secret, load};
use super::{PurgeFlags, WantedFlags, complain, print};

pub(super) fn purge(flags: PurgeFlags) -> Result<ExitCode> {
    let (config, _) = load(flags.config.as_deref(), &Overrides::default())?;
    let token = admin_secret(&config)?;
    let admin = address(flags.admin, "ORDGATE_ADMIN")?.unwrap_or(config.file.admin.listen);
    let WantedFlags {
        url,
        route,
        tag,
        all,
    } = flags.wanted;
    // Exactly one of them is there.
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
            if let Some(missing) = not_reached(&purged["replicas"]) {
                complain(&missing);
            }
            print(&format!("{purged:#}\n"))
        }
        // It has answered, and not purged.
        Err(error @ (CallError::Token(_) | CallError::Refused(..))) => {
            complain(&error.to_string());
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

/// How many replicas have not purged, in words; `None` if all have, or there are no others.
fn not_reached(replicas: &Value) -> Option<String> {
    let missing = replicas["missing"]
        .as_u64()
        .filter(|missing| *missing > 0)?;
    Some(format!(
        "{missing} of the replicas have not purged yet: each one does so as soon as it hears from the engine; without an engine, purge each of them"
    ))
}
