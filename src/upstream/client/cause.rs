//! Why a request to an endpoint has failed: the [`Failure`] of an error of the HTTP
//! client, its kind, and the texts of its causes.
//!
//! Invariants: kinds are a fixed set of words. Texts contain neither a key nor the
//! request's target, and their length is bounded.

mod classify;
mod tls;

use std::error::Error as StdError;
use std::time::Duration;

use classify::{classify, links};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tls::CLIENT_CERTIFICATE;
use tokio::time::timeout;

use crate::client_tokens::shown_path;
use crate::upstream::Upstream;
use crate::upstream::client::pool::ConnectionError;
use crate::upstream::endpoint::EndpointPermit;
use crate::upstream::failure::{Cause, Failure};

/// How many texts of an error are kept, and how many characters of each.
const MOST_TEXTS: usize = 8;
const MOST_CHARACTERS: usize = 256;
/// Replaces a text that contains a key or the target.
const WITHHELD: &str = "withheld: it has the target or an API key in it";

impl Upstream {
    /// The failure of a request, given the error of its connection. The permit records the
    /// cause.
    pub(crate) fn failure(
        &self,
        permit: &mut EndpointPermit,
        target: &str,
        error: &ConnectionError,
    ) -> Failure {
        let (failure, kind) = classify(error);
        let texts = self.texts(target, error);
        tracing::debug!(target_path = &*shown_path(target), error = %texts.join(": "), name = failure.name(), kind, "the upstream failed");
        permit.failed_by(Cause { kind, texts });
        failure
    }

    /// Why a response body was truncated.
    pub(crate) fn broken_body(&self, target: &str, error: &hyper::Error) -> Cause {
        Cause {
            kind: "body_incomplete",
            texts: self.texts(target, error),
        }
    }

    /// The texts of an error and of its causes, without secrets.
    fn texts(&self, target: &str, error: &(dyn StdError + 'static)) -> Vec<String> {
        // Some contain text of the upstream's, such as the names in a certificate.
        let keys = self.keys.searched();
        texts(error, |text| {
            let has_target = target.len() > 1 && text.contains(target);
            has_target || keys.iter().any(|key| key.is_in(text.as_bytes()))
        })
    }
}

/// In the page, with status 400, by which nginx requires a client certificate: after
/// the handshake, even after a resumed one, which requests none.
const NGINX_DEMANDS: &[u8] = b"No required SSL certificate was sent";
/// How long ordgate waits for that page.
const PAGE: Duration = Duration::from_secs(1);

/// The failure of a response that is not JSON; the permit records the cause.
pub(crate) async fn not_json(
    permit: &mut EndpointPermit,
    status: StatusCode,
    mut body: Incoming,
) -> Failure {
    let mut is_required = false;
    if status == StatusCode::BAD_REQUEST
        && let Ok(Some(Ok(frame))) = timeout(PAGE, body.frame()).await
        && let Some(page) = frame.data_ref()
    {
        let mut parts = page.windows(NGINX_DEMANDS.len());
        is_required = parts.any(|part| part == NGINX_DEMANDS);
    }
    let (failure, kind, text) = match is_required {
        true => {
            let (why, kind) = CLIENT_CERTIFICATE;
            let text = "the server requires a TLS client certificate";
            (Failure::Unreachable(why), kind, text)
        }
        false => (Failure::NotJson, "not_json", "the answer is not JSON"),
    };
    let status = format!("status {}", status.as_u16());
    let texts = vec![text.to_owned(), status];
    permit.failed_by(Cause { kind, texts });
    failure
}

/// The texts of an error and of its causes, without repetitions and secrets.
fn texts(error: &(dyn StdError + 'static), is_secret: impl Fn(&str) -> bool) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for link in links(error).take(MOST_TEXTS * 2) {
        let printable = |character: char| match character.is_control() {
            true => ' ',
            false => character,
        };
        let text = link.to_string();
        // The whole text is searched: a key that is cut off would not be found.
        let text = match is_secret(&text) {
            true => WITHHELD,
            false => &*text,
        };
        let text: String = text.chars().take(MOST_CHARACTERS).map(printable).collect();
        if texts.last() != Some(&text) && texts.len() < MOST_TEXTS {
            texts.push(text);
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::classify::{beneath, io_kind};
    use super::*;

    #[test]
    fn texts_are_bounded_and_single_line() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Nested {
            text: String,
            source: Option<Box<Self>>,
        }
        let mut error = Nested {
            text: "innermost".to_owned(),
            source: None,
        };
        for number in 0..100 {
            error = Nested {
                text: format!("{number}\r\n{}", "x".repeat(10_000)),
                source: Some(Box::new(error)),
            };
        }
        let texts = texts(&error, |_| false);
        assert_eq!(texts.len(), MOST_TEXTS);
        for text in &texts {
            assert_eq!(text.chars().count(), MOST_CHARACTERS);
            assert!(!text.contains(char::is_control));
        }
    }

    /// A regression: a key was cut off, and the rest of it kept.
    #[test]
    fn a_secret_is_found_before_the_text_is_cut() {
        let secret = "s3cret-value";
        let text = format!("{}{secret}", "x".repeat(MOST_CHARACTERS - 5));
        let error = io::Error::other(text);
        let texts = texts(&error, |text| text.contains(secret));
        assert_eq!(texts, [WITHHELD]);
    }

    #[test]
    fn errors_wrapped_by_io_errors_are_found_and_not_repeated() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let wrapped = io::Error::other(io::Error::other(refused));
        assert_eq!(io_kind(&wrapped).0, io::ErrorKind::ConnectionRefused);
        assert_eq!(texts(&wrapped, |_| false), ["connection refused"]);
        let tls = io::Error::other(io::Error::new(
            io::ErrorKind::InvalidData,
            rustls::Error::DecryptError,
        ));
        assert!(beneath::<rustls::Error>(&tls).is_some());
    }
}
