//! Answers are searched for API keys before any part of them is handed on: field names
//! and values, bodies, trailers. A key is searched for in its own spelling.
//!
//! A body is searched as it is received. Keys are visible ASCII, so visible ASCII at the
//! end of what was received is held back until more is received, at most one byte less
//! than a key may have: it may be the beginning of one. That does not depend on what
//! the keys are, so a client that can make the upstream echo a guess and pause learns
//! nothing of them. Events end with a line end, and are handed on at once. Without keys a
//! body is handed on unchanged.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, Response, response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{Failure, ResponseBody, Upstream};
use crate::api_key::{self, ApiKey};
use crate::clock::Moment;
use crate::log_writer::LogInterval;
use crate::reason::Reason;
use crate::wire::body::BodyError;

impl Upstream {
    /// Searches the head of a response, and prepares its body to be searched as it is
    /// received.
    ///
    /// # Errors
    /// If the head contains a key, or the body is compressed and cannot be searched.
    pub(super) fn search_answer(
        &self,
        answer: Response<Incoming>,
    ) -> Result<(response::Parts, SearchedBody), Failure> {
        let (mut head, body) = answer.into_parts();
        // They include the reason phrase, which HTTP/2 does not have.
        head.extensions.clear();
        let (keys, now) = (self.keys.searched(), self.clock.now());
        let mut codings = head.headers.get_all(CONTENT_ENCODING).iter();
        let is_coded = codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        let is_hidden = is_coded && !body.is_end_stream();
        search(&keys, now, |key| is_hidden || has(&head.headers, key))?;
        let body = body.map_err(BodyError::from).boxed_unsync();
        Ok((head, SearchedBody::new(body, keys, now)))
    }
}

/// Fails, and logs it, if one of the keys may be in an answer.
fn search(keys: &[ApiKey], now: Moment, is_in: impl Fn(&ApiKey) -> bool) -> Result<(), Failure> {
    let Some(key) = keys.iter().find(|key| is_in(key)) else {
        return Ok(());
    };
    if key.echoes().is_due(LogInterval::MINUTE, now) {
        tracing::error!(
            key = key.name(),
            "the upstream's answer is not passed on, because it contains an API key, or is compressed although accept-encoding: identity was requested, and so cannot be searched for one: tell the upstream's operator. This is logged again a minute later at the earliest"
        );
    }
    Err(Failure::new(Reason::AnswerWithheld))
}

/// Whether the name or value of a field contains a key.
fn has(fields: &HeaderMap, key: &ApiKey) -> bool {
    fields.iter().any(|(name, value)| {
        let name = name.as_str().as_bytes();
        key.is_in(value.as_bytes()) || (0..name.len()).any(|at| key.end(name, at).is_some())
    })
}

/// The end of a text that may be the beginning of a key.
fn held_back(text: &[u8]) -> &[u8] {
    let last = text.iter().rev().take(api_key::MAX_LENGTH - 1);
    let held = last.take_while(|byte| byte.is_ascii_graphic()).count();
    &text[text.len() - held..]
}

/// A body that is searched for API keys as it is received. It ends with
/// [`Reason::AnswerWithheld`] before any byte of a key is handed on.
pub struct SearchedBody {
    /// `None` after its end, or an error.
    body: Option<ResponseBody>,
    keys: Arc<[ApiKey]>,
    /// When its head was received.
    received: Moment,
    /// What is held back of the received data.
    held: Bytes,
    /// Trailers that follow the held data.
    trailers: Option<HeaderMap>,
}

impl SearchedBody {
    /// A body that is searched for these keys.
    pub fn new(body: ResponseBody, keys: Arc<[ApiKey]>, received: Moment) -> Self {
        Self {
            body: Some(body),
            keys,
            received,
            held: Bytes::new(),
            trailers: None,
        }
    }

    /// What can be handed on now that this was received.
    fn search(&mut self, frame: Frame<Bytes>) -> Result<Bytes, Failure> {
        let data = match frame.into_data() {
            Ok(data) if self.keys.is_empty() => return Ok(data),
            Ok(data) => data,
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                search(&self.keys, self.received, |key| has(&trailers, key))?;
                self.trailers = Some(trailers);
                return Ok(std::mem::take(&mut self.held));
            }
        };
        let mut whole = BytesMut::from(&*self.held);
        whole.extend_from_slice(&data);
        search(&self.keys, self.received, |key| key.is_in(&whole))?;
        // A copy: a slice would keep the whole frame in memory.
        self.held = Bytes::copy_from_slice(held_back(&whole));
        whole.truncate(whole.len() - self.held.len());
        Ok(whole.freeze())
    }
}

impl Body for SearchedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(trailers) = this.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            let Some(body) = &mut this.body else {
                return Poll::Ready(None);
            };
            let searched = match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => this.search(frame).map_err(BodyError::from),
                Some(Err(error)) => Err(error),
                None => {
                    this.body = None;
                    Ok(std::mem::take(&mut this.held))
                }
            };
            match searched {
                // All of it is held back, or nothing was.
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    this.body = None;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.body.as_ref().is_none_or(Body::is_end_stream);
        has_ended && self.held.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.as_ref().filter(|_| self.held.is_empty());
        rest.map(Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
