//! The keys of a `[[route]]`.

use std::time::Duration;

use http::HeaderName;
use serde_json::{Value as Json, json};
use toml::Spanned;
use toml::de::DeValue;

use super::parameters::ParameterKeys;
use crate::cache::policy::Mode;
use crate::cache::storable::SetCookie;
use crate::config::cache::FIELD;
use crate::config::containers::{Entries, ListOf, NamedTable, list, named, table, word_or};
use crate::config::key::{Kind, keys};
use crate::config::kinds::{
    Choice, Flag, ParsedText, STRING, Time, YEAR, choice, integer, optional, text, time, when,
};
use crate::config::problem::Path;
use crate::route::{HeaderMode, ResponseSchema};

/// A method that a route answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum Verb {
    Get,
    Head,
    /// Any method.
    Any,
}

const VERBS: Choice<Verb> = choice(&[("GET", Verb::Get), ("HEAD", Verb::Head), ("*", Verb::Any)]);

/// Which header fields pass: a word, or the request fields that do.
pub(in crate::config) struct PassedFields;

const FIELDS: ListOf<ParsedText<HeaderName>> = list(FIELD);
const MODES: Choice<HeaderMode> = choice(&HeaderMode::NAMES);

impl Kind for PassedFields {
    /// With the request fields, if they are listed.
    type Value = (HeaderMode, Option<Vec<HeaderName>>);

    fn allowed(&self) -> String {
        format!("{}, or {}", MODES.allowed(), FIELDS.allowed())
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        match value.get_ref().is_array() {
            true => Some((HeaderMode::All, Some(FIELDS.read(path, value)?))),
            false => Some((MODES.read(path, value)?, None)),
        }
    }

    fn print(&self, (mode, fields): &Self::Value) -> Option<String> {
        let listed = fields.as_ref().and_then(|fields| FIELDS.print(fields));
        listed.or_else(|| MODES.print(mode))
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [MODES.schema(), FIELDS.schema()]})
    }
}

const NAME: ParsedText<String> = text("1 to 64 of a-z, 0-9 and -", "^[a-z0-9-]{1,64}$", |text| {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_name = (1..=64).contains(&text.len()) && text.bytes().all(is_allowed);
    when(is_name, text)
});

/// The names of parameters, as JSON Schema has them.
const PARAMETERS: &str = "^[A-Za-z0-9_.-]+$";

const LIFETIMES: Entries<Time> = Entries {
    value: time(Duration::ZERO, YEAR),
    allowed: "allowed are a status (200, 400 to 499), a class (2xx, 4xx) and empty",
    pattern: "^(empty|[24]xx|200|4[0-9][0-9])$",
    is_key: |key| {
        let is_error = key.len() == 3 && key.parse().is_ok_and(|n: u16| (400..500).contains(&n));
        matches!(key, "empty" | "2xx" | "4xx" | "200") || is_error
    },
};

