//! How a response came about: the outcome of a request, for the `cache-status`
//! field (RFC 9211), logs and metrics.

use std::cell::RefCell;
use std::thread::LocalKey;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use crate::reason::Reason;
use crate::wire::unindexed;

/// Why a request was forwarded (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// The cache was configured to not handle this request.
    Bypass,
    /// The method's semantics require it.
    Method,
    /// No stored response matches the target URI.
    UriMiss,
    /// A stored response matches the target URI, but not the fields that `Vary` nominates.
    VaryMiss,
    /// The selected stored response is fresh, but the request does not accept it.
    Request,
    /// The selected stored response may not be used without validation.
    Stale,
}

impl Forward {
    /// The reason as a parameter's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Request => "request",
            Self::Stale => "stale",
        }
    }
}

/// Where a stored response that answers a request is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitSource {
    /// Memory.
    Memory,
    /// The state directory.
    Disk,
    /// Another replica, by way of the engine.
    Shared,
}

/// How a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is a stored one.
    Hit {
        /// Whole seconds of freshness left, below zero for a stale response that is
        /// served while a newer one is fetched.
        ttl: i64,
        /// Where it is from.
        from: HitSource,
    },
    /// From the upstream.
    Forwarded {
        /// Why the request was forwarded.
        why: Forward,
        /// The upstream's status code; `None` where it sent no usable response.
        status: Option<StatusCode>,
        /// Whether its response was stored.
        stored: bool,
        /// Whether the request joined the fetch of another.
        collapsed: bool,
    },
    /// From memory though stale, because the upstream failed or took longer than
    /// `cache.stale_wait`, or because the client is over its limit of misses.
    StaleIfError {
        /// Whole seconds of freshness left, which are below zero.
        ttl: i64,
        /// Why there is no fresh response.
        reason: Reason,
    },
}

/// The names of outcomes in logs and metrics.
pub const OUTCOMES: [&str; 7] = [
    "hit",
    "stale",
    "miss",
    "collapsed",
    "bypass",
    "disk",
    "shared",
];

impl Outcome {
    /// A fresh or stale response from memory.
    pub(crate) const fn hit(ttl: i64) -> Self {
        let from = HitSource::Memory;
        Self::Hit { ttl, from }
    }

    /// Whether a request went to the upstream for it.
    pub(crate) const fn is_sent(self) -> bool {
        matches!(self, Self::Forwarded { collapsed, .. } if !collapsed)
    }

    /// The position of its name in [`OUTCOMES`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::StaleIfError { .. } => 1,
            Self::Hit { ttl, .. } if ttl < 0 => 1,
            Self::Hit { from, .. } => [0, 5, 6][from as usize],
            Self::Forwarded { collapsed, .. } if collapsed => 3,
            Self::Forwarded {
                why: Forward::Bypass,
                ..
            } => 4,
            Self::Forwarded { .. } => 2,
        }
    }

    /// The value of `cache-status`, with a detail where it is given.
    pub(crate) fn field(self, detail: Option<&str>) -> HeaderValue {
        let write = || {
            let value = HeaderValue::try_from(self.text(detail));
            unindexed(value.unwrap_or(HeaderValue::from_static("ordgate")))
        };
        match (self, detail) {
            (Self::Hit { ttl, from }, None) if from == HitSource::Memory && ttl >= 0 => {
                remembered(&HITS, ttl.cast_unsigned(), write)
            }
            _ => write(),
        }
    }

    fn text(self, detail: Option<&str>) -> String {
        // An Integer has fifteen digits (RFC 9651 §3.3.1).
        const MOST: i64 = 999_999_999_999_999;
        let of = |what, ttl: i64| format!("ordgate; {what}; ttl={}", ttl.clamp(-MOST, MOST));
        let (mut text, own) = match self {
            Self::Hit { ttl, from } => (
                of("hit", ttl),
                [None, Some("disk"), Some("shared")][from as usize],
            ),
            Self::StaleIfError { ttl, .. } => (of("fwd=stale", ttl), Some("stale-if-error")),
            Self::Forwarded {
                why,
                status,
                stored,
                collapsed,
            } => {
                let status = status.map(|status| format!("; fwd-status={}", status.as_str()));
                let text = format!(
                    "ordgate; fwd={}{}{}{}",
                    why.as_str(),
                    status.unwrap_or_default(),
                    if stored { "; stored" } else { "" },
                    if collapsed { "; collapsed" } else { "" },
                );
                (text, None)
            }
        };
        if let Some(detail) = detail.or(own) {
            text.push_str("; detail=");
            text.push_str(detail);
        }
        text
    }
}

/// How many values are remembered.
const REMEMBERED: usize = 1024;

/// Values of a field by a number: most hits within a second have the same ones, and a clone
/// takes a tenth of the time of formatting.
type Memo = RefCell<Box<[Option<(u64, HeaderValue)>]>>;

thread_local! {
    static HITS: Memo = RefCell::new(vec![None; REMEMBERED].into());
    static AGES: Memo = RefCell::new(vec![None; REMEMBERED].into());
}

fn remembered(
    memo: &'static LocalKey<Memo>,
    number: u64,
    make: impl FnOnce() -> HeaderValue,
) -> HeaderValue {
    memo.with_borrow_mut(|memo| {
        let held = &mut memo[number as usize % REMEMBERED];
        match held {
            Some((of, value)) if *of == number => value.clone(),
            _ => held.insert((number, make())).1.clone(),
        }
    })
}

/// The value of `age`, in whole seconds (RFC 9111 §5.1).
pub(crate) fn age(age: Duration) -> HeaderValue {
    let seconds = age.as_secs();
    remembered(&AGES, seconds, || HeaderValue::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_cache_status() {
        let miss = Outcome::Forwarded {
            why: Forward::UriMiss,
            status: Some(StatusCode::OK),
            stored: true,
            collapsed: false,
        };
        let collapsed = Outcome::Forwarded {
            why: Forward::Stale,
            status: None,
            stored: false,
            collapsed: true,
        };
        let hit = Outcome::hit;
        let other = |from| Outcome::Hit { ttl: 7, from };
        let rows = [
            (hit(7), None, "ordgate; hit; ttl=7"),
            (hit(7 + REMEMBERED as i64), None, "ordgate; hit; ttl=1031"),
            (hit(7), None, "ordgate; hit; ttl=7"),
            (hit(-3), None, "ordgate; hit; ttl=-3"),
            (miss, None, "ordgate; fwd=uri-miss; fwd-status=200; stored"),
            (
                collapsed,
                Some("timeout"),
                "ordgate; fwd=stale; collapsed; detail=timeout",
            ),
            (
                other(HitSource::Disk),
                None,
                "ordgate; hit; ttl=7; detail=disk",
            ),
            (
                other(HitSource::Shared),
                None,
                "ordgate; hit; ttl=7; detail=shared",
            ),
            (
                Outcome::StaleIfError {
                    ttl: -4,
                    reason: Reason::Tls,
                },
                None,
                "ordgate; fwd=stale; ttl=-4; detail=stale-if-error",
            ),
        ];
        for (outcome, detail, expected) in rows {
            assert_eq!(outcome.field(detail), expected);
        }
    }

    #[test]
    fn values_of_age() {
        for seconds in (0..1030).chain([4096, u64::MAX]) {
            let expected = HeaderValue::from(seconds);
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(age(Duration::from_millis(1999)), "1");
    }
}
