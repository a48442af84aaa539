//! Response bodies: their minimum rate, their end, and reading one whole.
//!
//! Only time in which ordgate waits for the upstream counts: a client that reads
//! slowly does not count against the upstream.
//!
//! Invariant: a body is read within the time that [`ResponseBodyLimits`] allow, or fails with
//! [`TimedOut::Body`].

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::min_rate::MinRate;
use crate::upstream::{Failure, TimedOut};
use crate::wire::body::BodyError;

/// The minimum rate of response bodies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ResponseBodyLimits {
    /// Bytes per second that the upstream must send while it is waited for.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub min_rate: u64,
    /// How long the upstream may send nothing, and how far it may fall behind the
    /// rate.
    #[serde(serialize_with = "crate::units::serialize")]
    pub grace: Duration,
}

impl ResponseBodyLimits {
    /// The state of a body of which nothing has been received.
    pub fn min_rate(&self) -> MinRate {
        MinRate::new(self.min_rate, self.grace)
    }
}

/// Reads a whole body.
///
/// # Errors
/// If it is truncated, too slow, contains an API key, or is larger than `most` bytes.
pub(crate) async fn read<B>(
    mut body: B,
    most: u64,
    limits: &ResponseBodyLimits,
) -> Result<Bytes, Failure>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BodyError>,
{
    let declared = body.size_hint().lower();
    if declared > most {
        return Err(Failure::TooLarge);
    }
    // A declared length is trusted up to 1 MiB; beyond, the buffer grows.
    let expected = declared.min(1 << 20);
    let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
    let mut min_rate = limits.min_rate();
    loop {
        let began = Instant::now();
        let frame = timeout(min_rate.left(), body.frame()).await;
        let frame = frame.map_err(|_elapsed| Failure::TimedOut(TimedOut::Body))?;
        let Some(frame) = frame else {
            break;
        };
        min_rate.waited(began.elapsed());
        let frame = frame.map_err(|error| Failure::of_body(&error.into()))?;
        // Trailers are not stored.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        min_rate.received(data.len());
        if (whole.len() + data.len()) as u64 > most {
            return Err(Failure::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    // Without spare capacity: it may be stored for a long time.
    Ok(Bytes::from(Box::<[u8]>::from(&whole[..])))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::sleep;

    use super::*;

    const LIMITS: ResponseBodyLimits = ResponseBodyLimits {
        min_rate: 1024,
        grace: Duration::from_secs(10),
    };

    /// Reads a body of this many pieces of this many bytes, each sent after `every`
    /// seconds. Returns its length, and the seconds that reading took.
    async fn reads(pieces: usize, bytes: usize, every: u64) -> (Result<usize, Failure>, u64) {
        let began = Instant::now();
        let frames = stream::unfold(0, |sent| async move {
            sleep(Duration::from_secs(every)).await;
            let data = Bytes::from(vec![b'x'; bytes]);
            let frame = Ok::<_, BodyError>(Frame::data(data));
            (sent < pieces).then_some((frame, sent + 1))
        });
        let body = Box::pin(StreamBody::new(frames));
        let read = read(body, 1 << 30, &LIMITS).await;
        let length = read.map(|whole| whole.len());
        (length, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_are_given_up() {
        let stalled = Err(Failure::TimedOut(TimedOut::Body));
        for (name, (pieces, bytes, every), expected) in [
            ("at once", (100, 1 << 16, 0), (Ok(100 << 16), 0)),
            ("slow and steady", (600, 1024, 1), (Ok(600 << 10), 601)),
            ("in bursts", (20, 64 << 10, 9), (Ok(20 << 16), 189)),
            ("silent", (1, 1, 1000), (stalled.clone(), 10)),
            (
                "a byte every five seconds",
                (99, 1, 5),
                (stalled.clone(), 10),
            ),
            ("half the rate", (99, 512, 1), (stalled.clone(), 19)),
            ("a burst, then silence", (1, 1 << 20, 11), (stalled, 10)),
        ] {
            let read = reads(pieces, bytes, every).await;
            assert_eq!(read, expected, "{name}");
        }
    }
}
