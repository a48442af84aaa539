//! A body that is collected, and its reader.

use std::task::Waker;

use proptest::prelude::{Just, Strategy, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::clock::Clock;
use crate::connections::{Connections, OpenConnection};
use crate::identify::TrustedProxies;

/// What a reader gets without waiting: bytes, and whether it ended well.
fn take(reader: &mut BodyReader) -> (Vec<u8>, Option<Result<(), String>>) {
    let mut bytes = Vec::new();
    loop {
        match reader.poll(&mut Context::from_waker(Waker::noop())) {
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

fn source(text: &'static str) -> Source {
    let body = Full::new(Bytes::from_static(text.as_bytes()));
    body.map_err(|never| match never {}).boxed_unsync()
}

#[test]
fn a_broken_body_is_an_error() {
    let (mut collector, mut reader) = collect(None);
    assert!(collector.push("a".into()));
    drop(collector);
    let broken = Some(Err("the upstream's answer broke off".to_owned()));
    assert_eq!(take(&mut reader), (b"a".to_vec(), broken));
}

/// Also after the reader has left.
#[test]
fn what_is_collected_counts_until_its_end_and_ends_with_a_connection_that_is_closed() {
    let (mut collector, reader) = collect(None);
    let open = opened();
    let activity = open.activity();
    assert!(collector.push("ab".into()));
    collector.count_for(activity);
    assert_eq!(activity.unread(), 2 + HANDLES as u64);
    drop(reader);
    assert!(collector.push("c".into()));
    let held = 3 + 2 * HANDLES as u64;
    assert_eq!(activity.unread(), held);
    activity.close();
    assert!(!collector.push("d".into()));
    assert_eq!(
        activity.unread(),
        held,
        "what has made room is not entered again"
    );
    assert_eq!(collector.whole("e".into()), "abcde");
    drop(collector);
    assert_eq!(activity.unread(), 0);
}

/// A connection in a table of its own.
fn opened() -> OpenConnection {
    let table = Arc::<Connections>::default();
    let client = [10, 0, 0, 1].into();
    let opened = table.open(client, &TrustedProxies::default(), 1, &Clock::manual());
    opened.unwrap_or_else(|| panic!("there are no bounds"))
}

#[test]
fn a_body_counts_for_its_connection_until_its_last_chunk() {
    let (mut collector, mut reader) = collect(Some(6));
    let open = opened();
    let unread = || open.activity().unread();
    collector.count_for(open.activity());
    collector.push("abc".into());
    assert_eq!(take(&mut reader), (b"abc".to_vec(), None));
    collector.push("de".into());
    let held = 5 + 2 * HANDLES as u64;
    assert_eq!(unread(), held);
    assert_eq!(collector.whole("f".into()), "abcdef");
    assert_eq!(
        take(&mut reader),
        (b"de".to_vec(), None),
        "the last one waits"
    );
    collector.finish();
    assert_eq!(unread(), held);
    assert_eq!(take(&mut reader), (b"f".to_vec(), Some(Ok(()))));
    assert_eq!(unread(), 0);
}

/// How a body goes on.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u8),
    Read,
}

proptest! {
    /// However it is read, and whether it is stored or handed over, a reader sees every
    /// byte in order.
    #[test]
    fn a_reader_sees_every_byte_in_order(
        steps in proptest::collection::vec(
            prop_oneof![(1_u8..5).prop_map(Step::Push), Just(Step::Read)], 1..50),
        is_handed_over in proptest::bool::ANY,
    ) {
        let (mut collector, mut reader) = collect(None);
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Push(length) => {
                    let chunk = vec![sent.len() as u8; usize::from(length)];
                    sent.extend_from_slice(&chunk);
                    collector.push(chunk.into());
                }
                Step::Read => seen.extend(take(&mut reader).0),
            }
        }
        sent.extend_from_slice(b"rest");
        match is_handed_over {
            true => collector.hand_over(source("rest")),
            false => {
                prop_assert_eq!(collector.whole("rest".into()), &sent[..]);
                collector.finish();
            }
        }
        let (rest, end) = take(&mut reader);
        seen.extend(rest);
        prop_assert_eq!((seen, end), (sent, Some(Ok(()))));
    }
}
