//! Streams (RFC 9113 §5, §6.1-6.4, §6.10).

use super::Expected::{Alive, Ends, Status};
use super::{
    MALFORMED, PROTOCOL, PROTOCOL_ERROR, REFUSED_STREAM, SIZE, STREAM_CLOSED, check, open, with,
};
use crate::respect;
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, PADDED, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, block, frame, get, request,
    setting,
};
use crate::support::{Gate, Gateway, TOKEN, Upstream};

#[tokio::test]
async fn section_5_streams() {
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let whole = |stream| request(stream, TOKEN, &[]);
    check(vec![
        (
            "§5.1 DATA on an idle stream",
            frame(DATA, 0, 1, b"x"),
            PROTOCOL,
        ),
        ("§5.1 RST_STREAM on an idle stream", reset.clone(), PROTOCOL),
        (
            "§5.1 WINDOW_UPDATE on an idle stream",
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
            PROTOCOL,
        ),
        (
            "§5.1 DATA on a half-closed stream",
            [with(&[]), frame(DATA, END_STREAM, 1, b"x")].concat(),
            Ends(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        (
            "§5.1 PRIORITY on an idle stream",
            frame(PRIORITY, 0, 7, &[0, 0, 0, 0, 1]),
            Alive,
        ),
        (
            "§5.1 a stream that is reset",
            [open(), reset.clone()].concat(),
            Alive,
        ),
        (
            "§5.1.1 a stream with an even number",
            request(2, TOKEN, &[]),
            PROTOCOL,
        ),
        (
            "§5.1.1 HEADERS on stream 0",
            request(0, TOKEN, &[]),
            PROTOCOL,
        ),
        (
            "§5.1.1 a lower number than before",
            [whole(5), whole(3)].concat(),
            Ends(&[PROTOCOL_ERROR, STREAM_CLOSED]),
        ),
        (
            "§5.1.1 numbers may be left out",
            [whole(7), whole(99)].concat(),
            Alive,
        ),
        (
            "§5.3.1 a stream that depends on itself",
            frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 1]),
            Alive,
        ),
        (
            "§5.4.1 after an error the connection ends",
            [frame(DATA, 0, 0, b"x"), with(&[])].concat(),
            PROTOCOL,
        ),
        (
            "§5.5 an unknown setting is ignored",
            frame(SETTINGS, 0, 0, &setting(0xff, 1)),
            Alive,
        ),
        (
            "§5.5 an unknown frame within a header block",
            [
                frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
                frame(77, 0, 0, &[]),
            ]
            .concat(),
            PROTOCOL,
        ),
    ])
    .await;
}

#[tokio::test]
async fn section_6_data_headers_and_resets() {
    let padded = [&[3][..], &block(&get(TOKEN)), &[0; 3]].concat();
    let weighted = [&[0, 0, 0, 0, 15][..], &block(&get(TOKEN))].concat();
    let own = [&[0, 0, 0, 1, 15][..], &block(&get(TOKEN))].concat();
    let all = END_HEADERS | END_STREAM;
    let parts = block(&get(TOKEN));
    let (one, other) = parts.split_at(10);
    check(vec![
        ("§6.1 DATA on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL),
        (
            "§6.1 padding longer than the payload",
            [open(), frame(DATA, PADDED | END_STREAM, 1, &[9, 0, 0])].concat(),
            PROTOCOL,
        ),
        (
            "§6.2 padded HEADERS",
            frame(HEADERS, all | PADDED, 1, &padded),
            Status(200),
        ),
        (
            "§6.2 padding of HEADERS longer than the payload",
            frame(HEADERS, all | PADDED, 1, &[200, 0x82]),
            PROTOCOL,
        ),
        (
            "§6.2 HEADERS with a priority",
            frame(HEADERS, all | WITH_PRIORITY, 1, &weighted),
            Status(200),
        ),
        (
            "§6.2 HEADERS that depend on themselves",
            frame(HEADERS, all | WITH_PRIORITY, 1, &own),
            MALFORMED,
        ),
        (
            "§6.3 PRIORITY on stream 0",
            frame(PRIORITY, 0, 0, &[0; 5]),
            PROTOCOL,
        ),
        (
            "§6.3 PRIORITY of four bytes",
            frame(PRIORITY, 0, 1, &[0; 4]),
            SIZE,
        ),
        (
            "§6.4 RST_STREAM on stream 0",
            frame(RST_STREAM, 0, 0, &[0; 4]),
            PROTOCOL,
        ),
        (
            "§6.4 RST_STREAM of three bytes",
            [open(), frame(RST_STREAM, 0, 1, &[0; 3])].concat(),
            SIZE,
        ),
        (
            "§6.6 a client that pushes",
            frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]),
            PROTOCOL,
        ),
        (
            "§6.10 a header block in two parts",
            [
                frame(HEADERS, END_STREAM, 1, one),
                frame(CONTINUATION, END_HEADERS, 1, other),
            ]
            .concat(),
            Status(200),
        ),
        (
            "§6.10 a header block in three parts, one empty",
            [
                frame(HEADERS, END_STREAM, 1, one),
                frame(CONTINUATION, 0, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, other),
            ]
            .concat(),
            Status(200),
        ),
        (
            "§6.10 CONTINUATION without HEADERS",
            frame(CONTINUATION, END_HEADERS, 1, &[]),
            PROTOCOL,
        ),
        (
            "§6.10 CONTINUATION after a whole header block",
            [with(&[]), frame(CONTINUATION, END_HEADERS, 1, &[])].concat(),
            PROTOCOL,
        ),
        (
            "§6.10 CONTINUATION on stream 0",
            frame(CONTINUATION, END_HEADERS, 0, &[]),
            PROTOCOL,
        ),
    ])
    .await;
}

#[tokio::test]
async fn section_5_1_2_streams_over_the_limit_are_refused() {
    const MOST: u32 = 100;
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(
        "/x",
        respect::ok(&["cache-control: max-age=60"], "{}").behind(&gate),
    );
    let gateway = Gateway::with(&upstream, respect::ALL);
    let mut client = FrameClient::connect(gateway.public).await;
    let settings = client.next_of(SETTINGS).await.unwrap().payload;
    let settings: Vec<_> = settings.chunks(6).collect();
    for (id, value) in [(3, MOST), (4, 65_536), (6, 16_384)] {
        let setting = setting(id, value);
        assert!(settings.contains(&&*setting), "{id}: {settings:?}");
    }
    let all: Vec<u8> = (0..MOST + 50)
        .flat_map(|nth| request(nth * 2 + 1, "/x", &[]))
        .collect();
    client.send(&all).await;
    for nth in MOST..MOST + 50 {
        let outcome = client.outcome(nth * 2 + 1).await;
        assert_eq!(outcome, Outcome::Reset(REFUSED_STREAM), "{nth}");
    }
    gate.open();
    let outcome = client.outcome(1).await;
    assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
}
