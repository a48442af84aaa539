//! Parses the limits that an answer reports: how many requests a window has left, when
//! it ends, and how long to wait. Pure.
//!
//! These fields are read: `retry-after` (RFC 9110 §10.2.3); `ratelimit` and
//! `ratelimit-policy` (draft-ietf-httpapi-ratelimit-headers); and
//! `ratelimit-remaining` and `-reset`, also with the prefix `x-`, with an end in seconds
//! or as Unix time. What reports the size of a limit only is not: a limit above the
//! configured budget must not loosen it, and one below it shows in the requests left. A
//! value that cannot be parsed is ignored.
//!
//! Invariant: no report makes ordgate wait longer than an hour, since a wrong clock of
//! the upstream must not stop it for a month; nor, where it reports a wait, less than
//! a second.
//!
//! Deliberately absent: what follows from it (`upstream::budget`, and `upstream::permit` for
//! a key whose quota is exhausted).

mod structured;

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;

pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3600);
pub(crate) const MIN_WAIT: Duration = Duration::from_secs(1);
/// The longest plausible window, in seconds. A later end is invalid or in another unit.
const MAX_WINDOW: u64 = 400 * 86_400;
/// A number above this is Unix time, not seconds to go.
const UNIX_TIME: u64 = 1_000_000_000;

/// The window of a reported limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitWindow {
    /// A window of unknown or another length.
    Unnamed,
    Second,
    Minute,
    Hour,
    Day,
    Month,
}

impl LimitWindow {
    /// The window of this length in seconds.
    fn lasting(seconds: u64) -> Self {
        match seconds {
            1 => Self::Second,
            60 => Self::Minute,
            3600 => Self::Hour,
            86_400 => Self::Day,
            2_678_400 => Self::Month,
            _ => Self::Unnamed,
        }
    }
}

/// A reported limit: how many requests a window has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedLimit {
    pub(crate) window: LimitWindow,
    /// The requests left.
    pub(crate) remaining: u64,
    /// How long the limit is in force, from a second to an hour.
    pub(crate) valid_for: Duration,
    /// Whether the upstream has reported when the window ends. Otherwise `valid_for` is
    /// the longest possible time.
    pub(crate) end_is_known: bool,
}

/// Adds a limit of a window of this `length` that ends in `end` seconds. Where neither is
/// known, requests that are left bind nothing, and a spent window lasts a second.
fn add(limits: &mut Vec<ReportedLimit>, remaining: u64, end: Option<u64>, length: Option<u64>) {
    let end = end.filter(|end| *end <= MAX_WINDOW);
    let length = length.filter(|length| *length <= MAX_WINDOW);
    let ends = match end.or(length) {
        Some(ends) => ends,
        None if remaining == 0 => MIN_WAIT.as_secs(),
        None => return,
    };
    limits.push(ReportedLimit {
        window: length.map_or(LimitWindow::Unnamed, LimitWindow::lasting),
        remaining,
        valid_for: bounded(ends),
        end_is_known: end.is_some(),
    });
}

/// Parses the fields of an answer. `wall` is the present time, which ends in Unix time
/// are compared with.
pub(crate) fn read(fields: &HeaderMap, wall: SystemTime) -> Vec<ReportedLimit> {
    let mut limits = Vec::new();
    for (remaining, reset) in [
        ("ratelimit-remaining", "ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ] {
        // Where lines differ, the strictest counts.
        if let Some(remaining) = numbers(fields, remaining).min() {
            let end = numbers(fields, reset).map(|end| until(end, wall)).max();
            add(&mut limits, remaining, end, None);
        }
    }
    structured::read(fields, wall, &mut limits);
    limits
}

/// How long to wait after a 429: for `retry-after`, or else until a window ends; and as
/// long as a reported limit is exhausted.
pub(crate) fn wait_after_429(fields: &HeaderMap, wall: SystemTime) -> Duration {
    let limits = read(fields, wall);
    let ends = limits.iter().filter(|limit| limit.end_is_known);
    let wait = retry_after(fields, wall).or_else(|| ends.map(|limit| limit.valid_for).min());
    let empty = limits.iter().filter(|limit| limit.remaining == 0);
    let exhausted = empty.map(|limit| limit.valid_for).max();
    wait.unwrap_or(MIN_WAIT).max(exhausted.unwrap_or_default())
}

/// The wait of `retry-after`, from a second to an hour.
pub(crate) fn retry_after(fields: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    seconds_to_retry(fields, wall).map(bounded)
}

/// The seconds of `retry-after`, which are a number or a date; the most, where lines
/// differ.
fn seconds_to_retry(fields: &HeaderMap, wall: SystemTime) -> Option<u64> {
    let seconds = |text: &str| {
        let date = || httpdate::parse_http_date(text.trim()).ok();
        number(text).or_else(|| Some(seconds_between(wall, date()?)))
    };
    let lines = fields.get_all(RETRY_AFTER).iter();
    lines.filter_map(|line| seconds(line.to_str().ok()?)).max()
}

/// Whole seconds until an end, which is given in seconds or as Unix time.
fn until(end: u64, wall: SystemTime) -> u64 {
    if end <= UNIX_TIME {
        return end;
    }
    let date = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end));
    date.map_or(u64::MAX, |date| seconds_between(wall, date))
}

/// Whole seconds until a date, rounded up; 0 if it has passed.
fn seconds_between(wall: SystemTime, date: SystemTime) -> u64 {
    let left = date.duration_since(wall).unwrap_or_default();
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

/// The numbers of a field: of all its lines, and members of lists, without parameters.
fn numbers(fields: &HeaderMap, name: &'static str) -> impl Iterator<Item = u64> {
    let lines = fields.get_all(name).iter();
    let members = lines.flat_map(|line| line.to_str().unwrap_or("").split(','));
    members.filter_map(|member| number(member.split(';').next().unwrap_or("")))
}

/// A decimal integer, saturating.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).clamp(MIN_WAIT, MAX_WAIT)
}

#[cfg(test)]
pub(crate) mod tests;
