//! Keys in bodies and fields, however they are split.

use std::collections::VecDeque;
use std::task::Waker;

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;

const KEY: &str = "s3s3cret-Key";

fn keys(list: &str) -> Vec<ApiKey> {
    ApiKey::list(list).unwrap()
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

/// What is handed on, trailers, and whether it ended well. The length that is
/// announced before each frame must be the true one.
fn read(mut body: SearchedBody<Frames>) -> (Vec<u8>, Option<HeaderMap>, bool) {
    let (mut data, mut trailers, mut announced) = (Vec::new(), None, Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    let ended_well = loop {
        announced.push(data.len() as u64 + body.size_hint().exact().unwrap());
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
                assert_eq!(Failure::of_body(&error), withheld());
                assert!(body.is_end_stream());
                break false;
            }
        }
    };
    if ended_well {
        assert!(
            announced
                .iter()
                .all(|announced| *announced == data.len() as u64)
        );
    }
    (data, trailers, ended_well)
}

fn searched(body: &[u8], sizes: &[usize]) -> (Vec<u8>, bool) {
    let (mut rest, mut parts) = (body, Vec::new());
    for size in sizes {
        let (part, behind) = rest.split_at((*size).min(rest.len()));
        parts.push(part);
        rest = behind;
    }
    parts.push(rest);
    let body = SearchedBody::of(Frames::of(parts), &keys(KEY));
    let (data, _, ended_well) = read(body);
    (data, ended_well)
}

#[test]
fn a_key_is_found_however_it_is_split() {
    for before in ["", "x", "s3", "s3s3cret-Ke", "a longer text s3s"] {
        for after in ["", "s", "and more of it"] {
            let body = format!("{before}{KEY}{after}");
            let body = body.as_bytes();
            for one in 0..body.len() {
                for two in 0..body.len() - one {
                    let (data, ended_well) = searched(body, &[one, two]);
                    assert!(!ended_well, "{before} {after} {one} {two}");
                    assert!(data.len() <= before.len(), "no byte of it is handed on");
                    assert!(body.starts_with(&data));
                }
            }
            let (data, ended_well) = searched(body, &vec![1; body.len()]);
            assert!(!ended_well && data.len() <= before.len());
        }
    }
}

#[test]
fn what_only_begins_like_a_key_passes() {
    for body in ["", "s", "s3s3cret-Ke", "s3s3cret-key", "s3s3s3s3cret-", "x"] {
        for size in 1..=body.len().max(1) {
            let (data, ended_well) = searched(body.as_bytes(), &vec![size; body.len()]);
            assert!(ended_well);
            assert_eq!(data, body.as_bytes(), "in frames of {size}");
        }
    }
}

#[test]
fn what_may_be_the_beginning_of_a_key_is_held_back_and_no_more() {
    let frames = Frames::of([b"one s3s3cr".as_slice(), b"et-other", b"two\n"]);
    let mut body = SearchedBody::of(frames, &keys(KEY));
    let mut cx = Context::from_waker(Waker::noop());
    let mut next = || match Pin::new(&mut body).poll_frame(&mut cx) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap(),
        other @ (Poll::Ready(_) | Poll::Pending) => panic!("{other:?}"),
    };
    assert_eq!(next(), "one ");
    assert_eq!(next(), "s3s3cret-other");
    assert_eq!(next(), "two\n", "an event's end is sent at once");
}

#[test]
fn trailers_are_searched() {
    let trailers = |name: &str, value: &str| {
        let name: HeaderName = name.parse().unwrap();
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    };
    for (name, value, passes) in [
        ("x-any", "value", true),
        ("x-any", "the s3s3cret-Key of all", false),
        ("x-s3s3cret-Key", "value", false),
        ("x-s3s3cret-Ke", "s3s3cret-Ke", true),
    ] {
        let mut frames = Frames::of([b"body s3s3".as_slice()]);
        let fields = trailers(name, value);
        frames.0.push_back(Frame::trailers(fields.clone()));
        let (data, found, ended_well) = read(SearchedBody::of(frames, &keys(KEY)));
        assert_eq!(ended_well, passes, "{name}: {value}");
        match passes {
            true => assert_eq!((&*data, found), (&b"body s3s3"[..], Some(fields))),
            false => assert_eq!((&*data, found), (&b"body "[..], None)),
        }
    }
}

#[test]
fn fields_are_searched() {
    let keys = keys("s3cret/Va\"l&ue,another-key");
    let patterns: KeyPatterns = keys.iter().flat_map(ApiKey::patterns).collect();
    for (name, value, passes) in [
        ("x-any", "value", true),
        ("x-any", "s3cret/Va\"l&ue", false),
        ("x-any", "{\"key\":\"s3cret/Va\\\"l&ue\"}", false),
        ("x-any", "s3cret\\/Va\\\"l&ue", false),
        ("x-any", "s3cret/Va\\\"l\\u0026ue", false),
        ("location", "/?key=s3cret%2FVa%22l%26ue", false),
        ("location", "/?key=s3cret%2fVa%22l%26ue", false),
        ("x-any", "s3cret/Va&quot;l&amp;ue", false),
        ("x-any", "s3cret/Va&#34;l&amp;ue", false),
        ("Another-KEY", "", false),
        ("x-another-key-x", "", false),
        ("x-any", "ANOTHER-KEY", true),
    ] {
        let name: HeaderName = name.parse().unwrap();
        let fields = HeaderMap::from_iter([(name, value.parse().unwrap())]);
        let found = search_fields(&patterns, &fields, Moment::default());
        assert_eq!(found.is_ok(), passes, "{fields:?}");
        assert_eq!(
            search_fields(&KeyPatterns::default(), &fields, Moment::default()),
            Ok(())
        );
    }
}

#[test]
fn codings_that_hide_a_key() {
    for (values, coded) in [
        (&[][..], false),
        (&["identity"], false),
        (&["Identity, ,identity"], false),
        (&["gzip"], true),
        (&["identity", "br"], true),
        (&["identity,x-own"], true),
    ] {
        let values = values.iter().map(|value| value.parse().unwrap());
        let fields = HeaderMap::from_iter(values.map(|value| (CONTENT_ENCODING, value)));
        assert_eq!(is_coded(&fields), coded, "{fields:?}");
    }
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
        let (data, ended_well) = searched(&body, &sizes);
        prop_assert_eq!(ended_well, at.is_none());
        match at {
            None => prop_assert_eq!(data, body),
            Some(at) => prop_assert!(data.len() <= at && body.starts_with(&data)),
        }
    }
}
