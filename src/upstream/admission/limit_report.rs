//! Parses the limits that an answer reports: how many requests a window has left, when
//! it ends, and how long to wait. Pure.
//!
//! Providers use many fields and notations, which `limit_report::dialects` lists. A
//! value that cannot be parsed is logged. In a refusal (429, 503) that does not say
//! otherwise when to retry, it also counts as a pause of [`UNREADABLE_WAIT`]: the
//! upstream has asked for a pause, and only its length is unknown. In any other answer
//! it is ignored, so that a provider that sends `unlimited` or `-1` does not slow every
//! request.
//!
//! Invariant: no report makes ordgate wait longer than an hour, since a wrong clock of
//! the upstream must not stop it for a month; nor, where it reports a wait, less than
//! a second.
//!
//! Deliberately absent: what follows from it (`upstream::admission::budget`, and
//! `upstream::keys` for a key whose quota is exhausted).

mod dialects;
mod structured;
mod times;

use std::time::{Duration, SystemTime};

use dialects::{BUCKET, ENDS, FieldMeaning, WAITS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use structured::{RATELIMIT, ServiceLimit};
use times::{Clocks, MAX_WINDOW};

pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3600);
pub(crate) const MIN_WAIT: Duration = Duration::from_secs(1);
/// The wait after a refusal whose duration cannot be parsed. Most windows last a
/// minute or less.
pub(crate) const UNREADABLE_WAIT: Duration = Duration::from_secs(10);

/// The window of a reported limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitWindow {
    /// A window without a name.
    Unnamed,
    Second,
    Minute,
    Hour,
    Day,
    Month,
}

/// The named windows, as field names spell them, and their lengths in seconds.
const NAMED: [(LimitWindow, &str, u64); 5] = [
    (LimitWindow::Second, "second", 1),
    (LimitWindow::Minute, "minute", 60),
    (LimitWindow::Hour, "hour", 3600),
    (LimitWindow::Day, "day", 86_400),
    (LimitWindow::Month, "month", 31 * 86_400),
];

impl LimitWindow {
    fn named(name: &str) -> Option<Self> {
        let (window, ..) = NAMED.iter().find(|(_, named, _)| *named == name)?;
        Some(*window)
    }

    /// The window of this length.
    fn lasting(seconds: u64) -> Self {
        let found = NAMED.iter().find(|(.., lasts)| *lasts == seconds);
        found.map_or(Self::Unnamed, |(window, ..)| *window)
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

/// A field that reports limits and cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableField {
    pub(crate) field: HeaderName,
    /// Its value, which may contain anything, even an API key.
    pub(crate) value: HeaderValue,
}

/// All limits that an answer reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitReport {
    /// The limit of each reported window.
    pub(crate) limits: Vec<ReportedLimit>,
    /// Set if a long-term quota is exhausted: the time without requests before one
    /// request tries the key.
    pub(crate) quota_spent: Option<Duration>,
    /// Whether the answer refuses or throttles the key (401, 403, 429).
    pub(crate) refuses_key: bool,
    /// The fields that cannot be parsed.
    pub(crate) unreadable: Vec<UnreadableField>,
}

impl LimitReport {
    /// How long a reported limit is exhausted.
    fn exhausted_for(&self) -> Duration {
        let empty = self.limits.iter().filter(|limit| limit.remaining == 0);
        let spans = empty.map(|limit| limit.valid_for).chain(self.quota_spent);
        spans.max().unwrap_or_default()
    }

    /// Adds a limit whose window ends in `end` seconds or, where that is unknown, in
    /// `longest` seconds at the latest.
    fn add(&mut self, window: LimitWindow, left: u64, end: Option<u64>, longest: u64) {
        let ends = end.unwrap_or(longest);
        let lasts = bounded(ends);
        let long =
            ends > MAX_WAIT.as_secs() || matches!(window, LimitWindow::Day | LimitWindow::Month);
        if left == 0 && long {
            self.quota_spent = self.quota_spent.max(Some(lasts));
        }
        self.limits.push(ReportedLimit {
            window,
            remaining: left,
            valid_for: lasts,
            end_is_known: end.is_some(),
        });
    }
}

