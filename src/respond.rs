//! Responses: the last step of the request path. Renders stored responses,
//! refusals, preflights and ordgate's own documents, with the header fields that
//! browsers and caches need.
//!
//! Which of them to send is decided by the gateway.

mod document;
mod plain;
mod template;

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING,
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::coding::Coding;
use crate::cache::date;
use crate::cache::key::Key;
use crate::cache::outcome::{HitSource, OUTCOMES, Outcome, age};
use crate::cache::validator::{encoded_etag, none_match_fails};
use crate::cache::{StoredFields, StoredResponse};
use crate::client_tokens::TokenClient;
use crate::compress::Compressor;
use crate::limit::RequestAllowance;
use crate::refusal::Refusal;
use crate::route::HeaderMode;
use crate::trace;
use crate::trace::steps::UpstreamStep;
use crate::wire::origin::{self, AllowedOrigin};
pub use crate::wire::request_id::RequestId;
use crate::wire::{Body, PROBLEM_JSON, RATELIMIT, RATELIMIT_POLICY, SERVER_TIMING, X_REQUEST_ID};
pub(crate) use document::{Document, DocumentText};
use template::Templates;

/// What answers have beside the body.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The origins whose web pages may read answers (CORS). `https://*.app.example` is for
    /// all names below app.example; an empty list and `*` allow any.
    #[schemars(with = "Vec<String>")]
    pub(crate) cors_origins: Vec<AllowedOrigin>,
    /// Whether server-timing says where an answer came from, and how long it waited for
    /// its turn and for budget, for the upstream, and for another request for the same.
    pub(crate) server_timing: bool,
    /// The codings in which stored answers are compressed for clients that accept them; an
    /// empty list for none. Of several that a client likes equally well, it gets the first.
    ///
    /// An answer of at least 1 KiB is compressed once for each coding, in the background,
    /// after a stored one was wanted in it. What was made counts against
    /// `cache.max_bytes`. Routes with headers = "all", ranges and answers with no-transform
    /// are not compressed.
    pub(crate) compression: Vec<Coding>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cors_origins: Vec::new(),
            server_timing: false,
            compression: Coding::ALL.to_vec(),
        }
    }
}

/// The fields that browsers let scripts read beside the safelisted ones.
const EXPOSED: &str = "etag, age, cache-status, retry-after, ratelimit, ratelimit-policy, x-request-id, proxy-status, server-timing, www-authenticate";

/// A field that is set for each request.
const EMPTY: HeaderValue = HeaderValue::from_static("");

/// Renders responses under one configuration.
pub(crate) struct Responder {
    /// The allowed origins; `None` for any.
    origins: Option<Box<[AllowedOrigin]>>,
    server_timing: bool,
    /// The value of `ratelimit-policy`, where clients are limited.
    limit_policy: Option<HeaderValue>,
    /// The codings of compressed answers.
    codings: Box<[Coding]>,
    /// What compresses them, where that is enabled.
    compression: Option<Arc<Compressor>>,
    /// Whether only clients with a token get answers, so that no cache between may
    /// give them to others.
    is_private: bool,
    templates: Templates,
}

/// The parts of a request that its response depends on.
pub(crate) struct ResponseContext<'a> {
    /// The request's method.
    pub(crate) method: &'a Method,
    /// Its fields.
    pub(crate) fields: &'a HeaderMap,
    /// Which fields pass on its route.
    pub(crate) headers: HeaderMode,
    /// Its id.
    pub(crate) request_id: RequestId,
    /// What is left of its client's rate limit; `None` without limit.
    pub(crate) permit: Option<RequestAllowance>,
    /// Its client, if that has a valid client token.
    pub(crate) token: Option<&'a TokenClient>,
    /// The time for `date`, where hyper does not add it.
    pub(crate) date: Option<SystemTime>,
}

impl Responder {
    /// A responder for a configuration. `limit_policy` is the value of
    /// `ratelimit-policy`, where clients are limited.
    pub(crate) fn new(
        settings: &Settings,
        limit_policy: Option<HeaderValue>,
        compression: Option<Arc<Compressor>>,
    ) -> Self {
        Self {
            origins: origin::restriction(&settings.cors_origins),
            server_timing: settings.server_timing,
            limit_policy,
            codings: settings.compression.as_slice().into(),
            compression,
            is_private: false,
            templates: template::none(),
        }
    }

