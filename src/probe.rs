//! Probes: asking an indexer's status path what its tip is, at a pace and out of
//! turn where an answer has hinted at a new one.
//!
//! The status is asked for whole, not by its ETag: the reference upstream's
//! ordinals tag stays as it was while the height moves (API, "ETags"), and a
//! conditional request would get a false 304. The body is a hundred bytes.
//!
//! After a change of tip the block of the tip before is looked at, so that a
//! reorg is seen however deep it is (`Fill::look_at_blocks`).

pub mod standby;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use crate::fill::Fill;
use crate::look_ahead;
use crate::upstream::{Failure, Priority, RequestPriority};

/// How soon after a probe the next may follow out of turn, at first.
const SOONEST: Duration = Duration::from_millis(250);
/// How long a source that goes on failing is left alone at the most.
const MOST_BACKOFF: Duration = Duration::from_secs(60);

/// How long a probe may take at the least, however often there is one.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// Asks for a tip for as long as a gateway serves.
pub async fn watch(fill: Arc<Fill>, tip: u16) {
    let Some(source) = fill.chain.source(tip).cloned() else {
        return;
    };
    // After a reload it may be known already. (Where time stands still, a rest
    // does not end.)
    let rest = fill.chain.rest(tip, fill.clock.now());
    if !rest.is_zero() && rest < source.every {
        let wanted = fill.chain.wanted(tip);
        let _whichever = tokio::time::timeout(rest, wanted).await;
    }
    let (mut failures, mut hurried) = (0_u32, 0_u32);
    loop {
        let began = tokio::time::Instant::now();
        let probed = probe(&fill, tip).await;
        if probed == ProbeOutcome::Learned {
            // The probes go on meanwhile.
            let fill = fill.clone();
            tokio::spawn(async move { fill.look_at_blocks(tip).await });
        }
        failures = failures_after(failures, probed);
        let mut due = began + pause(failures, source.every);
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => hurried = 0,
                () = fill.chain.wanted(tip) => {
                    tokio::time::sleep_until(began + soonest(hurried, source.every)).await;
                    hurried = hurried.saturating_add(1);
                    break;
                }
            }
            // Answers that bear the tip's hash are as good as probes. (Where
            // time stands still, it never comes to the end of a rest.)
            let rest = fill.chain.rest(tip, fill.clock.now());
            if rest.is_zero() || rest >= source.every {
                break;
            }
            due = tokio::time::Instant::now() + rest;
        }
    }
}

/// How many probes in a row have failed.
fn failures_after(before: u32, probed: ProbeOutcome) -> u32 {
    match probed {
        ProbeOutcome::Learned => 0,
        ProbeOutcome::Failed => before.saturating_add(1),
        // It has cost the upstream nothing. The next one is sent as soon as the
        // upstream is asked again.
        ProbeOutcome::NotSent => 0,
    }
}

/// The time from one probe to the next: an upstream that goes on failing is asked
/// less and less.
fn pause(failures: u32, every: Duration) -> Duration {
    let backoff = 2_u32.saturating_pow(failures.saturating_sub(1));
    every.saturating_mul(backoff).min(MOST_BACKOFF.max(every))
}

/// How soon after a probe the next may follow, where so many before it were out
/// of turn. Servers of one upstream that are not at one hint at a new tip with
/// each answer, and would take half of the budget for it.
fn soonest(hurried: u32, every: Duration) -> Duration {
    SOONEST
        .saturating_mul(2_u32.saturating_pow(hurried))
        .min(every)
}

/// How many probes a minute a gateway sends, where nothing hints at a new tip.
pub fn each_minute(fill: &Fill, endpoints: usize, tips: &[u16]) -> u32 {
    let each = |every: Duration| (60.0 / every.as_secs_f64()).ceil() as u32;
    let sources = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    let own: u32 = sources.map(|source| each(source.every)).sum();
    let standbys = u32::try_from(endpoints.saturating_sub(1)).unwrap_or(u32::MAX);
    let rounds = each(standby::pace(fill, tips));
    let asked = u32::try_from(tips.len().max(1)).unwrap_or(u32::MAX);
    own.saturating_add(standbys.saturating_mul(rounds).saturating_mul(asked))
}

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// A tip was learned.
    Learned,
    /// The upstream failed.
    Failed,
    /// The upstream was not asked: its breaker is open, or the budget is spent.
    NotSent,
}

