//! The lines of the chunked transfer coding (RFC 9112 §7.1).

use super::framing::{Line, field_name};
use super::{HeadFault, ScanState};

/// The most bytes of a line with a chunk's size and its extensions.
const MAX_SIZE_LINE: usize = 1024;

/// What follows a line of the chunked coding: its length, and the next state.
/// `None` where the line is incomplete.
type Next = Result<Option<(usize, ScanState)>, HeadFault>;

/// Reads the line with a chunk's size.
pub(super) fn size(bytes: &[u8]) -> Next {
    let line = Line::first(bytes)?;
    if line.as_ref().map_or(bytes.len(), |line| line.length) > MAX_SIZE_LINE {
        return Err(HeadFault::BadChunk);
    }
    let Some(line) = line else {
        return Ok(None);
    };
    let digits = line.text.iter().take_while(|b| b.is_ascii_hexdigit());
    let (digits, extension) = line.text.split_at(digits.count());
    let is_extension = matches!(extension.first(), None | Some(b';' | b' ' | b'\t'));
    // 15 digits cannot overflow a u64.
    if digits.is_empty() || digits.len() > 15 || !is_extension {
        return Err(HeadFault::BadChunk);
    }
    let size = digits.iter().fold(0_u64, |size, digit| {
        size << 4 | u64::from(hex_value(*digit))
    });
    let next = match size {
        0 => ScanState::Trailers,
        size => ScanState::ChunkData(size),
    };
    Ok(Some((line.length, next)))
}

/// Reads the CRLF after a chunk's data.
pub(super) fn end(bytes: &[u8]) -> Next {
    match bytes {
        [b'\r', b'\n', ..] => Ok(Some((2, ScanState::ChunkSize))),
        [b'\r'] => Ok(None),
        _ => Err(HeadFault::BadChunk),
    }
}

/// Reads a line of the trailer section, which has at most `max_length` bytes.
pub(super) fn trailer(bytes: &[u8], max_length: usize) -> Next {
    let line = Line::first(bytes)?;
    if line.as_ref().map_or(bytes.len(), |line| line.length) > max_length {
        return Err(HeadFault::HeadTooLarge);
    }
    let Some(line) = line else {
        return Ok(None);
    };
    if line.text.is_empty() {
        return Ok(Some((line.length, ScanState::Head)));
    }
    field_name(line.text)?;
    Ok(Some((line.length, ScanState::Trailers)))
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
