//! Reading and writing bytes of files and records: numbers, texts and checked records.
//!
//! Nothing here trusts what it reads: any bytes give a value or `None`.

use aws_lc_rs::digest::{SHA256, digest};

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'b>(pub(crate) &'b [u8]);

impl<'b> Reader<'b> {
    /// The next bytes, if there are so many.
    pub(crate) fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next bytes, as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Bytes that their length precedes.
    pub(crate) fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.take(len)
    }

    /// A text that its length precedes.
    pub(crate) fn text(&mut self) -> Option<&'b str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Whether all was read.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes bytes and, before them, their length. What is longer than a u32 can say is
/// never written: bodies and records are bounded.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The length of a checksum.
const SUM: usize = 8;

/// Writes a record: its length, its checksum and its content.
pub(crate) fn put_record(out: &mut Vec<u8>, content: &[u8]) {
    let len = u32::try_from(content.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&sum(content));
    out.extend_from_slice(content);
}

/// The content of the next record; `None` if it is torn or its checksum is wrong.
pub(crate) fn take_record<'b>(from: &mut Reader<'b>) -> Option<&'b [u8]> {
    let len = usize::try_from(from.u32()?).ok()?;
    let expected: [u8; SUM] = from.array()?;
    let content = from.take(len)?;
    (sum(content) == expected).then_some(content)
}

fn sum(content: &[u8]) -> [u8; SUM] {
    let mut sum = [0; SUM];
    sum.copy_from_slice(&digest(&SHA256, content).as_ref()[..SUM]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let mut file = Vec::new();
        put_record(&mut file, b"one");
        put_record(&mut file, b"");
        let mut reader = Reader(&file);
        assert_eq!(take_record(&mut reader), Some(&b"one"[..]));
        assert_eq!(take_record(&mut reader), Some(&b""[..]));
        assert!(reader.is_at_end());
        let first = &file[..size_of::<u32>() + SUM + 3];
        for len in 0..first.len() {
            assert_eq!(take_record(&mut Reader(&first[..len])), None, "{len}");
        }
        for bit in 0..first.len() * 8 {
            let mut flipped = first.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(take_record(&mut Reader(&flipped)), None, "{bit}");
        }
    }
}
