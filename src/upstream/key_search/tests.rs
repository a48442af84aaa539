//! Keys in bodies and fields, however they are split.

use std::collections::VecDeque;
use std::task::Waker;

use http::{HeaderName, HeaderValue};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

const KEY: &str = "s3s3cret-Key";

fn searched(body: Frames) -> SearchedBody {
    let keys = ApiKey::list(KEY).unwrap();
    SearchedBody::new(body.boxed_unsync(), keys.into(), Moment::default())
}

/// A body that comes in these frames.
struct Frames(VecDeque<Frame<Bytes>>);

impl Frames {
    fn of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Self {
        let frames = parts.into_iter().map(Bytes::copy_from_slice);
        Self(frames.map(Frame::data).collect())
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.0.iter().filter_map(Frame::data_ref);
        SizeHint::with_exact(data.map(|data| data.len() as u64).sum())
    }
}

/// What is handed on, trailers, and whether it ended well. A length that is announced
/// must be the true one, and is announced at first.
fn read(frames: Frames) -> (Vec<u8>, Option<HeaderMap>, bool) {
    let mut body = searched(frames);
    let (mut data, mut trailers, mut announced) = (Vec::new(), None, Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    let ended_well = loop {
        let rest = body.size_hint().exact();
        announced.push(rest.map(|rest| rest + data.len() as u64));
        let has_ended = body.is_end_stream();
        let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else {
            panic!("nothing is waited for");
        };
        assert!(!has_ended || frame.is_none(), "it was reported as ended");
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None => break true,
            Some(Ok(Ok(bytes))) => {
                assert!(!bytes.is_empty());
                assert_eq!(trailers, None, "trailers come last");
                data.extend_from_slice(&bytes);
            }
            Some(Ok(Err(frame))) => trailers = frame.into_trailers().ok(),
            Some(Err(error)) => {
                assert_eq!(
                    Failure::of_body(&error),
                    Failure::new(Reason::AnswerWithheld)
                );
                break false;
            }
        }
    };
    if ended_well {
        let length = data.len() as u64;
        assert_eq!(announced[0], Some(length));
        assert!(announced.into_iter().flatten().all(|rest| rest == length));
    }
    (data, trailers, ended_well)
}

proptest! {
    /// Nothing of a key is handed on, and nothing but a key stops a body, for
    /// texts in which keys and their beginnings are frequent.
    #[test]
    fn nothing_but_a_key_stops_a_body(
        parts in proptest::collection::vec(0_usize..KEY.len() + 3, 0..12),
        sizes in proptest::collection::vec(0_usize..9, 0..40),
        byte in any::<u8>(),
    ) {
        let mut body = Vec::new();
        for part in parts {
            match part {
                0 => body.push(byte),
                part => body.extend_from_slice(&KEY.as_bytes()[..part.min(KEY.len())]),
            }
        }
        let at = body.windows(KEY.len()).position(|part| part == KEY.as_bytes());
        let (mut rest, mut frames) = (&*body, Vec::new());
        for size in sizes {
            let (part, behind) = rest.split_at(size.min(rest.len()));
            frames.push(part);
            rest = behind;
        }
        frames.push(rest);
        let (data, _, ended_well) = read(Frames::of(frames));
        prop_assert_eq!(ended_well, at.is_none());
        match at {
            None => prop_assert_eq!(data, body),
            Some(at) => prop_assert!(data.len() <= at && body.starts_with(&data)),
        }
    }
}

#[test]
fn what_is_held_back_does_not_depend_on_the_keys() {
    let long = "x".repeat(1000);
    for (text, held) in [
        (" s3s3cret", 8),
        (" s3s3creT", 8),
        (" {\"a\":[\"/+%&~", 12),
        ("data: s3s3cret-Ke\n\n", 0),
        ("\u{e9}", 0),
        (&long, 255),
    ] {
        assert_eq!(held_back(text.as_bytes()).len(), held, "{text}");
        let mut body = searched(Frames::of([text.as_bytes()]));
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(first))) = Pin::new(&mut body).poll_frame(&mut cx) else {
            panic!("nothing is waited for");
        };
        let passed = match text.len() - held {
            0 => text.len(),
            passed => passed,
        };
        assert_eq!(first.into_data().unwrap().len(), passed, "{text}");
    }
}

#[test]
fn fields_and_trailers_are_searched() {
    for (name, value, passes) in [
        ("x-any", "value", true),
        ("x-any", "the s3s3cret-Key of all", false),
        ("x-any", "S3S3CRET-KEY", true),
        ("x-s3s3cret-Key-x", "value", false),
        ("S3s3cret-KEY", "", false),
        ("x-s3s3cret-Ke", "s3s3cret-Ke", true),
    ] {
        let name: HeaderName = name.parse().unwrap();
        let value: HeaderValue = value.parse().unwrap();
        let fields = HeaderMap::from_iter([(name, value)]);
        let key = &ApiKey::list(KEY).unwrap()[0];
        assert_eq!(has(&fields, key), !passes, "{fields:?}");

        let mut frames = Frames::of([b"body s3s3".as_slice()]);
        frames.0.push_back(Frame::trailers(fields.clone()));
        let (data, trailers, ended_well) = read(frames);
        assert_eq!(ended_well, passes, "{fields:?}");
        match passes {
            true => assert_eq!((&*data, trailers), (&b"body s3s3"[..], Some(fields))),
            false => assert_eq!((&*data, trailers), (&b"body "[..], None)),
        }
    }
}
