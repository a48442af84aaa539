//! The `[[route]]` tables of proxy.toml.

mod keys;
mod parameters;
mod print;

use std::num::NonZeroU32;
use std::time::Duration;

use http::{Method, StatusCode};
pub(super) use keys::RouteKeys;
use keys::{PolicyKeys, Verb};
use parameters::{Declared, declared, ordered};
pub(super) use print::print;

use super::assign::{self, Assignment, KnownUpstreams, NamedUpstream, keep_used};
use super::chain::Tips;
use super::key::meant_or_allowed;
use super::problem::{FileSpan, Path};
use crate::cache::policy::{Mode, Policy, StatusLifetimes};
use crate::chain::TipSource;
use crate::openapi;
use crate::route::{
    ChainRules, ChainSegments, HeaderMode, MAX_QUERY_PARAMETERS, Methods, PathTemplate,
    RequestRules, Route, RouteDocs, RouteTable, TableError, UpstreamTarget,
};
use crate::upstream::Settings;
use crate::validate::ParameterType;

/// The routes of a file that are sound, in its order.
#[derive(Default)]
struct Found {
    routes: Vec<Route>,
    /// Where each stands in the file.
    spans: Vec<FileSpan>,
    /// The name of the route that each is derived from.
    sources: Vec<Option<(String, FileSpan)>>,
    /// The upstream that each names.
    upstreams: Vec<Option<NamedUpstream>>,
    /// The names of all, the ones that are not sound among them.
    names: Vec<String>,
    /// Whether there are some that are not sound, which has been reported.
    is_incomplete: bool,
}

/// Makes the route table, with the upstream of each route and tip. Removes the
/// upstreams that no route uses, and answers with their names.
pub(super) fn table(
    tables: Vec<(FileSpan, RouteKeys)>,
    root: &Path<'_>,
    tips: &mut Tips,
    upstreams: &mut Vec<Settings>,
    is_incomplete: bool,
) -> (RouteTable, Vec<Box<str>>) {
    let mut found = Found::default();
    let path = root.key("route");
    for (span, keys) in tables {
        let known = KnownUpstreams {
            settings: upstreams,
            is_incomplete,
        };
        let named = assign::named(&path, &keys.upstream, &known);
        let named = named.zip(keys.upstream.at.clone());
        let source = keys.derived_from.value.clone();
        let source = source.zip(keys.derived_from.at.clone());
        match route(keys, &path, &span, tips, &mut found.names) {
            Some(route) => {
                found.routes.push(route);
                found.spans.push(span);
                found.sources.push(source);
                found.upstreams.push(named);
            }
            None => found.is_incomplete = true,
        }
    }
    let assignment = Assignment::new(upstreams, &tips.named);
    assignment.assign(&mut tips.sources, &mut found.routes, &found.upstreams, root);
    let path = path.key("derived_from");
    for (at, source) in found.sources.into_iter().enumerate() {
        let Some((name, span)) = source else {
            continue;
        };
        match derived_from(&found.routes, at, &name) {
            Ok(source) => found.routes[at].chain.derived_from = Some(source),
            Err(NO_SUCH_ROUTE) if found.is_incomplete => {}
            Err(why) => path.problem(&span, format!("is \"{name}\"; {why}")),
        }
    }
    let unused = keep_used(upstreams, &mut tips.sources, &mut found.routes);
    let table = RouteTable::new(found.routes).unwrap_or_else(|errors| {
        for error in errors {
            let at = match &error {
                TableError::Overlap { index, .. } => found.spans.get(*index).cloned(),
                TableError::TooMany => None,
            };
            root.problem_whole(&at.unwrap_or_default(), format!("this route {error}"));
        }
        // The empty table is never used, since there are problems.
        RouteTable::default()
    });
    (table, unused)
}

const NO_SUCH_ROUTE: &str = "there is no such route";

