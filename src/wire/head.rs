//! The framing of what a client sends, watched before hyper sees it.
//!
//! hyper forgives what two parsers can read in two ways: a bare LF, a
//! Content-Length beside a Transfer-Encoding, a doubled Host. [`Scan`] follows
//! the bytes of a connection, finds where each message ends, and names the
//! first [`HeadFault`]. The listener's guard feeds it; nothing here does I/O.
//!
//! Deliberately absent: the meaning of targets and fields. hyper parses them,
//! and `route` and `validate` judge them.

/// What is wrong with a message's framing. The gateway refuses the message and
/// closes the connection, since what follows cannot be trusted either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HeadFault {
    /// A line of the head or of the chunked framing ends in LF without CR
    /// (RFC 9112 §2.2 allows it to be refused).
    BareLf = 1,
    /// A CR that no LF follows (RFC 9112 §2.2).
    BareCr,
    /// A field line that begins with a blank (obs-fold, RFC 9112 §5.2).
    ObsFold,
    /// A field line without a name, without a colon, with a blank before its
    /// colon (RFC 9112 §5.1), or with a character that no name or no value has
    /// (RFC 9110 §5.1, §5.5).
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
    /// A target with a fragment, or with a character that has to be
    /// percent-encoded (RFC 9112 §3.2, RFC 3986 §2).
    BadTarget,
    /// A version other than HTTP/1.1 and HTTP/1.0.
    BadVersion,
    /// The request target is longer than allowed.
    TargetTooLong,
    /// The head is longer than allowed or has too many field lines.
    HeadTooLarge,
    /// The head did not arrive in time; the listener's watch says so.
    HeadTooSlow,
    /// The client asks for another protocol (RFC 9110 §7.8), and what follows may
    /// be in it. `h2c` is ignored instead, as the RFC allows: clients offer it
    /// with ordinary requests.
    Upgrade,
}

impl HeadFault {
    /// Every fault, in the order of its code.
    pub const ALL: [Self; 17] = [
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
    ];

    /// The fault of a code that `as u8` has given.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// The method of the request that stands in for one that is refused: the guard
/// hands it to hyper in place of the faulty head, so that the refusal takes the
/// same way out as every other answer. From a client it is a method like any
/// other that no route takes: the fault is in the connection's pulse.
pub const REFUSED: &str = "ORDGATE-REFUSED";

/// The head of that request.
pub const REFUSED_HEAD: &[u8] =
    b"ORDGATE-REFUSED / HTTP/1.1\r\nhost: -\r\nconnection: close\r\n\r\n";

/// The bounds of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadBounds {
    /// Bytes of a whole head, its last CRLF included.
    pub head: usize,
    /// Bytes of a request target.
    pub target: usize,
    /// Field lines in a head.
    pub fields: usize,
}

/// What [`Scan::scan`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The bytes up to here belong to complete heads and to bodies: they may
    /// be passed on.
    pub passed: usize,
    /// The message that begins at `passed` is to be refused.
    pub fault: Option<HeadFault>,
    /// Heads that have become complete in these bytes.
    pub heads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// In a head, or between messages.
    Head,
    /// In a body of known length, with so many bytes to come.
    Body(u64),
    /// At the line that says a chunk's size.
    ChunkSize,
    /// In a chunk's data, with so many bytes to come.
    ChunkData(u64),
    /// At the CRLF after a chunk's data.
    ChunkEnd,
    /// In the trailer section.
    Trailers,
}

/// Follows one connection's bytes from message to message.
#[derive(Debug)]
pub struct Scan {
    bounds: HeadBounds,
    place: ScanState,
}

impl Scan {
    /// A scan at the beginning of a connection.
    pub fn new(bounds: HeadBounds) -> Self {
        Self {
            bounds,
            place: ScanState::Head,
        }
    }

    /// Whether the bytes so far end in a body rather than in or between heads.
    pub fn in_body(&self) -> bool {
        self.place != ScanState::Head
    }

    /// Looks at the bytes that have not been passed on yet: what the last call
    /// left over, and what has come since. A head that is not complete is left
    /// over; bodies are passed as they come.
    pub fn scan(&mut self, bytes: &[u8]) -> Progress {
        let mut progress = Progress {
            passed: 0,
            fault: None,
            heads: 0,
        };
        while progress.passed < bytes.len() {
            let rest = &bytes[progress.passed..];
            let step = match self.place {
                ScanState::Head => self.head(rest, &mut progress.heads),
                ScanState::Body(left) => Ok(Some(self.data(
                    left,
                    rest,
                    ScanState::Head,
                    ScanState::Body,
                ))),
                ScanState::ChunkData(left) => Ok(Some(self.data(
                    left,
                    rest,
                    ScanState::ChunkEnd,
                    ScanState::ChunkData,
                ))),
                ScanState::ChunkSize => self.chunk_size(rest),
                ScanState::ChunkEnd => self.chunk_end(rest),
                ScanState::Trailers => self.trailer(rest),
            };
            match step {
                Ok(Some(taken)) => progress.passed += taken,
                Ok(None) => break,
                Err(fault) => {
                    progress.fault = Some(fault);
                    break;
                }
            }
        }
        progress
    }

