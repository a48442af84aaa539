//! How long an answer is fresh, and what may be done with it afterwards. Pure:
//! `now` is an argument.
//!
//! The mode `override` gives fixed times per status, whatever the upstream's
//! fields say; it asks nothing but the status and whether a list was empty.
//!
//! Deliberately absent: the store. An entry that is past every use simply is
//! not used, and leaves when the store wants its room.

use std::time::Duration;

use http::StatusCode;

use super::storable::SetCookie;
use crate::clock::Moment;

/// What a route stores and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether anything is stored.
    pub mode: Mode,
    /// Freshness lifetimes in mode `override`.
    pub times: StatusLifetimes,
    /// How long past its freshness an answer may be used while a newer one is
    /// fetched (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// How long past its freshness an answer may be used when the upstream
    /// fails or its budget is spent (RFC 5861 §4).
    pub stale_if_error: Duration,
    /// In mode `respect`: which responses with `set-cookie` are stored.
    pub set_cookie: SetCookie,
    /// In mode `chain`: the tip of the indexer that answers, by its number.
    pub tip: u16,
}

/// A route's cache mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is stored and nothing is collapsed.
    Off,
    /// Fixed times per status.
    Override,
    /// A shared cache by RFC 9111, as the upstream's fields have it.
    Respect,
    /// As blocks come and go.
    Chain,
}

impl Mode {
    /// The names in proxy.toml.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("chain", Self::Chain),
        ("override", Self::Override),
        ("respect", Self::Respect),
        ("off", Self::Off),
    ];
}

/// Freshness lifetimes by status, by class of status, and for empty lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusLifetimes {
    /// For one status, such as 404.
    pub exact: Vec<(StatusCode, Duration)>,
    /// For a class: `[1]` is 2xx, `[3]` is 4xx.
    pub classes: [Option<Duration>; 5],
    /// For a 200 whose `results` is an empty list: it may fill at any moment.
    pub empty: Option<Duration>,
}

impl StatusLifetimes {
    /// The freshness lifetime of an answer; `None` where it is not stored.
    pub fn lifetime(&self, status: StatusCode, empty: bool) -> Option<Duration> {
        if empty && status == StatusCode::OK && self.empty.is_some() {
            return self.empty;
        }
        let exact = self.exact.iter().find(|(code, _)| *code == status);
        exact.map(|(_, time)| *time).or_else(|| {
            let class = usize::from(status.as_u16() / 100).checked_sub(1)?;
            self.classes.get(class).copied().flatten()
        })
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            times: StatusLifetimes::default(),
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            set_cookie: SetCookie::default(),
            tip: 0,
        }
    }
}

/// What an answer of a certain age is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usable {
    /// As it is, for so long.
    Fresh {
        /// What is left of its freshness lifetime.
        ttl: Duration,
    },
    /// Only under a condition, so long after its freshness ended.
    Stale {
        /// How long ago it ceased to be fresh.
        by: Duration,
    },
}

/// Judges an answer that was received at a moment with a freshness lifetime.
/// Its age is the time since then (RFC 9111 §4.2.3, with an `age` of zero at
/// the start: in mode `override` the lifetime counts from our receiving it).
pub fn usable(received: Moment, lifetime: Duration, now: Moment) -> Usable {
    let age = now.since(received);
    match lifetime.checked_sub(age) {
        Some(ttl) if !ttl.is_zero() => Usable::Fresh { ttl },
        _ => Usable::Stale {
            by: age.saturating_sub(lifetime),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn lifetimes_by_status() {
        let times = StatusLifetimes {
            exact: vec![(StatusCode::NOT_FOUND, seconds(1))],
            classes: [None, Some(seconds(10)), None, Some(seconds(2)), None],
            empty: Some(seconds(3)),
        };
        for (status, empty, lifetime) in [
            (200, false, Some(seconds(10))),
            (200, true, Some(seconds(3))),
            (203, true, Some(seconds(10))),
            (404, false, Some(seconds(1))),
            (404, true, Some(seconds(1))),
            (400, false, Some(seconds(2))),
            (302, false, None),
            (500, false, None),
            (999, false, None),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(times.lifetime(status, empty), lifetime, "{status} {empty}");
        }
        let without = StatusLifetimes {
            empty: None,
            ..times
        };
        assert_eq!(without.lifetime(StatusCode::OK, true), Some(seconds(10)));
    }

    #[test]
    fn freshness_ends_when_the_lifetime_has_passed() {
        let received = Moment::from_nanos(1_000_000_000_000);
        let rows = [
            (0, Usable::Fresh { ttl: seconds(10) }),
            (9, Usable::Fresh { ttl: seconds(1) }),
            // RFC 9111 §4.2: fresh while the lifetime is greater than the age.
            (10, Usable::Stale { by: seconds(0) }),
            (25, Usable::Stale { by: seconds(15) }),
        ];
        for (age, expected) in rows {
            let now = received + seconds(age);
            assert_eq!(usable(received, seconds(10), now), expected, "at {age} s");
        }
        assert_eq!(
            usable(received, seconds(0), received),
            Usable::Stale { by: seconds(0) }
        );
    }

    proptest::proptest! {
        /// Nothing becomes fresh again, and the two sides of the boundary add
        /// up to the age.
        #[test]
        fn age_and_freshness_agree(received in 0_u64..1 << 60, lifetime in 0_u64..1 << 50, age in 0_u64..1 << 50) {
            let (received, lifetime) = (Moment::from_nanos(received), Duration::from_nanos(lifetime));
            let age = Duration::from_nanos(age);
            match usable(received, lifetime, received + age) {
                Usable::Fresh { ttl } => proptest::prop_assert_eq!(ttl + age, lifetime),
                Usable::Stale { by } => proptest::prop_assert_eq!(lifetime + by, age),
            }
        }
    }
}
