//! Metrics of requests: how many there were, and how long they took.

use std::fmt;

use super::{Metrics, by, labels};
use crate::gateway::Gateway;
use crate::log_writer::Destination;

/// Writes them.
pub(super) fn encode(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    counts(gateway, to)?;
    refused(gateway, to)?;
    let dropped = Destination::ALL.map(|to| (to.name(), to.dropped()));
    to.counter(
        "ordgate_log_lines_dropped",
        "Lines of the log, and of the access log, that were dropped because standard error or standard output took none",
        by("output", dropped),
    )?;
    times(gateway, to)
}

fn counts(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let requests = gateway.meter().counts().into_iter().map(|count| {
        let pairs = [
            ("route", route(gateway, count.route)),
            ("outcome", count.outcome),
            ("class", count.class),
        ];
        (labels(&pairs), count.requests)
    });
    to.counter(
        "ordgate_requests",
        "Requests answered, by route, by outcome (a fresh or stale stored response, an answer of the upstream, a document of ordgate's own, a preflight, or a refusal), and by class of status code",
        requests.collect(),
    )
}

fn refused(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let counts = gateway.meter().totals.refused.by_reason();
    let cells = counts.map(|(reason, count)| (labels(&[("reason", reason.name())]), count));
    to.counter(
        "ordgate_refused",
        "Requests that were refused or that failed, and connections over a limit, by reason",
        cells.collect(),
    )
}

fn times(gateway: &Gateway, to: &mut Metrics<'_>) -> fmt::Result {
    let rows = gateway.meter().latency_snapshot().into_iter().map(|row| {
        let pairs = [
            ("route", route(gateway, row.route)),
            ("outcome", row.outcome),
        ];
        (labels(&pairs), row.times)
    });
    to.histogram(
        "ordgate_request_duration_seconds",
        "From the last byte of a request to the head of its response, by route and outcome",
        rows.collect(),
    )
}

/// The name of a route, by its position.
fn route(gateway: &Gateway, at: Option<usize>) -> &str {
    let routes = gateway.routes.routes();
    at.and_then(|at| routes.get(at))
        .map_or("none", |route| &*route.name)
}
