//! How a response came about: the outcome of a request, for the `cache-status`
//! field (RFC 9211), logs and metrics.

use std::cell::RefCell;
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

/// How a response came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// From memory.
    Hit {
        /// Whole seconds of freshness left, below zero for a stale response that is
        /// served while a newer one is fetched.
        ttl: i64,
    },
    /// From disk.
    FromDisk {
        /// Whole seconds of freshness left, below zero as for a hit.
        ttl: i64,
    },
    /// From another replica, by way of the engine.
    FromShared {
        /// Whole seconds of freshness left, below zero as for a hit.
        ttl: i64,
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
    /// Whether a request went to the upstream for it.
    pub(crate) const fn is_sent(self) -> bool {
        matches!(self, Self::Forwarded { collapsed, .. } if !collapsed)
    }

    /// The position of its name in [`OUTCOMES`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Hit { ttl } if ttl >= 0 => 0,
            Self::FromDisk { ttl } if ttl >= 0 => 5,
            Self::FromShared { ttl } if ttl >= 0 => 6,
            Self::Hit { .. }
            | Self::FromDisk { .. }
            | Self::FromShared { .. }
            | Self::StaleIfError { .. } => 1,
            Self::Forwarded {
                collapsed: true, ..
            } => 3,
            Self::Forwarded {
                why: Forward::Bypass,
                ..
            } => 4,
            Self::Forwarded { .. } => 2,
        }
    }

    /// The value of `cache-status`, with a detail where it is given.
    pub(crate) fn field(self, detail: Option<&str>) -> HeaderValue {
        match (self, detail) {
            (Self::Hit { ttl }, None) => hit(ttl),
            _ => self.write(detail),
        }
    }

    fn write(self, detail: Option<&str>) -> HeaderValue {
        let mut text = String::from("ordgate");
        let (what, ttl, own) = match self {
            Self::Hit { ttl } => ("; hit", Some(ttl), None),
            Self::FromDisk { ttl } => ("; hit", Some(ttl), Some("disk")),
            Self::FromShared { ttl } => ("; hit", Some(ttl), Some("shared")),
            Self::StaleIfError { ttl, .. } => ("; fwd=stale", Some(ttl), Some("stale-if-error")),
            Self::Forwarded { .. } => ("; fwd=", None, None),
        };
        text.push_str(what);
        if let Self::Forwarded {
            why,
            status,
            stored,
            collapsed,
        } = self
        {
            text.push_str(why.as_str());
            if let Some(status) = status {
                text.push_str("; fwd-status=");
                text.push_str(status.as_str());
            }
            text.push_str(if stored { "; stored" } else { "" });
            text.push_str(if collapsed { "; collapsed" } else { "" });
        }
        if let Some(ttl) = ttl {
            // An Integer has fifteen digits (RFC 9651 §3.3.1).
            const MOST: i64 = 999_999_999_999_999;
            text.push_str(&format!("; ttl={}", ttl.clamp(-MOST, MOST)));
        }
        if let Some(detail) = detail.or(own) {
            text.push_str("; detail=");
            text.push_str(detail);
        }
        let value = HeaderValue::try_from(text);
        unindexed(value.unwrap_or(HeaderValue::from_static("ordgate")))
    }
}

const MEMO: usize = 1024;

thread_local! {
    /// Values of hits by their seconds: most hits within a second have the same one, and a
    /// clone takes a tenth of the time of formatting it.
    static HITS: RefCell<Box<[(i64, HeaderValue)]>> =
        RefCell::new(vec![(-1, HeaderValue::from_static("")); MEMO].into());
}

fn hit(ttl: i64) -> HeaderValue {
    let make = || Outcome::Hit { ttl }.write(None);
    if ttl < 0 {
        return make();
    }
    HITS.with_borrow_mut(|memo| {
        let (held, value) = &mut memo[ttl as usize % MEMO];
        if *held != ttl {
            (*held, *value) = (ttl, make());
        }
        value.clone()
    })
}

/// The numbers below a thousand, in three digits.
static DIGITS: [[u8; 3]; 1000] = {
    let mut digits = [[b'0'; 3]; 1000];
    let mut number = 0;
    while number < 1000 {
        let n = number as u16;
        digits[number] = [
            b'0' + (n / 100) as u8,
            b'0' + (n / 10 % 10) as u8,
            b'0' + (n % 10) as u8,
        ];
        number += 1;
    }
    digits
};

/// The value of `age`, in whole seconds (RFC 9111 §5.1).
pub(crate) fn age(age: Duration) -> HeaderValue {
    let seconds = age.as_secs();
    // Most ages are small, and a static text has no reference count.
    if seconds < 1000 {
        let digits = &DIGITS[seconds as usize];
        let zeros = usize::from(seconds < 100) + usize::from(seconds < 10);
        return HeaderValue::from_static(std::str::from_utf8(&digits[zeros..]).unwrap_or("0"));
    }
    HeaderValue::from(seconds)
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
        let beyond_memo = Outcome::Hit {
            ttl: 7 + MEMO as i64,
        };
        let rows = [
            (Outcome::Hit { ttl: 7 }, None, "ordgate; hit; ttl=7"),
            (beyond_memo, None, "ordgate; hit; ttl=1031"),
            (Outcome::Hit { ttl: 7 }, None, "ordgate; hit; ttl=7"),
            (Outcome::Hit { ttl: -3 }, None, "ordgate; hit; ttl=-3"),
            (miss, None, "ordgate; fwd=uri-miss; fwd-status=200; stored"),
            (
                collapsed,
                Some("timeout"),
                "ordgate; fwd=stale; collapsed; detail=timeout",
            ),
            (
                Outcome::FromDisk { ttl: 7 },
                None,
                "ordgate; hit; ttl=7; detail=disk",
            ),
            (
                Outcome::FromShared { ttl: 7 },
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
