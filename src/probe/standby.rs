//! Probes of the endpoints that stand by: whether they answer, and at what
//! height they are, so that it is known whom to turn to and whether the one that
//! is asked lags behind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;

use super::height;
use crate::fill::Fill;
use crate::upstream::Upstream;

/// They are asked less often than the one that is asked for answers, as long as
/// they are well.
const SELDOM: u32 = 3;
/// How often they are asked where no route goes by a tip.
const EVERY: Duration = Duration::from_secs(5);
/// What is asked then: whatever it answers, it is there.
const ANYTHING: &str = "/";

/// Asks those who stand by for as long as a gateway serves; and for the tips
/// anew whenever another endpoint is asked, since it may be at another one.
pub async fn watch(fill: Arc<Fill>, upstream: Arc<Upstream>, tips: Vec<u16>) {
    let mut switches = upstream.switches();
    loop {
        let began = tokio::time::Instant::now();
        let probes = upstream.standbys().into_iter().flat_map(|at| {
            let all = tips.iter().map(|tip| Some(*tip));
            let asked = all.chain(tips.is_empty().then_some(None));
            let (fill, upstream) = (&fill, &upstream);
            asked.map(move |tip| probe(fill, upstream, at, tip))
        });
        join_all(probes).await;
        let each = match upstream.standbys_are_sound() {
            true => SELDOM,
            // One that is well again is not to wait for long to be known so.
            false => 1,
        };
        let due = began + pace(&fill, &tips) * each;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => break,
                switched = switches.changed() => {
                    if switched.is_err() {
                        return;
                    }
                    for tip in &tips {
                        fill.chain.want(*tip);
                    }
                }
            }
        }
    }
}

/// How long it is from one round to the next at the least.
pub(super) fn pace(fill: &Fill, tips: &[u16]) -> Duration {
    let paces = tips.iter().filter_map(|tip| fill.chain.source(*tip));
    paces.map(|source| source.every).min().unwrap_or(EVERY)
}

/// Asks a standby once.
async fn probe(fill: &Fill, upstream: &Upstream, at: usize, tip: Option<u16>) {
    let source = tip.and_then(|tip| fill.chain.source(tip));
    let Some((source, path)) = source.and_then(|source| Some((source, source.path.as_deref()?)))
    else {
        // What comes of it, the endpoint's breaker hears.
        upstream.knock(at, ANYTHING).await;
        return;
    };
    match upstream.ask_standby(at, path).await {
        Ok(answer) if answer.status == StatusCode::OK => {
            if let Ok(Some(height)) = height(&answer.body, &source.height) {
                upstream.hear_standby(at, path, height);
            }
        }
        Ok(_) => {}
        // The endpoint has counted that, and tells of it.
        Err(failure) => tracing::debug!(
            endpoint = at,
            error = failure.name(),
            "an upstream that stands by does not answer"
        ),
    }
}
