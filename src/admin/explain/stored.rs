//! Stored responses as `/explain` describes them.

use http::HeaderValue;
use http::header::{ETAG, VARY};
use serde_json::{Value, json};

use crate::cache::JudgedResponse;
use crate::cache::coding::Coding;
use crate::cache::date;
use crate::cache::encoded::BodyId;
use crate::cache::key::Key;
use crate::cache::policy::Policy;
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::pages::{Page, hex};
use crate::route::Route;
use crate::route::canonical::segment;
use crate::validate::decode;

/// The most blocks, transactions and variants that are listed.
const MOST: usize = 20;

/// A stored response.
pub(super) fn response(
    gateway: &Gateway,
    route: &Route,
    key: &Key,
    judged: &JudgedResponse,
    now: Moment,
) -> Value {
    let stored = &judged.stored;
    let received = date::value(gateway.clock.wall(stored.received));
    let age = gateway.cache.age(stored, judged.freshness, now);
    let (etag, lifetime) = match stored.origin() {
        Some(origin) => (origin.map.get(ETAG), origin.reuse.lifetime()),
        None => (Some(&stored.etag), stored.lifetime),
    };
    let mut described = json!({
        "status": stored.status.as_u16(),
        "bytes": stored.body.len(),
        "content_type": text(&stored.content_type()),
        "etag": etag.map(text),
        "compressed": compressed(gateway, key, stored.body_id),
        "received": received.to_str().ok(),
        "age_seconds": age.as_secs_f64(),
        "lifetime_seconds": lifetime.as_secs_f64(),
        "upstream_took_seconds": stored.took.as_secs_f64(),
        "freshness": freshness(judged, &route.cache),
    });
    if let Some(origin) = stored.origin() {
        described["vary"] = origin.map.get(VARY).map(text).into();
    }
    if let Some(stamp) = stored.stamp() {
        described["class"] = stamp.class.name().into();
        described["epoch"] = json!({
            "stored": stamp.epoch,
            "present": gateway.fill.chain.epoch(stamp.tip),
        });
        let heights = stamp
            .heights
            .map(|(from, to)| json!({ "from": from, "to": to }));
        described["heights"] = heights.into();
    }
    if let Some(page) = stored.page() {
        described["tags"] = tags(page);
    }
    let ticker = route
        .chain
        .segments
        .ticker
        .and_then(|at| segment(key.target(), at));
    if let Some(ticker) = ticker.and_then(|ticker| decode(ticker, false)) {
        described["tags"] = json!({ "ticker": ticker });
    }
    described
}

/// A body in other codings.
fn compressed(gateway: &Gateway, key: &Key, id: BodyId) -> Value {
    if !id.is_encodable() {
        return json!("forbidden");
    }
    let each = Coding::ALL.into_iter().filter_map(|coding| {
        let encoded = gateway.cache.store().encoded(key, coding, id)?;
        let state = match &encoded.bytes {
            Some(bytes) => json!({ "bytes": bytes.len() }),
            None => json!("waiting, or not worthwhile"),
        };
        Some((coding.name().to_owned(), state))
    });
    Value::Object(each.collect())
}

/// The tags of a page.
fn tags(page: &Page) -> Value {
    let blocks = &page.blocks;
    let shown = blocks.iter().take(MOST);
    let shown: Vec<_> = shown
        .map(|block| json!({ "height": block.height, "hash": hex(&block.hash) }))
        .collect();
    let txs = page.txs.iter().take(MOST).map(|part| hex(&part.tx));
    let txs: Vec<_> = txs.collect();
    json!({
        "items": page.len(),
        "total": page.total,
        "blocks": { "count": blocks.len(), "first": shown },
        "transactions": { "count": page.txs.len(), "first": txs },
    })
}

fn freshness(judged: &JudgedResponse, policy: &Policy) -> Value {
    match judged.freshness {
        Freshness::Fresh { ttl } | Freshness::BecameFinal { ttl } => {
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
    let judged = gateway.cache.get(key, now);
    match (judged, gateway.fill.route(key)) {
        (Some(judged), Some(route)) => freshness(&judged, &route.cache),
        (None, _) | (_, None) => json!({ "is": "absent" }),
    }
}

/// The windows that a page is cut from.
pub(super) fn windows(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Value {
    let keys = gateway.fill.windows_of(key);
    let windows = keys.iter().map(|key| {
        json!({
            "key": key.target(),
            "freshness": freshness_of(gateway, key, now),
        })
    });
    json!({
        "upstream_page": route.chain.window,
        "sliceable": gateway.fill.are_pages_cut(key.route()),
        "windows": windows.collect::<Vec<_>>(),
    })
}

/// The window of another route that a transaction's page is cut from.
pub(super) fn derived_from(gateway: &Gateway, source: u16, key: &Key, now: Moment) -> Value {
    let source = gateway.routes.get(source);
    let seen = gateway.fill.seen_in(key).map(|(location, window)| {
        json!({
            "height": location.height,
            "key": window.target(),
            "freshness": freshness_of(gateway, &window, now),
        })
    });
    json!({
        "route": source.map(|source| &*source.name),
        "seen_in": seen,
    })
}

/// The responses of a target on a route in mode `respect`.
pub(super) fn variants(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Value {
    let variants = gateway.cache.store().variants(key);
    let variants = variants.as_deref().unwrap_or_default();
    let shown = variants.iter().rev().take(MOST).map(|stored| {
        let judged = gateway.cache.judged(stored.clone(), now);
        response(gateway, route, key, &judged, now)
    });
    let shown: Vec<_> = shown.collect();
    json!({ "count": variants.len(), "newest_first": shown })
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}