/// The route whose stored blocks a transaction's activity is cut from.
fn derived_from(routes: &[Route], at: usize, name: &str) -> Result<u16, &'static str> {
    let found = routes.iter().position(|route| *route.name == *name);
    let source = found.ok_or(NO_SUCH_ROUTE)?;
    let (own, other) = (&routes[at], &routes[source]);
    let paged = own.chain.window.is_some() && other.chain.window.is_some();
    if !paged || own.cache.tip != other.cache.tip {
        return Err("both routes need pages = true, the same tip and the same upstream");
    }
    if own.chain.segments.hex64.is_none() || other.chain.segments.block.is_none() {
        return Err("it is for a route with a hex64 parameter, from one with a block parameter");
    }
    u16::try_from(source).map_err(|_many| NO_SUCH_ROUTE)
}

/// Makes a route, without its upstream and the route that it is derived from.
fn route(
    keys: RouteKeys,
    path: &Path<'_>,
    at: &FileSpan,
    tips: &Tips,
    names: &mut Vec<String>,
) -> Option<Route> {
    if keys.name.is_set() && !keys.name.is_wrong {
        if names.contains(&keys.name.value) {
            let message = format!(
                "is \"{}\", which is also the name of another route",
                *keys.name
            );
            path.key("name").problem(keys.name.at_or(at), message);
        }
        names.push(keys.name.value.clone());
    }
    let params = declared(&keys.params.value, &path.key("params"), tips.hash_zeros);
    let any_query = keys.query.value.is_none();
    let query = keys.query.value.as_deref().unwrap_or_default();
    let mut query = declared(query, &path.key("query"), tips.hash_zeros);
    let (mut cache, tip) = policy(&keys.cache.value, &path.key("cache"), at, tips);
    check_combinations(&keys, path, at, &query, cache.mode);
    query.truncate(MAX_QUERY_PARAMETERS);
    let template_at = keys.upstream_path.at_or(keys.path.at_or(at)).clone();
    let template_path = match keys.upstream_path.is_set() {
        true => path.key("upstream_path"),
        false => path.key("path"),
    };
    if !keys.path.is_set() || keys.path.is_wrong || keys.upstream_path.is_wrong {
        return None;
    }
    let params_wrong = keys.params.is_wrong;
    let params = ordered(path, &keys.path, keys.path.at_or(at), params, params_wrong)?;
    let param_names: Vec<&str> = params.iter().map(|p| &*p.name).collect();
    let own = keys.upstream_path.value.as_ref();
    let template = own.unwrap_or(&keys.path.value);
    let upstream_path = match PathTemplate::new(template, &param_names) {
        Ok(made) => made,
        Err(error) => {
            template_path.problem(&template_at, format!("is \"{template}\"; {error}"));
            return None;
        }
    };
    cache.tip = tip.unwrap_or_else(|| nearest(&tips.sources, template));
    let pages = keys.pages.then_some(*keys.upstream_page);
    if !keys.name.is_set() || keys.name.is_wrong {
        return None;
    }
    Some(Route {
        number: 0,
        name: keys.name.value.into(),
        headers: keys.headers.0,
        passed: keys.headers.value.1.map(Into::into),
        cache,
        chain: ChainRules {
            window: pages.and_then(NonZeroU32::new),
            segments: ChainSegments::of(&params, &upstream_path),
            derived_from: None,
        },
        request: RequestRules {
            path: keys.path.value.into(),
            methods: methods(&keys.methods.value),
            params,
            query: query.into_iter().filter_map(|one| one.parameter).collect(),
            strict_query: *keys.strict_query,
            any_query,
        },
        upstream: UpstreamTarget {
            number: 0,
            path: upstream_path,
        },
        docs: RouteDocs {
            summary: keys.summary.value.map(Into::into),
            response: *keys.response,
        },
    })
}

