//! Which [`Failure`] an error of the HTTP client is, and its kind.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most kinds of other crates' errors are of no interest here, and more may come"
)]

use std::error::Error as StdError;
use std::io;

use super::tls::{CLIENT_CERTIFICATE, tls};
use crate::upstream::client::pool::ConnectionError;
use crate::upstream::client::resolver::NoAddress;
use crate::upstream::{Failure, TimedOut, Unreachable};

/// The failure that an error is, and its kind.
pub(super) fn classify(error: &ConnectionError) -> (Failure, &'static str) {
    match error.is_connect {
        true => connect(error, error.certificate_requested),
        false => exchange(error, error.certificate_requested),
    }
}

/// The failure to connect. `requested`: the server has requested a client certificate.
fn connect(error: &ConnectionError, requested: bool) -> (Failure, &'static str) {
    if let Some(unknown) = beneath::<NoAddress>(error) {
        return (Failure::Unreachable(Unreachable::Name), name(unknown));
    }
    if let Some(error) = beneath::<rustls::Error>(error) {
        let (why, kind) = tls(error, requested);
        return (Failure::Unreachable(why), kind);
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
        kind if is_end(kind) && requested => CLIENT_CERTIFICATE,
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

/// The failure of an established connection. `requested`: the server has requested a
/// client certificate, and sent nothing since.
fn exchange(error: &(dyn StdError + 'static), requested: bool) -> (Failure, &'static str) {
    let hyper = beneath::<hyper::Error>(error);
    if let Some(hyper) = hyper.filter(|hyper| hyper.is_parse()) {
        let kind = match hyper.is_parse_too_large() {
            true => "head_too_large",
            false => "malformed_head",
        };
        return (Failure::Protocol, kind);
    }
    if let Some(error) = beneath::<rustls::Error>(error) {
        // In TLS 1.3 the server checks the client's certificate after the client's
        // handshake has finished.
        return match tls(error, requested) {
            (why @ Unreachable::ClientCertificate, kind) => (Failure::Unreachable(why), kind),
            (_, kind) => (Failure::Terminated, kind),
        };
    }
    let (kind, _) = io_kind(error);
    let is_closed = hyper.is_some_and(|hyper| {
        hyper.is_incomplete_message() || hyper.is_canceled() || hyper.is_closed()
    });
    if requested && (is_closed || is_end(kind)) {
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

/// Whether the server has ended the connection.
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

/// Why a name does not resolve. The error of the system's resolver has no other kind
/// than its text.
fn name(error: &NoAddress) -> &'static str {
    let text = error.to_string();
    let contains = |words: &[&str]| words.iter().any(|words| text.contains(words));
    if contains(&["Temporary failure", "Try again"]) {
        "name_lookup_failed"
    } else if contains(&[
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

/// The first kind of an I/O error other than `Other`, and the first errno.
pub(super) fn io_kind(error: &(dyn StdError + 'static)) -> (io::ErrorKind, Option<i32>) {
    let errors = || links(error).filter_map(|link| link.downcast_ref::<io::Error>());
    let kind = errors().map(io::Error::kind);
    let mut kind = kind.filter(|kind| *kind != io::ErrorKind::Other);
    let errno = errors().find_map(io::Error::raw_os_error);
    (kind.next().unwrap_or(io::ErrorKind::Other), errno)
}

/// The first error of a type in a chain of causes.
pub(super) fn beneath<'e, T: StdError + 'static>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e T> {
    links(error).find_map(|link| link.downcast_ref::<T>())
}

/// An error and its causes. The source of an `io::Error` is the source of the error
/// that it wraps, so that one is inserted.
pub(super) fn links<'e>(
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
