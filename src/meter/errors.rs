//! The last errors that clients were answered with: those with a 5xx status. Off the hit
//! path; bounded, however many there are.

use std::collections::VecDeque;
use std::sync::Mutex;

use http::{Method, StatusCode};

use crate::client_tokens::redact;
use crate::clock::Moment;
use crate::identify::Client;
use crate::reason::Reason;
use crate::sync::lock;
use crate::trace::method_name;
use crate::wire::request_id::RequestId;

/// How many are kept.
const KEPT: usize = 64;
/// How much of a target, and of a cause, is kept, in bytes.
const MOST_TEXT: usize = 256;

/// The last errors.
#[derive(Debug, Default)]
pub struct RecentErrors(Mutex<VecDeque<AnsweredError>>);

/// An error that a client was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnsweredError {
    pub(crate) at: Moment,
    /// The client whose request it was.
    pub(crate) client: Client,
    /// `_OTHER` for one that is not standard, which may be anything.
    pub(crate) method: &'static str,
    /// Path and query, at most 256 bytes of it, without client tokens.
    pub(crate) target: Box<str>,
    /// Whether that is not all of it.
    pub(crate) is_cut: bool,
    pub(crate) status: StatusCode,
    /// Why, as one word.
    pub(crate) reason: Reason,
    /// A sentence, at most 256 bytes of it.
    pub(crate) cause: Box<str>,
    pub(crate) request_id: RequestId,
}

impl AnsweredError {
    /// An error, its texts cut to their bounds and without client tokens.
    pub(crate) fn new(
        (at, request_id, client): (Moment, RequestId, Client),
        method: &Method,
        target: &str,
        status: StatusCode,
        (reason, cause): (Reason, &str),
    ) -> Self {
        let kept = redact(target, MOST_TEXT);
        Self {
            at,
            client,
            method: method_name(method),
            is_cut: *kept != *target,
            target: (&*kept).into(),
            status,
            reason,
            cause: (&*redact(cause, MOST_TEXT)).into(),
            request_id,
        }
    }
}

impl RecentErrors {
    /// Records an error. In place of it, the oldest of the client with the most is
    /// forgotten: one client's errors leave those of others.
    pub(crate) fn record(&self, error: AnsweredError) {
        let mut errors = lock(&self.0);
        errors.push_back(error);
        if errors.len() <= KEPT {
            return;
        }
        let of = |client: Client| errors.iter().filter(|one| one.client == client).count();
        // Of equals it is the last, which is the oldest.
        let most = (0..errors.len())
            .rev()
            .max_by_key(|at| of(errors[*at].client));
        if let Some(at) = most {
            errors.remove(at);
        }
    }

    /// All that are kept, the newest first.
    pub(crate) fn last(&self) -> Vec<AnsweredError> {
        lock(&self.0).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(second: u64, method: &Method, target: &str) -> AnsweredError {
        error_of(Client::V4(1), second, method, target)
    }

    fn error_of(client: Client, second: u64, method: &Method, target: &str) -> AnsweredError {
        let at = Moment::from_nanos(second * 1_000_000_000);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let id = RequestId::new(second);
        let why = (Reason::NoSlot, &*"x".repeat(999));
        AnsweredError::new((at, id, client), method, target, status, why)
    }

    #[test]
    fn one_clients_errors_leave_those_of_others() {
        let errors = RecentErrors::default();
        let (honest, hostile) = (Client::V4(1), Client::V4(2));
        for second in 0..10 {
            errors.record(error_of(honest, second, &Method::GET, "/a"));
        }
        for second in 10..1000 {
            errors.record(error_of(hostile, second, &Method::GET, "/b"));
        }
        let last = errors.last();
        assert_eq!(last.len(), KEPT);
        let of_honest = last.iter().filter(|error| error.client == honest);
        assert_eq!(of_honest.count(), 10);
        // Of the other the newest are kept.
        let oldest = last.iter().rfind(|error| error.client == hostile).unwrap();
        assert_eq!(oldest.at.nanos() / 1_000_000_000, 1000 - 54);
    }

    #[test]
    fn the_newest_are_kept_and_cut_to_their_bounds() {
        let errors = RecentErrors::default();
        for second in 0..KEPT as u64 + 10 {
            errors.record(error(second, &Method::GET, "/a"));
        }
        let last = errors.last();
        let seconds: Vec<_> = last
            .iter()
            .map(|error| error.at.nanos() / 1_000_000_000)
            .collect();
        let expected: Vec<_> = (10..KEPT as u64 + 10).rev().collect();
        assert_eq!(seconds, expected);
        let long = Method::from_bytes("M".repeat(5000).as_bytes()).unwrap();
        // target, how much of it is kept
        for (target, kept) in [
            ("/a".to_owned(), 2),
            ("/".repeat(MOST_TEXT), MOST_TEXT),
            ("/".repeat(MOST_TEXT + 1), MOST_TEXT),
            (format!("/{}", "ä".repeat(500)), MOST_TEXT - 1),
        ] {
            let error = error(0, &long, &target);
            assert_eq!((error.target.len(), error.cause.len()), (kept, MOST_TEXT));
            assert_eq!(error.is_cut, kept < target.len());
            assert_eq!(error.method, "_OTHER");
        }
    }
}
