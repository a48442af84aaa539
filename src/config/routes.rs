//! The `[[route]]` tables, and the route table that they make.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;

use http::{HeaderName, Method, StatusCode};
use schemars::JsonSchema;
use serde::de;
use serde::{Deserialize, Deserializer, Serialize};

use super::parameter::ParameterTable;
use super::refuse;
use crate::cache::policy::{Mode, Policy};
use crate::chain::TipSource;
use crate::openapi;
use crate::route::{
    self, ChainRules, ChainSegments, HeaderMode, Methods, PathTemplate, RequestRules,
    ResponseSchema, RouteDocs, UpstreamTarget, parameter_names,
};
use crate::validate::ParameterType;

/// A kind of request that ordgate answers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteEntry {
    /// Its name in logs, metrics and /openapi.json: 1 to 64 of a-z, 0-9 and -.
    pub(super) name: String,
    /// A summary for /openapi.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// The path, with {parameter} as a whole segment. {rest:*} as the last segment stands for
    /// all that is left of the path, as the client sent it.
    path: String,
    /// The path at the upstream, where it differs, with the same parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream_path: Option<String>,
    /// The upstream: "default", or the name of an `[upstreams.NAME]`.
    ///
    /// Without it, that is the upstream of the route's tip, or of the tip whose status path is
    /// the longest that the route's path begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) upstream: Option<String>,
    /// GET, HEAD or both; or ["*"] for any method, with its body, together with headers =
    /// "all". OPTIONS is answered in any case.
    #[serde(default = "both_methods")]
    methods: Vec<Verb>,
    /// "typed": no field of the client goes to the upstream, and answers have ordgate's own; or
    /// "all": every end-to-end field is passed both ways, and statuses and bodies are as the
    /// upstream sends them. Fields that tell an origin another host, scheme, path or client do
    /// not pass. A list of field names is like "all", but of the client's fields only these go
    /// to the upstream.
    ///
    /// With path = "/{rest:*}", methods = ["*"], query = "any" and cache.mode = "respect", "all"
    /// is a plain HTTP cache in front of any origin. An API key goes with each request of such a
    /// route, so clients can use all that the key allows.
    #[serde(default)]
    headers: PassedFields,
    /// The form of answers, for /openapi.json. Answers must be JSON, unless it is "any": any
    /// content type, sent on while it is stored, of which nothing is read. In mode "chain" they
    /// are then fresh until the tip moves, if their status is 200; a 404 for a second; other client
    /// errors are passed on. What is longer than `max_body_bytes` is passed on, too.
    ///
    /// Where two routes with "rune-activity", pages = true, and the same tip and upstream have
    /// the activity of transactions and of blocks, a transaction that is whole in stored
    /// windows of its block is answered from them.
    #[serde(default)]
    response: ResponseSchema,
    /// Whether answers may be what strangers wrote, such as scripts: they have `nosniff` in
    /// x-content-type-options and `sandbox` in content-security-policy, so that browsers run
    /// nothing of them.
    #[serde(default)]
    untrusted: bool,
    /// Whether answers are pages by the query parameters `limit` and `offset`, cut from stored
    /// windows of `upstream_page` items. It needs cache.mode = "chain".
    #[serde(default)]
    pages: bool,
    /// The number of items in a window, 60 if it is not set. Set it to what the upstream
    /// allows: a page costs it the whole block, however long the page is. If the upstream allows
    /// less, most pages cost two requests, and the log says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream_page: Option<NonZeroU32>,
    /// The parameters of the path, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    params: BTreeMap<String, ParameterTable>,
    /// The parameters of the query, by name; or "any", which passes the query on as it is.
    ///
    /// The upstream gets them in the order of their names, with defaults filled in. A parameter
    /// that comes twice is refused, an unknown one is dropped.
    #[serde(default, skip_serializing_if = "Query::is_empty")]
    query: Query,
    #[serde(default)]
    pub(super) cache: Policy,
}

/// Which header fields pass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(
    rename_all = "lowercase",
    expecting = "allowed is \"typed\", \"all\" or a list of field names"
)]
#[schemars(inline)]
enum PassedFields {
    #[default]
    Typed,
    All,
    /// The client's fields that go to the upstream.
    #[serde(untagged)]
    Listed(Vec<String>),
}

