//! The length that an upstream's answer announces for its body.

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Version};

use crate::reason::Reason;
use crate::upstream::Failure;

/// The length of the body, if announced. Leaves at most one `content-length`
/// field, so that no later recipient reads another length (RFC 9112 §6.3).
///
/// # Errors
/// [`Reason::NotHttp`] if lengths contradict each other or are no numbers, or
/// if the body has a transfer coding other than `chunked`.
pub(super) fn content_length(
    version: Version,
    fields: &mut HeaderMap,
) -> Result<Option<u64>, Failure> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        // The request accepts no other coding, and HTTP/1.0 has none (§6.1, §7).
        let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() || version == Version::HTTP_10 {
            return Err(Failure::new(Reason::NotHttp));
        }
        fields.remove(CONTENT_LENGTH);
        return Ok(None);
    }
    let mut length = None;
    for line in fields.get_all(CONTENT_LENGTH) {
        for member in line.as_bytes().split(|&byte| byte == b',') {
            let own = number(member.trim_ascii()).ok_or(Failure::new(Reason::NotHttp))?;
            if length.is_some_and(|length| length != own) {
                return Err(Failure::new(Reason::NotHttp));
            }
            length = Some(own);
        }
    }
    if let Some(length) = length {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    Ok(length)
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_number);
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_length_or_an_error() {
        let (length, coding) = ("content-length", "transfer-encoding");
        for (version, lines, expected) in [
            (Version::HTTP_11, &[][..], Some(None)),
            (Version::HTTP_11, &[(length, "7")], Some(Some(7))),
            (
                Version::HTTP_11,
                &[(length, "7, 7"), (length, "7")],
                Some(Some(7)),
            ),
            (Version::HTTP_11, &[(length, "7"), (length, "8")], None),
            (Version::HTTP_11, &[(length, "7,")], None),
            (Version::HTTP_11, &[(length, "+7")], None),
            (Version::HTTP_11, &[(length, "99999999999999999999")], None),
            (
                Version::HTTP_11,
                &[(coding, "Chunked"), (length, "7")],
                Some(None),
            ),
            (Version::HTTP_11, &[(coding, "gzip, chunked")], None),
            (
                Version::HTTP_11,
                &[(coding, "chunked"), (coding, "chunked")],
                None,
            ),
            (Version::HTTP_10, &[(coding, "chunked")], None),
        ] {
            let mut fields = HeaderMap::new();
            for (name, value) in lines {
                fields.append(*name, HeaderValue::from_static(value));
            }
            let read = content_length(version, &mut fields);
            assert_eq!(read.as_ref().ok().copied(), expected, "{lines:?}");
            if let Ok(length) = read {
                let own: Vec<_> = fields.get_all(CONTENT_LENGTH).iter().collect();
                let expected: Vec<_> = length.map(HeaderValue::from).into_iter().collect();
                assert_eq!(own, expected.iter().collect::<Vec<_>>(), "{lines:?}");
            }
        }
    }
}
