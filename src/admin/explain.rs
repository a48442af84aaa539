//! `GET /explain?url=…`: what is known of a URL, and what the next request for
//! it would do.
//!
//! The gateway's own decision is shown ([`Fill::decide`](crate::fill::Fill::decide)). Nothing
//! is fetched, and nothing is counted but look-ups on disk. The answer holds for a plain GET by a
//! client within its limits, without fields that select another response.

use std::net::Ipv4Addr;

use http::header::{ETAG, VARY};
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::Serialize;
use serde_json::{Value, json};

use super::query::{listed, public_target, value};
use crate::cache::date;
use crate::cache::key::Key;
use crate::cache::outcome::Forward;
use crate::cache::policy::{Mode, Policy};
use crate::cache::reuse::Reuse;
use crate::cache::{Decision, JudgedResponse};
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::events;
use crate::fill::LookupKey;
use crate::gateway::Gateway;
use crate::route::Route;
use crate::validate::Invalid;

/// The most variants that are listed.
const MOST: usize = 20;

/// What the next request would do, why, and the targets that would be requested from
/// the upstream.
#[derive(Serialize)]
struct Next {
    does: &'static str,
    why: String,
    upstream_requests: Vec<String>,
}

impl Next {
    fn new(does: &'static str, why: impl Into<String>) -> Self {
        Self {
            does,
            why: why.into(),
            upstream_requests: Vec::new(),
        }
    }

    fn fetch<'k>(why: impl Into<String>, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let targets = keys.into_iter().map(|key| key.target().to_owned());
        Self {
            upstream_requests: targets.collect(),
            ..Self::new("fetch", why)
        }
    }

    /// The same with another reason before its own.
    fn because(mut self, why: &str) -> Self {
        self.why = format!("{why}: {}", self.why);
        self
    }
}

/// What is known of the URL in a query.
pub(super) async fn answer(gateway: &Gateway, query: Option<&str>) -> Result<Value, Invalid> {
    let allowed = "given once and alone: a public path with its query, percent-encoded";
    let raw = query.and_then(|query| query.strip_prefix("url="));
    let raw = raw.filter(|raw| !raw.contains('&'));
    let raw = raw.ok_or_else(|| Invalid::new("url", query.unwrap_or(""), allowed))?;
    let url = value("url", raw)?;
    let mut known = json!({ "url": url });
    let next = explain(gateway, &public_target(&url)?, &mut known).await;
    known["next"] = json!(next);
    Ok(known)
}

/// Adds what is known of a target; returns what the next request for it does.
async fn explain(gateway: &Gateway, target: &Uri, known: &mut Value) -> Next {
    let Some(found) = gateway.routes.find(target.path()) else {
        known["route"] = Value::Null;
        let mut documents = gateway.documents.iter();
        let is_own = documents.any(|document| document.path == target.path());
        if is_own || target.path() == events::PATH {
            return Next::new("answer itself", "This is a document of ordgate's own");
        }
        let paths = listed(&gateway.routes, |route| &route.request.path);
        let why = format!("No route has this path; there are {paths}");
        return Next::new("refuse with 404", why);
    };
    let (route, fill, now) = (found.route, &gateway.fill, gateway.clock.now());
    let key = route.canonical(&found.captures, target.query());
    known["route"] = json!(route.name);
    known["mode"] = json!(route.cache.mode);
    known["upstream"] = gateway.upstreams.get(route.upstream.number).name().into();
    known["validates"] = key.is_ok().into();
    let lookup = match key {
        Ok(key) => fill.lookup_key(route, key),
        Err(wrong) => return Next::new("refuse with 400", wrong.to_string()),
    };
    let key = &lookup.key;
    known["key"] = key.target().into();
    if route.cache.mode == Mode::Chain {
        let tip = fill.chain.tip(route.cache.tip);
        known["tip"] = json!({
            "name": tip.source.name,
            "known": tip.is_known(now),
            "height": tip.read(|ledger| ledger.tip_height()),
            "epoch": tip.view().epoch,
        });
    }
    let judged = gateway.cache.get(key, now);
    known["stored"] = match route.is_plain() {
        true => variants(gateway, route, key, now),
        false => judged
            .as_ref()
            .map(|judged| response(gateway, route, judged))
            .into(),
    };
    known["under_way"] = fill.is_under_way(key).into();
    let windows = fill.windows_of(key);
    let is_on = gateway.state.answers.is_on();
    let mut kept = Vec::new();
    for key in std::iter::once(key).chain(&windows).filter(|_| is_on) {
        if fill.is_kept(key).await {
            kept.push(key.target());
        }
    }
    known["on_disk"] = is_on.then_some(!kept.is_empty()).into();
    known["windows"] = windows.iter().map(Key::target).collect();
    let mut next = next(gateway, route, &lookup, judged.as_ref(), now);
    let sends = &mut next.upstream_requests;
    sends.retain(|target| !kept.contains(&&**target));
    if next.does == "fetch" && !kept.is_empty() && next.upstream_requests.is_empty() {
        let why =
            "It is in the state directory; the upstream is asked only if it is not known to stand";
        return Next::new("look it up on disk", why);
    }
    next
}

