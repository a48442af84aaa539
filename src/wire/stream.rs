//! A response body that is sent to one client or several while it arrives from
//! the upstream.
//!
//! The feeder pushes chunks into a [`BodyStream`]: at the pace of its fastest
//! reader, or at its own pace where the whole body is kept. [`BodyReader`]s are
//! the bodies of the clients' responses. A reader that falls too far behind
//! another is cut off, so a slow client does not slow down others for long and
//! does not increase the memory held.
//!
//! Invariants: a reader sees every byte from the first, in order, or an error; a
//! stream that is not kept holds a bounded number of bytes; the feeder is woken
//! when the last reader of such a stream is gone or cut off.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

use super::activity::{Activity, AnswerGuard};
use super::body::BodyError;
use crate::sync::lock;

/// A body in transfer.
pub struct BodyStream {
    state: Mutex<State>,
}

struct State {
    /// The chunks that are still held, oldest first.
    chunks: VecDeque<Bytes>,
    /// How many earlier chunks were dropped.
    dropped: usize,
    /// The bytes of the chunks held.
    held: u64,
    /// The most bytes that may be held; `None` without bound.
    max: Option<u64>,
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

/// How far a reader has read.
struct Position {
    /// How many chunks it has taken since the beginning.
    taken: usize,
    /// Wakes the task that polled it last.
    waker: Option<Waker>,
    /// Whether that task waits for more.
    waits: bool,
    /// Its connection, which is told how many bytes are held for it.
    activity: Option<Arc<Activity>>,
}

/// Whether a stream has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// More may be pushed.
    Free,
    /// It has no reader any more, and is not kept.
    Deserted,
}

impl BodyStream {
    /// A stream that keeps every byte, until [`bound`](Self::bound) is called.
    pub fn kept() -> Arc<Self> {
        Self::new(None)
    }

    /// A stream that holds about `max` bytes at most.
    pub fn passing(max: u64) -> Arc<Self> {
        Self::new(Some(max))
    }

    fn new(max: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                dropped: 0,
                held: 0,
                max,
                end: None,
                readers: HashMap::new(),
                next: 0,
                feeder: None,
            }),
        })
    }

    /// Holds about `max` bytes at most from now on. A reader that is further
    /// behind the fastest is cut off.
    pub fn bound(&self, max: u64) {
        self.state().max = Some(max);
    }

    /// Adds a chunk.
    pub fn push(&self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let mut state = self.state();
        state.cut_off();
        state.held += chunk.len() as u64;
        state.chunks.push_back(chunk);
        state.trim();
        self.report_backlog(&state);
        state.wake_waiting();
    }

    /// Ends the body: it is complete.
    pub fn finish(&self, trailers: Option<HeaderMap>) {
        self.end(End::Whole(trailers));
    }

    /// Breaks the body off. Readers get an error, so that their clients'
    /// connections end and no client takes the body for complete.
    pub fn fail(&self, why: &'static str) {
        self.end(End::Broken(why));
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        // Also readers whose clients do not read: the backlog is final now, and
        // counts.
        for reader in state.readers.values_mut() {
            reader.wake();
        }
    }

    /// Reports to the readers' connections how many bytes are held for them.
    fn report_backlog(&self, state: &State) {
        for reader in state.readers.values() {
            if let Some(activity) = &reader.activity {
                activity.set_backlog(std::ptr::from_ref(self).addr(), state.held);
            }
        }
    }

    /// The address that identifies it, and how many bytes it holds.
    pub(crate) fn held(&self) -> (usize, u64) {
        (std::ptr::from_ref(self).addr(), self.state().held)
    }

    /// The body so far; `None` if part of it was dropped.
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

    /// Waits until the fastest reader has less than `ahead` bytes to read, or all
    /// readers are gone. A stream that is kept always has room.
    pub fn poll_room(&self, cx: &mut Context<'_>, ahead: u64) -> Poll<Room> {
        let mut state = self.state();
        if state.max.is_none() {
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

    /// Waits until no reader would be cut off by the next chunk.
    pub fn poll_together(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let is_full = state.max.is_some_and(|max| state.held >= max);
        if !is_full || state.positions().min() == state.positions().max() {
            return Poll::Ready(());
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until there is no reader any more; for ever if the stream is kept.
    pub fn poll_deserted(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.max.is_some() && state.positions().next().is_none() {
            return Poll::Ready(());
        }
        state.feeder = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Adds a reader, which reads from the beginning. `None` if the beginning was
    /// dropped or the body is broken. `length` is the announced length.
    pub fn reader(self: &Arc<Self>, length: Option<u64>) -> Option<BodyReader> {
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
            activity: None,
        };
        state.readers.insert(number, position);
        let length = match state.end {
            Some(_) => Some(state.held),
            None => length,
        };
        drop(state);
        Some(BodyReader {
            stream: self.clone(),
            number,
            left: length,
            ended: false,
            guard: None,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// How many chunks each reader has taken, without the readers that were cut
    /// off.
    fn positions(&self) -> impl Iterator<Item = usize> {
        let readers = self.readers.values().map(|reader| reader.taken);
        readers.filter(|taken| *taken >= self.dropped)
    }

    /// Drops chunks beyond the bound that only slower readers still need, before
    /// another chunk is added. Those readers are cut off.
    fn cut_off(&mut self) {
        let Some((max, fastest)) = self.max.zip(self.positions().max()) else {
            return;
        };
        while self.held >= max && self.dropped < fastest {
            self.drop_oldest();
        }
        let dropped = self.dropped;
        let behind = self.readers.values_mut();
        for reader in behind.filter(|reader| reader.taken < dropped) {
            reader.wake();
        }
    }

    /// Drops the chunks that all readers have taken.
    fn trim(&mut self) {
        if self.max.is_none() {
            return;
        }
        let slowest = match self.positions().min() {
            Some(slowest) => slowest,
            // No reader has come yet.
            None if self.dropped == 0 => return,
            // Without its beginning, no new reader can come.
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

    /// Wakes the readers that wait for more.
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

/// The body of one client's response.
pub struct BodyReader {
    stream: Arc<BodyStream>,
    number: u64,
    /// The bytes still to come, where that is known.
    left: Option<u64>,
    ended: bool,
    guard: Option<AnswerGuard>,
}

impl BodyReader {
    /// The stream that it reads.
    pub(crate) fn stream(&self) -> &Arc<BodyStream> {
        &self.stream
    }

    /// Assigns the body to a connection, which is busy until the body has ended.
    pub(crate) fn serve(&mut self, activity: &Arc<Activity>) {
        self.guard = Some(activity.begin_answer());
        let mut state = self.stream.state();
        if let Some(reader) = state.readers.get_mut(&self.number) {
            reader.activity = Some(activity.clone());
        }
        self.stream.report_backlog(&state);
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
                "the client was too far behind other clients of the same response".into(),
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

    /// Whether the body has ended.
    pub(super) fn is_end(&self) -> bool {
        let state = self.stream.state();
        let at = state.readers.get(&self.number).map(|reader| reader.taken);
        let has_all = at.is_some_and(|at| at == state.dropped + state.chunks.len());
        self.ended || has_all && matches!(state.end, Some(End::Whole(None)))
    }

    /// The length of the rest, where that is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let mut state = self.stream.state();
        let gone = state.readers.remove(&self.number);
        if let Some(activity) = gone.and_then(|gone| gone.activity) {
            activity.set_backlog(0, 0);
        }
        state.trim();
        wake(&mut state.feeder);
    }
}

#[cfg(test)]
mod tests;
