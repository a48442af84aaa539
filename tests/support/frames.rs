//! An HTTP/2 client that is written frame by frame, for what a polite client does
//! not do. It says that it has no table for HPACK, and reads of a head only the
//! status.

use std::net::SocketAddr;

use super::transport::dial;
use super::wire::Wire;
use super::within;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types and flags (RFC 9113 §6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// How a stream, or its connection, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A response, and the length of its body.
    Status(u16, usize),
    /// RST_STREAM with this code.
    Reset(u32),
    /// GOAWAY with this code.
    Goaway(u32),
    /// The connection was closed without one.
    Closed,
}

/// A connection.
pub(crate) struct FrameClient {
    wire: Wire,
}

/// The bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A setting.
pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// A header block of literal fields.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            match u8::try_from(text.len()).unwrap() {
                short @ 0..127 => block.push(short),
                long => block.extend([127, long - 127]),
            }
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The pseudo-header fields of a GET.
pub(crate) fn get(target: &str) -> [(&str, &str); 4] {
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", target),
    ]
}

/// A whole GET, with these fields beside the pseudo-header fields.
pub(crate) fn request(stream: u32, target: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let fields = [&get(target), fields].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&fields))
}

impl FrameClient {
    /// Connects, and sends nothing.
    pub(crate) async fn silent(from: [u8; 4], address: SocketAddr) -> Self {
        Self {
            wire: Wire::new(dial(from, address).await.unwrap()),
        }
    }

    /// Connects from another address of this machine, with these settings.
    pub(crate) async fn connect_from(
        from: [u8; 4],
        address: SocketAddr,
        settings: &[(u16, u32)],
    ) -> Self {
        Self::silent(from, address).await.begin(settings).await
    }

    /// Sends the preface.
    async fn begin(mut self, settings: &[(u16, u32)]) -> Self {
        // SETTINGS_HEADER_TABLE_SIZE
        let settings = [&[(1, 0)], settings].concat();
        let settings: Vec<_> = settings
            .iter()
            .flat_map(|(id, n)| setting(*id, *n))
            .collect();
        let first = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
        self.send(&first).await;
        self
    }

    /// Sends bytes. That the other end has gone shows when it is read.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _gone = within("sending", self.wire.send(bytes)).await;
    }

    /// Sends bytes, and says whether they went out.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> bool {
        within("sending", self.wire.send(bytes)).await.is_ok()
    }

    /// The next frame; `None` where the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        within("a frame", async {
            let head = self.wire.exactly(9).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let payload = self.wire.exactly(length as usize).await.ok()?;
            Some(Frame {
                kind: head[3],
                flags: head[4],
                stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
                payload,
            })
        })
        .await
    }

    /// The next frame of a kind, acknowledgements apart.
    pub(crate) async fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind && !(kind == SETTINGS && frame.flags & ACK != 0) {
                return Some(frame);
            }
        }
    }

    /// How a stream ends.
    pub(crate) async fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut found, mut length) = (0, 0);
        loop {
            let Some(frame) = self.next().await else {
                return Outcome::Closed;
            };
            match frame.kind {
                GOAWAY => return Outcome::Goaway(number(&frame.payload[4..8])),
                RST_STREAM if frame.stream == stream => {
                    return Outcome::Reset(number(&frame.payload));
                }
                HEADERS if frame.stream == stream => found = status(&frame.payload),
                DATA if frame.stream == stream => length += frame.payload.len(),
                _ => continue,
            }
            if frame.flags & END_STREAM != 0 {
                return Outcome::Status(found, length);
            }
        }
    }

    /// Waits until the connection ends; the code of its GOAWAY, if one came.
    pub(crate) async fn end(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next().await {
            if frame.kind == GOAWAY {
                code = Some(number(&frame.payload[4..8]));
            }
        }
        code
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

/// The status, which comes first in a header block (RFC 9113 §8.3).
fn status(block: &[u8]) -> u16 {
    // Updates of the table's size (RFC 7541 §6.3).
    let updates = block.iter().take_while(|byte| **byte & 0xe0 == 0x20);
    let block = &block[updates.count()..];
    const STATIC: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [index @ 0x88..=0x8e, ..] => STATIC[usize::from(index - 0x88)],
        // A literal whose name is `:status`, with three digits in Huffman's code.
        [0x08 | 0x18 | 0x48, 0x82 | 0x83, code @ ..] => digits([code[0], code[1], code[2]]),
        other => panic!("{other:x?}"),
    }
}

/// Three digits in Huffman's code (RFC 7541 appendix B).
fn digits(code: [u8; 3]) -> u16 {
    let mut bits = u32::from_be_bytes([code[0], code[1], code[2], 0]);
    let mut number = 0;
    for _ in 0..3 {
        // 0, 1 and 2 have five bits; the others have six, from 011001 on.
        let (digit, length) = match bits >> 27 {
            short @ 0..=2 => (short, 5),
            _ => ((bits >> 26) - 0b01_1001 + 3, 6),
        };
        number = number * 10 + digit;
        bits <<= length;
    }
    u16::try_from(number).unwrap()
}
