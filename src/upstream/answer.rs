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

use super::Failure;
use super::admission::limit_report;

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
        403 if limit_report::is_window_exhausted(fields, wall) => {
            return Err(Failure::Throttled {
                retry_after: limit_report::wait_after_429(fields, wall),
            });
        }
        401 | 403 => return Err(Failure::KeyRefused(status)),
        410 => return Err(Failure::Retired),
        // The limit is on us, not on our client.
        429 => {
            return Err(Failure::Throttled {
                retry_after: limit_report::wait_after_429(fields, wall),
            });
        }
        // These speak of how we have asked; they are nothing to a client.
        407 | 408 | 421 | 426 => return Err(Failure::UnexpectedStatus(status)),
        400..=499 => {}
        503 => {
            return Err(Failure::ServerError {
                status,
                retry_after: limit_report::retry_after(fields, wall),
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
mod tests;
