//! Purges and removals, which are recorded before they apply where something is kept on
//! disk.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{Store, hash};
use crate::cache::key::Key;
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::cache::stored::Attachment;
use crate::sync::lock;

/// Where purges and removals are recorded, if anywhere. The lock keeps them in the order
/// of their numbers.
#[derive(Default)]
pub(super) struct Recorder(Mutex<Option<Arc<dyn PurgeRecorder>>>);

impl Recorder {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn PurgeRecorder>>> {
        lock(&self.0)
    }
}

impl<A: Attachment> Store<A> {
    /// Records purges and removals from now on. To be called before there are any.
    pub(crate) fn record(&self, recorder: Arc<dyn PurgeRecorder>) {
        *self.recorder.lock() = Some(recorder);
    }

    /// Purges. Once this returns, no request that begins later is answered with
    /// a matching response, whether it is stored now or still being fetched.
    /// Returns the purge's number.
    pub fn purge(&self, purge: Purge) -> u64 {
        let recorder = self.recorder.lock();
        if let Some(recorder) = &*recorder {
            recorder.purge(self.purges.last() + 1, &purge);
        }
        self.purges.push(purge)
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&self, key: &Key) {
        let recorder = self.recorder.lock();
        if let Some(recorder) = &*recorder {
            let next = self.removals().next();
            recorder.remove(next, key.as_bytes());
        }
        self.removals().push(hash(key.as_bytes()));
        drop(recorder);
        self.invalidate(key);
    }

    /// Removes the entry of a key here, and in the store that has replaced this one.
    fn invalidate(&self, key: &Key) {
        self.cache.invalidate(key.as_bytes());
        if let Some(next) = self.next.get() {
            next.invalidate(key);
        }
    }
}
