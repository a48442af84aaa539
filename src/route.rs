//! Routes: which requests there are, and how each is handled. Pure.
//!
//! The table is made once, at load, from the `[[route]]` tables of proxy.toml
//! (`config`). The router, validation, cache keys, `Allow` and the OpenAPI document
//! all come from it. [`RouteTable::find`] finds the route of a path,
//! [`Route::canonical`] makes the canonical request: what is forwarded and, with
//! the route's number, the cache key.

pub(crate) mod canonical;
mod request;
mod table;
mod template;

use std::mem::discriminant;
use std::num::NonZeroU32;

use http::header::{CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Method, Response};
pub(crate) use request::value_of;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use table::{RouteMatch, RouteTable};
pub(crate) use template::PathTemplate;
pub(crate) use template::parameter_names;

use crate::cache::policy::{Mode, Policy};
use crate::validate::ParameterType;

/// One route, as configured and checked.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its number in cache keys: first its position in the table, after a reload what
    /// [`RouteTable::renumber`] assigns. Two routes with different meanings never
    /// have the same number in a process.
    pub number: u16,
    /// Its name in logs, metrics and the OpenAPI document.
    pub(crate) name: Box<str>,
    /// Which requests it accepts.
    pub(crate) request: RequestRules,
    /// Where it forwards them.
    pub(crate) upstream: UpstreamTarget,
    /// Which header fields pass.
    pub(crate) headers: HeaderMode,
    /// With [`HeaderMode::All`]: the request fields that pass, if not all do.
    pub(crate) passed: Option<Box<[HeaderName]>>,
    /// Whether its answers may be scripts of strangers.
    pub(crate) is_untrusted: bool,
    /// Which of its responses are stored, and for how long they are fresh.
    pub(crate) cache: Policy,
    /// How its responses relate to blocks.
    pub(crate) chain: ChainRules,
    /// What the OpenAPI document says of it.
    pub(crate) docs: RouteDocs,
}

/// Which requests a route accepts.
#[derive(Clone, Debug)]
pub(crate) struct RequestRules {
    /// The path template, with `{parameter}` as a whole segment.
    pub(crate) path: Box<str>,
    /// Its methods. OPTIONS is answered on every route that lists methods.
    pub(crate) methods: Methods,
    /// The parameters of the path, in its order.
    pub(crate) params: Vec<Parameter>,
    /// The parameters of the query, in canonical order.
    pub(crate) query: Vec<Parameter>,
    /// Whether the query is forwarded as it is, without validation.
    pub(crate) any_query: bool,
}

/// A parameter of a route.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its name in the path template or the query.
    pub(crate) name: Box<str>,
    /// Its type.
    pub(crate) kind: ParameterType,
    /// Its canonical value where the request has none. Path parameters always have
    /// a value.
    pub(crate) default: Option<Box<str>>,
    /// For the OpenAPI document.
    pub(crate) description: Option<Box<str>>,
}

/// Where a route forwards requests.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTarget {
    /// The upstream's number.
    pub(crate) number: u16,
    /// The path at the upstream.
    pub(crate) path: PathTemplate,
}

/// How a route's responses relate to blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChainRules {
    /// Where responses are pages of a list that are cut from stored windows: the
    /// number of items of a window (`upstream_page`).
    pub(crate) window: Option<NonZeroU32>,
    /// The path segments that name a block, a transaction or a ticker.
    pub(crate) segments: ChainSegments,
    /// Where a transaction's activity is derived from stored windows of its block:
    /// the position in the table of the route with those windows.
    pub(crate) derived_from: Option<u16>,
}

/// What the OpenAPI document needs of a route, beside its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteDocs {
    /// A one-line description.
    pub(crate) summary: Option<Box<str>>,
    /// The schema of its responses.
    pub(crate) response: ResponseSchema,
}

/// The segments of the upstream's path with the first parameter of each type,
/// counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainSegments {
    /// A block.
    pub(crate) block: Option<usize>,
    /// 64 hexadecimal digits, such as a transaction.
    pub(crate) hex64: Option<usize>,
    /// A ticker.
    pub(crate) ticker: Option<usize>,
}