    /// The responder where a client token is required.
    pub(crate) fn require_token(mut self, is_required: bool) -> Self {
        self.is_private = is_required;
        self
    }

    /// Adds the fields that every response has. `by_coding` says whether it depends on the
    /// codings that the request accepts. Responses that are not compressed depend on them
    /// too: a cache must not answer with them whoever accepts a coding, nor with a
    /// compressed one whoever does not.
    fn add_constant(&self, fields: &mut HeaderMap, by_coding: bool) {
        fields.insert(X_REQUEST_ID, EMPTY);
        let exposed = HeaderValue::from_static(EXPOSED);
        fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        let vary = match (self.origins.is_some(), by_coding) {
            (false, false) => None,
            (true, false) => Some("origin"),
            (false, true) => Some("accept-encoding"),
            (true, true) => Some("origin, accept-encoding"),
        };
        if let Some(vary) = vary {
            fields.insert(VARY, HeaderValue::from_static(vary));
        }
        if let Some(policy) = &self.limit_policy {
            fields.insert(RATELIMIT_POLICY, policy.clone());
            fields.insert(RATELIMIT, EMPTY);
        }
    }

    /// Adds ordgate's own fields to those of an answer.
    fn add_own(
        &self,
        fields: &mut HeaderMap,
        by_coding: bool,
        outcome: Option<Outcome>,
        context: &ResponseContext<'_>,
    ) {
        let vary: Vec<_> = fields.get_all(VARY).iter().cloned().collect();
        fields.remove(VARY);
        self.add_constant(fields, by_coding);
        fields.insert(X_REQUEST_ID, context.request_id.field());
        self.allow_origin(fields, context);
        self.set_limit(fields, context);
        if let Some(outcome) = outcome.filter(|_| self.server_timing) {
            fields.insert(SERVER_TIMING, server_timing(outcome));
        }
        for line in vary {
            fields.append(VARY, line);
        }
    }

    /// Allows the request's origin, where only some are allowed: by the configuration,
    /// and by the request's client token.
    #[inline]
    fn allow_origin(&self, fields: &mut HeaderMap, context: &ResponseContext<'_>) {
        let of_token = context.token.and_then(|client| client.origins.as_deref());
        if self.origins.is_none() && of_token.is_none() {
            return;
        }
        let is_listed = |origin: &&HeaderValue| {
            let mut lists = self.origins.as_deref().into_iter().chain(of_token);
            lists.all(|list| origin::is_among(list, origin))
        };
        match context.fields.get(ORIGIN).filter(is_listed) {
            Some(origin) => fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            None => fields.remove(ACCESS_CONTROL_ALLOW_ORIGIN),
        };
        if self.origins.is_none() {
            fields.append(VARY, HeaderValue::from_static("origin"));
        }
    }

    /// Sets what is left of the client's limit, and the limit of a client whose token has
    /// one of its own: there may be no other limits.
    fn set_limit(&self, fields: &mut HeaderMap, context: &ResponseContext<'_>) {
        let of_token = context.token.and_then(|client| client.rate.as_ref());
        if of_token.is_none() && self.limit_policy.is_none() {
            return;
        }
        if let Some(rate) = of_token {
            fields.insert(RATELIMIT_POLICY, rate.policy.clone());
        }
        match context.permit {
            Some(permit) => fields.insert(RATELIMIT, permit.field()),
            None => fields.remove(RATELIMIT),
        };
    }

