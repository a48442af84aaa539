//! Why a request is refused before hyper parses it, and what hyper gets in its place.

use http::{Method, Uri};

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
const REFUSED_HEAD: &[u8] = b"ORDGATE-REFUSED / HTTP/1.1\r\nhost: -\r\nconnection: close\r\n\r\n";

/// The same in place of a refused HEAD, whose answer has no content (RFC 9110 §9.3.2).
/// No route has its target.
const REFUSED_HEAD_OF_HEAD: &[u8] = b"HEAD * HTTP/1.1\r\nhost: -\r\nconnection: close\r\n\r\n";

/// The head that replaces a refused message, which begins with these bytes.
pub(crate) fn replacement(refused: &[u8]) -> &'static [u8] {
    // RFC 9112 §2.2: an empty line before the request line is ignored.
    let begins = refused
        .iter()
        .position(|byte| !matches!(byte, b'\r' | b'\n'));
    match refused[begins.unwrap_or(0)..].starts_with(b"HEAD ") {
        true => REFUSED_HEAD_OF_HEAD,
        false => REFUSED_HEAD,
    }
}

/// Whether a request may be one of [`replacement`]s.
pub(crate) fn is_replacement(method: &Method, target: &Uri) -> bool {
    method.as_str() == REFUSED || *method == Method::HEAD && target.path() == "*"
}