impl ChainSegments {
    /// Finds them.
    pub(crate) fn of(params: &[Parameter], path: &PathTemplate) -> Self {
        let segment = |is: fn(&ParameterType) -> bool| {
            let at = params.iter().position(|param| is(&param.kind))?;
            path.segment_of(at)
        };
        Self {
            block: segment(|kind| matches!(kind, ParameterType::Block)),
            hex64: segment(|kind| matches!(kind, ParameterType::Hex64)),
            ticker: segment(|kind| matches!(kind, ParameterType::Ticker)),
        }
    }
}

/// The methods of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    /// These.
    Listed(Vec<Method>),
    /// Every method but CONNECT and TRACE, including unknown ones and OPTIONS, with
    /// request bodies.
    Any,
}

impl Methods {
    /// Whether a method is among them.
    pub(crate) fn contains(&self, method: &Method) -> bool {
        match self {
            Self::Listed(methods) => methods.contains(method),
            Self::Any => !matches!(*method, Method::CONNECT | Method::TRACE),
        }
    }

    /// The value of `Allow`.
    pub(crate) fn allow(&self) -> HeaderValue {
        let Self::Listed(methods) = self else {
            return HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        };
        let mut names: Vec<_> = methods.iter().map(Method::as_str).collect();
        names.push("OPTIONS");
        HeaderValue::try_from(names.join(", ")).unwrap_or(HeaderValue::from_static("GET"))
    }
}

/// Which header fields pass a route, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HeaderMode {
    /// None of the client's fields are forwarded, and responses have ordgate's own
    /// fields.
    #[default]
    Typed,
    /// All end-to-end fields, as a general HTTP cache passes them.
    All,
}

/// The schema of a route's responses in the OpenAPI document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ResponseSchema {
    /// Any JSON value.
    #[default]
    Json,
    /// A BRC-20 token with its supply (the API's section 2.1).
    #[serde(rename = "brc20-token")]
    Brc20Token,
    /// A page of rune activity (the API's section 2.4).
    RuneActivity,
    /// Any content type.
    Any,
}

impl Route {
    /// Whether it is plain: it obeys the origin's fields, or passes the client's.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.headers == HeaderMode::All || self.cache.mode == Mode::Respect
    }

    /// Whether its answers may have any content type: they are sent on while they are stored.
    pub(crate) fn is_any_type(&self) -> bool {
        self.docs.response == ResponseSchema::Any
    }

    /// Has browsers run nothing that an answer contains, if it may be a stranger's.
    #[inline]
    pub(crate) fn disarm<B>(&self, answer: &mut Response<B>) {
        if self.is_untrusted {
            let fields = answer.headers_mut();
            let sandbox = HeaderValue::from_static("sandbox");
            fields.insert(CONTENT_SECURITY_POLICY, sandbox);
            let nosniff = HeaderValue::from_static("nosniff");
            fields.insert(X_CONTENT_TYPE_OPTIONS, nosniff);
        }
    }

    /// Whether a request field that its client sends may reach the origin.
    pub(crate) fn passes(&self, name: &HeaderName) -> bool {
        let listed = self.passed.as_ref();
        self.headers == HeaderMode::All && listed.is_none_or(|names| names.contains(name))
    }

    /// What its stored responses depend on, as text: the same request gets the same response,
    /// stored in the same way, under every route of the same name and meaning. Bounds and
    /// defaults of parameters may differ, since canonical requests contain every value; so may
    /// what is looked up per request, such as how long a stale response may be used.
    ///
    /// Tips, upstreams and the routes that others are derived from are not in it: their
    /// numbers have a meaning only within one configuration.
    pub(crate) fn meaning(&self) -> String {
        let declared = |all: &[Parameter]| {
            let each = all
                .iter()
                .map(|one| (one.name.clone(), discriminant(&one.kind)));
            each.collect::<Vec<_>>()
        };
        let request = &self.request;
        let asked = (
            &request.path,
            declared(&request.params),
            declared(&request.query),
        );
        let (passed, cache) = ((self.headers, &self.passed), &self.cache);
        let stored = (cache.mode, &cache.times, cache.set_cookie);
        let chain = (self.chain.window, self.chain.segments);
        let path = (&self.upstream.path, request.any_query);
        format!("{:?}", (&self.name, asked, path, passed, stored, chain))
    }
}

#[cfg(test)]
mod tests;
