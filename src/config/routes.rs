//! The `[[route]]` tables of proxy.toml, and their printing.

mod print;

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use http::{Method, StatusCode};
use regex_lite::Regex;

pub(super) use print::print;

use super::assign::{self, Assignment, keep_used};
use super::reader::{Placed, Table};
use super::seconds;
use crate::cache::policy::{Mode, Policy, StatusLifetimes};
use crate::cache::storable::SetCookie;
use crate::chain::TipSource;
use crate::openapi;
use crate::route::{
    ChainSegments, HeaderMode, MOST_QUERY_PARAMETERS, Methods, Parameter, ResponseSchema, Route,
    RouteTable, TableError, Template, parameter_names,
};
use crate::units;
use crate::upstream::Settings;
use crate::validate::ParameterType;

/// 2^53 - 1: what JSON numbers hold exactly everywhere.
const MOST_INTEGER: u64 = (1 << 53) - 1;

/// Reads all routes, has them and the tips find their upstreams, and makes the
/// table where nothing is wrong with them. Upstreams that nothing asks are
/// removed; answers with their names.
pub(super) fn read(
    tables: Vec<Table<'_>>,
    root: &Table<'_>,
    tips: &mut Tips,
    upstreams: &mut Vec<Settings>,
) -> (RouteTable, Vec<Box<str>>) {
    let mut routes = Vec::new();
    let mut asks = Vec::new();
    let mut spans: Vec<Range<usize>> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut sources = Vec::new();
    for table in tables {
        let span = table.span().clone();
        if let Some(read) = route(table, &mut names, tips, upstreams) {
            routes.push(read.route);
            sources.push(read.derived_from);
            asks.push(read.upstream);
            spans.push(span);
        }
    }
    let assignment = Assignment::new(upstreams, &tips.said);
    assignment.assign(&mut tips.sources, &mut routes, &asks, root);
    for (at, source) in sources.into_iter().enumerate() {
        if let Some((name, span)) = source {
            match derived_from(&routes, at, &name) {
                Ok(source) => routes[at].derived_from = Some(source),
                Err(why) => root.problem(&span, format!("derived_from is \"{name}\"; {why}")),
            }
        }
    }
    let unused = keep_used(upstreams, &mut tips.sources, &mut routes);
    let table = match RouteTable::new(routes) {
        Ok(table) => table,
        Err(errors) => {
            for error in errors {
                let at = match &error {
                    TableError::Overlap { index, .. } => spans.get(*index),
                    TableError::TooMany => None,
                };
                root.problem(at.unwrap_or(root.span()), format!("this route {error}"));
            }
            // What stands in for a table that cannot be is never used: there
            // are problems now.
            RouteTable::default()
        }
    };
    (table, unused)
}

/// What `[chain]` says that routes go by.
pub(super) struct Tips {
    pub(super) sources: Vec<TipSource>,
    /// The number of the upstream that each tip says.
    pub(super) said: Vec<Option<u16>>,
    /// Leading zeros of a block's hash, at the least.
    pub(super) hash_zeros: u8,
}

/// A route as its table has it, with what names other tables.
struct Declaration {
    route: Route,
    /// The name of the route that it is derived from.
    derived_from: Option<Placed<String>>,
    /// The number of the upstream that it says.
    upstream: Option<Placed<u16>>,
}

/// The route whose stored blocks a transaction's activity is cut from.
fn derived_from(routes: &[Route], at: usize, name: &str) -> Result<u16, &'static str> {
    let found = routes.iter().position(|route| *route.name == *name);
    let source = found.ok_or("there is no such route")?;
    let (own, other) = (&routes[at], &routes[source]);
    let paged = own.pages.is_some() && other.pages.is_some();
    if !paged || own.cache.tip != other.cache.tip {
        return Err("both routes need pages = true, the same tip and the same upstream");
    }
    if own.places.hex64.is_none() || other.places.block.is_none() {
        return Err("it is for a route with a hex64 parameter, from one with a block parameter");
    }
    u16::try_from(source).map_err(|_many| "there is no such route")
}

