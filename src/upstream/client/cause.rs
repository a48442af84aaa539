//! Why a request to an endpoint failed: which [`Failure`] a client's error is,
//! of what kind exactly, and the texts of its causes.
//!
//! Invariants: kinds are a fixed set of words. The texts have neither a key nor
//! the request's target in them, and are bounded.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most kinds of other crates' errors are of no interest here, and more may come"
)]

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use h2::Reason;
use http::{Extensions, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::client::legacy::Error;
use rustls::{AlertDescription, CertificateError};
use tokio::time::timeout;

use crate::upstream::client::connector::CertificateAsked;
use crate::upstream::client::resolver::NoAddress;
use crate::upstream::endpoint::Permit;
use crate::upstream::{Failure, TimedOut, Unreachable, Upstream};

/// Why a request failed, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// What failed, in finer words than RFC 9209 has.
    pub(crate) kind: &'static str,
    /// The texts of the error and of its causes, from the outermost on.
    pub(crate) texts: Vec<String>,
}

/// Texts of an error that are kept, and characters of each.
const MOST_TEXTS: usize = 8;
const MOST_CHARACTERS: usize = 256;
/// What stands for a text with a key or the target in it.
const WITHHELD: &str = "withheld: it has the target or an API key in it";

impl Upstream {
    /// How a request has failed, by the client's error; the passage keeps why, and
    /// whether its connection has failed.
    pub(crate) fn failure(&self, passage: &mut Permit, target: &str, error: &Error) -> Failure {
        let connection = passage.connection();
        let is_given_up = connection.is_some_and(|connection| connection.is_given_up());
        let (failure, kind) = match classify(error) {
            (Failure::Terminated, _) if is_given_up => (Failure::Terminated, CONNECTION_SILENT),
            (Failure::NotProcessed, kind) if passage.is_last_resend() => {
                (Failure::Terminated, kind)
            }
            found => found,
        };
        let texts = self.texts(target, error);
        tracing::debug!(target_path = target, error = %texts.join(": "), name = failure.name(), kind, "the upstream failed");
        passage.failed_by(Cause { kind, texts });
        if !error.is_connect() && !is_of_stream(error) {
            passage.lose_connection();
        }
        failure
    }

    /// Why the body of an answer breaks off; the connection has failed if the
    /// second is true.
    pub(crate) fn broken_body(&self, target: &str, error: &hyper::Error) -> (Cause, bool) {
        let kind = match http2(error) {
            Some((_, kind)) => kind,
            None => "body_incomplete",
        };
        let texts = self.texts(target, error);
        (Cause { kind, texts }, !is_of_stream(error))
    }

