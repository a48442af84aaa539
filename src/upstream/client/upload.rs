//! Request bodies. A body is received whole before its request takes a slot, so that a slow
//! client occupies none, and is sent with its length.
//!
//! Invariants: a body is waited for no longer than its minimum rate allows; one client has
//! at most two of the longest bodies in memory, all together sixteen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue, TRAILER, TRANSFER_ENCODING};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use crate::identify::Client;
use crate::sync::lock;
use crate::upstream::BodyFault;
use crate::upstream::client::RequestBody;
use crate::upstream::client::min_rate::MinRate;

/// Bytes per second that a client must send,
const MIN_RATE: u64 = 1024;
/// and how far it may fall behind.
const GRACE: Duration = Duration::from_secs(10);
/// How many of the longest bodies may be in memory for one client,
const MAX_OF_CLIENT: u64 = 2;
/// and for all.
const MAX_OF_ALL: u64 = 16;

/// The request bodies of one upstream: what is in memory, and how many were refused.
#[derive(Debug, Default)]
pub struct Uploads {
    /// Bytes by client.
    buffered: Mutex<HashMap<Option<Client>, u64, RandomState>>,
    refused: [AtomicU64; BodyFault::ALL.len()],
}

/// A body. It counts until its last handle is dropped, which is after it has been sent.
struct Buffer {
    bytes: Vec<u8>,
    uploads: Arc<Uploads>,
    client: Option<Client>,
}

