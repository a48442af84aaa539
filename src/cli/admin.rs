//! `ordgate purge` and `ordgate health`: commands that call a running ordgate.

use std::process::ExitCode;

use anyhow::{Context, Result};
use ordgate::admin::client::{self, CallError};
use ordgate::config::Config;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::environment::{admin_secret, load};
use super::flags::{AdminFlags, PurgeFlags};
use super::{complain, print};

/// Says whether a running ordgate is ready. Whatever goes wrong, the exit code is 1:
/// container runtimes reserve others. A script that waits for the start calls it again and
/// again, so what it says of an ordgate that is not there yet is no error.
pub(super) fn health(flags: &AdminFlags) -> ExitCode {
    let ready = || -> Result<Result<(), CallError>> {
        let admin = match flags.admin {
            Some(admin) => admin,
            None => configuration(flags)?.file.admin.listen,
        };
        Ok(runtime()?.block_on(client::check_ready(admin)))
    };
    let printed = match ready() {
        Ok(Ok(())) => return print("ready\n").unwrap_or(ExitCode::FAILURE),
        Ok(Err(CallError::Unreachable(admin))) => {
            print(&format!("not ready: nothing listens on {admin}\n"))
        }
        Ok(Err(CallError::NotReady(_, why))) => print(&format!("not ready: {why}\n")),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(error),
    };
    if let Err(error) = printed {
        complain(&format!("{error:#}"));
    }
    ExitCode::FAILURE
}

/// Purges, and prints what was purged. With an address and a token, no configuration is read.
pub(super) fn purge(flags: PurgeFlags) -> Result<ExitCode> {
    let (admin, token) = match (flags.of.admin, admin_secret(None)?) {
        (Some(admin), Some(token)) => (admin, Some(token)),
        (admin, _) => {
            let config = configuration(&flags.of)?.file.admin;
            let token = admin_secret(config.token_file.as_deref())?;
            (admin.unwrap_or(config.listen), token)
        }
    };
    let wanted = flags.wanted;
    let wanted =
        json!({ "url": wanted.url, "route": wanted.route, "tag": wanted.tag, "all": wanted.all });
    let token = token.as_ref().map(|token| token.as_str());
    match runtime()?.block_on(client::purge(admin, token, &wanted)) {
        Ok(purged) => {
            if let Some(missing @ 1..) = purged["replicas"]["missing"].as_u64() {
                complain(&format!(
                    "{missing} of the replicas have not purged yet: each one does so as soon as it hears from the engine; without an engine, purge each of them"
                ));
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

fn configuration(flags: &AdminFlags) -> Result<Config> {
    let loaded = load(flags.config.as_deref(), String::new());
    let (config, _) = loaded.context("the admin address or its token is not known")?;
    Ok(config)
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
