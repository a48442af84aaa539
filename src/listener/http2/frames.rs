//! Follows the frames in a direction of a connection (RFC 9113 §4) without
//! buffering them: it sees each frame's head, the few payload bytes that the guard
//! needs, and where the frame ends.

/// The length of a frame's head.
const HEAD: usize = 9;

/// Frame types (RFC 9113 §6).
pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const RST_STREAM: u8 = 3;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PING: u8 = 6;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

/// Flags (RFC 9113 §6).
pub(super) mod flag {
    pub(in super::super) const END_STREAM: u8 = 1;
    pub(in super::super) const ACK: u8 = 1;
    pub(in super::super) const END_HEADERS: u8 = 4;
    pub(in super::super) const PADDED: u8 = 8;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// The length of the payload.
    pub(super) length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// The stream; 0 for the connection.
    pub(super) stream: u32,
}

impl FrameHead {
    fn parse(bytes: [u8; HEAD]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind,
            flags,
            // RFC 9113 §4.1: the first bit is reserved and ignored.
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        }
    }

    /// Its bytes.
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// How many payload bytes are passed on at a time; 0 for none.
    fn item_length(&self) -> usize {
        match self.kind {
            kind::SETTINGS => 6,
            // The last stream, and the error code.
            kind::GOAWAY => 8,
            kind::WINDOW_UPDATE => 4,
            kind::DATA if self.has(flag::PADDED) => 1,
            _ => 0,
        }
    }
}

/// Takes what a [`FrameScanner`] finds.
pub(super) trait FrameSink {
    /// A frame's head is complete.
    fn head(&mut self, head: &FrameHead);
    /// A setting, an increment of a window, the length of padding, or what GOAWAY
    /// says.
    fn item(&mut self, head: &FrameHead, item: &[u8]);
    /// The frame is complete.
    fn end(&mut self, head: &FrameHead);
}

/// Follows the frames of one direction.
#[derive(Debug, Default)]
pub(super) struct FrameScanner {
    /// How many bytes come before the first frame.
    preface: usize,
    head: FrameHead,
    /// How many bytes of the payload are missing.
    left: u32,
    /// A head, or an item of a payload, that has not arrived whole.
    partial: [u8; HEAD],
    partial_length: usize,
    /// The length of an item of this payload; 0 where no more are passed on.
    item: usize,
}

impl FrameScanner {
    /// A scanner of frames that so many other bytes precede.
    pub(super) fn after(preface: usize) -> Self {
        Self {
            preface,
            ..Self::default()
        }
    }

