//! The last requests, for `GET /sandbox/journal`.
//!
//! `server` records each request when its answer is decided. Invariants: memory is bounded; of a key, only that there was
//! one is recorded. Control requests are not recorded.

use std::collections::VecDeque;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::api::Api;

/// The most requests that are kept, for all servers together.
pub(super) const MOST_REQUESTS: u32 = 1_000;

/// The most bytes of a target that are kept.
const MAX_TARGET: usize = 512;

/// The most bytes of a method that are kept.
const MAX_METHOD: usize = 32;

/// A request and its answer.
#[derive(Debug)]
pub(super) struct JournalEntry {
    /// The request's number, counted over all servers from one.
    pub(super) number: u64,
    /// Milliseconds from the start to its arrival.
    pub(super) at: u64,
    pub(super) api: Api,
    pub(super) method: String,
    pub(super) target: String,
    /// None if there was no answer: the connection was closed, by either side.
    pub(super) status: Option<StatusCode>,
    pub(super) fault: Option<&'static str>,
    pub(super) latency: Duration,
    pub(super) has_key: bool,
    /// Whether the client closed the connection while it waited for the answer.
    pub(super) gave_up: bool,
}

/// Cuts a text to so many bytes at most, and frees the rest.
fn shorten(text: &mut String, most: usize) {
    let end = (0..=most).rfind(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.shrink_to_fit();
}

/// The journal: the last requests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Journal(VecDeque<JournalEntry>);

impl Journal {
    pub(super) fn record(&mut self, mut entry: JournalEntry) {
        shorten(&mut entry.target, MAX_TARGET);
        shorten(&mut entry.method, MAX_METHOD);
        if self.0.len() >= MOST_REQUESTS as usize {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }

    /// The last requests to the server of this API, the newest first.
    pub(super) fn last(&self, api: Api, most: u32) -> Value {
        let here = self.0.iter().rev();
        let here = here.filter(|entry| api == Api::Both || entry.api == api);
        let entries = here.take(most as usize).map(|entry| {
            json!({
                "number": entry.number,
                "at_ms": entry.at,
                "method": entry.method,
                "target": entry.target,
                "status": entry.status.map(|status| status.as_u16()),
                "fault": entry.fault,
                "latency_ms": entry.latency.as_secs_f64() * 1_000.0,
                "key": if entry.has_key { "sent" } else { "none" },
                "gave_up": entry.gave_up,
            })
        });
        json!({ "requests": entries.collect::<Vec<_>>() })
    }
}
