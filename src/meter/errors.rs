//! The last errors that clients were answered with: those with a 5xx status. Off the hit
//! path; bounded, however many there are.

use std::collections::VecDeque;
use std::sync::Mutex;

use http::{Method, StatusCode};

use crate::clock::Moment;
use crate::sync::lock;
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
    pub(crate) method: Method,
    /// Path and query, at most 256 bytes of it.
    pub(crate) target: Box<str>,
    /// Whether that is not all of it.
    pub(crate) is_cut: bool,
    pub(crate) status: StatusCode,
    /// One word.
    pub(crate) reason: &'static str,
    /// A sentence, at most 256 bytes of it.
    pub(crate) cause: Box<str>,
    pub(crate) request_id: RequestId,
}

impl AnsweredError {
    /// An error, its texts cut to their bounds.
    pub(crate) fn new(
        (at, request_id): (Moment, RequestId),
        method: &Method,
        target: &str,
        status: StatusCode,
        (reason, cause): (&'static str, &str),
    ) -> Self {
        let kept = cut(target);
        Self {
            at,
            method: bounded(method),
            target: kept.into(),
            is_cut: kept.len() < target.len(),
            status,
            reason,
            cause: cut(cause).into(),
            request_id,
        }
    }
}

impl RecentErrors {
    /// Records an error.
    pub(crate) fn record(&self, error: AnsweredError) {
        let mut errors = lock(&self.0);
        if errors.len() >= KEPT {
            errors.pop_front();
        }
        errors.push_back(error);
    }

    /// All that are kept, the newest first.
    pub(crate) fn last(&self) -> Vec<AnsweredError> {
        lock(&self.0).iter().rev().cloned().collect()
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}

/// A method; a long one, which may be anything, is replaced.
fn bounded(method: &Method) -> Method {
    const LONGEST: usize = 32;
    match method.as_str().len() <= LONGEST {
        true => method.clone(),
        false => Method::from_bytes(b"TOO-LONG").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(second: u64, method: &Method, target: &str) -> AnsweredError {
        let at = Moment::from_nanos(second * 1_000_000_000);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let id = RequestId::new(second);
        AnsweredError::new((at, id), method, target, status, ("busy", &"x".repeat(999)))
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
            assert_eq!(error.method.as_str(), "TOO-LONG");
        }
    }
}
