//! Faults to order: what goes wrong with the next requests.
//!
//! Ordered through the handle or `POST /sandbox/fault`, taken by `server` once for each request. Invariants: faults wait in
//! the order in which they came, each request takes at most one, and the number that waits is bounded. Deliberately
//! absent: chance (that is `Settings::error_rate`) and faults below HTTP, such as lost packets.

use std::collections::VecDeque;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, LOCATION, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::answer::{Answer, JSON, STATEMENT_TIMEOUT};
use super::api::Api;

/// So many faults may wait; those ordered beyond are ignored.
const MOST_WAITING: usize = 1_000;

/// A fault, how often it strikes, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// How many requests it strikes; zero orders nothing, `u32::MAX` lasts in practice until it is cleared.
    pub times: u32,
    /// It strikes only requests whose raw path begins with this; all of them where there is none.
    pub path: Option<String>,
    /// It strikes only requests to a server with this API; at all servers where that is [`Api::Both`].
    pub api: Api,
}

impl Fault {
    /// A fault that strikes the next request, whatever its path.
    #[must_use]
    pub const fn once(kind: FaultKind) -> Self {
        Self {
            kind,
            times: 1,
            path: None,
            api: Api::Both,
        }
    }

    /// The same fault for so many requests.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// The same fault for paths with this beginning only.
    #[must_use]
    pub fn on(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The same fault at the server with this API only. A server that has both APIs never takes it: name a path there.
    #[must_use]
    pub const fn at(mut self, api: Api) -> Self {
        self.api = api;
        self
    }
}

/// What can go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// This status in place of the answer, with `retry-after` where given. 500 has the reference's body, others a JSON
    /// object with the one member `error`.
    Status {
        /// The status, any.
        status: StatusCode,
        /// Seconds.
        retry_after: Option<u32>,
    },
    /// 302 to the same target with `followed=1` added, so that following it shows in the counts.
    Redirect,
    /// The right answer, but the connection closes after half of its body.
    Truncate,
    /// The connection closes before anything is answered.
    Close,
    /// The right answer, but only after this time.
    Stall(Duration),
    /// The right answer, its body in sixteen pieces with this pause between them.
    Drip(Duration),
    /// 200 with a page of HTML.
    Html,
    /// 200 with a body that is announced as JSON and is none.
    Garbage,
    /// 200 with a JSON body of about this many bytes, nearly all of them blanks.
    Oversize {
        /// The length of the body.
        bytes: u64,
        /// Whether `content-length` announces it; otherwise it comes in chunks.
        declared: bool,
    },
}

/// What an oversize body begins and ends with.
pub(super) const OVERSIZE_ENDS: (&str, &str) =
    ("{\"limit\":20,\"offset\":0,\"total\":0,\"results\":[", "]}");

impl FaultKind {
    /// The answer that takes the place of the right one, where the fault is of that sort. The body of an oversize one
    /// is left to `server`, which need not hold it.
    pub(super) fn answer(&self, target: &str) -> Option<Answer> {
        match self {
            Self::Status {
                status,
                retry_after,
            } => {
                let mut answer = if *status == StatusCode::INTERNAL_SERVER_ERROR {
                    Answer::database_error(None, STATEMENT_TIMEOUT)
                } else {
                    Answer::provider(*status, status.canonical_reason().unwrap_or("Fault"))
                };
                if let Some(seconds) = retry_after {
                    answer
                        .headers
                        .insert(RETRY_AFTER, HeaderValue::from(*seconds));
                }
                Some(answer)
            }
            Self::Redirect => {
                let mut answer = Answer::provider(StatusCode::FOUND, "Found");
                let joint = if target.contains('?') { '&' } else { '?' };
                if let Ok(value) = HeaderValue::try_from(format!("{target}{joint}followed=1")) {
                    answer.headers.insert(LOCATION, value);
                }
                Some(answer)
            }
            Self::Html => {
                let page = "<!DOCTYPE html>\n<html><head><title>Just a moment</title></head>\
                            <body><h1>Checking your browser</h1></body></html>\n";
                Some(whole(page, "text/html; charset=utf-8"))
            }
            Self::Garbage => Some(whole(
                "{\"limit\":20,\"offset\":0,\"total\":3,\"results\":[{\"rune\":{\"id",
                JSON,
            )),
            Self::Oversize { bytes, declared } => {
                let mut answer = whole("", JSON);
                answer.headers.remove(CONTENT_LENGTH);
                if *declared {
                    answer
                        .headers
                        .insert(CONTENT_LENGTH, HeaderValue::from(oversize_length(*bytes)));
                }
                Some(answer)
            }
            Self::Truncate | Self::Close | Self::Stall(_) | Self::Drip(_) => None,
        }
    }
}