    /// A stored response of a given age: whole, or 304 if the client has it.
    /// hyper omits the body for HEAD, and sets `content-length` from it.
    #[inline]
    pub(crate) fn stored(
        &self,
        stored: &StoredResponse,
        key: &Key,
        outcome: Outcome,
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        let metadata = match &stored.fields {
            StoredFields::Prepared(metadata) => metadata,
            StoredFields::Origin(origin) => {
                let stored = (stored, &**origin);
                return self.origin(stored, None, (key, outcome), context, current_age);
            }
        };
        let is_ok = stored.status == StatusCode::OK;
        let unchanged = is_ok && none_match_fails(context.fields, &stored.etag);
        let encoded = match is_ok {
            true => self.encoded(stored, key, outcome, context),
            false => None,
        };
        let coding = encoded.as_ref().map(|(coding, _)| *coding);
        let mut fields = self.template(metadata, coding, context.date.is_some());
        // In the order of the template.
        let mut slots = fields.values_mut();
        let mut set = |value| {
            if let Some(slot) = slots.next() {
                *slot = value;
            }
        };
        set(match coding {
            None => stored.etag.clone(),
            Some(coding) => encoded_etag(&stored.etag, coding),
        });
        set(age(current_age));
        set(outcome.field(None));
        set(context.request_id.field());
        if self.limit_policy.is_some() {
            set(context.permit.map_or(EMPTY, RequestAllowance::field));
        }
        if let Some(date) = context.date {
            set(date::current(date));
            let encoded = encoded.as_ref().map(|(_, body)| body.len());
            set(encoded.unwrap_or(stored.body.len()).into());
        }
        self.allow_origin(&mut fields, context);
        // The template has it for most clients.
        if context.token.is_some() || context.permit.is_none() {
            self.set_limit(&mut fields, context);
        }
        if unchanged {
            not_modified(&mut fields);
        }
        if !is_ok {
            // The ETag is of the body, and an error's body is not revalidated.
            fields.remove(ETAG);
        }
        if self.server_timing {
            fields.insert(SERVER_TIMING, server_timing(outcome));
        }
        if unchanged {
            return response(StatusCode::NOT_MODIFIED, fields, Body::default());
        }
        let body = encoded.map_or_else(|| stored.body.clone(), |(_, body)| body);
        response(stored.status, fields, Body::new(body))
    }

    /// The body to send in place of that of a stored response, if there is one in a
    /// coding that the request accepts.
    #[inline]
    fn encoded(
        &self,
        stored: &StoredResponse,
        key: &Key,
        outcome: Outcome,
        context: &ResponseContext<'_>,
    ) -> Option<(Coding, Bytes)> {
        let is_hit = matches!(outcome, Outcome::Hit { from, .. } if from == HitSource::Memory);
        let compression = self.compression.as_ref()?;
        compression.body_for(stored, key, (context.fields, &self.codings), is_hit)
    }

    /// A refusal, as a problem document (RFC 9457).
    pub(crate) fn refusal(
        &self,
        refusal: &Refusal,
        outcome: Option<Outcome>,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        let trace = trace::id_for(context.fields);
        let problem = refusal.problem(context.request_id.as_str(), trace);
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(outcome) = outcome {
            let detail = Some(refusal.reason.name());
            fields.insert(CACHE_STATUS, outcome.field(detail));
        }
        self.add_own(&mut fields, false, outcome, context);
        for (name, value) in &refusal.fields {
            // In place of those of the limit on requests.
            fields.insert(name, value.clone());
        }
        response(
            refusal.status,
            fields,
            Body::new(problem.to_string().into()),
        )
    }

    /// The answer to OPTIONS: a browser's preflight (the CORS protocol of the
    /// Fetch standard), or a plain request for the allowed methods.
    pub(crate) fn preflight(
        &self,
        allow: &HeaderValue,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        let mut fields = HeaderMap::new();
        fields.insert(ALLOW, allow.clone());
        let vary = HeaderValue::from_static("access-control-request-headers");
        fields.insert(VARY, vary);
        self.add_own(&mut fields, false, None, context);
        fields.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        let allowed = fields.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        if allowed && context.fields.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            fields.insert(ACCESS_CONTROL_ALLOW_METHODS, allow.clone());
            fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
            if let Some(names) = context.fields.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
        response(StatusCode::NO_CONTENT, fields, Body::default())
    }
}

/// A response of these parts.
fn response(status: StatusCode, fields: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// Removes what a 304 does not have: it does not describe the content (RFC 9110 §15.4.5).
fn not_modified(fields: &mut HeaderMap) {
    for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH] {
        fields.remove(name);
    }
}

/// `server-timing`: the outcome, and how long the request waited in each step if memory did not
/// answer it.
fn server_timing(outcome: Outcome) -> HeaderValue {
    let mut text = format!("cache;desc={}", OUTCOMES[outcome.index()]);
    for (name, time) in UpstreamStep::NAMES.into_iter().zip(trace::step_durations()) {
        if let Some(time) = time {
            // Writing to a string does not fail.
            let _ = write!(text, ", {name};dur={:.1}", time.as_secs_f64() * 1000.0);
        }
    }
    HeaderValue::try_from(text).unwrap_or(EMPTY)
}

#[cfg(test)]
mod tests;
