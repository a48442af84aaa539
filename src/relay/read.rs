//! Reading an upstream's body, as far as it may be kept; and how long it says
//! that it is.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use http_body_util::BodyExt;

use crate::upstream::{Failure, ResponseBody};

/// Reads a body whole.
///
/// # Errors
/// Where it breaks off, or is larger than `most` bytes.
pub(super) async fn read(mut body: ResponseBody, most: u64) -> Result<Bytes, Failure> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::of_body(&error))?;
        // Trailers are for those who are there, not for the store.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if (whole.len() + data.len()) as u64 > most {
            return Err(Failure::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

/// The length that an answer says, and leaves it saying it once: who reads it
/// after us must not read another (RFC 9112 §6.3).
pub(super) fn one_length(version: Version, fields: &mut HeaderMap) -> Result<Option<u64>, Failure> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        // Nothing else was asked for, nor does HTTP/1.0 have any (§6.1).
        if codings.next().is_some() || version == Version::HTTP_10 {
            return Err(Failure::Protocol);
        }
        if coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            fields.remove(CONTENT_LENGTH);
            return Ok(None);
        }
        // No other coding was asked for. What it has done to the body is not
        // known, and cannot be undone here (§6.1, §7).
        return Err(Failure::Protocol);
    }
    let mut length = None;
    let lines = fields.get_all(CONTENT_LENGTH).iter();
    for line in lines {
        for member in line.as_bytes().split(|&byte| byte == b',') {
            let member = member.trim_ascii();
            let digits = !member.is_empty() && member.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(member).ok().filter(|_| digits);
            let said: u64 = text
                .and_then(|text| text.parse().ok())
                .ok_or(Failure::Protocol)?;
            if length.is_some_and(|length| length != said) {
                return Err(Failure::Protocol);
            }
            length = Some(said);
        }
    }
    if let Some(length) = length {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    Ok(length)
}
