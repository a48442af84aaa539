//! Metrics of the engine that replicas share.

use std::fmt;

use super::{Metrics, by, labels, one};
use crate::gateway::Gateway;
use crate::shared::engine::SharedError;
use crate::shared::{JournalReport, KeptSnapshot, Shared, SharedSnapshot};

/// Writes them; without an engine, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let Some(shared) = gateway.shared.as_deref().map(Shared::snapshot) else {
        return Ok(());
    };
    let engine = shared.engine.as_ref();
    to.gauge(
        "ordgate_shared_up",
        "Whether the engine has answered the last report",
        one(truth(engine.is_some_and(|engine| engine.is_up))),
    )?;
    let round_trip = engine.and_then(|engine| engine.round_trip);
    let quantiles = ["0.5", "0.99"]
        .into_iter()
        .zip(round_trip.into_iter().flatten());
    let quantiles =
        quantiles.map(|(quantile, time)| (labels(&[("quantile", quantile)]), time.as_secs_f64()));
    to.gauge(
        "ordgate_shared_round_trip_seconds",
        "The time until the engine answers, in the last minute or two",
        quantiles.collect(),
    )?;
    let errors = engine.map_or([0; SharedError::KINDS.len()], |engine| engine.errors);
    to.counter(
        "ordgate_shared_errors",
        "Reports that the engine has not counted, as far as is known",
        by(
            "kind",
            std::array::from_fn::<_, 5, _>(|kind| (SharedError::KINDS[kind], errors[kind])),
        ),
    )?;
    journal(&shared.journal, to)?;
    tips(&shared, to)?;
    budgets(&shared.budgets, to)
}

fn tips(shared: &SharedSnapshot, to: &mut Metrics<'_>) -> fmt::Result {
    let tips = shared.tips.iter();
    let holders = tips.map(|(tip, share)| (labels(&[("tip", &**tip)]), truth(share.is_holder)));
    to.gauge(
        "ordgate_shared_tip_holder",
        "Whether this replica probes the tip for all that use the same endpoint",
        holders.collect(),
    )?;
    let tips = shared.tips.iter();
    let followed = tips.map(|(tip, share)| (labels(&[("tip", &**tip)]), share.followed));
    to.counter(
        "ordgate_shared_tip_followed",
        "Probes of other replicas whose outcome was applied here",
        followed.collect(),
    )
}

fn journal(journal: &JournalReport, to: &mut Metrics<'_>) -> fmt::Result {
    to.gauge(
        "ordgate_shared_journal_heard",
        "Whether this replica knew all purges of the others at some time in the last 500 ms",
        one(truth(journal.is_in_sync)),
    )?;
    to.gauge(
        "ordgate_shared_journal_lag_records",
        "The records of the journal that this replica has not applied",
        one(journal.tail.saturating_sub(journal.applied) as f64),
    )?;
    let reached = journal.replicas.iter().filter(|(.., is_there)| *is_there);
    let reached = reached.count();
    let counts = [
        ("reached", reached),
        ("silent", journal.replicas.len() - reached),
    ];
    to.gauge(
        "ordgate_shared_journal_replicas",
        "The other replicas, as the engine knows them, by whether they were heard lately",
        counts
            .map(|(state, count)| (labels(&[("state", state)]), count as f64))
            .into(),
    )?;
    let [sent, received, unknown] = journal.records;
    to.counter(
        "ordgate_shared_journal_records",
        "Records of the journal: those of this replica that the engine has, those of others that it has applied, and those that its version does not know",
        by(
            "direction",
            [("sent", sent), ("received", received), ("unknown", unknown)],
        ),
    )?;
    to.counter(
        "ordgate_shared_journal_gaps",
        "How often the journal no longer had all records that this replica had not applied; it has purged everything then",
        one(journal.gaps),
    )?;
    to.counter(
        "ordgate_shared_journal_generations",
        "How often the journal has begun anew: the engine was restarted, failed over or emptied",
        one(journal.generations),
    )
}

fn budgets(budgets: &[KeptSnapshot], to: &mut Metrics<'_>) -> fmt::Result {
    let cells = |of: fn(&KeptSnapshot) -> f64| {
        let cells = budgets.iter();
        let cells = cells.map(|budget| (labels(&[("budget", &*budget.digest)]), of(budget)));
        cells.collect()
    };
    to.gauge(
        "ordgate_shared_floor_mode",
        "Whether this replica may use its floor of the budget only",
        cells(|budget| truth(budget.is_floor_only)),
    )?;
    to.gauge(
        "ordgate_shared_majority",
        "Whether most of the engine's copies follow it; without them it grants nothing",
        cells(|budget| truth(budget.majority != Some(false))),
    )?;
    to.gauge(
        "ordgate_shared_processes",
        "The processes that share the budget, as the engine knows them",
        cells(|budget| budget.names.len() as f64),
    )?;
    to.gauge(
        "ordgate_shared_name_twice",
        "Whether two of these processes have the same name",
        cells(|budget| truth(budget.has_name_twice())),
    )?;
    let generations = budgets.iter();
    let generations =
        generations.map(|budget| (labels(&[("budget", &*budget.digest)]), budget.generations));
    to.counter(
        "ordgate_shared_generations",
        "How often the engine's account of the budget has begun anew: it was restarted, failed over or emptied",
        generations.collect(),
    )
}

fn truth(is_so: bool) -> f64 {
    f64::from(u8::from(is_so))
}
