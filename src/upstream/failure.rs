//! How requests to the upstream fail: the error types of RFC 9209, what is logged, and
//! what each failure shows about the endpoint's health.
//!
//! Deliberately absent: what a client is answered (`refusal`).

mod cause;

use crate::client_tokens::shown_path;
use crate::trace;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

pub(crate) use cause::Cause;

use crate::reason::Reason;
use crate::wire::body::BodyError;

/// How a request to the upstream has failed, or why it was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.name())]
pub enum Failure {
    /// Not sent: the budget is spent.
    Spent {
        /// When there is budget again.
        retry_after: Duration,
        /// Why it is not known what was spent before the start, if that is why.
        unknown_because: Option<&'static str>,
    },
    /// Not sent: the limit of requests in flight is reached.
    TooManyInFlight,
    /// Not sent: the breaker is open.
    BreakerOpen {
        /// When it will be half-open.
        retry_after: Duration,
    },
    /// No connection could be made.
    Unreachable(Unreachable),
    /// A timeout.
    TimedOut(TimedOut),
    /// The connection ended before a response began.
    Terminated,
    /// The response was truncated.
    Incomplete,
    /// The response body is larger than `max_body_bytes`.
    TooLarge,
    /// The response is not HTTP.
    Protocol,
    /// The response is not JSON.
    NotJson,
    /// The response contains an API key.
    KeyEchoed,
    /// A redirect.
    Redirect(StatusCode),
    /// A 5xx status.
    ServerError {
        /// The status.
        status: StatusCode,
        /// Its `retry-after`.
        retry_after: Option<Duration>,
    },
    /// A status that the API does not use.
    UnexpectedStatus(StatusCode),
    /// 401 or 403: the API key is refused.
    KeyRefused(StatusCode),
    /// 401 or 403, although the API key is accepted elsewhere: the target is refused.
    TargetRefused(StatusCode),
    /// The 404 of a web framework, not of the API: it may be the wrong server.
    NoSuchRoute {
        /// The base URL of the endpoint.
        endpoint: Arc<str>,
    },
    /// 429.
    Throttled {
        /// When it accepts requests again.
        retry_after: Duration,
    },
    /// 410: the endpoint has been retired.
    Retired,
    /// The task that made the request has ended without an answer.
    Abandoned,
    /// Each answer was superseded by a reorg or a purge.
    Unsettled,
    /// A fault of the client's request body.
    RequestBody(BodyFault),
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The connection was refused.
    Refused,
    /// The TLS handshake has failed.
    Tls,
    /// The server has ended the TLS handshake with an alert.
    Alert,
    /// The server requires a TLS client certificate.
    ClientCertificate,
    /// The server's certificate is not trusted.
    Certificate,
    /// The host name does not resolve.
    Name,
    /// The network or host cannot be reached.
    NoRoute,
    /// Another reason.
    Other,
}

/// Which timeout has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// Connecting.
    Connect,
    /// The first byte.
    FirstByte,
    /// The minimum rate of a body.
    Body,
    /// The whole exchange.
    Whole,
}

/// A fault of a request body. None is the upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// It is truncated, or its framing is malformed.
    #[error("the request's body broke off or is malformed")]
    Broken,
    /// It was below the minimum rate, or took too long in total.
    #[error("the request's body came too slowly")]
    TooSlow,
    /// It is longer than `max_request_body`.
    #[error("the request's body is too long")]
    TooLarge,
    /// This client, or all, have as many bodies in memory as they may have.
    #[error("there is no room to buffer the request's body")]
    NoRoom,
}

impl BodyFault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Broken, Self::TooSlow, Self::TooLarge, Self::NoRoom];

    /// Its name in metrics and in `/status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::TooSlow => "too-slow",
            Self::TooLarge => "too-large",
            Self::NoRoom => "no-room",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// The outcome of a request, as evidence of the endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The endpoint has answered, whatever the answer.
    Success,
    /// The endpoint has failed.
    Failure,
    /// The request was not sent, or was given up.
    Unknown,
}

impl Failure {
    /// Why a body ended with this error.
    pub fn of_body(error: &BodyError) -> Self {
        let known = error.downcast_ref();
        known.cloned().unwrap_or(Self::Incomplete)
    }

    /// The proxy error type of RFC 9209 §2.3.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Spent { .. } | Self::TooManyInFlight => "connection_limit_reached",
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
            Self::Terminated => "connection_terminated",
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

