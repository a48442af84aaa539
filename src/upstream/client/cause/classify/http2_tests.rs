//! The failure of each way in which an HTTP/2 stream ends, as hyper reports it, and
//! whether the server has caused it.

use std::time::Duration;

use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::upstream::client::no_body;

const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, 0, 0, 0, 0, stream], payload].concat()
}

fn reset(code: u8) -> Vec<u8> {
    frame(RST_STREAM, 1, &[0, 0, 0, code])
}

fn goaway(last: u8, code: u8) -> Vec<u8> {
    frame(GOAWAY, 0, &[0, 0, 0, last, 0, 0, 0, code])
}

/// Sends these bytes after the first request, then closes the connection or keeps it
/// open.
async fn serve(mut wire: DuplexStream, sends: Vec<u8>, closes: bool) {
    let mut read = vec![0; 4096];
    let mut received = Vec::new();
    // The client's preface, and the head of its first request.
    while !received.windows(4).any(|four| four == [1, 5, 0, 0]) {
        let length = wire.read(&mut read).await.unwrap();
        received.extend_from_slice(&read[..length]);
        if received.len() == length {
            wire.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
        }
    }
    wire.write_all(&sends).await.unwrap();
    if !closes {
        while wire.read(&mut read).await.is_ok_and(|length| length > 0) {}
    }
}

async fn failed(sends: Vec<u8>, closes: bool) -> hyper::Error {
    let (ours, theirs) = duplex(1 << 16);
    let server = tokio::spawn(serve(theirs, sends, closes));
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(5));
    let (mut sender, connection) = client.handshake(TokioIo::new(ours)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::new(no_body());
    *request.uri_mut() = "http://a.example/".parse().unwrap();
    let error = sender.send_request(request).await.unwrap_err();
    drop(sender);
    server.abort();
    connection.abort();
    error
}

#[tokio::test(start_paused = true)]
async fn each_end_has_its_failure_and_its_kind() {
    use Failure::{NotProcessed, Terminated};
    const CALM: &str = "enhance_your_calm";
    const RESET: &str = "connection_reset";
    // What the server sends, whether it closes the connection then; the failure and
    // its kind, whether it is of the one stream, whether the server has caused it.
    let rows = [
        (reset(7), false, NotProcessed, "refused_stream", true, true),
        (reset(2), false, Terminated, "stream_reset", true, true),
        (reset(11), false, Terminated, CALM, true, true),
        (goaway(0, 0), false, NotProcessed, "goaway", true, true),
        (goaway(0, 2), false, NotProcessed, "goaway", true, true),
        (goaway(0, 11), false, Terminated, CALM, false, true),
        // It was perhaps processed.
        (goaway(1, 0), true, Terminated, RESET, false, false),
        (vec![], true, Terminated, RESET, false, false),
        (vec![], false, Terminated, "ping_timeout", false, false),
        // A frame of data that was not requested.
        (
            frame(0, 0, b"x"),
            false,
            Terminated,
            "malformed_frames",
            false,
            false,
        ),
    ];
    for (sends, closes, failure, kind, of_stream, _) in rows {
        let error = failed(sends, closes).await;
        let name = format!("{kind}: {error:?}");
        let found = exchange(&error, false);
        assert_eq!(found, (failure, kind), "{name}");
        assert_eq!(is_of_stream(&error), of_stream, "{name}");
    }
}
