//! The scan of requests before hyper parses them: finds where each message on a
//! connection ends, and refuses what hyper 1.12 would accept although another
//! parser may read it differently, or would refuse without an explanation.
//!
//! Without it, hyper with ordgate's settings (tried on loopback):
//! - accepts a bare LF as line end in the head;
//! - accepts Content-Length together with Transfer-Encoding (it ignores the
//!   length), equal Content-Lengths on several lines, `gzip, chunked`, and
//!   `chunked` twice;
//! - accepts HTTP/1.1 without Host, with two of them, and values such as `u@a`,
//!   `a/b` and `a b`;
//! - removes a fragment from the target;
//! - answers a request for an upgrade, and then reads the bytes of the other
//!   protocol as a request;
//! - accepts 16 KiB of chunk extensions per message, any length of target and of
//!   method up to its buffer, and heads of more than that buffer (one of 40 KiB
//!   with 32 KiB), since it checks the length only when it reads again;
//! - waits for more after a trailer line that ends in a bare LF;
//! - closes a connection whose head is slow without an answer, and has the same
//!   timeout for idle connections;
//! - refuses obs-fold, whitespace before a colon, control characters, bare CR, bad
//!   versions and too many fields, but with an empty 400 or 431: no problem+json,
//!   no CORS fields, no log entry, no count.
//!
//! All of these are refused here as problem+json. The chunked coding is followed
//! because the next head begins after it.
//!
//! The listener's guard calls [`RequestScanner`]; nothing here does I/O. The
//! meaning of targets and fields is not checked here: hyper parses them, `route`
//! and `validate` check them.

mod chunked;
mod fault;
mod framing;
pub(crate) mod http2;
mod plain;

pub use fault::HeadFault;
#[cfg(test)]
pub(crate) use fault::REFUSED;
pub(crate) use fault::{is_replacement, refused_line, replacement};
use framing::{Framing, Line, TCHAR};
use plain::plain_head;

/// The bounds of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadBounds {
    /// Bytes of a whole head, including its last CRLF.
    pub head: usize,
    /// Bytes of a request target.
    pub target: usize,
    /// Field lines in a head.
    pub fields: usize,
}

/// The result of [`RequestScanner::scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    /// The number of leading bytes that belong to complete heads and to bodies.
    /// They may be passed to hyper.
    pub passed: usize,
    /// Why the message that begins at `passed` is refused.
    pub fault: Option<HeadFault>,
    /// The number of heads that these bytes complete.
    pub heads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// In a head, or between messages.
    Head,
    /// In a body of known length, with this many bytes left.
    Body(u64),
    /// Before the line with a chunk's size.
    ChunkSize,
    /// In a chunk's data, with this many bytes left.
    ChunkData(u64),
    /// Before the CRLF after a chunk's data.
    ChunkEnd,
    /// In the trailer section.
    Trailers,
}

/// Follows the bytes of one connection from message to message.
#[derive(Debug)]
pub struct RequestScanner {
    bounds: HeadBounds,
    state: ScanState,
}

impl RequestScanner {
    /// A scanner at the beginning of a connection.
    pub fn new(bounds: HeadBounds) -> Self {
        Self {
            bounds,
            state: ScanState::Head,
        }
    }

    /// Whether the bytes so far end within a body, rather than in or between
    /// heads.
    pub fn in_body(&self) -> bool {
        self.state != ScanState::Head
    }

    /// Scans the bytes that have not been passed yet: those that the last call
    /// left, and those that have arrived since. An incomplete head is not passed;
    /// bodies are passed as they arrive.
    pub fn scan(&mut self, bytes: &[u8]) -> ScanProgress {
        let mut progress = ScanProgress {
            passed: 0,
            fault: None,
            heads: 0,
        };
        while progress.passed < bytes.len() {
            let rest = &bytes[progress.passed..];
            let step = match self.state {
                ScanState::Head => match plain_head(rest, self.bounds) {
                    Some(length) => {
                        progress.passed += length;
                        progress.heads += 1;
                        continue;
                    }
                    None => self.head_by_lines(rest),
                },
                ScanState::Body(left) => {
                    Ok(Some(data(left, rest, ScanState::Head, ScanState::Body)))
                }
                ScanState::ChunkData(left) => Ok(Some(data(
                    left,
                    rest,
                    ScanState::ChunkEnd,
                    ScanState::ChunkData,
                ))),
                ScanState::ChunkSize => chunked::size(rest),
                ScanState::ChunkEnd => chunked::end(rest),
                ScanState::Trailers => chunked::trailer(rest, self.bounds.head),
            };
            match step {
                Ok(Some((length, next))) => {
                    progress.heads += usize::from(self.state == ScanState::Head);
                    progress.passed += length;
                    self.state = next;
                }
                Ok(None) => break,
                Err(fault) => {
                    progress.fault = Some(fault);
                    break;
                }
            }
        }
        progress
    }

    fn head_by_lines(&self, rest: &[u8]) -> Result<Option<(usize, ScanState)>, HeadFault> {
        // RFC 9112 §2.2: an empty line before the request line is ignored.
        let mut at = 0;
        while let Some(line) = Line::first(&rest[at..])? {
            if !line.text.is_empty() {
                break;
            }
            at += line.length;
            self.check_length(at)?;
        }
        let Some(line) = Line::first(&rest[at..])? else {
            self.check_incomplete_request_line(&rest[at..], at == 0)?;
            return Ok(None);
        };
        let mut framing = Framing::begin(line.text, self.bounds.target)?;
        at += line.length;
        let mut fields = 0;
        loop {
            self.check_length(at)?;
            let Some(line) = Line::first(&rest[at..])? else {
                self.check_length(rest.len())?;
                return Ok(None);
            };
            at += line.length;
            if line.text.is_empty() {
                self.check_length(at)?;
                return Ok(Some((at, framing.after_head()?)));
            }
            fields += 1;
            if fields > self.bounds.fields {
                return Err(HeadFault::HeadTooLarge);
            }
            framing.field(line.text)?;
        }
    }

    /// Refuses the beginning of a request line that cannot become a valid one.
    fn check_incomplete_request_line(&self, rest: &[u8], is_first: bool) -> Result<(), HeadFault> {
        // A TLS ClientHello, for one, may never contain a line end.
        let may_begin = rest
            .first()
            .is_none_or(|byte| *byte == b'\r' || TCHAR[usize::from(*byte)]);
        if is_first && !may_begin {
            return Err(HeadFault::BadRequestLine);
        }
        // 64 bytes are enough for the method and the version.
        if rest.len() > self.bounds.target + 64 {
            return Err(HeadFault::TargetTooLong);
        }
        self.check_length(rest.len())
    }

    fn check_length(&self, length: usize) -> Result<(), HeadFault> {
        if length > self.bounds.head {
            return Err(HeadFault::HeadTooLarge);
        }
        Ok(())
    }
}

/// Takes up to `left` bytes of data: how many, and the next state.
fn data(
    left: u64,
    rest: &[u8],
    after: ScanState,
    within: fn(u64) -> ScanState,
) -> (usize, ScanState) {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
    let left = left - taken as u64;
    let next = if left == 0 { after } else { within(left) };
    (taken, next)
}

#[cfg(test)]
mod tests;