fn route(
    table: Table<'_>,
    names: &mut Vec<String>,
    tips: &Tips,
    upstreams: &[Settings],
) -> Option<Declaration> {
    let is_name = |text: &str| {
        let fits = !text.is_empty() && text.len() <= 64;
        let plain = text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        (fits && plain).then(|| text.to_owned())
    };
    let name = table.parsed("name", "1 to 64 of a-z, 0-9 and -", is_name);
    if let Some((name, span)) = &name {
        if names.contains(name) {
            table.problem(
                span,
                format!("there is another route with the name \"{name}\""),
            );
        }
        names.push(name.clone());
    }
    let path = table.string("path");
    let upstream_path = table.string("upstream_path");
    let summary = table.string("summary").map(|(text, _)| text.into());
    let methods = methods(&table);
    let params = parameters(table.table("params"), tips.hash_zeros, false);
    let any_query = table.is_string("query");
    let mut query = Vec::new();
    if any_query {
        table.one_of("query", &[("any", ())]);
    } else {
        query = parameters(table.table("query"), tips.hash_zeros, true);
    }
    let strict_query = table.boolean("strict_query", false);
    let response = table
        .one_of("response", &ResponseSchema::NAMES)
        .unwrap_or_default();
    let headers = table
        .one_of("headers", &HeaderMode::NAMES)
        .unwrap_or_default();
    let (mut cache, tip) = policy(table.table("cache"), &tips.sources);
    if headers == HeaderMode::All && matches!(cache.mode, Mode::Override | Mode::Chain) {
        let message =
            "headers = \"all\" goes with the cache modes respect and off: the others know no Vary";
        table.problem(table.span(), message);
    }
    let pages = pages(&table, &cache, &query);
    let derived_from = table.string("derived_from");
    let upstream = assign::said(&table, upstreams);
    if methods == Methods::Any && headers != HeaderMode::All {
        table.problem(
            table.span(),
            "methods = [\"*\"] goes with headers = \"all\"",
        );
    }
    for key in ["name", "path"] {
        if !table.has(key) {
            table.problem(table.span(), format!("a route needs {key}"));
        }
    }
    if let Some((path, at)) = &path
        && path == openapi::PATH
    {
        let message = format!(
            "{} is {path}, where the routes are described; a route needs a path of its own",
            table.name("path")
        );
        table.problem(at, message);
    }
    if query.len() > MOST_QUERY_PARAMETERS {
        let message = format!("a route has at most {MOST_QUERY_PARAMETERS} query parameters");
        table.problem(table.span(), message);
        query.truncate(MOST_QUERY_PARAMETERS);
    }
    let route = path.and_then(|(path, span)| {
        let params = ordered(&table, &path, &span, params)?;
        let names: Vec<&str> = params.iter().map(|p| &*p.name).collect();
        let (template, at) = upstream_path.unwrap_or_else(|| (path.clone(), span));
        let upstream_path = match Template::new(&template, &names) {
            Ok(template) => template,
            Err(error) => {
                table.problem(&at, error.to_string());
                return None;
            }
        };
        cache.tip = tip.unwrap_or_else(|| nearest(&tips.sources, &template));
        let route = Route {
            name: name?.0.into(),
            summary,
            path: path.into(),
            methods,
            places: ChainSegments::of(&params, &upstream_path),
            params,
            query: query.into_iter().filter_map(|(_, read)| read).collect(),
            strict_query,
            any_query,
            headers,
            upstream: 0,
            upstream_path,
            response,
            cache,
            pages,
            derived_from: None,
            number: 0,
        };
        Some(Declaration {
            route,
            derived_from,
            upstream,
        })
    });
    table.finish();
    route
}

/// The tip whose status path stands nearest above a route's path; the last one,
/// which has none, where no other does.
fn nearest(tips: &[TipSource], path: &str) -> u16 {
    let above = |source: &TipSource| {
        let status = source.path.as_deref()?;
        let status = status.split('?').next().unwrap_or(status);
        path.starts_with(status).then_some(status.len())
    };
    let numbered = tips.iter().enumerate();
    let found = numbered.filter_map(|(at, source)| Some((above(source)?, at)));
    let at = found
        .max()
        .map_or(tips.len().saturating_sub(1), |(_, at)| at);
    u16::try_from(at).unwrap_or(u16::MAX)
}

/// Whether a route's answers are pages that are cut from windows, and how many
/// items a window has.
fn pages(table: &Table<'_>, cache: &Policy, query: &[Declared]) -> Option<NonZeroU32> {
    let paged = table.boolean("pages", false);
    let size = table.integer("upstream_page", 1..=1_000_000);
    if !paged {
        if size.is_some() {
            table.problem(table.span(), "upstream_page goes with pages = true");
        }
        return None;
    }
    let is_number = |name: &str| {
        let mut parameters = query.iter().filter_map(|(_, read)| read.as_ref());
        parameters.any(|parameter| {
            let number = matches!(parameter.kind, ParameterType::Integer { .. });
            *parameter.name == *name && number && parameter.default.is_some()
        })
    };
    if !is_number("limit") || !is_number("offset") || cache.mode != Mode::Chain {
        let message = "pages = true needs the query parameters limit and offset, integers with a default, and cache.mode = \"chain\"";
        table.problem(table.span(), message);
    }
    let size = size.and_then(|size| u32::try_from(size).ok());
    NonZeroU32::new(size.unwrap_or(UPSTREAM_PAGE))
}

