//! What an upstream's answer is worth: something to hand on, or a failure.
//! Pure.
//!
//! Only what the API can mean passes: 200 and client errors with a JSON body.
//! The upstream's own words about itself (its 5xx bodies, its key's refusal,
//! its limits) stay here.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{AsHeaderName, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};

use super::{Failure, reported};

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
    /// The upstream's `etag`, as it came.
    pub etag: Option<Box<[u8]>>,
    /// From the request's first byte to the answer's last.
    pub took: Duration,
    /// The place of the endpoint that gave it, in the order of preference.
    pub endpoint: u16,
}

/// Judges an answer's head, before its body is read: what fails here costs no
/// more time. `wall` is the present time, for dates in it where it does not say
/// its own.
///
/// # Errors
/// Where the body does not matter.
pub fn judge_head(status: StatusCode, fields: &HeaderMap, wall: SystemTime) -> Result<(), Failure> {
    match status.as_u16() {
        200 => {}
        // A page for browsers comes of something on the way that dislikes the
        // target, which clients choose; it must not cost us the key.
        403 if says_html(fields) => return Err(Failure::UnexpectedStatus(status)),
        // So says GitHub that a window is spent, and when it ends.
        403 if reported::is_spent(fields, wall) => {
            return Err(Failure::Throttled {
                retry_after: reported::throttled(fields, wall),
            });
        }
        401 | 403 => return Err(Failure::KeyRefused(status)),
        410 => return Err(Failure::Retired),
        // The limit is on us, not on our client.
        429 => {
            return Err(Failure::Throttled {
                retry_after: reported::throttled(fields, wall),
            });
        }
        // These speak of how we have asked; they are nothing to a client.
        407 | 408 | 421 | 426 => return Err(Failure::UnexpectedStatus(status)),
        400..=499 => {}
        503 => {
            return Err(Failure::ServerError {
                status,
                retry_after: reported::wait(fields, wall),
            });
        }
        500..=599 => {
            return Err(Failure::ServerError {
                status,
                retry_after: None,
            });
        }
        // Nobody asked whether anything had changed.
        304 => return Err(Failure::UnexpectedStatus(status)),
        300..=399 => return Err(Failure::Redirect(status)),
        _ => return Err(Failure::UnexpectedStatus(status)),
    }
    // We asked for `identity`; what is encoded cannot be told to be JSON.
    let plain = |coding: &str| coding.eq_ignore_ascii_case("identity");
    match says(fields, CONTENT_ENCODING, plain) && says(fields, CONTENT_TYPE, is_json) {
        true => Ok(()),
        false => Err(Failure::NotJson),
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
    let text = judge_body(&body)?;
    let empty = serde_json::from_str::<Page>(text).is_ok_and(|page| page.results.0);
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
        empty,
        body,
        etag: fields.get(ETAG).map(|etag| etag.as_bytes().into()),
        took,
        endpoint: 0,
    })
}

/// Judges a body that was promised to be JSON; answers with its text.
///
/// # Errors
/// Where it is not.
pub fn judge_body(body: &[u8]) -> Result<&str, Failure> {
    // JSON is UTF-8 (RFC 8259 §8.1); a parser that ignores strings does not
    // look into them.
    let text = std::str::from_utf8(body).map_err(|_where| Failure::NotJson)?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|_where| Failure::NotJson)?;
    Ok(text)
}

/// Whether an answer is the web framework's own, which has no such route, and not
/// the API's: `statusCode` and `message` stand beside `error`. The server is
/// then perhaps another one than was meant.
pub fn is_no_such_route(status: StatusCode, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Framework {
        #[serde(rename = "statusCode")]
        status: u16,
        #[serde(rename = "message")]
        _message: String,
    }
    let of_framework = || object::<Framework>(body);
    status == StatusCode::NOT_FOUND && of_framework().is_some_and(|own| own.status == 404)
}

/// Whether the body of a 400 tells that it would be the same for every page of a
/// list: it is about a parameter that is neither limit nor offset, in the
/// reference upstream's words, such as `params/block must match pattern`.
pub fn refuses_every_page(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let Some(Refusal { message }) = object(body) else {
        return false;
    };
    let names_parameter = ["params", "querystring"].iter().any(|place| {
        let rest = message.strip_prefix(place);
        rest.is_some_and(|rest| rest.starts_with(['/', ' ']))
    });
    names_parameter && !message.contains("limit") && !message.contains("offset")
}

/// A body that is an object with these members. (A list of their values would
/// do for serde.)
fn object<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    serde_json::from_slice(body).ok().filter(|_| is_object)
}

/// Whether every value of a field is what it may be. One that is not visible
/// ASCII is not; a field that is absent says nothing else.
fn says(fields: &HeaderMap, name: impl AsHeaderName, may: impl Fn(&str) -> bool) -> bool {
    let mut values = fields.get_all(name).iter();
    values.all(|value| value.to_str().is_ok_and(&may))
}

fn says_html(fields: &HeaderMap) -> bool {
    let is_other = |media: &str| !media.to_ascii_lowercase().starts_with("text/html");
    !says(fields, CONTENT_TYPE, is_other)
}

