//! The request line, the field lines, and what they say about the body.

use super::{HeadFault, ScanState};

/// A line that ends in CRLF.
pub(super) struct Line<'a> {
    /// The line without its CRLF.
    pub(super) text: &'a [u8],
    /// The length with it.
    pub(super) length: usize,
}

impl<'a> Line<'a> {
    /// The first line of these bytes; `None` where it is incomplete.
    pub(super) fn first(bytes: &'a [u8]) -> Result<Option<Self>, HeadFault> {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            return Ok(None);
        };
        let Some(text) = bytes[..end].strip_suffix(b"\r") else {
            return Err(HeadFault::BareLf);
        };
        if memchr::memchr(b'\r', text).is_some() {
            return Err(HeadFault::BareCr);
        }
        Ok(Some(Self {
            text,
            length: end + 1,
        }))
    }
}

/// What the lines of a head say about the body that follows it.
pub(super) struct Framing {
    is_http_11: bool,
    hosts: u32,
    length: Option<u64>,
    chunked: bool,
    /// Whether the method is GET or HEAD, which have no use for a transfer coding.
    is_get_or_head: bool,
    /// Whether Upgrade names a protocol other than `h2c`.
    upgrade: bool,
    /// Whether Connection names Upgrade; otherwise Upgrade has no meaning.
    nominated: bool,
}

impl Framing {
    /// Checks the request line, whose target has at most `max_target` bytes.
    pub(super) fn begin(line: &[u8], max_target: usize) -> Result<Self, HeadFault> {
        let mut parts = line.split(|b| *b == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(HeadFault::BadRequestLine);
        };
        if target.len() > max_target {
            return Err(HeadFault::TargetTooLong);
        }
        if !is_token(method) || target.is_empty() || method.len() > LONGEST_METHOD {
            return Err(HeadFault::BadRequestLine);
        }
        if !is_target(target) {
            return Err(HeadFault::BadTarget);
        }
        let is_http_11 = match version {
            b"HTTP/1.1" => true,
            b"HTTP/1.0" => false,
            _ => return Err(HeadFault::BadVersion),
        };
        Ok(Self {
            is_http_11,
            hosts: 0,
            length: None,
            chunked: false,
            is_get_or_head: matches!(method, b"GET" | b"HEAD"),
            upgrade: false,
            nominated: false,
        })
    }

    /// Checks a field line, and notes what it says about the body.
    pub(super) fn field(&mut self, line: &[u8]) -> Result<(), HeadFault> {
        let name = field_name(line)?;
        if has_control(&line[name.len() + 1..]) {
            return Err(HeadFault::BadFieldLine);
        }
        let value = || line[name.len() + 1..].trim_ascii();
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.hosts += 1;
                if self.hosts > 1 || !is_authority(value()) {
                    return Err(HeadFault::HostInvalid);
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                let mut protocols = members(value());
                self.upgrade |= protocols.any(|name| !name.eq_ignore_ascii_case(b"h2c"));
            }
            10 if name.eq_ignore_ascii_case(b"connection") => {
                let mut options = members(value());
                self.nominated |= options.any(|name| name.eq_ignore_ascii_case(b"upgrade"));
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = content_length(value()).ok_or(HeadFault::BadContentLength)?;
                if self.length.replace(length).is_some() {
                    return Err(HeadFault::BadContentLength);
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                let chunked = value().eq_ignore_ascii_case(b"chunked");
                if !chunked || self.chunked || !self.is_http_11 || self.is_get_or_head {
                    return Err(HeadFault::BadTransferEncoding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// What follows the head.
    pub(super) fn after_head(&self) -> Result<ScanState, HeadFault> {
        if self.is_http_11 && self.hosts == 0 {
            return Err(HeadFault::HostMissing);
        }
        if self.is_http_11 && self.upgrade && self.nominated {
            return Err(HeadFault::Upgrade);
        }
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(HeadFault::TwoFramings),
            (true, None) => Ok(ScanState::ChunkSize),
            (false, None | Some(0)) => Ok(ScanState::Head),
            (false, Some(length)) => Ok(ScanState::Body(length)),
        }
    }
}

/// The non-empty members of a comma-separated list.
fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = list.split(|byte| *byte == b',');
    members
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// The name of a field line.
pub(super) fn field_name(line: &[u8]) -> Result<&[u8], HeadFault> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(HeadFault::ObsFold);
    }
    let colon = memchr::memchr(b':', line).ok_or(HeadFault::BadFieldLine)?;
    let name = &line[..colon];
    match is_token(name) {
        true => Ok(name),
        false => Err(HeadFault::BadFieldLine),
    }
}

/// The alphanumeric characters and these, as a table with one lookup per byte.
const fn class(members: &[u8]) -> [bool; 256] {
    let mut class = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        class[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < members.len() {
        class[members[at] as usize] = true;
        at += 1;
    }
    class
}

/// The characters of a token (RFC 9110 §5.6.2).
pub(super) static TCHAR: [bool; 256] = class(b"!#$%&'*+-.^_`|~");
/// The commonest characters of a target.
pub(super) static PLAIN: [bool; 256] = class(b"/?&=%-._~:,+");
/// The characters of a host with a port.
static AUTHORITY: [bool; 256] = class(b".-:[]_%~");

/// The most characters of a method.
pub(super) const LONGEST_METHOD: usize = 32;

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| TCHAR[usize::from(*byte)])
}

/// Whether hyper accepts the target. Nearly all targets are paths of only the
/// commonest characters; for the others this parses the URI as hyper does.
fn is_target(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'/') && bytes.iter().all(|byte| PLAIN[usize::from(*byte)])
        || !bytes.contains(&b'#') && http::Uri::try_from(bytes).is_ok()
}

/// RFC 9110 §5.5: a value has no control characters but HTAB. Without an early
/// exit, so that the compiler can check sixteen bytes at a time.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| {
        found | (*byte < b' ' && *byte != b'\t') | (*byte == 0x7f)
    })
}

/// RFC 9112 §6.2: digits only; a list is refused even where all its members are
/// equal.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0_u64, |length, digit| {
        digit
            .is_ascii_digit()
            .then(|| length * 10 + u64::from(digit - b'0'))
    })
}

/// Approximates RFC 3986 §3.2.2 with a port: no userinfo, path or whitespace. An
/// empty value is allowed (RFC 9112 §3.2).
pub(super) fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|byte| AUTHORITY[usize::from(*byte)])
}
