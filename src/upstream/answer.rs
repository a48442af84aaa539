//! Which upstream answers may be handed on to a client, and which are failures.
//! Pure.
//!
//! 200 and client errors with a JSON body may. What the upstream reports about itself
//! stays here: the bodies of its 5xx answers, its refusal of the key, its limits.

use std::time::SystemTime;

use http::header::{AsHeaderName, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Failure;
use super::reported;
use crate::pages::BodyIndex;
use crate::reason::Reason;

/// Checks an answer's head before its body is read. `wall` is the present time,
/// against which dates are read in a head without a `date`.
///
/// # Errors
/// Where the answer is a failure, whatever its body.
pub fn check_head(status: StatusCode, fields: &HeaderMap, wall: SystemTime) -> Result<(), Failure> {
    let reason = match status.as_u16() {
        200 => None,
        401 | 403 => Some(Reason::KeyRefused),
        410 => Some(Reason::Retired),
        // The limit is on ordgate, not on its client.
        429 => Some(Reason::Throttled),
        // These are about ordgate's own request, not the client's.
        407 | 408 | 421 | 426 => Some(Reason::UnexpectedStatus),
        400..=499 => None,
        500..=599 => Some(Reason::ServerError),
        // The request was not conditional.
        304 => Some(Reason::UnexpectedStatus),
        300..=399 => Some(Reason::Redirect),
        _ => Some(Reason::UnexpectedStatus),
    };
    if let Some(reason) = reason {
        let retry_after = match status.as_u16() {
            429 => Some(reported::wait_after_429(fields, wall)),
            503 => reported::retry_after(fields, wall),
            _ => None,
        };
        return Err(Failure {
            retry_after,
            ..Failure::status(reason, status)
        });
    }
    // ordgate requests `identity`; an encoded body cannot be checked for JSON.
    let is_identity = |coding: &str| coding.eq_ignore_ascii_case("identity");
    match all_values(fields, CONTENT_ENCODING, is_identity)
        && all_values(fields, CONTENT_TYPE, is_json)
    {
        true => Ok(()),
        false => Err(Failure::status(Reason::NotJson, status)),
    }
}

/// What a body contains that was read whole.
///
/// # Errors
/// Where it is not JSON, or of another server than the API's ([`check_route`]).
pub(super) fn check_body(status: StatusCode, body: &[u8]) -> Result<BodyIndex, Failure> {
    check_route(status, body)?;
    BodyIndex::read(body).ok_or(Failure::new(Reason::NotJson))
}

/// Checks that an answer is not a web framework's 404 for an unknown route, which has
/// `statusCode` and `message` beside `error`. The server is then perhaps not the intended one.
///
/// # Errors
/// Where it is.
fn check_route(status: StatusCode, body: &[u8]) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Framework {
        #[serde(rename = "statusCode")]
        status: u16,
        #[serde(rename = "message")]
        _message: String,
    }
    let is_known = status != StatusCode::NOT_FOUND
        || object::<Framework>(body).is_none_or(|error| error.status != 404);
    let wrong = || Failure::status(Reason::WrongUpstream, status);
    is_known.then_some(()).ok_or_else(wrong)
}

/// Whether a 400 with this body is the answer to every page of a list: the body is
/// about a parameter other than limit and offset. The reference upstream words it
/// like `params/block must match pattern`.
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

/// A body that is an object with these members. (serde's derived readers also
/// accept a list of their values.)
fn object<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let is_object = body.trim_ascii_start().starts_with(b"{");
    serde_json::from_slice(body).ok().filter(|_| is_object)
}

/// Whether all values of a field are visible ASCII and fulfil a condition; true of
/// an absent field.
fn all_values(
    fields: &HeaderMap,
    name: impl AsHeaderName,
    condition: impl Fn(&str) -> bool,
) -> bool {
    let mut values = fields.get_all(name).iter();
    values.all(|value| value.to_str().is_ok_and(&condition))
}

/// Whether a media type is `application/json` or has the suffix `+json` (RFC
/// 6839), with any parameters.
fn is_json(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or("").trim();
    media.eq_ignore_ascii_case("application/json")
        || media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case("+json")
}

#[cfg(test)]
mod tests;