fn whole(body: &str, content_type: &'static str) -> Answer {
    Answer::provider(StatusCode::OK, "").with_body(content_type, body.to_owned())
}

/// An oversize body is at least as long as its two ends.
pub(super) fn oversize_length(bytes: u64) -> u64 {
    bytes.max((OVERSIZE_ENDS.0.len() + OVERSIZE_ENDS.1.len()) as u64)
}

/// The faults that wait.
#[derive(Debug, Default)]
pub(super) struct Faults(VecDeque<Fault>);

impl Faults {
    pub(super) fn order(&mut self, fault: Fault) {
        if fault.times > 0 && self.0.len() < MOST_WAITING {
            self.0.push_back(fault);
        }
    }

    /// Clears those of the server with this API; all of them for [`Api::Both`].
    pub(super) fn clear(&mut self, api: Api) {
        self.0.retain(|fault| api != Api::Both && fault.api != api);
    }

    /// Takes the first fault that is meant for this raw path at the server with this API.
    pub(super) fn take(&mut self, api: Api, path: &str) -> Option<FaultKind> {
        let meant = |fault: &Fault| {
            let here = fault.api == Api::Both || fault.api == api;
            let prefix = fault.path.as_deref();
            here && prefix.is_none_or(|prefix| path.starts_with(prefix))
        };
        let place = self.0.iter().position(meant)?;
        let fault = self.0.get_mut(place)?;
        fault.times -= 1;
        if fault.times > 0 {
            return Some(fault.kind.clone());
        }
        self.0.remove(place).map(|fault| fault.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::{Api, Fault, FaultKind, Faults, MOST_WAITING};

    #[test]
    fn faults_strike_in_order_as_often_as_ordered() {
        let mut faults = Faults::default();
        faults.order(Fault::once(FaultKind::Html).on("/runes/v1/blocks/"));
        faults.order(Fault::once(FaultKind::Close).times(2));
        faults.order(Fault::once(FaultKind::Garbage).times(0));
        for (path, expected) in [
            ("/ordinals/v1/", Some(FaultKind::Close)),
            ("/runes/v1/blocks/1/activity", Some(FaultKind::Html)),
            ("/runes/v1/blocks/1/activity", Some(FaultKind::Close)),
            ("/runes/v1/blocks/1/activity", None),
        ] {
            assert_eq!(faults.take(Api::Both, path), expected, "{path}");
        }
    }

    #[test]
    fn a_fault_of_one_server_strikes_at_no_other() {
        let mut faults = Faults::default();
        faults.order(Fault::once(FaultKind::Html).at(Api::Runes).times(2));
        faults.order(Fault::once(FaultKind::Close).at(Api::Ordinals));
        faults.order(Fault::once(FaultKind::Garbage));
        for (api, expected) in [
            (Api::Both, Some(FaultKind::Garbage)),
            (Api::Both, None),
            (Api::Ordinals, Some(FaultKind::Close)),
            (Api::Ordinals, None),
            (Api::Runes, Some(FaultKind::Html)),
        ] {
            assert_eq!(faults.take(api, "/runes/v1/"), expected, "{api:?}");
        }
        faults.clear(Api::Ordinals);
        assert_eq!(faults.0.len(), 1);
        faults.clear(Api::Runes);
        assert_eq!(faults.0.len(), 0);
    }

    #[test]
    fn waiting_faults_are_bounded_and_cleared() {
        let mut faults = Faults::default();
        for _ in 0..2 * MOST_WAITING {
            faults.order(Fault::once(FaultKind::Close));
        }
        assert_eq!(faults.0.len(), MOST_WAITING);
        faults.clear(Api::Both);
        assert_eq!(faults.take(Api::Both, "/"), None);
    }

    #[test]
    fn a_redirect_shows_when_it_is_followed() {
        for (target, location) in [("/a", "/a?followed=1"), ("/a?b=1", "/a?b=1&followed=1")] {
            let answer = FaultKind::Redirect.answer(target).expect("an answer");
            assert_eq!(answer.headers["location"], location);
        }
    }
}
