//! What is known of a URL, and what the next request for it would do:
//! `GET /explain?url=…`.
//!
//! It asks memory and the chain what the walk would ask them, and neither
//! fetches nor counts anything. What it says of the next request holds for a
//! plain GET, by a caller who is within the limit.
//!
//! Deliberately absent: requests that are told from each other by their fields
//! (`Vary`, conditions, `cache-control`), and what is being fetched just now,
//! but that it is.

use std::net::Ipv4Addr;

use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, Method};
use serde_json::{Map, Value, json};

use super::purge::paths;
use super::{asked, public_target};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::{Mode, Policy};
use crate::cache::variant::Variant;
use crate::cache::{Lookup, date};
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::fill::Plan;
use crate::gateway::Gateway;
use crate::pages::{Page, hex};
use crate::relay::{Recall, recall};
use crate::route::canonical::{BlockReference, block, segment};
use crate::route::{HeaderMode, Route};
use crate::validate::{Invalid, decode};

/// The most blocks, transactions and variants that are listed.
const MOST: usize = 20;

/// What is known of the URL that a query names.
pub(super) fn answer(gateway: &Gateway, query: Option<&str>) -> Result<Value, Invalid> {
    let mut url = None;
    for pair in query.unwrap_or("").split('&').filter(|p| !p.is_empty()) {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "url" {
            let allowed = "url=URL alone, percent-encoded";
            return Err(Invalid::new("a query parameter", pair, allowed));
        }
        if url.replace(asked(name, raw)?).is_some() {
            return Err(Invalid::new("url", pair, "given once"));
        }
    }
    let wanted = || {
        Invalid::new(
            "url",
            "",
            "given: a public path with its query, percent-encoded",
        )
    };
    explain(gateway, &url.ok_or_else(wanted)?)
}

/// What the next request would do, and why.
struct Next {
    does: &'static str,
    why: String,
    asks: Vec<String>,
}

impl Next {
    fn new(does: &'static str, why: impl Into<String>) -> Self {
        Self {
            does,
            why: why.into(),
            asks: Vec::new(),
        }
    }

    fn asks<'k>(why: impl Into<String>, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let asks = keys.into_iter().map(|key| key.target().to_owned());
        Self {
            does: "ask upstream",
            why: why.into(),
            asks: asks.collect(),
        }
    }

    fn value(&self) -> Value {
        json!({ "does": self.does, "why": self.why, "asks": self.asks })
    }
}

fn explain(gateway: &Gateway, url: &str) -> Result<Value, Invalid> {
    let target = public_target(url)?;
    let mut said = Map::new();
    said.insert("url".into(), url.into());
    let Some(found) = gateway.routes.find(target.path()) else {
        let document = gateway.documents.iter().any(|d| d.path == target.path());
        let next = match document {
            true => Next::new("answer itself", "This is a document of ordgate's own"),
            false => Next::new(
                "refuse with 404",
                format!("This is not {}", paths(&gateway.routes)),
            ),
        };
        said.insert("route".into(), Value::Null);
        said.insert("next".into(), next.value());
        return Ok(said.into());
    };
    let route = found.route;
    said.insert("route".into(), (*route.name).into());
    let mode = Mode::NAMES.iter().find(|(_, m)| *m == route.cache.mode);
    said.insert("mode".into(), mode.map(|(name, _)| *name).into());
    let upstream = gateway.upstreams.get(route.upstream);
    said.insert("upstream".into(), upstream.name().into());
    let key = route.canonical(&found.captures, target.query());
    said.insert("validates".into(), key.is_ok().into());
    let key = match key {
        Ok(key) => key,
        Err(wrong) => {
            let next = Next::new("refuse with 400", wrong.to_string());
            said.insert("next".into(), next.value());
            return Ok(said.into());
        }
    };
    said.insert("key".into(), key.target().into());
    let now = gateway.clock.now();
    if route.headers == HeaderMode::All || route.cache.mode == Mode::Respect {
        let under_way = gateway.relay.ongoing.fetching.has(key.as_bytes());
        said.insert("under_way".into(), under_way.into());
        relayed(gateway, route, &key, now, &mut said);
    } else {
        filled(gateway, route, key, now, &mut said);
    }
    Ok(said.into())
}

