//! A body on its way from the upstream to one client or several: what has come
//! of it, and how far each client has taken it.
//!
//! One side feeds a [`Stream`], at the pace of its fastest reader or, where all
//! of it is kept, at its own. [`Reader`]s are the bodies of clients' answers.
//! A reader that falls too far behind another is cut off: a slow client does
//! not slow down others for long, and does not make the stream hold more.
//!
//! Invariants: a reader sees every byte from the first, in order, or an error;
//! a stream that is not kept holds no more than a bound; when the last reader
//! of such a stream has gone or was cut off, the feeding side learns of it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::activity::{Activity, AnswerGuard};
use super::body::BodyError;

/// A body on its way.
pub struct Stream {
    state: Mutex<State>,
}

struct State {
    /// What has come and is still held, oldest first.
    chunks: VecDeque<Bytes>,
    /// How many chunks came before those.
    dropped: usize,
    /// Bytes of the chunks that are held.
    held: u64,
    /// Bytes that may be held; all of them where there is no bound.
    most: Option<u64>,
    end: Option<End>,
    readers: HashMap<u64, Position>,
    /// The next reader's number.
    next: u64,
    feeder: Option<Waker>,
}

/// How a body ends.
#[derive(Clone)]
enum End {
    Whole(Option<HeaderMap>),
    Broken(&'static str),
}

/// How far a reader has come.
struct Position {
    /// Chunks taken, those that were dropped among them.
    taken: usize,
    /// Wakes whoever polled it last.
    waker: Option<Waker>,
    /// Whether that waits for more.
    waits: bool,
    /// Its connection, which learns how much is held for it.
    pulse: Option<Arc<Activity>>,
}

/// Whether a stream takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It does.
    Free,
    /// Nobody reads it any more, and nothing of it is to be kept.
    Deserted,
}

impl Stream {
    /// A stream of which everything is held, until [`bound`](Self::bound) says
    /// otherwise.
    pub fn kept() -> Arc<Self> {
        Self::new(None)
    }

    /// A stream of which about so many bytes are held at the most.
    pub fn passing(most: u64) -> Arc<Self> {
        Self::new(Some(most))
    }

