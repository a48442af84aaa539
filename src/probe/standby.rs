//! Probes of standby endpoints: whether they answer, and their height, so that
//! failover knows which to use and whether the active one is behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;

use super::height;
use crate::chain::STANDBYS_SELDOM;
use crate::fill::Fill;
use crate::upstream::Upstream;

/// The time between probes where no route has a tip.
const EVERY: Duration = Duration::from_secs(5);
/// The target then; any answer shows that the endpoint is up.
const ANYTHING: &str = "/";

/// Probes the standby endpoints until the task is cancelled. After a failover it
/// requests a probe of each tip, since the new endpoint may have another; and when a breaker
/// opens, since its answer closes it.
pub async fn watch(fill: Arc<Fill>, upstream: Arc<Upstream>, tips: Vec<u16>) {
    let mut doubts = upstream.doubts();
    loop {
        let began = tokio::time::Instant::now();
        let probes = upstream.standbys().into_iter().flat_map(|at| {
            let all = tips.iter().map(|tip| Some(*tip));
            let targets = all.chain(tips.is_empty().then_some(None));
            let (fill, upstream) = (&fill, &upstream);
            targets.map(move |tip| probe(fill, upstream, at, tip))
        });
        join_all(probes).await;
        let each = match upstream.standbys_are_sound() {
            true => STANDBYS_SELDOM,
            // One that recovers should be known soon.
            false => 1,
        };
        let due = began + pace(&fill, &tips) * each;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => break,
                doubted = doubts.changed() => {
                    if doubted.is_err() {
                        return;
                    }
                    for tip in &tips {
                        fill.chain.request_probe(*tip);
                    }
                }
            }
        }
    }
}

/// The shortest time from one round to the next.
pub(super) fn pace(fill: &Fill, tips: &[u16]) -> Duration {
    let paces = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    paces.map(|source| source.every).min().unwrap_or(EVERY)
}

/// Probes a standby endpoint once.
async fn probe(fill: &Fill, upstream: &Upstream, at: usize, tip: Option<u16>) {
    let source = tip.and_then(|tip| fill.chain.source(tip));
    let path = source.and_then(|source| source.path.as_deref());
    // The endpoint gets the outcome; any answer shows that it is up.
    let answered = upstream.fetch_standby(at, path.unwrap_or(ANYTHING)).await;
    if let (Ok(answer), Some(source), Some(path)) = (answered, source, path)
        && answer.status == StatusCode::OK
        && let Ok(Some(height)) = height(&answer.body, &source.height)
    {
        upstream.record_height(at, path, height);
    }
}
