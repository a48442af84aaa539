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

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING,
    CONTENT_LENGTH, CONTENT_TYPE, ETAG, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use serde::Serialize;

use crate::cache::coding::Coding;
use crate::cache::date;
use crate::cache::directives::make_private;
use crate::cache::encoded::EncodedBody;
use crate::cache::etag::{encoded_etag, none_match_fails};
use crate::cache::key::Key;
use crate::cache::metadata::ClientFreshness;
use crate::cache::outcome::{OUTCOMES, Outcome, age};
use crate::cache::{StoredFields, StoredResponse};
use crate::chain::Class;
use crate::client_tokens::TokenClient;
use crate::compress::{Compression, Effort, Wanted};
use crate::limit::RequestAllowance;
use crate::refusal::Refusal;
use crate::route::HeaderMode;
use crate::trace;
use crate::trace::steps::UpstreamStep;
use crate::wire::origin::{self, AllowedOrigin};
pub use crate::wire::request_id::RequestId;
use crate::wire::{Body, PROBLEM_JSON, RATELIMIT, RATELIMIT_POLICY, SERVER_TIMING, X_REQUEST_ID};
pub(crate) use document::{Document, DocumentText};
use template::{FieldRole, HeaderTemplate, TemplateForm, Templates};

/// Configuration of what responses carry beside the answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// The origins whose pages may read responses; empty for any.
    pub(crate) cors_origins: Vec<AllowedOrigin>,
    /// Whether `cache-status` carries `key`.
    pub(crate) cache_status_key: bool,
    /// Whether responses carry `server-timing`.
    pub(crate) server_timing: bool,
}

/// The fields that browsers let scripts read beside the safelisted ones.
const EXPOSED: &str = "etag, age, cache-status, retry-after, ratelimit, ratelimit-policy, x-request-id, proxy-status, server-timing, www-authenticate";

/// A field that is set for each request.
const EMPTY: HeaderValue = HeaderValue::from_static("");

