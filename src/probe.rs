//! Probes: requests to an indexer's status path for its tip, at regular intervals and
//! earlier where an answer suggests a new tip; and those of standby endpoints, which show
//! whether they answer, and which endpoint is behind.
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

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use http::header::ETAG;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::chain::STANDBYS_SELDOM;
use crate::chain::ledger::RequestStart;
use crate::clock::Moment;
use crate::fill::Fill;
use crate::reason::Reason;
use crate::upstream::failure::hint;
use crate::upstream::{
    Answer, AnswerBody, Failure, Priority, RequestPriority, Upstream, UpstreamRequest,
};

/// The shortest time from a probe to one that was requested, at first.
const SOONEST: Duration = Duration::from_millis(250);
/// The shortest time that a status may take.
const MIN_PATIENCE: Duration = Duration::from_secs(2);
/// The time between probes of standbys where no route has a tip,
const STANDBYS_EVERY: Duration = Duration::from_secs(5);
/// and their target then; any answer shows that the endpoint is up.
const ANYTHING: &str = "/";

/// Probes a tip until the task is cancelled.
pub async fn watch(fill: Arc<Fill>, tip: u16) {
    let Some(source) = fill.chain.source(tip).cloned() else {
        return;
    };
    // After a reload the tip may be known already. (With a manual clock, the time until
    // the next probe does not pass.)
    let until_due = fill.chain.tip(tip).until_next_probe(fill.clock.now());
    if !until_due.is_zero() && until_due < source.every {
        let requested = fill.chain.tip(tip).state.probe_request.notified();
        let _whichever = tokio::time::timeout(until_due, requested).await;
    }
    let mut early = 0_u32;
    let shared = fill.lower.shared.clone();
    let shared = shared.filter(|shared| shared.has_engine());
    loop {
        let began = Instant::now();
        let (is_known, age, every) = match &shared {
            Some(shared) => {
                let most = if early > 0 { SOONEST } else { source.every };
                shared::look(&fill, &shared.tips, (tip, &source), most).await
            }
            None => (probe(&fill, tip).await, Duration::ZERO, source.every),
        };
        if is_known {
            let fill = fill.clone();
            tokio::spawn(async move { fill.check_blocks(tip).await });
        }
        let mut due = began + every.saturating_sub(age);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(due) => early = 0,
                () = fill.chain.tip(tip).state.probe_request.notified() => {
                    let soonest = began + soonest(early, source.every);
                    sleep_until(soonest).await;
                    early = early.saturating_add(1);
                    break;
                }
            }
            // (With a manual clock, the time until the next probe does not pass.)
            let until_due = fill.chain.tip(tip).until_next_probe(fill.clock.now());
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

/// Probes the standby endpoints until the task is cancelled. After a failover it
/// requests a probe of each tip, since the new endpoint may have another; and when ten requests
/// in a row had no answer, since the tip's decides whether the breaker opens.
pub async fn watch_standbys(fill: Arc<Fill>, upstream: Arc<Upstream>, tips: Vec<u16>) {
    let mut doubts = upstream.doubts();
    loop {
        let began = Instant::now();
        let (standbys, are_sound) = upstream.standbys();
        let probes = standbys.into_iter().flat_map(|at| {
            let all = tips.iter().map(|tip| Some(*tip));
            let targets = all.chain(tips.is_empty().then_some(None));
            let (fill, upstream) = (&fill, &upstream);
            targets.map(move |tip| probe_standby(fill, upstream, at, tip))
        });
        join_all(probes).await;
        // One that recovers should be known soon.
        let each = if are_sound { STANDBYS_SELDOM } else { 1 };
        let due = began + pace(&fill, &tips) * each;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(due) => break,
                doubted = doubts.changed() => {
                    if doubted.is_err() {
                        return;
                    }
                    for tip in &tips {
                        fill.chain.tip(*tip).state.probe_request.notify_one();
                    }
                }
            }
        }
    }
}

/// Probes a standby endpoint once, which gets the outcome.
async fn probe_standby(fill: &Fill, upstream: &Upstream, at: usize, tip: Option<u16>) {
    let source = tip.and_then(|tip| fill.chain.source(tip));
    let path = source.and_then(|source| source.path.as_deref());
    let probe = RequestPriority::own(Priority::Probe);
    let request = UpstreamRequest::typed(path.unwrap_or(ANYTHING));
    let answered = upstream.request(&request, probe, Some(at)).await;
    if let (Ok(answer), Some(path)) = (answered, path) {
        let _known_to_the_endpoint = learn(upstream, path, &answer);
    }
}

/// The shortest time between two probes of a standby.
fn pace(fill: &Fill, tips: &[u16]) -> Duration {
    let paces = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    let paces = paces.map(|source| source.every);
    paces.min().unwrap_or(STANDBYS_EVERY)
}