/// Parses the fields of an answer. `wall` is the current time, for dates where the
/// answer has no `date`.
pub(crate) fn read(status: StatusCode, fields: &HeaderMap, wall: SystemTime) -> LimitReport {
    let found = ParsedFields::of(fields, wall);
    let mut reported = LimitReport::default();
    let unknown_wait = match found.unreadable.is_empty() || found.seconds_to_retry().is_some() {
        true => MIN_WAIT,
        false => UNREADABLE_WAIT,
    };
    for limit in found.unnamed() {
        let other = || found.unnamed().find_map(DialectLimit::plausible_end);
        match (limit.remaining, limit.plausible_end().or_else(other)) {
            (Some(left), Some(end)) => reported.add(LimitWindow::Unnamed, left, Some(end), end),
            // The kind of window is unknown, but it is exhausted.
            (Some(0), None) => reported.add(LimitWindow::Unnamed, 0, None, unknown_wait.as_secs()),
            (Some(_) | None, _) => {}
        }
    }
    for (window, _, longest) in NAMED {
        let limits = || found.limits.iter().filter(|limit| limit.window == window);
        let Some(left) = limits().filter_map(|limit| limit.remaining).min() else {
            continue;
        };
        let own = limits().filter_map(DialectLimit::plausible_end).max();
        // An unnamed end belongs to this window if the unnamed number equals this
        // window's, or if there is none.
        let shared = || {
            let unnamed = found.unnamed().find_map(|limit| limit.remaining);
            let same = unnamed.is_none_or(|unnamed| unnamed == left);
            let end = found.unnamed().find_map(DialectLimit::plausible_end);
            end.filter(|end| same && *end <= longest)
        };
        reported.add(window, left, own.or_else(shared), longest);
    }
    for item in &found.items {
        let end = item.end.filter(|end| *end <= MAX_WINDOW);
        let longest = item.longest.filter(|longest| *longest <= MAX_WINDOW);
        match (item.remaining, end.or(longest)) {
            (left, Some(longest)) => reported.add(item.window, left, end, longest),
            (0, None) => reported.add(item.window, 0, None, unknown_wait.as_secs()),
            (_, None) => {}
        }
    }
    if status == StatusCode::TOO_MANY_REQUESTS
        && found.wait.is_some_and(|wait| wait > MAX_WAIT.as_secs())
    {
        reported.quota_spent = Some(MAX_WAIT);
    }
    let refuses = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if !found.unreadable.is_empty() && refuses.contains(&status) {
        reported.add(LimitWindow::Unnamed, 0, None, unknown_wait.as_secs());
    }
    reported.refuses_key = matches!(status.as_u16(), 401 | 403 | 429);
    reported.unreadable = found.unreadable;
    reported
}

/// Whether a refusal reports an exhausted window with a known end.
pub(crate) fn is_window_exhausted(fields: &HeaderMap, wall: SystemTime) -> bool {
    let limits = read(StatusCode::FORBIDDEN, fields, wall).limits;
    limits
        .iter()
        .any(|limit| limit.remaining == 0 && limit.end_is_known)
}

/// How long to wait after a 429: for `retry-after`, or else until the window ends; and
/// as long as a reported limit is exhausted.
pub(crate) fn wait_after_429(fields: &HeaderMap, wall: SystemTime) -> Duration {
    let found = ParsedFields::of(fields, wall);
    bounded(found.seconds_to_retry().unwrap_or(0))
        .max(read(StatusCode::TOO_MANY_REQUESTS, fields, wall).exhausted_for())
}

/// The wait of `retry-after` and similar fields, from a second to an hour; `None`
/// without such a field.
pub(crate) fn retry_after(fields: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let found = ParsedFields::of(fields, wall);
    let wait = found.wait.map(bounded);
    wait.or_else(|| found.has_wait.then_some(UNREADABLE_WAIT))
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).clamp(MIN_WAIT, MAX_WAIT)
}

/// A window as reported by the fields of one dialect.
#[derive(Debug)]
struct DialectLimit {
    dialect: usize,
    window: LimitWindow,
    /// The lowest number, where lines differ.
    remaining: Option<u64>,
    /// The latest end, for each field of the dialect that gives it.
    ends: [Option<u64>; ENDS],
}

impl DialectLimit {
    /// The seconds until its end, by the best field that gives it.
    fn end(&self) -> Option<u64> {
        self.ends.iter().find_map(|end| *end)
    }