/// Sends one probe.
pub async fn probe(fill: &Arc<Fill>, tip: u16) -> ProbeOutcome {
    let chain = &fill.chain;
    let Some(source) = chain.source(tip) else {
        return ProbeOutcome::Failed;
    };
    let (Some(path), Some(start)) = (&source.path, chain.start(tip)) else {
        return ProbeOutcome::Failed;
    };
    let epoch = chain.epoch(tip);
    let sent = fill.clock.now();
    // Later than this, an answer would tell of a tip that counts as lost.
    let patience = source.patience().max(LEAST_PATIENCE);
    let upstream = fill.upstreams.asked(source.upstream);
    let asked = upstream.ask(path, RequestPriority::own(Priority::Probe));
    let mut is_sent = true;
    let why = match tokio::time::timeout(patience, asked).await {
        Ok(Ok(answer)) if answer.status == StatusCode::OK => Ok(answer),
        Ok(Ok(answer)) => Err(format!("{path} answers {}", answer.status)),
        Ok(Err(failure)) => {
            is_sent = failure.is_sent();
            // What the operator has to see to is said each time.
            if matches!(failure, Failure::Retired | Failure::KeyRefused(_)) {
                failure.report(path);
            }
            Err(match failure.upstream_status() {
                _ if matches!(failure, Failure::NoSuchRoute { .. }) => format!(
                    "{path} answers that there is no such route: check whether this is the right server (the reference indexer serves ordinals and runes as two servers on two ports, each of which needs an upstream of its own, [upstreams.NAME]), and chain.tip.{}.path",
                    source.name
                ),
                Some(status) => format!("{path} fails with {status}"),
                None => format!("{path} fails: {}", failure.name()),
            })
        }
        Err(_elapsed) => Err(format!("{path} does not answer within {patience:?}")),
    };
    let answer = match why {
        Ok(answer) => answer,
        Err(why) => {
            chain.failed(tip, why);
            return match is_sent {
                true => ProbeOutcome::Failed,
                false => ProbeOutcome::NotSent,
            };
        }
    };
    let height = match height(&answer.body, &source.height) {
        Ok(height) => height,
        Err(why) => {
            chain.failed(tip, format!("{path} answers, but {why}"));
            return ProbeOutcome::Failed;
        }
    };
    if let Some(height) = height
        && !upstream.hear_height(&answer, path, height)
    {
        // Every block would count as deep below it.
        chain.failed(
            tip,
            format!("{path} says height {height}, which the chain cannot have yet"),
        );
        return ProbeOutcome::Failed;
    }
    chain.heard_from(tip, answer.endpoint);
    let now = fill.clock.now();
    match chain.status(tip, start, sent, height, answer.etag.as_deref(), now) {
        Some(told) => {
            if let Some(from) = told.orphaned {
                fill.forget(tip, from);
            }
        }
        None if height.is_none() => return ProbeOutcome::Failed,
        // A height seen in passing has made it doubtful.
        None => chain.want(tip),
    }
    if chain.epoch(tip) != epoch {
        look_ahead::refresh(fill, tip);
    }
    ProbeOutcome::Learned
}

/// The height that a status says; `None` where it has the member not, or null,
/// as on an empty index.
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
    fn hints_without_end_are_followed_less_and_less() {
        let every = Duration::from_secs(5);
        let pauses = (0..7).map(|hurried| soonest(hurried, every).as_millis());
        let pauses: Vec<_> = pauses.collect();
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(soonest(u32::MAX, every), every);
        let often = Duration::from_millis(100);
        assert_eq!(soonest(0, often), often);
    }

    #[test]
    fn probes_that_fail_become_rare_and_those_not_sent_do_not() {
        let every = Duration::from_secs(5);
        let mut failures = 0;
        let mut pause_after = |probed| {
            failures = failures_after(failures, probed);
            pause(failures, every).as_secs()
        };
        for (probed, expected) in [
            (ProbeOutcome::Failed, 5),
            (ProbeOutcome::Failed, 10),
            (ProbeOutcome::Failed, 20),
            (ProbeOutcome::Failed, 40),
            (ProbeOutcome::Failed, 60),
            (ProbeOutcome::NotSent, 5),
            (ProbeOutcome::NotSent, 5),
            (ProbeOutcome::Failed, 5),
            (ProbeOutcome::Failed, 10),
            (ProbeOutcome::Learned, 5),
        ] {
            assert_eq!(pause_after(probed), expected, "{probed:?}");
        }
    }

    #[test]
    fn heights_of_statuses() {
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
