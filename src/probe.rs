//! Probes: requests to an indexer's status path for its tip, at regular intervals and
//! earlier where an answer suggests a new tip.
//!
//! Probes are not conditional: the `etag` of the reference upstream's ordinals status
//! may stay the same while the height changes (API, "ETags"), which would give a false
//! 304. The body is a hundred bytes.
//!
//! After each status, the block is asked for that a check needs, if there is one
//! (`Fill::check_blocks`).
//!
//! Where replicas share an engine, one of them asks for all ([`shared`]).

mod shared;
pub mod standby;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use shared::SharedTip;
use tokio::time::{Instant, sleep_until};

use crate::chain::ledger::RequestStart;
use crate::clock::Moment;
use crate::fill::Fill;
use crate::reason::Reason;
use crate::upstream::answer::Answer;
use crate::upstream::failure::hint;
use crate::upstream::{Failure, Priority, RequestPriority};

/// The shortest time from a probe to one that was requested, at first.
const SOONEST: Duration = Duration::from_millis(250);
/// The shortest time that a status may take.
const MIN_PATIENCE: Duration = Duration::from_secs(2);

/// Probes a tip until the task is cancelled.
pub async fn watch(fill: Arc<Fill>, tip: u16) {
    let Some(source) = fill.chain.source(tip).cloned() else {
        return;
    };
    // After a reload the tip may be known already. (With a manual clock, the time until
    // the next probe does not pass.)
    let until_due = fill.chain.until_next_probe(tip, fill.clock.now());
    if !until_due.is_zero() && until_due < source.every {
        let requested = fill.chain.probe_requested(tip);
        let _whichever = tokio::time::timeout(until_due, requested).await;
    }
    let mut early = 0_u32;
    let mut shared = SharedTip::new(&fill, tip, &source);
    loop {
        let began = Instant::now();
        let (probed, age, every) = match &mut shared {
            Some(shared) => {
                let most = if early > 0 { SOONEST } else { source.every };
                shared.look(&fill, most).await
            }
            None => (probe(&fill, tip).await, Duration::ZERO, source.every),
        };
        if probed == ProbeOutcome::Learned {
            let fill = fill.clone();
            tokio::spawn(async move { fill.check_blocks(tip).await });
        }
        let mut due = began + every.saturating_sub(age);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(due) => early = 0,
                () = fill.chain.probe_requested(tip) => {
                    let soonest = began + soonest(early, source.every);
                    sleep_until(began + SOONEST).await;
                    // The trial of a breaker, which ten failures have opened, goes at once.
                    let is_broken = || fill.upstreams.get(source.upstream).is_broken();
                    while Instant::now() < soonest && !is_broken() {
                        sleep_until(soonest.min(Instant::now() + SOONEST)).await;
                    }
                    early = early.saturating_add(1);
                    break;
                }
            }
            // (With a manual clock, the time until the next probe does not pass.)
            let until_due = fill.chain.until_next_probe(tip, fill.clock.now());
            if until_due.is_zero() || until_due >= every {
                break;
            }
            due = Instant::now() + until_due;
        }
    }
}

/// The shortest time from a probe to one that was requested, after so many requested
/// ones in a row. If several servers of one upstream have different tips, every answer
/// suggests a new tip, and the probes would take half of the budget.
fn soonest(early: u32, every: Duration) -> Duration {
    SOONEST
        .saturating_mul(2_u32.saturating_pow(early))
        .min(every)
}

/// How many probes of an upstream's tips there are a minute, and how long an answer to one may
/// take: any longer, the tip counts as lost. `None` if it is asked for none.
pub(crate) fn budget(fill: &Fill, upstream: u16, tips: &[u16]) -> (u32, Option<Duration>) {
    let endpoints = fill.upstreams.get(upstream).settings().endpoints.urls.len();
    let sources = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    let asked = sources.filter(|source| source.path.is_some());
    let patience = asked
        .map(|source| source.known_for().max(MIN_PATIENCE))
        .max();
    (each_minute(fill, endpoints, tips), patience)
}

/// The number of probes a minute, not counting requested ones.
fn each_minute(fill: &Fill, endpoints: usize, tips: &[u16]) -> u32 {
    let each = |every: Duration| (60.0 / every.as_secs_f64()).ceil() as u32;
    let sources = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    let own: u32 = sources.map(|source| each(source.every)).sum();
    let standbys = u32::try_from(endpoints.saturating_sub(1)).unwrap_or(u32::MAX);
    let rounds = each(standby::pace(fill, tips));
    let targets = u32::try_from(tips.len().max(1)).unwrap_or(u32::MAX);
    own.saturating_add(standbys.saturating_mul(rounds).saturating_mul(targets))
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It reported a tip.
    Learned,
    /// The upstream failed.
    Failed,
    /// It was not sent: the breaker is open, or the budget is used up.
    NotSent,
}

/// A status that an indexer has reported.
struct Status {
    /// Taken before the request was sent; `None` if another replica has sent it.
    start: Option<RequestStart>,
    /// When it was sent, at the earliest.
    sent: Moment,
    /// The number of the endpoint.
    endpoint: u16,
    height: u32,
    tag: Option<Vec<u8>>,
}

/// Sends one probe.
pub async fn probe(fill: &Arc<Fill>, tip: u16) -> ProbeOutcome {
    send(fill, tip).await.0
}

