//! Why a request is refused before hyper parses it, and what hyper gets in its place.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};

use super::framing::{LONGEST_METHOD, TCHAR};
use crate::reason::Reason;

/// What is wrong with a message's framing. The gateway refuses the message and
/// closes the connection: after such a message it is uncertain where the next one
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HeadFault {
    /// A line of the head or of the chunked framing ends in LF without CR
    /// (RFC 9112 §2.2 allows a server to refuse it).
    BareLf = 1,
    /// A CR without LF (RFC 9112 §2.2).
    BareCr,
    /// A field line that begins with whitespace (obs-fold, RFC 9112 §5.2).
    ObsFold,
    /// A field line without a name, without a colon, with whitespace before its
    /// colon (RFC 9112 §5.1), or with a character that is not allowed in a name
    /// or a value (RFC 9110 §5.1, §5.5).
    BadFieldLine,
    /// Both Content-Length and Transfer-Encoding (RFC 9112 §6.1).
    TwoFramings,
    /// Content-Length is repeated, is a list or is not a number (RFC 9112 §6.3).
    BadContentLength,
    /// Transfer-Encoding in HTTP/1.0, repeated, or other than `chunked`
    /// (RFC 9112 §6.1).
    BadTransferEncoding,
    /// A chunk's size or end is malformed (RFC 9112 §7.1).
    BadChunk,
    /// HTTP/1.1 without Host (RFC 9112 §3.2).
    HostMissing,
    /// More than one Host, or one that is not an authority (RFC 9112 §3.2).
    HostInvalid,
    /// A request line that is not `method SP target SP version` (RFC 9112 §3).
    BadRequestLine,
    /// A target with a fragment, or with a character that must be
    /// percent-encoded (RFC 9112 §3.2, RFC 3986 §2).
    BadTarget,
    /// A version other than HTTP/1.1 and HTTP/1.0.
    BadVersion,
    /// The request target is longer than [`HeadBounds::target`](super::HeadBounds).
    TargetTooLong,
    /// The head has more bytes or field lines than
    /// [`HeadBounds`](super::HeadBounds) allows.
    HeadTooLarge,
    /// The head was not complete within `header_timeout`. The connection's timer
    /// sets this one, not the scanner.
    HeadTooSlow,
    /// The client wants to switch to another protocol (RFC 9110 §7.8), and may
    /// already send it after the head. A request for `h2c` is ignored instead, as
    /// the RFC allows: some clients offer it with ordinary requests.
    Upgrade,
    /// `:authority` and Host differ (RFC 9113 §8.3.1).
    AuthorityMismatch,
}

impl HeadFault {
    /// The word for it.
    pub const fn reason(self) -> Reason {
        match self {
            Self::BareLf
            | Self::BareCr
            | Self::ObsFold
            | Self::BadFieldLine
            | Self::BadRequestLine => Reason::MalformedHead,
            Self::TwoFramings
            | Self::BadContentLength
            | Self::BadTransferEncoding
            | Self::BadChunk => Reason::MalformedFraming,
            Self::HostMissing | Self::HostInvalid | Self::AuthorityMismatch => Reason::BadHost,
            Self::BadTarget => Reason::BadTarget,
            Self::BadVersion => Reason::BadVersion,
            Self::TargetTooLong => Reason::TargetTooLong,
            Self::HeadTooLarge => Reason::HeadTooLarge,
            Self::HeadTooSlow => Reason::HeadTooSlow,
            Self::Upgrade => Reason::Upgrade,
        }
    }

    /// Every fault, in the order of its code.
    pub(crate) const ALL: [Self; 18] = [
        Self::BareLf,
        Self::BareCr,
        Self::ObsFold,
        Self::BadFieldLine,
        Self::TwoFramings,
        Self::BadContentLength,
        Self::BadTransferEncoding,
        Self::BadChunk,
        Self::HostMissing,
        Self::HostInvalid,
        Self::BadRequestLine,
        Self::BadTarget,
        Self::BadVersion,
        Self::TargetTooLong,
        Self::HeadTooLarge,
        Self::HeadTooSlow,
        Self::Upgrade,
        Self::AuthorityMismatch,
    ];

