//! Queued faults for the next requests.
//!
//! `Sandbox::fault` and `POST /sandbox/fault` queue them; `server` takes at most one for each request. Invariants: faults
//! apply in the order in which they were queued, and the queue is bounded; with the same seed, a chance falls on the same
//! requests. There are no faults below HTTP, such as lost packets.

use std::collections::VecDeque;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, LOCATION, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::answer::{Answer, JSON, STATEMENT_TIMEOUT};
use super::api::Api;

/// The most queued faults; further ones are ignored.
const MAX_QUEUED: usize = 1_000;

/// The most bytes of a fault's path that a control request may send.
pub(super) const MAX_PATH: usize = 512;

/// A fault, and the requests to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// The number of requests; zero has no effect, `u32::MAX` lasts in practice until it is cleared.
    pub times: u32,
    /// The prefix of the raw path; without it the fault applies to all paths.
    pub path: Option<String>,
    /// The API; [`Api::Both`] applies to all requests.
    pub api: Api,
    /// Of a million requests that it may apply to, how many it applies to. The seed and the request's number decide.
    pub chance: u32,
}

/// The chance of a fault that applies to each request.
pub(super) const ALWAYS: u32 = 1_000_000;

impl Fault {
    /// A fault for the next request, whatever its path.
    #[must_use]
    pub const fn once(kind: FaultKind) -> Self {
        Self {
            kind,
            times: 1,
            path: None,
            api: Api::Both,
            chance: ALWAYS,
        }
    }

    /// The same fault for this number of requests.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// The same fault for paths with this prefix only.
    #[must_use]
    pub fn on(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The same fault for requests of this API only: those that the server of this API gets, and on a server of both
    /// APIs those whose path is under `/ordinals` or `/runes`.
    #[must_use]
    pub const fn at(mut self, api: Api) -> Self {
        self.api = api;
        self
    }
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// This status instead of the answer. 500 has the reference's body, others a JSON object with the one member
    /// `error`.
    Status {
        /// The status.
        status: StatusCode,
        /// The value of `retry-after`, in seconds.
        retry_after: Option<u32>,
    },
    /// 302 to the same target with `followed=1` added to the query, to recognise a followed redirect.
    Redirect,
    /// The right answer, but the connection closes after half of its body.
    Truncate,
    /// The connection closes without an answer.
    Close,
    /// The right answer after this delay.
    Stall(Duration),
    /// The right answer, with its body in up to sixteen pieces and this pause between them.
    Drip(Duration),
    /// 200 with an HTML page.
    Html,
    /// 200 with a body that is not JSON but has its content type.
    Garbage,
    /// 200 with a JSON body that consists mostly of spaces.
    Oversize {
        /// The length of the body; at least that of an empty page.
        bytes: u64,
        /// True for a body with `content-length`, false for a chunked one.
        declared: bool,
    },
}

/// The start and the end of an oversize body.
pub(super) const OVERSIZE_ENDS: (&str, &str) =
    ("{\"limit\":20,\"offset\":0,\"total\":0,\"results\":[", "]}");

impl FaultKind {
    /// The name in `POST /sandbox/fault`; that of a status is its number.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Redirect => "redirect",
            Self::Truncate => "truncate",
            Self::Close => "close",
            Self::Stall(_) => "stall",
            Self::Drip(_) => "drip",
            Self::Html => "html",
            Self::Garbage => "garbage",
            Self::Oversize { declared: true, .. } => "oversize",
            Self::Oversize {
                declared: false, ..
            } => "oversize-chunked",
        }
    }

    /// The answer that replaces the right one, if the fault is of that kind. An oversize answer has no body here:
    /// [`Payload`](super::payload::Payload) makes it piece by piece.
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
                let seconds = retry_after.map(|seconds| (RETRY_AFTER, seconds.into()));
                answer.headers.extend(seconds);
                Some(answer)
            }
            Self::Redirect => {
                let mut answer = Answer::provider(StatusCode::FOUND, "Found");
                let separator = if target.contains('?') { '&' } else { '?' };
                if let Ok(value) = HeaderValue::try_from(format!("{target}{separator}followed=1")) {
                    answer.headers.insert(LOCATION, value);
                }
                Some(answer)
            }
            Self::Html => {
                let page = "<!DOCTYPE html>\n<html><head><title>Just a moment</title></head>\
                            <body><h1>Checking your browser</h1></body></html>\n";
                Some(success(page, "text/html; charset=utf-8"))
            }
            Self::Garbage => Some(success(
                "{\"limit\":20,\"offset\":0,\"total\":3,\"results\":[{\"rune\":{\"id",
                JSON,
            )),
            Self::Oversize { bytes, declared } => {
                let mut answer = success("", JSON);
                answer.headers.remove(CONTENT_LENGTH);
                let length = declared.then(|| (CONTENT_LENGTH, oversize_length(*bytes).into()));
                answer.headers.extend(length);
                Some(answer)
            }
            Self::Truncate | Self::Close | Self::Stall(_) | Self::Drip(_) => None,
        }
    }
}

