//! Metrics of client tokens. A label for each of 10,000 names would burden whoever
//! collects them, so only the busiest names have one; the sums are of all.

use std::fmt;

use super::{Metrics, by, labels, one};
use crate::client_tokens::TokenFault;
use crate::gateway::Gateway;
use crate::limit::tokens::{MOST_TOKEN_ROWS, TokenCount};

/// Writes them; without a token file, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let (tokens, clients) = (&gateway.clients.tokens, &gateway.clients.token_clients);
    if !tokens.is_enabled() {
        return Ok(());
    }
    to.gauge(
        "ordgate_token_clients",
        "Names in the token file",
        one(clients.len() as f64),
    )?;
    let TokenCount { admitted, limited } = clients.sum();
    to.counter(
        "ordgate_token_requests",
        "Requests with a valid client token, of all names: within the limit of their client, or refused with 429",
        by("result", [("admitted", admitted), ("limited", limited)]),
    )?;
    let busiest = clients.busiest(MOST_TOKEN_ROWS).into_iter();
    let cells = busiest.flat_map(|(_, client)| {
        let TokenCount { admitted, limited } = client.count();
        let cell = |result, n| (labels(&[("name", &client.name), ("result", result)]), n);
        [cell("admitted", admitted), cell("limited", limited)]
    });
    to.counter(
        "ordgate_token_client_requests",
        "The same by name, for the 100 names with the most requests since the start",
        cells.collect(),
    )?;
    let faults = TokenFault::ALL.map(|fault| (fault.name(), clients.faults(fault)));
    to.counter(
        "ordgate_token_refusals",
        "Requests without a valid client token, by what was wrong with it; missing ones only where a token is required",
        by("reason", faults),
    )
}
