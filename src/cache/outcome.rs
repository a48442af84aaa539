//! The `cache-status` field (RFC 9211): how an answer came about, said to the
//! client and, in the same words, to logs and metrics. Pure.

use std::cell::RefCell;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::status::{CacheStatus, Forward};

/// How an answer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// From memory; `ttl` in whole seconds, below zero for one that is stale
    /// and served while a newer one is fetched.
    Hit {
        /// What is left of the freshness lifetime.
        ttl: i64,
    },
    /// By asking the upstream.
    Forwarded {
        /// Why it was asked.
        why: Forward,
        /// What it said; `None` where nothing usable came.
        status: Option<StatusCode>,
        /// Whether its answer was stored.
        stored: bool,
        /// Whether another request had asked already.
        collapsed: bool,
    },
    /// From memory though stale, since asking the upstream failed.
    StaleIfError {
        /// By how much it is stale, in whole seconds below zero.
        ttl: i64,
    },
}

/// The words of [`Outcome`] in logs and metrics.
pub const OUTCOMES: [&str; 5] = ["hit", "stale", "miss", "collapsed", "bypass"];

impl Outcome {
    /// The place of this outcome in [`OUTCOMES`].
    pub fn index(self) -> usize {
        match self {
            Self::Hit { ttl } if ttl >= 0 => 0,
            Self::Hit { .. } | Self::StaleIfError { .. } => 1,
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

    /// The field's value; with the cache key and what `detail` says where they
    /// are given.
    pub fn field(self, key: Option<&str>, detail: Option<&str>) -> HeaderValue {
        match (self, key, detail) {
            (Self::Hit { ttl }, None, None) => hit(ttl),
            _ => self.write(key, detail),
        }
    }

    fn write(self, key: Option<&str>, detail: Option<&str>) -> HeaderValue {
        let said = CacheStatus {
            key,
            detail,
            ..CacheStatus::default()
        };
        let said = match self {
            Self::Hit { ttl } => CacheStatus {
                hit: true,
                ttl: Some(ttl),
                ..said
            },
            Self::StaleIfError { ttl } => CacheStatus {
                forward: Some(Forward::Stale),
                ttl: Some(ttl),
                detail: Some("stale-if-error"),
                ..said
            },
            Self::Forwarded {
                why,
                status,
                stored,
                collapsed,
            } => CacheStatus {
                forward: Some(why),
                forward_status: status,
                stored,
                collapsed,
                ..said
            },
        };
        said.value("ordgate")
    }
}

const MEMO: usize = 1024;

thread_local! {
    /// Values by their number: nearly every hit of a second shares one, and a
    /// clone is a tenth of making it.
    static HITS: RefCell<Memo> = RefCell::new(Memo::new());
    static AGES: RefCell<Memo> = RefCell::new(Memo::new());
}

fn hit(ttl: i64) -> HeaderValue {
    let make = || Outcome::Hit { ttl }.write(None, None);
    match usize::try_from(ttl) {
        Ok(number) => HITS.with_borrow_mut(|memo| memo.get(number, make)),
        Err(_) => make(),
    }
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
pub fn age(age: Duration) -> HeaderValue {
    let seconds = age.as_secs();
    // Most ages are small; a text that is always there needs no counter.
    if seconds < 1000 {
        let digits = &DIGITS[seconds as usize];
        let zeros = usize::from(seconds < 100) + usize::from(seconds < 10);
        return HeaderValue::from_static(std::str::from_utf8(&digits[zeros..]).unwrap_or("0"));
    }
    let make = || HeaderValue::from(seconds);
    match usize::try_from(seconds) {
        Ok(number) => AGES.with_borrow_mut(|memo| memo.get(number, make)),
        Err(_) => make(),
    }
}

/// A direct-mapped memo of field values, by number.
struct Memo(Box<[Option<(usize, HeaderValue)>]>);

impl Memo {
    fn new() -> Self {
        Self(vec![None; MEMO].into())
    }

    fn get(&mut self, number: usize, make: impl FnOnce() -> HeaderValue) -> HeaderValue {
        let slot = &mut self.0[number % MEMO];
        match slot {
            Some((held, value)) if *held == number => value.clone(),
            _ => slot.insert((number, make())).1.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
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
        let rows = [
            (Outcome::Hit { ttl: 7 }, None, None, "ordgate; hit; ttl=7"),
            (
                Outcome::Hit {
                    ttl: 7 + MEMO as i64,
                },
                None,
                None,
                "ordgate; hit; ttl=1031",
            ),
            (Outcome::Hit { ttl: 7 }, None, None, "ordgate; hit; ttl=7"),
            (Outcome::Hit { ttl: -3 }, None, None, "ordgate; hit; ttl=-3"),
            (
                Outcome::Hit { ttl: 7 },
                Some("/a?b=c"),
                None,
                "ordgate; hit; ttl=7; key=\"/a?b=c\"",
            ),
            (
                miss,
                None,
                None,
                "ordgate; fwd=uri-miss; fwd-status=200; stored",
            ),
            (
                collapsed,
                None,
                Some("timeout"),
                "ordgate; fwd=stale; collapsed; detail=timeout",
            ),
            (
                Outcome::StaleIfError { ttl: -4 },
                None,
                None,
                "ordgate; fwd=stale; ttl=-4; detail=stale-if-error",
            ),
        ];
        for (outcome, key, detail, expected) in rows {
            assert_eq!(outcome.field(key, detail), expected);
        }
    }

    #[test]
    fn ages() {
        for seconds in (0..1030).chain([1, 4096, 1024, u64::MAX]) {
            let expected = HeaderValue::from(seconds);
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(age(Duration::from_millis(1999)), "1");
    }
}