    /// The texts of an error and of its causes, without secrets.
    fn texts(&self, target: &str, error: &(dyn StdError + 'static)) -> Vec<String> {
        // An upstream's words are in some of them, such as a certificate's names.
        texts(error, |text| {
            let has_target = target.len() > 1 && text.contains(target);
            has_target || self.keys.find_key_in(text.as_bytes()).is_some()
        })
    }
}

/// Whether the upstream has counted a request that has failed so, or never will:
/// it was not sent, or the server has ended its connection, its stream, or what it
/// answered. Where ordgate has ended it, the request may still arrive. `has_ended`:
/// whether the server has ended the connection.
pub(crate) fn is_settled(error: &Error, has_ended: bool) -> bool {
    has_ended || error.is_connect() || is_servers(error)
}

/// Whether an error is the server's doing, or of a request that was never sent.
fn is_servers(error: &(dyn StdError + 'static)) -> bool {
    let hyper = beneath::<hyper::Error>(error);
    hyper.is_some_and(|hyper| hyper.is_parse() || hyper.is_canceled())
        || beneath::<h2::Error>(error)
            .is_some_and(|h2| h2.is_remote() && (h2.is_reset() || h2.is_go_away()))
}

impl Cause {
    /// Why a request failed that no error tells of.
    pub(crate) fn of(failure: &Failure) -> Self {
        let (kind, text) = match failure {
            Failure::TimedOut(TimedOut::Connect) => {
                ("connect_timeout", "no connection within connect_timeout")
            }
            Failure::TimedOut(TimedOut::FirstByte) => (
                "first_byte_timeout",
                "no answer has begun within first_byte_timeout",
            ),
            Failure::TimedOut(TimedOut::Body) => (
                "body_stalled",
                "the answer's body was silent for longer than response_body.grace, or fell behind response_body.min_rate by that",
            ),
            Failure::TimedOut(TimedOut::Whole) => ("timeout", "no whole answer within timeout"),
            Failure::Incomplete => ("body_incomplete", "the answer ended before its end"),
            Failure::NotJson => ("not_json", "the answer is not JSON"),
            Failure::Protocol => ("malformed_answer", "the answer is not HTTP"),
            Failure::Retired => ("retired", "the upstream says that it has been retired"),
            Failure::Redirect(_) => ("redirect", "the upstream redirects"),
            Failure::ServerError { .. } => ("server_error", "the upstream fails itself"),
            Failure::UnexpectedStatus(_) => {
                ("unexpected_status", "the API has no meaning for the status")
            }
            Failure::Unreachable(_)
            | Failure::Terminated
            | Failure::NotProcessed
            | Failure::TooLarge
            | Failure::KeyEchoed
            | Failure::KeyRefused(_)
            | Failure::TargetRefused(_)
            | Failure::NoSuchRoute { .. }
            | Failure::Throttled { .. }
            | Failure::Spent { .. }
            | Failure::TooManyInFlight
            | Failure::Excess { .. }
            | Failure::BreakerOpen { .. }
            | Failure::Abandoned
            | Failure::Unsettled
            | Failure::RequestBody(_) => (failure.name(), "no error tells more"),
        };
        let status = failure.upstream_status();
        let status = status.map(|status| format!("status {}", status.as_u16()));
        Self {
            kind,
            texts: [text.to_owned()].into_iter().chain(status).collect(),
        }
    }

    /// A probe is given up that has taken long.
    pub(crate) fn overdue() -> Self {
        Self {
            kind: "probe_overdue",
            texts: vec!["a probe was given up that had taken long".to_owned()],
        }
    }
}

/// What nginx answers, as a page with status 400, where it demands a client
/// certificate: it does so after the handshake, also where that is resumed and
/// asks for none.
const NGINX_DEMANDS: &[u8] = b"No required SSL certificate was sent";
/// How long its page is waited for.
const PAGE: Duration = Duration::from_secs(1);

/// How an answer has failed that is not JSON; the passage keeps why.
pub(crate) async fn not_json(
    passage: &mut Permit,
    status: StatusCode,
    mut body: Incoming,
) -> Failure {
    let mut demands = false;
    if status == StatusCode::BAD_REQUEST
        && let Ok(Some(Ok(frame))) = timeout(PAGE, body.frame()).await
        && let Some(page) = frame.data_ref()
    {
        let mut parts = page.windows(NGINX_DEMANDS.len());
        demands = parts.any(|part| part == NGINX_DEMANDS);
    }
    let (failure, kind, text) = match demands {
        true => {
            let (why, kind) = CLIENT_CERTIFICATE;
            let text = "the server says that it requires a TLS client certificate";
            (Failure::Unreachable(why), kind, text)
        }
        false => (Failure::NotJson, "not_json", "the answer is not JSON"),
    };
    let status = format!("status {}", status.as_u16());
    let texts = vec![text.to_owned(), status];
    passage.failed_by(Cause { kind, texts });
    failure
}

/// Which failure an error is, and its kind.
fn classify(error: &Error) -> (Failure, &'static str) {
    let asked = error.connect_info().and_then(|info| {
        let mut extras = Extensions::new();
        info.get_extras(&mut extras);
        extras.get::<CertificateAsked>().cloned()
    });
    let asked = match &asked {
        Some(asked) => Some(asked),
        None => beneath::<CertificateAsked>(error),
    };
    match error.is_connect() {
        true => connect(error, asked.is_some()),
        false => exchange(error, asked.is_some_and(|asked| !asked.has_answered())),
    }
}

/// A connection on which nothing came was given up.
const CONNECTION_SILENT: &str = "connection_silent";

/// Whether an error is of one HTTP/2 stream, or says that it was not processed:
/// then others on the connection may go on.
fn is_of_stream(error: &(dyn StdError + 'static)) -> bool {
    let not_processed = matches!(http2(error), Some((Failure::NotProcessed, _)));
    not_processed || beneath::<h2::Error>(error).is_some_and(h2::Error::is_reset)
}

/// How a stream or a connection has failed by HTTP/2's own words, if it has.
fn http2(error: &(dyn StdError + 'static)) -> Option<(Failure, &'static str)> {
    if beneath::<hyper::Error>(error).is_some_and(hyper::Error::is_timeout) {
        return Some((Failure::Terminated, "ping_timeout"));
    }
    let error = beneath::<h2::Error>(error)?;
    let is_calmed = error.reason() == Some(Reason::ENHANCE_YOUR_CALM);
    let found = match (error.is_remote(), error.is_reset(), error.is_go_away()) {
        (true, _, _) if is_calmed => (Failure::Terminated, "enhance_your_calm"),
        (true, true, _) if error.reason() == Some(Reason::REFUSED_STREAM) => {
            (Failure::NotProcessed, "refused_stream")
        }
        // Only streams above the last identifier of the frame fail with it.
        (true, _, true) => (Failure::NotProcessed, "goaway"),
        (true, true, _) => (Failure::Terminated, "stream_reset"),
        (false, _, _) if error.is_library() => (Failure::Terminated, "malformed_frames"),
        _ => return None,
    };
    Some(found)
}

/// There is no connection. `asked`: the server has asked for a client
/// certificate.
fn connect(error: &Error, asked: bool) -> (Failure, &'static str) {
    if let Some(unknown) = beneath::<NoAddress>(error) {
        return (Failure::Unreachable(Unreachable::Name), name(unknown));
    }
    if let Some(error) = beneath::<rustls::Error>(error) {
        let (why, kind) = tls(error, asked);
        return (Failure::Unreachable(why), kind);
    }
    if beneath::<io::Error>(error).is_none() && beneath::<hyper::Error>(error).is_none() {
        // Another request was connecting for this one as well, and is no more.
        return (Failure::NotProcessed, "not_sent");
    }
    let (kind, errno) = io_kind(error);
    let (why, kind) = match kind {
        io::ErrorKind::TimedOut => {
            return (Failure::TimedOut(TimedOut::Connect), "connect_timeout");
        }
        io::ErrorKind::ConnectionRefused => (Unreachable::Refused, "connection_refused"),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => {
            (Unreachable::NoRoute, "network_unreachable")
        }
        io::ErrorKind::HostUnreachable => (Unreachable::NoRoute, "host_unreachable"),
        kind if is_end(kind) && asked => CLIENT_CERTIFICATE,
        io::ErrorKind::UnexpectedEof => (Unreachable::Other, "connection_closed"),
        kind if is_end(kind) => (Unreachable::Other, "connection_reset"),
        io::ErrorKind::AddrNotAvailable => (Unreachable::Other, "no_local_address"),
        io::ErrorKind::PermissionDenied => (Unreachable::Other, "connect_not_permitted"),
        // ENFILE and EMFILE.
        _ if matches!(errno, Some(23 | 24)) => (Unreachable::Other, "too_many_open_files"),
        _ => (Unreachable::Other, "no_connection"),
    };
    (Failure::Unreachable(why), kind)
}

/// A connection has failed that there was. `asked`: the server has asked for a
/// client certificate, and has answered nothing since.
fn exchange(error: &(dyn StdError + 'static), asked: bool) -> (Failure, &'static str) {
    let hyper = beneath::<hyper::Error>(error);
    if let Some(hyper) = hyper.filter(|hyper| hyper.is_parse()) {
        let kind = match hyper.is_parse_too_large() {
            true => "head_too_large",
            false => "malformed_head",
        };
        return (Failure::Protocol, kind);
    }
    if let Some(found) = http2(error) {
        return found;
    }
    if let Some(error) = beneath::<rustls::Error>(error) {
        // TLS 1.3 checks a client's certificate after the client's handshake.
        return match tls(error, asked) {
            (why @ Unreachable::ClientCertificate, kind) => (Failure::Unreachable(why), kind),
            (_, kind) => (Failure::Terminated, kind),
        };
    }
    let (kind, _) = io_kind(error);
    let is_closed = hyper.is_some_and(|hyper| {
        hyper.is_incomplete_message() || hyper.is_canceled() || hyper.is_closed()
    });
    if asked && (is_closed || is_end(kind)) {
        let (why, kind) = CLIENT_CERTIFICATE;
        return (Failure::Unreachable(why), kind);
    }
    let kind = match kind {
        io::ErrorKind::TimedOut => "connection_timed_out",
        io::ErrorKind::UnexpectedEof => "connection_closed",
        kind if is_end(kind) => "connection_reset",
        _ if is_closed => "connection_closed",
        _ => "connection_lost",
    };
    (Failure::Terminated, kind)
}

/// A server that asks for a client certificate goes on with none.
const CLIENT_CERTIFICATE: (Unreachable, &str) = (
    Unreachable::ClientCertificate,
    "client_certificate_required",
);

/// Whether the other side has ended the connection.
fn is_end(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected
    )
}

/// How a name does not resolve. The system's resolver tells by its text alone.
fn name(error: &NoAddress) -> &'static str {
    let text = error.to_string();
    let says = |words: &[&str]| words.iter().any(|words| text.contains(words));
    if says(&["Temporary failure", "Try again"]) {
        "name_lookup_failed"
    } else if says(&[
        "not known",
        "does not resolve to",
        "No address",
        "not found",
    ]) {
        "name_unknown"
    } else {
        "name_error"
    }
}

/// How TLS has failed.
fn tls(error: &rustls::Error, asked: bool) -> (Unreachable, &'static str) {
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(error) => (Unreachable::Certificate, certificate(error)),
        Tls::AlertReceived(alert) => self::alert(*alert, asked),
        Tls::InvalidMessage(_) => (Unreachable::Tls, "tls_malformed"),
        Tls::PeerIncompatible(_) => (Unreachable::Tls, "tls_incompatible"),
        Tls::PeerMisbehaved(_) => (Unreachable::Tls, "tls_misbehaved"),
        _ => (Unreachable::Tls, "tls_error"),
    }
}

/// What a server says before it ends a connection.
fn alert(alert: AlertDescription, asked: bool) -> (Unreachable, &'static str) {
    use AlertDescription as Alert;
    let kind = match alert {
        // A server says these of its client's certificate, and ordgate has none.
        Alert::CertificateRequired
        | Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA => return CLIENT_CERTIFICATE,
        // So do many servers of TLS 1.2, and some of TLS 1.3.
        Alert::HandshakeFailure | Alert::AccessDenied if asked => return CLIENT_CERTIFICATE,
        Alert::HandshakeFailure => "tls_alert_handshake_failure",
        Alert::AccessDenied => "tls_alert_access_denied",
        Alert::ProtocolVersion => "tls_alert_protocol_version",
        Alert::InsufficientSecurity => "tls_alert_insufficient_security",
        Alert::UnrecognisedName => "tls_alert_unrecognized_name",
        Alert::NoApplicationProtocol => "tls_alert_no_application_protocol",
        Alert::InternalError => "tls_alert_internal_error",
        Alert::DecodeError => "tls_alert_decode_error",
        Alert::DecryptError => "tls_alert_decrypt_error",
        Alert::IllegalParameter => "tls_alert_illegal_parameter",
        Alert::UnexpectedMessage => "tls_alert_unexpected_message",
        _ => "tls_alert_other",
    };
    (Unreachable::Alert, kind)
}

/// Why a certificate is not to be trusted.
fn certificate(error: &CertificateError) -> &'static str {
    use CertificateError as Certificate;
    match error {
        Certificate::Expired | Certificate::ExpiredContext { .. } => "certificate_expired",
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "certificate_not_yet_valid"
        }
        // One that has signed itself has an unknown issuer as well.
        Certificate::UnknownIssuer => "certificate_unknown_issuer",
        Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
            "certificate_name_mismatch"
        }
        Certificate::Revoked => "certificate_revoked",
        Certificate::UnknownRevocationStatus
        | Certificate::ExpiredRevocationList
        | Certificate::ExpiredRevocationListContext { .. } => "certificate_revocation_unknown",
        Certificate::BadEncoding => "certificate_malformed",
        Certificate::BadSignature => "certificate_bad_signature",
        Certificate::InvalidPurpose | Certificate::InvalidPurposeContext { .. } => {
            "certificate_wrong_purpose"
        }
        Certificate::UnhandledCriticalExtension => "certificate_unknown_extension",
        // As `openssl req -x509` makes them, where nothing else is said.
        Certificate::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "certificate_is_authority"
        }
        _ => "certificate_rejected",
    }
}

