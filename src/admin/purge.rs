//! `POST /purge`: the operator's purges.
//!
//! A request names what to purge as query parameters or as JSON, all of one kind:
//! URLs, routes, tags, or all. It is read whole before anything is purged. Once
//! the response is sent, no new request is answered with what was stored, or
//! requested from the upstream, before the purge.
//!
//! Invariant: no web page but the dashboard can purge (`browser`).
//!
//! Not here: how a purge takes effect (`cache::purge`), and freeing the memory,
//! which follows in the background.

mod meaning;
mod selector;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use meaning::{Meaning, meaning, of_alias};
use selector::{Selector, by_body, by_query};
use serde_json::{Value, json};
use tokio::task::JoinError;

use super::browser::{browser_sign, refuse_browser};
use super::response::{invalid, json_body, problem, problem_with};
use crate::cache::purge::Purge;
use crate::fill::Purging;
use crate::gateway::Gateway;
use crate::route::RouteTable;
use crate::validate::Invalid;
use crate::wire::Body;

/// The most bytes of a request body.
const MOST_BODY: usize = 64 * 1024;
/// How long the entries are counted that a purge matches.
const COUNT_PATIENCE: Duration = Duration::from_millis(250);

/// What was purged, and what resolves once that outlives the process.
type Purged = (Value, [Purging; 2]);

/// Purges what a request names, and answers with what was purged. `timeout` is
/// how long its body may take to arrive.
pub(super) async fn answer(
    gateway: &Arc<Gateway>,
    request: Request<Incoming>,
    timeout: Duration,
) -> Response<Body> {
    if let Some(sign) = browser_sign(request.headers()) {
        return refuse_browser("purge", &sign, "ordgate purge");
    }
    let read = match request.body().is_end_stream() {
        true => by_query(request.uri().query().unwrap_or("")),
        false => {
            let query = request.uri().query().unwrap_or("").to_owned();
            match body(request.into_body(), timeout).await {
                Ok(bytes) if bytes.is_empty() => by_query(&query),
                Ok(_) if !query.is_empty() => Err(Invalid::new(
                    "what is purged",
                    "a query and a body",
                    "in one of them",
                )),
                Ok(bytes) => by_body(&bytes),
                Err(response) => return *response,
            }
        }
    };
    let done = match read {
        Ok(selectors) => counted_purge(gateway, selectors).await,
        Err(wrong) => Ok(Err(wrong)),
    };
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            let detail = format!("The purge has failed ({error}): purge it again");
            return problem(StatusCode::INTERNAL_SERVER_ERROR, &detail, None);
        }
    };
    match done {
        Ok(((mut purged, durable), matched)) => {
            if let Some((entries, is_all)) = matched {
                purged["matched"] = entries.into();
                if !is_all {
                    purged["matched_at_least"] = true.into();
                }
            }
            let mut members = Vec::new();
            // All that was purged has reached those that have the last of it.
            let reports = join_all(durable).await;
            if let Some(replicas) = reports.iter().rev().find_map(|report| report.replicas) {
                members.push(("replicas", json!(replicas)));
                purged["replicas"] = json!(replicas);
            }
            let failed = reports.into_iter().find_map(|report| report.durable.err());
            let Some(error) = failed else {
                return json_body(purged.to_string());
            };
            let detail = format!("It is purged in memory, but {error}");
            problem_with(StatusCode::INTERNAL_SERVER_ERROR, &detail, &members)
        }
        Err(wrong) => invalid(&wrong),
    }
}

/// Counts what a purge matches, and purges. This is done in a task of its own, since
/// otherwise nothing would be purged if the operator's connection ended during the count.
async fn counted_purge(
    gateway: &Arc<Gateway>,
    selectors: Vec<Selector>,
) -> Result<Result<(Purged, Option<(u64, bool)>), Invalid>, JoinError> {
    let gateway = gateway.clone();
    let task = tokio::spawn(async move {
        let matched = matched(&gateway, &selectors).await;
        let purged = purge(&gateway, &selectors)?;
        Ok((purged, matched))
    });
    task.await
}