    fn new(most: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                dropped: 0,
                held: 0,
                most,
                end: None,
                readers: HashMap::new(),
                next: 0,
                feeder: None,
            }),
        })
    }

    /// Holds no more than about so many bytes from now on: a reader that is
    /// further behind the fastest is cut off.
    pub fn bound(&self, most: u64) {
        self.state().most = Some(most);
    }

    /// Adds what has come.
    pub fn push(&self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let mut state = self.state();
        state.cut_off();
        state.held += chunk.len() as u64;
        state.chunks.push_back(chunk);
        state.trim();
        self.tell_backlog(&state);
        state.wake_waiting();
    }

    /// The body has come whole.
    pub fn finish(&self, trailers: Option<HeaderMap>) {
        self.end(End::Whole(trailers));
    }

    /// The body has ended before its end: readers get an error, so that their
    /// clients' connections end and no one takes it for whole.
    pub fn fail(&self, why: &'static str) {
        self.end(End::Broken(why));
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        // Those as well whose clients read no more: all that is held for them
        // has come now, and counts.
        for reader in state.readers.values_mut() {
            reader.wake();
        }
    }

    /// Tells the readers' connections how much is held for them.
    fn tell_backlog(&self, state: &State) {
        for reader in state.readers.values() {
            if let Some(pulse) = &reader.pulse {
                pulse.set_backlog(std::ptr::from_ref(self).addr(), state.held);
            }
        }
    }

    /// All that has come; `None` where some of it is held no more.
    pub fn whole(&self) -> Option<Bytes> {
        let state = self.state();
        if state.dropped > 0 {
            return None;
        }
        let length = usize::try_from(state.held).unwrap_or(0);
        let mut whole = Vec::with_capacity(length);
        for chunk in &state.chunks {
            whole.extend_from_slice(chunk);
        }
        Some(whole.into())
    }

    /// Waits until the fastest reader has less than `ahead` bytes before it, or
    /// all of them are gone. Where everything is held there is always room.
    pub fn poll_room(&self, cx: &mut Context<'_>, ahead: u64) -> Poll<Room> {
        let mut state = self.state();
        if state.most.is_none() {
            return Poll::Ready(Room::Free);
        }
        let Some(fastest) = state.positions().max() else {
            return Poll::Ready(Room::Deserted);
        };
        let unread = state.chunks.iter().skip(fastest - state.dropped);
        if unread.map(|chunk| chunk.len() as u64).sum::<u64>() < ahead {
            return Poll::Ready(Room::Free);
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until no reader is so far behind another that it would be cut off by
    /// what comes next.
    pub fn poll_together(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let is_full = state.most.is_some_and(|most| state.held >= most);
        if !is_full || state.positions().min() == state.positions().max() {
            return Poll::Ready(());
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until nobody reads it any more; for ever where all of it is kept.
    pub fn poll_deserted(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.most.is_some() && state.positions().next().is_none() {
            return Poll::Ready(());
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Reads it from its beginning; `None` where that is held no more, or the
    /// body is broken. `length` is the length that the body is to have.
    pub fn reader(self: &Arc<Self>, length: Option<u64>) -> Option<Reader> {
        let mut state = self.state();
        let broken = matches!(state.end, Some(End::Broken(_)));
        if state.dropped > 0 || broken {
            return None;
        }
        let number = state.next;
        state.next += 1;
        let position = Position {
            taken: 0,
            waker: None,
            waits: false,
            pulse: None,
        };
        state.readers.insert(number, position);
        let length = match state.end {
            Some(_) => Some(state.held),
            None => length,
        };
        drop(state);
        Some(Reader {
            stream: self.clone(),
            number,
            left: length,
            ended: false,
            working: None,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole after each of its operations.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Chunks that each reader has taken. Those that were cut off do not count:
    /// what they want next is held no more.
    fn positions(&self) -> impl Iterator<Item = usize> {
        let readers = self.readers.values().map(|reader| reader.taken);
        readers.filter(|taken| *taken >= self.dropped)
    }

    /// Lets go of what is over the bound since a reader is behind others, before
    /// more comes. Such a reader is cut off.
    fn cut_off(&mut self) {
        let Some((most, fastest)) = self.most.zip(self.positions().max()) else {
            return;
        };
        while self.held >= most && self.dropped < fastest {
            self.drop_oldest();
        }
        let dropped = self.dropped;
        let behind = self.readers.values_mut();
        for reader in behind.filter(|reader| reader.taken < dropped) {
            reader.wake();
        }
    }

    /// Lets go of what all readers have taken.
    fn trim(&mut self) {
        if self.most.is_none() {
            return;
        }
        let slowest = match self.positions().min() {
            Some(slowest) => slowest,
            // Nobody is there yet.
            None if self.dropped == 0 => return,
            // Without its beginning nobody can read it any more.
            None => self.dropped + self.chunks.len(),
        };
        while self.dropped < slowest && !self.chunks.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.held -= chunk.len() as u64;
            self.dropped += 1;
        }
    }

    /// Wakes those who wait for more.
    fn wake_waiting(&mut self) {
        for reader in self.readers.values_mut().filter(|reader| reader.waits) {
            reader.wake();
        }
    }
}

impl Position {
    fn wake(&mut self) {
        self.waits = false;
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// The body of one client's answer.
pub struct Reader {
    stream: Arc<Stream>,
    number: u64,
    /// Bytes that are yet to come, where that is known.
    left: Option<u64>,
    ended: bool,
    working: Option<AnswerGuard>,
}

impl Reader {
    /// Belongs to this connection from now on, which is busy until the body has
    /// ended.
    pub fn serve(&mut self, pulse: &Arc<Activity>) {
        self.working = Some(pulse.begin_answer());
        let mut state = self.stream.state();
        if let Some(reader) = state.readers.get_mut(&self.number) {
            reader.pulse = Some(pulse.clone());
        }
        self.stream.tell_backlog(&state);
    }

    /// The next frame.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut state = self.stream.state();
        let state = &mut *state;
        let Some(reader) = state.readers.get_mut(&self.number) else {
            return Poll::Ready(None);
        };
        let waker = reader.waker.get_or_insert_with(|| cx.waker().clone());
        waker.clone_from(cx.waker());
        let Some(at) = reader.taken.checked_sub(state.dropped) else {
            self.ended = true;
            return Poll::Ready(Some(Err(
                "the client was too far behind others that read the same answer".into(),
            )));
        };
        if let Some(chunk) = state.chunks.get(at).cloned() {
            reader.taken += 1;
            state.trim();
            wake(&mut state.feeder);
            self.left = self
                .left
                .map(|left| left.saturating_sub(chunk.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match &state.end {
            None => {
                reader.waits = true;
                Poll::Pending
            }
            Some(End::Whole(trailers)) => {
                self.ended = true;
                let trailers = trailers.clone().map(Frame::trailers);
                Poll::Ready(trailers.map(Ok))
            }
            Some(End::Broken(why)) => {
                self.ended = true;
                Poll::Ready(Some(Err((*why).into())))
            }
        }
    }

    /// Whether nothing more comes.
    pub(super) fn is_end(&self) -> bool {
        let state = self.stream.state();
        let at = state.readers.get(&self.number).map(|reader| reader.taken);
        let has_all = at.is_some_and(|at| at == state.dropped + state.chunks.len());
        self.ended || has_all && matches!(state.end, Some(End::Whole(None)))
    }

    /// How long the rest is, as far as that is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.stream.state();
        let gone = state.readers.remove(&self.number);
        if let Some(pulse) = gone.and_then(|gone| gone.pulse) {
            pulse.set_backlog(0, 0);
        }
        state.trim();
        wake(&mut state.feeder);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::BodyExt;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::wire::Body;

    fn body(reader: Reader) -> Body {
        Body::Streamed(Box::new(reader))
    }

    fn now<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        poll(&mut Context::from_waker(Waker::noop()))
    }

    /// What a reader gets without waiting: bytes, and whether it ended well.
    fn take(reader: &mut Reader) -> (Vec<u8>, Option<Result<(), String>>) {
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
    fn who_joins_late_reads_from_the_beginning() {
        let stream = Stream::kept();
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
        let stream = Stream::kept();
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

        let stream = Stream::kept();
        let mut reader = stream.reader(None).unwrap();
        stream.push("a".into());
        stream.fail("it broke off");
        stream.finish(None);
        let broken = Some(Err("it broke off".to_owned()));
        assert_eq!(take(&mut reader), (b"a".to_vec(), broken));
        assert!(stream.reader(None).is_none());
    }

    #[test]
    fn the_feeder_waits_for_the_fastest_and_slow_ones_are_cut_off() {
        let stream = Stream::passing(4);
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
        assert_eq!(stream.state().held, 4, "the slow one may still want it");
        assert!(now(|cx| stream.poll_together(cx)).is_pending());
        stream.push("ef".into());
        assert_eq!(stream.state().held, 2, "what only it wanted is let go");
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
    fn a_reader_that_comes_nearer_is_not_cut_off() {
        let stream = Stream::passing(4);
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
        assert!(together().is_ready(), "nobody is before it");
        assert_eq!(take(&mut slow).0, b"mnopq");
    }

    #[test]
    fn a_reader_that_was_cut_off_keeps_nothing_going() {
        let stream = Stream::passing(4);
        let room = || now(|cx| stream.poll_room(cx, 2));
        let (mut fast, mut slow) = (stream.reader(None).unwrap(), stream.reader(None).unwrap());
        for chunk in ["ab", "cd", "ef"] {
            stream.push(chunk.into());
            take(&mut fast);
        }
        assert!(stream.state().dropped > 0, "the slow one is cut off");
        assert!(now(|cx| stream.poll_deserted(cx)).is_pending());
        drop(fast);
        // It has not learned of it, since its client takes nothing.
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
    fn what_is_kept_is_kept_without_readers() {
        let stream = Stream::kept();
        drop(stream.reader(None));
        assert!(now(|cx| stream.poll_deserted(cx)).is_pending());
        stream.push("abcdef".into());
        let mut reader = stream.reader(None).unwrap();
        stream.bound(2);
        assert_eq!(take(&mut reader).0, b"abcdef", "nobody is before it");
        drop(reader);
        assert!(now(|cx| stream.poll_deserted(cx)).is_ready());
    }

    #[tokio::test]
    async fn whoever_waits_is_woken() {
        let stream = Stream::passing(4);
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
        /// Whatever readers do, each sees the bytes in order from the first,
        /// and no more is held than the bound and what the fastest has before
        /// it.
        #[test]
        fn readers_see_every_byte_in_order(
            steps in proptest::collection::vec((0_usize..4, 0_u8..6), 1..200),
        ) {
            let stream = Stream::passing(20);
            let mut readers: Vec<(Reader, Vec<u8>, bool)> = (0..4)
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
}