/// The first kind of an I/O error that says anything, and the first errno.
fn io_kind(error: &(dyn StdError + 'static)) -> (io::ErrorKind, Option<i32>) {
    let errors = || links(error).filter_map(|link| link.downcast_ref::<io::Error>());
    let kind = errors().map(io::Error::kind);
    let mut kind = kind.filter(|kind| *kind != io::ErrorKind::Other);
    let errno = errors().find_map(io::Error::raw_os_error);
    (kind.next().unwrap_or(io::ErrorKind::Other), errno)
}

/// The first error of a type in a chain of causes.
fn beneath<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    links(error).find_map(|link| link.downcast_ref::<T>())
}

/// An error and its causes. What an `io::Error` wraps is not named as its
/// source, which is the wrapped error's.
fn links<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'e (dyn StdError + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>();
        match wrapped.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        }
    })
}

/// The texts of an error and of its causes, without those that another repeats and
/// those that are secret.
fn texts(error: &(dyn StdError + 'static), is_secret: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for link in links(error).take(MOST_TEXTS * 2) {
        let printable = |character: char| match character.is_control() {
            true => ' ',
            false => character,
        };
        let text = link.to_string();
        // What a GOAWAY frame has for debugging may be anything.
        let text = text.split(" (b\"").next().unwrap_or_default();
        // Of what is cut off, nobody could find the rest.
        let text = match is_secret(text) {
            true => WITHHELD,
            false => text,
        };
        let text: String = text.chars().take(MOST_CHARACTERS).map(printable).collect();
        if texts.last() != Some(&text) && texts.len() < MOST_TEXTS {
            texts.push(text);
        }
    }
    texts
}

#[cfg(test)]
mod http2_tests;

#[cfg(test)]
mod tests;