impl Uploads {
    /// Receives a body of up to `most` bytes, and sets the fields of its request that frame
    /// it. Its trailers are dropped.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        body: RequestBody,
        fields: &mut HeaderMap,
        client: Option<Client>,
        most: u64,
    ) -> Result<Bytes, BodyFault> {
        let declared = fields.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let received = match declared.is_some_and(|declared| declared > most) {
            true => Err(BodyFault::TooLarge),
            false => self.read(body, client, most).await,
        };
        let body = received.inspect_err(|fault| {
            self.refused[fault.index()].fetch_add(1, Relaxed);
        })?;
        fields.remove(TRANSFER_ENCODING);
        fields.remove(TRAILER);
        fields.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        Ok(body)
    }

    async fn read(
        self: &Arc<Self>,
        mut body: RequestBody,
        client: Option<Client>,
        most: u64,
    ) -> Result<Bytes, BodyFault> {
        let mut buffer = Buffer {
            bytes: Vec::new(),
            uploads: self.clone(),
            client,
        };
        let mut min_rate = MinRate::new(MIN_RATE, GRACE);
        loop {
            let began = Instant::now();
            let frame = timeout(min_rate.left(), body.frame()).await;
            let Some(frame) = frame.map_err(|_elapsed| BodyFault::TooSlow)? else {
                return Ok(Bytes::from_owner(buffer));
            };
            let frame = frame.map_err(|error| {
                tracing::debug!(%error, "a request's body broke off or is malformed");
                BodyFault::Broken
            })?;
            min_rate.waited(began.elapsed());
            let Ok(data) = frame.into_data() else {
                continue;
            };
            min_rate.received(data.len());
            if (buffer.bytes.len() + data.len()) as u64 > most {
                return Err(BodyFault::TooLarge);
            }
            if !self.count(client, data.len() as u64, most) {
                return Err(BodyFault::NoRoom);
            }
            buffer.bytes.extend_from_slice(&data);
        }
    }

    /// Counts bytes of a client, if there is room for them; returns whether there is.
    fn count(&self, client: Option<Client>, more: u64, most: u64) -> bool {
        let mut buffered = lock(&self.buffered);
        let own = buffered.get(&client).copied().unwrap_or(0);
        let fits = own + more <= most * MAX_OF_CLIENT
            && buffered.values().sum::<u64>() + more <= most * MAX_OF_ALL;
        if fits {
            buffered.insert(client, own + more);
        }
        fits
    }

    /// How many bodies were refused for a fault.
    pub fn refused(&self, fault: BodyFault) -> u64 {
        self.refused[fault.index()].load(Relaxed)
    }

    /// Bytes in memory.
    pub fn buffered(&self) -> u64 {
        lock(&self.buffered).values().sum()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut buffered = lock(&self.uploads.buffered);
        if let Some(own) = buffered.get_mut(&self.client) {
            *own -= self.bytes.len() as u64;
            if *own == 0 {
                buffered.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;
    use tokio::time::sleep;

    use super::*;
    use crate::wire::body::BodyError;

    const MOST: u64 = 4096;

    /// A body of these pieces, each sent after so many seconds.
    fn body(pieces: &[(u64, usize)]) -> RequestBody {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let pieces = pieces.to_vec();
        tokio::spawn(async move {
            for (after, length) in pieces {
                sleep(Duration::from_secs(after)).await;
                let data = Bytes::from(vec![b'x'; length]);
                let _ = sender.send(Ok::<_, BodyError>(Frame::data(data)));
            }
        });
        let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        BodyExt::boxed(StreamBody::new(frames))
    }

    async fn receive(
        uploads: &Arc<Uploads>,
        client: u32,
        pieces: &[(u64, usize)],
    ) -> Result<Bytes, BodyFault> {
        let mut fields = HeaderMap::new();
        fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        let client = Some(Client::V4(client));
        let received = uploads
            .receive(body(pieces), &mut fields, client, MOST)
            .await;
        if let Ok(body) = &received {
            assert_eq!(fields[CONTENT_LENGTH], body.len().to_string());
            assert!(!fields.contains_key(TRANSFER_ENCODING));
        }
        received
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_are_bounded_in_size_and_time() {
        for (pieces, expected) in [
            (&[][..], Ok(0)),
            (&[(0, 4000), (9, 96)], Ok(4096)),
            (&[(0, 4000), (0, 97)], Err(BodyFault::TooLarge)),
            (&[(11, 1)], Err(BodyFault::TooSlow)),
            (&[(4, 1), (4, 1), (4, 1)], Err(BodyFault::TooSlow)),
            (&[(1, 1), (8, 4000), (4, 1)], Ok(4002)),
        ] {
            let uploads = Arc::<Uploads>::default();
            let received = receive(&uploads, 1, pieces).await;
            assert_eq!(received.map(|body| body.len()), expected, "{pieces:?}");
            assert_eq!(uploads.buffered(), 0, "{pieces:?}");
            let refused: u64 = BodyFault::ALL
                .map(|fault| uploads.refused(fault))
                .iter()
                .sum();
            assert_eq!(refused, u64::from(expected.is_err()));
        }
        let uploads = Arc::<Uploads>::default();
        let mut fields = HeaderMap::new();
        fields.insert(CONTENT_LENGTH, HeaderValue::from_static("4097"));
        let received = uploads
            .receive(body(&[(5, 1)]), &mut fields, None, MOST)
            .await;
        assert_eq!(received, Err(BodyFault::TooLarge), "at once");
    }

    #[tokio::test]
    async fn no_client_takes_the_memory_of_others() {
        let uploads = Arc::<Uploads>::default();
        let whole = [(0, MOST as usize)];
        let mut held = Vec::new();
        for client in 0..8 {
            for _ in 0..2 {
                held.push(receive(&uploads, client, &whole).await.unwrap());
            }
            let third = receive(&uploads, client, &[(0, 1)]).await;
            assert_eq!(third, Err(BodyFault::NoRoom), "{client}");
        }
        let other = receive(&uploads, 9, &[(0, 1)]).await;
        assert_eq!(other, Err(BodyFault::NoRoom), "in all");
        assert_eq!(uploads.buffered(), 16 * MOST);
        drop(held);
        assert_eq!(uploads.buffered(), 0);
        assert!(receive(&uploads, 9, &whole).await.is_ok());
    }
}