/// How many probes of an upstream's tips there are a minute, not counting requested ones; and
/// how long an answer to one may take: any longer, the tip counts as lost. `None` if it is asked
/// for none.
pub(crate) fn budget(fill: &Fill, upstream: u16, tips: &[u16]) -> (u32, Option<Duration>) {
    let each = |every: Duration| (60.0 / every.as_secs_f64()).ceil() as u32;
    let sources = || tips.iter().filter_map(|tip| fill.chain.source(*tip));
    let own: u32 = sources().map(|source| each(source.every)).sum();
    let endpoints = fill.upstreams.get(upstream).settings.urls.len();
    let standbys = (endpoints.saturating_sub(1) * tips.len().max(1)) as u32;
    let asked = sources().filter(|source| source.path.is_some());
    let patience = asked.map(|source| source.known_for().max(MIN_PATIENCE));
    let probes = standbys.saturating_mul(each(pace(fill, tips)));
    (own.saturating_add(probes), patience.max())
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

/// Sends one probe, and applies the status that it reports. Returns whether there was one.
pub async fn probe(fill: &Arc<Fill>, tip: u16) -> bool {
    ask(fill, tip).await.is_some()
}

/// The same, with the status.
async fn ask(fill: &Arc<Fill>, tip: u16) -> Option<Status> {
    let (source, chain) = (fill.chain.source(tip)?, fill.chain.tip(tip));
    let start = chain.read(|ledger| ledger.start());
    let (path, sent) = (source.path.as_deref()?, fill.clock.now());
    let priority = RequestPriority::own(Priority::Probe);
    let client = fill.upstreams.client(source.upstream);
    let fetched = client.send(UpstreamRequest::typed(path), priority);
    let learned = match fetched.await {
        Ok(answer) => {
            let upstream = fill.upstreams.get(source.upstream);
            let learned = learn(upstream, path, &answer);
            let base = upstream.base_url(answer.endpoint);
            let learned = learned.map_err(|why| format!("{base}{path} {why}"));
            learned.map(|height| (answer, height))
        }
        Err(failure) => Err(explain(&failure, path)),
    };
    let (answer, height) = match learned {
        Ok(learned) => learned,
        Err(why) => {
            chain.probe_failed(why);
            return None;
        }
    };
    let status = Status {
        start: Some(start),
        sent,
        endpoint: answer.endpoint,
        height,
        tag: (answer.head.headers.get(ETAG)).map(|tag| tag.as_bytes().to_vec()),
    };
    apply(fill, tip, &status).await;
    chain.change(|ledger| ledger.probes += 1);
    Some(status)
}

/// Applies a status that was asked for here, or by another replica.
async fn apply(fill: &Arc<Fill>, tip: u16, status: &Status) {
    let (sent, now) = ((status.start, status.sent), fill.clock.now());
    let tag = status.tag.as_deref();
    let purge = fill
        .chain
        .tip(tip)
        .apply_status(sent, status.height, tag, now);
    if let Some(from) = purge {
        fill.purge_from(tip, from).await;
    }
}

/// Why a probe has failed, for the operator.
fn explain(failure: &Failure, path: &str) -> String {
    let base = failure.endpoint.as_deref().unwrap_or_default();
    let what = match failure.received {
        _ if failure.reason == Reason::WrongUpstream => {
            "answers that there is no such route".to_owned()
        }
        Some(status) if failure.reason == Reason::NotJson => {
            format!("answers {status}, but no JSON")
        }
        Some(status) => format!("fails with {status}"),
        None => format!("fails: {}", failure.reason.name()),
    };
    let hint = hint(failure.reason).map(|hint| format!("; {hint}"));
    format!("{base}{path} {what}{}", hint.unwrap_or_default())
}

/// The height that an answer on a status path reports, which its endpoint gets to know.
///
/// # Errors
/// What it answers instead of a status.
fn learn(upstream: &Upstream, path: &str, answer: &Answer) -> Result<u32, String> {
    let height = match (answer.head.status, &answer.body) {
        (StatusCode::OK, AnswerBody::Whole(body, _)) => height(body),
        (status, _) => Err(format!("answers {status}")),
    };
    let at = usize::from(answer.endpoint);
    upstream.record_status(at, path, height.as_ref().ok().copied());
    height
}

/// The member of a status that is the tip's height.
const HEIGHT: &str = "block_height";

/// The height in a status.
fn height(body: &[u8]) -> Result<u32, String> {
    let Ok(Value::Object(status)) = serde_json::from_slice(body) else {
        return Err("answers, but not with a JSON object".to_owned());
    };
    match status.get(HEIGHT) {
        None | Some(Value::Null) => Err(format!(
            "answers, but its status has no {HEIGHT}: the index is empty, or this is no status path"
        )),
        Some(value) => {
            let height = value.as_u64().and_then(|height| u32::try_from(height).ok());
            height.ok_or_else(|| format!("answers, but its {HEIGHT} is no height"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_height_of_a_status_is_a_u32() {
        let ready = br#"{"server_version":"x","status":"ready","block_height":840002}"#;
        assert_eq!(height(ready), Ok(840_002));
        for wrong in [
            &br#"{"block_height":null}"#[..],
            br#"{"height":840002}"#,
            br#"{"block_height":"840002"}"#,
            br#"{"block_height":-1}"#,
            br#"{"block_height":4294967296}"#,
            br"[840002]",
            b"840002",
        ] {
            assert!(height(wrong).is_err());
        }
    }
}