/// Sends one probe, and applies the status. Returns it as well, if it could be used.
async fn send(fill: &Arc<Fill>, tip: u16) -> (ProbeOutcome, Option<Status>) {
    let chain = &fill.chain;
    let Some(source) = chain.source(tip) else {
        return (ProbeOutcome::Failed, None);
    };
    let (Some(path), Some(start)) = (&source.path, chain.request_start(tip)) else {
        return (ProbeOutcome::Failed, None);
    };
    let sent = fill.clock.now();
    let upstream = fill.upstreams.client(source.upstream);
    let priority = RequestPriority::own(Priority::Probe);
    let endpoints = fill.upstreams.get(source.upstream);
    let url = |answer: &Answer| format!("{}{path}", endpoints.base_url(answer.endpoint));
    let answered = match upstream.fetch(path, priority).await {
        Ok(answer) if answer.status == StatusCode::OK => Ok(answer),
        Ok(answer) => {
            upstream.record_status(&answer, path, None);
            Err((
                ProbeOutcome::Failed,
                format!("{} answers {}", url(&answer), answer.status),
            ))
        }
        Err(failure) => Err(explain(&failure, path, &source.name)),
    };
    let answer = match answered {
        Ok(answer) => answer,
        Err((outcome, why)) => {
            chain.probe_failed(tip, why);
            return (outcome, None);
        }
    };
    let height = match height(&answer.body, &source.height) {
        Ok(Some(height)) => height,
        Ok(None) => {
            let member = &source.height;
            let why = format!(
                "its status has no {member}: the index is empty, or the member has another name"
            );
            chain.probe_failed(tip, why);
            return (ProbeOutcome::Failed, None);
        }
        Err(why) => {
            upstream.record_status(&answer, path, None);
            chain.probe_failed(tip, format!("{} answers, but {why}", url(&answer)));
            return (ProbeOutcome::Failed, None);
        }
    };
    if !upstream.record_status(&answer, path, Some(height)) {
        // All blocks would count as final.
        chain.probe_failed(
            tip,
            format!(
                "{} reports height {height}, which is above any height that the chain can have now",
                url(&answer)
            ),
        );
        return (ProbeOutcome::Failed, None);
    }
    let status = Status {
        start: Some(start),
        sent,
        endpoint: answer.endpoint,
        height,
        tag: answer.etag.map(|tag| tag.to_vec()),
    };
    let outcome = apply(fill, tip, &status).await;
    chain.count_probe(tip);
    (outcome, Some(status))
}

/// Applies a status that was asked for here, or by another replica.
async fn apply(fill: &Arc<Fill>, tip: u16, status: &Status) -> ProbeOutcome {
    let Status {
        start,
        sent,
        height,
        tag,
        ..
    } = status;
    let (sent, now) = ((*start, *sent), fill.clock.now());
    let purge = fill
        .chain
        .apply_status(tip, sent, *height, tag.as_deref(), now);
    if let Some(from) = purge {
        fill.purge_from(tip, from).await;
    }
    ProbeOutcome::Learned
}

/// The outcome of a probe that failed, and why, for the operator.
fn explain(failure: &Failure, path: &str, tip: &str) -> (ProbeOutcome, String) {
    // The operator has to act on these: they are logged each time.
    if matches!(failure.reason, Reason::Retired | Reason::KeyRefused) {
        failure.report(path);
    }
    let outcome = match failure.is_sent() {
        true => ProbeOutcome::Failed,
        false => ProbeOutcome::NotSent,
    };
    let base = failure.endpoint.as_deref().unwrap_or_default();
    let why = match failure.received {
        _ if failure.reason == Reason::WrongUpstream => format!(
            "{base}{path} answers that there is no such route: check whether this is the right server (the reference indexer serves ordinals and runes as two servers on two ports, each of which needs an upstream of its own, [upstreams.NAME]), and chain.tip.{tip}.path"
        ),
        Some(status) => format!("{base}{path} fails with {status}"),
        None => {
            let hint = hint(failure.reason).map(|hint| format!("; {hint}"));
            let hint = hint.unwrap_or_default();
            format!("{base}{path} fails: {}{hint}", failure.reason.name())
        }
    };
    (outcome, why)
}

/// The height in a status; `None` where the member is missing or null, as with an
/// empty index.
fn height(body: &[u8], member: &str) -> Result<Option<u32>, String> {
    let Ok(Value::Object(status)) = serde_json::from_slice(body) else {
        return Err("not with a JSON object".to_owned());
    };
    match status.get(member) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let height = value.as_u64().and_then(|height| u32::try_from(height).ok());
            let wrong = || format!("its {member} is no height");
            height.map(Some).ok_or_else(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_height_of_a_status_is_a_u32_or_absent() {
        let ready = br#"{"server_version":"x","status":"ready","block_height":840002}"#;
        assert_eq!(height(ready, "block_height"), Ok(Some(840_002)));
        assert_eq!(height(ready, "height"), Ok(None), "an empty index");
        assert_eq!(
            height(br#"{"block_height":null}"#, "block_height"),
            Ok(None)
        );
        for wrong in [
            &br#"{"block_height":"840002"}"#[..],
            br#"{"block_height":-1}"#,
            br#"{"block_height":4294967296}"#,
            br"[840002]",
            b"840002",
        ] {
            assert!(height(wrong, "block_height").is_err());
        }
    }
}
