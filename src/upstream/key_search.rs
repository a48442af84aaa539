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
use hyper::body::Incoming;

use super::{Failure, Upstream};
use crate::api_key::{self, ApiKey};
use crate::clock::Moment;
use crate::log_writer::LogInterval;
use crate::wire::body::BodyError;

/// The error of an answer that contains an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream's answer has an API key in it")]
pub struct KeyEchoed;

impl From<KeyEchoed> for Failure {
    fn from(KeyEchoed: KeyEchoed) -> Self {
        Self::KeyEchoed
    }
}

impl Failure {
    /// Why a body of a [`StreamedAnswer`](crate::upstream::StreamedAnswer) was
    /// truncated.
    pub fn of_body(error: &BodyError) -> Self {
        match error.is::<KeyEchoed>() {
            true => Self::KeyEchoed,
            false => Self::Incomplete,
        }
    }
}

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
        keys.search_fields(&head.headers, now)?;
        let mut codings = head.headers.get_all(CONTENT_ENCODING).iter();
        let is_coded = codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        if is_coded && !keys.all.is_empty() && !body.is_end_stream() {
            if keys.withheld.is_due(LogInterval::MINUTE, now) {
                tracing::error!(
                    upstream = self.name(),
                    "the upstream sent a compressed response although accept-encoding: identity was requested; it cannot be searched for API keys, so it is not passed on: configure the upstream not to compress it. This is logged again a minute later at the earliest"
                );
            }
            return Err(Failure::KeyEchoed);
        }
        Ok((head, SearchedBody::new(body, keys, now)))
    }

    /// Searches parts of a response.
    ///
    /// # Errors
    /// [`Failure::KeyEchoed`] if one of them contains a key.
    pub(super) fn search(&self, parts: &[&[u8]]) -> Result<(), Failure> {
        let is_in = |key: &ApiKey| parts.iter().any(|part| key.is_in(part));
        Ok(self.keys.searched().search(is_in, self.clock.now())?)
    }
}

/// The keys that answers of an upstream are searched for.
#[derive(Default)]
pub(super) struct SearchedKeys {
    pub(super) all: Box<[ApiKey]>,
    /// When it was last logged that an answer is withheld.
    withheld: LogInterval,
}

impl FromIterator<ApiKey> for SearchedKeys {
    fn from_iter<T: IntoIterator<Item = ApiKey>>(keys: T) -> Self {
        Self {
            all: keys.into_iter().filter(ApiKey::is_searched).collect(),
            withheld: LogInterval::default(),
        }
    }
}

impl SearchedKeys {
    /// Fails, and logs it, if one of the keys is found.
    fn search(&self, is_in: impl Fn(&ApiKey) -> bool, now: Moment) -> Result<(), KeyEchoed> {
        let Some(key) = self.all.iter().find(|key| is_in(key)) else {
            return Ok(());
        };
        if self.withheld.is_due(LogInterval::MINUTE, now) {
            tracing::error!(
                key = key.name(),
                "the upstream's response contains an API key and is not passed on: tell the upstream's operator. Others are logged a minute later at the earliest"
            );
        }
        Err(KeyEchoed)
    }

    fn search_fields(&self, fields: &HeaderMap, now: Moment) -> Result<(), KeyEchoed> {
        let is_in_name =
            |key: &ApiKey, name: &[u8]| (0..name.len()).any(|at| key.end(name, at).is_some());
        let is_in = |key: &ApiKey| {
            let mut fields = fields.iter();
            fields.any(|(name, value)| {
                key.is_in(value.as_bytes()) || is_in_name(key, name.as_str().as_bytes())
            })
        };
        self.search(is_in, now)
    }
}

/// A body that is searched for API keys as it is received. It ends with [`KeyEchoed`]
/// before any byte of a key is handed on.
pub struct SearchedBody<B = Incoming> {
    /// `None` after its end, or an error.
    body: Option<B>,
    keys: Arc<SearchedKeys>,
    /// When its head was received.
    received: Moment,
    /// What is held back of the received data.
    held: Bytes,
    /// Trailers that follow the held data.
    trailers: Option<Frame<Bytes>>,
}

impl<B> SearchedBody<B> {
    /// A body that is searched for these keys.
    pub fn of(body: B, keys: &[ApiKey]) -> Self {
        let keys = keys.iter().cloned().collect();
        Self::new(body, Arc::new(keys), Moment::default())
    }

    fn new(body: B, keys: Arc<SearchedKeys>, received: Moment) -> Self {
        Self {
            body: Some(body),
            keys,
            received,
            held: Bytes::new(),
            trailers: None,
        }
    }

    /// What can be handed on now that this was received.
    fn search(&mut self, frame: Frame<Bytes>) -> Result<Bytes, KeyEchoed> {
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                if let Some(fields) = frame.trailers_ref() {
                    self.keys.search_fields(fields, self.received)?;
                }
                self.trailers = Some(frame);
                return Ok(std::mem::take(&mut self.held));
            }
        };
        if self.keys.all.is_empty() {
            return Ok(data);
        }
        if !self.held.is_empty() {
            let mut both = BytesMut::with_capacity(self.held.len() + data.len());
            both.extend_from_slice(&self.held);
            both.extend_from_slice(&data);
            data = both.freeze();
        }
        self.keys.search(|key| key.is_in(&data), self.received)?;
        // A copy: a slice would keep the whole frame in memory.
        self.held = Bytes::copy_from_slice(held_back(&data));
        data.truncate(data.len() - self.held.len());
        Ok(data)
    }
}

/// The end of a text that may be the beginning of a key.
fn held_back(text: &[u8]) -> &[u8] {
    let last = text.iter().rev().take(api_key::MAX_LENGTH - 1);
    let held = last.take_while(|byte| byte.is_ascii_graphic()).count();
    &text[text.len() - held..]
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
            let Some(body) = &mut this.body else {
                return Poll::Ready(None);
            };
            let searched = match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => this.search(frame).map_err(BodyError::from),
                Some(Err(error)) => Err(error.into()),
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
                    this.held = Bytes::new();
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
        let held = self.held.len() as u64;
        let rest = self.body.as_ref().map(Body::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
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