keys! {
    /// A kind of request that ordgate answers.
    pub(in crate::config) struct RouteKeys {
        /// Its name in logs, metrics and /openapi.json.
        name: String = NAME => String::new(), required();
        /// A summary for /openapi.json.
        summary: Option<String> = optional(STRING) => None;
        /// The path, with {parameter} as a whole segment. {rest:*} as the last segment
        /// stands for all that is left of the path, as the client sent it.
        path: String = STRING => String::new(), required();
        /// The path at the upstream, where it differs, with the same parameters.
        upstream_path: Option<String> = optional(STRING) => None;
        /// The upstream: "default", or the name of an [upstreams.NAME].
        ///
        /// Without it, that is the upstream of the route's tip, or of the tip whose
        /// status path is the longest that the route's path begins with.
        upstream: Option<String> = optional(STRING) => None;
        /// GET, HEAD or both; or ["*"] for any method, with its body, together with
        /// headers = "all". OPTIONS is answered in any case.
        methods: Vec<Verb> = list(VERBS) => vec![Verb::Get, Verb::Head];
        /// The parameters of the path, by name.
        params: Vec<NamedTable<ParameterKeys>> =
            named(PARAMETERS).without("default") => Vec::new();
        /// The parameters of the query, by name; or "any", which passes the query on as
        /// it is.
        ///
        /// The upstream gets them in the order of their names, with defaults filled in.
        /// A parameter that comes twice is refused, an unknown one is dropped.
        query: Option<Vec<NamedTable<ParameterKeys>>> =
            word_or("any", named(PARAMETERS)) => Some(Vec::new());
        /// Whether unknown query parameters are refused rather than dropped.
        strict_query: bool = Flag => false;
        /// "typed": no field of the client goes to the upstream, and answers have
        /// ordgate's own; or "all": every end-to-end field is passed both ways, and
        /// statuses and bodies are as the upstream sends them. Fields that tell an origin
        /// another host, scheme, path or client do not pass. A list of field names is like
        /// "all", but of the client's fields only these go to the upstream.
        ///
        /// With path = "/{rest:*}", methods = ["*"], query = "any" and cache.mode =
        /// "respect", "all" is a plain HTTP cache in front of any origin. An API key goes
        /// with each request of such a route, so clients can use all that the key
        /// allows.
        headers: (HeaderMode, Option<Vec<HeaderName>>) = PassedFields => (HeaderMode::default(), None);
        /// The form of answers, for /openapi.json.
        response: ResponseSchema = choice(&ResponseSchema::NAMES) => ResponseSchema::default();
        cache: PolicyKeys = table() => PolicyKeys::defaults();
        /// Whether answers are pages by the query parameters `limit` and `offset`, cut
        /// from stored windows of `upstream_page` items. It needs cache.mode = "chain".
        pages: bool = Flag => false;
        /// The number of items in a window. Set it to what the upstream allows: a page
        /// costs it the whole block, however long the page is.
        upstream_page: u32 = integer(1..=1_000_000) => 60, only_with("pages", &["true"]);
        /// The name of the route with the activity of blocks. A transaction that is
        /// whole in stored windows of that route is answered from them.
        derived_from: Option<String> = optional(STRING) => None;
    }
}

keys! {
    /// What a route stores, and for how long.
    pub(in crate::config) struct PolicyKeys {
        /// "chain", "override", "respect" or "off".
        ///
        /// "chain" keeps answers by the blocks that they depend on ([chain]) and ignores
        /// the upstream's cache-control and etag. "override" gives each status the fixed
        /// lifetime of `times`, whatever the upstream's fields say. "respect" is a
        /// shared cache by RFC 9111, with stale-while-revalidate and stale-if-error (RFC
        /// 5861), Vary, validation, invalidation, ranges and CDN-Cache-Control (RFC
        /// 9213). "off" stores nothing.
        mode: Mode = choice(&Mode::NAMES) => Mode::Off;
        /// With mode = "override": the freshness lifetime for statuses (200, 400 to
        /// 499), for classes (2xx, 4xx), and for `empty`: a 200 whose `results` is an
        /// empty list. What has no time is not stored.
        times: Vec<(String, Duration)> = LIFETIMES => Vec::new();
        /// How long past its freshness an answer is served while a newer one is fetched.
        stale_while_revalidate: Duration = time(Duration::ZERO, YEAR) => Duration::ZERO;
        /// How long past its freshness an answer is served when the upstream fails or
        /// its budget is spent. With mode = "respect", the upstream's fields take
        /// precedence.
        stale_if_error: Duration = time(Duration::ZERO, YEAR) => Duration::ZERO;
        /// With mode = "respect": which responses with set-cookie are stored, and their
        /// cookies given to every client.
        ///
        /// "explicit": those that say how long they are fresh (max-age, s-maxage,
        /// expires, a targeted field) or that are public; "never": none. Routes with
        /// headers = "typed" pass no cookie on, and store by the other rules unless it
        /// is "never".
        store_set_cookie: SetCookie = choice(&SetCookie::NAMES) => SetCookie::default(),
            only_with("mode", &["respect"]);
        /// With mode = "chain": the tip of the indexer that answers ([chain.tip.NAME]).
        ///
        /// Without it, that is the one whose status path is the longest that the route's
        /// path begins with.
        tip: Option<String> = optional(STRING) => None, only_with("mode", &["chain"]);
    }
}
