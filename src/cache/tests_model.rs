//! A small executable model of RFC 9111, compared with the rules.
//!
//! The model has no fields and no text: requests and responses are plain values
//! in whole seconds ([`messages`]), and each prohibition is a sentence of the RFC.
//! The properties write those values as fields, in any spelling that the grammar
//! allows, and apply the real rules (store, select, reuse). No response may be
//! reused that the model prohibits, and none fetched that the model allows to
//! reuse.

mod messages;

use std::time::Duration;

use http::StatusCode;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert_eq, prop_oneof, proptest};

use messages::{Request, Response, Spelling, Vary, at, requests, responses, spellings};

use super::{
    directives::Directives,
    outcome::Forward,
    reuse::{Reuse, StoredFacts, may_reuse},
    storable::{SetCookie, storable},
    vary::{nominated, secondary_key},
};

impl Response {
    /// §4.2.1 and §4.2.2.
    fn lifetime(&self) -> u64 {
        let guessed = self.public || HEURISTIC.contains(&self.status);
        match (self.s_maxage, self.max_age, self.expires, self.modified) {
            (Some(delta), ..) | (None, Some(delta), ..) => u64::from(delta),
            (None, None, Some(expires), _) => u64::try_from(expires).unwrap_or(0),
            (None, None, None, Some(modified)) if guessed => u64::from(modified) / 10,
            (None, None, None, _) => 0,
        }
    }

    /// Whether a shared cache may store it (§3).
    fn may_be_stored(&self, request: &Request) -> bool {
        let understood = self.status < 512;
        let explicit = self.public
            || self.s_maxage.is_some()
            || self.max_age.is_some()
            || self.expires.is_some();
        let shared = self.public || self.s_maxage.is_some() || self.must_revalidate;
        let silenced = if self.must_understand {
            !understood
        } else {
            self.no_store
        };
        !(request.no_store || silenced || self.private)
            && (!request.authorized || shared)
            && (explicit || HEURISTIC.contains(&self.status))
            && self.vary != Vary::Everything
            && self.status != 206
    }
}

const HEURISTIC: [u16; 4] = [200, 203, 404, 410];

/// A stored response, and a request that it could answer.
struct Moment<'a> {
    stored_for: &'a Request,
    response: &'a Response,
    request: &'a Request,
    age: u64,
    /// The route's `stale_if_error`, if the origin has failed.
    failed: Option<Duration>,
}

impl Moment<'_> {
    fn staleness(&self) -> Option<u64> {
        let lifetime = self.response.lifetime();
        (self.age >= lifetime).then(|| self.age - lifetime)
    }

    /// The first sentence of the RFC that prohibits this kind of reuse.
    fn prohibited(&self, kind: Reuse) -> Option<&'static str> {
        let Self {
            response, request, ..
        } = self;
        let stale = self.staleness();
        let left = response.lifetime().saturating_sub(self.age);
        let too_old = request
            .max_age
            .is_some_and(|limit| self.age > u64::from(limit));
        let too_stale = request
            .min_fresh
            .is_some_and(|least| left < u64::from(least));
        let nothing_stale = request.max_age.is_some() && request.max_stale.is_none();
        let error = kind == Reuse::IfError;
        let consents_to_error = error && request.sie.is_some();
        let forced =
            response.must_revalidate || response.proxy_revalidate || response.s_maxage.is_some();
        let within =
            |limit: Option<u32>| limit.is_some_and(|limit| stale.unwrap_or(0) <= u64::from(limit));
        let trouble = self.failed.map(|granted| granted.as_secs());
        let sentences = [
            (
                !response.may_be_stored(self.stored_for),
                "§3: it must not have been stored",
            ),
            (
                response.vary == Vary::Foo && self.stored_for.foo != request.foo,
                "§4.1: nominated fields differ",
            ),
            (
                response.no_cache,
                "§5.2.2.4: not without successful validation",
            ),
            (
                request.no_cache && !consents_to_error,
                "§5.2.1.4: not without successful validation",
            ),
            (
                too_old && !consents_to_error,
                "§5.2.1.1: older than the client accepts",
            ),
            (
                too_stale && !consents_to_error,
                "§5.2.1.3: less fresh than the client wants",
            ),
            (
                stale.is_some() && forced,
                "§4.2.4: stale, and a directive prohibits that",
            ),
            (
                stale.is_some() && nothing_stale && !consents_to_error,
                "§5.2.1.1: the client wants nothing stale",
            ),
            (stale.is_some() && kind == Reuse::Fresh, "§4: stale"),
            (
                kind == Reuse::MaxStale
                    && !request
                        .max_stale
                        .is_some_and(|limit| limit.is_none() || within(limit)),
                "§5.2.1.2: staler than the client accepts",
            ),
            (
                kind == Reuse::WhileRevalidate && !within(response.swr),
                "RFC 5861 §3: out of the window",
            ),
            (error && trouble.is_none(), "RFC 5861 §4: there is no error"),
            (
                error && response.status >= 500,
                "§4.2.4: an error is no better than the failure",
            ),
            (
                error
                    && match (request.sie, response.sie) {
                        (Some(limit), _) | (None, Some(limit)) => !within(Some(limit)),
                        (None, None) => {
                            trouble.is_none_or(|limit| limit == 0 || stale.unwrap_or(0) > limit)
                        }
                    },
                "§4.2.4: nothing permits so stale a response",
            ),
        ];
        sentences
            .iter()
            .find(|(prohibits, _)| *prohibits)
            .map(|(_, sentence)| *sentence)
    }
}

