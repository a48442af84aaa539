//! Starting, frames, and what concerns the connection (RFC 9113 §3, §4, §6.5-6.9).

use super::Expected::{Alive, Closed, Ends, Status};
use super::{
    COMPRESSION_ERROR, FLOW_CONTROL_ERROR, PROTOCOL, PROTOCOL_ERROR, SIZE, check, open, with,
};
use crate::support::TOKEN;
use crate::support::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, SETTINGS,
    WINDOW_UPDATE, block, frame, get, request, setting,
};

#[tokio::test]
async fn section_3_starting() {
    let preface = |rest: &[u8]| [PREFACE, rest].concat();
    let settings = frame(SETTINGS, 0, 0, &[]);
    check(vec![
        ("§3.4 the preface and SETTINGS", preface(&settings), Alive),
        (
            "§3.4 a wrong end of the preface",
            [&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], &settings].concat(),
            Closed,
        ),
        (
            "§3.4 a first frame that is not SETTINGS",
            preface(&request(1, TOKEN, &[])),
            PROTOCOL,
        ),
        (
            "§3.4 a first frame that is an acknowledgement",
            preface(&frame(SETTINGS, ACK, 0, &[])),
            PROTOCOL,
        ),
        (
            "§3.4 requests before the server's SETTINGS are acknowledged",
            preface(&[settings.clone(), request(1, TOKEN, &[])].concat()),
            Status(200),
        ),
        (
            "§3.4 HTTP/2.1 is unknown",
            b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n".to_vec(),
            Closed,
        ),
    ])
    .await;
}

#[tokio::test]
async fn section_4_frames() {
    let large = vec![0; 16_385];
    check(vec![
        (
            "§4.1 an unknown frame type is ignored",
            [frame(77, 0xff, 3, b"?"), with(&[])].concat(),
            Status(200),
        ),
        (
            "§4.1 undefined flags are ignored",
            frame(PING, 0xfe, 0, &[0; 8]),
            Alive,
        ),
        (
            "§4.1 the reserved bit is ignored",
            frame(WINDOW_UPDATE, 0, 1 << 31, &[0, 0, 0, 1]),
            Alive,
        ),
        (
            "§4.2 DATA longer than SETTINGS_MAX_FRAME_SIZE",
            frame(DATA, 0, 1, &large),
            SIZE,
        ),
        (
            "§4.2 HEADERS longer than that",
            frame(HEADERS, END_HEADERS, 1, &large),
            SIZE,
        ),
        (
            "§4.2 a frame of an unknown type longer than that",
            frame(77, 0, 0, &large),
            SIZE,
        ),
        (
            "§4.3 an index that is not in the table",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbf]),
            Ends(&[COMPRESSION_ERROR, PROTOCOL_ERROR]),
        ),
        (
            "§4.3 a truncated header block",
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x00, 0x05, b'a']),
            Ends(&[COMPRESSION_ERROR, PROTOCOL_ERROR]),
        ),
        (
            "§4.3 another frame within a header block",
            [
                frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
                frame(PING, 0, 0, &[0; 8]),
            ]
            .concat(),
            PROTOCOL,
        ),
        (
            "§4.3 another stream's CONTINUATION within a header block",
            [
                frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
                frame(CONTINUATION, END_HEADERS, 3, &[]),
            ]
            .concat(),
            PROTOCOL,
        ),
    ])
    .await;
}

#[tokio::test]
async fn section_6_of_the_connection() {
    let settings = |id, value| frame(SETTINGS, 0, 0, &setting(id, value));
    let enlarge = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    check(vec![
        (
            "§6.5 SETTINGS on a stream",
            frame(SETTINGS, 0, 1, &[]),
            PROTOCOL,
        ),
        (
            "§6.5 an acknowledgement with a payload",
            frame(SETTINGS, ACK, 0, &setting(1, 0)),
            SIZE,
        ),
        (
            "§6.5 a length that is not a multiple of six",
            frame(SETTINGS, 0, 0, &[0; 5]),
            SIZE,
        ),
        ("§6.5.2 ENABLE_PUSH of 2", settings(2, 2), PROTOCOL),
        (
            "§6.5.2 a window of more than 2^31-1",
            settings(4, 1 << 31),
            Ends(&[FLOW_CONTROL_ERROR, PROTOCOL_ERROR]),
        ),
        (
            "§6.5.2 frames of less than 2^14",
            settings(5, 16_383),
            PROTOCOL,
        ),
        (
            "§6.5.2 frames of more than 2^24-1",
            settings(5, 1 << 24),
            PROTOCOL,
        ),
        (
            "§6.5.3 a setting twice",
            [settings(4, 1), settings(4, 65_535)].concat(),
            Alive,
        ),
        (
            "§6.7 PING on a stream",
            frame(PING, 0, 1, &[0; 8]),
            PROTOCOL,
        ),
        ("§6.7 PING of seven bytes", frame(PING, 0, 0, &[0; 7]), SIZE),
        (
            "§6.7 an acknowledgement that nothing asked for",
            frame(PING, ACK, 0, &[7; 8]),
            Alive,
        ),
        (
            "§6.8 GOAWAY on a stream",
            frame(GOAWAY, 0, 1, &[0; 8]),
            PROTOCOL,
        ),
        (
            "§6.8 a client's GOAWAY ends the connection",
            frame(GOAWAY, 0, 0, &[0; 8]),
            Closed,
        ),
        (
            "§6.9 WINDOW_UPDATE of three bytes",
            frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
            SIZE,
        ),
        (
            "§6.9 an increment of 0 on the connection",
            enlarge(0, 0),
            PROTOCOL,
        ),
        (
            "§6.9 an increment of 0 on a stream",
            [open(), enlarge(1, 0)].concat(),
            Ends(&[PROTOCOL_ERROR]),
        ),
        (
            "§6.9.1 the connection's window above 2^31-1",
            enlarge(0, (1 << 31) - 1),
            Ends(&[FLOW_CONTROL_ERROR]),
        ),
        (
            "§6.9.2 the initial window may shrink below zero",
            [settings(4, 0), with(&[]), settings(4, 65_535)].concat(),
            Status(200),
        ),
    ])
    .await;
}
