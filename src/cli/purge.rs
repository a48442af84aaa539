//! `ordgate purge`.

use std::process::ExitCode;

use anyhow::Result;
use ordgate::admin::client::{self, CallError, Wanted};
use serde_json::{Value, json};

use super::environment::{address, admin_secret, load, upstream_urls};
use super::{PurgeFlags, WantedFlags, complain, print};

pub(super) fn purge(flags: PurgeFlags) -> Result<ExitCode> {
    let (config, _) = load(flags.config.as_deref(), &upstream_urls(&[], false)?)?;
    let token = admin_secret(&config)?;
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

/// Which replicas have not purged, in words; `None` if all have, or there are no others.
fn not_reached(replicas: &Value) -> Option<String> {
    let names = replicas["not_reached"].as_array();
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    let names: Vec<_> = names.collect();
    let names = match &names[..] {
        [] => "the other replicas".to_owned(),
        names => names.join(", "),
    };
    match replicas["engine"].as_str() {
        Some(why) => Some(format!(
            "{names} may not have purged yet, since the engine does not have the purge: {why}. It is sent as soon as the engine answers"
        )),
        None if replicas["not_reached"] == json!([]) || replicas.is_null() => None,
        None => Some(format!(
            "not purged yet by {names}: each one does so as soon as it reads the journal"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_were_not_reached_are_named() {
        for (replicas, words) in [
            (Value::Null, None),
            (json!({ "applied": ["a"], "not_reached": [] }), None),
            (
                json!({ "applied": ["a"], "not_reached": ["b", "c"] }),
                Some("not purged yet by b, c: "),
            ),
            (
                json!({ "applied": [], "not_reached": [], "engine": "gone" }),
                Some(
                    "the other replicas may not have purged yet, since the engine does not have the purge: gone.",
                ),
            ),
        ] {
            let said = not_reached(&replicas);
            match words {
                None => assert_eq!(said, None),
                Some(words) => assert!(said.unwrap().starts_with(words)),
            }
        }
    }
}