/// Applies the real rules: store, select, reuse.
fn apply_rules(moment: &Moment<'_>, spelling: Spelling) -> Option<Result<Reuse, Forward>> {
    let kept_for = moment.stored_for.headers(spelling);
    let headers = moment.response.headers(spelling);
    let status = StatusCode::from_u16(moment.response.status).unwrap();
    let is_stored = storable(&kept_for, (status, &headers), at(0), SetCookie::default());
    let nominated = nominated(&headers).filter(|_| is_stored)?;
    let key = secondary_key(&nominated, || &kept_for);
    let stored = StoredFacts::of(status, &headers, at(0), at(0));
    let presented = moment.request.headers(spelling);
    if secondary_key(&nominated, || &presented) != key {
        return None;
    }
    let now = at(i64::try_from(moment.age - u64::from(moment.response.age.unwrap_or(0))).unwrap());
    let directives = Directives::of_request(&presented);
    Some(may_reuse(&directives, &stored, now, moment.failed))
}

fn failures() -> impl Strategy<Value = Option<Duration>> {
    let bound = prop_oneof![Just(0u64), 0u64..60].prop_map(Duration::from_secs);
    proptest::option::weighted(0.6, bound)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn a_prohibited_response_is_not_reused(
        stored_for in requests(),
        response in responses(),
        request in requests(),
        spelling in spellings(),
        resident in 0u64..120,
        failed in failures(),
    ) {
        let age = u64::from(response.age.unwrap_or(0)) + resident;
        let moment =
            Moment { stored_for: &stored_for, response: &response, request: &request, age, failed };
        if let Some(Ok(kind)) = apply_rules(&moment, spelling) {
            prop_assert_eq!(moment.prohibited(kind), None, "{:?}", kind);
        }
    }

    /// A response that may be reused is reused, in the best kind of reuse.
    #[test]
    fn a_response_that_may_be_reused_is_not_fetched(
        stored_for in requests(),
        response in responses(),
        request in requests(),
        spelling in spellings(),
        resident in 0u64..120,
        failed in failures(),
    ) {
        let age = u64::from(response.age.unwrap_or(0)) + resident;
        let moment =
            Moment { stored_for: &stored_for, response: &response, request: &request, age, failed };
        let kinds = [
            Reuse::Fresh,
            Reuse::MaxStale,
            Reuse::IfError,
            Reuse::WhileRevalidate,
        ];
        // Only a stale response can be served stale.
        let open = |kind: &Reuse| match kind {
            Reuse::MaxStale | Reuse::WhileRevalidate => moment.staleness().is_some(),
            Reuse::Fresh | Reuse::IfError => true,
        };
        let best = kinds.into_iter().find(|kind| open(kind) && moment.prohibited(*kind).is_none());
        if let Some(best) = best {
            prop_assert_eq!(apply_rules(&moment, spelling), Some(Ok(best)));
        }
    }
}
