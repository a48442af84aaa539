//! How an answer is said: the last step of the walk. A stored response, a
//! refusal, a preflight, each with the fields that browsers and caches need.
//!
//! What is the same for every client is put together at fill, as a
//! [`HeaderMap`] with places for the rest ([`Responder::template`]); a hit clones
//! it and fills the places, without looking any up.
//!
//! Deliberately absent: whether to answer so; that is the walk's.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::FixedState;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AGE, ALLOW, CACHE_CONTROL, CACHE_STATUS, CONTENT_TYPE, ETAG,
    ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::cache::etag::none_match_fails;
use crate::cache::key::Key;
use crate::cache::outcome::{Outcome, age};
use crate::cache::store::{FieldRole, StoredResponse, Template};
use crate::limit::Permit;
use crate::refusal::Refusal;
use crate::wire::{Body, PROBLEM_JSON, RATELIMIT, RATELIMIT_POLICY, SERVER_TIMING, X_REQUEST_ID};

/// What is said to clients beside the answer itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// The origins whose pages may read answers; empty for any.
    pub cors_origins: Vec<String>,
    /// Whether `cache-status` carries `key`.
    pub cache_status_key: bool,
    /// Whether answers carry `server-timing`.
    pub server_timing: bool,
}

/// What browsers may read beside the safelisted fields.
const EXPOSED: &str = "etag, age, cache-status, retry-after, ratelimit, ratelimit-policy, x-request-id, proxy-status, server-timing";

/// Fields by content type and promise.
type Templates = HashMap<(HeaderValue, ClientFreshness), Arc<Template>>;

/// For how long clients may keep an answer: what `cache-control` tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientFreshness {
    /// Not at all.
    Nothing,
    /// For so long, counted from when it was received; told in whole seconds.
    For(Duration),
    /// For so long, and it will not change meanwhile (RFC 8246).
    Immutable(Duration),
}

/// Makes answers.
pub struct Responder {
    origins: Option<Vec<HeaderValue>>,
    cache_status_key: bool,
    server_timing: bool,
    limit_policy: Option<HeaderValue>,
    dialect: u64,
    templates: Mutex<Templates>,
}

/// Templates that are shared. An upstream has one content type or two, and a
/// route a few lifetimes; one that makes up a new type each time gets templates
/// of their own.
const SHARED_TEMPLATES: usize = 256;

/// What is said of one request, beside the answer.
pub struct ResponseContext<'a> {
    /// The request's fields.
    pub fields: &'a HeaderMap,
    /// Its id.
    pub request_id: RequestId,
    /// Its place within its caller's limit.
    pub permit: Option<Permit>,
}

/// A request's id: 16 hexadecimal digits, unique in this process and, but by
/// chance, beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId([u8; 16]);

