//! Which upstream answers may be handed on to a client, and which are failures.
//! Pure.
//!
//! 200 and client errors with a JSON body may. What the upstream reports about itself
//! stays here: the bodies of its 5xx answers, its refusal of the key, its limits.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Failure;
use super::reported;
use crate::pages::BodyIndex;
use crate::reason::Reason;

/// Checks an answer's head before its body is read. `wall` is the present time,
/// against which dates are read in a head without a `date`. With `is_any_type`, the body need
/// not be JSON.
///
/// # Errors
/// Where the answer is a failure, whatever its body.
pub fn check_head(
    status: StatusCode,
    fields: &HeaderMap,
    is_any_type: bool,
    wall: SystemTime,
) -> Result<(), Failure> {
    // ordgate requests `identity`; an encoded body cannot be checked for JSON.
    let mut codings = fields.get_all(CONTENT_ENCODING).iter();
    let mut types = fields.get_all(CONTENT_TYPE).iter();
    let is_json = codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
        && (is_any_type || types.all(|media| media.to_str().is_ok_and(is_json)));
    let mut retry_after = None;
    let reason = match status.as_u16() {
        401 | 403 => Reason::KeyRefused,
        410 => Reason::Retired,
        // The limit is on ordgate, not on its client.
        429 => {
            retry_after = Some(reported::wait_after_429(fields, wall));
            Reason::Throttled
        }
        // These are about ordgate's own request, which was not conditional.
        304 | 407 | 408 | 421 | 426 => Reason::UnexpectedStatus,
        200 | 400..=499 if is_json => return Ok(()),
        200 | 400..=499 => Reason::NotJson,
        300..=399 => Reason::Redirect,
        500..=599 => {
            retry_after = reported::retry_after(fields, wall).filter(|_| status == 503);
            Reason::ServerError
        }
        _ => Reason::UnexpectedStatus,
    };
    Err(Failure {
        retry_after,
        ..Failure::status(reason, status)
    })
}

/// What a body contains that was read whole.
///
/// # Errors
/// Where it is not JSON; or a web framework's 404 for an unknown route, which has `statusCode`
/// and `message` beside `error`: the server is then perhaps not the intended one.
pub(super) fn check_body(status: StatusCode, body: &Bytes) -> Result<BodyIndex, Failure> {
    #[derive(Deserialize)]
    struct Framework {
        #[serde(rename = "statusCode")]
        status: u16,
        #[serde(rename = "message")]
        _message: String,
    }
    if status == StatusCode::NOT_FOUND
        && object::<Framework>(body).is_some_and(|error| error.status == 404)
    {
        return Err(Failure::status(Reason::WrongUpstream, status));
    }
    BodyIndex::read(body).ok_or(Failure::new(Reason::NotJson))
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

/// Whether a media type is `application/json` or has the suffix `+json` (RFC
/// 6839), with any parameters.
fn is_json(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or("").trim();
    media.eq_ignore_ascii_case("application/json")
        || media.len() > 5 && media[media.len() - 5..].eq_ignore_ascii_case("+json")
}

#[cfg(test)]
mod tests;
