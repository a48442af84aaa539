//! The texts of refusals.

use super::Refusal;
use crate::client_tokens::TokenFault;
use crate::reason::Reason;
use crate::upstream::Failure;
use crate::upstream::keys::UNKNOWN;
use crate::wire::head::HeadFault;

impl Refusal {
    /// What was received, what is allowed and what to do.
    pub(crate) fn detail(&self) -> String {
        match self {
            Self::Head(fault) => head(*fault).to_owned(),
            Self::TargetForm => "The request target must be in origin form, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL without userinfo".to_owned(),
            Self::NoRoute => "There is no such path; /openapi.json lists all paths".to_owned(),
            Self::Method { allow } => {
                let allow = allow.to_str().unwrap_or("GET");
                format!("This path takes {allow}")
            }
            Self::Body => "This request must not have a body".to_owned(),
            Self::Invalid(invalid) => invalid.to_string(),
            Self::Token(fault) => token(*fault).to_owned(),
            Self::TokenOrigin => "The token may not be used by pages of this origin; the operator lists the origins of each token".to_owned(),
            Self::TooMany(too_many) => format!(
                "You have sent more requests than one client may; try again in {} s",
                too_many.retry_after
            ),
            Self::TooManyMisses(too_many) => format!(
                "You have sent more requests to the upstream than the {} a minute that one client may send; try again in {} s; cached answers are still served",
                too_many.burst, too_many.retry_after
            ),
            Self::OnlyIfCached => {
                "The request has only-if-cached, and no stored response may be used".to_owned()
            }
            Self::Loop => "This request has already passed through this gateway, according to its via field: upstream.url, or a proxy behind it, leads back here; the operator must change that".to_owned(),
            Self::TooManyConnections => "Too many connections; try again in 1 s".to_owned(),
            Self::TooManyClientConnections => "You have more connections open than one client may have; close some, or try again in 1 s".to_owned(),
            Self::Upstream(failure) if failure.reason == Reason::BudgetUnknown => format!(
                "What was spent of this gateway's budget of upstream requests is not known, since {UNKNOWN}: it counts as spent; try again when retry-after says"
            ),
            Self::Upstream(failure) => upstream(failure).to_owned(),
        }
    }
}

fn token(fault: TokenFault) -> &'static str {
    match fault {
        TokenFault::Missing => {
            "A token is needed; send it as authorization: Bearer TOKEN, or in x-api-key"
        }
        TokenFault::Unknown => "The token is unknown: it is mistyped, or it has been revoked",
        TokenFault::Expired => "The token has expired; ask the operator for another",
    }
}

fn head(fault: HeadFault) -> &'static str {
    match fault {
        HeadFault::BareLf => "A line of the message ends in LF alone; lines end in CRLF",
        HeadFault::BareCr => "A line of the message holds a CR that no LF follows",
        HeadFault::ObsFold => "A field line is folded; each field stands on one line",
        HeadFault::BadFieldLine => {
            "A field line is not name:value, without a blank before the colon and without control characters; in HTTP/2, a value has no blanks around it"
        }
        HeadFault::TwoFramings => {
            "The message has both Content-Length and Transfer-Encoding; send one"
        }
        HeadFault::BadContentLength => "Content-Length must come once, as decimal digits",
        HeadFault::BadTransferEncoding => "Transfer-Encoding must be chunked, once, in HTTP/1.1",
        HeadFault::BadChunk => "The chunked framing is malformed",
        HeadFault::HostMissing => "An HTTP/1.1 request must have a Host field",
        HeadFault::HostInvalid => {
            "A request must have one Host field, of the form host or host:port"
        }
        HeadFault::BadRequestLine => {
            "The request line must be: method, blank, target, blank, HTTP/1.1"
        }
        HeadFault::BadTarget => {
            "The request target has a fragment, or a character that must be percent-encoded"
        }
        HeadFault::BadVersion => "The version must be HTTP/1.1 or HTTP/1.0",
        HeadFault::TargetTooLong => "The request target is too long",
        HeadFault::HeadTooLarge => "The request's head is too large",
        HeadFault::HeadTooSlow => "The request's head did not arrive in time",
        HeadFault::Upgrade => {
            "The connection cannot be upgraded to another protocol; send the request without the Upgrade field"
        }
        HeadFault::AuthorityMismatch => ":authority and Host must name the same",
    }
}

