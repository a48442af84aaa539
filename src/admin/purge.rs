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
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::query::value;
use super::response::{invalid, json_body, problem, problem_with};
use crate::gateway::Gateway;
use crate::validate::Invalid;
use crate::wire::Body;

/// The most bytes of a request body.
const MOST_BODY: usize = 64 * 1024;
/// The most names in a request, which bounds how long it takes.
const MOST_NAMES: usize = 100;

const KINDS: &str = "url=URL, route=NAME, tag=TAG or all, percent-encoded";
const JSON: &str =
    "a JSON object with one of url, route and tag (a list of texts), or {\"all\":true}";

/// What to purge: what is named in one of the lists, or all.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    /// URLs, or their paths with queries.
    pub url: Vec<String>,
    /// Names of routes.
    pub route: Vec<String>,
    /// Tags of answers.
    pub tag: Vec<String>,
    /// Whether all is purged.
    pub all: bool,
}

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
    let wanted = match (query.is_empty(), body.is_empty()) {
        (_, true) => Wanted::of_query(&query),
        (true, false) => serde_json::from_slice(&body).map_err(|error| {
            let came = String::from_utf8_lossy(&body);
            Invalid::new("the body", &came, format!("{JSON} ({error})"))
        }),
        (false, false) => Err(wrong("a query and a body", "in one of them")),
    };
    let (kind, names) = match wanted.and_then(Wanted::of_one_kind) {
        Ok(wanted) => wanted,
        Err(wrong) => return invalid(&wrong),
    };
    // It goes on if the operator's connection ends.
    match tokio::spawn(purge(gateway.clone(), kind, names)).await {
        Ok(Ok(response)) => response,
        Ok(Err(wrong)) => invalid(&wrong),
        Err(error) => {
            let detail = format!("The purge has failed ({error}): purge it again");
            problem(StatusCode::INTERNAL_SERVER_ERROR, &detail)
        }
    }
}

/// Purges, and waits until that outlives the process and the replicas have acknowledged it.
async fn purge(
    gateway: Arc<Gateway>,
    kind: &'static str,
    names: Vec<String>,
) -> Result<Response<Body>, Invalid> {
    let fill = &gateway.fill;
    let meaning = || {
        let of_name = |name: &String| meaning(kind, name, (&gateway.routes, &fill.chain));
        let all: Result<Vec<_>, _> = names.iter().map(of_name).collect();
        all.map(|purges| purges.concat())
    };
    let purges = meaning()?;
    let (_, first) = fill.purge(&purges);
    // Another name of a block may have become known meanwhile. One that becomes known later
    // comes from a response that was requested later, or that the purges above match.
    let mut others = meaning()?;
    others.retain(|purge| !purges.contains(purge));
    let (number, second) = fill.purge(&others);
    let purged = names.iter().map(|what| {
        tracing::info!(by = kind, what, number, "purged");
        json!({ "by": kind, "what": what })
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

impl Wanted {
    /// Reads a query.
    fn of_query(query: &str) -> Result<Self, Invalid> {
        let mut wanted = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
            match (name, raw) {
                ("url", _) => wanted.url.push(value(name, raw)?),
                ("route", _) => wanted.route.push(value(name, raw)?),
                ("tag", _) => wanted.tag.push(value(name, raw)?),
                ("all", "" | "true") => wanted.all = true,
                ("all", _) => return Err(Invalid::new("all", raw, "true, or without a value")),
                _ => return Err(Invalid::new("a query parameter", pair, KINDS)),
            }
        }
        Ok(wanted)
    }

    /// The kind and the names, if there are some, of one kind, and not too many.
    fn of_one_kind(self) -> Result<(&'static str, Vec<String>), Invalid> {
        let all = self.all.then(String::new).into_iter().collect();
        let kinds = [
            ("url", self.url),
            ("route", self.route),
            ("tag", self.tag),
            ("all", all),
        ];
        let mut given = kinds.into_iter().filter(|(_, names)| !names.is_empty());
        match (given.next(), given.next()) {
            (None, _) => Err(wrong("nothing", &format!("given: {KINDS}; or {JSON}"))),
            (Some((one, _)), Some((other, _))) => {
                Err(wrong(&format!("{one} and {other}"), "of one kind"))
            }
            (Some((kind, names)), None) if names.len() > MOST_NAMES => {
                let came = format!("{} of kind {kind}", names.len());
                Err(wrong(&came, &format!("at most {MOST_NAMES} in a request")))
            }
            (Some(given), None) => Ok(given),
        }
    }
}

fn wrong(came: &str, allowed: &str) -> Invalid {
    Invalid::new("what is purged", came, allowed)
}
