//! The route table: which requests there are, and what each means. Pure.
//!
//! Made once, at load, from the `[[route]]` tables of proxy.toml. The router,
//! the validator, the cache key, `Allow` and the OpenAPI document all come from
//! it, so they cannot disagree. [`RouteTable::find`] answers for a path,
//! [`Route::canonical`] makes the canonical request: what is forwarded and,
//! with the route, what is the cache key.
//!
//! Deliberately absent: proxy.toml's syntax (`config`), and what is kept for
//! how long (`cache`), which a route merely carries.

pub mod canonical;
mod dots;
mod template;

use std::mem::discriminant;
use std::num::NonZeroU32;

use http::{HeaderValue, Method};
use matchit::Router;

use dots::has_dot_segment;
use template::{Piece, is_tail};
pub use template::{Template, TemplateError, parameter_names};

use crate::cache::key::Key;
use crate::cache::policy::Policy;
use crate::validate::{Invalid, ParameterType, decode};

/// The most parameters that a query may declare; a bound for the stack.
pub const MOST_QUERY_PARAMETERS: usize = 16;

/// A parameter of a route.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name, as in the path template or in the query.
    pub name: Box<str>,
    /// What it may be.
    pub kind: ParameterType,
    /// Its canonical value where the request has none; path parameters have
    /// always one.
    pub default: Option<Box<str>>,
    /// For the OpenAPI document.
    pub description: Option<Box<str>>,
}

/// One route, as configured and checked.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its number in keys: its place in the table at first, and whatever
    /// [`RouteTable::renumber`] says after a reload. No two meanings have one
    /// number in a process.
    pub number: u16,
    /// Its name in logs, metrics and the OpenAPI document.
    pub name: Box<str>,
    /// For the OpenAPI document.
    pub summary: Option<Box<str>>,
    /// The path template, with `{parameter}` as a whole segment.
    pub path: Box<str>,
    /// What it takes; OPTIONS is answered on every route that has a list.
    pub methods: Methods,
    /// The parameters of the path, in its order.
    pub params: Vec<Parameter>,
    /// The parameters of the query, in the canonical order.
    pub query: Vec<Parameter>,
    /// Whether an unknown query parameter is refused rather than dropped.
    pub strict_query: bool,
    /// Whether the query goes up as it came, whatever it says.
    pub any_query: bool,
    /// Which fields pass.
    pub headers: HeaderMode,
    /// The number of the upstream that it asks.
    pub upstream: u16,
    /// The upstream's spelling of the path.
    pub upstream_path: Template,
    /// The response's schema in the OpenAPI document.
    pub response: ResponseSchema,
    /// What of its answers is stored, and for how long it is fresh.
    pub cache: Policy,
    /// Where its answers are pages of a list, cut from stored windows: how many
    /// items a window has (`upstream_page`).
    pub pages: Option<NonZeroU32>,
    /// Where blocks, transactions and tickers stand in its path.
    pub places: ChainSegments,
    /// Where its transactions' activity is answered from stored windows of
    /// their blocks: the number of the route that has those.
    pub derived_from: Option<u16>,
}

/// The segments of the upstream's path that have the first parameter of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainSegments {
    /// A block.
    pub block: Option<usize>,
    /// 64 hexadecimal digits.
    pub hex64: Option<usize>,
    /// A ticker.
    pub ticker: Option<usize>,
}

impl ChainSegments {
    /// Finds them.
    pub fn of(params: &[Parameter], path: &Template) -> Self {
        let place = |is: fn(&ParameterType) -> bool| {
            let at = params.iter().position(|param| is(&param.kind))?;
            path.segment_of(at)
        };
        Self {
            block: place(|kind| matches!(kind, ParameterType::Block { .. })),
            hex64: place(|kind| matches!(kind, ParameterType::Hex64)),
            ticker: place(|kind| matches!(kind, ParameterType::Ticker)),
        }
    }
}

/// The methods that a route takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Methods {
    /// These.
    Listed(Vec<Method>),
    /// Every method but CONNECT and TRACE, unknown ones and OPTIONS among them,
    /// with bodies.
    Any,
}

impl Methods {
    /// Whether a method is among them.
    pub fn contains(&self, method: &Method) -> bool {
        match self {
            Self::Listed(methods) => methods.contains(method),
            Self::Any => !matches!(*method, Method::CONNECT | Method::TRACE),
        }
    }
}