/// What a client needs to know about a failure of the upstream. The log has the
/// rest.
fn upstream(failure: &Failure) -> &'static str {
    let comes_back = failure.retry_after.is_some();
    let texts = [
        (
            Reason::OverBudget,
            "This gateway's budget of upstream requests is spent; try again when retry-after says",
        ),
        (
            Reason::Throttled,
            "The upstream wants fewer requests; try again when retry-after says",
        ),
        (
            Reason::NoSlot,
            "Too many upstream requests are in flight; try again in 1 s",
        ),
        (
            Reason::BreakerOpen,
            "The upstream does not answer, and gets no requests until it does; try again when retry-after says",
        ),
        (
            Reason::TlsClientCertificate,
            "The upstream requires a TLS client certificate, which this gateway does not have; the operator must act",
        ),
        (
            Reason::Tls,
            "No trusted TLS connection to the upstream is possible; the operator must act",
        ),
        (
            Reason::TlsCertificate,
            "No trusted TLS connection to the upstream is possible; the operator must act",
        ),
        (Reason::ConnectionRefused, "The upstream cannot be reached"),
        (Reason::Dns, "The upstream cannot be reached"),
        (Reason::Unreachable, "The upstream cannot be reached"),
        (
            Reason::ConnectTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::UpstreamTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::UpstreamBodyTimeout,
            "The upstream did not answer in time",
        ),
        (
            Reason::ConnectionClosed,
            "The upstream closed the connection without an answer",
        ),
        (Reason::Truncated, "The upstream's answer broke off"),
        (
            Reason::AnswerTooLarge,
            "The upstream's answer is larger than this gateway accepts",
        ),
        (Reason::NotHttp, "The upstream's answer is not HTTP"),
        (Reason::NotJson, "The upstream's answer is not JSON"),
        (
            Reason::AnswerWithheld,
            "The upstream's answer contains something that must not be passed on; the operator must act",
        ),
        (
            Reason::Redirect,
            "The upstream redirects, which this gateway does not follow",
        ),
        (
            Reason::ServerError,
            if comes_back {
                "The upstream is unavailable for a while; try again when retry-after says"
            } else {
                "The upstream failed"
            },
        ),
        (
            Reason::UnexpectedStatus,
            "The upstream's answer has an unexpected status",
        ),
        (
            Reason::KeyRefused,
            "The upstream does not accept this gateway's credentials; the operator must act",
        ),
        (
            Reason::TargetRefused,
            "The upstream refuses this request, though it accepts this gateway's credentials",
        ),
        (
            Reason::WrongUpstream,
            "The upstream has no such path, so it may be the wrong server for this route; the operator must act",
        ),
        (
            Reason::Retired,
            "The upstream has been retired; the operator must act",
        ),
        (
            Reason::RequestBodyBroken,
            "The request's body ended before its end, or its chunked framing is malformed; send it whole",
        ),
        (
            Reason::RequestBodyTooSlow,
            "The request's body came too slowly; send it faster, or in smaller requests",
        ),
        (
            Reason::RequestBodyTooLarge,
            "The request's body is larger than this gateway accepts",
        ),
        (
            Reason::RequestBodyNoRoom,
            "Too many request bodies are being received; try again in 1 s, with fewer at once",
        ),
        (
            Reason::Outdated,
            "The chain is being reorganized, and every answer was outdated on arrival; try again in 1 s",
        ),
    ];
    let found = texts.iter().find(|(reason, _)| *reason == failure.reason);
    found.map_or(
        "This gateway failed during its request to the upstream",
        |(_, text)| text,
    )
}
