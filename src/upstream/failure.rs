//! How asking the upstream fails: the names that RFC 9209 has for it, what the
//! operator is told, and what each failure says of the upstream's health.
//!
//! Deliberately absent: what a client is told (`refusal`).

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::upstream::client::upload::BodyFault;
use crate::upstream::endpoint::breaker::RequestOutcome;

/// How asking the upstream failed: RFC 9209's names where it has one, each with
/// whose doing it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Ours: the budget is spent.
    Spent {
        /// When there will be some again.
        retry_after: Duration,
    },
    /// Ours: as many requests are under way as may be.
    TooManyInFlight,
    /// It has refused or closed the connection, or has answered 503, while it
    /// answered others: more were under way than it takes.
    Excess {
        /// 503, where it has answered at all.
        status: Option<StatusCode>,
        /// When it means to take more, where it has said so.
        retry_after: Option<Duration>,
    },
    /// It goes on failing, and is left alone for a while.
    BreakerOpen {
        /// When it will be asked again.
        retry_after: Duration,
    },
    /// Its name does not resolve, or nobody listens there.
    Unreachable(Unreachable),
    /// Connecting, or the first byte, or more of a body, or the whole took too
    /// long.
    TimedOut(TimedOut),
    /// The connection ended before an answer began.
    Terminated,
    /// It was sent, and the server says that it has not processed it: HTTP/2's
    /// REFUSED_STREAM, or GOAWAY (RFC 9113 §8.7).
    NotProcessed,
    /// The answer ended before its end.
    Incomplete,
    /// The answer's body is larger than is accepted.
    TooLarge,
    /// The answer is not HTTP.
    Protocol,
    /// JSON was promised, something else came.
    NotJson,
    /// It says a key of ours back.
    KeyEchoed,
    /// It points elsewhere.
    Redirect(StatusCode),
    /// It failed itself.
    ServerError {
        /// Its status.
        status: StatusCode,
        /// When it means to be well again, where it has said so.
        retry_after: Option<Duration>,
    },
    /// A status that the API has no meaning for.
    UnexpectedStatus(StatusCode),
    /// It does not accept our key.
    KeyRefused(StatusCode),
    /// It accepts our key, and refuses what was asked for.
    TargetRefused(StatusCode),
    /// The server there is perhaps another one: its web framework answers that it
    /// has no such route.
    NoSuchRoute {
        /// The base URL of the endpoint that answers so.
        endpoint: Arc<str>,
    },
    /// It has had enough of our requests.
    Throttled {
        /// When it will take more.
        retry_after: Duration,
    },
    /// 410: this upstream serves no longer.
    Retired,
    /// Ours: the task that asked has ended without an answer.
    Abandoned,
    /// Ours: whatever came had been overtaken by a reorg or a purge.
    Unsettled,
    /// The client's: something is wrong with its request's body.
    RequestBody(BodyFault),
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The connection was refused.
    Refused,
    /// TLS could not be agreed on.
    Tls,
    /// The server has ended the TLS handshake with an alert.
    Alert,
    /// The server demands a TLS client certificate.
    ClientCertificate,
    /// Its certificate is not to be trusted.
    Certificate,
    /// Its name does not resolve.
    Name,
    /// Its network or host cannot be reached.
    NoRoute,
    /// Another reason.
    Other,
}

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// Connecting.
    Connect,
    /// The first byte.
    FirstByte,
    /// More of a body: nothing came of it, or too little.
    Body,
    /// The whole.
    Whole,
}

