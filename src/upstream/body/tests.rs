//! How long bodies are waited for, and the bounds on request bodies.

use futures_util::stream;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;

/// Reads a body of this many pieces of this many bytes, each sent after `every`
/// seconds. Returns its length, and the seconds that reading took.
async fn reads(pieces: usize, bytes: usize, every: u64) -> (Result<usize, Failure>, u64) {
    let began = Instant::now();
    let frames = stream::unfold(0, |sent| async move {
        sleep(Duration::from_secs(every)).await;
        let data = Bytes::from(vec![b'x'; bytes]);
        let frame = Ok::<_, BodyError>(Frame::data(data));
        (sent < pieces).then_some((frame, sent + 1))
    });
    let body = Box::pin(StreamBody::new(frames));
    let read = read(body, 1 << 30, Duration::from_secs(10)).await;
    let length = read.map(|whole| whole.len());
    (length, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn silent_bodies_are_given_up() {
    let stalled = Err(Failure::new(Reason::UpstreamBodyTimeout));
    for (name, (pieces, bytes, every), expected) in [
        ("at once", (100, 1 << 16, 0), (Ok(100 << 16), 0)),
        ("a byte every nine seconds", (20, 1, 9), (Ok(20), 189)),
        ("silent", (1, 1, 1000), (stalled.clone(), 10)),
        ("a burst, then silence", (1, 1 << 20, 11), (stalled, 10)),
    ] {
        let read = reads(pieces, bytes, every).await;
        assert_eq!(read, expected, "{name}");
    }
}

/// The longest request body here.
const MOST: u64 = 4096;

/// A body of these pieces, each sent after so many seconds.
fn body(pieces: &[(u64, usize)]) -> RequestBody {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let pieces = pieces.to_vec();
    tokio::spawn(async move {
        for (after, length) in pieces {
            sleep(Duration::from_secs(after)).await;
            let data = Bytes::from(vec![b'x'; length]);
            let _ = sender.send(Ok::<_, BodyError>(Frame::data(data)));
        }
    });
    let frames = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    BodyExt::boxed(StreamBody::new(frames))
}

async fn receive(
    uploads: &Arc<Uploads>,
    client: u32,
    pieces: &[(u64, usize)],
) -> Result<Bytes, Reason> {
    let mut fields = HeaderMap::new();
    fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    let client = Some(Client::V4(client));
    let received = uploads
        .receive(body(pieces), &mut fields, client, MOST)
        .await;
    if let Ok(body) = &received {
        assert_eq!(fields[CONTENT_LENGTH], body.len().to_string());
        assert!(!fields.contains_key(TRANSFER_ENCODING));
    }
    received.map_err(|failure| failure.reason)
}

#[tokio::test(start_paused = true)]
async fn bodies_are_bounded_in_size_and_time() {
    for (pieces, expected) in [
        (&[][..], Ok(0)),
        (&[(0, 4000), (9, 96)], Ok(4096)),
        (&[(0, 4000), (0, 97)], Err(Reason::RequestBodyTooLarge)),
        (&[(11, 1)], Err(Reason::RequestBodyTooSlow)),
        (&[(4, 1), (4, 1), (4, 1)], Err(Reason::RequestBodyTooSlow)),
        (&[(0, 4000), (11, 1)], Err(Reason::RequestBodyTooSlow)),
        (&[(1, 1), (8, 4000), (4, 1)], Ok(4002)),
    ] {
        let uploads = Arc::<Uploads>::default();
        let received = receive(&uploads, 1, pieces).await;
        assert_eq!(received.map(|body| body.len()), expected, "{pieces:?}");
        assert_eq!(uploads.buffered(), 0, "{pieces:?}");
    }
    let uploads = Arc::<Uploads>::default();
    let declared = Full::new(Bytes::from(vec![b'x'; 4097]));
    let declared = BodyExt::boxed(declared.map_err(|never| match never {}));
    let mut fields = HeaderMap::new();
    let received = uploads.receive(declared, &mut fields, None, MOST).await;
    let reason = received.err().map(|failure| failure.reason);
    assert_eq!(reason, Some(Reason::RequestBodyTooLarge), "at once");
}

#[tokio::test]
async fn no_client_takes_the_memory_of_others() {
    let uploads = Arc::<Uploads>::default();
    let whole = [(0, MOST as usize)];
    let mut held = Vec::new();
    for client in 0..8 {
        for _ in 0..2 {
            held.push(receive(&uploads, client, &whole).await.unwrap());
        }
        let third = receive(&uploads, client, &[(0, 1)]).await;
        assert_eq!(third, Err(Reason::RequestBodyNoRoom), "{client}");
    }
    let other = receive(&uploads, 9, &[(0, 1)]).await;
    assert_eq!(other, Err(Reason::RequestBodyNoRoom), "in all");
    assert_eq!(uploads.buffered(), 16 * MOST);
    drop(held);
    assert_eq!(uploads.buffered(), 0);
    assert!(receive(&uploads, 9, &whole).await.is_ok());
}