/// The largest page of the reference upstream, unless it is told otherwise.
const UPSTREAM_PAGE: u32 = 60;

fn methods(table: &Table<'_>) -> Methods {
    let read = table.strings(
        "methods",
        "GET, HEAD, or \"*\" alone for any",
        |text| match text {
            "GET" => Some(Some(Method::GET)),
            "HEAD" => Some(Some(Method::HEAD)),
            "*" => Some(None),
            _ => None,
        },
    );
    match read {
        None => Methods::Listed(vec![Method::GET, Method::HEAD]),
        Some(methods) if methods.contains(&None) => Methods::Any,
        Some(methods) => Methods::Listed(methods.into_iter().flatten().collect()),
    }
}

/// The path's parameters in its order; each must be declared, and no other.
fn ordered(
    table: &Table<'_>,
    path: &str,
    span: &Range<usize>,
    mut declared: Vec<Declared>,
) -> Option<Vec<Parameter>> {
    let names = match parameter_names(path) {
        Ok(names) => names,
        Err(error) => {
            table.problem(
                span,
                format!("{} is \"{path}\"; {error}", table.name("path")),
            );
            return None;
        }
    };
    let mut params = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            table.problem(span, format!("the path has {{{name}}} twice"));
            return None;
        }
        match declared.iter().position(|((known, _), _)| known == name) {
            // One that could not be read is told already.
            Some(at) => params.extend(declared.remove(at).1),
            None => table.problem(
                span,
                format!("the path has {{{name}}}, and params.{name} does not say what it may be"),
            ),
        }
    }
    for ((name, at), _) in &declared {
        table.problem(at, format!("the path has no {{{name}}}"));
    }
    (params.len() == names.len()).then_some(params)
}

/// A parameter's name and where it is declared; and what it may be, where that
/// could be read.
type Declared = (Placed<String>, Option<Parameter>);

fn parameters(table: Table<'_>, hash_zeros: u8, in_query: bool) -> Vec<Declared> {
    let tables = table.named_tables();
    let read = |((name, at), table): (Placed<String>, _)| {
        let parameter = parameter(name.clone(), &at, table, hash_zeros, in_query);
        ((name, at), parameter)
    };
    tables.into_iter().map(read).collect()
}

#[derive(Clone, Copy)]
enum Type {
    Hex64,
    Block,
    Ticker,
    Integer,
    Enumeration,
    Text,
}

const TYPES: [(&str, Type); 6] = [
    ("hex64", Type::Hex64),
    ("block", Type::Block),
    ("ticker", Type::Ticker),
    ("integer", Type::Integer),
    ("enum", Type::Enumeration),
    ("string", Type::Text),
];

fn parameter(
    name: String,
    at: &Range<usize>,
    table: Table<'_>,
    hash_zeros: u8,
    in_query: bool,
) -> Option<Parameter> {
    let is_name = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if !is_name || name.is_empty() {
        table.problem(
            at,
            format!(
                "\"{name}\" is no name for a parameter; allowed are letters, digits, _, - and ."
            ),
        );
    }
    let kind = table.one_of("type", &TYPES);
    if table.is_there() && !table.has("type") {
        table.problem(at, format!("{} must say what it is", table.name("type")));
    }
    let kind = match kind? {
        Type::Hex64 => ParameterType::Hex64,
        Type::Block => ParameterType::Block { zeros: hash_zeros },
        Type::Ticker => ParameterType::Ticker,
        Type::Integer => ParameterType::Integer {
            min: table.integer("min", 0..=MOST_INTEGER).unwrap_or(0),
            max: table
                .integer("max", 0..=MOST_INTEGER)
                .unwrap_or(MOST_INTEGER),
        },
        Type::Enumeration => {
            let values = table.strings("values", "a value that is allowed", |text| {
                Some(text.into())
            });
            let values: Vec<Box<str>> = values.unwrap_or_default();
            if values.is_empty() {
                table.problem(
                    at,
                    format!("{} must list at least one value", table.name("values")),
                );
            }
            ParameterType::Enumeration(values.into())
        }
        Type::Text => text(&table),
    };
    if let ParameterType::Integer { min, max } = kind
        && min > max
    {
        table.problem(
            at,
            format!("min is {min} and max is {max}; min is at most max"),
        );
    }
    let default = match in_query {
        true => default(&table, &name, &kind),
        false => None,
    };
    let description = table.string("description").map(|(text, _)| text.into());
    table.finish();
    Some(Parameter {
        name: name.into(),
        kind,
        default,
        description,
    })
}

