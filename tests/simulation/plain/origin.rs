//! Answers of the origin: bodies that come in pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use ordgate::upstream::{Answer, AnswerBody};
use ordgate::wire::body::BodyError;
use tokio::sync::mpsc;

/// A body that comes as the play has it.
pub(crate) struct Pieces(pub(crate) mpsc::UnboundedReceiver<Result<Bytes, BodyError>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0
            .poll_recv(cx)
            .map(|next| Some(next?.map(Frame::data)))
    }
}

pub(super) fn exchange<B>(head: http::response::Builder, body: B) -> Answer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    let (head, ()) = head.body(()).unwrap().into_parts();
    Answer {
        head,
        body: AnswerBody::Coming(body.map_err(Into::into).boxed_unsync(), None),
        took: Duration::ZERO,
        endpoint: 0,
    }
}

/// Reads a body whole, or a frame every now and then.
pub(super) async fn read(body: ordgate::wire::Body, slow: bool) -> Result<Bytes, ()> {
    let mut body = std::pin::pin!(body);
    let mut whole = Vec::new();
    loop {
        if slow {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            None => return Ok(whole.into()),
            Some(Err(_)) => return Err(()),
            Some(Ok(frame)) => {
                let Ok(mut data) = frame.into_data() else {
                    continue;
                };
                while bytes::Buf::has_remaining(&data) {
                    let chunk = bytes::Buf::chunk(&data).to_vec();
                    bytes::Buf::advance(&mut data, chunk.len());
                    whole.extend(chunk);
                }
            }
        }
    }
}
