//! How long an upstream's body says that it is.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};

use crate::upstream::Failure;

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
