//! What a client's error means: hyper tells by its kind, the connector by what
//! lies beneath.

use std::error::Error as StdError;
use std::io;

use hyper_util::client::legacy::Error;

use super::names::NoAddress;
use super::{Failure, TimedOut, Unreachable};

/// How asking has failed, by the client's error; the operator can have it
/// whole.
pub(super) fn failure(target: &str, error: &Error) -> Failure {
    let failure = kind(error);
    tracing::debug!(target_path = target, error = %chain(error), name = failure.name(), "the upstream failed");
    failure
}

fn kind(error: &Error) -> Failure {
    if !error.is_connect() {
        return match beneath::<hyper::Error>(error) {
            Some(hyper) if hyper.is_parse() => Failure::Protocol,
            _ => Failure::Terminated,
        };
    }
    if beneath::<NoAddress>(error).is_some() {
        return Failure::Unreachable(Unreachable::Name);
    }
    match beneath::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => Failure::Unreachable(Unreachable::Refused),
        Some(io::ErrorKind::TimedOut) => Failure::TimedOut(TimedOut::Connect),
        _ => Failure::Unreachable(match beneath::<rustls::Error>(error) {
            Some(rustls::Error::InvalidCertificate(_)) => Unreachable::Certificate,
            Some(_) => Unreachable::Tls,
            None => Unreachable::Other,
        }),
    }
}

/// The first error of a type in a chain of sources. rustls' errors hide within
/// `io::Error`s, within further ones at times, which do not name what they wrap
/// as their source.
fn beneath<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(inner) => beneath(inner),
        None => beneath(error.source()?),
    }
}

fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}
