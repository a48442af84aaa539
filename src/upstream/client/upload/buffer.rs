//! The buffers of request bodies, bounded for each client and in total.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::{RequestBodyLimits, Uploads};
use crate::identify::Client;
use crate::upstream::BodyFault;

/// The buffered bytes of all bodies.
#[derive(Debug, Default)]
pub(super) struct BufferUse {
    pub(super) bytes: u64,
    /// By client.
    pub(super) clients: HashMap<Option<Client>, u64, RandomState>,
}

impl BufferUse {
    /// Adds bytes of a client if both bounds allow it; returns whether they do.
    fn add(&mut self, client: Option<Client>, more: u64, limits: &RequestBodyLimits) -> bool {
        let own = self.clients.get(&client).copied().unwrap_or(0);
        let fits = own + more <= limits.max_buffered_per_client
            && self.bytes + more <= limits.max_buffered;
        if fits {
            self.bytes += more;
            self.clients.insert(client, own + more);
        }
        fits
    }

    fn remove(&mut self, client: Option<Client>, bytes: u64) {
        self.bytes -= bytes;
        if let Some(own) = self.clients.get_mut(&client) {
            *own -= bytes;
            if *own == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

/// The buffer of one body. It counts until its last handle is dropped, which is after
/// it has been sent.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Its capacity, as far as it is counted in [`BufferUse`].
    counted: u64,
    uploads: Arc<Uploads>,
    client: Option<Client>,
}

/// The smallest buffer, in bytes.
const FIRST: usize = 1024;

impl Buffer {
    /// An empty buffer.
    pub(super) fn new(uploads: &Arc<Uploads>, client: Option<Client>) -> Self {
        Self {
            bytes: Vec::new(),
            counted: 0,
            uploads: uploads.clone(),
            client,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends data.
    ///
    /// # Errors
    /// [`BodyFault::NoRoom`] if a bound on buffered bytes would be exceeded.
    pub(super) fn extend(
        &mut self,
        data: &[u8],
        limits: &RequestBodyLimits,
    ) -> Result<(), BodyFault> {
        let length = self.bytes.len() + data.len();
        if length > self.bytes.capacity() {
            let most = usize::try_from(limits.buffer).unwrap_or(usize::MAX);
            let capacity = length.next_power_of_two().max(FIRST).min(most);
            let more = capacity as u64 - self.counted;
            if !self.uploads.state().add(self.client, more, limits) {
                return Err(BodyFault::NoRoom);
            }
            self.counted = capacity as u64;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.uploads.state().remove(self.client, self.counted);
        }
    }
}
