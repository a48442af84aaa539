//! `ordgate purge`.

use std::process::ExitCode;

use anyhow::Result;
use ordgate::admin::client::{self, Wanted};

use super::environment::{address, admin_secret, load, upstream_urls};
use super::{PurgeFlags, WantedFlags, complain, print};

pub(super) fn purge(flags: PurgeFlags) -> Result<ExitCode> {
    let (config, _) = load(flags.config.as_deref(), &upstream_urls(&[], false)?)?;
    let token = admin_secret(config.admin.token_file.as_deref())?;
    let admin = address(flags.admin, "ORDGATE_ADMIN")?.unwrap_or(config.admin.listen);
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
        Ok(purged) => print(&format!("{purged:#}\n")),
        Err(error) => {
            complain(&error.to_string());
            Ok(ExitCode::FAILURE)
        }
    }
}