    fn data(
        &mut self,
        left: u64,
        rest: &[u8],
        after: ScanState,
        within: fn(u64) -> ScanState,
    ) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        let left = left - taken as u64;
        self.place = if left == 0 { after } else { within(left) };
        taken
    }

    fn head(&mut self, rest: &[u8], heads: &mut usize) -> Result<Option<usize>, HeadFault> {
        if let Some(length) = plain(rest, self.bounds) {
            *heads += 1;
            return Ok(Some(length));
        }
        self.head_by_lines(rest, heads)
    }

    fn head_by_lines(
        &mut self,
        rest: &[u8],
        heads: &mut usize,
    ) -> Result<Option<usize>, HeadFault> {
        // RFC 9112 §2.2: an empty line before the request line is ignored.
        let mut at = 0;
        while let Some(line) = Line::first(&rest[at..])? {
            if !line.text.is_empty() {
                break;
            }
            at += line.length;
            self.within(at)?;
        }
        let Some(line) = Line::first(&rest[at..])? else {
            return self.unfinished(&rest[at..], at == 0);
        };
        let mut framing = Framing::begin(line.text, self.bounds.target)?;
        at += line.length;
        let mut fields = 0;
        loop {
            self.within(at)?;
            let Some(line) = Line::first(&rest[at..])? else {
                // The rest of the bounds are for what has not come yet.
                return self.within(rest.len()).map(|()| None);
            };
            at += line.length;
            if line.text.is_empty() {
                self.within(at)?;
                self.place = framing.place()?;
                *heads += 1;
                return Ok(Some(at));
            }
            fields += 1;
            if fields > self.bounds.fields {
                return Err(HeadFault::HeadTooLarge);
            }
            framing.field(line.text)?;
        }
    }

    /// A request line that has not ended: too long already, or to be awaited.
    fn unfinished(&self, rest: &[u8], first: bool) -> Result<Option<usize>, HeadFault> {
        // A TLS hello, for one, has no line end to wait for.
        let begins = rest
            .first()
            .is_none_or(|byte| *byte == b'\r' || TCHAR[usize::from(*byte)]);
        if first && !begins {
            return Err(HeadFault::BadRequestLine);
        }
        // The method and the version are short beside the target.
        if rest.len() > self.bounds.target + 64 {
            return Err(HeadFault::TargetTooLong);
        }
        self.within(rest.len()).map(|()| None)
    }

    fn within(&self, length: usize) -> Result<(), HeadFault> {
        if length > self.bounds.head {
            return Err(HeadFault::HeadTooLarge);
        }
        Ok(())
    }

    fn chunk_size(&mut self, rest: &[u8]) -> Result<Option<usize>, HeadFault> {
        let line = Line::first(rest)?;
        // A size with its extensions has no reason to be longer, whether its
        // line has ended or not.
        if line.as_ref().map_or(rest.len(), |line| line.length) > 1024 {
            return Err(HeadFault::BadChunk);
        }
        let Some(line) = line else {
            return Ok(None);
        };
        let digits = line
            .text
            .iter()
            .take_while(|b| b.is_ascii_hexdigit())
            .count();
        let extension = &line.text[digits..];
        if digits == 0
            || digits > 15
            || !matches!(extension.first(), None | Some(b';' | b' ' | b'\t'))
        {
            return Err(HeadFault::BadChunk);
        }
        let size = line.text[..digits].iter().fold(0_u64, |size, digit| {
            size << 4 | u64::from(hex_value(*digit))
        });
        self.place = match size {
            0 => ScanState::Trailers,
            size => ScanState::ChunkData(size),
        };
        Ok(Some(line.length))
    }

    fn chunk_end(&mut self, rest: &[u8]) -> Result<Option<usize>, HeadFault> {
        match rest {
            [b'\r', b'\n', ..] => {
                self.place = ScanState::ChunkSize;
                Ok(Some(2))
            }
            [b'\r'] => Ok(None),
            _ => Err(HeadFault::BadChunk),
        }
    }

    fn trailer(&mut self, rest: &[u8]) -> Result<Option<usize>, HeadFault> {
        let Some(line) = Line::first(rest)? else {
            return self.within(rest.len()).map(|()| None);
        };
        self.within(line.length)?;
        if line.text.is_empty() {
            self.place = ScanState::Head;
        } else {
            field_name(line.text)?;
        }
        Ok(Some(line.length))
    }
}

