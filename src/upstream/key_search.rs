//! Searching responses for API keys before any part is handed on: field names and
//! values, bodies, trailers.
//!
//! A body is searched as it is received, in constant memory. The end of a frame that
//! may be the beginning of a key is held back until the next frame shows that it is
//! not, so that no part of a key that is split between frames is handed on. Without
//! keys a body is handed on unchanged.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, HeaderValue, Response, response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::clock::Moment;
use crate::log_writer::LogInterval;
use crate::reason::Reason;
use crate::upstream::keys::{ApiKey, KeyPattern, KeyPatterns};
use crate::upstream::{Failure, Upstream};
use crate::wire::body::BodyError;

/// The error with which a body ends if it contains an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream's answer has an API key in it")]
pub struct KeyEchoed;

impl Upstream {
    /// Searches the head of a response, and prepares its body to be searched as it is
    /// received.
    ///
    /// # Errors
    /// If the head contains a key, or the body is encoded and cannot be searched.
    pub(crate) fn search_answer(
        &self,
        answer: Response<Incoming>,
    ) -> Result<(response::Parts, SearchedBody), Failure> {
        let (mut head, body) = answer.into_parts();
        // They include the reason phrase, which HTTP/2 does not have.
        head.extensions.clear();
        let patterns = self.keys.patterns();
        let now = self.clock.now();
        search_fields(&patterns, &head.headers, now).map_err(|KeyEchoed| withheld())?;
        if !patterns.is_empty() && !body.is_end_stream() && is_coded(&head.headers) {
            if patterns.compressed.is_due(LogInterval::MINUTE, now) {
                tracing::error!(
                    upstream = self.name(),
                    "the upstream sent a compressed response although accept-encoding: identity was requested; it cannot be searched for API keys, so it is not passed on: configure the upstream not to compress it. This is logged again a minute later at the earliest"
                );
            }
            return Err(withheld());
        }
        Ok((head, SearchedBody::new(body, patterns, now)))
    }

    /// Searches parts of a response for API keys.
    ///
    /// # Errors
    /// If one is found.
    pub(crate) fn search<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), Failure> {
        let patterns = self.keys.patterns();
        let mut parts = parts.into_iter();
        match parts.find_map(|part| patterns.find(part)) {
            None => Ok(()),
            Some(pattern) => {
                let KeyEchoed = echoed(&patterns, pattern, self.clock.now());
                Err(withheld())
            }
        }
    }
}

fn withheld() -> Failure {
    Failure::new(Reason::AnswerWithheld)
}

/// Whether a body has a content coding, which would hide a key.
fn is_coded(fields: &HeaderMap) -> bool {
    let is_plain = |value: &HeaderValue| {
        let mut codings = value.as_bytes().split(|byte| *byte == b',');
        codings.all(|coding| {
            let coding = coding.trim_ascii();
            coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
        })
    };
    !fields.get_all(CONTENT_ENCODING).iter().all(is_plain)
}

/// Searches field names, which are in lower case, and values.
fn search_fields(patterns: &KeyPatterns, fields: &HeaderMap, now: Moment) -> Result<(), KeyEchoed> {
    if patterns.is_empty() {
        return Ok(());
    }
    let is_named = |name: &HeaderName| {
        patterns
            .iter()
            .find(|pattern| pattern.is_in_name(name.as_str()))
    };
    let mut fields = fields.iter();
    let found = fields.find_map(|(name, value)| {
        let in_value = patterns.find(value.as_bytes());
        in_value.or_else(|| is_named(name))
    });
    match found {
        None => Ok(()),
        Some(pattern) => Err(echoed(patterns, pattern, now)),
    }
}

/// Logs that the upstream has echoed a key.
fn echoed(patterns: &KeyPatterns, pattern: &KeyPattern, now: Moment) -> KeyEchoed {
    if patterns.echoed.is_due(LogInterval::MINUTE, now) {
        tracing::error!(
            key = &*pattern.name,
            "the upstream's response contains an API key and is not passed on: tell the upstream's operator. Others are logged a minute later at the earliest"
        );
    }
    KeyEchoed
}

/// A body that is searched for API keys as it is received. It ends with [`KeyEchoed`]
/// before any byte of a key is handed on.
pub struct SearchedBody<B = Incoming> {
    body: B,
    /// What is searched for; without patterns, the body is unchanged.
    patterns: Arc<KeyPatterns>,
    /// When its head was received.
    received: Moment,
    /// The end of the received data if it may be the beginning of a key; shorter than
    /// the longest pattern.
    held: Bytes,
    /// Trailers that follow the held data.
    trailers: Option<Frame<Bytes>>,
    has_ended: bool,
}

impl<B> SearchedBody<B> {
    /// A body that is searched for these keys.
    pub fn of(body: B, keys: &[ApiKey]) -> Self {
        let patterns = keys.iter().flat_map(ApiKey::patterns).collect();
        Self::new(body, Arc::new(patterns), Moment::default())
    }

    fn new(body: B, patterns: Arc<KeyPatterns>, received: Moment) -> Self {
        Self {
            body,
            patterns,
            received,
            held: Bytes::new(),
            trailers: None,
            has_ended: false,
        }
    }

    /// The held data and the frame, without the end that is held back now.
    fn search(&mut self, data: Bytes) -> Result<Bytes, KeyEchoed> {
        let mut whole = match self.held.is_empty() {
            true => data,
            false => {
                let mut both = BytesMut::with_capacity(self.held.len() + data.len());
                both.extend_from_slice(&self.held);
                both.extend_from_slice(&data);
                both.freeze()
            }
        };
        if let Some(pattern) = self.patterns.find(&whole) {
            return Err(echoed(&self.patterns, pattern, self.received));
        }
        let begun = self
            .patterns
            .iter()
            .map(|pattern| pattern.prefix_at_end_of(&whole));
        let passed = whole.len() - begun.max().unwrap_or(0);
        // A copy: a slice would keep the whole frame in memory.
        self.held = Bytes::copy_from_slice(&whole[passed..]);
        whole.truncate(passed);
        Ok(whole)
    }
}

impl<B> Body for SearchedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(trailers) = this.trailers.take() {
                return Poll::Ready(Some(Ok(trailers)));
            }
            if this.has_ended {
                return Poll::Ready(None);
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                None => {
                    this.has_ended = true;
                    let held = std::mem::take(&mut this.held);
                    let last = (!held.is_empty()).then(|| Ok(Frame::data(held)));
                    return Poll::Ready(last);
                }
                Some(Err(error)) => {
                    this.has_ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Some(Ok(frame)) if this.patterns.is_empty() => return Poll::Ready(Some(Ok(frame))),
                Some(Ok(frame)) => frame,
            };
            let searched = match frame.into_data() {
                Ok(data) => this.search(data),
                Err(frame) => {
                    let fields = frame.trailers_ref().map_or(Ok(()), |fields| {
                        search_fields(&this.patterns, fields, this.received)
                    });
                    this.trailers = Some(frame);
                    fields.map(|()| std::mem::take(&mut this.held))
                }
            };
            match searched {
                // All of it is held back, or the trailers follow at once.
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    this.has_ended = true;
                    this.trailers = None;
                    this.held = Bytes::new();
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty()
            && self.trailers.is_none()
            && (self.has_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.held.len() as u64;
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + held);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

#[cfg(test)]
mod tests;
