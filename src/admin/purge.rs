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
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use meaning::{Meaning, meaning, of_alias};
use selector::{Selector, by_body, by_query};
use serde_json::{Value, json};
use tokio::task::JoinError;

use super::browser::{browser_sign, refuse_browser};
use super::response::{invalid, json_body, problem};
use crate::cache::Attached;
use crate::cache::purge::Purge;
use crate::cache::store::Store;
use crate::chain::Chain;
use crate::gateway::Gateway;
use crate::route::RouteTable;
use crate::validate::Invalid;
use crate::wire::Body;

/// The most bytes of a request body.
const MOST_BODY: usize = 64 * 1024;
/// How long the entries are counted that a purge matches.
const COUNT_PATIENCE: Duration = Duration::from_millis(250);

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
        Ok((mut purged, matched)) => {
            if let Some((entries, is_all)) = matched {
                purged["matched"] = entries.into();
                if !is_all {
                    purged["matched_at_least"] = true.into();
                }
            }
            json_body(purged.to_string())
        }
        Err(wrong) => invalid(&wrong),
    }
}

/// Counts what a purge matches, and purges. This is done in a task of its own, since
/// otherwise nothing would be purged if the operator's connection ended during the count.
async fn counted_purge(
    gateway: &Arc<Gateway>,
    selectors: Vec<Selector>,
) -> Result<Result<(Value, Option<(u64, bool)>), Invalid>, JoinError> {
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

/// Purges. Returns what was purged.
fn purge(gateway: &Gateway, selectors: &[Selector]) -> Result<Value, Invalid> {
    let routes = &gateway.routes;
    let meanings: Result<Vec<_>, _> = selectors.iter().map(|s| meaning(s, routes)).collect();
    let (store, chain) = (gateway.cache.store(), &gateway.fill.chain);
    let mut purged = Vec::new();
    for (selector, meaning) in selectors.iter().zip(meanings?) {
        let means = carry_out(meaning, routes, chain, store);
        let means: Vec<_> = means.iter().map(|purge| as_json(purge, routes)).collect();
        tracing::info!(
            by = selector.kind(),
            what = %selector.value(),
            number = store.purges(),
            "purged"
        );
        purged.push(json!({ "by": selector.kind(), "what": selector.value(), "means": means }));
    }
    Ok(json!({ "purged": purged, "number": store.purges() }))
}

/// Purges, and returns what was purged.
fn carry_out(
    meaning: Meaning,
    routes: &RouteTable,
    chain: &Chain,
    store: &Store<Attached>,
) -> Vec<Purge> {
    let mut done = meaning.certain;
    for purge in &done {
        store.purge(purge.clone());
    }
    // Other names are looked up only now. One that becomes known later comes from
    // a response that was requested later, or that the purges above match.
    let aliases = meaning.alias.map(|alias| of_alias(&alias, routes, chain));
    for purge in aliases.unwrap_or_default() {
        if !done.contains(&purge) {
            store.purge(purge.clone());
            done.push(purge);
        }
    }
    done
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