/// `application/json` and what has the suffix `+json` (RFC 6839), with any
/// parameters.
fn is_json(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or("").trim();
    media.eq_ignore_ascii_case("application/json")
        || media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case("+json")
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
    use http::HeaderName;

    use super::*;

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
    fn heads() {
        let json: &[_] = &[("content-type", "application/json; charset=utf-8")];
        let code = |code| StatusCode::from_u16(code).unwrap();
        let seconds = |n| Failure::Throttled {
            retry_after: Duration::from_secs(n),
        };
        let failed = |status, wait: Option<u64>| Failure::ServerError {
            status: code(status),
            retry_after: wait.map(Duration::from_secs),
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
            (304, json, Some(Failure::UnexpectedStatus(code(304)))),
            (401, json, Some(Failure::KeyRefused(code(401)))),
            (403, json, Some(Failure::KeyRefused(code(403)))),
            (403, &[], Some(Failure::KeyRefused(code(403)))),
            (
                403,
                &[("content-type", "text/HTML; charset=utf-8")],
                Some(Failure::UnexpectedStatus(code(403))),
            ),
            (
                401,
                &[("content-type", "text/html")],
                Some(Failure::KeyRefused(code(401))),
            ),
            (
                403,
                &[
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "1800"),
                ],
                Some(seconds(1800)),
            ),
            (
                403,
                &[("x-ratelimit-remaining", "0")],
                Some(Failure::KeyRefused(code(403))),
            ),
            (
                403,
                &[
                    ("x-ratelimit-remaining", "56"),
                    ("x-ratelimit-reset", "1800"),
                ],
                Some(Failure::KeyRefused(code(403))),
            ),
            (410, json, Some(Failure::Retired)),
            (408, json, Some(Failure::UnexpectedStatus(code(408)))),
            (429, json, Some(seconds(1))),
            (429, &[("retry-after", "30")], Some(seconds(30))),
            (429, &[("retry-after", "99999999")], Some(seconds(3600))),
            (500, json, Some(failed(500, None))),
            (500, &[("retry-after", "30")], Some(failed(500, None))),
            (
                503,
                &[("content-type", "text/html")],
                Some(failed(503, None)),
            ),
            (503, &[("retry-after", "30")], Some(failed(503, Some(30)))),
            (
                503,
                &[("retry-after", "86400")],
                Some(failed(503, Some(3600))),
            ),
            (503, &[("retry-after", "soon")], Some(failed(503, Some(10)))),
            (503, &[("ratelimit-reset", "30")], Some(failed(503, None))),
        ];
        for (status, pairs, expected) in rows {
            let judged = judge_head(code(*status), &fields(pairs), SystemTime::UNIX_EPOCH);
            assert_eq!(
                judged.err().as_ref(),
                expected.as_ref(),
                "{status} {pairs:?}"
            );
        }
    }

    #[test]
    fn media_that_cannot_be_told() {
        for (name, values) in [
            ("content-type", &[&b"application/json; x=\xe9"[..]][..]),
            ("content-type", &[b"\xff"]),
            ("content-type", &[b"application/json", b"text/html"]),
            ("content-encoding", &[b"\xe9"]),
            ("content-encoding", &[b"identity", b"gzip"]),
        ] {
            let mut fields = HeaderMap::new();
            for value in values {
                fields.append(name, HeaderValue::from_bytes(value).unwrap());
            }
            let judged = judge_head(StatusCode::OK, &fields, SystemTime::UNIX_EPOCH);
            assert_eq!(judged, Err(Failure::NotJson), "{name} {values:?}");
        }
    }

    #[test]
    fn how_long_to_wait() {
        let wall = httpdate::parse_http_date("Fri, 20 Nov 2026 16:00:00 GMT").unwrap();
        let wall = wall + Duration::from_millis(200);
        let unix = |more: i64| 1_795_190_400 + more;
        let (soon, past) = (unix(31).to_string(), unix(-31).to_string());
        let rows: &[(&[(&'static str, &str)], u64)] = &[
            // RFC 9110 §10.2.3: delta-seconds; fractions are met with.
            (&[("retry-after", "30")], 30),
            (&[("retry-after", "0")], 1),
            (&[("retry-after", "3601")], 3600),
            (&[("retry-after", "99999999999999999999999")], 3600),
            (&[("retry-after", "+30")], 10),
            (&[("retry-after", "-30")], 10),
            (&[("retry-after", "30.5")], 31),
            (&[("retry-after", "soon")], 10),
            (&[("retry-after", "")], 10),
            // RFC 9110 §5.6.7: three forms of a date.
            (&[("retry-after", "Fri, 20 Nov 2026 16:00:31 GMT")], 31),
            (&[("retry-after", "Friday, 20-Nov-26 16:00:31 GMT")], 31),
            (&[("retry-after", "Fri Nov 20 16:00:31 2026")], 31),
            (&[("retry-after", "Fri, 20 Nov 2026 15:00:00 GMT")], 1),
            (&[("retry-after", "Sat, 21 Nov 2026 16:00:00 GMT")], 3600),
            // In its absence, when the window ends.
            (&[], 1),
            (&[("ratelimit-reset", "30")], 30),
            (&[("x-ratelimit-reset", "30")], 30),
            (&[("x-ratelimit-reset", &soon)], 31),
            (&[("x-ratelimit-reset", &past)], 1),
            (&[("x-ratelimit-reset", "99999999999999999999999")], 3600),
            (&[("x-ratelimit-reset", "1795190431123")], 31),
            (&[("x-ratelimit-reset", "soon")], 10),
            (
                &[("x-ratelimit-reset", "40"), ("ratelimit-reset", "30")],
                30,
            ),
            (&[("retry-after", "20"), ("ratelimit-reset", "30")], 20),
            (&[("retry-after", "soon"), ("ratelimit-reset", "30")], 30),
        ];
        for (pairs, seconds) in rows {
            let fields = pairs
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
                .collect();
            let judged = judge_head(StatusCode::TOO_MANY_REQUESTS, &fields, wall);
            let retry_after = Duration::from_secs(*seconds);
            assert_eq!(judged, Err(Failure::Throttled { retry_after }), "{pairs:?}");
        }
    }

    #[test]
    fn answers_of_the_framework_alone() {
        let rows = [
            (
                404,
                r#"{"message":"Route GET:/nope not found","error":"Not Found","statusCode":404}"#,
                true,
            ),
            (404, r#" {"statusCode": 404, "message": ""}"#, true),
            (404, r#"{"statusCode":404,"message":"x","more":[{}]}"#, true),
            (404, r#"{"error":"Not found"}"#, false),
            (404, r#"{"statusCode":404,"error":"Not Found"}"#, false),
            (404, r#"{"message":"x","error":"Not Found"}"#, false),
            (404, r#"{"statusCode":"404","message":"x"}"#, false),
            (404, r#"{"statusCode":404,"message":null}"#, false),
            (404, r#"{"statusCode":404,"message":["x"]}"#, false),
            (404, r#"{"statusCode":400,"message":"x"}"#, false),
            (404, r#"{"inner":{"statusCode":404,"message":"x"}}"#, false),
            (404, r#"[404,"x"]"#, false),
            (404, "404", false),
            (404, "", false),
            (400, r#"{"statusCode":404,"message":"x"}"#, false),
            (200, r#"{"statusCode":404,"message":"x"}"#, false),
        ];
        for (status, body, expected) in rows {
            let status = StatusCode::from_u16(status).unwrap();
            let is_it = is_no_such_route(status, body.as_bytes());
            assert_eq!(is_it, expected, "{status} {body}");
        }
    }

    #[test]
    fn refusals_of_every_page() {
        let rows = [
            (
                r#"{"message":"params/block must match pattern \"^[0-9]+$\""}"#,
                true,
            ),
            (
                r#"{"statusCode":400,"error":"Bad Request","message":"params/block must match a schema in anyOf"}"#,
                true,
            ),
            (
                r#"{"message":"params must have required property 'block'"}"#,
                true,
            ),
            (
                r#"{"message":"querystring/operation_type must be equal to one of the allowed values"}"#,
                true,
            ),
            (r#"{"message":"querystring/limit must be <= 60"}"#, false),
            (r#"{"message":"querystring/offset must be >= 0"}"#, false),
            (
                r#"{"message":"querystring must have required property 'limit'"}"#,
                false,
            ),
            (
                r#"{"message":"params/block must match pattern, querystring/limit must be <= 60"}"#,
                false,
            ),
            (r#"{"message":"parameters/block is wrong"}"#, false),
            (r#"{"message":"paramsblock"}"#, false),
            (r#"{"message":"the page is too large"}"#, false),
            (r#"{"message":""}"#, false),
            (r#"{"message":7}"#, false),
            (r#"{"message":["params/block"]}"#, false),
            (r#"{"error":"params/block"}"#, false),
            (r#"["params/block must match"]"#, false),
            (r#""params/block must match""#, false),
            ("params/block must match", false),
            ("", false),
        ];
        for (body, expected) in rows {
            assert_eq!(refuses_every_page(body.as_bytes()), expected, "{body}");
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
            ("{\"name\":\"caf\u{e9} \u{1f9e1}\"}", Some(false)),
        ];
        let judged = |body: &[u8]| {
            judge(
                StatusCode::OK,
                &HeaderMap::new(),
                Bytes::copy_from_slice(body),
                Duration::ZERO,
            )
        };
        for (body, empty) in rows {
            let answer = judged(body.as_bytes());
            assert_eq!(answer.ok().map(|answer| answer.empty), empty, "{body}");
        }
        // RFC 8259 §8.1: UTF-8. ISO 8859-1, an overlong form, half of a pair,
        // UTF-16.
        for body in [
            &b"{\"name\":\"caf\xe9\"}"[..],
            b"\"\xc0\xaf\"",
            b"\"\xed\xa0\x80\"",
            b"{\0}\0",
        ] {
            assert_eq!(judged(body).err(), Some(Failure::NotJson), "{body:?}");
        }
    }
}