    /// The fault with this code (`fault as u8`).
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// The method of the head that replaces a refused one. A client that sends it itself
/// gets 405 like for any method that no route has: the gateway looks for the fault in
/// the connection's [`Activity`](crate::wire::activity::Activity).
pub(crate) const REFUSED: &str = "ORDGATE-REFUSED";

/// The head that the listener's guard gives to hyper in place of a refused one,
/// so that the refusal is answered like every other request: as problem+json,
/// with CORS fields, logged and counted.
const REFUSED_HEAD: &[u8] = b"ORDGATE-REFUSED / HTTP/1.1\r\nhost: -\r\nconnection: close\r\n";

/// The same in place of a refused HEAD, whose answer has no content (RFC 9110 §9.3.2).
/// No route has its target.
const REFUSED_HEAD_OF_HEAD: &[u8] = b"HEAD * HTTP/1.1\r\nhost: -\r\nconnection: close\r\n";

/// The longest origin that a replacement takes over.
const MAX_ORIGIN: usize = 256;

/// The field of a replacement with the [mark](MARK), and the beginning of the refused
/// request line.
const REFUSED_LINE: &str = "ordgate-refused-line";

/// What a client does not know: a field that it sends itself is not taken for the guard's.
static MARK: LazyLock<String> =
    LazyLock::new(|| format!("{:016x} ", RandomState::new().hash_one(REFUSED_LINE)));

/// The most bytes of it, escaped: what is shown, and a client token or an API key that begins
/// in it, percent-encoded too, so that this can be found.
const MAX_LINE: usize = 256 + 1024;

/// The head that replaces a refused message, which begins with these bytes. It has the
/// message's origin: a page may then read the answer, if its origin is listed. It has the
/// beginning of its request line, for the log.
pub(crate) fn replacement(refused: &[u8], fault: HeadFault) -> Bytes {
    // RFC 9112 §2.2: an empty line before the request line is ignored.
    let begins = refused
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'));
    let refused = &refused[begins.unwrap_or(0)..];
    let head = match refused.starts_with(b"HEAD ") {
        true => REFUSED_HEAD_OF_HEAD,
        false => REFUSED_HEAD,
    };
    let mut head = head.to_vec();
    if let Some(origin) = origin(refused) {
        head.extend([b"origin: ", origin, b"\r\n"].concat());
    }
    // What is wrong with a body is not a head.
    let line = Some(refused).filter(|_| fault != HeadFault::BadChunk);
    if let Some(line) = line.and_then(line_begin) {
        head.extend(format!("{REFUSED_LINE}: {}{line}\r\n", *MARK).into_bytes());
    }
    head.extend(b"\r\n");
    head.into()
}

/// The beginning of a request line, escaped: the method and, if a path follows, the path,
/// up to a query or fragment, which may be secret. `None` if it does not begin with a
/// method and a space: then it may be a field line.
fn line_begin(head: &[u8]) -> Option<String> {
    let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next()?;
    let method = line.split(|byte| *byte == b' ').next()?;
    let is_method = method.len() < line.len()
        && (1..=LONGEST_METHOD).contains(&method.len())
        && method.iter().all(|byte| TCHAR[usize::from(*byte)]);
    if !is_method {
        return None;
    }
    let rest = &line[method.len() + 1..];
    let shown = match rest.first() {
        Some(b'/') => {
            let path = rest.split_inclusive(|byte| matches!(byte, b'?' | b'#'));
            &line[..method.len() + 1 + path.take(1).map(<[u8]>::len).sum::<usize>()]
        }
        // Of an absolute form, which may have a password, the method alone.
        _ => method,
    };
    let mut text = shown[..shown.len().min(MAX_LINE)]
        .escape_ascii()
        .to_string();
    text.truncate(MAX_LINE);
    Some(text)
}

/// The beginning of the request line that a [`replacement`] with these fields replaces, if
/// it is known. It is escaped.
pub(crate) fn refused_line(fields: &HeaderMap) -> Option<&str> {
    let line = fields.get(REFUSED_LINE)?.to_str().ok()?;
    line.strip_prefix(&**MARK)
}

/// The value of the only Origin line of a head. It is compared with the listed origins, and
/// used for nothing else.
fn origin(head: &[u8]) -> Option<&[u8]> {
    let lines = head.split(|byte| *byte == b'\n');
    let lines = lines.map(<[u8]>::trim_ascii_end);
    let mut values = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_at_checked(b"origin:".len())?;
            name.eq_ignore_ascii_case(b"origin:").then_some(value)
        });
    let value = values.next()?.trim_ascii();
    let is_origin =
        (1..=MAX_ORIGIN).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    (is_origin && values.next().is_none()).then_some(value)
}

/// Whether a request may be one of [`replacement`]s.
pub(crate) fn is_replacement(method: &Method, target: &Uri) -> bool {
    method.as_str() == REFUSED || *method == Method::HEAD && target.path() == "*"
}