/// The length of a head as nearly all are: whole, within its bounds, without a
/// body, and asking for a path of the plainest characters. It is looked at once,
/// from its beginning to its end. Of whatever else comes this says nothing: the
/// lines are taken one by one then, and what is wrong has its name there.
fn plain(bytes: &[u8], bounds: HeadBounds) -> Option<usize> {
    let method = leading(bytes, &TCHAR);
    if method == 0 || method > LONGEST_METHOD || bytes.get(method) != Some(&b' ') {
        return None;
    }
    let target = &bytes[method + 1..];
    let length = leading(target, &PLAIN);
    if target.first() != Some(&b'/') || length > bounds.target {
        return None;
    }
    let mut rest = target[length..].strip_prefix(b" HTTP/1.1\r\n")?;
    let (mut fields, mut hosts) = (0, 0);
    while !rest.starts_with(b"\r\n") {
        let name = &rest[..leading(rest, &TCHAR)];
        let value = rest[name.len()..].strip_prefix(b":")?;
        let end = first_control(value)?;
        match name.len() {
            0 => return None,
            4 if name.eq_ignore_ascii_case(b"host") => {
                hosts += 1;
                if !is_authority(value[..end].trim_ascii()) {
                    return None;
                }
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => return None,
            14 if name.eq_ignore_ascii_case(b"content-length") => return None,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => return None,
            _ => {}
        }
        rest = value[end..].strip_prefix(b"\r\n")?;
        fields += 1;
    }
    let length = bytes.len() - rest.len() + 2;
    (hosts == 1 && fields <= bounds.fields && length <= bounds.head).then_some(length)
}

/// How many of the first bytes are of a class.
fn leading(bytes: &[u8], class: &[bool; 256]) -> usize {
    let other = bytes.iter().position(|byte| !class[usize::from(*byte)]);
    other.unwrap_or(bytes.len())
}

/// Where the first control character stands, HTAB among them; eight bytes are
/// looked at at a time.
fn first_control(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let (eights, rest) = bytes.as_chunks::<8>();
    for (at, eight) in eights.iter().enumerate() {
        let eight = u64::from_le_bytes(*eight);
        // A byte's highest bit is set where it has borrowed, being below a
        // blank, or below 1 once 0x7f is taken away from it. What a borrow may
        // set wrongly stands behind the byte that has borrowed.
        let below = eight.wrapping_sub(ONES * u64::from(b' ')) & !eight;
        let rubout = eight ^ (ONES * 0x7f);
        let found = (below | (rubout.wrapping_sub(ONES) & !rubout)) & HIGH;
        if found != 0 {
            return Some(at * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let control = rest.iter().position(u8::is_ascii_control);
    control.map(|at| eights.len() * 8 + at)
}

/// A line that ends in CRLF.
struct Line<'a> {
    text: &'a [u8],
    length: usize,
}

impl<'a> Line<'a> {
    fn first(bytes: &'a [u8]) -> Result<Option<Self>, HeadFault> {
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

/// What a head says of the body that follows it.
struct Framing {
    is_http_11: bool,
    hosts: u32,
    length: Option<u64>,
    chunked: bool,
    /// Whether Upgrade names a protocol other than `h2c`.
    upgrade: bool,
    /// Whether Connection says so too; otherwise Upgrade means nothing.
    nominated: bool,
}

impl Framing {
    fn begin(line: &[u8], longest: usize) -> Result<Self, HeadFault> {
        let mut parts = line.split(|b| *b == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(HeadFault::BadRequestLine);
        };
        if target.len() > longest {
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
            upgrade: false,
            nominated: false,
        })
    }

    fn field(&mut self, line: &[u8]) -> Result<(), HeadFault> {
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
                if !chunked || self.chunked || !self.is_http_11 {
                    return Err(HeadFault::BadTransferEncoding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn place(&self) -> Result<ScanState, HeadFault> {
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

/// The members of a list that are not empty.
fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = list.split(|byte| *byte == b',');
    members
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

fn field_name(line: &[u8]) -> Result<&[u8], HeadFault> {
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

/// The bytes of a class, for one look a byte.
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

/// RFC 9110 §5.6.2: what a token consists of.
static TCHAR: [bool; 256] = class(b"!#$%&'*+-.^_`|~");
/// The plainest characters of a target.
static PLAIN: [bool; 256] = class(b"/?&=%-._~:,+");
/// What a host may consist of.
static AUTHORITY: [bool; 256] = class(b".-:[]_%~");

/// The most characters of a method.
const LONGEST_METHOD: usize = 32;

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| TCHAR[usize::from(*byte)])
}

/// Whether hyper would take it: nearly all targets are paths of none but the
/// plainest characters; of the others the `http` crate is asked, as hyper does.
fn is_target(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'/') && bytes.iter().all(|byte| PLAIN[usize::from(*byte)])
        || !bytes.contains(&b'#') && http::Uri::try_from(bytes).is_ok()
}

/// RFC 9110 §5.5: a value has no control characters but HTAB. Without an early
/// end, so that it is done sixteen bytes at a time.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, byte| {
        found | (*byte < b' ' && *byte != b'\t') | (*byte == 0x7f)
    })
}

/// RFC 9112 §6.2: digits only; a list is refused, whatever its members.
fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0_u64, |length, digit| {
        digit
            .is_ascii_digit()
            .then(|| length * 10 + u64::from(digit - b'0'))
    })
}

/// Roughly RFC 3986 §3.2.2 with a port: enough that nothing odd is a host. An
/// empty value is one that RFC 9112 §3.2 allows.
fn is_authority(value: &[u8]) -> bool {
    value.iter().all(|byte| AUTHORITY[usize::from(*byte)])
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests;