    /// The same, unless no window is that long.
    fn plausible_end(&self) -> Option<u64> {
        self.end().filter(|end| *end <= MAX_WINDOW)
    }
}

/// The values of the single fields.
#[derive(Debug, Default)]
struct ParsedFields {
    /// In the order of the dialects.
    limits: Vec<DialectLimit>,
    items: Vec<ServiceLimit>,
    /// The seconds to wait; the longest, where fields differ.
    wait: Option<u64>,
    /// Whether a field reports a wait, parsable or not.
    has_wait: bool,
    unreadable: Vec<UnreadableField>,
}

impl ParsedFields {
    fn of(fields: &HeaderMap, wall: SystemTime) -> Self {
        let clocks = Clocks::of(fields, wall);
        let mut found = Self::default();
        for (name, value) in fields {
            if let Some((dialect, window, part)) = dialects::find(name.as_str()) {
                let is_read = found.add(clocks, (dialect, window, part), name, value);
                found.record(is_read, name, value);
            }
        }
        found.limits.sort_by_key(|limit| limit.dialect);
        let (items, unreadable) = structured::read(fields, clocks);
        found.items = items;
        for value in unreadable {
            found.record(false, &RATELIMIT, value);
        }
        for (name, is_in_millis) in WAITS {
            for value in fields.get_all(name) {
                let text = value.to_str().unwrap_or("");
                let wait = match is_in_millis {
                    true => times::seconds_of_millis(text),
                    false => clocks.seconds_until(text),
                };
                found.wait = found.wait.max(wait);
                found.has_wait = true;
                found.record(wait.is_some(), &HeaderName::from_static(name), value);
            }
        }
        found
    }

    /// Adds a field line; returns whether all of it was parsed.
    fn add(
        &mut self,
        clocks: Clocks,
        (dialect, window, part): (usize, LimitWindow, FieldMeaning),
        name: &HeaderName,
        value: &HeaderValue,
    ) -> bool {
        let is_it = |limit: &DialectLimit| limit.dialect == dialect && limit.window == window;
        let at = self.limits.iter().position(is_it).unwrap_or_else(|| {
            self.limits.push(DialectLimit {
                dialect,
                window,
                remaining: None,
                ends: [None; ENDS],
            });
            self.limits.len() - 1
        });
        let limit = &mut self.limits[at];
        let text = value.to_str().unwrap_or("");
        let mut is_read = true;
        match part {
            FieldMeaning::Remaining => {
                for part in text.split(',') {
                    let left = match name.as_str() {
                        BUCKET => left_in_bucket(part),
                        // Docker Hub appends a window: `76;w=21600`.
                        _ => times::count(part.split(';').next().unwrap_or("")),
                    };
                    is_read &= left.is_some();
                    limit.remaining = limit.remaining.into_iter().chain(left).min();
                }
            }
            FieldMeaning::End(rank) => {
                // An HTTP date contains a comma.
                let parts = match clocks.seconds_until(text) {
                    Some(end) => vec![Some(end)],
                    None => text
                        .split(',')
                        .map(|part| clocks.seconds_until(part))
                        .collect(),
                };
                for end in parts {
                    is_read &= end.is_some_and(|end| end <= MAX_WINDOW);
                    limit.ends[rank] = limit.ends[rank].max(end);
                }
            }
        }
        is_read
    }

    fn record(&mut self, is_read: bool, field: &HeaderName, value: &HeaderValue) {
        if !is_read {
            self.unreadable.push(UnreadableField {
                field: field.clone(),
                value: value.clone(),
            });
        }
    }

    /// The seconds to wait, or until a window ends, where either is given.
    fn seconds_to_retry(&self) -> Option<u64> {
        let listed = || self.items.iter().filter_map(|item| item.end).min();
        let unnamed = || self.unnamed().find_map(DialectLimit::end);
        self.wait.or_else(unnamed).or_else(listed)
    }

    /// The limits of unnamed windows.
    fn unnamed(&self) -> impl Iterator<Item = &DialectLimit> {
        let limits = self.limits.iter();
        limits.filter(|limit| limit.window == LimitWindow::Unnamed)
    }
}

/// The requests left by `used/limit`.
fn left_in_bucket(text: &str) -> Option<u64> {
    let (used, limit) = text.split_once('/')?;
    Some(times::count(limit)?.saturating_sub(times::count(used)?))
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod dialect_tests;
