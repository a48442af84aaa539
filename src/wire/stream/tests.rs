//! Readers of one body: order, ends, slow readers, wake-ups.

use std::future::poll_fn;

use http_body_util::BodyExt;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::wire::Body;

fn body(reader: BodyReader) -> Body {
    Body::Streamed(Box::new(reader))
}

fn now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll(&mut Context::from_waker(Waker::noop()))
}

/// What a reader gets without waiting: bytes, and whether it ended well.
fn take(reader: &mut BodyReader) -> (Vec<u8>, Option<Result<(), String>>) {
    let mut bytes = Vec::new();
    loop {
        match now(|cx| reader.poll(cx)) {
            Poll::Pending => return (bytes, None),
            Poll::Ready(None) => return (bytes, Some(Ok(()))),
            Poll::Ready(Some(Err(error))) => return (bytes, Some(Err(error.to_string()))),
            Poll::Ready(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
        }
    }
}

#[test]
fn a_late_reader_reads_from_the_beginning() {
    let stream = BodyStream::kept();
    let mut first = stream.reader(Some(4)).unwrap();
    stream.push("ab".into());
    assert_eq!(take(&mut first), (b"ab".to_vec(), None));
    let mut late = stream.reader(Some(4)).unwrap();
    stream.push("cd".into());
    stream.finish(None);
    assert_eq!(take(&mut first), (b"cd".to_vec(), Some(Ok(()))));
    assert_eq!(late.size_hint().exact(), Some(4));
    assert_eq!(take(&mut late), (b"abcd".to_vec(), Some(Ok(()))));
    assert_eq!(stream.whole().unwrap(), "abcd");
    assert!(late.is_end() && first.is_end());
}

#[test]
fn trailers_come_last_and_a_broken_body_is_an_error() {
    let stream = BodyStream::kept();
    let reader = stream.reader(None).unwrap();
    stream.push("a".into());
    let trailers =
        HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("\"t\""))]);
    stream.finish(Some(trailers.clone()));
    let collected = body(reader).collect();
    let Poll::Ready(Ok(collected)) = now(|cx| std::pin::pin!(collected).poll(cx)) else {
        panic!("it is all there");
    };
    assert_eq!(collected.trailers(), Some(&trailers));

    let stream = BodyStream::kept();
    let mut reader = stream.reader(None).unwrap();
    stream.push("a".into());
    stream.fail("it broke off");
    stream.finish(None);
    let broken = Some(Err("it broke off".to_owned()));
    assert_eq!(take(&mut reader), (b"a".to_vec(), broken));
    assert!(stream.reader(None).is_none());
}

#[test]
fn the_feeder_waits_for_the_fastest_reader_and_slow_ones_are_cut_off() {
    let stream = BodyStream::passing(4);
    let room = |ahead| now(|cx| stream.poll_room(cx, ahead));
    assert_eq!(room(2), Poll::Ready(Room::Deserted));
    let (mut fast, mut slow) = (stream.reader(None).unwrap(), stream.reader(None).unwrap());
    assert_eq!(room(2), Poll::Ready(Room::Free));
    stream.push("ab".into());
    assert_eq!(room(2), Poll::Pending);
    assert_eq!(take(&mut fast).0, b"ab");
    assert_eq!(room(2), Poll::Ready(Room::Free));
    stream.push("cd".into());
    assert!(now(|cx| stream.poll_together(cx)).is_pending());
    assert_eq!(take(&mut fast).0, b"cd");
    assert_eq!(stream.state().held, 4, "the slow reader still needs it");
    assert!(now(|cx| stream.poll_together(cx)).is_pending());
    stream.push("ef".into());
    assert_eq!(
        stream.state().held,
        2,
        "chunks that only the slow reader needed are dropped"
    );
    let (none, end) = take(&mut slow);
    assert!(none.is_empty() && matches!(end, Some(Err(_))));
    assert!(stream.reader(None).is_none(), "the beginning is gone");
    drop(slow);
    assert_eq!(take(&mut fast).0, b"ef");
    assert_eq!(stream.state().held, 0);
    assert!(stream.whole().is_none());
    drop(fast);
    assert_eq!(room(2), Poll::Ready(Room::Deserted));
    assert!(now(|cx| stream.poll_deserted(cx)).is_ready());
}