fn success(body: &str, content_type: &'static str) -> Answer {
    Answer::provider(StatusCode::OK, "").with_body(content_type, body.to_owned())
}

/// The length of an oversize body: as ordered, but at least that of its start and end.
pub(super) fn oversize_length(bytes: u64) -> u64 {
    bytes.max((OVERSIZE_ENDS.0.len() + OVERSIZE_ENDS.1.len()) as u64)
}

/// The queued faults, each with its number.
#[derive(Debug, Default)]
pub(super) struct Faults {
    queued: VecDeque<(u64, Fault)>,
    /// How many were ever queued.
    numbered: u64,
}

/// Whether a fault is one of the server of this API.
fn is_of(fault: &Fault, api: Api) -> bool {
    api == Api::Both || fault.api == Api::Both || fault.api == api
}

impl Faults {
    /// Queues a fault and returns its number; none if it has no effect or the queue is full.
    pub(super) fn push(&mut self, fault: Fault) -> Option<u64> {
        if fault.times == 0 || fault.chance == 0 || self.queued.len() >= MAX_QUEUED {
            return None;
        }
        self.numbered += 1;
        self.queued.push_back((self.numbered, fault));
        Some(self.numbered)
    }

    /// Clears the faults of the server of this API; all faults for [`Api::Both`].
    pub(super) fn clear(&mut self, api: Api) {
        self.queued
            .retain(|(_, fault)| api != Api::Both && fault.api != api);
    }

    /// Removes the fault with this number, if the server of this API has it.
    pub(super) fn remove(&mut self, api: Api, number: u64) -> bool {
        let mut queued = self.queued.iter();
        let at = queued.position(|(known, fault)| *known == number && is_of(fault, api));
        at.and_then(|at| self.queued.remove(at)).is_some()
    }

    /// The faults of the server of this API, with their numbers.
    pub(super) fn list(&self, api: Api) -> impl Iterator<Item = (u64, &Fault)> {
        let queued = self.queued.iter().map(|(number, fault)| (*number, fault));
        queued.filter(move |(_, fault)| is_of(fault, api))
    }

    /// Takes the first fault that applies to this raw path at the server of this API. `is_hit` decides by the fault's
    /// number and its chance.
    pub(super) fn take(
        &mut self,
        api: Api,
        path: &str,
        is_hit: impl Fn(u64, u32) -> bool,
    ) -> Option<FaultKind> {
        let applies = |(number, fault): &(u64, Fault)| {
            let here = fault.api == Api::Both
                || fault.api == api
                || (api == Api::Both && fault.api.has_path(path));
            let prefix = fault.path.as_deref();
            here && prefix.is_none_or(|prefix| path.starts_with(prefix))
                && (fault.chance >= ALWAYS || is_hit(*number, fault.chance))
        };
        let position = self.queued.iter().position(applies)?;
        let (_, fault) = self.queued.get_mut(position)?;
        if fault.times == u32::MAX {
            return Some(fault.kind.clone());
        }
        fault.times -= 1;
        if fault.times > 0 {
            return Some(fault.kind.clone());
        }
        self.queued.remove(position).map(|(_, fault)| fault.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::{Api, Fault, FaultKind, Faults};

    /// For faults that need no luck.
    fn never(_fault: u64, _chance: u32) -> bool {
        false
    }

    #[test]
    fn faults_apply_in_order_as_often_as_queued() {
        let mut faults = Faults::default();
        faults.push(Fault::once(FaultKind::Html).on("/runes/v1/blocks/"));
        faults.push(Fault::once(FaultKind::Close).times(2));
        faults.push(Fault::once(FaultKind::Garbage).times(0));
        for (path, expected) in [
            ("/ordinals/v1/", Some(FaultKind::Close)),
            ("/runes/v1/blocks/1/activity", Some(FaultKind::Html)),
            ("/runes/v1/blocks/1/activity", Some(FaultKind::Close)),
            ("/runes/v1/blocks/1/activity", None),
        ] {
            assert_eq!(faults.take(Api::Both, path, never), expected, "{path}");
        }
    }

    #[test]
    fn a_fault_of_one_server_does_not_apply_to_the_other() {
        let mut faults = Faults::default();
        faults.push(Fault::once(FaultKind::Html).at(Api::Runes).times(2));
        faults.push(Fault::once(FaultKind::Close).at(Api::Ordinals));
        faults.push(Fault::once(FaultKind::Garbage));
        for (api, expected) in [
            (Api::Ordinals, Some(FaultKind::Close)),
            (Api::Ordinals, Some(FaultKind::Garbage)),
            (Api::Ordinals, None),
            (Api::Runes, Some(FaultKind::Html)),
        ] {
            assert_eq!(faults.take(api, "/runes/v1/", never), expected, "{api:?}");
        }
        faults.push(Fault::once(FaultKind::Close).at(Api::Ordinals));
        faults.clear(Api::Ordinals);
        assert_eq!(faults.queued.len(), 1);
        faults.clear(Api::Runes);
        assert_eq!(faults.queued.len(), 0);
    }
}