impl Failure {
    /// The proxy error type of RFC 9209 §2.3.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Spent { .. } | Self::TooManyInFlight | Self::Excess { .. } => {
                "connection_limit_reached"
            }
            Self::Unreachable(Unreachable::Refused) => "connection_refused",
            Self::Unreachable(Unreachable::Tls) => "tls_protocol_error",
            Self::Unreachable(Unreachable::Certificate) => "tls_certificate_error",
            Self::Unreachable(Unreachable::Alert | Unreachable::ClientCertificate) => {
                "tls_alert_received"
            }
            Self::Unreachable(Unreachable::Name) => "dns_error",
            Self::Unreachable(Unreachable::NoRoute) => "destination_ip_unroutable",
            Self::BreakerOpen { .. } | Self::Unreachable(Unreachable::Other) => {
                "destination_unavailable"
            }
            Self::TimedOut(TimedOut::Connect) => "connection_timeout",
            Self::TimedOut(TimedOut::FirstByte | TimedOut::Whole) => "http_response_timeout",
            Self::TimedOut(TimedOut::Body) => "connection_read_timeout",
            Self::Terminated | Self::NotProcessed => "connection_terminated",
            Self::Incomplete => "http_response_incomplete",
            Self::TooLarge => "http_response_body_size",
            Self::Protocol
            | Self::NotJson
            | Self::KeyEchoed
            | Self::Redirect(_)
            | Self::UnexpectedStatus(_)
            | Self::ServerError { .. }
            | Self::KeyRefused(_)
            | Self::TargetRefused(_)
            | Self::Throttled { .. }
            | Self::Retired => "http_protocol_error",
            Self::NoSuchRoute { .. } => "destination_not_found",
            Self::Abandoned | Self::Unsettled => "proxy_internal_error",
            Self::RequestBody(BodyFault::NoRoom) => "proxy_internal_response",
            Self::RequestBody(_) => "http_request_error",
        }
    }

    /// Tells the operator what clients are not told.
    pub fn report(&self, target: &str) {
        if let Self::KeyRefused(status) = self {
            // The key's quarantine has been told by its name, once.
            tracing::debug!(%status, "the upstream refuses the API key");
        } else if let Self::TargetRefused(status) = self {
            // A key check has told of it, at most once a minute in the long run.
            tracing::debug!(target_path = target, %status, "the upstream refuses a target");
        } else if let Self::NoSuchRoute { endpoint } = self {
            // That has been told by its route's name, once.
            tracing::debug!(
                target_path = target,
                endpoint = &**endpoint,
                "no such route"
            );
        } else if *self == Self::Retired {
            // That has been told by the upstream's name, once.
            tracing::debug!("the upstream answers 410 Gone");
        } else if let Self::RequestBody(fault) = self {
            tracing::debug!(target_path = target, %fault, "a request is given up");
        } else if let Self::Spent { retry_after } = self {
            tracing::debug!(?retry_after, "the upstream budget is spent");
        } else if let Self::Excess { .. } = self {
            // Its endpoint's failures are told of, and fewer are sent at once.
            tracing::debug!(target_path = target, failure = ?self, "the upstream turns requests away");
        } else if let Self::BreakerOpen { retry_after } = self {
            tracing::debug!(?retry_after, "the upstream is left alone for a while");
        } else if self.health() == RequestOutcome::Failed {
            // Its endpoint's failures are logged with their cause, now and then.
            tracing::debug!(target_path = target, failure = ?self, "the upstream failed");
        } else if *self != Self::KeyEchoed {
            // That one has been told, without a target that may hold the key.
            tracing::warn!(
                target_path = target,
                error = self.name(),
                failure = ?self,
                "the upstream failed"
            );
        }
    }

    /// Whether a request was sent to the upstream.
    pub const fn is_sent(&self) -> bool {
        !matches!(
            self,
            Self::Spent { .. } | Self::TooManyInFlight | Self::BreakerOpen { .. }
        )
    }

    /// Whether it says only that the client on whose behalf the upstream was to
    /// be asked may not ask just now: another client may.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Spent { .. } | Self::TooManyInFlight)
    }

    /// Whether another target would have failed just so: nothing of this one is
    /// the cause.
    pub const fn is_of_all(&self) -> bool {
        match self {
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::Excess { .. }
            | Self::BreakerOpen { .. }
            | Self::Unreachable(_)
            | Self::TimedOut(TimedOut::Connect)
            | Self::NotProcessed
            | Self::KeyRefused(_)
            | Self::Throttled { .. }
            | Self::Retired => true,
            Self::TimedOut(TimedOut::FirstByte | TimedOut::Body | TimedOut::Whole)
            | Self::Terminated
            | Self::Incomplete
            | Self::TooLarge
            | Self::Protocol
            | Self::NotJson
            | Self::KeyEchoed
            | Self::Redirect(_)
            | Self::ServerError { .. }
            | Self::UnexpectedStatus(_)
            | Self::TargetRefused(_)
            | Self::NoSuchRoute { .. }
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => false,
        }
    }

    /// The status that the upstream gave, where it gave one.
    pub fn upstream_status(&self) -> Option<StatusCode> {
        match self {
            Self::Redirect(status)
            | Self::ServerError { status, .. }
            | Self::UnexpectedStatus(status)
            | Self::KeyRefused(status)
            | Self::TargetRefused(status) => Some(*status),
            Self::Excess { status, .. } => *status,
            Self::Throttled { .. } => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::NoSuchRoute { .. } => Some(StatusCode::NOT_FOUND),
            Self::Retired => Some(StatusCode::GONE),
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Terminated
            | Self::NotProcessed
            | Self::Incomplete
            | Self::TooLarge
            | Self::Protocol
            | Self::NotJson
            | Self::KeyEchoed
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => None,
        }
    }

    /// Whether somebody has answered, who may have nothing to say to what was
    /// asked but is there: a page, a redirect, anything but trouble of its own.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::NotJson
            | Self::TooLarge
            | Self::KeyEchoed
            | Self::Redirect(_)
            | Self::UnexpectedStatus(_)
            | Self::KeyRefused(_)
            | Self::TargetRefused(_)
            | Self::NoSuchRoute { .. }
            | Self::Throttled { .. }
            | Self::Retired => true,
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::Excess { .. }
            | Self::BreakerOpen { .. }
            | Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Terminated
            | Self::NotProcessed
            | Self::Incomplete
            | Self::Protocol
            | Self::ServerError { .. }
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => false,
        }
    }

    /// What it is where the upstream answers others at the same time, if that
    /// makes it another failure.
    pub(super) fn as_excess(&self) -> Option<Self> {
        // Of those that are others, TLS handshakes that break off.
        let is_ended = matches!(
            self,
            Self::Terminated | Self::Unreachable(Unreachable::Refused | Unreachable::Other)
        );
        let (status, retry_after) = if is_ended {
            (None, None)
        } else if let Self::ServerError {
            status: status @ StatusCode::SERVICE_UNAVAILABLE,
            retry_after,
        } = self
        {
            (Some(*status), *retry_after)
        } else {
            return None;
        };
        Some(Self::Excess {
            status,
            retry_after,
        })
    }

    /// Whether the upstream had more to do than it can, and the limit of requests
    /// under way has not fallen for it yet.
    pub fn is_overload(&self) -> bool {
        match self.upstream_status() {
            Some(_) if matches!(self, Self::Excess { .. }) => false,
            Some(status) => matches!(status.as_u16(), 503 | 504),
            None => matches!(
                self,
                Self::TimedOut(TimedOut::FirstByte | TimedOut::Body | TimedOut::Whole)
            ),
        }
    }

    /// What it tells of the upstream: whether the upstream is at fault, for
    /// whatever might have been asked. One that refuses us, or has much to
    /// say, is well.
    pub fn health(&self) -> RequestOutcome {
        match self {
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::Excess { .. }
            | Self::BreakerOpen { .. }
            | Self::NotProcessed
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => RequestOutcome::Unknown,
            Self::UnexpectedStatus(status) if status.is_client_error() => RequestOutcome::Well,
            Self::KeyRefused(_)
            | Self::TargetRefused(_)
            | Self::NoSuchRoute { .. }
            | Self::Throttled { .. }
            | Self::TooLarge
            | Self::KeyEchoed => RequestOutcome::Well,
            Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Terminated
            | Self::Incomplete
            | Self::Protocol
            | Self::NotJson
            | Self::Redirect(_)
            | Self::ServerError { .. }
            | Self::Retired
            | Self::UnexpectedStatus(_) => RequestOutcome::Failed,
        }
    }
}
