//! What an upstream's answer is worth: something to hand on, or a failure.
//! Pure.
//!
//! Only what the API can mean passes: 200 and client errors with a JSON body.
//! The upstream's own words about itself (its 5xx bodies, its key's refusal,
//! its limits) stay here.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AsHeaderName, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};

use super::Failure;

/// An answer that may be handed on.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200, or a client error.
    pub status: StatusCode,
    /// The upstream's, or `application/json` where it named none.
    pub content_type: HeaderValue,
    /// The body, byte for byte.
    pub body: Bytes,
    /// Whether the body is an object whose `results` is an empty list.
    pub empty: bool,
    /// From the request's first byte to the answer's last.
    pub took: Duration,
}

/// Judges an answer's head, before its body is read: what fails here costs no
/// more time.
///
/// # Errors
/// Where the body does not matter.
pub fn judge_head(status: StatusCode, fields: &HeaderMap) -> Result<(), Failure> {
    match status.as_u16() {
        200 => {}
        401 | 403 => return Err(Failure::KeyRefused(status)),
        410 => return Err(Failure::Retired),
        // The limit is on us, not on our client.
        429 => {
            return Err(Failure::Throttled {
                retry_after: retry_after(fields),
            });
        }
        // These speak of how we have asked; they are nothing to a client.
        407 | 408 | 421 | 426 => return Err(Failure::UnexpectedStatus(status)),
        400..=499 => {}
        500..=599 => return Err(Failure::ServerError(status)),
        300..=399 => return Err(Failure::Redirect(status)),
        _ => return Err(Failure::UnexpectedStatus(status)),
    }
    // We asked for none; what is encoded cannot be told to be JSON.
    if text(fields, CONTENT_ENCODING).is_some_and(|coding| !coding.eq_ignore_ascii_case("identity"))
    {
        return Err(Failure::NotJson);
    }
    match text(fields, CONTENT_TYPE) {
        Some(media) if !is_json(media) => Err(Failure::NotJson),
        _ => Ok(()),
    }
}

/// Judges a whole answer, whose head has passed.
///
/// # Errors
/// Where the body is not JSON.
pub fn judge(
    status: StatusCode,
    fields: &HeaderMap,
    body: Bytes,
    took: Duration,
) -> Result<Answer, Failure> {
    judge_body(&body)?;
    // A copy: a parsed value is a slice of the connection's read buffer, all of
    // which it would keep for as long as the answer is stored.
    let content_type = fields
        .get(CONTENT_TYPE)
        .map(|v| HeaderValue::from_bytes(v.as_bytes()));
    Ok(Answer {
        status,
        content_type: match content_type {
            Some(Ok(content_type)) => content_type,
            _ => HeaderValue::from_static("application/json"),
        },
        empty: serde_json::from_slice::<Page>(&body).is_ok_and(|page| page.results.0),
        body,
        took,
    })
}

/// Judges a body that was promised to be JSON.
///
/// # Errors
/// Where it is not.
pub fn judge_body(body: &[u8]) -> Result<(), Failure> {
    let parsed = serde_json::from_slice::<IgnoredAny>(body);
    parsed.map(|_any| ()).map_err(|_where| Failure::NotJson)
}

fn text(fields: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    fields.get(name).and_then(|value| value.to_str().ok())
}

/// `application/json` and what has the suffix `+json` (RFC 6839), with any
/// parameters.
fn is_json(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or("").trim();
    media.eq_ignore_ascii_case("application/json")
        || media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case("+json")
}

/// `retry-after` in seconds (RFC 9110 §10.2.3); a second where it is absent or
/// a date, an hour at the most.
fn retry_after(fields: &HeaderMap) -> Duration {
    let seconds = text(fields, RETRY_AFTER).and_then(|value| value.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(1).clamp(1, 3600))
}

/// As much of an activity page as tells whether it is empty.
#[derive(Deserialize)]
struct Page {
    results: IsEmpty,
}

struct IsEmpty(bool);

impl<'de> Deserialize<'de> for IsEmpty {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = IsEmpty;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<IsEmpty, A::Error> {
                let mut empty = true;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    empty = false;
                }
                Ok(IsEmpty(empty))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    #[test]
    fn heads() {
        let json: &[_] = &[("content-type", "application/json; charset=utf-8")];
        let code = |code| StatusCode::from_u16(code).unwrap();
        let seconds = |n| Failure::Throttled {
            retry_after: Duration::from_secs(n),
        };
        let rows: &[(u16, &[_], Option<Failure>)] = &[
            (200, json, None),
            (200, &[], None),
            (200, &[("content-type", "application/problem+JSON")], None),
            (404, json, None),
            (400, json, None),
            (
                200,
                &[("content-type", "text/html")],
                Some(Failure::NotJson),
            ),
            (
                404,
                &[("content-type", "text/html; charset=utf-8")],
                Some(Failure::NotJson),
            ),
            (200, &[("content-encoding", "gzip")], Some(Failure::NotJson)),
            (200, &[("content-encoding", "identity")], None),
            (204, json, Some(Failure::UnexpectedStatus(code(204)))),
            (206, json, Some(Failure::UnexpectedStatus(code(206)))),
            (301, json, Some(Failure::Redirect(code(301)))),
            (304, json, Some(Failure::Redirect(code(304)))),
            (401, json, Some(Failure::KeyRefused(code(401)))),
            (403, json, Some(Failure::KeyRefused(code(403)))),
            (410, json, Some(Failure::Retired)),
            (408, json, Some(Failure::UnexpectedStatus(code(408)))),
            (429, json, Some(seconds(1))),
            (429, &[("retry-after", "30")], Some(seconds(30))),
            (429, &[("retry-after", "99999999")], Some(seconds(3600))),
            (
                429,
                &[("retry-after", "Fri, 20 Nov 2026 16:00:00 GMT")],
                Some(seconds(1)),
            ),
            (500, json, Some(Failure::ServerError(code(500)))),
            (
                503,
                &[("content-type", "text/html")],
                Some(Failure::ServerError(code(503))),
            ),
        ];
        for (status, pairs, expected) in rows {
            let judged = judge_head(code(*status), &fields(pairs));
            assert_eq!(
                judged.err().as_ref(),
                expected.as_ref(),
                "{status} {pairs:?}"
            );
        }
    }

    #[test]
    fn bodies() {
        let rows = [
            (
                r#"{"limit":20,"offset":0,"total":0,"results":[]}"#,
                Some(true),
            ),
            (
                r#"{"limit":20,"offset":0,"total":1,"results":[{}]}"#,
                Some(false),
            ),
            (r#"{"token":{}}"#, Some(false)),
            (r#"{"results":{}}"#, Some(false)),
            ("[]", Some(false)),
            ("null", Some(false)),
            ("", None),
            ("{", None),
            ("{} {}", None),
            ("<html>", None),
        ];
        for (body, empty) in rows {
            let answer = judge(
                StatusCode::OK,
                &HeaderMap::new(),
                body.into(),
                Duration::ZERO,
            );
            assert_eq!(answer.ok().map(|answer| answer.empty), empty, "{body}");
        }
    }
}
