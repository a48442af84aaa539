//! Probes: requests to an indexer's status path for its tip, at regular intervals and
//! earlier where an answer suggests a new tip; and those of standby endpoints, which show
//! whether they answer, and which endpoint is behind.
//!
//! Probes are not conditional: the `etag` of the reference upstream's ordinals status
//! may stay the same while the height changes which would give a false
//! 304. The body is a hundred bytes.
//!
//! After each status, the block is asked for that a check needs, if there is one
//! (`Fill::check_blocks`).
//!
//! Where replicas share an engine, one of them asks for all ([`crate::shared::tip`]).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;
use http::header::ETAG;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::chain::ledger::RequestStart;
use crate::chain::{STANDBYS_SELDOM, TipSource};
use crate::clock::Moment;
use crate::fill::Fill;
use crate::reason::Reason;
use crate::shared::tip::{SharedTips, TipLook};
use crate::upstream::failure::hint;
use crate::upstream::{
    Answer, AnswerBody, Failure, Priority, RequestPriority, Upstream, UpstreamRequest,
};

/// The shortest time from a probe to one that was requested: an upstream of several servers
/// with different tips suggests a new one with every answer.
const SOONEST: Duration = Duration::from_secs(1);
/// The time from one status to the next while the engine does not answer: each replica asks
/// for itself.
const ALONE: Duration = Duration::from_secs(15);
/// The shortest time that a status may take.
const MIN_PATIENCE: Duration = Duration::from_secs(2);
/// The time between probes of standbys where no route has a tip,
const STANDBYS_EVERY: Duration = Duration::from_secs(5);
/// and their target then; any answer shows that the endpoint is up.
const ANYTHING: &str = "/";

/// A status that an indexer has reported, also as replicas tell each other: the height and the
/// tag.
pub type Status = (u32, Option<Vec<u8>>);

/// Probes a tip until the task is cancelled.
pub async fn watch(fill: Arc<Fill>, tip: u16) {
    let source = fill.chain.tip(tip).source.clone();
    let shared = fill.lower.shared.clone();
    let shared = shared.filter(|shared| shared.has_engine());
    let mut began = Instant::now();
    // After a reload the tip may be known already.
    let mut due = began + fill.chain.tip(tip).until_next_probe(fill.clock.now());
    loop {
        let requested = fill.chain.tip(tip).state.probe_request.notified();
        let most = match timeout_at(due, requested).await {
            Ok(()) => {
                sleep_until(began + SOONEST.min(source.every)).await;
                SOONEST
            }
            Err(_elapsed) => source.every,
        };
        began = Instant::now();
        let age = match &shared {
            Some(shared) => look(&fill, &shared.tips, (tip, &source), most).await,
            None => probe(&fill, tip).await.map(|_status| Duration::ZERO),
        };
        if age.is_some() {
            fill.check_blocks_aside(tip);
        }
        let every = fill.chain.tip(tip).view().interval;
        due = began + every.saturating_sub(age.unwrap_or_default());
    }
}

/// Has a status of a tip applied that was asked less than `most` ago, here or by another
/// replica. Returns how long ago that was, if there was one.
async fn look(
    fill: &Arc<Fill>,
    tips: &Arc<SharedTips>,
    (tip, source): (u16, &TipSource),
    most: Duration,
) -> Option<Duration> {
    let (upstream, chain) = (fill.upstreams.get(source.upstream), fill.chain.tip(tip));
    let (selected, url) = upstream.selected_endpoint();
    let path = source.path.as_deref().unwrap_or_default();
    let look = tips.look(&format!("{url} {path}"), most).await;
    let every = match look {
        TipLook::Absent => source.every.max(ALONE),
        TipLook::Answer { .. } | TipLook::Ask(_) => source.every,
    };
    chain.change(|ledger| ledger.view.interval = every);
    if let TipLook::Answer { asked, answer } = &look
        && let Ok(status) = postcard::from_bytes::<Status>(answer)
    {
        upstream.record_status(usize::from(selected), path, Some(status.0));
        apply(fill, tip, (None, *asked), &status).await;
        return Some(fill.clock.now().since(*asked));
    }
    let asked = probe(fill, tip).await;
    if let (TipLook::Ask(claim), Some((endpoint, status))) = (look, &asked)
        && *endpoint == selected
        && let Ok(answer) = postcard::to_allocvec(status)
    {
        claim.store(&answer).await;
    }
    asked.map(|_status| Duration::ZERO)
}

