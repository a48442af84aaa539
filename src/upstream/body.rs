//! Bodies in either direction: requests' bodies are received whole before their request
//! takes a slot, and sent with their length; a response's may be read whole. A client is waited
//! for as long as its rate allows, an upstream until it has been silent for too long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use foldhash::quality::RandomState;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue, TRAILER, TRANSFER_ENCODING};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use super::RequestBody;
use super::failure::Failure;
use crate::identify::Client;
use crate::reason::Reason;
use crate::sync::lock;
use crate::wire::body::BodyError;

/// Bytes per second that a client must send,
const MIN_RATE: u64 = 1024;
/// and how far it may fall behind.
const GRACE: Duration = Duration::from_secs(10);
/// How many of the longest bodies may be in memory for one client,
const MAX_OF_CLIENT: u64 = 2;
/// and for all.
const MAX_OF_ALL: u64 = 16;

/// The request bodies of one upstream that are in memory, in bytes by client.
#[derive(Debug, Default)]
pub struct Uploads {
    buffered: Mutex<HashMap<Option<Client>, u64, RandomState>>,
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
        mut body: RequestBody,
        fields: &mut HeaderMap,
        client: Option<Client>,
        most: u64,
    ) -> Result<Bytes, Failure> {
        if body.size_hint().lower() > most {
            return Err(Failure::new(Reason::RequestBodyTooLarge));
        }
        let mut buffer = Buffer {
            bytes: Vec::new(),
            uploads: self.clone(),
            client,
        };
        let began = Instant::now();
        loop {
            // However fast a client was before, it may be silent for ten seconds at most.
            let due = GRACE + Duration::from_millis(buffer.bytes.len() as u64 * 1000 / MIN_RATE);
            let left = GRACE.min(due.saturating_sub(began.elapsed()));
            let data = timeout(left, data(&mut body)).await;
            let slow = |_elapsed| Failure::new(Reason::RequestBodyTooSlow);
            let Some(data) = data.map_err(slow)? else {
                break;
            };
            let data = data.map_err(|error| {
                tracing::debug!(%error, "a request's body broke off or is malformed");
                Failure::new(Reason::RequestBodyBroken)
            })?;
            if (buffer.bytes.len() + data.len()) as u64 > most {
                return Err(Failure::new(Reason::RequestBodyTooLarge));
            }
            if !self.count(client, data.len() as u64, most) {
                let soon = Duration::from_secs(1);
                return Err(Failure::until(Reason::RequestBodyNoRoom, soon));
            }
            buffer.bytes.extend_from_slice(&data);
        }
        fields.remove(TRANSFER_ENCODING);
        fields.remove(TRAILER);
        fields.insert(CONTENT_LENGTH, HeaderValue::from(buffer.bytes.len()));
        Ok(Bytes::from_owner(buffer))
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

    /// Bytes in memory.
    #[cfg(test)]
    fn buffered(&self) -> u64 {
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

/// Reads a response's body.
///
/// # Errors
/// If it is truncated, comes to a stop for as long as `silence`, contains an API key, or is larger than `most` bytes.
pub(super) async fn read(
    mut body: impl Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
    most: u64,
    silence: Duration,
) -> Result<Bytes, Failure> {
    let declared = body.size_hint().lower();
    if declared > most {
        return Err(Failure::new(Reason::AnswerTooLarge));
    }
    // A declared length is trusted up to 1 MiB; beyond, the buffer grows.
    let expected = declared.min(1 << 20);
    let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
    loop {
        let data = timeout(silence, data(&mut body)).await;
        let silent = |_elapsed| Failure::new(Reason::UpstreamBodyTimeout);
        let Some(data) = data.map_err(silent)? else {
            break;
        };
        let data = data.map_err(|error| Failure::of_body(&error))?;
        if (whole.len() + data.len()) as u64 > most {
            return Err(Failure::new(Reason::AnswerTooLarge));
        }
        whole.extend_from_slice(&data);
    }
    // Without spare capacity: it may be stored for a long time.
    Ok(Bytes::from(Box::<[u8]>::from(&whole[..])))
}

/// The next data of a body, `None` at its end. Trailers are not kept.
async fn data(
    body: &mut (impl Body<Data = Bytes, Error: Into<BodyError>> + Unpin),
) -> Option<Result<Bytes, BodyError>> {
    loop {
        match body.frame().await?.map(Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_trailers)) => {}
            Err(error) => return Some(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests;
