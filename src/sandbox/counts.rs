//! Counts of requests and answers.
//!
//! `server` counts; `Sandbox::counts` and `GET /sandbox/counts` read. Control requests are not counted. Invariants: a
//! request is counted on arrival and its answer when it is decided, so there are never more answers than requests; the
//! peaks are exact to the millisecond.

use super::api::Route;
use super::rate::RateWindow;

/// A snapshot of the counts since the sandbox was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All requests except control requests.
    pub total: u64,
    /// Requests for a token.
    pub token: u64,
    /// Requests for the activity of a transaction.
    pub transaction: u64,
    /// Requests for the activity of a block.
    pub block: u64,
    /// Requests for the two status paths.
    pub status: u64,
    /// Requests for the status of the runes indexer.
    pub runes_status: u64,
    /// Requests for the status of the ordinals indexer.
    pub ordinals_status: u64,
    /// Requests for any other path.
    pub other: u64,
    /// Answers with a status of 200 to 299.
    pub success: u64,
    /// Answers with a status of 300 to 399.
    pub redirection: u64,
    /// Answers with a status of 400 to 499.
    pub client_error: u64,
    /// Answers with a status of 500 to 599.
    pub server_error: u64,
    /// Requests whose connection was closed without an answer.
    pub unanswered: u64,
    /// The most requests that arrived within any 60 seconds.
    pub busiest_minute: u32,
    /// The most requests that arrived within any second.
    pub busiest_second: u32,
}

impl Counts {
    /// The body of `GET /sandbox/counts`.
    pub(super) fn to_json(self) -> serde_json::Value {
        serde_json::json!({
            "total": self.total,
            "endpoints": {
                "token": self.token,
                "transaction": self.transaction,
                "block": self.block,
                "runes_status": self.runes_status,
                "ordinals_status": self.ordinals_status,
                "other": self.other,
            },
            "status": self.status,
            "answers": {
                "2xx": self.success,
                "3xx": self.redirection,
                "4xx": self.client_error,
                "5xx": self.server_error,
                "unanswered": self.unanswered,
            },
            "busiest_minute": self.busiest_minute,
            "busiest_second": self.busiest_second,
        })
    }
}

/// The counts and the windows behind the peaks.
#[derive(Debug)]
pub(super) struct Counter {
    counts: Counts,
    minute: RateWindow,
    second: RateWindow,
}

impl Counter {
    pub(super) fn new() -> Self {
        Self {
            counts: Counts::default(),
            minute: RateWindow::new(60_000),
            second: RateWindow::new(1_000),
        }
    }

    /// Counts a request at `now` (milliseconds) and returns its number, from one.
    pub(super) fn count_request(&mut self, route: &Route, now: u64) -> u64 {
        let counts = &mut self.counts;
        counts.total += 1;
        match route {
            Route::Token(_) => counts.token += 1,
            Route::Transaction(_) => counts.transaction += 1,
            Route::Block(_) => counts.block += 1,
            Route::RunesStatus => {
                counts.status += 1;
                counts.runes_status += 1;
            }
            Route::OrdinalsStatus => {
                counts.status += 1;
                counts.ordinals_status += 1;
            }
            Route::Unknown => counts.other += 1,
        }
        counts.busiest_minute = counts.busiest_minute.max(self.minute.add(now));
        counts.busiest_second = counts.busiest_second.max(self.second.add(now));
        counts.total
    }

    /// Counts an answer; `None` if the connection was closed without one.
    pub(super) const fn count_answer(&mut self, status: Option<http::StatusCode>) {
        let counts = &mut self.counts;
        let class = match status {
            None => &mut counts.unanswered,
            Some(status) => match status.as_u16() {
                200..300 => &mut counts.success,
                300..400 => &mut counts.redirection,
                400..500 => &mut counts.client_error,
                _ => &mut counts.server_error,
            },
        };
        *class += 1;
    }

    pub(super) const fn snapshot(&self) -> Counts {
        self.counts
    }
}
