//! Request bodies with a minimum rate.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep};

use super::RequestBodyLimits;
use crate::upstream::BodyFault;
use crate::upstream::client::RequestBody;
use crate::upstream::client::min_rate::MinRate;

/// A body with a minimum rate. Only time in which the client is waited for counts:
/// an upstream that reads slowly does not count against the client.
pub(super) struct Paced {
    pub(super) body: RequestBody,
    min_rate: MinRate,
    left: u64,
    pub(super) deadline: Instant,
    /// When waiting for the client began.
    waits: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Paced {
    /// A body of which nothing has been received.
    pub(super) fn new(body: RequestBody, limits: &RequestBodyLimits) -> Self {
        let deadline = Instant::now() + limits.timeout;
        Self {
            body,
            min_rate: MinRate::new(limits.min_rate, limits.grace),
            left: limits.max_bytes,
            deadline,
            waits: None,
            timer: Box::pin(tokio::time::sleep_until(deadline)),
        }
    }

    /// Waits for the next frame.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if let Some(since) = self.waits.take() {
                    self.min_rate.waited(since.elapsed());
                }
                self.min_rate.received(length);
                match self.left.checked_sub(length as u64) {
                    Some(left) => self.left = left,
                    None => return Poll::Ready(Some(Err(BodyFault::TooLarge))),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a request's body broke off or is malformed");
                Poll::Ready(Some(Err(BodyFault::Broken)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                if self.waits.is_none() {
                    let now = Instant::now();
                    self.waits = Some(now);
                    let until = self.deadline.min(now + self.min_rate.left());
                    self.timer.as_mut().reset(until);
                }
                let elapsed = self.timer.as_mut().poll(cx);
                elapsed.map(|()| Some(Err(BodyFault::TooSlow)))
            }
        }
    }
}
