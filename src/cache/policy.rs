//! The cache settings of a route: its mode, its freshness lifetimes, and how
//! long stale responses may be served.
//!
//! In mode `override` the lifetime depends on the status, and on whether a list
//! is empty; the upstream's fields are ignored.

use std::time::Duration;

use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::storable::SetCookie;

/// The cache settings of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether responses are stored, and what decides their freshness.
    pub mode: Mode,
    /// Freshness lifetimes in mode `override`.
    pub times: StatusLifetimes,
    /// How stale a response may be that is served while a newer one is fetched
    /// (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// How stale a response may be that is served where the upstream fails or its
    /// budget is spent (RFC 5861 §4).
    pub stale_if_error: Duration,
    /// In mode `respect`: which responses with `set-cookie` are stored.
    pub set_cookie: SetCookie,
    /// In mode `chain`: the number of the answering indexer's tip.
    pub tip: u16,
}

/// A route's cache mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is stored and requests are not collapsed.
    #[default]
    Off,
    /// Fixed lifetimes per status.
    Override,
    /// A shared cache by RFC 9111: the upstream's fields decide.
    Respect,
    /// Lifetimes follow the blocks of the chain.
    Chain,
}

/// Freshness lifetimes by status, by class of status, and for empty lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusLifetimes {
    /// For one status, such as 404.
    pub(crate) exact: Vec<(StatusCode, Duration)>,
    /// For a class: `[1]` is 2xx, `[3]` is 4xx.
    pub(crate) classes: [Option<Duration>; 5],
    /// For a 200 whose `results` is an empty list, which may change at any time.
    pub(crate) empty: Option<Duration>,
}

impl StatusLifetimes {
    /// The freshness lifetime of a response; `None` where it is not stored.
    pub(crate) fn lifetime(&self, status: StatusCode, empty: bool) -> Option<Duration> {
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
}