/// Which fields pass a route, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderMode {
    /// Only those that the API means: nothing of the client's goes up, and
    /// answers have ordgate's own fields.
    #[default]
    Typed,
    /// Every end-to-end field, as a plain HTTP cache has it.
    All,
}

impl HeaderMode {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 2] = [("typed", Self::Typed), ("all", Self::All)];
}

/// Which of the API's response schemas a route's answers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseSchema {
    /// Some JSON value.
    #[default]
    Json,
    /// A BRC-20 token with its supply (the API's section 2.1).
    Brc20Token,
    /// A page of rune activity (the API's section 2.4).
    RuneActivity,
}

impl ResponseSchema {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("json", Self::Json),
        ("brc20-token", Self::Brc20Token),
        ("rune-activity", Self::RuneActivity),
    ];
}

/// The path parameters' values as they came, in the path's order.
#[derive(Debug, Default)]
pub struct Captures<'p> {
    /// The first of them, and nearly always all.
    first: [&'p str; 3],
    rest: Vec<&'p str>,
    /// All that is left of the path, where the route has a tail.
    tail: &'p str,
}

impl<'p> Captures<'p> {
    fn put(&mut self, at: usize, value: &'p str) {
        match self.first.get_mut(at) {
            Some(place) => *place = value,
            None => self.rest.push(value),
        }
    }

    fn value(&self, at: usize) -> &'p str {
        let first = self.first.get(at);
        let value = first.or_else(|| self.rest.get(at - self.first.len()));
        value.copied().unwrap_or("")
    }
}

impl Route {
    /// The key of a page of the block at a height, where this route has whole
    /// blocks' lists.
    pub fn key_of_block(&self, height: u32, limit: u64, offset: u64) -> Option<Key> {
        let mut key = Key::begin(self.number);
        for piece in &self.upstream_path.0 {
            let text = match piece {
                Piece::Literal(text) => text.to_string(),
                Piece::Param(at)
                    if matches!(self.params.get(*at)?.kind, ParameterType::Block { .. }) =>
                {
                    height.to_string()
                }
                Piece::Param(_) | Piece::Tail => return None,
            };
            key.buffer().extend_from_slice(text.as_bytes());
        }
        let mut separator = '?';
        for parameter in &self.query {
            let value = match &*parameter.name {
                "limit" => limit,
                "offset" => offset,
                _ if parameter.default.is_none() => continue,
                _ => return None,
            };
            let pair = format!("{separator}{}={value}", parameter.name);
            key.buffer().extend_from_slice(pair.as_bytes());
            separator = '&';
        }
        Some(key)
    }

