//! Freshness lifetime and current age (RFC 9111 §4.2).
//!
//! Computed when a response is stored or freshened; [`super::reuse`] compares them with the time of a
//! request. Durations are never negative and saturate. Where a `Date` is involved, ages are in whole
//! seconds, the resolution of `Date`.

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE, EXPIRES, LAST_MODIFIED};
use http::{HeaderMap, StatusCode};

use super::date;
use super::directives::Directives;
use super::list::plain;

/// The longest heuristic lifetime (§4.2.2).
const LONGEST_GUESS: Duration = Duration::from_hours(24);

/// How long a response is fresh for a shared cache, counted from its generation (§4.2.1).
#[must_use]
pub(crate) fn lifetime(
    status: StatusCode,
    headers: &HeaderMap,
    directives: &Directives,
    response_time: SystemTime,
) -> Duration {
    explicit_lifetime(headers, directives, response_time).unwrap_or_else(|| {
        // §4.2.2: the status code is heuristically cacheable, or the response is marked as
        // cacheable.
        let may_guess = directives.public || heuristically_cacheable(status);
        let modified = date::field(headers, &LAST_MODIFIED).filter(|_| may_guess);
        modified.map_or(Duration::ZERO, |modified| {
            let unmodified = date::since(modified, generated(headers, response_time));
            Duration::from_secs(unmodified.as_secs() / 10).min(LONGEST_GUESS)
        })
    })
}

/// The lifetime that the response states, if it does (§4.2.1).
#[must_use]
pub(crate) fn explicit_lifetime(
    headers: &HeaderMap,
    directives: &Directives,
    response_time: SystemTime,
) -> Option<Duration> {
    directives.s_maxage.or(directives.max_age).or_else(|| {
        // RFC 9213 §2.2: a targeted field overrides Expires.
        let expires = !directives.is_targeted && headers.contains_key(EXPIRES);
        expires.then(|| {
            let generated = generated(headers, response_time);
            date::since(generated, earliest_expiry(headers).unwrap_or(generated))
        })
    })
}

fn generated(headers: &HeaderMap, response_time: SystemTime) -> SystemTime {
    date::field(headers, &DATE).unwrap_or(response_time)
}

/// The earliest date in `Expires`; `None` where one of them is invalid, which means a time in the past
/// (§5.3).
fn earliest_expiry(headers: &HeaderMap) -> Option<SystemTime> {
    let lines = headers.get_all(EXPIRES).iter();
    let dates: Option<Vec<_>> = lines.map(|line| date::parse(line.as_bytes())).collect();
    dates?.into_iter().min()
}

/// The status codes that are heuristically cacheable: RFC 9110 §15.1, and 451 (RFC 7725 §3).
#[must_use]
pub(crate) fn heuristically_cacheable(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 451 | 501
    )
}

/// The age that a response has on arrival: its corrected initial age (§4.2.3).
#[must_use]
pub(crate) fn age_on_arrival(
    headers: &HeaderMap,
    request_time: SystemTime,
    response_time: SystemTime,
) -> Duration {
    // apparent_age = max(0, response_time - date_value), in the seconds that a Date has.
    let apparent_age = date::since(generated(headers, response_time), response_time).as_secs();
    let response_delay = date::since(request_time, response_time);
    Duration::from_secs(apparent_age).max(age_value(headers) + response_delay)
}

/// The value of `Age` (§5.1): the first of several, and none where it is not a number.
fn age_value(headers: &HeaderMap) -> Duration {
    let lines = headers.get_all(AGE).iter();
    let first = lines.flat_map(|line| plain(line.as_bytes())).next();
    first.and_then(date::seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests;
