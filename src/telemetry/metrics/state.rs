//! Metrics of the state directory.

use std::fmt;

use super::{Metrics, by, labels, one};
use crate::gateway::Gateway;
use crate::state_dir::OpenedState;

/// Writes them; without a state directory, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let state = &gateway.state;
    if state.path().is_none() {
        return Ok(());
    }
    let [_off, in_use, open] = OpenedState::NAMES;
    let cells = [open, in_use].map(|name| {
        let is_so = f64::from(u8::from(state.name() == name));
        (labels(&[("status", name)]), is_so)
    });
    to.gauge(
        "ordgate_state_directory",
        "Whether this process uses its state directory, or another process does",
        cells.into(),
    )?;
    let Some(journal) = gateway.upstreams.journal_snapshot() else {
        return Ok(());
    };
    let is_failing = journal.state != "written";
    to.gauge(
        "ordgate_spend_journal_failing",
        "Whether the spend journal cannot be written",
        one(f64::from(u8::from(is_failing))),
    )?;
    to.counter(
        "ordgate_spend_journal_writes",
        "Pages of the spend journal written",
        one(journal.writes),
    )?;
    to.counter(
        "ordgate_spend_journal_failures",
        "Accesses of the spend journal that have failed, or have taken too long",
        by(
            "kind",
            [("error", journal.errors), ("stall", journal.stalls)],
        ),
    )?;
    to.counter(
        "ordgate_spend_journal_unjournalled",
        "Requests sent to the upstream without having been journalled",
        one(journal.unjournalled),
    )?;
    to.gauge(
        "ordgate_spend_journal_recovered",
        "Requests of earlier processes that counted in the budget at the start",
        one(journal.recovered as f64),
    )?;
    to.gauge(
        "ordgate_spend_journal_waiting_seconds",
        "How long API keys are not used because what they had spent before the start is not known",
        one(journal.waiting.as_secs_f64()),
    )
}