/// How many entries in memory a purge will match, and whether those are all. Counted before
/// it, on another thread: afterwards, requests remove matching entries one by one.
async fn matched(gateway: &Gateway, selectors: &[Selector]) -> Option<(u64, bool)> {
    let (routes, chain) = (&gateway.routes, &gateway.fill.chain);
    let purges = selectors.iter().flat_map(|selector| {
        let Ok(Meaning { certain, alias }) = meaning(selector, routes) else {
            return Vec::new();
        };
        let aliases = alias.map(|alias| of_alias(&alias, routes, chain));
        [certain, aliases.unwrap_or_default()].concat()
    });
    let (purges, cache) = (purges.collect::<Vec<_>>(), gateway.cache.clone());
    let clock = gateway.clock.clone();
    let counted = tokio::task::spawn_blocking(move || {
        let began = clock.now();
        let is_time_over = || clock.now().since(began) >= COUNT_PATIENCE;
        cache.store().count_matching(&purges, is_time_over)
    });
    // Without a count it is purged all the same.
    counted.await.ok()
}

async fn body(body: Incoming, timeout: Duration) -> Result<Bytes, Box<Response<Body>>> {
    let refuse = |status, detail: &str| Box::new(problem(status, detail, None));
    match tokio::time::timeout(timeout, Limited::new(body, MOST_BODY).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("The body has more than {MOST_BODY} bytes"),
        )),
        Ok(Err(_broken)) => Err(refuse(
            StatusCode::BAD_REQUEST,
            "The body ended before its end",
        )),
        Err(_elapsed) => Err(refuse(
            StatusCode::REQUEST_TIMEOUT,
            &format!("The body did not arrive within {} s", timeout.as_secs()),
        )),
    }
}

/// Purges. Returns what was purged, and what resolves once that outlives the process.
fn purge(gateway: &Gateway, selectors: &[Selector]) -> Result<Purged, Invalid> {
    let (routes, fill) = (&gateway.routes, &gateway.fill);
    let meanings: Result<Vec<_>, _> = selectors.iter().map(|s| meaning(s, routes)).collect();
    let (mut done, aliases): (Vec<_>, Vec<_>) = meanings?
        .into_iter()
        .map(|meaning| (meaning.certain, meaning.alias))
        .unzip();
    let (_, first) = fill.purge(&done.concat());
    // Other names are looked up only now. One that becomes known later comes from
    // a response that was requested later, or that the purges above match.
    let mut others = Vec::new();
    for (done, alias) in done.iter_mut().zip(aliases) {
        let found = alias.map(|alias| of_alias(&alias, routes, &fill.chain));
        let mut new = found.unwrap_or_default();
        new.retain(|purge| !done.contains(purge));
        others.extend_from_slice(&new);
        done.append(&mut new);
    }
    let (number, second) = fill.purge(&others);
    let mut purged = Vec::new();
    for (selector, means) in selectors.iter().zip(done) {
        tracing::info!(by = selector.kind(), what = %selector.value(), number, "purged");
        let means: Vec<_> = means.iter().map(|purge| as_json(purge, routes)).collect();
        purged.push(json!({ "by": selector.kind(), "what": selector.value(), "means": means }));
    }
    let purged = json!({ "purged": purged, "number": number });
    Ok((purged, [first, second]))
}

/// A purge in the response.
fn as_json(purge: &Purge, routes: &RouteTable) -> Value {
    let name = |index: &u16| routes.get(*index).map(|route| &*route.name);
    match purge {
        Purge::All => json!({ "all": true }),
        Purge::Route(route) => json!({ "route": name(route) }),
        Purge::Target { route, target } => json!({ "route": name(route), "target": target }),
        Purge::Segment { route, at, value } => {
            json!({ "route": name(route), "segment": at, "value": value })
        }
        Purge::Path { route, path } => json!({ "route": name(route), "path": path }),
        Purge::Heights { from, to, .. } => match *to {
            u32::MAX => json!({ "heights": { "from": from } }),
            to => json!({ "heights": { "from": from, "to": to } }),
        },
        Purge::Text(text) => json!({ "text": text }),
    }
}