/// Renders responses under one configuration.
pub(crate) struct Responder {
    /// The allowed origins; `None` for any.
    origins: Option<Box<[AllowedOrigin]>>,
    cache_status_key: bool,
    server_timing: bool,
    /// The value of `ratelimit-policy`, where clients are limited.
    limit_policy: Option<HeaderValue>,
    /// Compression, where it is enabled.
    compression: Option<Compression>,
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
        compression: Option<Compression>,
    ) -> Self {
        Self {
            origins: origin::restriction(&settings.cors_origins),
            cache_status_key: settings.cache_status_key,
            server_timing: settings.server_timing,
            limit_policy,
            compression,
            is_private: false,
            templates: Templates::new(),
        }
    }

    /// The responder where a client token is required.
    pub(crate) fn require_token(mut self, is_required: bool) -> Self {
        self.is_private = is_required;
        self
    }

    /// Adds the fields that every response has.
    fn add_constant(&self, fields: &mut HeaderMap) {
        fields.insert(X_REQUEST_ID, EMPTY);
        let exposed = HeaderValue::from_static(EXPOSED);
        fields.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        if self.origins.is_some() {
            fields.insert(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(policy) = &self.limit_policy {
            fields.insert(RATELIMIT_POLICY, policy.clone());
            fields.insert(RATELIMIT, EMPTY);
        }
    }

    /// Sets the fields that differ between requests.
    fn set_variable(&self, fields: &mut HeaderMap, context: &ResponseContext<'_>) {
        fields.insert(X_REQUEST_ID, context.request_id.field());
        self.allow_origin(fields, context);
        set_policy(fields, context);
        if self.limit_policy.is_some() {
            match context.permit {
                Some(permit) => fields.insert(RATELIMIT, permit.field()),
                None => fields.remove(RATELIMIT),
            };
        }
    }

    /// Allows the request's origin, where only some are allowed: by the configuration,
    /// and by the request's client token.
    #[inline]
    fn allow_origin(&self, fields: &mut HeaderMap, context: &ResponseContext<'_>) {
        let of_token = context.token.and_then(|client| client.origins.as_deref());
        if self.origins.is_some() || of_token.is_some() {
            self.allow_listed_origin(fields, context.fields.get(ORIGIN), of_token);
        }
    }

    fn allow_listed_origin(
        &self,
        fields: &mut HeaderMap,
        origin: Option<&HeaderValue>,
        of_token: Option<&[AllowedOrigin]>,
    ) {
        let lists = [self.origins.as_deref(), of_token];
        let mut lists = lists.into_iter().flatten();
        let is_listed = |origin: &&HeaderValue| lists.all(|list| origin::is_among(list, origin));
        match origin.filter(is_listed) {
            Some(origin) => fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            None => fields.remove(ACCESS_CONTROL_ALLOW_ORIGIN),
        };
        if self.origins.is_none() {
            fields.append(VARY, HeaderValue::from_static("origin"));
        }
    }

    /// A stored response of a given age: whole, or 304 if the client has it.
    /// hyper omits the body for HEAD, and sets `content-length` from it.
    #[inline]
    pub(crate) fn stored(
        &self,
        stored: Arc<StoredResponse>,
        key: &Key,
        outcome: Outcome,
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        let metadata = match &stored.fields {
            StoredFields::Prepared(metadata) => metadata,
            StoredFields::Origin(origin) => {
                let stored = (&*stored, &**origin);
                return self.origin(stored, None, (key, outcome), context, current_age);
            }
        };
        let is_ok = stored.status == StatusCode::OK;
        let unchanged = is_ok && none_match_fails(context.fields, &stored.etag);
        let encoded = match is_ok {
            true => self.encoded_stored(&stored, key, outcome, context.fields),
            false => None,
        };
        let coding = encoded.as_ref().map(|(coding, _)| *coding);
        let is_http2 = context.date.is_some();
        let form = TemplateForm { coding, is_http2 };
        let make = || {
            HeaderTemplate::new(metadata, form, |fields| {
                self.add_constant(fields);
                if metadata.client_freshness != ClientFreshness::Nothing {
                    self.vary_by_coding(fields);
                }
                if self.is_private {
                    make_private(fields);
                }
            })
        };
        let unshared;
        let template = match self.templates.get(metadata, form, make) {
            Some(template) => template,
            None => {
                unshared = make();
                &unshared
            }
        };
        let mut fields = template.fields.clone();
        for (role, value) in template.roles.iter().zip(fields.values_mut()) {
            *value = match role {
                FieldRole::Constant => continue,
                // Copied, since a clone would write to a reference counter in
                // memory that is not otherwise touched.
                FieldRole::Etag => match coding {
                    None => HeaderValue::from_bytes(stored.etag.as_bytes()).unwrap_or(EMPTY),
                    Some(coding) => encoded_etag(&stored.etag, coding),
                },
                FieldRole::Age => age(current_age),
                FieldRole::CacheStatus => self.cache_status(outcome, key),
                FieldRole::RequestId => context.request_id.field(),
                FieldRole::RateLimit => context.permit.map_or(EMPTY, RequestAllowance::field),
                FieldRole::Date => context.date.map_or(EMPTY, date::current),
                FieldRole::ContentLength => match &encoded {
                    None => stored.body.len().into(),
                    Some((_, body)) => (**body).as_ref().len().into(),
                },
            };
        }
        self.allow_origin(&mut fields, context);
        set_policy(&mut fields, context);
        remove_inapplicable(&mut fields, unchanged, is_ok);
        if context.permit.is_none() && self.limit_policy.is_some() {
            fields.remove(RATELIMIT);
        }
        if self.server_timing {
            fields.insert(SERVER_TIMING, server_timing(outcome, Some(stored.took)));
        }
        let (status, body) = match (unchanged, encoded) {
            (true, _) => (StatusCode::NOT_MODIFIED, Body::default()),
            (false, None) => (stored.status, Body::lent(stored)),
            (false, Some((_, body))) => (stored.status, Body::lent(body)),
        };
        response(status, fields, body)
    }

    /// The value of `cache-status`.
    fn cache_status(&self, outcome: Outcome, key: &Key) -> HeaderValue {
        let target = self.cache_status_key.then(|| key.target());
        outcome.field(target, None)
    }

    /// Adds ordgate's own fields to those of the upstream.
    fn add_own_fields(
        &self,
        fields: &mut HeaderMap,
        outcome: Outcome,
        context: &ResponseContext<'_>,
    ) {
        let vary: Vec<_> = fields.get_all(VARY).iter().cloned().collect();
        fields.remove(VARY);
        self.add_constant(fields);
        self.vary_by_coding(fields);
        if self.is_private {
            make_private(fields);
        }
        self.set_variable(fields, context);
        if self.server_timing {
            fields.insert(SERVER_TIMING, server_timing(outcome, None));
        }
        for line in vary {
            fields.append(VARY, line);
        }
    }

    /// Adds to `vary` that the response depends on the codings that the request
    /// accepts, where bodies are compressed. Responses that are not compressed have it
    /// too: a cache must not answer with them whoever accepts a coding, nor with a
    /// compressed one whoever does not.
    fn vary_by_coding(&self, fields: &mut HeaderMap) {
        if self.compression.is_some() {
            let value = match fields.contains_key(VARY) {
                true => "origin, accept-encoding",
                false => "accept-encoding",
            };
            fields.insert(VARY, HeaderValue::from_static(value));
        }
    }

    /// The body to send in place of that of a stored response, if there is one in a
    /// coding that the request accepts.
    #[inline]
    fn encoded_stored(
        &self,
        stored: &StoredResponse,
        key: &Key,
        outcome: Outcome,
        fields: &HeaderMap,
    ) -> Option<(Coding, Arc<EncodedBody>)> {
        let wanted = Wanted {
            fields,
            key,
            body_id: stored.body_id,
            length: stored.body.len(),
            is_hit: matches!(outcome, Outcome::Hit { .. }),
        };
        let effort = || match stored.stamp() {
            Some(stamp) if stamp.class == Class::Final => Effort::High,
            Some(_) | None => Effort::Usual,
        };
        self.compression.as_ref()?.body_for(&wanted, effort)
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
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Body::new(body.into()));
        *response.status_mut() = refusal.status;
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.add_constant(fields);
        self.set_variable(fields, context);
        if let Some(outcome) = outcome {
            fields.insert(
                CACHE_STATUS,
                outcome.field(None, Some(refusal.reason.name())),
            );
            if self.server_timing {
                fields.insert(SERVER_TIMING, server_timing(outcome, None));
            }
        }
        fields.extend(refusal.fields.iter().cloned());
        response
    }

    /// The answer to OPTIONS: a browser's preflight (the CORS protocol of the
    /// Fetch standard), or a plain request for the allowed methods.
    pub(crate) fn preflight(
        &self,
        allow: &HeaderValue,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let fields = response.headers_mut();
        self.add_constant(fields);
        self.set_variable(fields, context);
        fields.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
        fields.insert(ALLOW, allow.clone());
        let allowed = fields.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        if allowed && context.fields.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            fields.insert(ACCESS_CONTROL_ALLOW_METHODS, allow.clone());
            fields.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
            if let Some(names) = context.fields.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
        let vary = HeaderValue::from_static("access-control-request-headers");
        fields.append(VARY, vary);
        response
    }
}