/// A method that a route answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
enum Verb {
    #[serde(rename = "GET")]
    Get,
    #[serde(rename = "HEAD")]
    Head,
    /// Any method.
    #[serde(rename = "*")]
    Any,
}

fn both_methods() -> Vec<Verb> {
    vec![Verb::Get, Verb::Head]
}

/// The parameters of a query, or any query.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum Query {
    Any,
    #[serde(untagged)]
    Named(BTreeMap<String, ParameterTable>),
}

impl Default for Query {
    fn default() -> Self {
        Self::Named(BTreeMap::new())
    }
}

impl<'de> Deserialize<'de> for Query {
    /// Not by an untagged enum, which would not say where a parameter is wrong.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> de::Visitor<'de> for Either {
            type Value = Query;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("\"any\", or a table of parameters")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Query, E> {
                match text {
                    "any" => Ok(Query::Any),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Query, A::Error> {
                let named = de::value::MapAccessDeserializer::new(map);
                Deserialize::deserialize(named).map(Query::Named)
            }
        }

        from.deserialize_any(Either)
    }
}

impl Query {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Named(named) if named.is_empty())
    }
}

impl RouteEntry {
    fn methods(&self) -> Methods {
        if self.methods.contains(&Verb::Any) {
            return Methods::Any;
        }
        let method = |verb: &Verb| match verb {
            Verb::Head => Method::HEAD,
            Verb::Get | Verb::Any => Method::GET,
        };
        Methods::Listed(self.methods.iter().map(method).collect())
    }

    /// The route, without its upstream.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(super) fn route(&self, tips: &[TipSource]) -> Result<route::Route, Vec<String>> {
        let mut problems = Vec::new();
        let mut parameters = |table: &str, named: &BTreeMap<String, ParameterTable>| {
            let each = named.iter().filter_map(|(name, declared)| {
                let read = declared.parameter(name);
                read.map_err(|why| problems.push(format!("{table}.{name}{why}")))
                    .ok()
            });
            each.collect::<Vec<_>>()
        };
        let params = parameters("params", &self.params);
        let query = match &self.query {
            Query::Any => Vec::new(),
            Query::Named(named) => parameters("query", named),
        };
        self.check(&query, &mut problems);
        let template = self.upstream_path.as_ref().unwrap_or(&self.path);
        let tip = self.tip(template, tips, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let params = self.ordered(params).map_err(|why| vec![why])?;
        let names: Vec<&str> = params.iter().map(|param| &*param.name).collect();
        let path = PathTemplate::new(template, &names)
            .map_err(|why| vec![format!("the path {template:?}: {why}")])?;
        let (headers, passed) = match &self.headers {
            PassedFields::Typed => (HeaderMode::Typed, None),
            PassedFields::All => (HeaderMode::All, None),
            PassedFields::Listed(names) => {
                let names = names.iter().map(|name| {
                    HeaderName::try_from(name).map_err(|_not_one| {
                        vec![format!("headers has {name:?}, which is no field's name")]
                    })
                });
                (HeaderMode::All, Some(names.collect::<Result<_, _>>()?))
            }
        };
        Ok(route::Route {
            number: 0,
            name: self.name.as_str().into(),
            headers,
            passed,
            is_untrusted: self.untrusted,
            cache: Policy {
                tip,
                ..self.cache.clone()
            },
            chain: ChainRules {
                window: self
                    .pages
                    .then(|| self.upstream_page.unwrap_or(UPSTREAM_PAGE)),
                // Nothing is known of the blocks that answers of any type name.
                segments: match self.response == ResponseSchema::Any {
                    true => ChainSegments::default(),
                    false => ChainSegments::of(&params, &path),
                },
                derived_from: None,
            },
            request: RequestRules {
                path: self.path.as_str().into(),
                methods: self.methods(),
                params,
                query,
                any_query: matches!(self.query, Query::Any),
            },
            upstream: UpstreamTarget { number: 0, path },
            docs: RouteDocs {
                summary: self.summary.as_deref().map(Into::into),
                response: self.response,
            },
        })
    }

