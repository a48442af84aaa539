//! Purging by the operator: `POST /purge`.
//!
//! What is to be purged comes as query parameters or as JSON, of one kind a
//! request: URLs, routes, tags, or all. All of it is understood before any of
//! it is done. It is done when the answer is sent: no request that begins
//! afterwards gets what was stored or asked for before.
//!
//! Invariant: no page in a browser can make it purge. A browser says where a
//! POST comes from, and whoever says so is refused.
//!
//! Deliberately absent: how a purge holds (`cache::purge`), and the freeing of
//! memory, which follows off the answer's path.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{asked, browser, invalid, of_a_browser, problem, public_target, typed};
use crate::cache::Attached;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::Purge;
use crate::cache::store::Store;
use crate::chain::Chain;
use crate::gateway::Gateway;
use crate::pages::{hash, hex};
use crate::route::canonical::{BlockReference, block, path, segment, with_segment};
use crate::route::{Route, RouteTable};
use crate::validate::{Invalid, ParameterType};
use crate::wire::Body;

/// The most of a body that is read.
const MOST_BODY: usize = 64 * 1024;
/// The most that one request may purge, so that it stays short.
const MOST_SELECTORS: usize = 100;

const KINDS: &str = "url=URL, route=NAME, tag=TAG or all, percent-encoded";
const JSON: &str =
    "a JSON object with one of url, route and tag (a text or a list of texts), or {\"all\":true}";
const TAGS: &str = "block:HASH (64 hexadecimal digits), height:N, height:N+ (N and above), tx:TXID (64 hexadecimal digits) or ticker:TICKER";

/// What the operator names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selector {
    Url(String),
    Route(String),
    Tag(String),
    All,
}

impl Selector {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Url(_) => "url",
            Self::Route(_) => "route",
            Self::Tag(_) => "tag",
            Self::All => "all",
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Url(text) | Self::Route(text) | Self::Tag(text) => text.as_str().into(),
            Self::All => true.into(),
        }
    }
}

/// Purges what a request names.
pub(super) async fn answer(
    gateway: &Gateway,
    request: Request<Incoming>,
    patience: Duration,
) -> Response<Body> {
    if let Some(from) = browser(request.headers()) {
        return of_a_browser("purge", &from, "ordgate purge");
    }
    let read = match request.body().is_end_stream() {
        true => by_query(request.uri().query().unwrap_or("")),
        false => {
            let query = request.uri().query().unwrap_or("").to_owned();
            match body(request.into_body(), patience).await {
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
    let done = read.and_then(|selectors| purge(gateway, &selectors));
    match done {
        Ok(purged) => typed("application/json", purged.to_string().into()),
        Err(wrong) => invalid(&wrong),
    }
}

async fn body(body: Incoming, patience: Duration) -> Result<Bytes, Box<Response<Body>>> {
    let refuse = |status, detail: &str| Box::new(problem(status, detail, None));
    match tokio::time::timeout(patience, Limited::new(body, MOST_BODY).collect()).await {
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
            &format!("The body did not arrive within {} s", patience.as_secs()),
        )),
    }
}

fn by_query(query: &str) -> Result<Vec<Selector>, Invalid> {
    let mut selectors = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        selectors.push(match name {
            "url" => Selector::Url(asked(name, raw)?),
            "route" => Selector::Route(asked(name, raw)?),
            "tag" => Selector::Tag(asked(name, raw)?),
            "all" if matches!(raw, "" | "true") => Selector::All,
            "all" => return Err(Invalid::new("all", raw, "true, or without a value")),
            _ => return Err(Invalid::new("a query parameter", pair, KINDS)),
        });
    }
    of_one_kind(selectors)
}

fn by_body(bytes: &[u8]) -> Result<Vec<Selector>, Invalid> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        url: Option<Texts>,
        route: Option<Texts>,
        tag: Option<Texts>,
        all: Option<bool>,
    }
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let named: Named = serde_json::from_slice(bytes).map_err(|error| {
        let came = String::from_utf8_lossy(bytes);
        Invalid::new("the body", &came, format!("{JSON} ({error})"))
    })?;
    let mut selectors = Vec::new();
    for (texts, selector) in [
        (named.url, Selector::Url as fn(String) -> Selector),
        (named.route, Selector::Route),
        (named.tag, Selector::Tag),
    ] {
        match texts {
            Some(Texts::One(text)) => selectors.push(selector(text)),
            Some(Texts::Many(texts)) => selectors.extend(texts.into_iter().map(selector)),
            None => {}
        }
    }
    match named.all {
        Some(true) => selectors.push(Selector::All),
        Some(false) => return Err(Invalid::new("all", "false", "true, or left out")),
        None => {}
    }
    of_one_kind(selectors)
}