/// A response of these parts.
fn response(status: StatusCode, fields: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// Removes the fields that a 304, or an error, does not have.
#[inline]
fn remove_inapplicable(fields: &mut HeaderMap, unchanged: bool, is_ok: bool) {
    if unchanged {
        // RFC 9110 §15.4.5: a 304 does not describe the content.
        for name in [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LENGTH] {
            fields.remove(name);
        }
    }
    if !is_ok {
        // The ETag is of the body, and an error's body is not revalidated.
        fields.remove(ETAG);
    }
}

/// Sets the limit of a client whose token has one of its own, and what is left of it:
/// there may be no other limits.
#[inline]
fn set_policy(fields: &mut HeaderMap, context: &ResponseContext<'_>) {
    if let Some(policy) = context.token.and_then(|client| client.policy.as_ref()) {
        fields.insert(RATELIMIT_POLICY, policy.clone());
        if let Some(permit) = context.permit {
            fields.insert(RATELIMIT, permit.field());
        }
    }
}

/// `server-timing`: the outcome; and how long the request waited for other replicas, in the
/// queue and for budget, and how long the upstream took, if memory did not answer it. `took` is
/// the last of these where it is known of the stored response alone.
fn server_timing(outcome: Outcome, took: Option<Duration>) -> HeaderValue {
    let mut text = format!("cache;desc={}", OUTCOMES[outcome.index()]);
    let mut add = |name, time: Duration| {
        // Writing to a string does not fail.
        let _ = write!(text, ", {name};dur={:.1}", time.as_secs_f64() * 1000.0);
    };
    let is_forwarded = matches!(outcome, Outcome::Forwarded { .. });
    match (trace::step_durations(), took) {
        (Some(steps), _) => {
            let shared = UpstreamStep::Shared as usize;
            for (at, (name, time)) in UpstreamStep::NAMES.into_iter().zip(steps).enumerate() {
                // Most gateways share nothing with replicas.
                if at != shared || !time.is_zero() {
                    add(name, time);
                }
            }
        }
        // The fetch that it joined was not caused by a client.
        (None, Some(took)) if is_forwarded => {
            add(UpstreamStep::NAMES[UpstreamStep::Upstream as usize], took);
        }
        (None, _) => {}
    }
    HeaderValue::try_from(text).unwrap_or(EMPTY)
}

#[cfg(test)]
mod tests;
