//! The key check and rate limit that a hosted provider puts in front of the reference.
//!
//! `server` calls it for each request that has no fault with an answer. The reference itself has neither; the forms here
//! are those that providers document. Invariants: a key is never kept, logged or echoed; a refused request does not count
//! against the limit; a CORS preflight passes, since browsers send no key with it. There are no monthly quotas.

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::answer::Answer;
use super::rate::{Limiter, RateDecision};

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Checks key and rate limit. Returns the decision for [`add_limit_fields`] (none without a limit), or the refusal.
pub(super) fn check(
    required: Option<&str>,
    limiter: Option<&mut Limiter>,
    method: &Method,
    headers: &HeaderMap,
    now: u64,
) -> Result<Option<RateDecision>, Box<Answer>> {
    if *method == Method::OPTIONS {
        return Ok(None);
    }
    let key = headers.get("x-api-key").map(HeaderValue::as_bytes);
    let known = |required: &str| {
        let mut good = required.split(',').map(|one| one.trim().as_bytes());
        key.is_some_and(|key| good.any(|one| one == key))
    };
    if required.is_some_and(|required| !known(required)) {
        return Err(Box::new(
            Answer::provider(StatusCode::UNAUTHORIZED, "Unauthorized").for_method(method),
        ));
    }
    let Some(limiter) = limiter else {
        return Ok(None);
    };
    let decision = limiter.take(key, now);
    if decision.granted {
        return Ok(Some(decision));
    }
    let mut answer =
        Answer::provider(StatusCode::TOO_MANY_REQUESTS, "Too Many Requests").for_method(method);
    let wait = HeaderValue::from(decision.reset);
    answer.headers.insert(RETRY_AFTER, wait);
    add_limit_fields(&mut answer, decision);
    Err(Box::new(answer))
}

/// Adds the rate limit's fields to an answer; `ratelimit-reset` is in seconds from now.
pub(super) fn add_limit_fields(answer: &mut Answer, decision: RateDecision) {
    let headers = &mut answer.headers;
    headers.insert(LIMIT, decision.limit.into());
    headers.insert(REMAINING, decision.remaining.into());
    headers.insert(RESET, decision.reset.into());
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use http::{HeaderMap, HeaderValue, Method};

    use super::{Limiter, check};

    fn with_key(key: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("x-api-key"),
            HeaderValue::from_static(key),
        )])
    }

    #[test]
    fn only_a_known_key_passes() {
        for (required, headers, method, passes) in [
            (None, with_key("bogus"), Method::GET, true),
            (None, HeaderMap::new(), Method::GET, true),
            (Some("k"), HeaderMap::new(), Method::GET, false),
            (Some("k"), with_key("bogus"), Method::GET, false),
            (Some("k"), with_key("k"), Method::GET, true),
            (Some("k1, k2"), with_key("k2"), Method::GET, true),
            (Some("k"), HeaderMap::new(), Method::OPTIONS, true),
        ] {
            let result = check(required, None, &method, &headers, 0);
            assert_eq!(result.is_ok(), passes, "{required:?}");
            if let Err(answer) = result {
                assert_eq!(answer.status, 401);
                assert_eq!(&answer.body[..], b"{\"error\":\"Unauthorized\"}");
            }
        }
    }

    #[test]
    fn a_request_beyond_the_limit_gets_429_with_retry_after() {
        let mut limiter = Limiter::new(NonZeroU32::MIN);
        let headers = with_key("k");
        assert!(check(None, Some(&mut limiter), &Method::GET, &headers, 0).is_ok());
        let refusal = check(None, Some(&mut limiter), &Method::GET, &headers, 1_500)
            .expect_err("the limit is one");
        assert_eq!(refusal.status, 429);
        let expected = [
            ("retry-after", "59"),
            ("ratelimit-limit", "1"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "59"),
        ];
        for (name, value) in expected {
            assert_eq!(refusal.headers[name], value);
        }
    }
}