impl RequestId {
    /// The id of a number that no other request has.
    pub fn new(number: u64) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        // Stafford's 13th variant of the 64-bit finaliser: one to one, so
        // different numbers stay different.
        let mut bits = number;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        Self(std::array::from_fn(|at| {
            HEX[(bits >> (60 - 4 * at) & 15) as usize]
        }))
    }

    /// Whether it is one of so many, by chance: at most 256.
    pub const fn is_one_in(&self, many: u64) -> bool {
        let [.., high, low] = self.0;
        (digit(high) << 4 | digit(low)).is_multiple_of(many)
    }

    /// Its digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("")
    }

    fn field(self) -> HeaderValue {
        HeaderValue::from_bytes(&self.0).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The value of a hexadecimal digit in lower case.
const fn digit(digit: u8) -> u64 {
    (if digit > b'9' {
        digit - b'a' + 10
    } else {
        digit - b'0'
    }) as u64
}

/// A place in a template that every answer fills.
const PLACE: HeaderValue = HeaderValue::from_static("");

impl Responder {
    /// Answers as the settings want them; with the limit's policy, where there
    /// is a limit.
    pub fn new(settings: &Settings, limit_policy: Option<HeaderValue>) -> Self {
        let origins = settings.cors_origins.iter();
        let origins: Vec<_> = origins
            .filter_map(|o| HeaderValue::from_str(o).ok())
            .collect();
        // What `constant` makes of the settings.
        let said = (!origins.is_empty(), &limit_policy);
        Self {
            dialect: FixedState::default().hash_one(said),
            origins: (!origins.is_empty()).then_some(origins),
            cache_status_key: settings.cache_status_key,
            server_timing: settings.server_timing,
            limit_policy,
            templates: Mutex::default(),
        }
    }

    /// The fields of all answers of one content type and promise: one map,
    /// shared, since a map of its own would cost a small answer as much memory
    /// as its body.
    pub fn template(&self, content_type: HeaderValue, promise: ClientFreshness) -> Arc<Template> {
        let mut templates = self
            .templates
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (content_type, promise);
        if let Some(template) = templates.get(&key) {
            return template.clone();
        }
        let fields = self.compose(key.0.clone(), promise);
        let template = Arc::new(self.with_places(fields));
        if templates.len() < SHARED_TEMPLATES {
            templates.insert(key, template.clone());
        }
        template
    }

    fn compose(&self, content_type: HeaderValue, promise: ClientFreshness) -> HeaderMap {
        let control = match promise {
            ClientFreshness::Nothing => "no-store".to_owned(),
            ClientFreshness::For(time) => format!("public, max-age={}", time.as_secs()),
            ClientFreshness::Immutable(time) => {
                format!("public, max-age={}, immutable", time.as_secs())
            }
        };
        let mut fields = HeaderMap::with_capacity(12);
        fields.insert(CONTENT_TYPE, content_type);
        fields.insert(
            CACHE_CONTROL,
            HeaderValue::try_from(control).unwrap_or(PLACE),
        );
        fields.insert(ETAG, PLACE);
        fields.insert(AGE, PLACE);
        fields.insert(CACHE_STATUS, PLACE);
        self.constant(&mut fields);
        fields
    }

    /// What every answer of ours has.
    fn constant(&self, fields: &mut HeaderMap) {
        fields.insert(X_REQUEST_ID, PLACE);
        fields.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(EXPOSED),
        );
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        if self.origins.is_some() {
            fields.insert(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(policy) = &self.limit_policy {
            fields.insert(RATELIMIT_POLICY, policy.clone());
            fields.insert(RATELIMIT, PLACE);
        }
    }

    fn with_places(&self, fields: HeaderMap) -> Template {
        let place = |name: &HeaderName| match name {
            name if name == ETAG => FieldRole::Tag,
            name if name == AGE => FieldRole::Age,
            name if name == CACHE_STATUS => FieldRole::CacheStatus,
            name if name == X_REQUEST_ID => FieldRole::RequestId,
            name if name == RATELIMIT => FieldRole::Limit,
            _ => FieldRole::Constant,
        };
        Template {
            places: fields.keys().map(place).collect(),
            fields,
            dialect: self.dialect,
        }
    }

    /// The fields of what was stored under other settings.
    #[cold]
    fn translate(&self, template: &Template) -> Template {
        let mut fields = template.fields.clone();
        // A template has these from `constant` alone.
        for name in [VARY, RATELIMIT_POLICY, RATELIMIT] {
            fields.remove(name);
        }
        self.constant(&mut fields);
        self.with_places(fields)
    }

    /// Fills the places that depend on the client.
    fn fill(&self, fields: &mut HeaderMap, said: &ResponseContext<'_>) {
        fields.insert(X_REQUEST_ID, said.request_id.field());
        self.allow(fields, said);
        if self.limit_policy.is_some() {
            match said.permit {
                Some(permit) => fields.insert(RATELIMIT, permit.field()),
                None => fields.remove(RATELIMIT),
            };
        }
    }

    /// Allows the client's origin, where only some are allowed.
    fn allow(&self, fields: &mut HeaderMap, said: &ResponseContext<'_>) {
        if let Some(origins) = &self.origins {
            match said
                .fields
                .get(ORIGIN)
                .filter(|origin| origins.contains(origin))
            {
                Some(origin) => fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
                None => fields.remove(ACCESS_CONTROL_ALLOW_ORIGIN),
            };
        }
    }

    /// A stored response of an age: whole, or 304 where the client has it. hyper leaves
    /// the body out for HEAD and sets `content-length` from it.
    pub fn stored(
        &self,
        stored: Arc<StoredResponse>,
        key: &Key,
        outcome: Outcome,
        said: &ResponseContext<'_>,
        aged: Duration,
    ) -> Response<Body> {
        let unchanged =
            stored.status == StatusCode::OK && none_match_fails(said.fields, &stored.etag);
        let translated;
        let template = match stored.fields.dialect == self.dialect {
            true => &*stored.fields,
            false => {
                translated = self.translate(&stored.fields);
                &translated
            }
        };
        let mut fields = template.fields.clone();
        for (value, place) in fields.values_mut().zip(&template.places) {
            *value = match place {
                FieldRole::Constant => continue,
                // A copy, and not another handle: its counter would lie in memory
                // that nobody else looks at.
                FieldRole::Tag => HeaderValue::from_bytes(stored.etag.as_bytes()).unwrap_or(PLACE),
                FieldRole::Age => age(aged),
                FieldRole::CacheStatus => self.cache_status(outcome, key),
                FieldRole::RequestId => said.request_id.field(),
                FieldRole::Limit => said.permit.map_or(PLACE, Permit::field),
            };
        }
        self.allow(&mut fields, said);
        if unchanged {
            // RFC 9110 §15.4.5: what describes the content stays with it.
            fields.remove(CONTENT_TYPE);
        }
        if stored.status != StatusCode::OK {
            // The tag is of the body; an error's body is nothing to validate.
            fields.remove(ETAG);
        }
        if said.permit.is_none() && self.limit_policy.is_some() {
            fields.remove(RATELIMIT);
        }
        if self.server_timing {
            fields.insert(SERVER_TIMING, timing(outcome, stored.took));
        }
        let (status, body) = match unchanged {
            true => (StatusCode::NOT_MODIFIED, Body::default()),
            false => (stored.status, Body::lent(stored)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        response
    }

    /// The value of `cache-status`, as the operator wants it.
    pub fn cache_status(&self, outcome: Outcome, key: &Key) -> HeaderValue {
        let target = self.cache_status_key.then(|| key.target());
        outcome.field(target, None)
    }

    /// Adds what answers have on typed routes beside the upstream's fields.
    pub fn add_own_fields(&self, fields: &mut HeaderMap, said: &ResponseContext<'_>) {
        let vary = fields.remove(VARY);
        self.constant(fields);
        self.fill(fields, said);
        if let Some(vary) = vary {
            fields.append(VARY, vary);
        }
    }

    /// A refusal.
    pub fn refusal(
        &self,
        refusal: &Refusal,
        outcome: Option<Outcome>,
        said: &ResponseContext<'_>,
    ) -> Response<Body> {
        let problem = refusal.problem(said.request_id.as_str());
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Body::new(body.into()));
        *response.status_mut() = refusal.status();
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.constant(fields);
        self.fill(fields, said);
        if let Some(outcome) = outcome {
            fields.insert(CACHE_STATUS, outcome.field(None, Some(refusal.word())));
        }
        refusal.fields(fields);
        response
    }

    /// The answer to OPTIONS: to a browser's preflight (the Fetch standard's
    /// CORS protocol), or to one who asks what there is.
    pub fn preflight(&self, allow: &HeaderValue, said: &ResponseContext<'_>) -> Response<Body> {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let fields = response.headers_mut();
        self.constant(fields);
        self.fill(fields, said);
        fields.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        fields.insert(ALLOW, allow.clone());
        let allowed = fields.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        if allowed && said.fields.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            fields.insert(ACCESS_CONTROL_ALLOW_METHODS, allow.clone());
            fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
            if let Some(names) = said.fields.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
        fields.append(
            VARY,
            HeaderValue::from_static("access-control-request-headers"),
        );
        response
    }

    /// A document of ordgate's own.
    pub fn document(
        &self,
        media: &'static str,
        text: &Bytes,
        etag: &HeaderValue,
        said: &ResponseContext<'_>,
    ) -> Response<Body> {
        let unchanged = none_match_fails(said.fields, etag);
        let body = if unchanged {
            Bytes::new()
        } else {
            text.clone()
        };
        let mut response = Response::new(Body::new(body));
        let fields = response.headers_mut();
        fields.insert(
            CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=300"),
        );
        fields.insert(ETAG, etag.clone());
        self.constant(fields);
        self.fill(fields, said);
        match unchanged {
            true => *response.status_mut() = StatusCode::NOT_MODIFIED,
            false => {
                fields.insert(CONTENT_TYPE, HeaderValue::from_static(media));
            }
        }
        response
    }
}

/// `server-timing`: where the answer came from, and what the upstream took.
fn timing(outcome: Outcome, took: Duration) -> HeaderValue {
    let word = crate::cache::outcome::OUTCOMES[outcome.index()];
    let text = match outcome {
        Outcome::Forwarded { .. } => {
            format!(
                "cache;desc={word}, upstream;dur={:.1}",
                took.as_secs_f64() * 1000.0
            )
        }
        Outcome::Hit { .. } | Outcome::StaleIfError { .. } => format!("cache;desc={word}"),
    };
    HeaderValue::try_from(text).unwrap_or(PLACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::TooMany;

    fn said(fields: &HeaderMap) -> ResponseContext<'_> {
        ResponseContext {
            fields,
            request_id: RequestId::new(1),
            permit: None,
        }
    }

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<_> = (0..1000)
            .map(|n| RequestId::new(n).as_str().to_owned())
            .collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 16));
    }

    #[test]
    fn origins() {
        let listed = Settings {
            cors_origins: vec!["https://a.example".to_owned()],
            ..Settings::default()
        };
        let rows = [
            (Settings::default(), None, Some("*"), None),
            (
                Settings::default(),
                Some("https://b.example"),
                Some("*"),
                None,
            ),
            (
                listed.clone(),
                Some("https://a.example"),
                Some("https://a.example"),
                Some("origin"),
            ),
            (
                listed.clone(),
                Some("https://b.example"),
                None,
                Some("origin"),
            ),
            (listed, None, None, Some("origin")),
        ];
        for (settings, origin, allowed, vary) in rows {
            let respond = Responder::new(&settings, None);
            let request = origin.map_or_else(HeaderMap::new, |o| fields(&[("origin", o)]));
            let refusal = Refusal::TooMany(TooMany { retry_after: 1 });
            let response = respond.refusal(&refusal, None, &said(&request));
            let text = |name| response.headers().get(name).map(|v| v.to_str().unwrap());
            assert_eq!(text(ACCESS_CONTROL_ALLOW_ORIGIN), allowed, "{origin:?}");
            assert_eq!(text(VARY), vary, "{origin:?}");
            assert!(
                text(ACCESS_CONTROL_EXPOSE_HEADERS)
                    .unwrap()
                    .contains("retry-after")
            );
        }
    }

    #[test]
    fn a_copy_of_a_template_has_its_places_in_its_order() {
        let policy = HeaderValue::from_static("\"default\";q=1;w=1");
        let respond = Responder::new(&Settings::default(), Some(policy));
        let json = HeaderValue::from_static("application/json");
        let template = respond.template(json, ClientFreshness::Nothing);
        let copy = template.fields.clone();
        for ((name, place), own) in copy.keys().zip(&template.places).zip(template.keys()) {
            let is_place = copy[name].is_empty();
            assert_eq!(is_place, *place != FieldRole::Constant, "{name}");
            assert_eq!(name, own);
        }
        assert_eq!((copy.len(), template.places.len()), (10, 10));
    }

    #[test]
    fn preflights() {
        let respond = Responder::new(&Settings::default(), None);
        let request = fields(&[
            ("origin", "https://a.example"),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "x-api-key, x-other"),
        ]);
        let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
        let response = respond.preflight(&allow, &said(&request));
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let text = |name| response.headers().get(name).map(|v| v.to_str().unwrap());
        assert_eq!(
            text(ACCESS_CONTROL_ALLOW_METHODS),
            Some("GET, HEAD, OPTIONS")
        );
        assert_eq!(
            text(ACCESS_CONTROL_ALLOW_HEADERS),
            Some("x-api-key, x-other")
        );
        assert_eq!(text(ACCESS_CONTROL_ALLOW_ORIGIN), Some("*"));
    }
}
