//! Bodies of upstream answers that are not read whole: their silences, their length, and
//! collecting one to store it while the leader's client receives it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, timeout, timeout_at};

use super::{Announced, Fetch, FillAnswer};
use crate::reason::Reason;
use crate::shared::responses::FillLock;
use crate::upstream::{Failure, ResponseBody, Slot};
use crate::wire::body::BodyError;
use crate::wire::stream::{Collector, Source};

/// How long a body keeps the slot of its request among those in flight. After that the
/// client is slow, or the body is long: neither is paid for by others.
const LONGEST_SLOT: Duration = Duration::from_secs(1);

/// A body whose upstream may be silent only for so long. Only time in which it is polled and
/// has nothing counts.
pub(super) struct PacedBody {
    body: ResponseBody,
    silence: Duration,
    /// Until when the upstream is waited for.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Gives the slot back when it is dropped.
    slot: Option<oneshot::Sender<Infallible>>,
}

impl PacedBody {
    pub(super) fn new(body: ResponseBody, silence: Duration, slot: Option<Slot>) -> Self {
        let keep = |slot: Slot| {
            let (over, ended) = oneshot::channel();
            tokio::spawn(async move {
                let _ended = timeout(LONGEST_SLOT, ended).await;
                drop(slot);
            });
            over
        };
        Self {
            body,
            silence,
            waiting: None,
            slot: slot.map(keep),
        }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let paced = self.get_mut();
        let frame = Pin::new(&mut paced.body).poll_frame(cx);
        if let Poll::Ready(frame) = frame {
            paced.waiting = None;
            if !matches!(frame, Some(Ok(_))) {
                paced.slot = None;
            }
            return Poll::Ready(frame);
        }
        let silence = paced.silence;
        let until = paced
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(silence)));
        until.as_mut().poll(cx).map(|()| {
            let failure = Failure::new(Reason::UpstreamBodyTimeout);
            Some(Err(failure.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The length of the body, if announced. Leaves at most one `content-length` field, so
/// that no later recipient reads another length (RFC 9112 §6.3); hyper has checked that
/// several agree.
///
/// # Errors
/// [`Reason::NotHttp`] if the body has a transfer coding other than `chunked`, which the
/// request does not accept, or any in HTTP/1.0.
pub(super) fn content_length(
    version: Version,
    fields: &mut HeaderMap,
) -> Result<Option<u64>, Failure> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() || version == Version::HTTP_10 {
            return Err(Failure::new(Reason::NotHttp));
        }
        fields.remove(CONTENT_LENGTH);
        return Ok(None);
    }
    let length = fields.get(CONTENT_LENGTH).and_then(|line| {
        let first = line.to_str().ok()?.split(',').next()?;
        first.trim().parse::<u64>().ok()
    });
    match length {
        Some(length) => drop(fields.insert(CONTENT_LENGTH, length.into())),
        None => drop(fields.remove(CONTENT_LENGTH)),
    }
    Ok(length)
}

/// Whether an answer is a stream of events, which has no end to wait for.
pub(super) fn is_event_stream(fields: &HeaderMap) -> bool {
    let media = fields.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let media = media.and_then(|media| media.split(|byte| *byte == b';').next());
    media.is_some_and(|media| {
        media
            .trim_ascii()
            .eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// An answer that may be stored, and whose body is being collected.
pub(super) struct Collecting {
    pub(super) fetch: Arc<Fetch>,
    /// What is stored of it, without the body.
    pub(super) begun: FillAnswer,
    /// By which other replicas wait for it.
    pub(super) lock: Option<FillLock>,
    pub(super) body: Source,
    pub(super) collector: Collector,
    /// The announced length.
    pub(super) length: Option<u64>,
    pub(super) received: u64,
    /// The most bytes that are stored, and when all must have come.
    pub(super) max: u64,
    pub(super) deadline: Instant,
}

/// What came of collecting.
pub(super) enum Read {
    /// All of it; trailers are not stored.
    Whole(Bytes),
    /// It is too long, or takes too long, to be stored.
    TooMuch,
    /// The connection of its client was closed, perhaps for what it holds: it is not stored.
    Closed,
}

impl Collecting {
    /// Reads on. Dropped, nothing that was read is lost.
    ///
    /// # Errors
    /// If the body breaks off.
    pub(super) async fn read(&mut self) -> Result<Read, Failure> {
        while self.received <= self.max {
            let frame = match timeout_at(self.deadline, self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Err(Failure::of_body(&error)),
                Ok(None) => return Ok(Read::Whole(self.collector.whole(Bytes::new()))),
                Err(_elapsed) => return Ok(Read::TooMuch),
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.received += data.len() as u64;
            // The last bytes reach the client after the whole is stored, so that one that
            // requests it again at once finds it.
            if Some(self.received) == self.length && self.received <= self.max {
                return Ok(Read::Whole(self.collector.whole(data)));
            }
            if !self.collector.push(data) {
                return Ok(Read::Closed);
            }
        }
        Ok(Read::TooMuch)
    }

    /// Reads to the end, and stores the response. Returns what other requests may do.
    pub(super) async fn run(mut self) -> Announced {
        let (read, fetch) = (self.read().await, &self.fetch);
        match read {
            Ok(Read::Whole(body)) => {
                let announced = fetch.complete(&self.begun, body).all;
                self.collector.finish();
                if let Some((lock, found)) = self.lock.zip(announced.as_ref()) {
                    fetch.fill.give(lock, found).await;
                }
                announced
            }
            Ok(Read::TooMuch) => {
                self.collector.hand_over(self.body);
                fetch.not_shared(self.begun.stored.status)
            }
            // Nothing is known of the key: who waits asks again.
            Ok(Read::Closed) => None,
            // The client's body breaks off with the collector.
            Err(failure) => Some(Err(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_length_or_an_error() {
        let (length, coding) = ("content-length", "transfer-encoding");
        for (version, lines, expected) in [
            (Version::HTTP_11, &[][..], Some(None)),
            (Version::HTTP_11, &[(length, "7")], Some(Some(7))),
            (
                Version::HTTP_11,
                &[(length, "7, 7"), (length, "7")],
                Some(Some(7)),
            ),
            (
                Version::HTTP_11,
                &[(coding, "Chunked"), (length, "7")],
                Some(None),
            ),
            (Version::HTTP_11, &[(coding, "gzip, chunked")], None),
            (
                Version::HTTP_11,
                &[(coding, "chunked"), (coding, "chunked")],
                None,
            ),
            (Version::HTTP_10, &[(coding, "chunked")], None),
        ] {
            let mut fields = HeaderMap::new();
            for (name, value) in lines {
                fields.append(*name, HeaderValue::from_static(value));
            }
            let read = content_length(version, &mut fields);
            assert_eq!(read.as_ref().ok().copied(), expected, "{lines:?}");
            if let Ok(length) = read {
                let own: Vec<_> = fields.get_all(CONTENT_LENGTH).iter().collect();
                let expected: Vec<_> = length.map(HeaderValue::from).into_iter().collect();
                assert_eq!(own, expected.iter().collect::<Vec<_>>(), "{lines:?}");
            }
        }
    }
}