/// Reports keys of a route that do not go together.
fn check_combinations(
    keys: &RouteKeys,
    path: &Path<'_>,
    at: &FileSpan,
    query: &[Declared],
    mode: Mode,
) {
    let wrong = |key: &str, at: &FileSpan, message: &str| path.key(key).problem(at, message);
    let is_open = keys.headers.0 == HeaderMode::All;
    if is_open && matches!(mode, Mode::Override | Mode::Chain) {
        let message =
            "= \"all\" goes with cache.mode = \"respect\" or \"off\": the other modes ignore Vary";
        wrong("headers", keys.headers.at_or(at), message);
    }
    if keys.methods.contains(&Verb::Any) && !is_open && !keys.headers.is_wrong {
        let message = "= [\"*\"] goes with headers = \"all\"";
        wrong("methods", keys.methods.at_or(at), message);
    }
    if *keys.path.value == *openapi::PATH {
        let message = format!(
            "is {}, where ordgate describes the routes; a route needs a path of its own",
            openapi::PATH
        );
        wrong("path", keys.path.at_or(at), &message);
    }
    if query.len() > MAX_QUERY_PARAMETERS {
        let came = query.len();
        let message = format!("has {came} parameters; allowed are {MAX_QUERY_PARAMETERS}");
        wrong("query", keys.query.at_or(at), &message);
    }
    if *keys.pages {
        let is_number = |name: &str| {
            query.iter().any(|declared| match &declared.parameter {
                Some(read) => {
                    let is_number = matches!(read.kind, ParameterType::Integer { .. });
                    *read.name == *name && is_number && read.default.is_some()
                }
                // It has been reported.
                None => *declared.name == *name,
            })
        };
        let is_sound = is_number("limit") && is_number("offset") && mode == Mode::Chain;
        if !is_sound && !keys.query.is_wrong && !keys.cache.mode.is_wrong {
            let message = "= true needs the query parameters limit and offset, integers with a default, and cache.mode = \"chain\"";
            wrong("pages", keys.pages.at_or(at), message);
        }
    }
}

/// The tip whose status path is the longest that a route's path begins with; else
/// the last one, which has no status path.
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

fn methods(verbs: &[Verb]) -> Methods {
    let method = |verb: &Verb| match verb {
        Verb::Head => Method::HEAD,
        Verb::Get | Verb::Any => Method::GET,
    };
    match verbs.contains(&Verb::Any) {
        true => Methods::Any,
        false => Methods::Listed(verbs.iter().map(method).collect()),
    }
}

/// A route's policy, and the number of the tip that it names.
fn policy(keys: &PolicyKeys, path: &Path<'_>, at: &FileSpan, tips: &Tips) -> (Policy, Option<u16>) {
    let policy = Policy {
        mode: *keys.mode,
        times: lifetimes(&keys.times),
        stale_while_revalidate: *keys.stale_while_revalidate,
        stale_if_error: *keys.stale_if_error,
        set_cookie: *keys.store_set_cookie,
        tip: 0,
    };
    let tip = keys.tip.value.as_ref().and_then(|name| {
        let known = tips.sources.iter().filter(|source| source.path.is_some());
        let found = known.clone().position(|source| *source.name == **name);
        if found.is_none() && !tips.is_incomplete && policy.mode == Mode::Chain {
            let names: Vec<_> = known.map(|source| &*source.name).collect();
            let allowed = meant_or_allowed(name, &names);
            path.key("tip").problem(
                keys.tip.at_or(at),
                format!(
                    "is \"{name}\"; {allowed} are the names of [chain.tip.NAME]: {}",
                    names.join(", ")
                ),
            );
        }
        u16::try_from(found?).ok()
    });
    let has_times = policy.times != StatusLifetimes::default();
    if policy.mode == Mode::Override && !has_times && !keys.times.is_wrong {
        let what = match keys.times.is_set() {
            true => "is empty: mode = \"override\" needs a lifetime",
            false => "is missing: mode = \"override\" needs it",
        };
        path.key("times").problem(keys.mode.at_or(at), what);
    }
    (policy, tip)
}

fn lifetimes(entries: &[(String, Duration)]) -> StatusLifetimes {
    let mut times = StatusLifetimes::default();
    for (key, time) in entries {
        let status = key.parse::<u16>().ok();
        let status = status.and_then(|code| StatusCode::from_u16(code).ok());
        match (&**key, status) {
            ("empty", _) => times.empty = Some(*time),
            ("2xx", _) => times.classes[1] = Some(*time),
            ("4xx", _) => times.classes[3] = Some(*time),
            (_, Some(status)) => times.exact.push((status, *time)),
            (_, None) => {}
        }
    }
    times
}