fn of_one_kind(selectors: Vec<Selector>) -> Result<Vec<Selector>, Invalid> {
    let Some(first) = selectors.first() else {
        let allowed = format!("given: {KINDS}; or {JSON}");
        return Err(Invalid::new("what is purged", "nothing", allowed));
    };
    let other = selectors.iter().find(|other| other.kind() != first.kind());
    if let Some(other) = other {
        let came = format!("{} and {}", first.kind(), other.kind());
        return Err(Invalid::new("what is purged", &came, "of one kind"));
    }
    if selectors.len() > MOST_SELECTORS {
        let came = format!("{} of kind {}", selectors.len(), first.kind());
        let allowed = format!("at most {MOST_SELECTORS} in a request");
        return Err(Invalid::new("what is purged", &came, allowed));
    }
    Ok(selectors)
}

/// What a selector means.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Aim {
    /// To be purged at once.
    certain: Vec<Purge>,
    /// Whose other name is to be purged besides, if it is known.
    alias: Option<Alias>,
}

/// What has another name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Alias {
    /// A block in the path of a route.
    Path(Key),
    /// A block by its hash.
    Block([u8; 32]),
    /// A block by its height.
    Height(u32),
}

fn purge(gateway: &Gateway, selectors: &[Selector]) -> Result<Value, Invalid> {
    let routes = &gateway.routes;
    let aims: Result<Vec<_>, _> = selectors.iter().map(|s| aim(s, routes)).collect();
    let (store, chain) = (gateway.cache.store(), &gateway.fill.chain);
    let mut purged = Vec::new();
    for (selector, aim) in selectors.iter().zip(aims?) {
        let means = carry_out(aim, routes, chain, store);
        let means: Vec<_> = means.iter().map(|purge| said(purge, routes)).collect();
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

/// Purges; and answers with what was.
fn carry_out(aim: Aim, routes: &RouteTable, chain: &Chain, store: &Store<Attached>) -> Vec<Purge> {
    let mut done = aim.certain;
    for purge in &done {
        store.purge(purge.clone());
    }
    // Only now: what is learned from here on is of what was asked afterwards,
    // or is struck by what was just purged.
    let aliases = aim.alias.map(|alias| also(&alias, routes, chain));
    for purge in aliases.unwrap_or_default() {
        if !done.contains(&purge) {
            store.purge(purge.clone());
            done.push(purge);
        }
    }
    done
}

/// What a selector means, as far as it alone says.
fn aim(selector: &Selector, routes: &RouteTable) -> Result<Aim, Invalid> {
    let certain = |purge| Aim {
        certain: vec![purge],
        alias: None,
    };
    match selector {
        Selector::All => Ok(certain(Purge::All)),
        Selector::Route(name) => {
            let found = routes.routes().iter().find(|own| *own.name == **name);
            match found {
                Some(own) => Ok(certain(Purge::Route(own.number))),
                None => Err(Invalid::new("route", name, names(routes))),
            }
        }
        Selector::Url(url) => {
            let (key, route) = key_of(url, routes)?;
            Ok(aim_of_url(key, route))
        }
        Selector::Tag(tag) => aim_of_tag(tag, routes),
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

fn aim_of_url(key: Key, route: &Route) -> Aim {
    let target = key.target();
    let own = match route.pages {
        // Its pages are cut from windows: only together do they go.
        Some(_) => Purge::Path {
            route: key.route(),
            path: path(target).into(),
        },
        None => Purge::Target {
            route: key.route(),
            target: target.into(),
        },
    };
    let mut certain = vec![own];
    // It would be cut again from the windows of its block.
    let source = route.derived_from.and(route.places.hex64);
    if let Some(tx) = source.and_then(|at| segment(target, at)) {
        certain.push(Purge::Text(tx.into()));
    }
    let has_alias = route.cache.mode == Mode::Chain && route.places.block.is_some();
    let alias = has_alias.then_some(Alias::Path(key));
    Aim { certain, alias }
}

fn aim_of_tag(tag: &str, routes: &RouteTable) -> Result<Aim, Invalid> {
    let wrong = || Invalid::new("tag", tag, TAGS);
    let (kind, value) = tag.split_once(':').ok_or_else(wrong)?;
    let digits = || hash(value).ok_or_else(wrong);
    match kind {
        "tx" => Ok(Aim {
            certain: vec![Purge::Text(hex(&digits()?).into())],
            alias: None,
        }),
        "block" => {
            let block = digits()?;
            Ok(Aim {
                certain: vec![Purge::Text(hex(&block).into())],
                alias: Some(Alias::Block(block)),
            })
        }
        "height" => {
            let (digits, above) = match value.strip_suffix('+') {
                Some(digits) => (digits, true),
                None => (value, false),
            };
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let height = digits.parse::<u32>().ok().filter(|_| plain);
            let from = height.ok_or_else(wrong)?;
            let to = if above { u32::MAX } else { from };
            let tip = None;
            let mut certain = vec![Purge::Heights { tip, from, to }];
            if !above {
                certain.extend(blocks(routes, &from.to_string()));
            }
            let alias = (!above).then_some(Alias::Height(from));
            Ok(Aim { certain, alias })
        }
        "ticker" => {
            let certain = tickers(value, routes)?;
            match certain.is_empty() {
                true => Err(Invalid::new("tag", tag, "another: no route has a ticker")),
                false => Ok(Aim {
                    certain,
                    alias: None,
                }),
            }
        }
        _ => Err(wrong()),
    }
}

/// What routes have of a ticker.
fn tickers(ticker: &str, routes: &RouteTable) -> Result<Vec<Purge>, Invalid> {
    let raw = utf8_percent_encode(ticker, NON_ALPHANUMERIC).to_string();
    let mut canonical = Vec::new();
    ParameterType::Ticker.write_canonical("tag=ticker:", &raw, false, &mut canonical)?;
    let canonical = String::from_utf8_lossy(&canonical);
    Ok(segments(routes, |route| route.places.ticker, &canonical))
}

/// What routes have of a block by its canonical name.
fn blocks(routes: &RouteTable, name: &str) -> Vec<Purge> {
    segments(routes, |route| route.places.block, name)
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

/// What is purged besides, by what is known of the chain now.
fn also(alias: &Alias, routes: &RouteTable, chain: &Chain) -> Vec<Purge> {
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

/// What has a block by its other name.
fn other_name(key: &Key, route: &Route, chain: &Chain) -> Option<Purge> {
    let (at, tip) = (route.places.block?, route.cache.tip);
    let name = match block(key.target(), at)? {
        BlockReference::Height(height) => hex(&chain.hash_at(tip, height)?),
        BlockReference::Hash(hash) => match chain.height_of(tip, &hash) {
            Some(height) => height.to_string(),
            // It may be on its way under a height that nobody knows yet; but
            // then its body has the hash.
            None => return Some(Purge::Text(hex(&hash).into())),
        },
    };
    let other = with_segment(key, at, &name)?;
    let (index, target) = (key.route(), other.target());
    Some(match route.pages {
        Some(_) => Purge::Path {
            route: index,
            path: path(target).into(),
        },
        None => Purge::Target {
            route: index,
            target: target.into(),
        },
    })
}

/// A purge as the answer says it.
fn said(purge: &Purge, routes: &RouteTable) -> Value {
    let route = |index: &u16| {
        let route = routes.get(*index);
        route.map(|route| &*route.name)
    };
    match purge {
        Purge::All => json!({ "all": true }),
        Purge::Route(index) => json!({ "route": route(index) }),
        Purge::Target {
            route: index,
            target,
        } => json!({ "route": route(index), "target": target }),
        Purge::Segment {
            route: index,
            at,
            value,
        } => json!({ "route": route(index), "segment": at, "value": value }),
        Purge::Path { route: index, path } => json!({ "route": route(index), "path": path }),
        Purge::Heights {
            from, to: u32::MAX, ..
        } => json!({ "heights": { "from": from } }),
        Purge::Heights { from, to, .. } => json!({ "heights": { "from": from, "to": to } }),
        Purge::Text(text) => json!({ "text": text }),
    }
}

fn names(routes: &RouteTable) -> String {
    let names = routes.routes().iter().map(|route| &*route.name);
    format!("the name of a route: {}", List(names.collect()))
}

pub(super) fn paths(routes: &RouteTable) -> String {
    let paths = routes.routes().iter().map(|route| &*route.path);
    format!(
        "the path of a route, with its query, or an absolute URL with one: {}",
        List(paths.collect())
    )
}

/// Names as a sentence lists them, not too many.
struct List<'l>(Vec<&'l str>);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 20;
        let shown = self.0.iter().take(MOST).copied().collect::<Vec<_>>();
        f.write_str(&shown.join(", "))?;
        match self.0.len().checked_sub(MOST) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}