/// What the next request would do. `judged` is the response that is stored under the key,
/// whether or not it may answer.
fn next(
    gateway: &Gateway,
    route: &Route,
    lookup: &LookupKey,
    judged: Option<&JudgedResponse>,
    now: Moment,
) -> Next {
    // The address matters only to a response that varies by it.
    let address = Ipv4Addr::UNSPECIFIED.into();
    let request = (&Method::GET, &HeaderMap::new(), address);
    let plan = || plan(gateway, route, &lookup.key, now);
    match gateway.fill.decide(route, lookup, request, now) {
        Decision::Serve {
            stored,
            reuse: Reuse::Fresh,
        } => Next::new("hit", fresh(&stored)),
        Decision::Serve { .. } => Next {
            does: "stale hit and refresh",
            ..plan().because("It is stale, and is served while it is refreshed")
        },
        Decision::Fetch {
            why: Forward::Bypass,
            ..
        } => Next::fetch("The route stores nothing", [&lookup.key]),
        Decision::Fetch {
            stored: Some(stored),
            ..
        } => plan().because(&match stored.freshness {
            Freshness::Stale { by } if by < route.cache.stale_if_error => format!(
                "It is stale by {} s; if the upstream fails, or takes longer than cache.stale_wait, the stored response is served",
                by.as_secs()
            ),
            Freshness::Stale { .. } | Freshness::Fresh { .. } | Freshness::BecameFinal => {
                "What is stored must be validated first".to_owned()
            }
        }),
        Decision::Fetch { stored: None, .. } => match judged.map(|judged| judged.freshness) {
            Some(Freshness::Fresh { .. } | Freshness::BecameFinal) => Next::fetch(
                "The response stored for this height is of another block than the requested hash, because of a reorg, so the hash is fetched",
                [lookup.requested()],
            ),
            Some(Freshness::Stale { .. }) => {
                plan().because("The stored response is too old to be served, even stale")
            }
            None if route.is_plain() => {
                plan().because("Nothing is stored that answers a request without fields")
            }
            None => plan().because("Nothing is stored for it"),
        },
        Decision::OnlyIfCached => Next::new("refuse with 504", "Nothing is stored"),
    }
}

fn fresh(judged: &JudgedResponse) -> String {
    let class = judged.stored.stamp.as_ref().map(|stamp| stamp.class.name());
    let class = class.map_or_else(String::new, |class| format!(" ({class})"));
    match judged.freshness {
        Freshness::BecameFinal => {
            "Its blocks have become final since it was stored; it will be stored as final".into()
        }
        Freshness::Fresh { .. } | Freshness::Stale { .. } => {
            format!("It is stored{class} and fresh for {} s", judged.ttl())
        }
    }
}

/// How a key would be fetched.
fn plan(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Next {
    if route.is_plain() {
        return Next::fetch("it is requested from the origin", [key]);
    }
    let requests = gateway.fill.requests(key);
    let failed = |key| gateway.fill.failures.recent(key, now);
    if let Some(failure) = requests.iter().find_map(failed) {
        let why = format!(
            "its last fetches failed ({}), so it is not fetched again for a while",
            failure.reason.name()
        );
        return Next::new("answer with the last failure", why);
    }
    match &requests[..] {
        [] => Next::new(
            "cut from stored windows",
            "the windows that it needs are stored and fresh",
        ),
        [own] if own == key => Next::fetch("it is fetched with one request", &requests),
        _ => Next::fetch(
            "it is cut from windows that are missing or stale",
            &requests,
        ),
    }
}

/// A stored response.
fn response(gateway: &Gateway, route: &Route, judged: &JudgedResponse) -> Value {
    let stored = &judged.stored;
    let (etag, lifetime) = match stored.origin() {
        Some(origin) => (origin.map.get(ETAG), origin.reuse.lifetime),
        None => (Some(&stored.etag), stored.lifetime),
    };
    let vary = stored.origin().and_then(|origin| origin.map.get(VARY));
    let stamp = stored.stamp.as_ref();
    let heights = stamp.and_then(|stamp| stamp.heights);
    json!({
        "status": stored.status.as_u16(),
        "bytes": stored.body.len(),
        "content_type": text(&stored.content_type()),
        "etag": etag.map(text),
        "vary": vary.map(text),
        "received": text(&date::value(gateway.clock.wall(stored.received))),
        "age_seconds": judged.age.as_secs_f64(),
        "lifetime_seconds": lifetime.as_secs_f64(),
        "upstream_took_seconds": stored.took.as_secs_f64(),
        "freshness": freshness(judged, &route.cache),
        "class": stamp.map(|stamp| stamp.class.name()),
        "epoch": stamp.map(|stamp| {
            json!({ "stored": stamp.epoch, "present": gateway.fill.chain.tip(stamp.tip).view().epoch })
        }),
        "heights": heights.map(|(from, to)| json!({ "from": from, "to": to })),
    })
}

fn freshness(judged: &JudgedResponse, policy: &Policy) -> Value {
    match judged.freshness {
        Freshness::Fresh { .. } | Freshness::BecameFinal => {
            json!({ "is": "fresh", "ttl_seconds": judged.ttl() })
        }
        Freshness::Stale { by } => json!({
            "is": "stale",
            "by_seconds": by.as_secs_f64(),
            "usable_while_revalidated": by < policy.stale_while_revalidate,
            "usable_if_upstream_fails": by < policy.stale_if_error,
        }),
    }
}

/// The responses of a target on a plain route.
fn variants(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Value {
    let variants = gateway.cache.store().variants(key).unwrap_or_default();
    let shown = variants.iter().rev().take(MOST).map(|stored| {
        let judged = gateway.cache.judged(stored.clone(), now);
        response(gateway, route, &judged)
    });
    json!({ "count": variants.len(), "newest_first": shown.collect::<Value>() })
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}
