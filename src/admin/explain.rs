//! `GET /explain?url=…`: what is known of a URL, and what the next request for
//! it would do.
//!
//! The decision comes from the functions that the gateway calls
//! ([`cache::decision`](crate::cache::decision)). Nothing is fetched or counted.
//! The answer holds for a plain GET by a client within its limits.
//!
//! Not here: requests with fields that select another response (`Vary`,
//! conditions, `cache-control`).

mod next;
mod stored;

use http::Uri;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;

use self::next::Next;
use super::query::{paths, public_target, value};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::clock::Moment;
use crate::fill::LookupKey;
use crate::gateway::Gateway;
use crate::listener::MAX_TARGET_BYTES;
use crate::pages::hex;
use crate::route::Route;
use crate::route::canonical::{BlockReference, block};
use crate::validate::Invalid;

/// What is known of the URL in a query.
pub(super) fn answer(gateway: &Gateway, query: Option<&str>) -> Result<Value, Invalid> {
    let mut url = None;
    for pair in query.unwrap_or("").split('&').filter(|p| !p.is_empty()) {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "url" {
            let allowed = "url=URL alone, percent-encoded";
            return Err(Invalid::new("a query parameter", pair, allowed));
        }
        if url.replace(value(name, raw)?).is_some() {
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
    let url = url.ok_or_else(wanted)?;
    let target = public_target(&url)?;
    let mut explained = Map::new();
    let mut next = explain(gateway, &target, &mut explained);
    next.add_note(not_as_given(&url));
    explained.insert("url".into(), url.into());
    explained.insert("next".into(), next.value());
    Ok(explained.into())
}

/// In which other form a URL is explained, if a request cannot have it as it is given: it
/// was probably typed or copied, and clients change such URLs before they send them.
fn not_as_given(url: &str) -> Option<&'static str> {
    let has_fragment = url.contains('#');
    // As the listener checks it.
    let whole = url.split('#').next().unwrap_or_default();
    match (Uri::try_from(whole).is_ok(), has_fragment) {
        (true, false) => None,
        (true, true) => Some(
            "The URL is explained without its fragment (from # on); a request that has one gets 400",
        ),
        (false, false) => {
            Some("The URL is explained percent-encoded; a request with it as it is given gets 400")
        }
        (false, true) => Some(
            "The URL is explained percent-encoded and without its fragment (from # on); a request with it as it is given gets 400",
        ),
    }
}

/// Adds what is known of a target; returns what the next request for it does.
fn explain(gateway: &Gateway, target: &Uri, explained: &mut Map<String, Value>) -> Next {
    let length = target
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if length > MAX_TARGET_BYTES {
        let most = MAX_TARGET_BYTES;
        let why = format!("The target has {length} bytes, and the most is {most}");
        return Next::new("refuse with 414", why);
    }
    let Some(found) = gateway.routes.find(target.path()) else {
        explained.insert("route".into(), Value::Null);
        let mut documents = gateway.documents.iter();
        return match documents.any(|document| document.path == target.path()) {
            true => Next::new("answer itself", "This is a document of ordgate's own"),
            false => {
                let why = format!("This is not {}", paths(&gateway.routes));
                Next::new("refuse with 404", why)
            }
        };
    };
    let route = found.route;
    explained.insert("route".into(), (*route.name).into());
    explained.insert("mode".into(), json!(route.cache.mode));
    let upstream = gateway.upstreams.get(route.upstream.number);
    explained.insert("upstream".into(), upstream.name().into());
    let key = route.canonical(&found.captures, target.query());
    explained.insert("validates".into(), key.is_ok().into());
    let key = match key {
        Ok(key) => key,
        Err(wrong) => return Next::new("refuse with 400", wrong.to_string()),
    };
    explained.insert("key".into(), key.target().into());
    let now = gateway.clock.now();
    match route.is_plain() {
        true => explain_plain(gateway, route, key, now, explained),
        false => explain_filled(gateway, route, key, now, explained),
    }
}

/// A route in mode `chain`, `override` or `off`.
fn explain_filled(
    gateway: &Gateway,
    route: &Route,
    key: Key,
    now: Moment,
    explained: &mut Map<String, Value>,
) -> Next {
    let fill = &gateway.fill;
    let lookup = gateway.fill.lookup_key(route, key);
    let key = &lookup.key;
    if route.cache.mode == Mode::Chain {
        let tips = fill.chain.snapshots(now);
        let tip = tips.get(usize::from(route.cache.tip)).map(|tip| {
            json!({
                "name": tip.name, "known": tip.known, "height": tip.height, "epoch": tip.epoch,
            })
        });
        explained.insert("tip".into(), tip.into());
        explained.insert("block".into(), block_names(gateway, route, &lookup));
    }
    if let Some(by_hash) = &lookup.by_hash {
        // From here on the key is the one that the response is stored under.
        explained.insert("key".into(), key.target().into());
        explained.insert("key_by_hash".into(), by_hash.target().into());
    }
    let under_way = fill.is_under_way(key);
    explained.insert("under_way".into(), under_way.into());
    let judged = gateway.cache.get(key, now);
    let described = judged
        .as_ref()
        .map(|judged| stored::response(gateway, route, key, judged, now));
    explained.insert("stored".into(), described.into());
    explained.insert("on_disk".into(), on_disk(gateway, key).into());
    if route.chain.window.is_some() {
        let windows = stored::windows(gateway, route, key, now);
        explained.insert("pages".into(), windows);
    }
    if let Some(source) = route.chain.derived_from {
        let derived = stored::derived_from(gateway, source, key, now);
        explained.insert("derived_from".into(), derived);
    }
    next::of_filled(gateway, route, &lookup, judged.as_ref(), now)
}

/// Whether a response is in the state directory, or a window that it is cut from. `None`
/// without one. It waits for the disk.
fn on_disk(gateway: &Gateway, key: &Key) -> Option<bool> {
    let windows = gateway.fill.windows_of(key);
    let mut keys = std::iter::once(key).chain(&windows);
    let has = |key: &Key| Handle::current().block_on(gateway.fill.is_kept(key));
    gateway.state.answers.is_on().then(|| keys.any(has))
}

/// A plain route.
fn explain_plain(
    gateway: &Gateway,
    route: &Route,
    key: Key,
    now: Moment,
    explained: &mut Map<String, Value>,
) -> Next {
    let under_way = gateway.fill.collapse.has(key.as_bytes());
    explained.insert("under_way".into(), under_way.into());
    let stored = match route.cache.mode {
        Mode::Respect => stored::variants(gateway, route, &key, now),
        Mode::Off | Mode::Override | Mode::Chain => Value::Null,
    };
    explained.insert("stored".into(), stored);
    next::of_plain(gateway, route, key, now)
}

/// The hash and the height of the block in a request's path.
fn block_names(gateway: &Gateway, route: &Route, lookup: &LookupKey) -> Value {
    let (chain, tip) = (&gateway.fill.chain, route.cache.tip);
    let requested = lookup.requested();
    let reference = route
        .chain
        .segments
        .block
        .and_then(|at| block(requested.target(), at));
    match reference {
        Some(BlockReference::Hash(hash)) => json!({
            "hash": hex(&hash),
            "height": chain.height_of(tip, &hash),
        }),
        Some(BlockReference::Height(height)) => json!({
            "hash": chain.hash_at(tip, height).map(|hash| hex(&hash)),
            "height": height,
        }),
        None => Value::Null,
    }
}
