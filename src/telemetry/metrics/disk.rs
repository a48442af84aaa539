//! Metrics of what is kept on disk.

use std::fmt;

use super::{Metrics, by, one};
use crate::gateway::Gateway;

/// Writes them; without a state directory, none.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    if gateway.state.path().is_none() {
        return Ok(());
    }
    let disk = gateway.fill.disk.get();
    to.gauge(
        "ordgate_disk_open",
        "Whether responses are read from disk and kept there",
        one(f64::from(u8::from(disk.is_some()))),
    )?;
    let Some(disk) = disk else {
        return Ok(());
    };
    let now = disk.tier().snapshot();
    to.gauge(
        "ordgate_disk_bytes",
        "Bytes of the responses on disk",
        one(now.bytes as f64),
    )?;
    to.gauge(
        "ordgate_disk_max_bytes",
        "Their bound",
        one(now.max_bytes as f64),
    )?;
    to.gauge(
        "ordgate_disk_entries",
        "Responses on disk",
        one(now.entries as f64),
    )?;
    to.gauge(
        "ordgate_disk_queued",
        "Responses that wait to be written to disk",
        one(now.queued as f64),
    )?;
    to.gauge(
        "ordgate_disk_paused",
        "Whether the disk is not used for a while, after a fault: for reading responses, for writing them, or for purges, without which nothing on disk is used",
        by(
            "what",
            [
                ("reading", now.paused.reading),
                ("writing", now.paused.writing),
                ("purges", now.paused.purges),
            ]
            .map(|(what, is_paused)| (what, f64::from(u8::from(is_paused)))),
        ),
    )?;
    to.gauge(
        "ordgate_disk_unrecorded_purges",
        "Purges and removals that the next process could lack if this one ended now: they wait to be written, or the purge log can neither be written nor removed",
        one(now.unrecorded_purges as f64),
    )?;
    to.counter(
        "ordgate_disk_reads",
        "Responses that memory did not have, by what the disk had: a usable one; none; one whose blocks are not known to stand; one that was purged or whose age is unknown; one of another form or route; no read, because too many waited; no result in time",
        by(
            "result",
            [
                ("hit", now.hits),
                ("miss", now.misses),
                ("unchecked", now.unchecked),
                ("outdated", now.outdated),
                ("discarded", now.discarded),
                ("skipped", now.skipped),
                ("late", now.late),
            ],
        ),
    )?;
    to.counter(
        "ordgate_disk_writes",
        "Responses that were stored in memory: written to disk as well, or dropped because too many waited or the disk was not used",
        by(
            "result",
            [("written", now.written), ("dropped", now.dropped)],
        ),
    )?;
    to.counter(
        "ordgate_disk_evictions",
        "Responses evicted from disk to keep its bound",
        one(now.evicted),
    )?;
    to.counter("ordgate_disk_errors", "Faults of the disk", one(now.errors))
}
