//! What the judge records of requests and answers.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::world::{Target, Thing, Time};

/// A client's request.
pub(crate) struct Sent {
    pub(crate) text: String,
    pub(crate) target: Target,
    pub(super) had: Option<HeaderValue>,
    pub(super) nth: u64,
    pub(super) at: Time,
    /// When the probe was sent by which ordgate knew the tip.
    pub(super) confirmed: Option<Time>,
    pub(super) peak: u32,
    pub(super) over: bool,
}

impl Sent {
    pub(crate) fn new(
        text: String,
        target: Target,
        had: Option<HeaderValue>,
        nth: u64,
        at: Time,
    ) -> Self {
        Self {
            text,
            target,
            had,
            nth,
            at,
            confirmed: None,
            peak: 0,
            over: false,
        }
    }
}

/// What a client got.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) content_type: String,
    pub(crate) cache_status: String,
    pub(crate) cache_control: String,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn says(&self, word: &str) -> bool {
        self.cache_status.contains(word)
    }

    pub(super) fn max_age(&self) -> Option<u64> {
        let control = self.cache_control.split(", ");
        let mut ages = control.filter_map(|part| part.strip_prefix("max-age="));
        Some(ages.next()?.parse().unwrap())
    }
}

/// A request to the upstream.
pub(crate) struct Asked {
    pub(crate) text: String,
    pub(crate) target: Target,
    pub(crate) sent: Time,
    /// Whether an endpoint answers that is behind.
    pub(crate) is_behind: bool,
    pub(super) nth: u64,
    pub(super) tag: usize,
    /// The version that the body tells of, when that was looked up, and what it
    /// is about.
    pub(super) body: usize,
    pub(super) looked_up: Time,
    pub(super) thing: Option<Thing>,
    pub(super) delivered: Option<Time>,
    pub(super) over: bool,
}

impl Asked {
    pub(crate) fn new(
        text: String,
        target: Target,
        (nth, sent): (u64, Time),
        is_behind: bool,
    ) -> Self {
        Self {
            text,
            target,
            sent,
            is_behind,
            nth,
            tag: 0,
            body: 0,
            looked_up: 0,
            thing: None,
            delivered: None,
            over: false,
        }
    }
}

/// An answer of the upstream.
pub(crate) struct UpstreamAnswer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: String,
    pub(crate) tag: String,
    pub(crate) what: String,
}
