//! The cache settings of a route: its mode, its freshness lifetimes, and how
//! long stale responses may be served.
//!
//! In mode `override` the lifetime depends on the status, and on whether a list
//! is empty; the upstream's fields are ignored.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::storable::SetCookie;
use crate::units::Time;

/// What a route stores, and for how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Policy {
    /// "chain" keeps answers by the blocks that they depend on (`[chain]`) and ignores the
    /// upstream's cache-control and etag. "override" gives each status the fixed lifetime of
    /// `times`, whatever the upstream's fields say. "respect" is a shared cache by RFC 9111,
    /// with stale-while-revalidate and stale-if-error (RFC 5861), Vary, validation,
    /// invalidation, ranges and CDN-Cache-Control (RFC 9213). "off" stores nothing.
    pub mode: Mode,
    /// How long past its freshness an answer is served while a newer one is fetched.
    #[serde(with = "Time::<0>")]
    pub stale_while_revalidate: Duration,
    /// How long past its freshness an answer is served when the upstream fails or its budget is
    /// spent. With mode = "respect", the upstream's fields take precedence.
    #[serde(with = "Time::<0>")]
    pub stale_if_error: Duration,
    /// With mode = "respect": which responses with set-cookie are stored, and their cookies
    /// given to every client.
    ///
    /// "explicit": those that say how long they are fresh (max-age, s-maxage, expires, a
    /// targeted field) or that are public; "never": none. Routes with headers = "typed" pass no
    /// cookie on, and store by the other rules unless it is "never".
    #[serde(
        rename = "store_set_cookie",
        skip_serializing_if = "SetCookie::is_usual"
    )]
    pub set_cookie: SetCookie,
    /// With mode = "chain": the tip of the indexer that answers ([chain.tip.NAME]).
    ///
    /// Without it, that is the one whose status path is the longest that the route's path
    /// begins with.
    #[serde(rename = "tip", skip_serializing_if = "Option::is_none")]
    pub tip_name: Option<String>,
    /// The number of that tip.
    #[serde(skip)]
    pub tip: u16,
    /// With mode = "override": the freshness lifetime for statuses (200, 400 to 499), for
    /// classes (2xx, 4xx), and for `empty`: a 200 whose `results` is an empty list. What has no
    /// time is not stored.
    #[serde(skip_serializing_if = "StatusLifetimes::is_empty")]
    pub times: StatusLifetimes,
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

/// Freshness lifetimes by status ("404"), by class ("2xx"), and for empty lists ("empty").
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct StatusLifetimes(pub BTreeMap<String, Lifetime>);

/// The freshness lifetime of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Lifetime(#[serde(with = "Time::<0>")] pub Duration);

impl StatusLifetimes {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The freshness lifetime of a response; `None` where it is not stored.
    pub(crate) fn lifetime(&self, status: StatusCode, empty: bool) -> Option<Duration> {
        let time = |key: &str| self.0.get(key).map(|Lifetime(time)| *time);
        let of_empty = (empty && status == StatusCode::OK).then(|| time("empty"));
        let class = || time(&format!("{}xx", status.as_u16() / 100));
        of_empty
            .flatten()
            .or_else(|| time(status.as_str()))
            .or_else(class)
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
        let keys = [("404", 1), ("2xx", 10), ("4xx", 2), ("empty", 3)];
        let times = keys.map(|(key, time)| (key.to_owned(), Lifetime(seconds(time))));
        let mut times = StatusLifetimes(times.into());
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
        times.0.remove("empty");
        assert_eq!(times.lifetime(StatusCode::OK, true), Some(seconds(10)));
    }
}
