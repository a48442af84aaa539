//! What a hosted provider puts in front of the reference, and what goes wrong there: key check, rate limit, faults; and
//! the counts and the journal of requests.
//!
//! `server` hands over each request but those for control routes. The forms of refusals are those that providers
//! document. Invariants: a key is never kept, logged or echoed; a refused request does not count against the limit; the
//! same seed gives the same latencies and faults in the order of the requests.

use std::collections::VecDeque;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Settings;
use super::answer::{Answer, database_error};
use super::api::{Api, Model, Resource};
use super::mix::{mix2, share};

/// The most requests of a minute that are counted and limited exactly.
const MOST_A_MINUTE: usize = 100_000;
/// The most faults at a time.
const MOST_FAULTS: usize = 1_000;
/// The most requests in the journal.
const JOURNAL: usize = 100;

/// A fault, and the requests to which it applies.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// The number of requests; `u32::MAX` lasts until it is cleared.
    pub times: u32,
    /// How the path begins; without it the fault applies to all paths.
    pub path: Option<String>,
    /// The share of the requests that it applies to, from 0 to 1. The seed and the request's number decide which.
    pub chance: f64,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug)]
pub enum FaultKind {
    /// This status instead of the answer: 500 as the reference has it, others as a provider has them.
    Status(StatusCode),
    /// The connection closes without an answer.
    Close,
    /// The right answer, later by this time.
    Stall(Duration),
}

impl Fault {
    /// A fault for the next request, whatever its path.
    #[must_use]
    pub const fn once(kind: FaultKind) -> Self {
        Self {
            kind,
            times: 1,
            path: None,
            chance: 1.0,
        }
    }

    /// The same fault for this number of requests.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// The counts since the start. Control requests are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All requests.
    pub total: u64,
    /// Requests for a token.
    pub token: u64,
    /// Requests for the activity of a transaction.
    pub transaction: u64,
    /// Requests for the activity of a block.
    pub block: u64,
    /// Requests for the two status paths.
    pub status: u64,
    /// Requests for any other path, or for a path of the other API.
    pub other: u64,
    /// Answers with a status of 400 to 499.
    pub client_errors: u64,
    /// The most requests that arrived within any 60 seconds, up to 100,000.
    pub busiest_minute: usize,
}

/// The moments of the last minute's requests.
#[derive(Default)]
struct Minute(VecDeque<Instant>);

impl Minute {
    const SPAN: Duration = Duration::from_secs(60);

    /// The number of requests that are less than a minute old.
    fn count(&mut self, now: Instant) -> usize {
        let is_old = |at: &Instant| now.duration_since(*at) >= Self::SPAN;
        self.0.drain(..self.0.partition_point(is_old));
        self.0.len()
    }

    fn add(&mut self, now: Instant) {
        if self.0.len() < MOST_A_MINUTE {
            self.0.push_back(now);
        }
    }

    /// Seconds, rounded up, until the oldest request is a minute old.
    fn reset(&self, now: Instant) -> u64 {
        let age = self
            .0
            .front()
            .map_or(Duration::ZERO, |first| now.duration_since(*first));
        let left = Self::SPAN.saturating_sub(age);
        (left.as_millis() as u64).div_ceil(1_000).max(1)
    }
}

/// The state of the provider, in front of both servers.
#[derive(Default)]
pub(super) struct Provider {
    pub(super) counts: Counts,
    minute: Minute,
    /// The requests with each key that is required; the first are those of everybody if none is.
    by_key: Vec<Minute>,
    pub(super) faults: Vec<Fault>,
    /// The last requests, the newest first.
    pub(super) journal: VecDeque<Value>,
}

