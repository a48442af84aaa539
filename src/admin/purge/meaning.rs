//! What a selector means: the purges that it stands for.
//!
//! A block has two names, its hash and its height. What is stored under the
//! other name is purged too, if the chain knows it.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::selector::Selector;
use crate::admin::query::{paths, public_target, route_names};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::Purge;
use crate::chain::Chain;
use crate::pages::{hash, hex};
use crate::route::canonical::{BlockReference, block, path, segment, with_segment};
use crate::route::{Route, RouteTable};
use crate::validate::{Invalid, ParameterType};

const TAGS: &str = "block:HASH (64 hexadecimal digits), height:N, height:N+ (N and above), tx:TXID (64 hexadecimal digits) or ticker:TICKER";

/// What a selector means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    /// The purges that follow from the selector alone.
    pub(super) certain: Vec<Purge>,
    /// The block whose other name is to be purged too, if it is known.
    pub(super) alias: Option<Alias>,
}

/// A block that has another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Alias {
    /// A block in the path of a route.
    Path(Key),
    /// A block by its hash.
    Block([u8; 32]),
    /// A block by its height.
    Height(u32),
}

/// The meaning of a selector.
pub(super) fn meaning(selector: &Selector, routes: &RouteTable) -> Result<Meaning, Invalid> {
    match selector {
        Selector::All => Ok(certain(vec![Purge::All])),
        Selector::Route(name) => {
            let found = routes.routes().iter().find(|own| *own.name == **name);
            let found = found.map(|own| certain(vec![Purge::Route(own.number)]));
            found.ok_or_else(|| Invalid::new("route", name, route_names(routes)))
        }
        Selector::Url(url) => {
            let (key, route) = key_of(url, routes)?;
            Ok(of_url(key, route))
        }
        Selector::Tag(tag) => of_tag(tag, routes),
    }
}

/// Purges that follow from a selector alone.
const fn certain(certain: Vec<Purge>) -> Meaning {
    Meaning {
        certain,
        alias: None,
    }
}

/// The key of a public URL, and its route.
fn key_of<'r>(url: &str, routes: &'r RouteTable) -> Result<(Key, &'r Route), Invalid> {
    let target = public_target(url)?;
    let Some(found) = routes.find(target.path()) else {
        return Err(Invalid::new("url", url, paths(routes)));
    };
    let key = found.route.canonical(&found.captures, target.query())?;
    Ok((key, found.route))
}

fn of_url(key: Key, route: &Route) -> Meaning {
    let target = key.target();
    let mut certain = vec![of_key(&key, route)];
    // Otherwise it would be cut again from the windows of its block.
    let source = route.chain.derived_from.and(route.chain.segments.hex64);
    if let Some(tx) = source.and_then(|at| segment(target, at)) {
        certain.push(Purge::Text(tx.into()));
    }
    let has_alias = route.cache.mode == Mode::Chain && route.chain.segments.block.is_some();
    let alias = has_alias.then_some(Alias::Path(key));
    Meaning { certain, alias }
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

fn of_tag(tag: &str, routes: &RouteTable) -> Result<Meaning, Invalid> {
    let wrong = || Invalid::new("tag", tag, TAGS);
    let (kind, value) = tag.split_once(':').ok_or_else(wrong)?;
    let digits = || hash(value).ok_or_else(wrong);
    match kind {
        "tx" => Ok(certain(vec![Purge::Text(hex(&digits()?).into())])),
        "block" => {
            let block = digits()?;
            Ok(Meaning {
                certain: vec![Purge::Text(hex(&block).into())],
                alias: Some(Alias::Block(block)),
            })
        }
        "height" => {
            let above = value.ends_with('+');
            let digits = value.strip_suffix('+').unwrap_or(value);
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            let height = digits.parse::<u32>().ok().filter(|_| plain);
            let from = height.ok_or_else(wrong)?;
            let to = if above { u32::MAX } else { from };
            let tip = None;
            let mut certain = vec![Purge::Heights { tip, from, to }];
            if !above {
                certain.extend(blocks(routes, &from.to_string()));
            }
            let alias = (!above).then_some(Alias::Height(from));
            Ok(Meaning { certain, alias })
        }
        "ticker" => {
            let purges = tickers(value, routes)?;
            match purges.is_empty() {
                true => Err(Invalid::new(
                    "tag",
                    tag,
                    "tags of another kind: no route has tickers",
                )),
                false => Ok(certain(purges)),
            }
        }
        _ => Err(wrong()),
    }
}

/// The purges of a ticker on all routes.
fn tickers(ticker: &str, routes: &RouteTable) -> Result<Vec<Purge>, Invalid> {
    let raw = utf8_percent_encode(ticker, NON_ALPHANUMERIC).to_string();
    let mut canonical = Vec::new();
    ParameterType::Ticker.write_canonical("tag=ticker:", &raw, false, &mut canonical)?;
    let canonical = String::from_utf8_lossy(&canonical);
    Ok(segments(
        routes,
        |route| route.chain.segments.ticker,
        &canonical,
    ))
}

/// The purges of a block by its canonical name on all routes.
fn blocks(routes: &RouteTable, name: &str) -> Vec<Purge> {
    segments(routes, |route| route.chain.segments.block, name)
}

fn segments(
    routes: &RouteTable,
    place: impl Fn(&Route) -> Option<usize>,
    value: &str,
) -> Vec<Purge> {
    let routes = routes.routes().iter();
    let placed = routes.filter_map(|own| Some((own.number, place(own)?)));
    let purges = placed.map(|(route, at)| Purge::Segment {
        route,
        at,
        value: value.into(),
    });
    purges.collect()
}

/// The purges of a block by its other name, as far as the chain knows it now.
pub(super) fn of_alias(alias: &Alias, routes: &RouteTable, chain: &Chain) -> Vec<Purge> {
    let tips = || (0_u16..).take(chain.len());
    match alias {
        Alias::Path(key) => {
            let route = routes.get(key.route());
            let other = route.and_then(|route| other_name(key, route, chain));
            other.into_iter().collect()
        }
        Alias::Block(hash) => {
            let known = tips().filter_map(|tip| Some((tip, chain.height_of(tip, hash)?)));
            let purges = known.flat_map(|(tip, height)| {
                let mut purges = blocks(routes, &height.to_string());
                purges.push(Purge::Heights {
                    tip: Some(tip),
                    from: height,
                    to: height,
                });
                purges
            });
            purges.collect()
        }
        Alias::Height(height) => {
            let known = tips().filter_map(|tip| chain.hash_at(tip, *height));
            known.flat_map(|hash| blocks(routes, &hex(&hash))).collect()
        }
    }
}

/// The purge of a key's block by its other name.
fn other_name(key: &Key, route: &Route, chain: &Chain) -> Option<Purge> {
    let (at, tip) = (route.chain.segments.block?, route.cache.tip);
    let name = match block(key.target(), at)? {
        BlockReference::Height(height) => hex(&chain.hash_at(tip, height)?),
        BlockReference::Hash(hash) => match chain.height_of(tip, &hash) {
            Some(height) => height.to_string(),
            // A response under its height may be under way; its body contains the
            // hash.
            None => return Some(Purge::Text(hex(&hash).into())),
        },
    };
    let other = with_segment(key, at, &name)?;
    Some(of_key(&other, route))
}