    /// The `Allow` of this route.
    pub fn allow(&self) -> HeaderValue {
        let Methods::Listed(methods) = &self.methods else {
            return HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        };
        let mut names: Vec<_> = methods.iter().map(Method::as_str).collect();
        names.push("OPTIONS");
        HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static("GET"))
    }

    /// Validates a request and makes its canonical form as a cache key.
    ///
    /// # Errors
    /// The first parameter that does not validate.
    pub fn canonical(&self, captures: &Captures<'_>, query: Option<&str>) -> Result<Key, Invalid> {
        let mut key = Key::begin(self.number);
        for piece in &self.upstream_path.0 {
            match piece {
                Piece::Literal(text) => key.buffer().extend_from_slice(text.as_bytes()),
                Piece::Tail if has_dot_segment(captures.tail.as_bytes()) => {
                    return Err(Invalid::new("path", captures.tail, NO_DOTS));
                }
                Piece::Tail => key.buffer().extend_from_slice(captures.tail.as_bytes()),
                Piece::Param(at) => {
                    let parameter = &self.params[*at];
                    let raw = captures.value(*at);
                    let begin = key.buffer().len();
                    parameter
                        .kind
                        .write_canonical(&parameter.name, raw, false, key.buffer())?;
                    // A text may have slashes in it, which go up encoded.
                    if has_dot_segment(&key.buffer()[begin..]) {
                        return Err(Invalid::new(&parameter.name, raw, NO_DOTS));
                    }
                }
            }
        }
        if self.any_query {
            if let Some(query) = query {
                key.buffer().push(b'?');
                key.buffer().extend_from_slice(query.as_bytes());
            }
            return Ok(key);
        }
        let mut values = [None; MOST_QUERY_PARAMETERS];
        let mut pairs = query.unwrap_or("");
        while !pairs.is_empty() {
            let (pair, rest) = cut(pairs, b'&');
            pairs = rest;
            if pair.is_empty() {
                continue;
            }
            let (name, value) = cut(pair, b'=');
            match self.declared(name) {
                Some(at) => {
                    if let Some(first) = values[at].replace(value) {
                        let came = format!("{first}&{name}={value}");
                        return Err(Invalid::new(&self.query[at].name, &came, "given once"));
                    }
                }
                None if self.strict_query => return Err(self.unknown(name)),
                None => {}
            }
        }
        let mut separator = b'?';
        for (parameter, value) in self.query.iter().zip(values) {
            if value.is_none() && parameter.default.is_none() {
                continue;
            }
            let out = key.buffer();
            out.push(separator);
            out.extend_from_slice(parameter.name.as_bytes());
            out.push(b'=');
            match (value, &parameter.default) {
                (Some(raw), _) => {
                    parameter
                        .kind
                        .write_canonical(&parameter.name, raw, true, out)?
                }
                (None, Some(default)) => out.extend_from_slice(default.as_bytes()),
                (None, None) => {}
            }
            separator = b'&';
        }
        Ok(key)
    }

    /// The declared query parameter of a name as it came.
    fn declared(&self, raw: &str) -> Option<usize> {
        let position = |name: &str| self.query.iter().position(|p| *p.name == *name);
        // No name that is declared has to be encoded.
        position(raw).or_else(|| match raw.contains(['%', '+']) {
            false => None,
            true => position(&decode(raw, true)?),
        })
    }

    /// Whether what is stored under another route of this name, which has gone
    /// before it, means the same here: one target is one question, and is
    /// answered, kept and cut in one way. Of parameters' bounds and defaults
    /// nothing is stored, since a target spells them out; nor of what is looked
    /// up with each answer, such as how long it may be used when stale.
    ///
    /// Tips, upstreams, and the routes that others are derived from, go by
    /// numbers, which only who has both configurations can compare.
    pub fn has_same_meaning(&self, before: &Self) -> bool {
        let declared = |one: &[Parameter], other: &[Parameter]| {
            let same = |(one, other): (&Parameter, &Parameter)| {
                one.name == other.name && discriminant(&one.kind) == discriminant(&other.kind)
            };
            one.len() == other.len() && one.iter().zip(other).all(same)
        };
        self.name == before.name
            && self.path == before.path
            && self.upstream_path == before.upstream_path
            && declared(&self.params, &before.params)
            && declared(&self.query, &before.query)
            && self.any_query == before.any_query
            && self.headers == before.headers
            && self.cache.mode == before.cache.mode
            && self.cache.times == before.cache.times
            && self.cache.set_cookie == before.cache.set_cookie
            && self.pages == before.pages
            && self.places == before.places
    }

    fn unknown(&self, name: &str) -> Invalid {
        let names: Vec<_> = self.query.iter().map(|p| &*p.name).collect();
        let allowed = match names.is_empty() {
            true => "absent: this route takes no query parameters".to_owned(),
            false => format!("one of the query parameters {}", names.join(", ")),
        };
        Invalid::new("query", name, allowed)
    }
}

/// All routes, with the router that finds them.
#[derive(Clone, Default)]
pub struct RouteTable {
    routes: Box<[Route]>,
    /// The place of each number that has been given, where a route has it.
    numbers: Box<[Option<u16>]>,
    router: Router<u16>,
}

/// Why a table cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Two routes would answer for one path.
    #[error("overlaps the route \"{other}\" ({path})")]
    Overlap {
        /// The index of the route that came second.
        index: usize,
        /// The name of the one that came first.
        other: String,
        /// The path of the one that came first.
        path: String,
    },
    /// More routes than can be numbered.
    #[error("there are more than 65535 routes")]
    TooMany,
}

/// A route that was found for a path.
pub struct RouteMatch<'t, 'p> {
    /// The route.
    pub route: &'t Route,
    /// Its place in the table.
    pub index: u16,
    /// Its path parameters, in the path's order.
    pub captures: Captures<'p>,
}