impl Provider {
    /// Decides on a request: the answer and how long it takes; without an answer, the connection closes.
    pub(super) fn receive(
        &mut self,
        settings: &Settings,
        model: &Model,
        api: Api,
        request: &Parts,
        now: Instant,
    ) -> (Option<Answer>, Duration) {
        let counts = &mut self.counts;
        counts.total += 1;
        *match Resource::of(api, request.uri.path()) {
            Some(Resource::Token(_)) => &mut counts.token,
            Some(Resource::Transaction(_)) => &mut counts.transaction,
            Some(Resource::Block(_)) => &mut counts.block,
            Some(Resource::OrdinalsStatus | Resource::RunesStatus) => &mut counts.status,
            None => &mut counts.other,
        } += 1;
        self.minute.add(now);
        counts.busiest_minute = counts.busiest_minute.max(self.minute.count(now));
        let number = counts.total;
        let random = |salt: u64| share(mix2(settings.seed ^ salt, number));
        // The cube makes most answers as quick as the least, and few as slow as the most.
        let (least, most) = (*settings.latency.start(), *settings.latency.end());
        let late = random(0x6c_6174_6500).powi(3);
        let mut wait = least + most.saturating_sub(least).mul_f64(late);
        let fault = self.take_fault(request.uri.path(), random(0x63_6861_6e63));
        if let Some(FaultKind::Stall(delay)) = fault {
            wait += delay;
        }
        let answer = match fault {
            Some(FaultKind::Close) => None,
            Some(FaultKind::Status(status)) => Some(failed(status)),
            Some(FaultKind::Stall(_)) | None => {
                Some(self.answer(settings, model, api, request, now))
            }
        };
        let items = answer.as_ref().map_or(0, |answer| answer.items as u32);
        let status = answer.as_ref().map(|answer| answer.status);
        if status.is_some_and(|status| status.is_client_error()) {
            self.counts.client_errors += 1;
        }
        self.journal.truncate(JOURNAL - 1);
        self.journal.push_front(json!({
            "number": number,
            "method": request.method.as_str(),
            "target": request.uri.path_and_query().map(|target| target.as_str()),
            "status": status.map(|status| status.as_u16()),
        }));
        (answer, wait + settings.item_cost * items)
    }

    /// Adds a fault, unless there are too many.
    pub(super) fn add_fault(&mut self, fault: Fault) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(fault);
        }
    }

    /// The first fault that applies to a path. `random` is from 0 to 1.
    fn take_fault(&mut self, path: &str, random: f64) -> Option<FaultKind> {
        let position = self.faults.iter().position(|fault| {
            let prefix = fault.path.as_deref().unwrap_or("");
            path.starts_with(prefix) && random < fault.chance
        })?;
        let fault = &mut self.faults[position];
        let kind = fault.kind;
        match fault.times {
            1 => drop(self.faults.remove(position)),
            u32::MAX => {}
            _ => fault.times -= 1,
        }
        Some(kind)
    }

    /// The refusal for a wrong key or a spent limit, or else the model's answer.
    fn answer(
        &mut self,
        settings: &Settings,
        model: &Model,
        api: Api,
        request: &Parts,
        now: Instant,
    ) -> Answer {
        let given = request.headers.get("x-api-key").map(HeaderValue::as_bytes);
        let key = match settings.require_key.as_deref() {
            None => Some(0),
            Some(known) => known
                .split(',')
                .position(|known| Some(known.trim().as_bytes()) == given),
        };
        let Some(key) = key else {
            return Answer::provider(StatusCode::UNAUTHORIZED, "Unauthorized");
        };
        let Some(limit) = settings.requests_per_minute else {
            return model.answer(api, request);
        };
        if self.by_key.len() <= key {
            self.by_key.resize_with(key + 1, Minute::default);
        }
        let (minute, limit) = (&mut self.by_key[key], limit as usize);
        let mut answer = if minute.count(now) < limit {
            minute.add(now);
            model.answer(api, request)
        } else {
            let mut answer = Answer::provider(StatusCode::TOO_MANY_REQUESTS, "Too Many Requests");
            answer.headers.insert(RETRY_AFTER, minute.reset(now).into());
            answer
        };
        let fields = &mut answer.headers;
        fields.insert("ratelimit-limit", limit.into());
        fields.insert("ratelimit-remaining", (limit - minute.count(now)).into());
        fields.insert("ratelimit-reset", minute.reset(now).into());
        answer
    }
}

/// The answer of a fault.
fn failed(status: StatusCode) -> Answer {
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        let body = database_error("57014", "canceling statement due to statement timeout");
        return Answer::new(status, None, &body);
    }
    let mut answer = Answer::provider(status, status.canonical_reason().unwrap_or("Fault"));
    if status == StatusCode::TOO_MANY_REQUESTS {
        answer.headers.insert(RETRY_AFTER, 1.into());
    }
    answer
}

#[cfg(test)]
mod tests;
