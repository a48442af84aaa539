//! RFC 9113 §§3-8, frame by frame. Each case is a connection of its own.

mod connection;
mod messages;
mod streams;

use crate::support::frames::{
    END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, block, frame, get, request,
};
use crate::support::{Gateway, TOKEN, Upstream};

/// Error codes (RFC 9113 §7).
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;

/// What a case expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Stream 1 is answered so, and the connection goes on.
    Status(u16),
    /// Stream 1 is reset with one of these codes, and the connection goes on.
    Reset(&'static [u32]),
    /// The connection ends with GOAWAY of one of these codes.
    Ends(&'static [u32]),
    /// The connection goes on.
    Alive,
    /// The connection ends, with GOAWAY or without.
    Closed,
}
use Expected::{Alive, Closed, Ends, Reset, Status};

const PROTOCOL: Expected = Ends(&[PROTOCOL_ERROR]);
const MALFORMED: Expected = Reset(&[PROTOCOL_ERROR]);
/// h2 has one code for both.
const SIZE: Expected = Ends(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]);

type Case = (&'static str, Vec<u8>, Expected);

/// A request on stream 1 with these fields and nothing else.
fn raw(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(fields))
}

/// A request on stream 1 with these fields beside the pseudo-header fields.
fn with(fields: &[(&str, &str)]) -> Vec<u8> {
    request(1, TOKEN, fields)
}

/// HEADERS on stream 1 that leave it open.
fn open() -> Vec<u8> {
    let fields = [&get(TOKEN)[..], &[("content-length", "4")]].concat();
    frame(HEADERS, END_HEADERS, 1, &block(&fields))
}

async fn check(cases: Vec<Case>) {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut wrong = Vec::new();
    for (name, bytes, expected) in cases {
        let mut client = match bytes.starts_with(b"PRI") {
            true => FrameClient::silent([127, 0, 0, 1], gateway.public).await,
            false => FrameClient::connect(gateway.public).await,
        };
        client.send(&bytes).await;
        let found = match expected {
            Status(_) | Reset(_) => format!("{:?}", client.outcome(1).await),
            Ends(_) | Closed => format!("{:?}", client.end().await),
            Alive => String::new(),
        };
        let is_right = match expected {
            Status(status) => found.starts_with(&format!("Status({status},")),
            Reset(codes) => codes.iter().any(|code| found == format!("Reset({code})")),
            Ends(codes) => codes.iter().any(|code| found == format!("Some({code})")),
            Closed | Alive => true,
        };
        if !is_right {
            wrong.push(format!("{name}: {found}, not {expected:?}"));
            continue;
        }
        if matches!(expected, Alive | Status(_) | Reset(_)) {
            client.send(&request(101, TOKEN, &[])).await;
            let outcome = client.outcome(101).await;
            if !matches!(outcome, Outcome::Status(200, _)) {
                wrong.push(format!("{name}: afterwards {outcome:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(upstream.count() <= 1, "{:?}", upstream.targets());
}