/// Of a route that goes by the chain, by fixed times, or without a cache.
fn filled(gateway: &Gateway, route: &Route, key: Key, now: Moment, said: &mut Map<String, Value>) {
    let fill = &gateway.fill;
    let policy = &route.cache;
    let asking = match policy.mode {
        Mode::Chain => fill.lookup_key(route, key),
        Mode::Off | Mode::Override | Mode::Respect => crate::fill::LookupKey { key, by_hash: None },
    };
    let key = &asking.key;
    if policy.mode == Mode::Chain {
        let tips = fill.chain.snapshots(now);
        let tip = tips.get(usize::from(policy.tip)).map(|tip| {
            json!({
                "name": tip.name, "known": tip.known, "height": tip.height, "epoch": tip.epoch,
            })
        });
        said.insert("tip".into(), tip.into());
        said.insert("block".into(), alias(gateway, route, &asking));
    }
    if let Some(by_hash) = &asking.by_hash {
        // What is said from here on is of the one that is stored.
        said.insert("key".into(), key.target().into());
        said.insert("key_by_hash".into(), by_hash.target().into());
    }
    said.insert("under_way".into(), fill.collapse.has(key.as_bytes()).into());
    let stored = gateway.cache.store().get(key);
    let described = stored
        .as_deref()
        .map(|stored| description(gateway, route, key, stored, now));
    said.insert("stored".into(), described.into());
    if route.pages.is_some() {
        said.insert("pages".into(), windows(gateway, route, key, now));
    }
    if let Some(source) = route.derived_from {
        let source = gateway.routes.get(source);
        let seen = fill.seen_in(key).map(|(place, window)| {
            json!({
                "height": place.height,
                "key": window.target(),
                "freshness": freshness_of(gateway, &window, now),
            })
        });
        let derived = json!({
            "route": source.map(|source| &*source.name),
            "seen_in": seen,
        });
        said.insert("derived_from".into(), derived);
    }
    let next = match gateway.cache.look_up(key, policy, now) {
        Lookup::Fresh { stored, .. } | Lookup::Revalidated { stored, .. }
            if !fill.is_answer(&asking, &stored) =>
        {
            let why = "A reorg has parted the hash from the height under which it is stored";
            Next::asks(why, &asking.by_hash)
        }
        Lookup::Fresh { ttl, .. } => Next::new("hit", fresh(stored.as_deref(), ttl.as_secs())),
        Lookup::Revalidated { .. } => Next::new(
            "hit",
            "Its blocks have become final since it was stored, and it will be kept as such",
        ),
        Lookup::Stale {
            by,
            while_revalidate: true,
            ..
        } => {
            let plan = planned(gateway, key);
            Next {
                does: "stale hit and refresh",
                why: format!(
                    "It is stale by {} s, within the route's stale_while_revalidate; meanwhile: {}",
                    by.as_secs(),
                    plan.why
                ),
                asks: plan.asks,
            }
        }
        Lookup::Stale { by, if_error, .. } => {
            let plan = planned(gateway, key);
            let else_ = match if_error {
                true => {
                    "; what is stored stands in where that fails, or takes longer than cache.stale_wait"
                }
                false => "",
            };
            Next {
                why: format!("It is stale by {} s: {}{else_}", by.as_secs(), plan.why),
                ..plan
            }
        }
        Lookup::Absent => {
            let plan = planned(gateway, key);
            let why = match stored {
                Some(_) => "What is stored is past every use",
                None => "Nothing is stored under this key",
            };
            Next {
                why: format!("{why}: {}", plan.why),
                ..plan
            }
        }
        Lookup::Bypass => Next::asks("The route stores nothing", [key]),
    };
    said.insert("next".into(), next.value());
}

fn fresh(stored: Option<&StoredResponse>, ttl: u64) -> String {
    let class = stored.and_then(|stored| stored.stamp());
    match class.map(|standing| standing.class) {
        Some(class) if class.ends_with_epoch() => format!(
            "It is stored and fresh: {}, in the present epoch, and no more than {ttl} s are promised",
            class.name()
        ),
        Some(class) => format!("It is stored and fresh: {}, for {ttl} s", class.name()),
        None => format!("It is stored and fresh for {ttl} s"),
    }
}