#[test]
fn a_reader_that_catches_up_is_not_cut_off() {
    let stream = BodyStream::passing(4);
    let together = || now(|cx| stream.poll_together(cx));
    let (mut fast, mut slow) = (stream.reader(None).unwrap(), stream.reader(None).unwrap());
    assert!(together().is_ready());
    for chunk in ["abcd", "efgh", "ijkl"] {
        stream.push(chunk.into());
        assert!(together().is_ready(), "neither is behind the other");
        assert_eq!(take(&mut fast).0, chunk.as_bytes());
        assert!(together().is_pending());
        assert_eq!(take(&mut slow).0, chunk.as_bytes());
        assert!(together().is_ready());
    }
    stream.push("mn".into());
    take(&mut fast);
    assert!(together().is_ready(), "there is room for more");
    stream.push("opq".into());
    take(&mut fast);
    assert!(together().is_pending());
    drop(fast);
    assert!(together().is_ready(), "no reader is ahead of it");
    assert_eq!(take(&mut slow).0, b"mnopq");
}

#[test]
fn a_reader_that_was_cut_off_does_not_keep_the_feeder_going() {
    let stream = BodyStream::passing(4);
    let room = || now(|cx| stream.poll_room(cx, 2));
    let (mut fast, mut slow) = (stream.reader(None).unwrap(), stream.reader(None).unwrap());
    for chunk in ["ab", "cd", "ef"] {
        stream.push(chunk.into());
        take(&mut fast);
    }
    assert!(stream.state().dropped > 0, "the slow one is cut off");
    assert!(now(|cx| stream.poll_deserted(cx)).is_pending());
    drop(fast);
    // The slow reader's client takes nothing, so it was not polled.
    assert_eq!(room(), Poll::Ready(Room::Deserted));
    assert!(now(|cx| stream.poll_deserted(cx)).is_ready());
    for _ in 0..100 {
        stream.push("gh".into());
    }
    assert!(stream.state().held <= 4, "{}", stream.state().held);
    let (none, end) = take(&mut slow);
    assert!(none.is_empty() && matches!(end, Some(Err(_))));
}

#[test]
fn a_kept_stream_continues_without_readers() {
    let stream = BodyStream::kept();
    drop(stream.reader(None));
    assert!(now(|cx| stream.poll_deserted(cx)).is_pending());
    stream.push("abcdef".into());
    let mut reader = stream.reader(None).unwrap();
    stream.bound(2);
    assert_eq!(take(&mut reader).0, b"abcdef", "no reader is ahead of it");
    drop(reader);
    assert!(now(|cx| stream.poll_deserted(cx)).is_ready());
}

#[tokio::test]
async fn a_waiting_feeder_and_reader_are_woken() {
    let stream = BodyStream::passing(4);
    let reader = stream.reader(None).unwrap();
    let all = tokio::spawn(body(reader).collect());
    for chunk in ["ab", "cd", "ef", "gh"] {
        poll_fn(|cx| stream.poll_room(cx, 2)).await;
        stream.push(chunk.into());
    }
    stream.finish(None);
    assert_eq!(all.await.unwrap().unwrap().to_bytes(), "abcdefgh");
    poll_fn(|cx| stream.poll_deserted(cx)).await;
}

proptest! {
    /// Whatever readers do, each sees the bytes in order from the first, and
    /// at most the bound and what the fastest has still to read is held.
    #[test]
    fn readers_see_every_byte_in_order(
        steps in proptest::collection::vec((0_usize..4, 0_u8..6), 1..200),
    ) {
        let stream = BodyStream::passing(20);
        let mut readers: Vec<(BodyReader, Vec<u8>, bool)> = (0..4)
            .map(|_| (stream.reader(None).unwrap(), Vec::new(), false))
            .collect();
        let mut sent = Vec::new();
        for (who, act) in steps {
            if act > 2 {
                if now(|cx| stream.poll_room(cx, 8)).is_ready() {
                    let chunk = vec![sent.len() as u8; usize::from(act)];
                    sent.extend_from_slice(&chunk);
                    stream.push(chunk.into());
                }
            } else {
                let (reader, seen, is_cut) = &mut readers[who];
                let (bytes, end) = take(reader);
                *is_cut |= end.is_some();
                seen.extend(bytes);
                prop_assert!(sent.starts_with(seen));
            }
            prop_assert!(stream.state().held <= 20 + 8 + 5);
        }
        stream.finish(None);
        for (reader, seen, is_cut) in &mut readers {
            let (rest, end) = take(reader);
            seen.extend(rest);
            prop_assert!(sent.starts_with(seen));
            if !*is_cut && end == Some(Ok(())) {
                prop_assert_eq!(&*seen, &sent);
            }
        }
        prop_assert!(readers.iter().any(|(_, seen, _)| *seen == sent), "the fastest");
    }
}