fn text(table: &Table<'_>) -> ParameterType {
    let length = |key, default| {
        table
            .integer(key, 0..=4096)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(default)
    };
    let compile = |text: &str| {
        let regex = Regex::new(&format!("^(?:{text})$")).ok()?;
        Some((text.into(), regex))
    };
    ParameterType::Text {
        min: length("min_length", 1),
        max: length("max_length", 100),
        pattern: table
            .parsed("pattern", "a regular expression", compile)
            .map(|(pattern, _)| pattern),
    }
}

/// A default is given as it would come in a query, or as a number, and must
/// validate.
fn default(table: &Table<'_>, name: &str, kind: &ParameterType) -> Option<Box<str>> {
    let (raw, at) = if matches!(kind, ParameterType::Integer { .. }) {
        let number = table.integer("default", 0..=MOST_INTEGER)?;
        (number.to_string(), table.span().clone())
    } else {
        table.string("default")?
    };
    let mut canonical = Vec::new();
    match kind.write_canonical(name, &raw, true, &mut canonical) {
        Ok(()) => String::from_utf8(canonical).ok().map(Into::into),
        Err(invalid) => {
            table.problem(&at, format!("the default: {invalid}"));
            None
        }
    }
}

/// A route's policy, and the tip that it names.
fn policy(table: Table<'_>, tips: &[TipSource]) -> (Policy, Option<u16>) {
    let mode = table.one_of("mode", &Mode::NAMES).unwrap_or(Mode::Off);
    let most = Duration::from_hours(24 * 365);
    let times = times(&table.table("times"), most);
    let policy = Policy {
        mode,
        times,
        stale_while_revalidate: table.duration(
            "stale_while_revalidate",
            seconds(0)..=most,
            seconds(0),
        ),
        stale_if_error: table.duration("stale_if_error", seconds(0)..=most, seconds(0)),
        set_cookie: table
            .one_of("store_set_cookie", &SetCookie::NAMES)
            .unwrap_or_default(),
        tip: 0,
    };
    let tip = table.string("tip").and_then(|(name, at)| {
        let named = tips.iter().filter(|source| source.path.is_some());
        let found = named.clone().position(|source| *source.name == *name);
        if found.is_none() {
            let names: Vec<_> = named.map(|source| &*source.name).collect();
            let message = format!(
                "{} is \"{name}\"; allowed are the names of [chain.tip.NAME]: {}",
                table.name("tip"),
                names.join(", ")
            );
            table.problem(&at, message);
        }
        u16::try_from(found?).ok()
    });
    if mode != Mode::Respect && table.has("store_set_cookie") {
        let message =
            "store_set_cookie goes with mode = \"respect\": the other modes store no cookie";
        table.problem(table.span(), message);
    }
    if mode != Mode::Chain && table.has("tip") {
        table.problem(table.span(), "tip goes with mode = \"chain\"");
    }
    if mode == Mode::Override && policy.times == StatusLifetimes::default() {
        let message = format!(
            "{} is \"override\" and there are no times",
            table.name("mode")
        );
        table.problem(table.span(), message);
    }
    table.finish();
    (policy, tip)
}

fn times(table: &Table<'_>, most: Duration) -> StatusLifetimes {
    let mut times = StatusLifetimes::default();
    for ((key, key_at), value) in table.entries() {
        let Some(time) = time(table, &key, value, most) else {
            continue;
        };
        let class = key
            .strip_suffix("xx")
            .and_then(|digit| digit.parse::<usize>().ok());
        let status = key
            .parse::<u16>()
            .ok()
            .and_then(|code| StatusCode::from_u16(code).ok());
        match (&*key, class, status) {
            ("empty", ..) => times.empty = Some(time),
            (_, Some(class @ (2 | 4)), _) => times.classes[class - 1] = Some(time),
            (_, _, Some(status)) if status == StatusCode::OK || status.is_client_error() => {
                times.exact.push((status, time));
            }
            _ => table.problem(
                &key_at,
                format!(
                    "{}: allowed are a status (200, 400 to 499), a class (2xx, 4xx) and empty",
                    table.name(&key)
                ),
            ),
        }
    }
    times
}

fn time(
    table: &Table<'_>,
    key: &str,
    (text, at): Placed<String>,
    most: Duration,
) -> Option<Duration> {
    let time = units::parse(&text).filter(|time| *time <= most);
    if time.is_none() {
        let name = table.name(key);
        table.problem(
            &at,
            format!(
                "{name} is \"{text}\"; allowed is {}, at most 365d",
                units::DURATION
            ),
        );
    }
    time
}
