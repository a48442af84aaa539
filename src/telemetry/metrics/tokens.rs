//! Metrics of client tokens. A label for each of 10,000 names would burden whoever
//! collects them, so only the busiest names have one.

use std::fmt;

use super::{Metrics, labels, one};
use crate::gateway::Gateway;

/// Writes them; without a token file, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let tokens = &gateway.clients.tokens;
    if !tokens.is_enabled {
        return Ok(());
    }
    to.gauge(
        "ordgate_token_clients",
        "Names in the token file",
        one(tokens.clients.len() as f64),
    )?;
    let busiest = tokens.busiest().into_iter();
    let cells = busiest.flat_map(|([limited, admitted], client)| {
        let cell = |result, n| (labels(&[("name", &client.name), ("result", result)]), n);
        [cell("admitted", admitted), cell("limited", limited)]
    });
    to.counter(
        "ordgate_token_client_requests",
        "Requests with a valid client token, by name, for the 100 names with the most requests since the start: within the limit of their client, or refused with 429",
        cells.collect(),
    )
}
