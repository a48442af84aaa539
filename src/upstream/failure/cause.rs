//! The causes of failures, for the operator.

use super::{Failure, TimedOut};

/// Why a request failed, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// What failed, in more detail than the error types of RFC 9209.
    pub(crate) kind: &'static str,
    /// The texts of the error and of its causes, the outermost first.
    pub(crate) texts: Vec<String>,
}

impl Cause {
    /// The cause of a failure that has no error.
    pub(crate) fn of(failure: &Failure) -> Self {
        let (kind, text) = match failure {
            Failure::TimedOut(TimedOut::Connect) => {
                ("connect_timeout", "no connection within connect_timeout")
            }
            Failure::TimedOut(TimedOut::FirstByte) => (
                "first_byte_timeout",
                "no response has begun within first_byte_timeout",
            ),
            Failure::TimedOut(TimedOut::Body) => (
                "body_stalled",
                "nothing of the response body was received for response_body.grace, or it fell behind response_body.min_rate by that time",
            ),
            Failure::TimedOut(TimedOut::Whole) => ("timeout", "no whole response within timeout"),
            Failure::Incomplete => ("body_incomplete", "the response was truncated"),
            Failure::NotJson => ("not_json", "the answer is not JSON"),
            Failure::Protocol => ("malformed_answer", "the answer is not HTTP"),
            Failure::Retired => ("retired", "the endpoint has been retired"),
            Failure::Redirect(_) => ("redirect", "the upstream redirects"),
            Failure::ServerError { .. } => {
                ("server_error", "the upstream answers with a server error")
            }
            Failure::UnexpectedStatus(_) => {
                ("unexpected_status", "the API does not use this status")
            }
            Failure::Unreachable(_)
            | Failure::Terminated
            | Failure::TooLarge
            | Failure::KeyEchoed
            | Failure::KeyRefused(_)
            | Failure::TargetRefused(_)
            | Failure::NoSuchRoute { .. }
            | Failure::Throttled { .. }
            | Failure::Spent { .. }
            | Failure::TooManyInFlight
            | Failure::BreakerOpen { .. }
            | Failure::Abandoned
            | Failure::Unsettled
            | Failure::RequestBody(_) => (failure.name(), "no further cause is known"),
        };
        let status = failure.upstream_status();
        let status = status.map(|status| format!("status {}", status.as_u16()));
        Self {
            kind,
            texts: [text.to_owned()].into_iter().chain(status).collect(),
        }
    }

    /// The cause of a probe that was given up after a long time.
    pub(crate) fn overdue() -> Self {
        Self {
            kind: "probe_overdue",
            texts: vec!["a probe was given up after a long time".to_owned()],
        }
    }
}
