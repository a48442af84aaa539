//! The limits that the upstream reports, and how many requests they still allow. Pure: `now`
//! is an argument.
//!
//! These fields are read: `retry-after` (RFC 9110 §10.2.3); `ratelimit`
//! (draft-ietf-httpapi-ratelimit-headers since draft 8, which ordgate itself sends); and
//! `ratelimit-remaining` and `-reset`, also with the prefix `x-`. An end is in seconds, or
//! Unix time. What reports the size of a limit only is not: a limit above the configured
//! budget must not loosen it, and one below it shows in the requests left. Values that cannot
//! be parsed, and requests left until nobody knows when, are ignored.
//!
//! An answer reports what was left when its request was counted. Those in flight when it comes
//! are treated as not counted. Not covered: requests that came after it and have ended, whose
//! own answers report nothing; then a 429 rests the key.
//!
//! Invariants: while a reported limit is in force, nothing that is reported later loosens it; no
//! report makes ordgate wait longer than an hour, since a wrong clock of the upstream must not
//! stop it for a month; nor less than a second.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use sfv::{List, ListEntry, Parser};

use crate::clock::Moment;

const MAX_WAIT: Duration = Duration::from_hours(1);
const MIN_WAIT: Duration = Duration::from_secs(1);
/// The most limits in force, the strictest ones: an answer can report any number.
const MOST: usize = 8;
/// A number above this is Unix time, not seconds to go.
const UNIX_TIME: u64 = 1_000_000_000;

/// A reported limit: how many requests are left, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedLimit {
    pub(super) remaining: u64,
    /// From a second to an hour.
    pub(super) valid_for: Duration,
}

/// The reported limits in force: requests left, and until when. None outlasts a stricter one.
#[derive(Debug, Default)]
pub(super) struct ReportedLimits(Vec<(u64, Moment)>);

impl ReportedLimits {
    /// Takes in a limit; `uncounted` requests may not have been counted in it.
    pub(super) fn apply(&mut self, limit: ReportedLimit, uncounted: u64, now: Moment) {
        self.remove_ended(now);
        // A window of a second ends before requests in flight could be counted twice.
        // Subtracting them there would stop ordgate for good.
        let uncounted = match limit.valid_for > MIN_WAIT {
            true => uncounted,
            false => 0,
        };
        let (left, until) = (
            limit.remaining.saturating_sub(uncounted),
            now + limit.valid_for,
        );
        let is_covered = |(known, ends): &(u64, Moment)| *known <= left && *ends >= until;
        if self.0.iter().any(is_covered) {
            return;
        }
        self.0
            .retain(|(known, ends)| *known < left || *ends > until);
        self.0.push((left, until));
        self.0.sort_unstable();
        self.0.truncate(MOST);
    }

    /// The time until a request can be taken that leaves `kept` requests; `None` where one
    /// can be taken now.
    pub(super) fn wait(&mut self, now: Moment, kept: u64) -> Option<Duration> {
        self.remove_ended(now);
        let exhausted = self.0.iter().filter(|(left, _)| *left <= kept);
        exhausted.map(|(_, until)| until.since(now)).max()
    }

    /// Counts a request.
    pub(super) fn take(&mut self) {
        for (left, _) in &mut self.0 {
            *left = left.saturating_sub(1);
        }
    }

    /// How many requests are left; `None` where no limit is in force.
    pub(super) fn remaining(&mut self, now: Moment) -> Option<u64> {
        self.remove_ended(now);
        self.0.iter().map(|(left, _)| *left).min()
    }

    fn remove_ended(&mut self, now: Moment) {
        self.0.retain(|(_, until)| *until > now);
    }
}

/// The limits that an answer reports. `wall` is the present time, which ends in Unix time are
/// compared with.
pub(super) fn read(fields: &HeaderMap, wall: SystemTime) -> Vec<ReportedLimit> {
    let mut found = Vec::new();
    for (remaining, reset) in [
        ("ratelimit-remaining", "ratelimit-reset"),
        ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ] {
        // Where lines differ, the strictest counts.
        if let Some(remaining) = numbers(fields, remaining).min() {
            found.push((remaining, numbers(fields, reset).max()));
        }
    }
    // Each line is parsed on its own, so that of two intermediaries that report limits
    // neither hides those of the other.
    for line in fields.get_all("ratelimit") {
        let members: List = Parser::new(line.as_bytes()).parse().unwrap_or_default();
        found.extend(members.into_iter().filter_map(|member| {
            let ListEntry::Item(item) = member else {
                return None;
            };
            let number = |name| u64::try_from(i64::from(item.params.get(name)?.as_integer()?)).ok();
            Some((number("r")?, number("t")))
        }));
    }
    let limits = found.into_iter().filter_map(|(remaining, end)| {
        let valid_for = match end {
            Some(end) => bounded(until(end, wall)),
            None if remaining == 0 => MIN_WAIT,
            None => return None,
        };
        Some(ReportedLimit {
            remaining,
            valid_for,
        })
    });
    limits.collect()
}

/// How long to wait after a 429: for `retry-after`, and as long as a reported limit is
/// exhausted; a second, if it says neither.
pub(super) fn wait_after_429(fields: &HeaderMap, wall: SystemTime) -> Duration {
    let limits = read(fields, wall).into_iter();
    let exhausted = limits.filter(|limit| limit.remaining == 0);
    let ends = exhausted.map(|limit| limit.valid_for);
    let longest = ends.chain(retry_after(fields, wall)).max();
    longest.unwrap_or(MIN_WAIT)
}

/// The wait of `retry-after`, which is a number of seconds or a date, from a second to an
/// hour; the longest, where lines differ.
pub(super) fn retry_after(fields: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let seconds = |text: &str| {
        let date = || httpdate::parse_http_date(text.trim()).ok();
        number(text).or_else(|| Some(seconds_between(wall, date()?)))
    };
    let lines = fields.get_all(RETRY_AFTER).iter();
    let seconds = lines.filter_map(|line| seconds(line.to_str().ok()?));
    seconds.max().map(bounded)
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

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).clamp(MIN_WAIT, MAX_WAIT)
}

/// The numbers that are lines of a field.
fn numbers(fields: &HeaderMap, name: &'static str) -> impl Iterator<Item = u64> {
    let lines = fields.get_all(name).iter();
    lines.filter_map(|line| number(line.to_str().ok()?))
}

/// A decimal integer, saturating.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(super) mod tests;