/// What finding a key out would do.
fn planned(gateway: &Gateway, key: &Key) -> Next {
    let cut = |why: &str| Next::new("cut from stored windows", why);
    if let Some(failure) = gateway.fill.remembered(key) {
        let why = format!(
            "it has gone on failing ({}), and is not asked for again for a while; a stale answer stands in, where there is one",
            failure.name()
        );
        return Next::new("answer with the error that is remembered", why);
    }
    match gateway.fill.plan(key) {
        Plan::Check(chosen) => Next::asks(
            "what is stored is live and old: if this one of the same tip has not changed, it is fresh again",
            [&chosen],
        ),
        Plan::Confirm(anchor) => Next::asks(
            "one request shows whether the blocks that it names still stand, and then it is fresh again",
            [&anchor],
        ),
        Plan::Derive => cut("its block's stored windows have the transaction whole"),
        Plan::Cut => cut("the windows that it touches are stored and fresh"),
        Plan::Windows {
            asks,
            disagree: true,
        } => Next::asks(
            "its windows are stored, of different moments, and are asked for anew",
            &asks,
        ),
        Plan::Windows { asks, .. } => Next::asks(
            "it is cut from windows, and not all of them are stored and fresh",
            &asks,
        ),
        Plan::Plain => Next::asks("the upstream is asked for it as it is", [key]),
    }
}

/// A block's other name, where the route has one in its path.
fn alias(gateway: &Gateway, route: &Route, asking: &crate::fill::LookupKey) -> Value {
    let (fill, tip) = (&gateway.fill, route.cache.tip);
    let named = asking.by_hash.as_ref().unwrap_or(&asking.key);
    let asked = route.places.block.and_then(|at| block(named.target(), at));
    match asked {
        Some(BlockReference::Hash(hash)) => json!({
            "hash": hex(&hash),
            "height": fill.chain.height_of(tip, &hash),
        }),
        Some(BlockReference::Height(height)) => json!({
            "hash": fill.chain.hash_at(tip, height).map(|hash| hex(&hash)),
            "height": height,
        }),
        None => Value::Null,
    }
}

