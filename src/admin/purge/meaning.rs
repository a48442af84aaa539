//! The purges that a name stands for.
//!
//! A block has two names, its hash and its height. What is stored under the
//! other name is purged too, if the chain knows it.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::admin::query::{listed, public_target};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::Purge;
use crate::chain::Chain;
use crate::pages::{hash, hex};
use crate::route::canonical::{BlockReference, block, path, segment, with_segment};
use crate::route::{Route, RouteTable};
use crate::validate::{Invalid, ParameterType};

const TAGS: &str = "block:HASH (64 hexadecimal digits), height:N, height:N+ (N and above), tx:TXID (64 hexadecimal digits) or ticker:TICKER";

/// The purges of a name of this kind, as far as the chain knows other names of blocks now.
pub(super) fn meaning(
    kind: &str,
    name: &str,
    (routes, chain): (&RouteTable, &Chain),
) -> Result<Vec<Purge>, Invalid> {
    match kind {
        "url" => of_url(name, routes, chain),
        "tag" => of_tag(name, routes, chain),
        "route" => match routes.routes().iter().find(|own| *own.name == *name) {
            Some(own) => Ok(vec![Purge::Route(own.number)]),
            None => {
                let names = listed(routes, |route| &route.name);
                let allowed = format!("the name of a route: {names}");
                Err(Invalid::new("route", name, allowed))
            }
        },
        _ => Ok(vec![Purge::All]),
    }
}

fn of_url(url: &str, routes: &RouteTable, chain: &Chain) -> Result<Vec<Purge>, Invalid> {
    let target = public_target(url)?;
    let Some(found) = routes.find(target.path()) else {
        let paths = listed(routes, |route| &route.request.path);
        let allowed = format!("the path of a route, with its query: {paths}");
        return Err(Invalid::new("url", url, allowed));
    };
    let route = found.route;
    let key = route.canonical(&found.captures, target.query())?;
    let mut purges = vec![of_key(&key, route)];
    // Otherwise it would be cut again from the windows of its block.
    let source = route.chain.derived_from.and(route.chain.segments.hex64);
    if let Some(tx) = source.and_then(|at| segment(key.target(), at)) {
        purges.push(Purge::Text(tx.into()));
    }
    if route.cache.mode == Mode::Chain {
        purges.extend(other_name(&key, route, chain));
    }
    Ok(purges)
}

fn of_key(key: &Key, own: &Route) -> Purge {
    let (route, target) = (key.route(), key.target());
    match own.chain.window {
        // Its pages are cut from shared windows, so they are purged together.
        Some(_) => Purge::Path {
            route,
            path: path(target).into(),
        },
        None => Purge::Target {
            route,
            target: target.into(),
        },
    }
}

fn of_tag(tag: &str, routes: &RouteTable, chain: &Chain) -> Result<Vec<Purge>, Invalid> {
    let wrong = || Invalid::new("tag", tag, TAGS);
    let (kind, value) = tag.split_once(':').ok_or_else(wrong)?;
    let text = |hash: &[u8; 32]| vec![Purge::Text(hex(hash).into())];
    let heights = |tip, from, to| Purge::Heights { tip, from, to };
    let tips = chain.tips();
    match kind {
        "tx" => Ok(text(&hash(value).ok_or_else(wrong)?)),
        "block" => {
            let block = hash(value).ok_or_else(wrong)?;
            let mut purges = text(&block);
            for (number, tip) in tips {
                if let Some(height) = tip.height_of(&block) {
                    purges.extend(blocks(routes, &height.to_string()));
                    purges.push(heights(Some(number), height, height));
                }
            }
            Ok(purges)
        }
        "height" => {
            let digits = value.strip_suffix('+').unwrap_or(value);
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            let height = digits.parse::<u32>().ok().filter(|_| plain);
            let from = height.ok_or_else(wrong)?;
            if digits != value {
                return Ok(vec![heights(None, from, u32::MAX)]);
            }
            let mut purges = blocks(routes, &from.to_string());
            purges.push(heights(None, from, from));
            let hashes = tips.filter_map(|(tip, _)| chain.hash_at(tip, from));
            purges.extend(hashes.flat_map(|hash| blocks(routes, &hex(&hash))));
            Ok(purges)
        }
        "ticker" => {
            let raw = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
            let mut canonical = Vec::new();
            ParameterType::Ticker.write_canonical("tag=ticker:", &raw, false, &mut canonical)?;
            let canonical = String::from_utf8_lossy(&canonical);
            let purges = segments(routes, |route| route.chain.segments.ticker, &canonical);
            match purges.is_empty() {
                true => Err(Invalid::new(
                    "tag",
                    tag,
                    "tags of another kind: no route has tickers",
                )),
                false => Ok(purges),
            }
        }
        _ => Err(wrong()),
    }
}

/// The purges of a block by its canonical name on all routes.
fn blocks(routes: &RouteTable, name: &str) -> Vec<Purge> {
    segments(routes, |route| route.chain.segments.block, name)
}

/// The purges of a value in a segment, on the routes that have such a segment: of its path,
/// or of the whole route where the path has other parameters.
fn segments(
    routes: &RouteTable,
    place: impl Fn(&Route) -> Option<usize>,
    value: &str,
) -> Vec<Purge> {
    let own = routes.routes().iter();
    let purge = |own: &Route| match own.upstream.path.with(value) {
        Some(path) => Purge::Path {
            route: own.number,
            path: path.into(),
        },
        None => Purge::Route(own.number),
    };
    own.filter(|own| place(own).is_some()).map(purge).collect()
}

/// The purge of a key's block by its other name.
fn other_name(key: &Key, route: &Route, chain: &Chain) -> Option<Purge> {
    let (at, tip) = (route.chain.segments.block?, route.cache.tip);
    let name = match block(key.target(), at)? {
        BlockReference::Height(height) => hex(&chain.hash_at(tip, height)?),
        BlockReference::Hash(hash) => match chain.tip(tip).height_of(&hash) {
            Some(height) => height.to_string(),
            // A response under its height may be under way; its body contains the
            // hash.
            None => return Some(Purge::Text(hex(&hash).into())),
        },
    };
    let other = with_segment(key, at, &name)?;
    Some(of_key(&other, route))
}
