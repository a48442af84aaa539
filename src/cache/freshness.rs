//! Freshness lifetime and current age (RFC 9111 §4.2).
//!
//! Computed when a response is stored or freshened; [`super::reuse`] compares them with the time of a
//! request. Durations are never negative and saturate. Where a `Date` is involved, ages are in whole
//! seconds, the resolution of `Date`.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use super::{date, delta::Delta, directives::ResponseDirectives, list::plain, targeted::Governing};

/// How a lifetime is computed where the response states none (§4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heuristic {
    /// Its share of the time since the last modification, in percent.
    pub(crate) percent: u8,
    /// The longest heuristic lifetime; zero disables it.
    pub(crate) cap: Duration,
}

impl Default for Heuristic {
    fn default() -> Self {
        Self {
            percent: 10,
            cap: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Where a lifetime comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifetimeSource {
    /// `s-maxage`.
    SMaxage,
    /// `max-age`.
    MaxAge,
    /// `Expires`.
    Expires,
    /// A heuristic, from `Last-Modified`.
    Heuristic,
    /// Nowhere: the response was never fresh.
    Nothing,
}

/// How long a response is fresh, counted from its generation (§4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// Its length.
    pub(crate) duration: Duration,
    /// Where it comes from.
    pub(crate) source: LifetimeSource,
}

impl Lifetime {
    /// The lifetime of a response, for a shared cache.
    #[must_use]
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        governing: &Governing,
        response_time: SystemTime,
        heuristic: Heuristic,
    ) -> Self {
        let directives = &governing.directives;
        let explicit = |delta: Delta, source| Self {
            duration: delta.duration(),
            source,
        };
        // §4.2.1, in this order: s-maxage for a shared cache, max-age, Expires, a heuristic.
        if let Some(delta) = directives.s_maxage {
            return explicit(delta, LifetimeSource::SMaxage);
        }
        if let Some(delta) = directives.max_age {
            return explicit(delta, LifetimeSource::MaxAge);
        }
        let generated = date::field(headers, &header::DATE).unwrap_or(response_time);
        // RFC 9213 §2.2: a targeted field overrides Expires.
        if !governing.targeted && headers.contains_key(header::EXPIRES) {
            let duration = date::since(generated, earliest_expiry(headers).unwrap_or(generated));
            return Self {
                duration,
                source: LifetimeSource::Expires,
            };
        }
        if may_guess(status, directives)
            && let Some(modified) = date::field(headers, &header::LAST_MODIFIED)
        {
            let duration = heuristic.lifetime(date::since(modified, generated));
            return Self {
                duration,
                source: LifetimeSource::Heuristic,
            };
        }
        Self {
            duration: Duration::ZERO,
            source: LifetimeSource::Nothing,
        }
    }
}

impl Heuristic {
    fn lifetime(self, unmodified: Duration) -> Duration {
        let part = unmodified.as_secs().saturating_mul(u64::from(self.percent)) / 100;
        Duration::from_secs(part).min(self.cap)
    }
}

/// The earliest date in `Expires`; `None` where one of them is invalid, which means a time in the past
/// (§5.3).
fn earliest_expiry(headers: &HeaderMap) -> Option<SystemTime> {
    let lines = headers.get_all(header::EXPIRES).iter();
    let dates: Option<Vec<_>> = lines.map(|line| date::parse(line.as_bytes())).collect();
    dates?.into_iter().min()
}

/// Whether a heuristic lifetime is allowed: the status code is heuristically cacheable, or the response
/// is marked as cacheable (§4.2.2).
#[must_use]
pub(crate) fn may_guess(status: StatusCode, directives: &ResponseDirectives) -> bool {
    directives.public || heuristically_cacheable(status)
}

/// The status codes that are heuristically cacheable: RFC 9110 §15.1, and 451 (RFC 7725 §3).
#[must_use]
pub(crate) fn heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

/// What the age of a stored response is computed from (§4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aging {
    corrected_initial_age: Duration,
    response_time: SystemTime,
}

impl Aging {
    /// The age that a response has on arrival.
    #[must_use]
    pub(crate) fn of(
        headers: &HeaderMap,
        request_time: SystemTime,
        response_time: SystemTime,
    ) -> Self {
        let generated = date::field(headers, &header::DATE).unwrap_or(response_time);
        // apparent_age = max(0, response_time - date_value), in the seconds that a Date has.
        let apparent_age = Duration::from_secs(date::since(generated, response_time).as_secs());
        let response_delay = date::since(request_time, response_time);
        let corrected_age_value = age_value(headers).duration().saturating_add(response_delay);
        Self {
            corrected_initial_age: apparent_age.max(corrected_age_value),
            response_time,
        }
    }

    /// The time since the response was generated or validated by its origin.
    #[must_use]
    pub(crate) fn current_age(&self, now: SystemTime) -> Duration {
        let resident_time = date::since(self.response_time, now);
        self.corrected_initial_age.saturating_add(resident_time)
    }
}

/// The value of `Age` (§5.1): the first of several, and none where it is not a number.
fn age_value(headers: &HeaderMap) -> Delta {
    headers
        .get_all(header::AGE)
        .iter()
        .find_map(|line| plain(line.as_bytes()).next())
        .and_then(Delta::parse)
        .unwrap_or(Delta::ZERO)
}

#[cfg(test)]
mod tests;