impl RouteTable {
    /// Makes the table.
    ///
    /// # Errors
    /// Each route that overlaps one before it.
    pub fn new(routes: Vec<Route>) -> Result<Self, Vec<TableError>> {
        let mut router = Router::new();
        let mut errors = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            let Ok(number) = u16::try_from(index) else {
                return Err(vec![TableError::TooMany]);
            };
            let (path, bare) = spelling(&route.path);
            let inserted = router.insert(path, number);
            // A tail may be empty, which the router would not have.
            let bare = bare.map_or(Ok(()), |bare| router.insert(bare, number));
            if inserted.and(bare).is_err() {
                let shape = shape(&route.path);
                let other = routes[..index]
                    .iter()
                    .find(|r| self::shape(&r.path) == shape);
                errors.push(TableError::Overlap {
                    index,
                    other: other.map_or_else(String::new, |r| r.name.to_string()),
                    path: other.map_or_else(String::new, |r| r.path.to_string()),
                });
            }
        }
        match errors.is_empty() {
            true => {
                let mut table = Self {
                    routes: routes.into(),
                    numbers: Box::default(),
                    router,
                };
                let places: Vec<u16> = (0_u16..).take(table.routes.len()).collect();
                table.renumber(&places, places.len());
                Ok(table)
            }
            false => Err(errors),
        }
    }

    /// Gives each route, in the table's order, another number; `given` is how
    /// many numbers there were in the process so far.
    pub fn renumber(&mut self, numbers: &[u16], given: usize) {
        let mut places = vec![None; given];
        for (place, (route, number)) in (0_u16..).zip(self.routes.iter_mut().zip(numbers)) {
            route.number = *number;
            if let Some(slot) = places.get_mut(usize::from(*number)) {
                *slot = Some(place);
            }
            // It stands in the file's order until now.
            let source = route.derived_from.and_then(|at| {
                let at = match self.numbers.get(usize::from(at)) {
                    Some(place) => (*place)?,
                    None => at,
                };
                numbers.get(usize::from(at)).copied()
            });
            route.derived_from = source;
        }
        self.numbers = places.into();
    }

    /// How many numbers have been given so far, to routes of this table and to
    /// those before it.
    pub fn given(&self) -> usize {
        self.numbers.len()
    }

    /// The routes, in the file's order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The route of a number; `None` where none has it, or no longer.
    pub fn get(&self, number: u16) -> Option<&Route> {
        let place = (*self.numbers.get(usize::from(number))?)?;
        self.routes.get(usize::from(place))
    }

    /// The route of a path; `None` where there is none. A parameter that is a
    /// dot segment belongs to no route, since what follows us might resolve it;
    /// one within a tail or a parameter is refused by [`Route::canonical`].
    pub fn find<'t, 'p>(&'t self, path: &'p str) -> Option<RouteMatch<'t, 'p>> {
        let found = self.router.at(path).ok()?;
        let mut captures = Captures::default();
        for (at, (name, value)) in found.params.iter().enumerate() {
            if name == TAIL {
                captures.tail = value;
            } else if is_dot_segment(value) {
                return None;
            }
            captures.put(at, value);
        }
        let place = *found.value;
        Some(RouteMatch {
            route: &self.routes[usize::from(place)],
            index: place,
            captures,
        })
    }
}

/// What is allowed in a tail, or in a parameter: it must not lead out of the path
/// that the upstream has for the route, whatever follows us decodes.
const NO_DOTS: &str = "without . and .. as segments, percent-encoded ones and those before \\, %2F, %5C or ; among them";

/// The name of the tail in the router.
const TAIL: &str = "-tail";

/// A path as the router spells it; and, where it has a tail, the path without.
fn spelling(path: &str) -> (String, Option<String>) {
    match path.rsplit_once('/') {
        Some((before, last)) if is_tail(last) => {
            (format!("{before}/{{*{TAIL}}}"), Some(format!("{before}/")))
        }
        _ => (path.to_owned(), None),
    }
}

/// What stands before the first of a delimiter, and what after it. Names and
/// values are short: a search that is quick over long texts only begins slowly.
fn cut(text: &str, delimiter: u8) -> (&str, &str) {
    match text.bytes().position(|byte| byte == delimiter) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    }
}

fn is_dot_segment(raw: &str) -> bool {
    // The longest spelling is %2e%2e.
    raw.len() <= 6
        && (raw.starts_with('.') || raw.starts_with('%'))
        && decode(raw, false).is_some_and(|text| matches!(&*text, "." | ".."))
}

/// A path with its parameters' names taken out: two routes of one shape are
/// one route.
fn shape(path: &str) -> String {
    path.split('/')
        .map(|segment| {
            if segment.starts_with('{') {
                "{}"
            } else {
                segment
            }
        })
        .collect::<Vec<_>>()
        .join("/")
}

#[cfg(test)]
mod tests;