    /// Whether the bytes so far end with a whole frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.preface == 0 && self.left == 0 && self.partial_length == 0
    }

    /// Whether the bytes so far end within DATA.
    pub(super) fn in_data(&self) -> bool {
        self.left > 0 && self.head.kind == kind::DATA
    }

    /// Follows more bytes.
    pub(super) fn scan(&mut self, mut bytes: &[u8], sink: &mut impl FrameSink) {
        if self.preface > 0 {
            let skipped = self.preface.min(bytes.len());
            self.preface -= skipped;
            bytes = &bytes[skipped..];
        }
        while !bytes.is_empty() {
            if self.left > 0 {
                bytes = self.payload(bytes, sink);
                continue;
            }
            let Some(head) = self.take(&mut bytes, HEAD) else {
                return;
            };
            self.head = FrameHead::parse(head);
            self.left = self.head.length;
            self.item = self.head.item_length();
            sink.head(&self.head);
            if self.left == 0 {
                sink.end(&self.head);
            }
        }
    }

    fn payload<'b>(&mut self, bytes: &'b [u8], sink: &mut impl FrameSink) -> &'b [u8] {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let (mut payload, rest) = bytes.split_at(left.min(bytes.len()));
        self.left -= u32::try_from(payload.len()).unwrap_or(self.left);
        while self.item > 0 && !payload.is_empty() {
            let item = self.item;
            let Some(bytes) = self.take(&mut payload, item) else {
                break;
            };
            sink.item(&self.head, &bytes[..item]);
            if matches!(self.head.kind, kind::DATA | kind::GOAWAY) {
                self.item = 0;
            }
        }
        if self.left == 0 {
            // An incomplete item at the end is an error, which h2 finds.
            self.partial_length = 0;
            sink.end(&self.head);
        }
        rest
    }

    /// Takes so many bytes, once they have all arrived.
    fn take(&mut self, bytes: &mut &[u8], length: usize) -> Option<[u8; HEAD]> {
        let count = (length - self.partial_length).min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        self.partial[self.partial_length..self.partial_length + count].copy_from_slice(taken);
        *bytes = rest;
        self.partial_length += count;
        if self.partial_length < length {
            return None;
        }
        self.partial_length = 0;
        Some(self.partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was found, as text.
    #[derive(Default)]
    struct Found(Vec<String>);

    impl FrameSink for Found {
        fn head(&mut self, head: &FrameHead) {
            let FrameHead {
                length,
                kind,
                flags,
                stream,
            } = head;
            self.0
                .push(format!("{kind} {flags} on {stream}, {length} bytes"));
        }

        fn item(&mut self, _: &FrameHead, item: &[u8]) {
            self.0.push(format!("{item:?}"));
        }

        fn end(&mut self, _: &FrameHead) {
            self.0.push("end".to_owned());
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let head = FrameHead {
            length: u32::try_from(payload.len()).unwrap(),
            kind,
            flags,
            stream,
        };
        [&head.encode(), payload].concat()
    }

    #[test]
    fn frames_are_followed_however_they_are_cut() {
        let bytes = [
            b"preface".to_vec(),
            frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 9, 0, 3, 0, 0, 0, 1]),
            frame(kind::SETTINGS, flag::ACK, 0, &[]),
            frame(kind::WINDOW_UPDATE, 0, 1 << 31 | 3, &[0, 0, 1, 0]),
            frame(kind::DATA, flag::PADDED, 1, &[2, 7, 0, 0]),
            frame(kind::DATA, flag::END_STREAM, 1, &[7; 40]),
            frame(kind::PING, 0, 0, &[1; 8]),
            // A malformed one, and one after it.
            frame(kind::WINDOW_UPDATE, 0, 0, &[1, 2]),
            frame(kind::WINDOW_UPDATE, 0, 0, &[1, 2, 3, 4]),
        ]
        .concat();
        let expected = [
            "4 0 on 0, 12 bytes",
            "[0, 4, 0, 0, 0, 9]",
            "[0, 3, 0, 0, 0, 1]",
            "end",
            "4 1 on 0, 0 bytes",
            "end",
            "8 0 on 3, 4 bytes",
            "[0, 0, 1, 0]",
            "end",
            "0 8 on 1, 4 bytes",
            "[2]",
            "end",
            "0 1 on 1, 40 bytes",
            "end",
            "6 0 on 0, 8 bytes",
            "end",
            "8 0 on 0, 2 bytes",
            "end",
            "8 0 on 0, 4 bytes",
            "[1, 2, 3, 4]",
            "end",
        ];
        for size in 1..=bytes.len() {
            let mut scanner = FrameScanner::after(7);
            let mut found = Found::default();
            for part in bytes.chunks(size) {
                scanner.scan(part, &mut found);
            }
            // The rest of an incomplete item is skipped with its frame.
            assert_eq!(found.0, expected, "in parts of {size}");
            assert!(scanner.is_between_frames(), "in parts of {size}");
        }
        let mut scanner = FrameScanner::after(0);
        scanner.scan(&bytes[7..10], &mut Found::default());
        assert!(!scanner.is_between_frames(), "within a head");
        scanner.scan(&bytes[10..20], &mut Found::default());
        assert!(!scanner.is_between_frames(), "within a payload");
    }
}
