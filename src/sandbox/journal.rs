//! The last requests, for `GET /sandbox/journal`.
//!
//! `server` records each request when its answer is decided. Invariants: memory is bounded; of a key, only that there was
//! one is recorded. Control requests are not recorded.

use std::collections::VecDeque;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::api::Api;

/// The most requests that are kept, for all servers together.
pub(super) const MOST_REQUESTS: u32 = 1_000;

/// The most bytes of a target that are kept.
const MAX_TARGET: usize = 512;

/// A request and its answer.
#[derive(Debug)]
pub(super) struct JournalEntry {
    /// The request's number, counted over all servers from one.
    pub(super) number: u64,
    /// Milliseconds from the start to its arrival.
    pub(super) at: u64,
    pub(super) api: Api,
    pub(super) method: Method,
    pub(super) target: String,
    /// None if the connection was closed without an answer.
    pub(super) status: Option<StatusCode>,
    pub(super) fault: Option<&'static str>,
    pub(super) latency: Duration,
    pub(super) has_key: bool,
}

/// The journal: the last requests, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Journal(VecDeque<JournalEntry>);

impl Journal {
    pub(super) fn record(&mut self, mut entry: JournalEntry) {
        if entry.target.len() > MAX_TARGET {
            let end = (0..=MAX_TARGET).rfind(|at| entry.target.is_char_boundary(*at));
            entry.target.truncate(end.unwrap_or(0));
            entry.target.shrink_to_fit();
        }
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
                "method": entry.method.as_str(),
                "target": entry.target,
                "status": entry.status.map(|status| status.as_u16()),
                "fault": entry.fault,
                "latency_ms": entry.latency.as_secs_f64() * 1_000.0,
                "key": if entry.has_key { "sent" } else { "none" },
            })
        });
        json!({ "requests": entries.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::{Api, Duration, Journal, JournalEntry, MAX_TARGET, MOST_REQUESTS, Method};

    fn entry(number: u64, api: Api) -> JournalEntry {
        JournalEntry {
            number,
            at: 0,
            api,
            method: Method::GET,
            target: format!("/{number}/{}", "é".repeat(MAX_TARGET)),
            status: None,
            fault: None,
            latency: Duration::ZERO,
            has_key: true,
        }
    }

    #[test]
    fn the_journal_is_bounded_and_newest_first() {
        let mut journal = Journal::default();
        for number in 0..u64::from(2 * MOST_REQUESTS) {
            let api = [Api::Runes, Api::Ordinals][usize::from(number % 2 == 1)];
            journal.record(entry(number, api));
        }
        assert_eq!(journal.0.len(), MOST_REQUESTS as usize);
        assert!(
            journal
                .0
                .iter()
                .all(|entry| entry.target.len() <= MAX_TARGET)
        );
        let numbers = |api, most| {
            let listed = journal.last(api, most);
            let requests = listed["requests"].as_array().unwrap().clone();
            let numbers = requests.iter().map(|one| one["number"].as_u64().unwrap());
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(numbers(Api::Both, 2), [1_999, 1_998]);
        assert_eq!(numbers(Api::Runes, 2), [1_998, 1_996]);
    }
}
