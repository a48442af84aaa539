//! `POST /purge`: the operator's purges.
//!
//! A request names what to purge as query parameters or as JSON, all of one kind:
//! URLs, routes, tags, or all. It is read whole before anything is purged. Once
//! the response is sent, no new request is answered with what was stored, or
//! requested from the upstream, before the purge.
//!
//! Not here: how a purge takes effect (`cache::purge`), and freeing the memory,
//! which follows in the background.

mod meaning;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use meaning::meaning;
use serde::Deserialize;
use serde_json::{Value, json};

use super::query::value;
use super::response::{invalid, json_body, problem, problem_with};
use crate::gateway::Gateway;
use crate::validate::Invalid;
use crate::wire::Body;

/// The most bytes of a request body.
const MOST_BODY: usize = 64 * 1024;
/// The most selectors in a request, which bounds how long it takes.
const MOST_SELECTORS: usize = 100;

const KINDS: &str = "url=URL, route=NAME, tag=TAG or all, percent-encoded";
const JSON: &str =
    "a JSON object with one of url, route and tag (a text or a list of texts), or {\"all\":true}";

/// What is purged: its kind (`url`, `route`, `tag` or `all`), and its name.
type Selector = (&'static str, String);

/// Purges what a request names, and answers with what was purged. `timeout` is
/// how long its body may take to arrive.
pub(super) async fn answer(
    gateway: &Arc<Gateway>,
    request: Request<Incoming>,
    timeout: Duration,
) -> Response<Body> {
    let query = request.uri().query().unwrap_or("").to_owned();
    let body = Limited::new(request.into_body(), MOST_BODY).collect();
    let body = match tokio::time::timeout(timeout, body).await {
        Ok(Ok(whole)) => whole.to_bytes(),
        Ok(Err(error)) => {
            let detail =
                format!("The body could not be read ({error}); it may have {MOST_BODY} bytes");
            return problem(StatusCode::PAYLOAD_TOO_LARGE, &detail);
        }
        Err(_elapsed) => {
            let detail = format!("The body did not arrive within {} s", timeout.as_secs());
            return problem(StatusCode::REQUEST_TIMEOUT, &detail);
        }
    };
    let selectors = match (query.is_empty(), body.is_empty()) {
        (_, true) => by_query(&query),
        (true, false) => by_body(&body),
        (false, false) => {
            let what = "what is purged";
            Err(Invalid::new(what, "a query and a body", "in one of them"))
        }
    };
    let selectors = match selectors.and_then(of_one_kind) {
        Ok(selectors) => selectors,
        Err(wrong) => return invalid(&wrong),
    };
    // It goes on if the operator's connection ends.
    match tokio::spawn(purge(gateway.clone(), selectors)).await {
        Ok(Ok(response)) => response,
        Ok(Err(wrong)) => invalid(&wrong),
        Err(error) => {
            let detail = format!("The purge has failed ({error}): purge it again");
            problem(StatusCode::INTERNAL_SERVER_ERROR, &detail)
        }
    }
}

/// Purges, and waits until that outlives the process and the replicas have acknowledged it.
async fn purge(gateway: Arc<Gateway>, selectors: Vec<Selector>) -> Result<Response<Body>, Invalid> {
    let (routes, fill) = (&gateway.routes, &gateway.fill);
    let (mut certain, mut aliases) = (Vec::new(), Vec::new());
    for (kind, name) in &selectors {
        let (purges, alias) = meaning(kind, name, routes)?;
        certain.extend(purges);
        aliases.extend(alias);
    }
    let (_, first) = fill.purge(&certain);
    // Other names of blocks are looked up only now. One that becomes known later comes from
    // a response that was requested later, or that the purges above match.
    let others = aliases
        .iter()
        .flat_map(|alias| alias.purges(routes, &fill.chain));
    let (number, second) = fill.purge(&others.collect::<Vec<_>>());
    let purged = selectors.iter().map(|(by, what)| {
        tracing::info!(by, what, number, "purged");
        json!({ "by": by, "what": what })
    });
    let mut purged = json!({ "purged": purged.collect::<Value>(), "number": number });
    // All that was purged has reached those that have the last of it.
    let reports = join_all([first, second]).await;
    if let Some(replicas) = reports.iter().rev().find_map(|report| report.replicas) {
        purged["replicas"] = json!(replicas);
    }
    let failed = reports.into_iter().find_map(|report| report.durable.err());
    Ok(match failed {
        None => json_body(purged.to_string()),
        Some(error) => {
            let members = [("replicas", purged["replicas"].take())];
            let detail = format!("It is purged in memory, but {error}");
            problem_with(StatusCode::INTERNAL_SERVER_ERROR, &detail, &members)
        }
    })
}

/// Reads a query.
fn by_query(query: &str) -> Result<Vec<Selector>, Invalid> {
    let selector = |pair: &str| {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        match (name, raw) {
            ("url", _) => Ok(("url", value(name, raw)?)),
            ("route", _) => Ok(("route", value(name, raw)?)),
            ("tag", _) => Ok(("tag", value(name, raw)?)),
            ("all", "" | "true") => Ok(("all", String::new())),
            ("all", _) => Err(Invalid::new("all", raw, "true, or without a value")),
            _ => Err(Invalid::new("a query parameter", pair, KINDS)),
        }
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(selector).collect()
}

/// Reads a body of JSON.
fn by_body(bytes: &[u8]) -> Result<Vec<Selector>, Invalid> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        #[serde(default)]
        url: Texts,
        #[serde(default)]
        route: Texts,
        #[serde(default)]
        tag: Texts,
        #[serde(default)]
        all: bool,
    }
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    impl Default for Texts {
        fn default() -> Self {
            Self::Many(Vec::new())
        }
    }
    let named: Named = serde_json::from_slice(bytes).map_err(|error| {
        let came = String::from_utf8_lossy(bytes);
        Invalid::new("the body", &came, format!("{JSON} ({error})"))
    })?;
    let of = |kind, texts| match texts {
        Texts::One(text) => vec![(kind, text)],
        Texts::Many(texts) => texts.into_iter().map(|text| (kind, text)).collect(),
    };
    let all = if named.all {
        vec![("all", String::new())]
    } else {
        Vec::new()
    };
    Ok([
        of("url", named.url),
        of("route", named.route),
        of("tag", named.tag),
        all,
    ]
    .concat())
}

/// Checks that there are selectors, of one kind, and not too many.
fn of_one_kind(selectors: Vec<Selector>) -> Result<Vec<Selector>, Invalid> {
    let wrong = |came: &str, allowed: &str| Err(Invalid::new("what is purged", came, allowed));
    let Some((kind, _)) = selectors.first() else {
        return wrong("nothing", &format!("given: {KINDS}; or {JSON}"));
    };
    if let Some((other, _)) = selectors.iter().find(|(other, _)| other != kind) {
        return wrong(&format!("{kind} and {other}"), "of one kind");
    }
    if selectors.len() > MOST_SELECTORS {
        let allowed = format!("at most {MOST_SELECTORS} in a request");
        return wrong(&format!("{} of kind {kind}", selectors.len()), &allowed);
    }
    Ok(selectors)
}