/// A stored response, with all that is known of it.
fn description(
    gateway: &Gateway,
    route: &Route,
    key: &Key,
    stored: &StoredResponse,
    now: Moment,
) -> Value {
    let text = |value: Option<&http::HeaderValue>| {
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    // Judging may show that it holds in the present epoch.
    let judged = gateway.cache.judge(stored, now);
    let epoch = stored.stamp().map(crate::chain::ChainStamp::epoch);
    let mut said = json!({
        "status": stored.status.as_u16(),
        "bytes": stored.body.len(),
        "content_type": text(Some(&stored.metadata.content_type)),
        "etag": text(Some(&stored.etag)),
        "received": wall(gateway, stored.received),
        "age_seconds": gateway.cache.age(stored, judged, now).as_secs_f64(),
        "lifetime_seconds": stored.lifetime.as_secs_f64(),
        "upstream_took_seconds": stored.took.as_secs_f64(),
        "freshness": freshness(gateway, stored, &route.cache, now),
    });
    if let Some(standing) = stored.stamp() {
        said["class"] = standing.class.name().into();
        said["epoch"] = json!({
            "stored": epoch,
            "present": gateway.fill.chain.epoch(standing.tip),
        });
        said["heights"] = standing
            .heights()
            .map(|(from, to)| json!({ "from": from, "to": to }))
            .into();
    }
    if let Some(page) = stored.page() {
        said["tags"] = tags(page);
    }
    let ticker = route.places.ticker.and_then(|at| segment(key.target(), at));
    if let Some(ticker) = ticker.and_then(|ticker| decode(ticker, false)) {
        said["tags"] = json!({ "ticker": ticker });
    }
    said
}

/// What a page names.
fn tags(page: &Page) -> Value {
    let blocks = page.blocks();
    let shown = blocks.iter().take(MOST);
    let shown: Vec<_> = shown
        .map(|block| json!({ "height": block.height, "hash": hex(&block.hash) }))
        .collect();
    let runs = page.runs();
    let txs: Vec<_> = runs.iter().take(MOST).map(|run| hex(&run.tx)).collect();
    json!({
        "items": page.len(),
        "total": page.total,
        "blocks": { "count": blocks.len(), "first": shown },
        "transactions": { "count": runs.len(), "first": txs },
    })
}

fn freshness(gateway: &Gateway, stored: &StoredResponse, policy: &Policy, now: Moment) -> Value {
    match gateway.cache.judge(stored, now) {
        Freshness::Fresh { ttl } | Freshness::Revalidated { ttl } => {
            json!({ "is": "fresh", "ttl_seconds": ttl.as_secs_f64() })
        }
        Freshness::Stale { by } => json!({
            "is": "stale",
            "by_seconds": by.as_secs_f64(),
            "usable_while_revalidated": by < policy.stale_while_revalidate,
            "usable_if_upstream_fails": by < policy.stale_if_error,
        }),
    }
}

fn freshness_of(gateway: &Gateway, key: &Key, now: Moment) -> Value {
    let stored = gateway.cache.store().get(key);
    let route = gateway.fill.route(key);
    match (stored, route) {
        (Some(stored), Some(route)) => freshness(gateway, &stored, &route.cache, now),
        (None, _) | (_, None) => json!({ "is": "absent" }),
    }
}

/// The windows that a page is cut from.
fn windows(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Value {
    let keys = gateway.fill.windows_of(key);
    let windows = keys.iter().map(|key| {
        json!({
            "key": key.target(),
            "freshness": freshness_of(gateway, key, now),
        })
    });
    json!({
        "upstream_page": route.pages,
        "sliceable": gateway.fill.is_sliceable(key.route()),
        "windows": windows.collect::<Vec<_>>(),
    })
}

/// Of a route that obeys the origin's fields.
fn relayed(
    gateway: &Gateway,
    route: &Route,
    key: &Key,
    now: Moment,
    said: &mut Map<String, Value>,
) {
    if route.cache.mode == Mode::Respect {
        let variants = gateway.cache.variants(key);
        let variants = variants.as_deref().unwrap_or_default();
        let shown = variants.iter().rev().take(MOST);
        let shown: Vec<_> = shown.map(|v| variant(gateway, v, now)).collect();
        said.insert(
            "stored".into(),
            json!({ "count": variants.len(), "newest_first": shown }),
        );
    } else {
        said.insert("stored".into(), Value::Null);
    }
    let (get, fields) = (Method::GET, HeaderMap::new());
    // No client's address; only a response that varies by it would ask.
    let peer = Ipv4Addr::UNSPECIFIED.into();
    let next = match recall(&gateway.relay, route, &get, &fields, peer, key, now) {
        Recall::Answer { refresh: false, .. } => {
            Next::new("hit", "It is stored, and may be used by RFC 9111")
        }
        Recall::Answer { .. } => Next {
            does: "stale hit and refresh",
            ..Next::asks(
                "It is stale, and may be used while it is validated (RFC 5861)",
                [key],
            )
        },
        Recall::Forward {
            chosen: Some(_), ..
        } => Next::asks("What is stored has to be validated", [key]),
        Recall::Forward { .. } if route.cache.mode != Mode::Respect => {
            Next::asks("The route stores nothing", [key])
        }
        Recall::Forward { .. } => Next::asks(
            "Nothing is stored that answers a request without fields",
            [key],
        ),
        Recall::OnlyIfCached => Next::new("refuse with 504", "Nothing is stored"),
    };
    said.insert("next".into(), next.value());
}

fn variant(gateway: &Gateway, variant: &Variant, now: Moment) -> Value {
    let wall_now = gateway.clock.wall(now);
    let text = |name| {
        let value: Option<&http::HeaderValue> = variant.fields.get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let fresh = variant.reuse.is_fresh(wall_now);
    json!({
        "status": variant.status.as_u16(),
        "bytes": variant.body.len(),
        "content_type": text(CONTENT_TYPE),
        "etag": text(ETAG),
        "vary": text(http::header::VARY),
        "received": date::value(variant.received).to_str().ok(),
        "age_seconds": variant.reuse.aging().current_age(wall_now).as_secs(),
        "lifetime_seconds": variant.reuse.lifetime().duration.as_secs(),
        "freshness": {
            "is": if fresh { "fresh" } else { "stale" },
            "ttl_seconds": variant.reuse.ttl(wall_now),
        },
    })
}

/// A moment as a date.
fn wall(gateway: &Gateway, moment: Moment) -> Option<String> {
    let value = date::value(gateway.clock.wall(moment));
    value.to_str().ok().map(str::to_owned)
}
