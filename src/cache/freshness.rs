//! Freshness lifetime and current age (RFC 9111 §4.2).
//!
//! Called when a response is stored or freshened; [`super::reuse`] compares what it yields with the
//! time of a request. Spans are never negative and saturate. Ages count from whole seconds where a
//! `Date` is involved, because a `Date` has no finer grain.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, StatusCode,
    header::{self, HeaderValue},
};

use super::{date, delta::Delta, directives::ResponseDirectives, list::plain, targeted::Governing};

/// How a lifetime is guessed where none is said (§4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heuristic {
    /// The part of the time since the last modification, in percent.
    pub percent: u8,
    /// What a guess never exceeds; zero forbids guessing.
    pub cap: Duration,
}

impl Default for Heuristic {
    fn default() -> Self {
        Self {
            percent: 10,
            cap: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// What a lifetime was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeSource {
    /// `s-maxage`.
    SMaxage,
    /// `max-age`.
    MaxAge,
    /// `Expires`.
    Expires,
    /// A guess from `Last-Modified`.
    Heuristic,
    /// Nothing: the response was never fresh.
    Nothing,
}

/// How long a response is fresh, counted from its generation (§4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The span.
    pub duration: Duration,
    /// Where it comes from.
    pub source: LifetimeSource,
}

impl Lifetime {
    /// The lifetime of a response, for a shared cache.
    #[must_use]
    pub fn of(
        status: StatusCode,
        headers: &HeaderMap,
        governing: &Governing,
        response_time: SystemTime,
        heuristic: Heuristic,
    ) -> Self {
        let directives = &governing.directives;
        let said = |delta: Delta, source| Self {
            duration: delta.duration(),
            source,
        };
        // §4.2.1, in this order: s-maxage of a shared cache, max-age, Expires, and only then a guess.
        if let Some(delta) = directives.s_maxage {
            return said(delta, LifetimeSource::SMaxage);
        }
        if let Some(delta) = directives.max_age {
            return said(delta, LifetimeSource::MaxAge);
        }
        let generated = date::field(headers, &header::DATE).unwrap_or(response_time);
        // RFC 9213 §2.2: a targeted field silences Expires.
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
            let duration = heuristic.guess(date::since(modified, generated));
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
    fn guess(self, unmodified: Duration) -> Duration {
        let part = unmodified.as_secs().saturating_mul(u64::from(self.percent)) / 100;
        Duration::from_secs(part).min(self.cap)
    }
}

/// The earliest of the dates of `Expires`; nothing when one of them is no date, which is a time in the
/// past (§5.3).
fn earliest_expiry(headers: &HeaderMap) -> Option<SystemTime> {
    let lines = headers.get_all(header::EXPIRES).iter();
    let dates: Option<Vec<_>> = lines.map(|line| date::parse(line.as_bytes())).collect();
    dates?.into_iter().min()
}

/// Whether a lifetime may be guessed: the status code is heuristically cacheable, or the response is
/// marked as cacheable (§4.2.2).
#[must_use]
pub fn may_guess(status: StatusCode, directives: &ResponseDirectives) -> bool {
    directives.public || heuristically_cacheable(status)
}

/// The status codes that are heuristically cacheable: RFC 9110 §15.1, and 451 (RFC 7725 §3).
#[must_use]
pub fn heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

/// From what the age of a stored response is counted (§4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aging {
    corrected_initial_age: Duration,
    response_time: SystemTime,
}

impl Aging {
    /// The age that a response has on arrival.
    #[must_use]
    pub fn of(headers: &HeaderMap, request_time: SystemTime, response_time: SystemTime) -> Self {
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

    /// How long it is since the response was generated or validated at its origin.
    #[must_use]
    pub fn current_age(&self, now: SystemTime) -> Duration {
        let resident_time = date::since(self.response_time, now);
        self.corrected_initial_age.saturating_add(resident_time)
    }

    /// When the response arrived.
    #[must_use]
    pub fn response_time(&self) -> SystemTime {
        self.response_time
    }

    /// The `Age` field of an answer made from the stored response (§5.1).
    #[must_use]
    pub fn field(&self, now: SystemTime) -> HeaderValue {
        HeaderValue::from(Delta::from_secs(self.current_age(now).as_secs()).as_secs())
    }
}

/// §5.1: the first member counts where there are several, and what is no number is ignored.
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