    /// The word for it.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Spent {
                unknown_because: None,
                ..
            } => Reason::OverBudget,
            Self::Spent {
                unknown_because: Some(_),
                ..
            } => Reason::BudgetUnknown,
            Self::TooManyInFlight => Reason::NoSlot,
            Self::BreakerOpen { .. } => Reason::BreakerOpen,
            Self::Unreachable(cause) => match cause {
                Unreachable::Refused => Reason::ConnectionRefused,
                Unreachable::Tls | Unreachable::Alert => Reason::Tls,
                Unreachable::ClientCertificate => Reason::TlsClientCertificate,
                Unreachable::Certificate => Reason::TlsCertificate,
                Unreachable::Name => Reason::Dns,
                Unreachable::NoRoute | Unreachable::Other => Reason::Unreachable,
            },
            Self::TimedOut(timeout) => match timeout {
                TimedOut::Connect => Reason::ConnectTimeout,
                TimedOut::FirstByte | TimedOut::Whole => Reason::UpstreamTimeout,
                TimedOut::Body => Reason::UpstreamBodyTimeout,
            },
            Self::Terminated => Reason::ConnectionClosed,
            Self::Incomplete => Reason::Truncated,
            Self::TooLarge => Reason::AnswerTooLarge,
            Self::Protocol => Reason::NotHttp,
            Self::NotJson => Reason::NotJson,
            Self::KeyEchoed => Reason::AnswerWithheld,
            Self::Redirect(_) => Reason::Redirect,
            Self::ServerError { .. } => Reason::ServerError,
            Self::UnexpectedStatus(_) => Reason::UnexpectedStatus,
            Self::KeyRefused(_) => Reason::KeyRefused,
            Self::TargetRefused(_) => Reason::TargetRefused,
            Self::NoSuchRoute { .. } => Reason::WrongUpstream,
            Self::Throttled { .. } => Reason::Throttled,
            Self::Retired => Reason::Retired,
            Self::Abandoned => Reason::Internal,
            Self::Unsettled => Reason::Outdated,
            Self::RequestBody(fault) => match fault {
                BodyFault::Broken => Reason::RequestBodyBroken,
                BodyFault::TooSlow => Reason::RequestBodyTooSlow,
                BodyFault::TooLarge => Reason::RequestBodyTooLarge,
                BodyFault::NoRoom => Reason::RequestBodyNoRoom,
            },
        }
    }

    /// Logs the failure with details that its answer to clients does not have. At debug
    /// level, since a client can cause it with each request: what the operator must know is
    /// logged where it is found, in bounded numbers.
    pub fn report(&self, target: &str) {
        let target = &*shown_path(target);
        let trace_id = trace::current_id().map(tracing::field::display);
        if let Self::KeyRefused(status) = self {
            // The quarantine of the key has been logged, once.
            tracing::debug!(%status, "the upstream refuses the API key");
        } else if let Self::TargetRefused(status) = self {
            // The key check has been logged, at most once a minute in the long run.
            tracing::debug!(trace_id, target_path = target, %status, "the upstream refuses a target");
        } else if let Self::NoSuchRoute { endpoint } = self {
            // That has been logged with the route's name, once.
            tracing::debug!(
                trace_id,
                target_path = target,
                endpoint = &**endpoint,
                "no such route"
            );
        } else if *self == Self::Retired {
            // That has been logged with the upstream's name, once.
            tracing::debug!("the upstream answers 410 Gone");
        } else if let Self::RequestBody(fault) = self {
            tracing::debug!(trace_id, target_path = target, %fault, "a request is given up");
        } else if let Self::Spent { retry_after, .. } = self {
            tracing::debug!(trace_id, ?retry_after, "the upstream budget is spent");
        } else if let Self::BreakerOpen { retry_after } = self {
            tracing::debug!(trace_id, ?retry_after, "the upstream's breaker is open");
        } else if self.outcome() == RequestOutcome::Failure {
            // The failures of its endpoint are logged with their causes.
            tracing::debug!(trace_id, target_path = target, reason = self.reason().name(), failure = ?self, "the upstream failed");
        } else if *self == Self::TooManyInFlight {
            tracing::debug!(
                trace_id,
                target_path = target,
                "too many requests are in flight"
            );
        } else if *self != Self::KeyEchoed {
            // Those that were sent are logged by their endpoint. The echo of a key is logged
            // without the target, which may contain the key.
            tracing::debug!(
                trace_id,
                target_path = target,
                reason = self.reason().name(),
                error = self.name(),
                failure = ?self,
                "a request failed, not through the upstream's fault"
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

    /// Whether a request of another client might have been admitted.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Spent { .. } | Self::TooManyInFlight)
    }

    /// Whether a request for another target would have failed in the same way.
    pub const fn is_of_all(&self) -> bool {
        match self {
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::Unreachable(_)
            | Self::TimedOut(TimedOut::Connect)
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

    /// The status of the upstream's response, if it has sent one.
    pub fn upstream_status(&self) -> Option<StatusCode> {
        match self {
            Self::Redirect(status)
            | Self::ServerError { status, .. }
            | Self::UnexpectedStatus(status)
            | Self::KeyRefused(status)
            | Self::TargetRefused(status) => Some(*status),
            Self::Throttled { .. } => Some(StatusCode::TOO_MANY_REQUESTS),
            Self::NoSuchRoute { .. } => Some(StatusCode::NOT_FOUND),
            Self::Retired => Some(StatusCode::GONE),
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Terminated
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

    /// Whether the server works, although it has not answered what was requested: a
    /// page, a redirect, any response but a server error.
    pub fn is_answer(&self) -> bool {
        let is_server_error = matches!(self, Self::ServerError { .. });
        matches!(self, Self::NotJson | Self::TooLarge | Self::KeyEchoed)
            || (self.upstream_status().is_some() && !is_server_error)
    }

    /// The outcome for the endpoint's health: whether the endpoint is at fault,
    /// whatever was requested. An endpoint that refuses a request works.
    pub(crate) fn outcome(&self) -> RequestOutcome {
        match self {
            Self::Spent { .. }
            | Self::TooManyInFlight
            | Self::BreakerOpen { .. }
            | Self::Abandoned
            | Self::Unsettled
            | Self::RequestBody(_) => RequestOutcome::Unknown,
            Self::UnexpectedStatus(status) if status.is_client_error() => RequestOutcome::Success,
            Self::KeyRefused(_)
            | Self::TargetRefused(_)
            | Self::NoSuchRoute { .. }
            | Self::Throttled { .. }
            | Self::TooLarge
            | Self::KeyEchoed => RequestOutcome::Success,
            Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Terminated
            | Self::Incomplete
            | Self::Protocol
            | Self::NotJson
            | Self::Redirect(_)
            | Self::ServerError { .. }
            | Self::Retired
            | Self::UnexpectedStatus(_) => RequestOutcome::Failure,
        }
    }
}
