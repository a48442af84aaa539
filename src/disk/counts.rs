//! What the tier has done, for `/status` and `/metrics`.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) unchecked: AtomicU64,
    pub(super) outdated: AtomicU64,
    pub(super) discarded: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) errors: AtomicU64,
    /// Bytes of the files that have no responses.
    pub(super) other_bytes: AtomicU64,
    /// When responses were last evicted, and the purge log was last written anew because
    /// it was long, in nanoseconds; 0 for never.
    pub(super) last_eviction: AtomicU64,
    pub(super) last_compaction: AtomicU64,
}

/// The tier as `/status` shows it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DiskSnapshot {
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Their bound.
    pub(crate) max_bytes: u64,
    /// Stored values.
    pub(crate) entries: u64,
    /// The values that were there at the start.
    pub(crate) recovered: u64,
    /// Reads that found a response.
    pub(crate) hits: u64,
    /// Reads that found none.
    pub(crate) misses: u64,
    /// Reads that found a response whose blocks are not known to stand.
    pub(crate) unchecked: u64,
    /// Reads that found a response which was purged, or whose age is unknown.
    pub(crate) outdated: u64,
    /// Reads that found a value of another form, or of another route.
    pub(crate) discarded: u64,
    /// Requests that went on without a read, because too many waited.
    pub(crate) skipped: u64,
    /// Requests that went on before their read had ended.
    pub(crate) late: u64,
    /// Values written.
    pub(crate) written: u64,
    /// Responses that were not written: the queue was full, or the tier paused.
    pub(crate) dropped: u64,
    /// Values that were evicted.
    pub(crate) evicted: u64,
    /// Seconds since the last eviction.
    pub(crate) last_eviction_seconds_ago: Option<u64>,
    /// Seconds since the purge log was last written anew because it was long.
    pub(crate) last_compaction_seconds_ago: Option<u64>,
    /// Responses that wait to be written.
    pub(crate) queued: u64,
    /// Faults of the disk.
    pub(crate) errors: u64,
    /// What is not used for a while, after a fault.
    pub(crate) paused: DiskPauses,
    /// The number of the last recorded purge.
    pub(crate) last_purge: u64,
    /// Bytes of the purge log.
    pub(crate) purge_log_bytes: u64,
    /// Purges and removals that the next process could lack, if this one ended now.
    pub(crate) unrecorded_purges: u64,
}

/// What is not used for a while, after a fault.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DiskPauses {
    /// Reading responses.
    pub(crate) reading: bool,
    /// Writing responses.
    pub(crate) writing: bool,
    /// The purge log, without which nothing on disk is used, and the other small files.
    pub(crate) purges: bool,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