/// Probes the standby endpoints until the task is cancelled. After a failover it
/// requests a probe of each tip, since the new endpoint may have another; and when ten requests
/// in a row had no answer, since the tip's decides whether the breaker opens.
pub async fn watch_standbys(fill: Arc<Fill>, upstream: Arc<Upstream>, tips: Vec<u16>) {
    let mut doubts = upstream.doubts();
    let sources = tips.iter().map(|tip| &fill.chain.tip(*tip).source);
    let mut paths: Vec<_> = sources.map(|source| source.path.as_deref()).collect();
    if paths.is_empty() {
        paths.push(None);
    }
    loop {
        let began = Instant::now();
        let (standbys, are_sound) = upstream.standbys();
        let probes = standbys.into_iter().flat_map(|at| {
            let upstream = &upstream;
            let paths = paths.iter();
            paths.map(move |path| probe_standby(upstream, at, *path))
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

/// Probes a standby endpoint once, which gets the outcome. Where there is no status path, any
/// answer will do.
async fn probe_standby(upstream: &Upstream, at: usize, path: Option<&str>) {
    let probe = RequestPriority::own(Priority::Probe);
    let request = UpstreamRequest {
        is_typed: path.is_some(),
        ..UpstreamRequest::typed(path.unwrap_or(ANYTHING))
    };
    let answered = upstream.request(&request, probe, Some(at)).await;
    if let (Ok(answer), Some(path)) = (answered, path) {
        let _known_to_the_endpoint = learn(upstream, path, &answer);
    }
}

/// The shortest time between two probes of a standby.
fn pace(fill: &Fill, tips: &[u16]) -> Duration {
    let paces = tips.iter().map(|tip| fill.chain.tip(*tip).source.every);
    paces.min().unwrap_or(STANDBYS_EVERY)
}

/// How many probes of an upstream's tips there are a minute, not counting requested ones; and
/// how long an answer to one may take: any longer, the tip counts as lost. `None` if it is asked
/// for none.
pub(crate) fn budget(fill: &Fill, upstream: u16, tips: &[u16]) -> (u32, Option<Duration>) {
    let each = |every: Duration| (60.0 / every.as_secs_f64()).ceil() as u32;
    let sources = || tips.iter().map(|tip| &fill.chain.tip(*tip).source);
    let own: u32 = sources().map(|source| each(source.every)).sum();
    let standbys = fill.upstreams.get(upstream).settings.urls.len().max(1) - 1;
    let standbys = (standbys * tips.len().max(1)) as u32;
    let patience = sources().map(|source| source.known_for().max(MIN_PATIENCE));
    (own + standbys * each(pace(fill, tips)), patience.max())
}

/// Sends one probe, and applies the status that it reports. Returns that, if there was one, with
/// the number of the endpoint.
pub async fn probe(fill: &Arc<Fill>, tip: u16) -> Option<(u16, Status)> {
    let chain = fill.chain.tip(tip);
    let source = &chain.source;
    let start = chain.read(|ledger| ledger.start());
    let (path, sent) = (source.path.as_deref()?, fill.clock.now());
    let priority = RequestPriority::own(Priority::Probe);
    let client = fill.upstreams.client(source.upstream);
    let answer = client.send(UpstreamRequest::typed(path), priority).await;
    let answer = answer.map_err(|failure| explain(&failure, path));
    let learned = answer.and_then(|answer| {
        let upstream = fill.upstreams.get(source.upstream);
        let base = upstream.base_url(answer.endpoint);
        let height = learn(upstream, path, &answer);
        let height = height.map_err(|why| format!("{base}{path} {why}"))?;
        let tag = answer.head.headers.get(ETAG);
        let tag = tag.map(|tag| tag.as_bytes().to_vec());
        Ok((answer.endpoint, (height, tag)))
    });
    match learned {
        Ok((endpoint, status)) => {
            apply(fill, tip, (Some(start), sent), &status).await;
            chain.change(|ledger| ledger.probes += 1);
            Some((endpoint, status))
        }
        Err(why) => {
            chain.probe_failed(why);
            None
        }
    }
}

/// Applies a status that was asked for at a moment, here or by another replica; of the latter
/// it is not known where the ledger was then.
async fn apply(
    fill: &Arc<Fill>,
    tip: u16,
    sent: (Option<RequestStart>, Moment),
    (height, tag): &Status,
) {
    let (chain, now) = (fill.chain.tip(tip), fill.clock.now());
    let purge = chain.apply_status(sent, *height, tag.as_deref(), now);
    fill.chain.announce(tip, now);
    if let Some(from) = purge {
        fill.purge_from(tip, from).await;
    }
}

/// Why a probe has failed, for the operator.
fn explain(failure: &Failure, path: &str) -> String {
    let base = failure.endpoint.as_deref().unwrap_or_default();
    let what = match (failure.reason, failure.received) {
        (Reason::WrongUpstream, _) => "answers that there is no such route".to_owned(),
        (Reason::NotJson, Some(status)) => format!("answers {status}, but no JSON"),
        (_, Some(status)) => format!("fails with {status}"),
        (reason, None) => format!("fails: {} ({})", reason.text(), reason.name()),
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
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
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