    /// Says which keys do not go together.
    fn check(&self, query: &[route::Parameter], problems: &mut Vec<String>) {
        let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = (1..=64).contains(&self.name.len()) && self.name.bytes().all(is_allowed);
        let is_open = self.headers != PassedFields::Typed;
        let is_number = |name: &str| {
            query.iter().any(|one| {
                let is_integer = matches!(one.kind, ParameterType::Integer { .. });
                *one.name == *name && is_integer && one.default.is_some()
            })
        };
        let (mode, times) = (self.cache.mode, &self.cache.times.0);
        for (is_wrong, why) in [
            (!is_name, "name: allowed are 1 to 64 of a-z, 0-9 and -"),
            (
                is_open && matches!(mode, Mode::Override | Mode::Chain),
                "headers = \"all\" goes with cache.mode = \"respect\" or \"off\": the other modes ignore Vary",
            ),
            (
                self.methods.contains(&Verb::Any) && !is_open,
                "methods = [\"*\"] goes with headers = \"all\"",
            ),
            (
                self.methods.is_empty(),
                "methods is empty: no request could be answered",
            ),
            (
                self.path == openapi::PATH,
                "path is /openapi.json, where ordgate describes the routes; a route needs a path of its own",
            ),
            (
                self.pages && !(is_number("limit") && is_number("offset") && mode == Mode::Chain),
                "pages = true needs the query parameters limit and offset, integers with a default, and cache.mode = \"chain\"",
            ),
            (
                self.pages && self.response == ResponseSchema::Any,
                "pages = true goes with answers that are JSON, not with response = \"any\"",
            ),
            (
                self.upstream_page.is_some() && !self.pages,
                "upstream_page goes with pages = true",
            ),
            (
                mode == Mode::Override && times.is_empty(),
                "cache.times is missing or empty: mode = \"override\" needs a lifetime",
            ),
            (
                mode != Mode::Override && !times.is_empty(),
                "cache.times goes with mode = \"override\"",
            ),
            (
                !self.cache.set_cookie.is_usual() && mode != Mode::Respect,
                "cache.store_set_cookie goes with mode = \"respect\"",
            ),
            (
                self.cache.tip_name.is_some() && mode != Mode::Chain,
                "cache.tip goes with mode = \"chain\"",
            ),
        ] {
            refuse(problems, is_wrong, why);
        }
        for key in times.keys() {
            let status = key.parse().ok();
            let is_status = status.is_some_and(|status: StatusCode| {
                status == StatusCode::OK || status.is_client_error()
            });
            refuse(
                problems,
                !is_status && !matches!(&**key, "empty" | "2xx" | "4xx"),
                format!(
                    "cache.times.{key}: allowed are a status (200, 400 to 499), a class (2xx, 4xx) and empty"
                ),
            );
        }
    }

    /// The number of its tip: the named one, else the one whose status path is the longest that
    /// its path begins with.
    fn tip(&self, path: &str, tips: &[TipSource], problems: &mut Vec<String>) -> u16 {
        let place = |(at, tip): (u16, &TipSource)| match &self.cache.tip_name {
            Some(name) => (*tip.name == **name).then_some((0, at)),
            None => {
                let status = tip.path.as_deref()?.split('?').next()?;
                path.starts_with(status).then_some((status.len(), at))
            }
        };
        let found = (0..).zip(tips).filter_map(place).max();
        if let (Some(name), None) = (&self.cache.tip_name, found) {
            let known: Vec<_> = tips.iter().map(|tip| &*tip.name).collect();
            problems.push(format!(
                "cache.tip is {name:?}; allowed are the names of [chain.tip.NAME]: {}",
                known.join(", ")
            ));
        }
        found.map_or(u16::MAX, |(_, at)| at)
    }

    /// The parameters of the path, in its order.
    fn ordered(&self, mut params: Vec<route::Parameter>) -> Result<Vec<route::Parameter>, String> {
        let names = parameter_names(&self.path);
        let names = names.map_err(|why| format!("path is {:?}; {why}", self.path))?;
        let mut ordered = Vec::new();
        for name in &names {
            let found = params.iter().position(|param| *param.name == **name);
            let at = found.ok_or_else(|| {
                format!("path has {{{name}}}, and params.{name} is missing, which says what it may be; a name is there once")
            })?;
            ordered.push(params.remove(at));
        }
        match params.first() {
            Some(param) => Err(format!(
                "params.{0} is not in the path, which has no {{{0}}}",
                param.name
            )),
            None => Ok(ordered),
        }
    }
}

/// Items of a window unless a route says something else.
const UPSTREAM_PAGE: NonZeroU32 = NonZeroU32::new(60).expect("it is not 0");
