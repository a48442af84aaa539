//! `ordgate health`.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ordgate::admin::client;

use ordgate::config::Overrides;

use super::environment::{address, load};
use super::{HealthFlags, complain, print};

/// Says whether a running ordgate is ready. Whatever goes wrong, the exit code is 1:
/// container runtimes reserve others.
pub(super) fn health(flags: &HealthFlags) -> ExitCode {
    match check(flags) {
        Ok(code) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn check(flags: &HealthFlags) -> Result<ExitCode> {
    let admin = admin_address(flags)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(client::check_ready(admin))?;
    print("ready\n")
}

/// The address of the flag, else that of the variable, else that of the configuration.
fn admin_address(flags: &HealthFlags) -> Result<SocketAddr> {
    if let Some(admin) = address(flags.admin, "ORDGATE_ADMIN")? {
        return Ok(admin);
    }
    let (config, _) = load(flags.config.as_deref(), &Overrides::default())
        .context("the admin address is not known; --admin ADDR names it")?;
    Ok(config.file.admin.listen)
}
