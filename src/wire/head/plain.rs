//! The fast path: a head like nearly all are, checked in one pass.

use super::HeadBounds;
use super::framing::{LONGEST_METHOD, PLAIN, TCHAR, is_authority};

/// The length of a head that is complete, within its bounds, without a body and
/// with a target of only the commonest characters. `None` for any other head;
/// the caller then checks it line by line, which also names what is wrong.
pub(super) fn plain_head(bytes: &[u8], bounds: HeadBounds) -> Option<usize> {
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

/// The number of leading bytes that belong to a class. Four at a time take fewer
/// instructions.
fn leading(bytes: &[u8], class: &[bool; 256]) -> usize {
    let is_in = |byte: &u8| class[usize::from(*byte)];
    let mut count = 0;
    for [a, b, c, d] in bytes.as_chunks::<4>().0 {
        if !(is_in(a) & is_in(b) & is_in(c) & is_in(d)) {
            break;
        }
        count += 4;
    }
    while bytes.get(count).is_some_and(is_in) {
        count += 1;
    }
    count
}

/// The position of the first control character, HTAB included. Reads eight bytes
/// at a time.
pub(super) fn first_control(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let (eights, rest) = bytes.as_chunks::<8>();
    for (at, eight) in eights.iter().enumerate() {
        let eight = u64::from_le_bytes(*eight);
        // The subtraction borrows into a byte's highest bit where the byte is
        // below 0x20, or is 0x7f. A borrow can also set that bit wrongly, but
        // only in bytes after the first one that is found.
        let below = eight.wrapping_sub(ONES * u64::from(b' ')) & !eight;
        let delete = eight ^ (ONES * 0x7f);
        let found = (below | (delete.wrapping_sub(ONES) & !delete)) & HIGH;
        if found != 0 {
            return Some(at * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let control = rest.iter().position(u8::is_ascii_control);
    control.map(|at| eights.len() * 8 + at)
}
